from __future__ import annotations

from typing import Any

import pytest
from tests.domain.strategies import event

from clew.domain.events import (
    Event,
    HistoryRewound,
    MessageAppended,
    Opaque,
    Shredded,
    ThreadDeleted,
    ThreadEnded,
    ThreadEvent,
    ThreadForked,
    ThreadLabelled,
    ThreadStarted,
)
from clew.domain.messages import FunctionCall, Message
from clew.domain.models.client import TokenUsage
from clew.domain.runs.events import (
    AgentIdentity,
    AnswerInterrupted,
    ApprovalGiven,
    ApprovalRequested,
    Failure,
    Fingerprint,
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
from clew.domain.runs.summaries import AskedApproval, Interruption, RunSummary, run_summaries

JOKER = AgentIdentity(id="joker", name="Joker")
FINGERPRINT = Fingerprint(client="scripted")
RUN_STARTED = RunStarted(agent=JOKER, fingerprint=FINGERPRINT)
STARTED = ThreadStarted()
MESSAGE = MessageAppended(message=Message.user("Hi"))
BROKEN = Failure(kind="ModelStreamError", status=500)
FORKED = ThreadForked(parent_id="p", parent_version=3, parent_hash="")


def model(name: str = "gpt-x", attempt: int = 1) -> ModelCalled:
    return ModelCalled(definitions=1, client="c", wire="openai-chat", model=name, digest="", attempt=attempt)


def lineage(*steps: ThreadEvent | tuple[str, ThreadEvent]) -> list[Event]:
    """Return events of a lineage; a pair of run id and event belongs to a run."""
    events = []
    for version, each in enumerate(steps, start=1):
        run_id, data = each if isinstance(each, tuple) else (None, each)
        events.append(event(data, version, run_id=run_id))
    return events


def of(run_id: str, *steps: ThreadEvent) -> list[tuple[str, ThreadEvent]]:
    return [(run_id, each) for each in steps]


def only(*steps: ThreadEvent | tuple[str, ThreadEvent]) -> RunSummary:
    (summary,) = run_summaries(lineage(*steps))
    return summary


def test_a_thread_without_runs_has_none() -> None:
    assert run_summaries([]) == []
    assert run_summaries(lineage(STARTED, MESSAGE, HistoryRewound(to=1), ThreadEnded())) == []


def test_a_summary_counts_and_measures_the_whole_run() -> None:
    usage = TokenUsage(input_tokens=120, output_tokens=45, cached_tokens=7)
    steps = of(
        "r1",
        RUN_STARTED, MESSAGE, model(),
        MESSAGE, ModelAnswered(call=4, message=5, usage=usage, ms=830),
        ToolStarted(message=5, index=0), ToolStarted(message=5, index=1),
        MESSAGE, ToolFinished(message=5, index=0, result=9, ms=12),
        MESSAGE, ToolFailed(message=5, index=1, result=11, reason="raised", ms=5),
        model("gpt-y"), ModelFailed(call=13, error=BROKEN, ms=30, retry_in=1), model("gpt-y", 2),
        MESSAGE, ModelAnswered(call=15, message=16, ms=70),
        RunCompleted(finish_reason="stop"),
    )  # fmt: skip
    assert only(STARTED, *steps, MESSAGE) == RunSummary(
        run_id="r1",
        agent=JOKER,
        version=2,
        last_version=18,
        started_at=2,
        ended_at=18,
        outcome="completed",
        reason="stop",
        models=("gpt-x", "gpt-y"),
        model_calls=3,
        tool_calls=2,
        failed_calls=2,
        input_tokens=120,
        output_tokens=45,
        model_ms=930,
        tool_ms=17,
    )


def test_a_run_is_open_until_its_end_and_waiting_for_approvals() -> None:
    requests = (
        ApprovalRequested(message=4, index=0, reason="approval"),
        ApprovalRequested(message=4, index=1, reason="outcome-unknown"),
    )
    steps: list[Any] = [STARTED, *of("r1", RUN_STARTED, model(), MESSAGE, ModelAnswered(call=3, message=4, ms=1))]
    summary = only(*steps)
    assert (summary.outcome, summary.ended, summary.last_version) == ("open", None, 5)
    summary = only(*steps, *of("r1", *requests))
    assert summary.outcome == "waiting"
    assert summary.approvals == (AskedApproval(6, 4, 0, "approval"), AskedApproval(7, 4, 1, "outcome-unknown"))
    summary = only(*steps, *of("r1", *requests, ApprovalGiven(request=6, approved=True)))
    assert (summary.outcome, summary.approvals) == ("waiting", (AskedApproval(7, 4, 1, "outcome-unknown"),))
    decided = of("r1", *requests, ApprovalGiven(request=6, approved=True), ApprovalGiven(request=7, approved=False))
    assert only(*steps, *decided).outcome == "open"
    again = RunResumed(attempt=2, agent=JOKER, fingerprint=FINGERPRINT)
    assert only(*steps, *decided, ("r1", again)).attempts == 2


def test_a_summary_names_an_interrupted_answer() -> None:
    cut = AnswerInterrupted(call=3, message=4, reason="cancelled")
    summary = only(STARTED, *of("r1", RUN_STARTED, model(), MESSAGE, cut, RunAbandoned(reason="cancelled")))
    assert (summary.outcome, summary.reason, summary.interrupted) == (
        "abandoned", "cancelled", (Interruption(4, "cancelled"),),
    )  # fmt: skip
    assert summary.failed_calls == 1
    none = AnswerInterrupted(call=3, reason="fault", error=BROKEN)
    summary = only(STARTED, *of("r1", RUN_STARTED, model(), none, RunFailed(error=BROKEN)))
    assert (summary.outcome, summary.error, summary.interrupted) == ("failed", BROKEN, (Interruption(None, "fault"),))


@pytest.mark.parametrize(
    ("cut", "reason"),
    [(FORKED, "forked"), (HistoryRewound(to=3), "rewound"), (ThreadEnded(), "ended"), (ThreadDeleted(), "deleted")],
)
def test_a_run_does_not_cross_a_cut(cut: ThreadEvent, reason: str) -> None:
    requests = ApprovalRequested(message=3, index=0, reason="approval")
    summary = only(STARTED, *of("r1", RUN_STARTED, MESSAGE), cut)
    assert (summary.outcome, summary.reason, summary.ended_at) == ("abandoned", reason, 4)
    summary = only(STARTED, *of("r1", RUN_STARTED, requests), cut)
    assert (summary.outcome, summary.approvals) == ("abandoned", ())
    completed = of("r1", RUN_STARTED, RunCompleted())
    assert only(STARTED, *completed, cut).outcome == "completed"


def test_runs_removed_by_a_rewind_are_not_listed() -> None:
    first = of("r1", RUN_STARTED, MESSAGE, RunCompleted())
    second = of("r2", RUN_STARTED, MESSAGE, RunCompleted())
    events = lineage(STARTED, *first, *second, HistoryRewound(to=4), *of("r3", RUN_STARTED), HistoryRewound(to=7))
    assert [run.run_id for run in run_summaries(events, 7)] == ["r1", "r2"]
    assert [run.run_id for run in run_summaries(events, 8)] == ["r1"]
    assert [run.run_id for run in run_summaries(events, 9)] == ["r1", "r3"]
    assert [(run.run_id, run.outcome) for run in run_summaries(events)] == [("r1", "completed"), ("r2", "completed")]
    into = lineage(STARTED, *first, HistoryRewound(to=3), MESSAGE)
    assert [(run.outcome, run.last_version) for run in run_summaries(into)] == [("abandoned", 3)]


def test_ignores_other_and_unreadable_events() -> None:
    steps: list[Any] = [STARTED, *of("r1", RUN_STARTED, MESSAGE)]
    before = only(*steps)
    assert only(*steps, ThreadLabelled(labels={}), MESSAGE, *of("r2", RunCompleted(), model())) == before
    unreadable = [
        Event("default/thread/a", 4, "message-appended", "e", 4, 0, Shredded("user"), run_id="r1"),
        Event("default/thread/a", 5, "song-sung", "e", 5, 0, Opaque(b""), run_id="r1"),
    ]
    assert run_summaries([*lineage(*steps), *unreadable]) == [before._replace(last_version=5)]


def test_a_run_with_its_final_answer_right_before_a_cut_is_completed() -> None:
    answer = MessageAppended(message=Message.assistant("Here."))
    usage = TokenUsage(input_tokens=3, output_tokens=2)
    answered = ModelAnswered(call=4, message=5, finish_reason="stop", usage=usage, ms=7)
    run = of("r1", RUN_STARTED, MESSAGE, model(), answer, answered, RunCompleted(finish_reason="stop"))
    for at in (5, 6, 7):
        (summary,) = run_summaries(lineage(STARTED, *run, HistoryRewound(to=at)))
        assert (summary.outcome, summary.reason, summary.output_tokens) == ("completed", "stop", 2), at
    forked = lineage(STARTED, *run[:4], FORKED)
    (summary,) = run_summaries(forked)
    assert (summary.outcome, summary.output_tokens, summary.ended_at) == ("completed", 0, 5)
    (summary,) = run_summaries(forked, after_cuts=[event(answered, 6, run_id="r1")])
    assert (summary.outcome, summary.reason, summary.output_tokens, summary.model_ms) == ("completed", "stop", 2, 7)


def test_a_run_cut_in_a_partial_answer_or_calls_is_abandoned() -> None:
    partial = MessageAppended(message=Message.assistant("He"))
    interrupted = AnswerInterrupted(call=4, message=5, reason="stopped")
    forked = lineage(STARTED, *of("r1", RUN_STARTED, MESSAGE, model(), partial), FORKED)
    (summary,) = run_summaries(forked, after_cuts=[event(interrupted, 6, run_id="r1")])
    assert (summary.outcome, summary.reason) == ("abandoned", "forked")
    call = FunctionCall(call_id="c", name="f", arguments="{}")
    asking = MessageAppended(message=Message.assistant(calls=[call]))
    assert only(STARTED, *of("r1", RUN_STARTED, MESSAGE, model(), asking), FORKED).outcome == "abandoned"
