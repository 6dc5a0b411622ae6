"""The events of threads, and the envelope in which each event is recorded."""

from __future__ import annotations

from binascii import a2b_base64
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import not_
from typing import Literal, NamedTuple, TypeAlias

from pydantic import Field, PrivateAttr, ValidationInfo, field_validator

from clew.domain import event_sentences, event_types
from clew.domain.chats.events import ChatEvent
from clew.domain.context.events import ContextEvent
from clew.domain.errors import InvalidTimeError
from clew.domain.event_types import ACTIVE, ANY, DELETED, OPEN, UNDELETED, event_type, without
from clew.domain.json_values import Json, JsonObject
from clew.domain.memory.events import MemoryEvent
from clew.domain.messages import Message, Role, Value, is_none
from clew.domain.models.client import ThreadKind
from clew.domain.runs.events import RunEvent
from clew.domain.streams import stream_id

MemoryReading: TypeAlias = Literal["live", "as-of"]
"""How a thread reads shared memory scopes: live, or as of a cut with the facts that it learned since."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_FIRST_TIME = datetime.min.replace(tzinfo=UTC)
_LAST_TIME = datetime.max.replace(tzinfo=UTC)


class Source(Value):
    """The source of an imported thread.

    ``id`` is the conversation's id in the source, None if it had none; ``fields`` are the other fields of its object,
    unchanged, without the messages.
    """

    id: Json = None
    fields: JsonObject = Field(default_factory=dict, exclude_if=not_)


def _started(data: ThreadStarted) -> ThreadStarted:
    source = None if data.source is None else Source(id=data.source.id)
    return ThreadStarted(kind=data.kind, labels=dict.fromkeys(data.labels), source=source)


@event_type(
    "thread-started",
    headline="The thread began",
    sentence=event_sentences.thread_started,
    sample={"title": "Refund", "labels": {"topic": "refund"}},
    shreddable=False,
    remains=_started,
)
class ThreadStarted(Value):
    """A thread began. ``kind`` says who stores its history: Clew or a service."""

    kind: ThreadKind = Field(default="local", exclude_if=lambda kind: kind == "local")
    title: str | None = None
    labels: JsonObject = Field(default_factory=dict, exclude_if=not_)
    metadata: JsonObject = Field(default_factory=dict, exclude_if=not_)
    source: Source | None = None


@event_type(
    "thread-forked",
    headline="The thread was forked",
    sentence=event_sentences.thread_forked,
    sample={"parent_id": "a", "parent_version": 3, "parent_hash": "ab" * 32},
    shreddable=False,
    remains=without("title", "metadata"),
)
class ThreadForked(Value):
    """A thread began as a fork: its past is another thread up to the cut. ``parent_hash`` is the cut's hash, in hex."""

    parent_id: str
    parent_version: int
    parent_hash: str
    title: str | None = None
    kind: ThreadKind | None = Field(default=None, exclude_if=is_none)
    """None for the parent's kind. A thread that a service stores can be forked into a local thread."""
    memory: MemoryReading | None = Field(default=None, exclude_if=is_none)
    """How it reads memory scopes: ``live``, or ``as-of`` the cut; None means like its parent."""
    metadata: JsonObject | None = Field(default=None, exclude_if=is_none)
    """The metadata of the thread, None for the parent's."""


def _labelled(data: ThreadLabelled) -> ThreadLabelled:
    return ThreadLabelled(labels=dict.fromkeys(data.labels))


@event_type(
    "thread-labelled",
    headline="Labels were set",
    sentence=event_sentences.thread_labelled,
    sample={"labels": {"topic": "refund"}},
    statuses=UNDELETED,
    remains=_labelled,
    redacted=event_sentences.labels_redacted,
)
class ThreadLabelled(Value):
    """Labels were set, or removed with None."""

    labels: JsonObject


@event_type(
    "message-appended",
    headline="A message was appended",
    sentence=event_sentences.message_appended,
    sample={"message": {"role": "user", "contents": [{"type": "text", "text": "Hello"}]}},
    statuses=ACTIVE,
)
class MessageAppended(Value):
    """A message was appended. Every message of a history is exactly one such event."""

    message: Message


@event_type(
    "record-appended",
    headline="A record was appended",
    sentence=event_sentences.record_appended,
    sample={"type": "state", "data": {"step": 1}, "key": "main", "base64": "AP8="},
    statuses=ACTIVE,
)
class RecordAppended(Value):
    """A record was appended: an application's own event, which is not part of the history.

    ``type`` is the application's name for it. ``base64`` are its bytes if they are few. Otherwise the store has them
    next to the event, once for equal bytes, and the event has their number and their SHA-256 in hex: ``size``,
    ``digest``.
    """

    type: str
    data: Json = Field(default=None, exclude_if=is_none)
    key: str | None = Field(default=None, exclude_if=is_none)
    base64: str | None = Field(default=None, exclude_if=is_none)
    size: int | None = Field(default=None, ge=0, exclude_if=is_none)
    digest: str | None = Field(default=None, pattern="^[0-9a-f]{64}$", exclude_if=is_none)
    _bytes: bytes | None = PrivateAttr(default=None)

    @field_validator("base64")
    @classmethod
    def _check_base64(cls, value: str | None) -> str | None:
        if value is not None:
            a2b_base64(value, strict_mode=True)
        return value

    @field_validator("digest")
    @classmethod
    def _check_digest(cls, value: str | None, fields: ValidationInfo) -> str | None:
        if value is not None and (fields.data.get("size") is None or fields.data.get("base64") is not None):
            raise ValueError("a digest comes with the size of the bytes, and without the bytes")
        return value

    @property
    def blob(self) -> bytes | None:
        """The bytes of the record."""
        return self._bytes if self.base64 is None else a2b_base64(self.base64)

    def with_blob(self, blob: bytes) -> RecordAppended:
        """The same event, with the bytes that the store has next to it."""
        copy = self.model_copy()
        copy._bytes = blob  # noqa: SLF001 - of this class
        return copy


@event_type(
    "message-redacted",
    headline="Content was redacted",
    sentence="redacted version {version}",
    sample={"version": 2, "digest": "ab" * 32, "stub": "\x02{}"},
    statuses=ANY,
    shreddable=False,
    remains=without("reason"),
)
class MessageRedacted(Value):
    """The content of the event at ``version`` of this stream was shredded.

    ``digest`` is the SHA-256 of the shredded bytes, in hex; ``stub`` are the bytes that replace them.
    """

    version: int
    digest: str
    stub: str
    reason: str | None = None


@event_type(
    "history-rewound",
    headline="The history was rewound",
    sentence="rewound to version {to}",
    sample={"to": 2},
    statuses=OPEN,
    shreddable=False,
)
class HistoryRewound(Value):
    """The path continues from version ``to``."""

    to: int
    service_thread_id: str | None = Field(default=None, exclude_if=is_none)
    """The id of the thread at its service at that version."""


def _made(data: CheckpointMade) -> CheckpointMade:
    return CheckpointMade(name="", at=data.at)


@event_type(
    "checkpoint-made",
    headline="A checkpoint was made",
    sentence="made checkpoint {name} at version {at}",
    sample={"name": "before refund", "at": 2},
    statuses=UNDELETED,
    remains=_made,
    redacted="made a checkpoint at version {at}",
)
class CheckpointMade(Value):
    """Version ``at`` was named. An event with a redacted name has an empty one, and is not a checkpoint."""

    name: str
    at: int


@event_type(
    "thread-suspended",
    headline="The thread was suspended",
    sentence="suspended the thread",
    sample={"reason": "lunch"},
    remains=without("reason"),
    statuses=ACTIVE,
)
class ThreadSuspended(Value):
    """The thread was suspended: it accepts no messages until it is resumed."""

    reason: str | None = None


@event_type(
    "thread-resumed",
    headline="The thread was resumed",
    sentence="resumed the thread",
    statuses=OPEN,
)
class ThreadResumed(Value):
    """The suspended thread was resumed."""


@event_type(
    "thread-ended",
    headline="The thread was ended",
    sentence="ended the thread",
    sample={"reason": "solved"},
    remains=without("reason"),
    statuses=OPEN,
)
class ThreadEnded(Value):
    """The thread was ended; it can still be read and forked."""

    reason: str | None = None


class ServiceDeletion(Value):
    """The deletion of a thread at its service: ``failed`` says why it remains there, None if it was deleted."""

    id: str
    failed: str | None = None


def _deleted(data: ThreadDeleted) -> ThreadDeleted:
    failed = [each if each.failed is None else ServiceDeletion(id=each.id, failed="") for each in data.service]
    return ThreadDeleted(service=tuple(failed))


@event_type(
    "thread-deleted",
    headline="The thread was deleted",
    sentence=event_sentences.thread_deleted,
    sample={"reason": "requested"},
    statuses=UNDELETED,
    remains=_deleted,
)
class ThreadDeleted(Value):
    """The thread was deleted for its readers. Its events remain until they are erased.

    ``service`` has the results of deleting it at its service, if that was requested.
    """

    reason: str | None = None
    service: tuple[ServiceDeletion, ...] = Field(default=(), exclude_if=not_)


@event_type(
    "thread-purged",
    headline="The content of the thread was destroyed",
    sentence="destroyed the content of {rows} events",
    sample={"rows": 3, "digest": "ab" * 32},
    statuses=DELETED,
    shreddable=False,
)
class ThreadPurged(Value):
    """The texts of the thread's own events before this one were shredded: those of ``rows`` events.

    ``digest`` is the SHA-256, in hex, of their versions, of the digests of their bytes, and of the stubs that replace
    them.
    """

    rows: int
    digest: str
    reason: str | None = Field(default=None, exclude_if=is_none)


def _restarted(data: ThreadRestarted) -> ThreadRestarted:
    return ThreadRestarted(labels=dict.fromkeys(data.labels))


@event_type(
    "thread-restarted",
    headline="The thread was started again",
    sentence="started the thread again",
    sample={"title": "Refund"},
    statuses=DELETED,
    shreddable=False,
    remains=_restarted,
)
class ThreadRestarted(Value):
    """The id of a purged thread was used again. A rewind to version 1 follows, so that the history begins anew."""

    title: str | None = None
    labels: JsonObject = Field(default_factory=dict, exclude_if=not_)
    metadata: JsonObject = Field(default_factory=dict, exclude_if=not_)


@event_type(
    "state-claimed",
    headline="The state of a component was claimed for a thread",
    sentence="recorded that a state of {provider} belongs to {thread_id}",
    sample={"provider": "history-store", "thread_id": "t"},
    stream="system",
)
class StateClaimed(Value):
    """The state in the stream's name belongs to this thread permanently. No other thread may have an equal state."""

    provider: str
    thread_id: str


@dataclass(frozen=True, slots=True)
class Opaque:
    """The stored bytes of an event that this version of Clew does not know."""

    state: bytes


@dataclass(frozen=True, slots=True)
class Shredded:
    """An event of which nothing remains: ``role`` is the role of its message, ``record`` the type of its record."""

    role: Role | None
    record: str | None = None


ThreadEvent: TypeAlias = (
    ThreadStarted
    | ThreadForked
    | ThreadLabelled
    | MessageAppended
    | RecordAppended
    | MessageRedacted
    | HistoryRewound
    | CheckpointMade
    | ThreadSuspended
    | ThreadResumed
    | ThreadEnded
    | ThreadDeleted
    | ThreadPurged
    | ThreadRestarted
    | RunEvent
    | ContextEvent
    | ChatEvent
)

AnyEvent: TypeAlias = ThreadEvent | MemoryEvent | StateClaimed


EVENT_TYPES = event_types.EVENT_TYPES
"""The closed and complete registry of declared types. A stored row can name only these types, and never code."""

TYPE_NAMES = event_types.TYPE_NAMES
"""The stored name of each model."""

MESSAGE_APPENDED = "message-appended"

RECORD_APPENDED = "record-appended"

HISTORY_REWOUND = "history-rewound"
CHECKPOINT_MADE = "checkpoint-made"

APPENDED_TYPES = frozenset({MESSAGE_APPENDED, RECORD_APPENDED})
"""The types of messages and records. Such an event changes only the version, the time and the count of messages of a
control, so a control can be folded without reading its content."""

NEVER_SHREDDED = frozenset(name for name, declared in EVENT_TYPES.items() if not declared.shreddable)
"""The types whose stored bytes are never replaced by a stub without their data."""


STATE_TYPES = frozenset({"thread-started", "thread-forked", "thread-labelled", "checkpoint-made", "thread-restarted"})
"""The types whose texts are in the state of the thread, in its snapshots, and in the states of its forks."""

REDACTABLE_TYPES = APPENDED_TYPES | {name for name, declared in EVENT_TYPES.items() if declared.remains is not None}
"""The types with texts of users or services, which a redaction can remove."""


class Event(NamedTuple):
    """An event in its envelope: what happened, when, by whom and why.

    ``stream`` and ``version`` are its address; ``recorded_at`` is in microseconds since 1970 (UTC) and never decreases
    along a lineage; ``messages`` is the number of messages on the thread's path after it, -1 for an opaque event
    without this number. ``said`` is when a message or record was said, in microseconds, and ``on_behalf_of`` for whom
    the actor acted; None if that is not known. ``redacted`` says whether its content was shredded: of some types
    the data then remains, without the texts that users and services wrote; otherwise it is Shredded. ``position`` and
    ``hash`` are None until it is recorded. It is a tuple because tuples are the fastest to create, and a long history
    has many events.
    """

    stream: str
    version: int
    type: str
    event_id: str
    recorded_at: int
    messages: int
    data: AnyEvent | Opaque | Shredded
    actor: str | None = None
    run_id: str | None = None
    cause: str | None = None
    subject: str | None = None
    metadata: JsonObject | None = None
    position: int | None = None
    hash: bytes | None = None
    said: int | None = None
    on_behalf_of: str | None = None
    redacted: bool = False

    @property
    def time(self) -> datetime:
        """When it was recorded, in UTC."""
        return to_time(self.recorded_at)

    @property
    def said_at(self) -> datetime | None:
        """When it was said, in UTC, if the append named that time."""
        return None if self.said is None else to_time(self.said)

    @property
    def thread_id(self) -> str:
        """The id of the thread in which the event is recorded: for an inherited event, the ancestor's."""
        return stream_id(self.stream)

    @property
    def originator_id(self) -> str:
        """The stream's name, under the eventsourcing library's name for it."""
        return self.stream

    @property
    def originator_version(self) -> int:
        """The version, under the eventsourcing library's name for it."""
        return self.version


def holds_text(event: Event) -> bool:
    """Whether a redaction would remove something of the data of an event that is neither a message nor a record."""
    declared = EVENT_TYPES.get(event.type)
    if declared is None or declared.remains is None or not isinstance(event.data, declared.model):
        return False
    return declared.remains(event.data) != event.data


def to_time(microseconds: int) -> datetime:
    """The UTC time of a number of microseconds since 1970.

    For a number before the year 1 it is the first time of that year, for a number after 9999 the last time of that
    year. A forged event can hold any number, and must not stop the readers of all other events.
    """
    try:
        return _EPOCH + _MICROSECOND * microseconds  # faster than a timedelta of them: a list may have many
    except OverflowError:
        return _FIRST_TIME if microseconds < 0 else _LAST_TIME


def to_microseconds(time: datetime) -> int:
    """The number of microseconds from 1970 (UTC) to an aware datetime."""
    return (time - _EPOCH) // _MICROSECOND


FIRST_MICROSECOND = to_microseconds(_FIRST_TIME)
LAST_MICROSECOND = to_microseconds(_LAST_TIME)
"""The numbers that ``to_time`` can represent, both included: the years 1 to 9999."""


def to_utc_microseconds(time: object, name: str) -> int | None:
    """Microseconds since 1970 of an aware time, None for None. Raises InvalidTimeError."""
    if time is None:
        return None
    if not isinstance(time, datetime):
        raise InvalidTimeError(f"{name}: {type(time).__name__} is not a time. Give an aware datetime.")
    if time.utcoffset() is None:
        raise InvalidTimeError(f"{name}={time.isoformat()} has no UTC offset. Add one, as in +00:00.")
    microseconds = to_microseconds(time)
    if not FIRST_MICROSECOND <= microseconds <= LAST_MICROSECOND:
        raise InvalidTimeError(f"{name}={time.isoformat()} is in UTC before the year 1, or after 9999.")
    return microseconds
