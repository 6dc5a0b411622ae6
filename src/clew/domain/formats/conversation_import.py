"""The import of a conversation: its key, its thread, and the plan for a thread that the store already has.

The key of a conversation is its id. Without an id, or with null, the key is the digest of its content and its place
among equal conversations in the input. The thread's id derives from the key, so concurrent imports write to one stream.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import NamedTuple

from clew.domain.decider import Said, Start, message_appended
from clew.domain.decider_state import Control
from clew.domain.errors import ClewError, ImportFormatError
from clew.domain.events import (
    FIRST_MICROSECOND,
    LAST_MICROSECOND,
    MessageAppended,
    RecordAppended,
    Source,
    ThreadStarted,
    to_microseconds,
)
from clew.domain.formats.openai_messages import decode, encode, same
from clew.domain.formats.transcripts import Files, TranscriptPath
from clew.domain.history import HistoryMessage
from clew.domain.json_values import Json, JsonObject, canonical, check_json, one_line
from clew.domain.messages import Message
from clew.domain.records import ThreadRecord
from clew.domain.streams import digest, moment

_ID_DIGITS = 16
"""Hex digits of an imported thread's id: 64 bits of SHA-256."""

SAID_FIELDS = ("timestamp", "created_at", "create_time")
"""The fields that say when a message was said, as common exports name them."""

_UNITS = ((1e14, 1), (1e11, 1_000))
"""From this number on a time counts microseconds, and milliseconds; a second of the year 5138 is smaller."""

_LONGEST_ERROR = 500
_LONGEST_NAME = 40
_MOST_NAMES = 5
"""Limits of the text in an error: characters in total, characters of a field's name, and names of fields."""


def no_files(_: str) -> None:
    """No file: there are none next to the conversations."""


class Item(NamedTuple):
    """A conversation of a file: ``value`` is its parsed JSON.

    ``line`` is the number of its line in a file of JSON lines; ``number`` is its place, from 1, in a list. ``size`` is
    about how many bytes its JSON has, 0 if that is not known. ``files`` finds the files of its export.
    """

    file: str
    line: int | None
    value: object
    number: int | None = None
    size: int = 0
    files: Files = no_files


class ImportFailure(NamedTuple):
    """A conversation or a file that was not imported; ``error`` is one line and quotes no message."""

    file: str
    line: int | None
    error: str


class ImportReport(NamedTuple):
    """The result of an import.

    ``threads`` were started or extended, with ``messages`` and ``events``. ``skipped`` conversations were already in
    their threads. ``records`` are the numbers of the records, by type: they keep what Clew has no message for.
    """

    threads: int
    messages: int
    events: int
    skipped: int
    failed: list[ImportFailure]
    records: Mapping[str, int] = {}


@dataclass(frozen=True)
class Conversation:
    """A conversation in the OpenAI chat format.

    ``id`` is None if it has none. ``fields`` are the other fields of its object, without the messages. ``values`` are
    the messages as JSON, ``messages`` the same messages decoded.
    """

    id: Json
    fields: JsonObject
    values: list[JsonObject]
    messages: tuple[Message, ...]

    @property
    def said(self) -> tuple[int | None, ...]:
        """When each message was said, in microseconds since 1970; empty if no message says it."""
        times = tuple(map(said, self.values))
        return times if any(time is not None for time in times) else ()

    @property
    def media_size(self) -> int:
        """The media are in its JSON."""
        return 0

    def said_from(self, first: int) -> Said:
        """The same, from an index on."""
        return self.said[first:]

    def appended(self, first: int = 0) -> tuple[MessageAppended, ...]:
        """The events of its messages, which were checked when they were decoded, from an index on."""
        return tuple(map(message_appended, self.messages[first:]))

    def key(self, occurrence: int) -> Json:
        """Its key; ``occurrence`` counts from 1 and separates equal conversations without ids."""
        return [self.digest, occurrence] if self.id is None else self.id

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of its content, in hex."""
        return _digest({**self.fields, "messages": list(self.values)})

    def start(self) -> Start:
        """The intent that starts its thread."""
        title = self.fields.get("title")
        metadata = self.fields.get("metadata")
        own_metadata = metadata if isinstance(metadata, dict) else {}
        rest = {name: value for name, value in self.fields.items() if name != "metadata" or not own_metadata}
        return Start(
            title=title if isinstance(title, str) else None,
            metadata=own_metadata,
            source=Source(id=self.id, fields=rest),
            messages=self.appended(),
            said=self.said,
        )


@dataclass(frozen=True, slots=True)
class StoredThread:
    """A thread of the store: its start, its control, and the messages on its path.

    ``started`` is None if it was forked, or if its start cannot be read. ``records`` are those on its path; they are
    needed only for conversations of other programs.
    """

    started: ThreadStarted | None
    control: Control
    messages: Sequence[HistoryMessage]
    records: Sequence[ThreadRecord] = ()


class Extend(NamedTuple):
    """Append the rest of the messages to the thread, if it is still at this version."""

    items: tuple[MessageAppended | RecordAppended, ...]
    said: Said
    expected_version: int


def source_fields(started: ThreadStarted) -> JsonObject:
    """The fields of the conversation that a thread was imported from; its metadata is stored as the thread's own."""
    fields = {} if started.source is None else started.source.fields
    return {**fields, "metadata": started.metadata} if started.metadata else fields


def count_occurrence(conversation: Conversation | TranscriptPath, counts: Counter[str]) -> int:
    """The number of the conversation among those with equal content, from 1; always 1 for one with an id.

    ``counts`` has the counts of the earlier conversations in the input, by digest.
    """
    if isinstance(conversation, TranscriptPath) or conversation.id is not None:
        return 1
    content_digest = conversation.digest
    counts[content_digest] += 1
    return counts[content_digest]


def read_conversation(value: object) -> Conversation:
    """The conversation in parsed JSON: a list of messages, or an object with ``messages``.

    Raises ImportFormatError for anything else, and InvalidContentError for JSON that cannot be stored.
    """
    if isinstance(value, list):
        if not value:
            raise ImportFormatError("An empty list is not a conversation. Give at least one message.")
        return _conversation(None, {}, value)
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise ImportFormatError(f"{kind} is not a conversation. Give a list of messages, or an object with 'messages'.")
    if "messages" not in value:
        raise ImportFormatError("The object has no 'messages'. A conversation is an object with a list of that name.")
    messages = value["messages"]
    if not isinstance(messages, list):
        kind = type(messages).__name__
        raise ImportFormatError(f"'messages' is {kind}, but it must be a list of messages.")
    fields = {key: item for key, item in value.items() if key not in {"id", "messages"}}
    check_json(value.get("id"), "id")
    for name, item in fields.items():
        check_json(name, "the conversation: a field's name")
        check_json(item, f"the conversation: {name}")
    return _conversation(value.get("id"), fields, messages)


def said(message: JsonObject) -> int | None:
    """When a message was said, in microseconds since 1970; None if no field of it names a time.

    A number counts seconds since 1970, or milliseconds or microseconds if it is that large. A text is ISO 8601 with a
    UTC offset: without one it names no moment.
    """
    if message.keys().isdisjoint(SAID_FIELDS):  # most are
        return None
    times = (microseconds(message[name]) for name in SAID_FIELDS if name in message)
    return next((time for time in times if time is not None), None)


def microseconds(value: object) -> int | None:
    """The microseconds since 1970 of a time as programs export it, as in ``said``; None for anything else."""
    if isinstance(value, str):
        time = moment(value)
        if time is not None and time.tzinfo is not None:
            return _within(to_microseconds(time))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        unit = next((unit for least, unit in _UNITS if abs(value) >= least), 1_000_000)
        return _within(round(value * unit))
    return None


def _within(microseconds: int) -> int | None:
    return microseconds if FIRST_MICROSECOND <= microseconds <= LAST_MICROSECOND else None


def thread_id(key: Json) -> str:
    """The id of an imported thread: the first 16 hex digits of SHA-256 over the canonical JSON of its key."""
    return _digest(key)[:_ID_DIGITS]


def plan(
    thread_id: str, conversation: Conversation | TranscriptPath, stored: StoredThread | None
) -> Start | Extend | None:
    """How to import a conversation: start its thread, extend it, or None if the thread has all of its messages.

    ``stored`` is the thread with its id, None if it does not exist. Raises ImportFormatError for another thread.
    """
    if stored is None:
        return conversation.start()
    if not _is_of(stored, conversation):
        raise ImportFormatError(
            f"Conversation of thread {thread_id!r}: its thread's id is taken by another thread. Import it into another "
            "store, or give it another id."
        )
    given: Sequence[Json] = conversation.values
    if isinstance(conversation, TranscriptPath):  # its fields change with every export
        values, unequal = conversation.stored(stored.messages, stored.records)[0], ""
    else:
        fields = {} if stored.started is None else source_fields(stored.started)
        values, unequal = _encode(stored.messages), _unequal_fields(fields, conversation.fields)
    equal = _equal_beginning(values, given)
    reason = ""
    if equal < min(len(values), len(given)):
        reason = f"it differs from its thread at message {equal + 1}"
    elif unequal:
        reason = f"it differs from its thread in {unequal}"
    elif equal < len(given) and stored.control.status != "active":
        reason = f"it has {len(given) - equal} more messages than its thread"
    if reason:
        control = stored.control
        raise ImportFormatError(
            f"Conversation of thread {thread_id!r}: {reason}; the thread is {control.status}, at version "
            f"{control.version}. Fork it, or import under another id."
        )
    if equal == len(given):
        return None
    return Extend(conversation.appended(equal), conversation.said_from(equal), stored.control.version)


def _is_of(stored: StoredThread, conversation: Conversation | TranscriptPath) -> bool:
    """Whether a thread is that of a conversation, or of a fork of it."""
    if isinstance(conversation, TranscriptPath) and conversation.first is not None:
        return stored.control.parent_id is not None
    started = stored.started
    return started is not None and started.source is not None and same(started.source.id, conversation.id)


def failure(item: Item, error: ClewError | str) -> ImportFailure:
    """The failure of an item, on one line even if its keys have line ends."""
    text = str(error) if item.number is None else f"conversation {item.number}: {error}"
    line = "".join(char if char.isprintable() else " " for char in text)
    return ImportFailure(item.file, item.line, one_line(line, _LONGEST_ERROR))


def _conversation(id_: Json, fields: JsonObject, values: list[JsonObject]) -> Conversation:
    messages = tuple(decode(value, number) for number, value in enumerate(values, start=1))
    return Conversation(id_, fields, values, messages)


def _digest(value: Json) -> str:
    """The SHA-256 of canonical JSON in UTF-8, in hex."""
    return digest(canonical(value).encode()).hex()


def _encode(messages: Sequence[HistoryMessage]) -> list[Json | None]:
    """The messages in the imported format, None for a redacted message."""
    values: list[Json | None] = []
    for each in messages:
        values += [None] if each.message is None else encode(each.message)
    return values


def _equal_beginning(stored: Sequence[Json | None], given: Sequence[Json]) -> int:
    """How many messages at the beginning are equal; a redacted message equals any."""
    pairs = zip(stored, given, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] is None or same(*pair), pairs))


def _unequal_fields(stored: JsonObject, given: JsonObject) -> str:
    """The names of the fields that differ, empty if all are equal."""
    names = [
        name
        for name in sorted({*stored, *given})
        if (name in stored) != (name in given) or not same(stored[name], given[name])
    ]
    listed = ", ".join(_quote(name) for name in names[:_MOST_NAMES])
    more = len(names) - _MOST_NAMES
    return f"{listed} and {more} more fields" if more > 0 else listed


def _quote(name: str) -> str:
    return repr(name) if len(name) <= _LONGEST_NAME else repr(name[:_LONGEST_NAME]) + "…"
