"""Diffs: two histories side by side, message by message, from where they part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar
from zlib import crc32

from clew.domain.differences.alignment import Pairs, aligned
from clew.domain.differences.content_diff import FieldDiff, canonical, field_diffs, plain
from clew.domain.differences.word_diff import Kind, words
from clew.domain.history import History, HistoryMessage
from clew.domain.json_values import Json, JsonObject
from clew.domain.messages import Content, FunctionCall, FunctionResult

T = TypeVar("T")

EQUAL = 1_000
"""The likeness of equal messages: thousandths of their words that are on both sides."""

LEAST = 300
"""The least likeness of a pair of messages: below it, common words are mostly chance."""

NAMED_ALIKE = 600
"""The likeness of two messages that call the same functions, or hold results of them."""

OF_ANOTHER_ROLE = 500
"""The likeness of two messages with the same content in different roles."""

REDACTED = LEAST + 1
"""The likeness of a redacted message to another one of its role: a pair if there is no better one."""

OF_ONE_NAME = 500
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
    them is the same if the messages are equal. Where both sides differ, rows only in ``a`` come first.
    """

    a: History
    b: History
    shared: int
    rows: tuple[DiffRow, ...]

    @property
    def shared_version(self) -> int:
        """The version of the last message that both share, 0 if they share none."""
        return self.a.messages[self.shared - 1].version if self.shared else 0

    @property
    def counts(self) -> DiffCounts:
        """The number of rows of each kind; shared ones count as the same."""
        found = Counter(row.kind for row in self.rows)
        return DiffCounts(found["same"], found["changed"], found["only-a"], found["only-b"])


def diff(a: History, b: History) -> Diff:
    """Compare two histories, of one thread or of two.

    ``diff(b, a)`` is the same with the sides exchanged. A redacted message equals another redacted one of its role, and
    nothing else. Data that an import keeps for the export is not compared.
    """
    shared = _shared(a.messages, b.messages)
    rows = [DiffRow("same", own, their) for own, their in zip(a.messages[:shared], b.messages[:shared], strict=True)]
    ours, theirs = [_Said(said) for said in a.messages[shared:]], [_Said(said) for said in b.messages[shared:]]
    for own, their in _sides(aligned(ours, theirs, _likeness), ours, theirs):
        rows.append(_row(own, their))
    return Diff(a, b, shared, tuple(rows))


def _shared(a: Sequence[HistoryMessage], b: Sequence[HistoryMessage]) -> int:
    """The number of events that both paths begin with. Paths part once: after that, no event is on both."""
    shorter = min(len(a), len(b))
    return next((place for place in range(shorter) if a[place].event_id != b[place].event_id), shorter)


def _row(own: _Said | None, their: _Said | None) -> DiffRow:
    if own is None or their is None:
        alone: Kind = "only-b" if own is None else "only-a"
        return DiffRow(alone, None if own is None else own.message, None if their is None else their.message)
    if own.key == their.key:
        return DiffRow("same", own.message, their.message)
    pieces = _sides(aligned(own.pieces, their.pieces, _piece_likeness), own.pieces, their.pieces)
    contents = tuple(_content_diff(piece, other) for piece, other in pieces)
    return DiffRow("changed", own.message, their.message, field_diffs(own.facts, their.facts), contents)


def _content_diff(own: _Piece | None, their: _Piece | None) -> ContentDiff:
    if own is None or their is None:
        alone: Kind = "only-b" if own is None else "only-a"
        return ContentDiff(alone, None if own is None else own.content, None if their is None else their.content)
    fields = field_diffs(own.plain, their.plain)
    return ContentDiff("changed" if fields else "same", own.content, their.content, fields)


def _sides(pairs: Pairs, a: Sequence[T], b: Sequence[T]) -> Iterator[tuple[T | None, T | None]]:
    """All items of both sides: pairs, and between them first those only in ``a`` and then those only in ``b``."""
    here = there = 0
    for place, other in (*pairs, (len(a), len(b))):
        yield from ((item, None) for item in a[here:place])
        yield from ((None, item) for item in b[there:other])
        if place < len(a):
            yield a[place], b[other]
        here, there = place + 1, other + 1


class _Piece:
    """A content, and the values that compare it."""

    def __init__(self, content: Content) -> None:
        self.content = content
        self.plain = plain(content)
        self.key = canonical([content.type, self.plain])


class _Said:
    """A message, and the values that compare it."""

    def __init__(self, message: HistoryMessage) -> None:
        self.message = message
        self.role = message.role
        self.redacted = message.redacted
        self.pieces = [_Piece(content) for content in message.contents]
        self.contents = canonical(None if self.redacted else [piece.key for piece in self.pieces])
        self.key = canonical([self.facts, self.contents])
        self.names = tuple(
            (content.type, content.name)
            for content in message.contents
            if isinstance(content, FunctionCall | FunctionResult)
        )

    @property
    def facts(self) -> JsonObject:
        """The fields of the message besides its contents."""
        found: JsonObject = {"role": self.role}
        if self.message.author is not None:
            found["author"] = self.message.author
        if self.message.message is not None and self.message.message.metadata:
            found["metadata"] = self.message.message.metadata
        return found

    @cached_property
    def words(self) -> int:
        """A bit for each different word, regardless of case; a sample of many words.

        Some words share a bit, so messages look slightly more alike than they are.
        """
        said = (word for piece in self.pieces for text in _texts(piece.plain) for word in words(text.lower()))
        found = {crc32(word.encode()) for word in said if len(word) > 1 or word.isalnum()}  # no signs
        bits = 0
        for each in sorted(found)[:MOST_WORDS]:
            bits |= 1 << each % WORD_BITS
        return bits


def _likeness(said: _Said, others: Sequence[_Said]) -> list[int]:
    """The likeness of messages: the greatest for equal ones, otherwise by common words (Dice)."""
    role, own = said.role, said.words
    count = own.bit_count()
    found: list[int] = []
    for other in others:
        if other.role != role:
            like = OF_ANOTHER_ROLE if said.pieces and other.contents == said.contents else 0
        elif other.key == said.key:
            like = EQUAL
        elif said.redacted or other.redacted:
            like = REDACTED
        else:
            like = 2_000 * (own & other.words).bit_count() // (count + other.words.bit_count() or 1)
            if said.names and said.names == other.names:
                like = max(NAMED_ALIKE, like)
        found.append(like - LEAST if like > LEAST else 0)
    return found


def _piece_likeness(piece: _Piece, others: Sequence[_Piece]) -> list[int]:
    """The likeness of contents of two messages that belong together."""
    return [_alike(piece, other) for other in others]


def _alike(one: _Piece, other: _Piece) -> int:
    if one.key == other.key:
        return EQUAL
    if one.content.type != other.content.type:
        return 0
    if one.plain.get("name") == other.plain.get("name"):
        return OF_ONE_NAME
    return OF_ONE_NAME // 2 if one.plain.get("arguments") == other.plain.get("arguments") else 0


def _texts(value: Json) -> Iterator[str]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif value is not None:
        yield str(value)
