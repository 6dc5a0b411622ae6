"""The control of a thread and its open run: the bounded state that decisions need. The history is not part of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any, NamedTuple

from clew.domain.context.events import ContextStateRecorded, HistoryReduced
from clew.domain.context.state import NO_CONTEXT_VERSIONS, ContextVersions, after_run_began, after_run_ended
from clew.domain.event_types import Status
from clew.domain.events import (
    MESSAGE_APPENDED,
    AnyEvent,
    CheckpointMade,
    Event,
    HistoryRewound,
    Opaque,
    Shredded,
    ThreadDeleted,
    ThreadEnded,
    ThreadForked,
    ThreadLabelled,
    ThreadPurged,
    ThreadRestarted,
    ThreadResumed,
    ThreadStarted,
    ThreadSuspended,
)
from clew.domain.json_values import Json, JsonObject
from clew.domain.models.client import ThreadKind
from clew.domain.runs.events import (
    AnswerInterrupted,
    ApprovalGiven,
    ApprovalRequested,
    ModelAnswered,
    ModelCalled,
    ModelFailed,
    RunAbandoned,
    RunCompleted,
    RunFailed,
    RunResumed,
    RunStarted,
    ServiceThreadBound,
    ToolFailed,
    ToolFinished,
    ToolStarted,
)

SNAPSHOT_EVERY = 128
"""Versions between two snapshots of the control. An append or a fork applies at most that many events."""


class CallLocation(NamedTuple):
    """The place of a function call: the version of its message, and its index among the contents."""

    message: int
    content: int


class OpenRun(NamedTuple):
    """A run that has begun and not ended.

    ``call`` is the version of the model call that has no answer yet, 0 if there is none. ``tools`` are the started
    calls without an outcome. ``approvals`` are the pending approvals, each with the version of its request.
    """

    id: str
    began: int
    attempt: int = 1
    call: int = 0
    tools: tuple[CallLocation, ...] = ()
    approvals: tuple[tuple[int, CallLocation], ...] = ()


def holder_of(run: OpenRun) -> str:
    """The name that this attempt of the run uses as the holder of the lease."""
    return f"{run.id}/{run.attempt}"


def run_after(
    run: OpenRun | None, version: int, run_id: str | None, data: AnyEvent | Opaque | Shredded
) -> OpenRun | None:
    """The open run after an event of its thread, recorded at ``version`` under ``run_id``."""
    match data:
        case RunStarted():
            return OpenRun(run_id or "", version)
        case RunCompleted() | RunFailed() | RunAbandoned():
            return None
    return None if run is None else _after_step(run, version, data)


def _after_step(run: OpenRun, version: int, data: AnyEvent | Opaque | Shredded) -> OpenRun:
    match data:
        case RunResumed(attempt=attempt):
            return run._replace(attempt=attempt)
        case ModelCalled():
            return run._replace(call=version)
        case ModelAnswered() | ModelFailed() | AnswerInterrupted():
            return run._replace(call=0)
        case ToolStarted(message=message, index=index):
            call = CallLocation(message, index)
            return run if call in run.tools else run._replace(tools=(*run.tools, call))
        case ToolFinished(message=message, index=index) | ToolFailed(message=message, index=index):
            return run._replace(tools=_without(run.tools, CallLocation(message, index)))
        case ApprovalRequested(message=message, index=index):
            call = CallLocation(message, index)
            return run._replace(tools=_without(run.tools, call), approvals=(*run.approvals, (version, call)))
        case ApprovalGiven(request=request):
            return run._replace(approvals=tuple(each for each in run.approvals if each[0] != request))
        case _:
            return run


def _without(calls: tuple[CallLocation, ...], removed: CallLocation) -> tuple[CallLocation, ...]:
    return tuple(call for call in calls if call != removed)


_EMPTY: dict[str, Any] = {}
"""The dict of a new control. No dict of a control is changed in place."""


class Control(NamedTuple):
    """The state of a thread at a version, without its history.

    ``head`` is the hash of the version, empty until it is recorded. ``messages`` counts the messages on the path.
    ``checkpoints`` maps names to versions; ``made_checkpoints`` are the first and the last version of an event that
    made one. Names of those made up to version ``unnamed`` may be missing: see ``with_checkpoints``. Times are
    microseconds since 1970. ``source_id`` is the id of the conversation that was imported as this thread. ``run`` is
    the open run. ``agents`` maps the ids of agents to the version where each last began or resumed a run.
    ``service_thread_id`` is the id of the thread at the service that stores it. ``as_of`` is a cut (thread and
    version): the thread reads memory scopes in their state at this cut; with None it reads their current state.
    ``context`` says where components recorded their states. ``bound`` is the version of the newest event with an id of
    the service, on the path or not.
    ``began`` is the version at which the id of a purged thread was used again, else 1. ``shredded`` is a number of
    shredded rows that the store had before the state was read: once it has more, texts that a fork has inherited may be
    gone. No field is changed in place.
    """

    version: int = 0
    head: bytes = b""
    messages: int = 0
    updated_at: int = 0
    status: Status = "active"
    title: str | None = None
    labels: JsonObject = _EMPTY
    metadata: JsonObject = _EMPTY
    imported: bool = False
    source_id: Json = None
    checkpoints: dict[str, int] = _EMPTY
    parent_id: str | None = None
    forked_at: int | None = None
    created_at: int = 0
    kind: ThreadKind = "local"
    run: OpenRun | None = None
    agents: dict[str, int] = _EMPTY
    service_thread_id: str | None = None
    as_of: tuple[str, int] | None = None
    made_checkpoints: tuple[int, int] = (0, 0)
    unnamed: int = 0
    context: ContextVersions = NO_CONTEXT_VERSIONS
    bound: int = 0
    began: int = 1
    shredded: int = 0


def without_checkpoints(control: Control) -> Control:
    """The control without the names of checkpoints, so that it stays small: this is what a snapshot holds."""
    return control if not control.made_checkpoints[1] else control._replace(checkpoints=_EMPTY, unnamed=control.version)


def unnamed_checkpoints(control: Control) -> tuple[int, int] | None:
    """The first and last version of the events with the names that the control lacks; None if it lacks none."""
    first, last = control.made_checkpoints
    return (first, min(last, control.unnamed)) if control.unnamed else None


def with_checkpoints(control: Control, events: Iterable[Event]) -> Control:
    """The control with the names of all its checkpoints; ``events`` make those that it lacks."""
    made = [event.data for event in events if isinstance(event.data, CheckpointMade) and event.data.name]
    return control._replace(checkpoints={**{each.name: each.at for each in made}, **control.checkpoints}, unnamed=0)


def with_checkpoint(control: Control, name: str, events: Iterable[Event]) -> Control:
    """The control with a name that it may lack; ``events`` make the checkpoint, and perhaps others."""
    made = [event for event in events if isinstance(event.data, CheckpointMade) and event.data.name == name]
    return with_checkpoints(control, made)._replace(unnamed=control.unnamed)


def detached(control: Control) -> Control:
    """A copy for callers, which shares no mutable object and does not depend on the store."""
    return control._replace(
        shredded=0,
        labels=deepcopy(control.labels),
        metadata=deepcopy(control.metadata),
        checkpoints=dict(control.checkpoints),
        agents=dict(control.agents),
    )


def advance(control: Control, event: Event) -> Control:
    """The control after one more event of the lineage."""
    messages = control.messages if event.messages < 0 else event.messages
    updated_at = max(control.updated_at, event.recorded_at)
    # The first four fields change with every event. This takes half the time of _replace.
    after = Control(event.version, event.hash or b"", messages, updated_at, *control[4:])
    if event.type == MESSAGE_APPENDED:  # most events
        return after
    change = _CHANGES.get(type(event.data))
    if change is not None:
        after = change(after, event, event.data)
    run = run_after(after.run, event.version, event.run_id, event.data)
    return after if run is after.run else after._replace(run=run)


def _started(control: Control, event: Event, started: ThreadStarted) -> Control:
    return control._replace(
        title=started.title,
        labels={key: value for key, value in started.labels.items() if value is not None},
        metadata=started.metadata,
        imported=started.source is not None,
        source_id=None if started.source is None else started.source.id,
        created_at=event.recorded_at,
        kind=started.kind,
    )


def _forked(control: Control, event: Event, forked: ThreadForked) -> Control:
    as_of = control.as_of
    if forked.memory is not None:
        as_of = (forked.parent_id, forked.parent_version) if forked.memory == "as-of" else None
    return control._replace(
        run=None,
        kind=forked.kind or control.kind,
        status="active",
        title=control.title if forked.title is None else forked.title,
        metadata=control.metadata if forked.metadata is None else forked.metadata,
        imported=False,
        source_id=None,
        parent_id=forked.parent_id,
        forked_at=forked.parent_version,
        created_at=event.recorded_at,
        as_of=as_of,
    )


def _labelled(control: Control, _: Event, labelled: ThreadLabelled) -> Control:
    labels = {**control.labels, **labelled.labels}
    return control._replace(labels={key: value for key, value in labels.items() if value is not None})


def _purged(control: Control, *_: object) -> Control:
    """What a fork has inherited is removed, too: a purged thread shows nothing."""
    return control._replace(title=None, labels=_EMPTY, metadata=_EMPTY, checkpoints=_EMPTY)._replace(
        made_checkpoints=(0, 0), unnamed=0
    )


def _restarted(control: Control, event: Event, restarted: ThreadRestarted) -> Control:
    """A new thread, as a child of the same parent, whose versions continue."""
    return Control(
        *control[:4],
        title=restarted.title,
        labels={key: value for key, value in restarted.labels.items() if value is not None},
        metadata=restarted.metadata,
        parent_id=control.parent_id,
        forked_at=control.forked_at,
        created_at=event.recorded_at,
        began=event.version,
    )


def _checkpointed(control: Control, event: Event, made: CheckpointMade) -> Control:
    if not made.name:  # it was redacted
        return control
    first = control.made_checkpoints[0] or event.version
    checkpoints = {**control.checkpoints, made.name: made.at}
    return control._replace(checkpoints=checkpoints, made_checkpoints=(first, event.version))


def _rewound(control: Control, event: Event, rewound: HistoryRewound) -> Control:
    """A run that began on the abandoned path does not continue."""
    context = control.context.rewound(min(rewound.to, event.version - 1))  # only a forged event has a later target
    return control._replace(run=None, service_thread_id=rewound.service_thread_id, context=context)


def _bound(control: Control, event: Event, bound: ServiceThreadBound) -> Control:
    return control._replace(service_thread_id=bound.id, bound=event.version)


def _run_started(control: Control, event: Event, run: RunStarted) -> Control:
    agents = {**control.agents, run.agent.id: event.version}
    return control._replace(agents=agents, context=after_run_began(control.context, event.run_id or "", run))


def _run_resumed(control: Control, event: Event, run: RunResumed) -> Control:
    return control._replace(agents={**control.agents, run.agent.id: event.version})


def _run_ended(control: Control, event: Event, _: object) -> Control:
    context = control.context
    return control._replace(context=after_run_ended(context, event)) if context.open_runs else control


def _state_recorded(control: Control, event: Event, recorded: ContextStateRecorded) -> Control:
    states = {**control.context.states, recorded.provider: event.version}
    return control._replace(context=control.context._replace(states=states))


def _reduced(control: Control, event: Event, reduced: HistoryReduced) -> Control:
    reductions = {**control.context.reductions, reduced.agent: event.version}
    return control._replace(context=control.context._replace(reductions=reductions))


_CHANGES: dict[type, Callable[[Control, Event, Any], Control]] = {
    ThreadStarted: _started,
    ThreadForked: _forked,
    ThreadLabelled: _labelled,
    CheckpointMade: _checkpointed,
    ThreadSuspended: lambda control, *_: control._replace(status="suspended"),
    ThreadResumed: lambda control, *_: control._replace(status="active"),
    ThreadEnded: lambda control, *_: control._replace(status="ended", run=None),
    ThreadPurged: _purged,
    ThreadRestarted: _restarted,
    ThreadDeleted: lambda control, *_: control._replace(status="deleted", run=None),
    HistoryRewound: _rewound,
    ServiceThreadBound: _bound,
    RunStarted: _run_started,
    RunResumed: _run_resumed,
    RunCompleted: _run_ended,
    RunFailed: _run_ended,
    RunAbandoned: _run_ended,
    ContextStateRecorded: _state_recorded,
    HistoryReduced: _reduced,
}
"""The change of the control by events of each type. Other events change at most the open run."""
