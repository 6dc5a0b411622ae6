"""The decider of threads: a pure function from the control and an intent to events or an error.

The control is the small part of a thread's state that decisions need: see ``decider_state``.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from clew.domain.context.events import ContextEvent
from clew.domain.decider_state import CallLocation, Control, OpenRun, run_after
from clew.domain.errors import (
    CheckpointExistsError,
    ThreadDeletedError,
    ThreadExistsError,
    ThreadStatusError,
    UnknownThreadError,
    UnknownVersionError,
)
from clew.domain.event_types import EventType, Status
from clew.domain.events import (
    EVENT_TYPES,
    TYPE_NAMES,
    CheckpointMade,
    HistoryRewound,
    MemoryReading,
    MessageAppended,
    MessageRedacted,
    RecordAppended,
    ServiceDeletion,
    Source,
    ThreadDeleted,
    ThreadEnded,
    ThreadEvent,
    ThreadForked,
    ThreadLabelled,
    ThreadPurged,
    ThreadRestarted,
    ThreadResumed,
    ThreadStarted,
    ThreadSuspended,
)
from clew.domain.json_values import JsonObject, check_json, check_text
from clew.domain.messages import Message, Value, check_message
from clew.domain.models.client import ThreadKind
from clew.domain.runs.errors import ApprovalNotPendingError, RunTakenOverError
from clew.domain.runs.events import (
    AnswerInterrupted,
    ApprovalGiven,
    ApprovalRequested,
    ChildThread,
    ModelAnswered,
    ModelCalled,
    ModelFailed,
    RequestChanged,
    RequestWithheld,
    RunAbandoned,
    RunCompleted,
    RunEvent,
    RunResumed,
    RunStarted,
    ToolFinished,
    ToolProgressed,
    ToolStarted,
    placed,
)
from clew.domain.streams import check_checkpoint_name, check_label_name

RunStep: TypeAlias = RunEvent | ContextEvent | Message
"""A step of a run: an event of the run or of a component, or a message."""


_CALLERS_STEPS = RunResumed | RunAbandoned | ApprovalGiven
"""Steps that callers of a run take, and not its agent; next to its start and its input."""


class Actor(NamedTuple):
    """Who did something, and on whose behalf; None where that is not known."""

    name: str | None
    on_behalf_of: str | None = None


Said: TypeAlias = tuple[int | None, ...]
"""When each of the messages or records was said, in microseconds since 1970; empty if that is not known of any."""


@dataclass(frozen=True, slots=True)
class Start:
    """Begin a thread, optionally with its first messages and records. Those that are events already are checked."""

    title: str | None = None
    labels: JsonObject = field(default_factory=dict)
    metadata: JsonObject = field(default_factory=dict)
    source: Source | None = None
    messages: tuple[Message | MessageAppended | RecordAppended, ...] = ()
    kind: ThreadKind = "local"
    said: Said = ()


@dataclass(frozen=True, slots=True)
class Branch:
    """Begin a thread at a cut of its parent. The decider receives the parent's control at the cut."""

    parent_id: str
    parent_version: int
    parent_hash: str
    title: str | None = None
    kind: ThreadKind | None = None
    memory: MemoryReading | None = None
    metadata: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class Append:
    """Append messages and records. Those that are events already are checked."""

    items: tuple[Message | MessageAppended | RecordAppended, ...]
    said: Said = ()


@dataclass(frozen=True, slots=True)
class Advance:
    """Record steps of an attempt of a run.

    References below 0 in these events count back from the event that contains them. ``by`` is the agent. It did not
    start, resume or abandon the run, write its input or give its approvals: the actor of the commit did.
    """

    run_id: str
    attempt: int
    steps: tuple[RunStep, ...]
    by: Actor | None = None


@dataclass(frozen=True, slots=True)
class RecordEvents:
    """Record events. The thread must have a status that the types of the events declare."""

    events: tuple[ThreadEvent, ...]


@dataclass(frozen=True, slots=True)
class Label:
    """Set labels, or with None remove them."""

    labels: JsonObject


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Name a version; ``at`` is None for the newest version."""

    name: str
    at: int | None = None


@dataclass(frozen=True, slots=True)
class Rewind:
    """Continue from version ``to``, whose path has ``messages`` messages.

    ``service_thread_id`` is the id of the thread at its service at that version. ``by`` replaces the actor of the
    commit.
    """

    to: int
    messages: int
    service_thread_id: str | None = None
    by: Actor | None = None


@dataclass(frozen=True, slots=True)
class Redact:
    """Shred the texts of the event at a version of this stream."""

    version: int
    digest: str
    stub: str
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Suspend:
    """Suspend the thread: it accepts no messages until it is resumed."""

    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Resume:
    """Resume a suspended thread."""


@dataclass(frozen=True, slots=True)
class End:
    """End the conversation."""

    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the thread for its readers; ``service`` says what happened to its copy at the service."""

    reason: str | None = None
    service: tuple[ServiceDeletion, ...] = ()


@dataclass(frozen=True, slots=True)
class Purge:
    """Record that the texts of a deleted thread were shredded: the number of rows, and one digest of all of them."""

    rows: int
    digest: str
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Restart:
    """Use the id of a purged thread again."""

    title: str | None = None
    labels: JsonObject = field(default_factory=dict)
    metadata: JsonObject = field(default_factory=dict)


_Change: TypeAlias = (
    Append
    | Advance
    | RecordEvents
    | Label
    | Checkpoint
    | Rewind
    | Redact
    | Suspend
    | Resume
    | End
    | Delete
    | Purge
    | Restart
)

Intent: TypeAlias = Start | Branch | _Change


_make_appended: Callable[[dict[str, Message]], MessageAppended] = MessageAppended.__pydantic_validator__.validate_python
"""Makes the event of a checked message in half the time of the model's constructor."""


def message_appended(checked: Message) -> MessageAppended:
    """The event of a message that is checked: it is not checked again when it is appended."""
    return _make_appended({"message": checked})


class Decided(NamedTuple):
    """An event to record, the number of messages on the path after it, its run, and when it was said if known.

    ``by`` is who did it, None for the actor of the commit.
    """

    data: ThreadEvent
    messages: int
    run_id: str | None = None
    said: int | None = None
    by: Actor | None = None


_ADVICE: dict[Status, str] = {
    "active": "This is for threads with another status.",
    "suspended": "Resume it first.",
    "ended": "Fork it to continue.",
    "deleted": "Only its events can be read.",
}


def decide(thread_id: str, control: Control, intent: Intent) -> list[Decided]:
    """The events that carry out ``intent`` on a thread with this control. Raises an error if it is not allowed.

    The control of a thread that does not exist is ``Control()``. Raises ThreadExistsError, UnknownThreadError,
    ThreadStatusError, ThreadDeletedError, RunTakenOverError, ApprovalNotPendingError, CheckpointExistsError,
    UnknownVersionError, InvalidNameError or InvalidContentError, and ValueError for a recorded event whose type is
    declared without statuses.
    """
    if not isinstance(intent, Start | Branch):
        check_allowed(thread_id, control, intent)
    return _DECISIONS[type(intent)](thread_id, control, intent)


def check_readable(thread_id: str, control: Control, request: str) -> None:
    """Raise ThreadDeletedError if the thread is deleted."""
    if control.status == "deleted":
        raise ThreadDeletedError(thread_id, "deleted", request, _ADVICE["deleted"])


def check_allowed(thread_id: str, control: Control, intent: _Change) -> None:
    """Raise the error that ``decide`` raises when the thread does not exist or its status does not allow the intent."""
    if not control.version:
        raise UnknownThreadError(thread_id)
    status = control.status
    match intent:
        case Advance(steps=steps):
            # In a suspended thread, an open run continues, also with another agent, but no other run begins.
            allowed = status == "active" or (status == "suspended" and not any(map(_begins, steps)))
        case RecordEvents(events=events):
            allowed = all(status in _recordable(type(event)).statuses for event in events)
        case _:
            allowed = status in _STATUSES[type(intent)]
    if not allowed:
        request = _REQUESTS.get(type(intent)) or type(intent).__name__.lower()
        error = ThreadDeletedError if status == "deleted" else ThreadStatusError
        raise error(thread_id, status, request, _ADVICE[status])


def _begins(step: RunStep) -> bool:
    return isinstance(step, RunResumed) or (isinstance(step, RunStarted) and step.handed_from is None)


def _start(thread_id: str, control: Control, intent: Start) -> list[Decided]:
    if control.version:
        raise ThreadExistsError(thread_id)
    _check_text(intent.title, "title")
    _check_labels(intent.labels)
    check_json(intent.metadata, "metadata")
    if intent.source is not None:
        check_json(intent.source.id, "source id")
        for name, value in intent.source.fields.items():
            check_json(value, f"source.{name}")
    started = ThreadStarted(
        kind=intent.kind,
        title=intent.title,
        labels=deepcopy(intent.labels),
        metadata=deepcopy(intent.metadata),
        source=intent.source,
    )
    return [Decided(started, 0), *_append(thread_id, control, intent)]


def _branch(_: str, control: Control, intent: Branch) -> list[Decided]:
    check_readable(intent.parent_id, control, "fork")
    _check_text(intent.title, "title")
    if intent.metadata is not None:
        check_json(intent.metadata, "metadata")
    forked = ThreadForked(
        parent_id=intent.parent_id,
        parent_version=intent.parent_version,
        parent_hash=intent.parent_hash,
        title=intent.title,
        kind=intent.kind,
        memory=intent.memory,
        metadata=deepcopy(intent.metadata),
    )
    return [Decided(forked, control.messages)]


def _append(_: str, control: Control, intent: Start | Append) -> list[Decided]:
    decided: list[Decided] = []
    messages = control.messages
    for item in intent.items if isinstance(intent, Append) else intent.messages:
        if isinstance(item, RecordAppended):
            decided.append(Decided(item, messages))
            continue
        messages += 1
        if isinstance(item, MessageAppended):
            decided.append(Decided(item, messages))
        else:
            check_message(item)
            decided.append(Decided(_make_appended({"message": item}), messages))
    if intent.said:
        return [each._replace(said=said) for each, said in zip(decided, intent.said, strict=True)]
    return decided


def _advance(thread_id: str, control: Control, intent: Advance) -> list[Decided]:
    """Check each step against the run after the steps before it."""
    decided: list[Decided] = []
    count, version, run = control.messages, control.version, control.run
    is_input = False
    for step in intent.steps:
        version += 1
        is_input = isinstance(step, RunStarted) or (is_input and isinstance(step, Message))
        by = None if is_input or isinstance(step, _CALLERS_STEPS) else intent.by
        if isinstance(step, Message):
            if run is None or (run.id, run.attempt) != (intent.run_id, intent.attempt):
                raise RunTakenOverError(thread_id, intent.run_id)
            check_message(step)
            count += 1
            decided.append(Decided(_make_appended({"message": step}), count, intent.run_id, by=by))
            continue
        event = placed(step, version)
        check_step(thread_id, run, intent.run_id, intent.attempt, event)
        _check_fields(event, TYPE_NAMES[type(event)])
        run = run_after(run, version, intent.run_id, event)
        decided.append(Decided(event, count, intent.run_id, by=by))
    return decided


def check_step(thread_id: str, run: OpenRun | None, run_id: str, attempt: int, step: ThreadEvent) -> None:
    """Raise unless ``step`` may come next in this attempt of the run.

    Raises RunTakenOverError if another process ended or continued the run, and ApprovalNotPendingError for an approval
    that is not pending, for example because it was already given.
    """
    if isinstance(step, ApprovalGiven):
        pending = () if run is None or run.id != run_id else run.approvals
        if all(version != step.request for version, _ in pending):
            raise ApprovalNotPendingError(thread_id, step.request)
        return
    if isinstance(step, RunStarted):
        allowed = run is None
    elif run is None or run.id != run_id:
        allowed = False
    elif isinstance(step, RunResumed):
        allowed = step.attempt == run.attempt + 1
    else:
        allowed = attempt == run.attempt and _fits(run, step)
    if not allowed:
        raise RunTakenOverError(thread_id, run_id)


def _fits(run: OpenRun, step: ThreadEvent) -> bool:
    match step:
        case ModelCalled():
            return run.call == 0 and not run.approvals
        case RequestChanged() | RequestWithheld() | ModelAnswered() | ModelFailed() | AnswerInterrupted():
            return run.call == step.call != 0
        case ToolStarted(message=message, index=index) | ApprovalRequested(message=message, index=index):
            # A call that needs approval waits for it.
            return all(place != CallLocation(message, index) for _, place in run.approvals)
        case (
            ToolFinished(message=message, index=index)
            | ChildThread(message=message, index=index)
            | ToolProgressed(message=message, index=index)
        ):
            return CallLocation(message, index) in run.tools
        case RunCompleted():
            return run.call == 0 and not run.tools and not run.approvals
        case _:
            return True


def _record(_: str, control: Control, intent: RecordEvents) -> list[Decided]:
    for event in intent.events:
        _check_fields(event, TYPE_NAMES[type(event)])
    return [Decided(event, control.messages) for event in intent.events]


def _label(_: str, control: Control, intent: Label) -> list[Decided]:
    _check_labels(intent.labels)
    return [Decided(ThreadLabelled(labels=deepcopy(intent.labels)), control.messages)]


def _checkpoint(thread_id: str, control: Control, intent: Checkpoint) -> list[Decided]:
    check_checkpoint_name(intent.name)
    existing = control.checkpoints.get(intent.name)
    if existing is not None:
        raise CheckpointExistsError(thread_id, intent.name, existing)
    at = control.version if intent.at is None else intent.at
    check_version(thread_id, control, at)
    return [Decided(CheckpointMade(name=intent.name, at=at), control.messages)]


def _rewind(thread_id: str, control: Control, intent: Rewind) -> list[Decided]:
    check_version(thread_id, control, intent.to)
    rewound = HistoryRewound(to=intent.to, service_thread_id=intent.service_thread_id)
    return [Decided(rewound, intent.messages, by=intent.by)]


def _redact(_: str, control: Control, intent: Redact) -> list[Decided]:
    _check_text(intent.reason, "reason")
    redacted = MessageRedacted(version=intent.version, digest=intent.digest, stub=intent.stub, reason=intent.reason)
    return [Decided(redacted, control.messages)]


def _suspend(_: str, control: Control, intent: Suspend) -> list[Decided]:
    _check_text(intent.reason, "reason")
    return [Decided(ThreadSuspended(reason=intent.reason), control.messages)]


def _resume(_: str, control: Control, __: Resume) -> list[Decided]:
    return [Decided(ThreadResumed(), control.messages)]


def _end(_: str, control: Control, intent: End) -> list[Decided]:
    _check_text(intent.reason, "reason")
    return [Decided(ThreadEnded(reason=intent.reason), control.messages)]


def _delete(_: str, control: Control, intent: Delete) -> list[Decided]:
    _check_text(intent.reason, "reason")
    return [Decided(ThreadDeleted(reason=intent.reason, service=intent.service), control.messages)]


def _purge(_: str, control: Control, intent: Purge) -> list[Decided]:
    _check_text(intent.reason, "reason")
    return [Decided(ThreadPurged(rows=intent.rows, digest=intent.digest, reason=intent.reason), control.messages)]


def _restart(_: str, control: Control, intent: Restart) -> list[Decided]:
    _check_text(intent.title, "title")
    _check_labels(intent.labels)
    check_json(intent.metadata, "metadata")
    labels, metadata = deepcopy(intent.labels), deepcopy(intent.metadata)
    restarted = ThreadRestarted(title=intent.title, labels=labels, metadata=metadata)
    return [Decided(restarted, control.messages), Decided(HistoryRewound(to=1), 0)]


_DECISIONS: dict[type, Callable[[str, Control, Any], list[Decided]]] = {
    Start: _start,
    Branch: _branch,
    Append: _append,
    Advance: _advance,
    RecordEvents: _record,
    Label: _label,
    Checkpoint: _checkpoint,
    Rewind: _rewind,
    Redact: _redact,
    Suspend: _suspend,
    Resume: _resume,
    End: _end,
    Delete: _delete,
    Purge: _purge,
    Restart: _restart,
}
"""How each intent is decided."""


def _declared(model: type[Value]) -> EventType:
    return EVENT_TYPES[TYPE_NAMES[model]]


def _recordable(model: type[Value]) -> EventType:
    declared = _declared(model)
    if not declared.statuses:
        advice = 'declare the statuses in which a thread accepts it, such as @event_type(…, statuses=("active",)).'
        raise ValueError(f"The event type {declared.name!r} is declared without statuses: {advice}")
    return declared


_STATUSES: dict[type, frozenset[Status]] = {
    Append: _declared(MessageAppended).statuses,
    Label: _declared(ThreadLabelled).statuses,
    Checkpoint: _declared(CheckpointMade).statuses,
    Rewind: _declared(HistoryRewound).statuses,
    Redact: _declared(MessageRedacted).statuses,
    Suspend: _declared(ThreadSuspended).statuses,
    Resume: frozenset({"suspended"}),  # a log of before can have the event in an active thread, too
    End: _declared(ThreadEnded).statuses,
    Delete: _declared(ThreadDeleted).statuses,
    Purge: _declared(ThreadPurged).statuses,
    Restart: _declared(ThreadRestarted).statuses,
}
"""The statuses that allow each intent: those in which a thread accepts its event, or fewer."""

_REQUESTS: dict[type, str] = {Advance: "a run", RecordEvents: "to record events"}
"""How errors name an intent if the name of its class is not clear."""

_LARGE = 2**64
"""Only integers of at least this size are checked."""


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
            continue  # the most frequent values, which are always valid
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


def check_version(thread_id: str, control: Control, version: int) -> None:
    """Raise UnknownVersionError for a version that does not exist, or is of a purged thread that had this id before."""
    if not 1 <= version <= control.version:
        message = f"Thread {thread_id!r} has no version {version}: its versions are 1 to {control.version}."
        raise UnknownVersionError(message)
    if 1 < version < control.began:
        raise UnknownVersionError(
            f"Thread {thread_id!r}: version {version} is of the thread that had this id before and was purged. "
            f"The versions of this thread are {control.began} to {control.version}, and 1 for its start."
        )


def _check_labels(labels: JsonObject) -> None:
    check_json(labels, "labels")
    for name in labels:
        check_label_name(name)


def _check_text(text: str | None, where: str) -> None:
    if text is not None:
        check_text(text, where)
