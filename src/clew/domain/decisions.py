"""What may happen: a pure function from the control and an intent to events, or an error."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias, assert_never

from clew.domain.control import Control, Status
from clew.domain.errors import (
    CheckpointExistsError,
    ThreadDeletedError,
    ThreadExistsError,
    ThreadStatusError,
    UnknownThreadError,
    UnknownVersionError,
)
from clew.domain.events import (
    CheckpointMade,
    HistoryRewound,
    MessageAppended,
    MessageRedacted,
    Source,
    ThreadDeleted,
    ThreadEnded,
    ThreadEvent,
    ThreadForked,
    ThreadLabelled,
    ThreadResumed,
    ThreadStarted,
    ThreadSuspended,
)
from clew.domain.json_values import JsonObject, check_json, check_text
from clew.domain.messages import Message, check_message
from clew.domain.names import check_checkpoint_name


@dataclass(frozen=True, slots=True)
class Start:
    """Begin a thread, perhaps with its first messages."""

    title: str | None = None
    labels: JsonObject = field(default_factory=dict)
    metadata: JsonObject = field(default_factory=dict)
    source: Source | None = None
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class Branch:
    """Begin a thread at a cut; the control is that of the thread to be forked, at the cut."""

    parent_id: str
    parent_version: int
    parent_hash: str
    title: str | None = None
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class Say:
    """Append messages."""

    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Label:
    """Set labels, or with None remove them."""

    labels: JsonObject


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Name a version; None is the newest."""

    name: str
    at: int | None = None


@dataclass(frozen=True, slots=True)
class Rewind:
    """Go on from version ``to``, on whose path there are ``messages`` messages."""

    to: int
    messages: int


@dataclass(frozen=True, slots=True)
class Redact:
    """Shred the message at a version of this stream."""

    version: int
    digest: str
    stub: str
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Suspend:
    """Let the thread rest."""

    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Resume:
    """Let the thread go on."""


@dataclass(frozen=True, slots=True)
class End:
    """Close the conversation."""

    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Take the thread away from its readers."""

    reason: str | None = None


Intent: TypeAlias = Start | Branch | Say | Label | Checkpoint | Rewind | Redact | Suspend | Resume | End | Delete


class Decided(NamedTuple):
    """An event that is to be recorded, and the number of messages on the path after it."""

    data: ThreadEvent
    messages: int


_ALLOWED: dict[Status, tuple[type, ...]] = {
    "active": (Say, Label, Checkpoint, Rewind, Redact, Suspend, Resume, End, Delete),
    "suspended": (Label, Checkpoint, Rewind, Redact, Resume, End, Delete),
    "ended": (Label, Checkpoint, Redact, Delete),
    "deleted": (Redact,),
}

_ADVICE: dict[Status, str] = {
    "suspended": "Resume it first.",
    "ended": "Fork it to go on.",
    "deleted": "Only its events can be read.",
}


def decide(thread_id: str, control: Control, intent: Intent) -> list[Decided]:
    """The events that ``intent`` leads to on a thread with this control; an error if it is not allowed.

    The control of a thread that is not there is ``Control()``. Raises ThreadExistsError, UnknownThreadError,
    ThreadStatusError, ThreadDeletedError, CheckpointExistsError, UnknownVersionError, InvalidNameError or
    InvalidContentError.
    """
    match intent:
        case Start():
            if control.version:
                raise ThreadExistsError(thread_id)
            return _started(intent)
        case Branch():
            check_readable(intent.parent_id, control, "fork")
            begun = Decided(_branch(intent), control.messages)
            return [begun, *_said(intent.messages, control.messages)]
        case _:
            _check_allowed(thread_id, control, intent)
            return _decide(thread_id, control, intent)


def check_readable(thread_id: str, control: Control, asked: str) -> None:
    """Raise ThreadDeletedError if the thread is deleted."""
    if control.status == "deleted":
        raise ThreadDeletedError(thread_id, "deleted", asked, _ADVICE["deleted"])


def _decide(
    thread_id: str,
    control: Control,
    intent: Say | Label | Checkpoint | Rewind | Redact | Suspend | Resume | End | Delete,
) -> list[Decided]:
    count = control.messages
    match intent:
        case Say(messages=messages):
            return _said(messages, count)
        case Label(labels=labels):
            check_json(labels, "labels")
            return [Decided(ThreadLabelled(labels=deepcopy(labels)), count)]
        case Checkpoint():
            return [Decided(_checkpoint(thread_id, control, intent), count)]
        case Rewind(to=to, messages=messages):
            _check_version(thread_id, control, to)
            return [Decided(HistoryRewound(to=to), messages)]
        case Redact(version=version, digest=digest, stub=stub, reason=reason):
            _check_text(reason, "reason")
            return [Decided(MessageRedacted(version=version, digest=digest, stub=stub, reason=reason), count)]
        case Suspend(reason=reason):
            _check_text(reason, "reason")
            return [Decided(ThreadSuspended(reason=reason), count)]
        case Resume():
            return [Decided(ThreadResumed(), count)]
        case End(reason=reason):
            _check_text(reason, "reason")
            return [Decided(ThreadEnded(reason=reason), count)]
        case Delete(reason=reason):
            _check_text(reason, "reason")
            return [Decided(ThreadDeleted(reason=reason), count)]
        case _:
            assert_never(intent)


def _check_allowed(thread_id: str, control: Control, intent: Intent) -> None:
    if not control.version:
        raise UnknownThreadError(thread_id)
    if isinstance(intent, _ALLOWED[control.status]):
        return
    asked = "append" if isinstance(intent, Say) else type(intent).__name__.lower()
    error = ThreadDeletedError if control.status == "deleted" else ThreadStatusError
    raise error(thread_id, control.status, asked, _ADVICE[control.status])


def _started(intent: Start) -> list[Decided]:
    _check_text(intent.title, "title")
    check_json(intent.labels, "labels")
    check_json(intent.metadata, "metadata")
    if intent.source is not None:
        check_json(intent.source.id, "source id")
        for name, value in intent.source.fields.items():
            check_json(value, f"source.{name}")
    begun = ThreadStarted(
        title=intent.title, labels=deepcopy(intent.labels), metadata=deepcopy(intent.metadata), source=intent.source
    )
    return [Decided(begun, 0), *_said(intent.messages, 0)]


def _branch(intent: Branch) -> ThreadForked:
    _check_text(intent.title, "title")
    return ThreadForked(
        parent_id=intent.parent_id,
        parent_version=intent.parent_version,
        parent_hash=intent.parent_hash,
        title=intent.title,
    )


def _said(messages: tuple[Message, ...], count: int) -> list[Decided]:
    decided: list[Decided] = []
    for number, message in enumerate(messages, start=1):
        check_message(message)
        decided.append(Decided(MessageAppended.model_construct(message=message), count + number))
    return decided


def _checkpoint(thread_id: str, control: Control, intent: Checkpoint) -> CheckpointMade:
    check_checkpoint_name(intent.name)
    taken = control.checkpoints.get(intent.name)
    if taken is not None:
        raise CheckpointExistsError(thread_id, intent.name, taken)
    at = control.version if intent.at is None else intent.at
    _check_version(thread_id, control, at)
    return CheckpointMade(name=intent.name, at=at)


def _check_version(thread_id: str, control: Control, version: int) -> None:
    if not 1 <= version <= control.version:
        message = f"Thread {thread_id!r} has no version {version}: its versions are 1 to {control.version}."
        raise UnknownVersionError(message)


def _check_text(text: str | None, where: str) -> None:
    if text is not None:
        check_text(text, where)
