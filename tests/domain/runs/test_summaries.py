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
MADE_OF = Fingerprint(client="scripted")
BEGAN = RunStarted(agent=JOKER, fingerprint=MADE_OF)
STARTED = ThreadStarted()
SAID = MessageAppended(message=Message.user("Hi"))
BROKEN = Failure(kind="ModelStreamError", status=500)
FORKED = ThreadForked(parent_id="p", parent_version=3, parent_hash="")


def model(name: str = "gpt-x", attempt: int = 1) -> ModelCalled:
    return ModelCalled(definitions=1, client="c", wire="openai-chat", model=name, digest="", attempt=attempt)


def lineage(*happened: ThreadEvent | tuple[str, ThreadEvent]) -> list[Event]:
    """Events of a lineage; those of a run come with its id."""
    found = []
    for version, each in enumerate(happened, start=1):
        run_id, data = each if isinstance(each, tuple) else (None, each)
        found.append(event(data, version, run_id=run_id))
    return found


def of(run_id: str, *happened: ThreadEvent) -> list[tuple[str, ThreadEvent]]:
    return [(run_id, each) for each in happened]


def only(*happened: ThreadEvent | tuple[str, ThreadEvent]) -> RunSummary:
    (found,) = run_summaries(lineage(*happened))
    return found


def test_a_thread_without_runs_has_none() -> None:
    assert run_summaries([]) == []
    assert run_summaries(lineage(STARTED, SAID, HistoryRewound(to=1), ThreadEnded())) == []


def test_a_run_is_counted_and_measured_from_its_beginning_to_its_end() -> None:
    told = TokenUsage(input_tokens=120, output_tokens=45, cached_tokens=7)
    steps = of(
        "r1",
        BEGAN, SAID, model(),
        SAID, ModelAnswered(call=4, message=5, usage=told, ms=830),
        ToolStarted(message=5, index=0), ToolStarted(message=5, index=1),
        SAID, ToolFinished(message=5, index=0, result=9, ms=12),
        SAID, ToolFailed(message=5, index=1, result=11, reason="raised", ms=5),
        model("gpt-y"), ModelFailed(call=13, error=BROKEN, ms=30, retry_in=1), model("gpt-y", 2),
        SAID, ModelAnswered(call=15, message=16, ms=70),
        RunCompleted(finish_reason="stop"),
    )  # fmt: skip
    assert only(STARTED, *steps, SAID) == RunSummary(
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


def test_a_run_is_open_until_it_ends_and_waits_while_an_approval_is_asked_for() -> None:
    asked = (
        ApprovalRequested(message=4, index=0, reason="approval"),
        ApprovalRequested(message=4, index=1, reason="outcome-unknown"),
    )
    steps: list[Any] = [STARTED, *of("r1", BEGAN, model(), SAID, ModelAnswered(call=3, message=4, ms=1))]
    found = only(*steps)
    assert (found.outcome, found.ended, found.last_version) == ("open", None, 5)
    found = only(*steps, *of("r1", *asked))
    assert found.outcome == "waiting"
    assert found.approvals == (AskedApproval(6, 4, 0, "approval"), AskedApproval(7, 4, 1, "outcome-unknown"))
    found = only(*steps, *of("r1", *asked, ApprovalGiven(request=6, approved=True)))
    assert (found.outcome, found.approvals) == ("waiting", (AskedApproval(7, 4, 1, "outcome-unknown"),))
    decided = of("r1", *asked, ApprovalGiven(request=6, approved=True), ApprovalGiven(request=7, approved=False))
    assert only(*steps, *decided).outcome == "open"
    again = RunResumed(attempt=2, agent=JOKER, fingerprint=MADE_OF)
    assert only(*steps, *decided, ("r1", again)).attempts == 2


def test_an_answer_that_was_interrupted_is_told_of() -> None:
    cut = AnswerInterrupted(call=3, message=4, reason="cancelled")
    found = only(STARTED, *of("r1", BEGAN, model(), SAID, cut, RunAbandoned(reason="cancelled")))
    assert (found.outcome, found.reason, found.interrupted) == (
        "abandoned", "cancelled", (Interruption(4, "cancelled"),),
    )  # fmt: skip
    assert found.failed_calls == 1
    none = AnswerInterrupted(call=3, reason="fault", error=BROKEN)
    found = only(STARTED, *of("r1", BEGAN, model(), none, RunFailed(error=BROKEN)))
    assert (found.outcome, found.error, found.interrupted) == ("failed", BROKEN, (Interruption(None, "fault"),))


@pytest.mark.parametrize(
    ("cut", "reason"),
    [(FORKED, "forked"), (HistoryRewound(to=3), "rewound"), (ThreadEnded(), "ended"), (ThreadDeleted(), "deleted")],
)
def test_a_run_does_not_cross_a_cut(cut: ThreadEvent, reason: str) -> None:
    asked = ApprovalRequested(message=3, index=0, reason="approval")
    found = only(STARTED, *of("r1", BEGAN, SAID), cut)
    assert (found.outcome, found.reason, found.ended_at) == ("abandoned", reason, 4)
    found = only(STARTED, *of("r1", BEGAN, asked), cut)
    assert (found.outcome, found.approvals) == ("abandoned", ())
    completed = of("r1", BEGAN, RunCompleted())
    assert only(STARTED, *completed, cut).outcome == "completed"


def test_what_a_rewind_took_from_the_path_is_not_told_of() -> None:
    first = of("r1", BEGAN, SAID, RunCompleted())
    second = of("r2", BEGAN, SAID, RunCompleted())
    events = lineage(STARTED, *first, *second, HistoryRewound(to=4), *of("r3", BEGAN), HistoryRewound(to=7))
    assert [run.run_id for run in run_summaries(events, 7)] == ["r1", "r2"]
    assert [run.run_id for run in run_summaries(events, 8)] == ["r1"]
    assert [run.run_id for run in run_summaries(events, 9)] == ["r1", "r3"]
    assert [(run.run_id, run.outcome) for run in run_summaries(events)] == [("r1", "completed"), ("r2", "completed")]
    into = lineage(STARTED, *first, HistoryRewound(to=3), SAID)
    assert [(run.outcome, run.last_version) for run in run_summaries(into)] == [("abandoned", 3)]


def test_what_belongs_to_no_run_or_cannot_be_read_changes_nothing() -> None:
    steps: list[Any] = [STARTED, *of("r1", BEGAN, SAID)]
    before = only(*steps)
    assert only(*steps, ThreadLabelled(labels={}), SAID, *of("r2", RunCompleted(), model())) == before
    unread = [
        Event("default/thread/a", 4, "message-appended", "e", 4, 0, Shredded("user"), run_id="r1"),
        Event("default/thread/a", 5, "song-sung", "e", 5, 0, Opaque(b""), run_id="r1"),
    ]
    assert run_summaries([*lineage(*steps), *unread]) == [before._replace(last_version=5)]


def test_a_run_whose_final_answer_is_right_before_a_cut_is_completed() -> None:
    answer = MessageAppended(message=Message.assistant("Here."))
    usage = TokenUsage(input_tokens=3, output_tokens=2)
    answered = ModelAnswered(call=4, message=5, finish_reason="stop", usage=usage, ms=7)
    run = of("r1", BEGAN, SAID, model(), answer, answered, RunCompleted(finish_reason="stop"))
    for at in (5, 6, 7):
        (found,) = run_summaries(lineage(STARTED, *run, HistoryRewound(to=at)))
        assert (found.outcome, found.reason, found.output_tokens) == ("completed", "stop", 2), at
    forked = lineage(STARTED, *run[:4], FORKED)
    (found,) = run_summaries(forked)
    assert (found.outcome, found.output_tokens, found.ended_at) == ("completed", 0, 5)
    (found,) = run_summaries(forked, after_cuts=[event(answered, 6, run_id="r1")])
    assert (found.outcome, found.reason, found.output_tokens, found.model_ms) == ("completed", "stop", 2, 7)


def test_a_run_that_a_cut_leaves_with_a_partial_answer_or_with_calls_is_abandoned() -> None:
    partial = MessageAppended(message=Message.assistant("He"))
    interrupted = AnswerInterrupted(call=4, message=5, reason="stopped")
    forked = lineage(STARTED, *of("r1", BEGAN, SAID, model(), partial), FORKED)
    (found,) = run_summaries(forked, after_cuts=[event(interrupted, 6, run_id="r1")])
    assert (found.outcome, found.reason) == ("abandoned", "forked")
    call = FunctionCall(call_id="c", name="f", arguments="{}")
    asking = MessageAppended(message=Message.assistant(calls=[call]))
    assert only(STARTED, *of("r1", BEGAN, SAID, model(), asking), FORKED).outcome == "abandoned"
