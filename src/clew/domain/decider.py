"""What may happen: a pure function from the control and an intent to events, or an error."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias, assert_never

from clew.domain.context.events import ContextEvent
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
    TYPE_NAMES,
    CheckpointMade,
    HistoryRewound,
    MemoryReading,
    MessageAppended,
    MessageRedacted,
    ServiceDeletion,
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
from clew.domain.models.client import ThreadKind
from clew.domain.names import check_checkpoint_name, check_label_name
from clew.domain.runs.errors import RunTakenOverError
from clew.domain.runs.events import RunEvent, RunResumed, RunStarted, ServiceThreadBound, placed
from clew.domain.runs.open_run import check_step, run_after
from clew.domain.values import Value

RunStep: TypeAlias = RunEvent | ContextEvent | Message
"""What an attempt of a run records: its events, what components did in it, and messages."""


@dataclass(frozen=True, slots=True)
class Start:
    """Begin a thread, perhaps with its first messages."""

    title: str | None = None
    labels: JsonObject = field(default_factory=dict)
    metadata: JsonObject = field(default_factory=dict)
    source: Source | None = None
    messages: tuple[Message, ...] = ()
    kind: ThreadKind = "local"


@dataclass(frozen=True, slots=True)
class Branch:
    """Begin a thread at a cut; the control is that of the thread to be forked, at the cut."""

    parent_id: str
    parent_version: int
    parent_hash: str
    title: str | None = None
    messages: tuple[Message, ...] = ()
    kind: ThreadKind | None = None
    memory: MemoryReading | None = None


@dataclass(frozen=True, slots=True)
class Say:
    """Append messages."""

    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Advance:
    """Record what happens in a run, by who carries out this attempt of it: its events, and messages among them.

    A reference below 0 counts back from the event that holds it.
    """

    run_id: str
    attempt: int
    steps: tuple[RunStep, ...]


@dataclass(frozen=True, slots=True)
class Note:
    """Record what components did outside a run."""

    steps: tuple[ContextEvent, ...]


@dataclass(frozen=True, slots=True)
class Bind:
    """Note what the service that holds the thread calls it."""

    bound: ServiceThreadBound


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
    """Go on from version ``to``, on whose path there are ``messages`` messages.

    ``service_thread_id`` is what the service that holds the thread called it there.
    """

    to: int
    messages: int
    service_thread_id: str | None = None


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
    """Take the thread away from its readers; ``service`` says what became of the service's side of it."""

    reason: str | None = None
    service: tuple[ServiceDeletion, ...] = ()


_Change: TypeAlias = (
    Say | Advance | Note | Bind | Label | Checkpoint | Rewind | Redact | Suspend | Resume | End | Delete
)

Intent: TypeAlias = Start | Branch | _Change


_appended: Callable[[dict[str, Message]], MessageAppended] = MessageAppended.__pydantic_validator__.validate_python
"""The event of a checked message, which nothing is wrong with: what would tell of an error takes as long again."""


class Decided(NamedTuple):
    """An event that is to be recorded, the number of messages on the path after it, and the run it belongs to."""

    data: ThreadEvent
    messages: int
    run_id: str | None = None


_ALLOWED: dict[Status, tuple[type, ...]] = {
    "active": (Say, Advance, Note, Bind, Label, Checkpoint, Rewind, Redact, Suspend, Resume, End, Delete),
    # What happened in a run that was under way is recorded all the same: see check_allowed().
    "suspended": (Advance, Note, Label, Checkpoint, Rewind, Redact, Resume, End, Delete),
    "ended": (Note, Label, Checkpoint, Redact, Delete),  # components are told of these, too
    "deleted": (Redact,),
}

_ASKED: dict[type, str] = {Say: "append", Advance: "a run", Note: "to note what components did"}

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
            check_allowed(thread_id, control, intent)
            return _decide(thread_id, control, intent)


def check_readable(thread_id: str, control: Control, asked: str) -> None:
    """Raise ThreadDeletedError if the thread is deleted."""
    if control.status == "deleted":
        raise ThreadDeletedError(thread_id, "deleted", asked, _ADVICE["deleted"])


def _decide(thread_id: str, control: Control, intent: _Change) -> list[Decided]:
    count = control.messages
    match intent:
        case Say(messages=messages):
            return _said(messages, count)
        case Advance():
            return _advanced(thread_id, control, intent)
        case Note(steps=steps):
            return _noted(control, steps)
        case Bind(bound=bound):
            return [Decided(bound, count)]
        case Label(labels=labels):
            _check_labels(labels)
            return [Decided(ThreadLabelled(labels=deepcopy(labels)), count)]
        case Checkpoint():
            return [Decided(_checkpoint(thread_id, control, intent), count)]
        case Rewind(to=to, messages=messages, service_thread_id=service_thread_id):
            _check_version(thread_id, control, to)
            return [Decided(HistoryRewound(to=to, service_thread_id=service_thread_id), messages)]
        case Redact(version=version, digest=digest, stub=stub, reason=reason):
            _check_text(reason, "reason")
            return [Decided(MessageRedacted(version=version, digest=digest, stub=stub, reason=reason), count)]
        case Suspend() | Resume() | End() | Delete():
            return [Decided(_turned(intent), count)]
        case _:
            assert_never(intent)


def _turned(intent: Suspend | Resume | End | Delete) -> ThreadEvent:
    if isinstance(intent, Resume):
        return ThreadResumed()
    _check_text(intent.reason, "reason")
    match intent:
        case Suspend(reason=reason):
            return ThreadSuspended(reason=reason)
        case End(reason=reason):
            return ThreadEnded(reason=reason)
        case Delete(reason=reason, service=service):
            return ThreadDeleted(reason=reason, service=service)


def check_allowed(thread_id: str, control: Control, intent: Intent) -> None:
    """Raise what ``decide`` does for a thread that is not there, or whose status does not allow the intent."""
    if not control.version:
        raise UnknownThreadError(thread_id)
    begins = isinstance(intent, Advance) and any(isinstance(step, RunStarted | RunResumed) for step in intent.steps)
    if isinstance(intent, _ALLOWED[control.status]) and not (begins and control.status != "active"):
        return
    asked = _ASKED.get(type(intent)) or type(intent).__name__.lower()
    error = ThreadDeletedError if control.status == "deleted" else ThreadStatusError
    raise error(thread_id, control.status, asked, _ADVICE[control.status])


def _started(intent: Start) -> list[Decided]:
    _check_text(intent.title, "title")
    _check_labels(intent.labels)
    check_json(intent.metadata, "metadata")
    if intent.source is not None:
        check_json(intent.source.id, "source id")
        for name, value in intent.source.fields.items():
            check_json(value, f"source.{name}")
    begun = ThreadStarted(
        kind=intent.kind,
        title=intent.title,
        labels=deepcopy(intent.labels),
        metadata=deepcopy(intent.metadata),
        source=intent.source,
    )
    return [Decided(begun, 0), *_said(intent.messages, 0)]


def _branch(intent: Branch) -> ThreadForked:
    _check_text(intent.title, "title")
    return ThreadForked(
        parent_id=intent.parent_id,
        parent_version=intent.parent_version,
        parent_hash=intent.parent_hash,
        title=intent.title,
        kind=intent.kind,
        memory=intent.memory,
    )


def _advanced(thread_id: str, control: Control, intent: Advance) -> list[Decided]:
    """Each step is checked on the run as the steps before it leave it."""
    decided: list[Decided] = []
    count, version, run = control.messages, control.version, control.run
    for step in intent.steps:
        version += 1
        if isinstance(step, Message):
            if run is None or (run.id, run.attempt) != (intent.run_id, intent.attempt):
                raise RunTakenOverError(thread_id, intent.run_id)
            check_message(step)
            count += 1
            decided.append(Decided(_appended({"message": step}), count, intent.run_id))
            continue
        happened = placed(step, version)
        check_step(thread_id, run, intent.run_id, intent.attempt, happened)
        _check_fields(happened, TYPE_NAMES[type(happened)])
        run = run_after(run, version, intent.run_id, happened)
        decided.append(Decided(happened, count, intent.run_id))
    return decided


def _noted(control: Control, steps: tuple[ContextEvent, ...]) -> list[Decided]:
    for step in steps:
        _check_fields(step, TYPE_NAMES[type(step)])
    return [Decided(step, control.messages) for step in steps]


_LARGE = 2**64
"""Integers from here on are checked for their size."""


def _check_fields(value: Value, where: str) -> None:
    for name, part in value.__dict__.items():
        kind = type(part)
        if (
            part is None
            or kind is bool
            or (kind is str and part.isascii())
            or (kind is int and abs(part) < _LARGE)
            or ((kind is tuple or kind is dict) and not part)
        ):
            continue  # by far the most; nothing can be wrong with these
        _check_part(part, f"{where}.{name}")


def _check_part(part: object, where: str) -> None:
    if isinstance(part, Message):
        check_message(part)
    elif isinstance(part, Value):
        _check_fields(part, where)
    elif isinstance(part, tuple):
        for number, each in enumerate(part):
            _check_part(each, f"{where}[{number}]")
    else:
        check_json(part, where)


def _said(messages: tuple[Message, ...], count: int) -> list[Decided]:
    decided: list[Decided] = []
    for number, message in enumerate(messages, start=1):
        check_message(message)
        decided.append(Decided(_appended({"message": message}), count + number))
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


def _check_labels(labels: JsonObject) -> None:
    check_json(labels, "labels")
    for name in labels:
        check_label_name(name)


def _check_text(text: str | None, where: str) -> None:
    if text is not None:
        check_text(text, where)
