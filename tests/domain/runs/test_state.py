"""What a run's events come to, and what is to be done next."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.domain.strategies import event

from clew.domain.decider_state import CallLocation
from clew.domain.events import Event, MessageAppended
from clew.domain.messages import FunctionCall, FunctionResult, Message, Text
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
    RunCompleted,
    RunResumed,
    RunStarted,
    ToolFailed,
    ToolFinished,
    ToolStarted,
)
from clew.domain.runs.state import CallState, Rule, RunState, calls_of, fold, plan_calls

AGENT = AgentIdentity(id="clerk")
MADE = Fingerprint(client="scripted")
BEGUN = (RunStarted(agent=AGENT, fingerprint=MADE), Message.user("Where are 1 and 2?"))
ASKED = ModelCalled(definitions=1, client="scripted", wire="openai-chat", model="m", digest="d")
CALLING = Message(
    role="assistant",
    contents=(
        Text(text="Let me look."),
        FunctionCall(call_id="a", name="lookup", arguments="1"),
        FunctionCall(call_id="a", name="refund", arguments="2"),
    ),
)
ANSWERED = ModelAnswered(
    call=3, message=4, finish_reason="tool_calls", usage=TokenUsage(input_tokens=5, output_tokens=2), ms=1
)


def lineage(*happened: Any, run_id: str = "r") -> list[Event]:
    """Events of one run, from version 1 on; messages as what they are."""
    return [
        event(MessageAppended(message=each) if isinstance(each, Message) else each, version, run_id=run_id)
        for version, each in enumerate(happened, start=1)
    ]


def result(call_id: str, words: str) -> Message:
    """A tool's result."""
    return Message(role="tool", contents=(FunctionResult(call_id=call_id, result=words),))


def statuses(state: RunState) -> list[str]:
    """How far each call is."""
    return [call.status for call in state.calls]


def test_a_run_that_began_has_a_fingerprint_and_has_added_nothing() -> None:
    state = fold("r", lineage(*BEGUN))
    assert (state.began, state.definitions, state.fingerprint) == (1, 1, MADE)
    assert (state.added, state.answered, state.asked) == ((), False, None)


def test_a_model_that_is_asked_has_not_answered() -> None:
    state = fold("r", lineage(*BEGUN, ASKED))
    assert (state.called, state.tries, state.asked) == (3, 1, ASKED)


def test_an_answer_with_calls_leaves_them_to_be_made() -> None:
    state = fold("r", lineage(*BEGUN, ASKED, CALLING, ANSWERED))
    assert [call.place for call in state.calls] == [CallLocation(4, 1), CallLocation(4, 2)]
    assert statuses(state) == ["new", "new"]
    assert (state.called, state.rounds, state.answered, state.finish_reason) == (0, 1, False, "tool_calls")
    assert state.usage.total_tokens == 7
    assert [message.message for message in state.added] == [CALLING]


def test_calls_of_one_id_are_told_apart_by_their_place() -> None:
    done = (ToolStarted(message=4, index=2), result("a", "done"), ToolFinished(message=4, index=2, result=7, ms=1))
    assert statuses(fold("r", lineage(*BEGUN, ASKED, CALLING, ANSWERED, *done))) == ["new", "done"]


@pytest.mark.parametrize(
    ("happened", "expected"),
    [
        ([ToolStarted(message=4, index=1)], "started"),
        ([ToolFailed(message=4, index=1, result=6, reason="raised")], "done"),
        ([ApprovalRequested(message=4, index=1, reason="approval")], "asked"),
        (
            [ApprovalRequested(message=4, index=1, reason="approval"), ApprovalGiven(request=6, approved=True)],
            "approved",
        ),
        (
            [ApprovalRequested(message=4, index=1, reason="approval"), ApprovalGiven(request=6, approved=False)],
            "rejected",
        ),
        ([ApprovalRequested(message=4, index=1, reason="approval"), ApprovalGiven(request=5, approved=True)], "asked"),
    ],
    ids=["started", "failed", "asked", "approved", "rejected", "another-request"],
)
def test_a_call_is_as_far_as_its_events_say(happened: list[Any], expected: str) -> None:
    assert statuses(fold("r", lineage(*BEGUN, ASKED, CALLING, ANSWERED, *happened))) == [expected, "new"]


def test_an_answer_without_calls_is_the_last_one() -> None:
    state = fold("r", lineage(*BEGUN, ASKED, Message.assistant("Yes."), ANSWERED, RunCompleted()))
    assert state.answered


def test_a_fault_closes_the_call_and_keeps_what_had_come() -> None:
    failed = fold("r", lineage(*BEGUN, ASKED, ModelFailed(call=3, error=Failure(kind="X"), ms=1)))
    assert (failed.called, failed.rounds, failed.added) == (0, 0, ())
    part = Message.assistant("Half an ans")
    cut = fold("r", lineage(*BEGUN, ASKED, part, AnswerInterrupted(call=3, message=4, reason="fault")))
    assert (cut.called, cut.answered, [said.message for said in cut.added]) == (0, False, [part])


def test_a_run_that_is_gone_on_with_is_made_of_what_goes_on_with_it() -> None:
    other = Fingerprint(client="openai-chat")
    state = fold("r", lineage(*BEGUN, ASKED, RunResumed(attempt=2, agent=AGENT, fingerprint=other)))
    assert (state.attempt, state.definitions, state.fingerprint, state.began) == (2, 4, other, 1)


def test_events_of_others_are_passed_by() -> None:
    mine, other = lineage(*BEGUN, ASKED), lineage(*BEGUN, ASKED, Message.assistant("Theirs."), ANSWERED, run_id="s")
    assert fold("r", [*mine, *other]) == fold("r", mine)


def call(name: str, status: Any = "new", **more: Any) -> CallState:
    """A call of a tool."""
    return CallState(CallLocation(1, 0), FunctionCall(call_id="a", name=name, arguments=""), status, **more)


RULES = {"safe": Rule(), "asks": Rule(approval=True), "again": Rule(idempotent=True)}


@pytest.mark.parametrize(
    ("state", "orphaned", "expected"),
    [
        (call("safe"), False, "start"),
        (call("asks"), False, "ask approval"),
        (call("nobody knows it"), False, "start"),
        (call("asks", "asked"), False, "nothing"),
        (call("asks", "approved"), False, "start"),
        (call("asks", "rejected"), False, "refuse"),
        (call("safe", "done"), True, "nothing"),
        (call("safe", "started"), False, "nothing"),
        (call("safe", "started"), True, "ask outcome-unknown"),
        (call("again", "started"), True, "start"),
        (call("asks", "started"), True, "ask outcome-unknown"),
        (call("safe", "approved", why="outcome-unknown"), True, "start"),
    ],
    ids=lambda value: f"{value.call.name} {value.status}" if isinstance(value, CallState) else str(value),
)
def test_what_is_to_be_done_about_a_call(state: CallState, orphaned: bool, expected: str) -> None:  # noqa: FBT001  # a parameter of the table
    plan = plan_calls([state], RULES, orphaned=orphaned)
    found = (["start"] * len(plan.start) + [f"ask {why}" for _, why in plan.ask] + ["refuse"] * len(plan.refuse)) or [
        "nothing"
    ]
    assert found == [expected]
    assert bool(plan) == (expected != "nothing")


@given(
    st.lists(
        st.builds(
            call,
            st.sampled_from([*RULES, "unknown"]),
            st.sampled_from(["new", "asked", "approved", "rejected", "started", "done"]),
        )
    ),
    st.booleans(),
)
def test_every_call_is_planned_once_at_most_and_in_order(calls: list[CallState], orphaned: bool) -> None:  # noqa: FBT001  # drawn
    placed = [each._replace(place=CallLocation(1, index)) for index, each in enumerate(calls)]
    plan = plan_calls(placed, RULES, orphaned=orphaned)
    for part in (plan.start, tuple(each for each, _ in plan.ask), plan.refuse):
        assert list(part) == sorted(part, key=lambda each: each.place)
    planned = [each.place for each in (*plan.start, *(each for each, _ in plan.ask), *plan.refuse)]
    assert len(set(planned)) == len(planned)
    assert not any(each.status in {"done", "asked"} for each in (*plan.start, *plan.refuse))


def test_the_calls_of_an_answer_have_their_places_among_its_contents() -> None:
    assert [each.place for each in calls_of(CALLING, 9)] == [CallLocation(9, 1), CallLocation(9, 2)]
    assert calls_of(Message.assistant("None."), 9) == ()
