"""What happened: the events of a thread, and the envelope that each of them is recorded in."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import not_
from typing import Literal, NamedTuple, TypeAlias

from pydantic import Field

from clew.domain import event_sentences, event_types
from clew.domain.context.events import ContextEvent
from clew.domain.event_types import ACTIVE, ANY, OPEN, UNDELETED, event_type
from clew.domain.json_values import Json, JsonObject
from clew.domain.memory.events import MemoryEvent
from clew.domain.messages import Message, Role
from clew.domain.models.client import ThreadKind
from clew.domain.names import parse_stream_name
from clew.domain.runs.events import RunEvent
from clew.domain.values import Value

MemoryReading: TypeAlias = Literal["live", "as-of"]
"""How a thread reads shared memory scopes: as they are, or as they were at a cut, with what was learned from there."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Source(Value):
    """Where an imported thread comes from.

    ``id`` is the conversation's id there, None if it had none; ``fields`` are the other fields of its object, as they
    were, without the messages.
    """

    id: Json = None
    fields: JsonObject = Field(default_factory=dict, exclude_if=not_)


@event_type(
    "thread-started",
    headline="The thread began",
    sentence=event_sentences.thread_started,
    sample={"title": "Refund", "labels": {"topic": "refund"}},
    shreddable=False,
)
class ThreadStarted(Value):
    """A conversation began; ``kind`` says who holds its history."""

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
)
class ThreadForked(Value):
    """A thread began whose past is another thread up to a version, the cut; ``parent_hash`` is its hash, in hex."""

    parent_id: str
    parent_version: int
    parent_hash: str
    title: str | None = None
    kind: ThreadKind | None = Field(default=None, exclude_if=lambda kind: kind is None)
    """None when it is of the parent's kind; a thread that a service holds can be forked into a local one."""
    memory: MemoryReading | None = Field(default=None, exclude_if=lambda memory: memory is None)
    """How it reads memory scopes: ``live``, or ``as-of`` the cut; None as its parent does."""


@event_type(
    "thread-labelled",
    headline="Labels were set",
    sentence=event_sentences.thread_labelled,
    sample={"labels": {"topic": "refund"}},
    statuses=UNDELETED,
)
class ThreadLabelled(Value):
    """Labels were set, or with None removed."""

    labels: JsonObject


@event_type(
    "message-appended",
    headline="A message was appended",
    sentence=event_sentences.message_appended,
    sample={"message": {"role": "user", "contents": [{"type": "text", "text": "Hello"}]}},
    statuses=ACTIVE,
)
class MessageAppended(Value):
    """A message was said. Every message of a history is exactly one such event."""

    message: Message


@event_type(
    "message-redacted",
    headline="A message was redacted",
    sentence="redacted version {version}",
    sample={"version": 2, "digest": "ab" * 32, "stub": "\x02{}"},
    statuses=ANY,
    shreddable=False,
)
class MessageRedacted(Value):
    """The message at ``version`` of this stream was shredded.

    ``digest`` is the SHA-256 of the bytes that were there, in hex; ``stub`` is what the row holds instead.
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
    """The path goes on from version ``to``."""

    to: int
    service_thread_id: str | None = Field(default=None, exclude_if=lambda id_: id_ is None)
    """What the service that holds the thread called it there."""


@event_type(
    "checkpoint-made",
    headline="A checkpoint was made",
    sentence="made checkpoint {name} at version {at}",
    sample={"name": "before refund", "at": 2},
    statuses=UNDELETED,
)
class CheckpointMade(Value):
    """Version ``at`` got a name."""

    name: str
    at: int


@event_type(
    "thread-suspended",
    headline="The thread was suspended",
    sentence="suspended the thread",
    sample={"reason": "lunch"},
    statuses=ACTIVE,
)
class ThreadSuspended(Value):
    """The thread rests: nothing is appended until it is resumed."""

    reason: str | None = None


@event_type(
    "thread-resumed",
    headline="The thread was resumed",
    sentence="resumed the thread",
    statuses=OPEN,
)
class ThreadResumed(Value):
    """The thread goes on after a rest."""


@event_type(
    "thread-ended",
    headline="The thread was ended",
    sentence="ended the thread",
    sample={"reason": "solved"},
    statuses=OPEN,
)
class ThreadEnded(Value):
    """The conversation is over; it can still be read and forked."""

    reason: str | None = None


class ServiceDeletion(Value):
    """What became of the service's side of a thread: ``failed`` says why it is still there, None if it is gone."""

    id: str
    failed: str | None = None


@event_type(
    "thread-deleted",
    headline="The thread was deleted",
    sentence=event_sentences.thread_deleted,
    sample={"reason": "requested"},
    statuses=UNDELETED,
)
class ThreadDeleted(Value):
    """The thread is not to be read any more. Its events remain until they are erased.

    ``service`` says what became of the service's side of it, when that was to be deleted, too.
    """

    reason: str | None = None
    service: tuple[ServiceDeletion, ...] = Field(default=(), exclude_if=not_)


@event_type(
    "state-claimed",
    headline="The state of a component was found to be of a thread",
    sentence="recorded that a state of {provider} is of {thread_id}",
    sample={"provider": "history-store", "thread_id": "t"},
    stream="system",
)
class StateClaimed(Value):
    """The state that the stream is named after is that of a thread, for good: no other thread's may equal it."""

    provider: str
    thread_id: str


@dataclass(frozen=True, slots=True)
class Opaque:
    """The stored bytes of an event that this version of Clew does not know."""

    state: bytes


@dataclass(frozen=True, slots=True)
class Shredded:
    """What is left of an event whose content was shredded; ``role`` is the role of the message that it was."""

    role: Role | None


ThreadEvent: TypeAlias = (
    ThreadStarted
    | ThreadForked
    | ThreadLabelled
    | MessageAppended
    | MessageRedacted
    | HistoryRewound
    | CheckpointMade
    | ThreadSuspended
    | ThreadResumed
    | ThreadEnded
    | ThreadDeleted
    | RunEvent
    | ContextEvent
)

AnyEvent: TypeAlias = ThreadEvent | MemoryEvent | StateClaimed


EVENT_TYPES = event_types.EVENT_TYPES
"""The closed registry of declared types, complete. A stored row can name a type of it and can never name code."""

TYPE_NAMES = event_types.TYPE_NAMES
"""The stored name of each model."""

MESSAGE_APPENDED = "message-appended"

NEVER_SHREDDED = frozenset(name for name, declared in EVENT_TYPES.items() if not declared.shreddable)
"""Types whose stored bytes are never replaced by a stub."""


class Event(NamedTuple):
    """An event in its envelope: what happened, and when, by whom and why.

    ``stream`` and ``version`` are its address; ``recorded_at`` is in microseconds since 1970 (UTC) and never decreases
    along a lineage; ``messages`` is the number of messages on the thread's path after it, -1 when an opaque event does
    not say. ``position`` and ``hash`` are None until it is recorded. A tuple, because a long history is many of them
    and tuples are made fastest.
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

    @property
    def time(self) -> datetime:
        """When it was recorded, in UTC."""
        return to_time(self.recorded_at)

    @property
    def thread_id(self) -> str:
        """The id of the thread that the event is recorded in: for an inherited one, the ancestor's."""
        name = parse_stream_name(self.stream)
        return self.stream if name is None else name.id

    @property
    def originator_id(self) -> str:
        """The stream's name, as the eventsourcing library calls it."""
        return self.stream

    @property
    def originator_version(self) -> int:
        """The version, as the eventsourcing library calls it."""
        return self.version


def to_time(microseconds: int) -> datetime:
    """The moment that lies so many microseconds after 1970, in UTC."""
    return _EPOCH + timedelta(microseconds=microseconds)


def to_microseconds(time: datetime) -> int:
    """Microseconds since 1970 (UTC) of an aware time."""
    return (time - _EPOCH) // _MICROSECOND
