"""Run summaries: what each run on a thread did, how long its calls took, and how it ended."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple, TypeAlias

from clew.domain.context.events import ContextFailed, ContextProvided, HistoryReduced
from clew.domain.events import (
    Event,
    HistoryRewound,
    MessageAppended,
    Shredded,
    ThreadDeleted,
    ThreadEnded,
    ThreadForked,
    to_time,
)
from clew.domain.history import spans
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
"""``open``: the run has begun and not ended. ``waiting``: it is open, and waits for an approval."""


@dataclass(frozen=True, slots=True)
class AskedApproval:
    """An approval that a run waits for: the version of the request, and the call.

    The call is the ``index``-th content of the message at version ``message``. ``reason`` is ``approval``, or
    ``outcome-unknown`` for a call that was started and may or may not have been carried out, or ``child`` for one whose
    agent waits for an approval on its own thread.
    """

    version: int
    message: int
    index: int
    reason: Literal["approval", "outcome-unknown", "child"]


class Interruption(NamedTuple):
    """An answer that stopped while it was arriving; its partial text is at version ``message``, None without text."""

    message: int | None
    reason: Literal["fault", "cancelled", "stopped", "crashed"]


class Contribution(NamedTuple):
    """What a context provider or reducer did: the version of the event, and the event."""

    version: int
    said: ContextProvided | ContextFailed | HistoryReduced


class RunSummary(NamedTuple):
    """A run: what it did, and how it ended.

    ``version`` is the version of its start, ``last_version`` that of its newest event or message. Times are
    microseconds since 1970; ``ended_at`` is None while the run is open. ``reason`` says why it was abandoned, else why
    the model finished; ``error`` why it failed. ``attempts`` counts its start and each time that it was continued.
    ``tool_calls`` counts the started calls, ``failed_calls`` the model and tool calls that failed, were refused or were
    interrupted. ``model_ms`` and ``tool_ms`` are the sums of the durations of all calls, also of parallel ones.
    ``context`` is what context providers and reducers did, in order; ``missing`` are the missing providers.
    ``left_out`` counts the messages whose signed parts were not sent, in the request with the most of them.
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
    left_out: int = 0

    @property
    def started(self) -> datetime:
        """When it began, in UTC."""
        return to_time(self.started_at)

    @property
    def ended(self) -> datetime | None:
        """When it ended, in UTC; None while it is open."""
        return None if self.ended_at is None else to_time(self.ended_at)


def run_summaries(events: Iterable[Event], at: int | None = None, after_cuts: Iterable[Event] = ()) -> list[RunSummary]:
    """The runs on a lineage's path at a version, by default the newest, in the order in which they began.

    Runs that a rewind took off the path are left out. A run that was open where a fork, a rewind or the end of the
    thread cut the path is abandoned, unless its final answer is the last message before the cut: then it is completed.
    ``after_cuts`` are the events right after the cuts of forks, in the parents: they hold the tokens of such answers.
    """
    events = list(events)
    outcomes = _answer_outcomes((*events, *after_cuts))
    runs: dict[str, RunSummary] = {}
    open_run: str | None = None
    message: Event | None = None
    for event in _on_path(events, at):
        id_ = event.run_id or ""
        if isinstance(event.data, RunStarted):
            open_run = id_
            begun = RunSummary(id_, event.data.agent, event.version, event.version, event.recorded_at)
            runs[id_] = begun._replace(missing=event.data.missing)
        elif (cut := _cut(event)) is not None:
            if open_run is not None:
                answered = _answered_before_cut(runs[open_run], message, outcomes)
                runs[open_run] = answered or _ended(runs[open_run], event, "abandoned", cut)
            open_run = None
        elif id_ in runs:
            runs[id_] = _after(runs[id_], event)
            if runs[id_].ended_at is not None:
                open_run = None
        if isinstance(event.data, MessageAppended | Shredded):
            message = event
    return list(runs.values())


def _on_path(events: Sequence[Event], at: int | None) -> Iterator[Event]:
    """The events on the path that belong to runs, or end them."""
    relevant: list[Event] = []
    rewinds: dict[int, int] = {}
    for event in events:
        if event.run_id is not None or _cut(event) is not None:
            relevant.append(event)
        if isinstance(event.data, HistoryRewound):
            rewinds[event.version] = event.data.to
    newest = events[-1].version if events else 0
    versions = [event.version for event in relevant]
    for first, last in spans(rewinds, newest if at is None else at):
        yield from relevant[bisect_left(versions, first) : bisect_right(versions, last)]


def _answer_outcomes(events: Iterable[Event]) -> dict[int, ModelAnswered | AnswerInterrupted]:
    """What happened to each answer, by the version of its message, on and off the path."""
    return {
        event.data.message: event.data
        for event in events
        if isinstance(event.data, ModelAnswered | AnswerInterrupted) and event.data.message is not None
    }


def _answered_before_cut(
    run: RunSummary, message: Event | None, outcomes: Mapping[int, ModelAnswered | AnswerInterrupted]
) -> RunSummary | None:
    """The run as completed, if ``message``, the newest one on the path, is its final answer; else None.

    The answer and the events that complete the run are one commit, but a cut may lie between them.
    """
    if message is None or message.run_id != run.run_id or not isinstance(message.data, MessageAppended):
        return None
    outcome = outcomes.get(message.version)
    is_answer = message.data.message.role == "assistant" and not message.data.message.calls
    if not is_answer or isinstance(outcome, AnswerInterrupted):
        return None
    reason = None if outcome is None else outcome.finish_reason
    if outcome is not None and run.last_version == message.version:
        run = _after_model_step(run, outcome)  # that event is after the cut
    return _ended(run, message, "completed", reason)


def _cut(event: Event) -> str | None:
    """What an event does that ends an open run; None for other events."""
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
            return _after_model_step(run, event.data)
        case ToolStarted() | ToolFinished() | ToolFailed():
            return _after_tool_step(run, event.data)
        case ContextProvided() | ContextFailed() | HistoryReduced():
            return run._replace(context=(*run.context, Contribution(event.version, event.data)))
        case ApprovalRequested(message=message, index=index, reason=reason):
            return _with_approvals(run, (*run.approvals, AskedApproval(event.version, message, index, reason)))
        case ApprovalGiven(request=request):
            return _with_approvals(run, tuple(each for each in run.approvals if each.version != request))
        case RunCompleted(finish_reason=reason):
            return _ended(run, event, "completed", reason)
        case RunFailed(error=error):
            return _ended(run, event, "failed", None)._replace(error=error)
        case RunAbandoned(reason=reason):
            return _ended(run, event, "abandoned", reason)
        case _:
            return run


def _after_model_step(
    run: RunSummary, data: ModelCalled | ModelAnswered | ModelFailed | AnswerInterrupted
) -> RunSummary:
    match data:
        case ModelCalled(model=model, left_out=left_out):
            models = run.models if model in run.models else (*run.models, model)
            most = max(run.left_out, len(left_out))
            return run._replace(model_calls=run.model_calls + 1, models=models, left_out=most)
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


def _after_tool_step(run: RunSummary, data: ToolStarted | ToolFinished | ToolFailed) -> RunSummary:
    match data:
        case ToolStarted():
            return run._replace(tool_calls=run.tool_calls + 1)
        case ToolFinished(ms=ms):
            return run._replace(tool_ms=run.tool_ms + ms)
        case ToolFailed(ms=ms):
            return run._replace(failed_calls=run.failed_calls + 1, tool_ms=run.tool_ms + ms)


def _with_approvals(run: RunSummary, approvals: tuple[AskedApproval, ...]) -> RunSummary:
    return run._replace(approvals=approvals, outcome="waiting" if approvals else "open")
