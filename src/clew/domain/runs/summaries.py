"""Runs as a thread's readers see them: what each did, how long its calls took, and what came of it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple, TypeAlias

from clew.domain.context.events import ContextFailed, ContextProvided, HistoryReduced
from clew.domain.events import Event, HistoryRewound, ThreadDeleted, ThreadEnded, ThreadForked, to_time
from clew.domain.path import spans
from clew.domain.runs.events import (
    AgentIdentity,
    AnswerInterrupted,
    ApprovalGiven,
    ApprovalRequested,
    Failure,
    ModelAnswered,
    ModelCalled,
    ModelFailed,
    RunAbandoned,
    RunCompleted,
    RunFailed,
    RunResumed,
    RunStarted,
    ToolFailed,
    ToolFinished,
    ToolStarted,
)

RunOutcome: TypeAlias = Literal["open", "waiting", "completed", "failed", "abandoned"]
"""``open`` is a run that was begun and not ended, ``waiting`` one of these that waits for somebody's approval."""


@dataclass(frozen=True, slots=True)
class AskedApproval:
    """An approval that is waited for: the version of the request, and the call.

    That is the ``index``-th content of the message at version ``message``. ``reason`` is ``approval``, or
    ``outcome-unknown`` where the call was begun and nobody knows whether it was carried out.
    """

    version: int
    message: int
    index: int
    reason: Literal["approval", "outcome-unknown"]


class Interruption(NamedTuple):
    """An answer that stopped while it was arriving; what had come is at version ``message``, None if nothing had."""

    message: int | None
    reason: Literal["fault", "cancelled", "stopped", "crashed"]


class Contribution(NamedTuple):
    """What the model was told beside the history, or what of that it was not told: an event's version, and it."""

    version: int
    said: ContextProvided | ContextFailed | HistoryReduced


class RunSummary(NamedTuple):
    """A run: what it did, and what came of it.

    ``version`` is that of its beginning, ``last_version`` that of its newest event or message; times are microseconds
    since 1970, ``ended_at`` None while it is open. ``reason`` is why it was abandoned, else why the model finished;
    ``error`` is why it failed. ``attempts`` counts how often it was begun or taken up. ``tool_calls`` counts the calls
    that were begun, and ``failed_calls`` those of models and tools that failed, were refused or were interrupted.
    ``model_ms`` and ``tool_ms`` are what the calls took, those that went on at once added up. ``context`` is what
    context providers and reducers did, in its order; ``missing`` are the providers that nobody supplied.
    """

    run_id: str
    agent: AgentIdentity
    version: int
    last_version: int
    started_at: int
    ended_at: int | None = None
    outcome: RunOutcome = "open"
    reason: str | None = None
    error: Failure | None = None
    attempts: int = 1
    models: tuple[str, ...] = ()
    model_calls: int = 0
    tool_calls: int = 0
    failed_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    model_ms: int = 0
    tool_ms: int = 0
    approvals: tuple[AskedApproval, ...] = ()
    interrupted: tuple[Interruption, ...] = ()
    context: tuple[Contribution, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def started(self) -> datetime:
        """When it began, in UTC."""
        return to_time(self.started_at)

    @property
    def ended(self) -> datetime | None:
        """When it ended, in UTC; None while it is open."""
        return None if self.ended_at is None else to_time(self.ended_at)


def run_summaries(events: Iterable[Event], at: int | None = None) -> list[RunSummary]:
    """The runs on a lineage's path at a version, by default the newest, in the order in which they began.

    What a rewind took from the path is not told of. A run that is open where the path was cut, by a fork, by a rewind
    or by the end of the thread, reads as abandoned.
    """
    runs: dict[str, RunSummary] = {}
    going_on: str | None = None
    for event in _on_path(events, at):
        id_ = event.run_id or ""
        if isinstance(event.data, RunStarted):
            going_on = id_
            begun = RunSummary(id_, event.data.agent, event.version, event.version, event.recorded_at)
            runs[id_] = begun._replace(missing=event.data.missing)
        elif (cut := _cut(event)) is not None:
            if going_on is not None:
                runs[going_on] = _ended(runs[going_on], event, "abandoned", cut)
            going_on = None
        elif id_ in runs:
            runs[id_] = _after(runs[id_], event)
            if runs[id_].ended_at is not None:
                going_on = None
    return list(runs.values())


def _on_path(events: Iterable[Event], at: int | None) -> Iterator[Event]:
    """The events on the path that tell of runs, or end them."""
    telling: list[Event] = []
    rewinds: dict[int, int] = {}
    newest = 0
    for event in events:
        newest = event.version
        if event.run_id is not None or _cut(event) is not None:
            telling.append(event)
        if isinstance(event.data, HistoryRewound):
            rewinds[event.version] = event.data.to
    versions = [event.version for event in telling]
    for first, last in spans(rewinds, newest if at is None else at):
        yield from telling[bisect_left(versions, first) : bisect_right(versions, last)]


def _cut(event: Event) -> str | None:
    """What an event does that no run goes on after; None for others."""
    match event.data:
        case ThreadForked():
            return "forked"
        case HistoryRewound():
            return "rewound"
        case ThreadEnded():
            return "ended"
        case ThreadDeleted():
            return "deleted"
        case _:
            return None


def _ended(run: RunSummary, event: Event, outcome: RunOutcome, reason: str | None) -> RunSummary:
    return run._replace(outcome=outcome, reason=reason, ended_at=event.recorded_at, approvals=())


def _after(run: RunSummary, event: Event) -> RunSummary:
    run = run._replace(last_version=event.version)
    match event.data:
        case RunResumed(attempt=attempt):
            return run._replace(attempts=attempt)
        case ModelCalled() | ModelAnswered() | ModelFailed() | AnswerInterrupted():
            return _asked(run, event.data)
        case ToolStarted() | ToolFinished() | ToolFailed():
            return _carried_out(run, event.data)
        case ContextProvided() | ContextFailed() | HistoryReduced():
            return run._replace(context=(*run.context, Contribution(event.version, event.data)))
        case ApprovalRequested(message=message, index=index, reason=reason):
            return _waiting(run, (*run.approvals, AskedApproval(event.version, message, index, reason)))
        case ApprovalGiven(request=request):
            return _waiting(run, tuple(each for each in run.approvals if each.version != request))
        case RunCompleted(finish_reason=reason):
            return _ended(run, event, "completed", reason)
        case RunFailed(error=error):
            return _ended(run, event, "failed", None)._replace(error=error)
        case RunAbandoned(reason=reason):
            return _ended(run, event, "abandoned", reason)
        case _:
            return run


def _asked(run: RunSummary, data: ModelCalled | ModelAnswered | ModelFailed | AnswerInterrupted) -> RunSummary:
    match data:
        case ModelCalled(model=model):
            models = run.models if model in run.models else (*run.models, model)
            return run._replace(model_calls=run.model_calls + 1, models=models)
        case ModelAnswered(usage=usage, ms=ms):
            run = run._replace(model_ms=run.model_ms + ms)
            if usage is None:
                return run
            return run._replace(
                input_tokens=run.input_tokens + usage.input_tokens,
                output_tokens=run.output_tokens + usage.output_tokens,
            )
        case ModelFailed(ms=ms):
            return run._replace(failed_calls=run.failed_calls + 1, model_ms=run.model_ms + ms)
        case AnswerInterrupted(message=message, reason=reason):
            interrupted = (*run.interrupted, Interruption(message, reason))
            return run._replace(failed_calls=run.failed_calls + 1, interrupted=interrupted)


def _carried_out(run: RunSummary, data: ToolStarted | ToolFinished | ToolFailed) -> RunSummary:
    match data:
        case ToolStarted():
            return run._replace(tool_calls=run.tool_calls + 1)
        case ToolFinished(ms=ms):
            return run._replace(tool_ms=run.tool_ms + ms)
        case ToolFailed(ms=ms):
            return run._replace(failed_calls=run.failed_calls + 1, tool_ms=run.tool_ms + ms)


def _waiting(run: RunSummary, approvals: tuple[AskedApproval, ...]) -> RunSummary:
    return run._replace(approvals=approvals, outcome="waiting" if approvals else "open")
