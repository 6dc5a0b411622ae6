"""The state of a run from its events, and the next actions."""

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
STARTED = (RunStarted(agent=AGENT, fingerprint=MADE), Message.user("Where are 1 and 2?"))
CALLED = ModelCalled(definitions=1, client="scripted", wire="openai-chat", model="m", digest="d")
CALLS = Message(
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


def lineage(*events: Any, run_id: str = "r") -> list[Event]:
    """Return events of one run from version 1 on; a message becomes its event."""
    return [
        event(MessageAppended(message=each) if isinstance(each, Message) else each, version, run_id=run_id)
        for version, each in enumerate(events, start=1)
    ]


def result(call_id: str, words: str) -> Message:
    """Return a tool's result."""
    return Message(role="tool", contents=(FunctionResult(call_id=call_id, result=words),))


def statuses(state: RunState) -> list[str]:
    """Return the status of each call."""
    return [call.status for call in state.calls]


def test_a_started_run_has_a_fingerprint_and_no_messages() -> None:
    state = fold("r", lineage(*STARTED))
    assert (state.began, state.definitions, state.fingerprint) == (1, 1, MADE)
    assert (state.added, state.answered, state.model_call) == ((), False, None)


def test_a_called_model_has_not_answered() -> None:
    state = fold("r", lineage(*STARTED, CALLED))
    assert (state.called, state.tries, state.model_call) == (3, 1, CALLED)


def test_calls_of_an_answer_are_new() -> None:
    state = fold("r", lineage(*STARTED, CALLED, CALLS, ANSWERED))
    assert [call.place for call in state.calls] == [CallLocation(4, 1), CallLocation(4, 2)]
    assert statuses(state) == ["new", "new"]
    assert (state.called, state.rounds, state.answered, state.finish_reason) == (0, 1, False, "tool_calls")
    assert state.usage.total_tokens == 7
    assert [message.message for message in state.added] == [CALLS]


def test_calls_with_one_id_are_distinguished_by_their_place() -> None:
    done = (ToolStarted(message=4, index=2), result("a", "done"), ToolFinished(message=4, index=2, result=7, ms=1))
    assert statuses(fold("r", lineage(*STARTED, CALLED, CALLS, ANSWERED, *done))) == ["new", "done"]


@pytest.mark.parametrize(
    ("events", "expected"),
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
def test_the_events_determine_the_status_of_a_call(events: list[Any], expected: str) -> None:
    assert statuses(fold("r", lineage(*STARTED, CALLED, CALLS, ANSWERED, *events))) == [expected, "new"]


def test_an_answer_without_calls_is_final() -> None:
    state = fold("r", lineage(*STARTED, CALLED, Message.assistant("Yes."), ANSWERED, RunCompleted()))
    assert state.answered


def test_a_fault_ends_the_call_and_keeps_the_partial_answer() -> None:
    failed = fold("r", lineage(*STARTED, CALLED, ModelFailed(call=3, error=Failure(kind="X"), ms=1)))
    assert (failed.called, failed.rounds, failed.added) == (0, 0, ())
    part = Message.assistant("Half an ans")
    cut = fold("r", lineage(*STARTED, CALLED, part, AnswerInterrupted(call=3, message=4, reason="fault")))
    assert (cut.called, cut.answered, [added.message for added in cut.added]) == (0, False, [part])


def test_a_resumed_run_has_the_fingerprint_of_its_new_attempt() -> None:
    other = Fingerprint(client="openai-chat")
    state = fold("r", lineage(*STARTED, CALLED, RunResumed(attempt=2, agent=AGENT, fingerprint=other)))
    assert (state.attempt, state.definitions, state.fingerprint, state.began) == (2, 4, other, 1)


def test_ignores_events_of_other_runs() -> None:
    mine, other = (
        lineage(*STARTED, CALLED),
        lineage(*STARTED, CALLED, Message.assistant("Theirs."), ANSWERED, run_id="s"),
    )
    assert fold("r", [*mine, *other]) == fold("r", mine)


def call(name: str, status: Any = "new", **more: Any) -> CallState:
    """Return the state of a tool call."""
    return CallState(CallLocation(1, 0), FunctionCall(call_id="a", name=name, arguments=""), status, **more)


RULES = {"safe": Rule(), "asks": Rule(approval=True), "again": Rule(idempotent=True)}


@pytest.mark.parametrize(
    ("state", "orphaned", "expected"),
    [
        (call("safe"), False, "start"),
        (call("asks"), False, "ask approval"),
        (call("unknown"), False, "start"),
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
def test_plans_the_next_action_of_a_call(state: CallState, orphaned: bool, expected: str) -> None:  # noqa: FBT001  # pytest passes it by name
    plan = plan_calls([state], RULES, orphaned=orphaned)
    actions = (["start"] * len(plan.start) + [f"ask {why}" for _, why in plan.ask] + ["refuse"] * len(plan.refuse)) or [
        "nothing"
    ]
    assert actions == [expected]


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
def test_plans_each_call_at_most_once_and_in_order(calls: list[CallState], orphaned: bool) -> None:  # noqa: FBT001  # Hypothesis passes it by name
    placed = [each._replace(place=CallLocation(1, index)) for index, each in enumerate(calls)]
    plan = plan_calls(placed, RULES, orphaned=orphaned)
    for part in (plan.start, tuple(each for each, _ in plan.ask), plan.refuse):
        assert list(part) == sorted(part, key=lambda each: each.place)
    planned = [each.place for each in (*plan.start, *(each for each, _ in plan.ask), *plan.refuse)]
    assert len(set(planned)) == len(planned)
    assert not any(each.status in {"done", "asked"} for each in (*plan.start, *plan.refuse))


def test_calls_have_their_places_in_the_contents() -> None:
    assert [each.place for each in calls_of(CALLS, 9)] == [CallLocation(9, 1), CallLocation(9, 2)]
    assert calls_of(Message.assistant("None."), 9) == ()
