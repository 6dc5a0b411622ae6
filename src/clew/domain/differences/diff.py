"""Diffs: two histories side by side, message by message, from where they part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar
from zlib import crc32

from clew.domain.differences.alignment import Pairs, aligned
from clew.domain.differences.content_diff import FieldDiff, field_diffs, plain
from clew.domain.differences.record_diff import RecordDiff, diff_records
from clew.domain.differences.word_diff import Kind, words
from clew.domain.history import History, HistoryMessage
from clew.domain.json_values import Json, JsonObject, canonical
from clew.domain.messages import Content, FunctionCall, FunctionResult
from clew.domain.records import ThreadRecord

T = TypeVar("T")

EQUAL = 1_000
"""The likeness of equal messages: thousandths of their words that are on both sides."""

LEAST = 300
"""The least likeness of a pair of messages: below it, common words are mostly chance."""

SAME_FUNCTIONS = 600
"""The likeness of two messages that call the same functions, or hold results of them."""

OTHER_ROLE = 500
"""The likeness of two messages with the same content in different roles."""

REDACTED = LEAST + 1
"""The likeness of a redacted message to another one of its role: a pair if there is no better one."""

SAME_NAME = 500
"""The likeness of two different contents of a type; calls must be of the same function."""

MOST_WORDS = 400
"""Different words that the likeness of messages compares; of a longer message, a sample of its words."""

WORD_BITS = 4_096
"""Bits that represent words."""


class ContentDiff(NamedTuple):
    """Two contents that belong together, or one that is on one side only; ``fields`` are the changes."""

    kind: Kind
    a: Content | None
    b: Content | None
    fields: tuple[FieldDiff, ...] = ()


class DiffRow(NamedTuple):
    """Two messages that belong together, or one that is on one side only.

    In a changed row, ``contents`` has all contents, and ``fields`` the differences of role, author and metadata.
    """

    kind: Kind
    a: HistoryMessage | None
    b: HistoryMessage | None
    fields: tuple[FieldDiff, ...] = ()
    contents: tuple[ContentDiff, ...] = ()


class DiffCounts(NamedTuple):
    """The number of rows of each kind."""

    same: int
    changed: int
    only_a: int
    only_b: int


@dataclass(frozen=True, slots=True)
class Diff:
    """Two histories side by side.

    The first ``shared`` rows are events of both: their common past. The others are aligned by content, and a row of
    them is the same if the messages are equal. Where both sides differ, rows only in ``a`` come first. ``records`` are
    the records of both sides, without those of their common past.
    """

    a: History
    b: History
    shared: int
    rows: tuple[DiffRow, ...]
    records: tuple[RecordDiff, ...] = ()

    @property
    def shared_version(self) -> int:
        """The version of the last message that both share, 0 if they share none."""
        return self.a.messages[self.shared - 1].version if self.shared else 0

    @property
    def counts(self) -> DiffCounts:
        """The number of rows of each kind; shared ones count as the same."""
        counts = Counter(row.kind for row in self.rows)
        return DiffCounts(counts["same"], counts["changed"], counts["only-a"], counts["only-b"])


def diff(
    a: History, b: History, records: Sequence[ThreadRecord] = (), other_records: Sequence[ThreadRecord] = ()
) -> Diff:
    """Compare two histories, of one thread or of two, and the records on their paths.

    ``diff(b, a)`` is the same with the sides exchanged. A redacted message equals another redacted one of its role, and
    nothing else. Data that an import keeps for the export is not compared.
    """
    shared = _shared(a.messages, b.messages)
    rows = [DiffRow("same", own, their) for own, their in zip(a.messages[:shared], b.messages[:shared], strict=True)]
    ours = [_ComparedMessage(message) for message in a.messages[shared:]]
    theirs = [_ComparedMessage(message) for message in b.messages[shared:]]
    rows += [_row(own, their) for own, their in _sides(aligned(ours, theirs, _likeness), ours, theirs)]
    return Diff(a, b, shared, tuple(rows), diff_records(records, other_records))


def _shared(a: Sequence[HistoryMessage], b: Sequence[HistoryMessage]) -> int:
    """The number of events that both paths begin with. After their first difference, paths share no event."""
    shorter = min(len(a), len(b))
    return next((index for index in range(shorter) if a[index].event_id != b[index].event_id), shorter)


def _row(own: _ComparedMessage | None, their: _ComparedMessage | None) -> DiffRow:
    if own is None or their is None:
        side: Kind = "only-b" if own is None else "only-a"
        return DiffRow(side, None if own is None else own.message, None if their is None else their.message)
    if own.key == their.key:
        return DiffRow("same", own.message, their.message)
    pairs = _sides(aligned(own.contents, their.contents, _content_likeness), own.contents, their.contents)
    contents = tuple(_content_diff(content, other) for content, other in pairs)
    return DiffRow("changed", own.message, their.message, field_diffs(own.fields, their.fields), contents)


def _content_diff(own: _ComparedContent | None, their: _ComparedContent | None) -> ContentDiff:
    if own is None or their is None:
        side: Kind = "only-b" if own is None else "only-a"
        return ContentDiff(side, None if own is None else own.content, None if their is None else their.content)
    fields = field_diffs(own.plain, their.plain)
    return ContentDiff("changed" if fields else "same", own.content, their.content, fields)


def _sides(pairs: Pairs, a: Sequence[T], b: Sequence[T]) -> Iterator[tuple[T | None, T | None]]:
    """All items of both sides: pairs, and between them first those only in ``a`` and then those only in ``b``."""
    start = other_start = 0
    for index, other_index in (*pairs, (len(a), len(b))):
        yield from ((item, None) for item in a[start:index])
        yield from ((None, item) for item in b[other_start:other_index])
        if index < len(a):
            yield a[index], b[other_index]
        start, other_start = index + 1, other_index + 1


class _ComparedContent:
    """A content, and the values by which it is compared."""

    def __init__(self, content: Content) -> None:
        self.content = content
        self.plain = plain(content)
        self.key = canonical([content.type, self.plain])


class _ComparedMessage:
    """A message, and the values by which it is compared."""

    def __init__(self, message: HistoryMessage) -> None:
        self.message = message
        self.role = message.role
        self.redacted = message.redacted
        self.contents = [_ComparedContent(content) for content in message.contents]
        self.content_key = canonical(None if self.redacted else [content.key for content in self.contents])
        self.key = canonical([self.fields, self.content_key])
        self.names = tuple(
            (content.type, content.name)
            for content in message.contents
            if isinstance(content, FunctionCall | FunctionResult)
        )

    @property
    def fields(self) -> JsonObject:
        """The fields of the message besides its contents."""
        fields: JsonObject = {"role": self.role}
        if self.message.author is not None:
            fields["author"] = self.message.author
        if self.message.message is not None and self.message.message.metadata:
            fields["metadata"] = self.message.message.metadata
        return fields

    @cached_property
    def words(self) -> int:
        """A bit for each different word, regardless of case; a sample of many words.

        Some words share a bit, so messages look slightly more alike than they are.
        """
        texts = (text for content in self.contents for text in _texts(content.plain))
        all_words = (word for text in texts for word in words(text.lower()))
        hashes = {crc32(word.encode()) for word in all_words if len(word) > 1 or word.isalnum()}  # no signs
        bits = 0
        for word_hash in sorted(hashes)[:MOST_WORDS]:
            bits |= 1 << word_hash % WORD_BITS
        return bits


def _likeness(message: _ComparedMessage, others: Sequence[_ComparedMessage]) -> list[int]:
    """The likeness of messages: the greatest for equal ones, otherwise by common words (Dice)."""
    role, own_words = message.role, message.words
    count = own_words.bit_count()
    likenesses: list[int] = []
    for other in others:
        if other.role != role:
            likeness = OTHER_ROLE if message.contents and other.content_key == message.content_key else 0
        elif other.key == message.key:
            likeness = EQUAL
        elif message.redacted or other.redacted:
            likeness = REDACTED
        else:
            likeness = 2_000 * (own_words & other.words).bit_count() // (count + other.words.bit_count() or 1)
            if message.names and message.names == other.names:
                likeness = max(SAME_FUNCTIONS, likeness)
        likenesses.append(likeness - LEAST if likeness > LEAST else 0)
    return likenesses


def _content_likeness(content: _ComparedContent, others: Sequence[_ComparedContent]) -> list[int]:
    """The likeness of contents of two messages that belong together."""

    def likeness(other: _ComparedContent) -> int:
        if content.key == other.key:
            return EQUAL
        if content.content.type != other.content.type:
            return 0
        if content.plain.get("name") == other.plain.get("name"):
            return SAME_NAME
        return SAME_NAME // 2 if content.plain.get("arguments") == other.plain.get("arguments") else 0

    return [likeness(other) for other in others]


def _texts(value: Json) -> Iterator[str]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif value is not None:
        yield str(value)
