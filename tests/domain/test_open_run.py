"""The open run of a thread, and the steps that may follow."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.conftest import SCALE
from tests.domain.strategies import event

from clew.domain.decider import Advance, check_step, decide
from clew.domain.decider_state import CallLocation, Control, OpenRun, advance, run_after
from clew.domain.errors import ClewError
from clew.domain.events import HistoryRewound, MessageAppended, ThreadEnded, ThreadEvent, ThreadForked, ThreadStarted
from clew.domain.messages import FunctionCall, Message
from clew.domain.runs.errors import ApprovalNotPendingError, RunTakenOverError
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
    RunEvent,
    RunFailed,
    RunResumed,
    RunStarted,
    ServiceThreadBound,
    ToolFailed,
    ToolFinished,
    ToolStarted,
    placed,
)

AGENT = AgentIdentity(id="joker")
FINGERPRINT = Fingerprint(client="scripted")
STARTED = RunStarted(agent=AGENT, fingerprint=FINGERPRINT)
FAILURE = Failure(kind="ModelStreamError")
CALLED = ModelCalled(definitions=1, client="c", wire="openai-chat", model="m", digest="")
RUN = OpenRun("r", 2)
WAITING = RUN._replace(approvals=((7, CallLocation(5, 0)), (8, CallLocation(5, 1))))


def resumed(attempt: int) -> RunResumed:
    return RunResumed(attempt=attempt, agent=AGENT, fingerprint=FINGERPRINT)


# The order of the steps


@pytest.mark.parametrize(
    ("before", "data", "after"),
    [
        (None, STARTED, OpenRun("r", 9)),
        (None, CALLED, None),
        (RUN, resumed(2), RUN._replace(attempt=2)),
        (RUN, CALLED, RUN._replace(call=9)),
        (RUN._replace(call=5), ModelAnswered(call=5, message=6, ms=1), RUN),
        (RUN._replace(call=5), ModelFailed(call=5, error=FAILURE, ms=1), RUN),
        (RUN._replace(call=5), AnswerInterrupted(call=5, reason="fault"), RUN),
        (RUN, ToolStarted(message=5, index=1), RUN._replace(tools=(CallLocation(5, 1),))),
        (
            RUN._replace(tools=(CallLocation(5, 1),)),
            ToolStarted(message=5, index=1),
            RUN._replace(tools=(CallLocation(5, 1),)),
        ),
        (
            RUN._replace(tools=(CallLocation(5, 0), CallLocation(5, 1))),
            ToolFinished(message=5, index=0, result=8, ms=1),
            RUN._replace(tools=(CallLocation(5, 1),)),
        ),
        (RUN._replace(tools=(CallLocation(5, 1),)), ToolFailed(message=5, index=1, result=8, reason="raised"), RUN),
        (
            RUN._replace(tools=(CallLocation(5, 1),)),
            ApprovalRequested(message=5, index=1, reason="outcome-unknown"),
            RUN._replace(approvals=((9, CallLocation(5, 1)),)),
        ),
        (WAITING, ApprovalGiven(request=7, approved=True), RUN._replace(approvals=((8, CallLocation(5, 1)),))),
        (RUN, MessageAppended(message=Message.user("Hi")), RUN),
        (RUN, ServiceThreadBound(id="x", kind="response"), RUN),
        (WAITING, RunCompleted(), None),
        (WAITING, RunFailed(error=FAILURE), None),
        (WAITING, RunAbandoned(reason="asked"), None),
    ],
    ids=range(18),
)
def test_the_open_run_after_each_event(before: OpenRun | None, data: ThreadEvent, after: OpenRun | None) -> None:
    assert run_after(before, 9, "r", data) == after


@pytest.mark.parametrize(
    ("run", "step"),
    [
        (RUN, STARTED),
        (RUN._replace(attempt=3), resumed(3)),
        (RUN._replace(attempt=3), resumed(5)),
        (RUN._replace(call=4), CALLED),
        (WAITING, CALLED),
        (RUN, ModelAnswered(call=4, message=5, ms=1)),
        (RUN, ModelAnswered(call=0, message=5, ms=1)),
        (RUN._replace(call=4), ModelFailed(call=3, error=FAILURE, ms=1)),
        (RUN._replace(call=4), AnswerInterrupted(call=5, reason="fault")),
        (WAITING, ToolStarted(message=5, index=1)),
        (WAITING, ApprovalRequested(message=5, index=0, reason="approval")),
        (RUN, ToolFinished(message=5, index=0, result=6, ms=1)),
        (WAITING, ToolFinished(message=5, index=0, result=6, ms=1)),
        (RUN._replace(call=4), RunCompleted()),
        (RUN._replace(tools=(CallLocation(5, 0),)), RunCompleted()),
        (WAITING, RunCompleted()),
    ],
    ids=range(16),
)
def test_a_step_out_of_order_is_refused(run: OpenRun, step: RunEvent) -> None:
    with pytest.raises(RunTakenOverError, match="the run r is not"):
        check_step("t", run, "r", run.attempt, step)


@pytest.mark.parametrize(
    ("run", "run_id", "request_"), [(None, "r", 7), (RUN, "r", 7), (WAITING, "r", 6), (WAITING, "q", 7)]
)
def test_an_approval_that_is_not_pending_is_refused(run: OpenRun | None, run_id: str, request_: int) -> None:
    with pytest.raises(ApprovalNotPendingError, match=f"Version {request_} of thread 't'"):
        check_step("t", run, run_id, 1, ApprovalGiven(request=request_, approved=True))


def test_an_approval_is_accepted_from_any_attempt() -> None:
    check_step("t", WAITING, "r", 99, ApprovalGiven(request=8, approved=False))


@pytest.mark.parametrize(
    ("step", "after"),
    [
        (ModelAnswered(call=-4, message=-1, ms=1), ModelAnswered(call=6, message=9, ms=1)),
        (ModelAnswered(call=3, message=9, ms=1), ModelAnswered(call=3, message=9, ms=1)),
        (CALLED.model_copy(update={"definitions": -3}), CALLED.model_copy(update={"definitions": 7})),
        (AnswerInterrupted(call=-2, reason="fault"), AnswerInterrupted(call=8, reason="fault")),
        (
            ToolFinished(message=-3, index=0, result=-1, ms=1),
            ToolFinished(message=7, index=0, result=9, ms=1),
        ),
        (ApprovalGiven(request=-5, approved=True), ApprovalGiven(request=5, approved=True)),
        (RunCompleted(), RunCompleted()),
    ],
    ids=range(7),
)
def test_a_negative_reference_counts_back_from_its_event(step: RunEvent, after: RunEvent) -> None:
    assert placed(step, 10) == after


# Random steps, compared with a model that reads all earlier events

small = st.integers(0, 3)


class Steps(RuleBasedStateMachine):
    """Try steps of two runs and three attempts on one thread; the model keeps plain lists.

    Nothing else changes the thread meanwhile, so a reference that counts back is right.
    """

    def __init__(self) -> None:
        super().__init__()
        self.control = advance(Control(), event(ThreadStarted()))
        self.recorded: list[ThreadEvent] = [ThreadStarted()]
        self.started = 0  # the version at which the open run started; 0 without an open run
        self.id = ""

    # The model

    def events_of_run(self) -> list[tuple[int, ThreadEvent]]:
        """Return the events of the open run, with their versions."""
        if not self.started:
            return []
        return [(version, data) for version, data in enumerate(self.recorded, 1) if version >= self.started]

    def attempt(self) -> int:
        return 1 + sum(isinstance(data, RunResumed) for _, data in self.events_of_run())

    def unanswered(self) -> int:
        call = 0
        for version, data in self.events_of_run():
            if isinstance(data, ModelCalled):
                call = version
            elif isinstance(data, ModelAnswered | ModelFailed | AnswerInterrupted):
                call = 0
        return call

    def started_tools(self) -> set[tuple[int, int]]:
        unfinished: set[tuple[int, int]] = set()
        for _, data in self.events_of_run():
            if isinstance(data, ToolStarted):
                unfinished.add((data.message, data.index))
            elif isinstance(data, ToolFinished | ToolFailed | ApprovalRequested):
                unfinished.discard((data.message, data.index))
        return unfinished

    def pending(self) -> set[int]:
        asked = {version for version, data in self.events_of_run() if isinstance(data, ApprovalRequested)}
        return asked - {data.request for _, data in self.events_of_run() if isinstance(data, ApprovalGiven)}

    def location_of(self, request: int) -> tuple[int, int]:
        data = self.recorded[request - 1]
        assert isinstance(data, ApprovalRequested)
        return data.message, data.index

    def expected(self, run_id: str, attempt: int, step: RunEvent | Message) -> type[ClewError] | None:
        """Return the error that the step should raise, if any."""
        if isinstance(step, ApprovalGiven):
            return (
                None
                if run_id == self.id and self.started and step.request in self.pending()
                else ApprovalNotPendingError
            )
        if isinstance(step, RunStarted):
            return RunTakenOverError if self.started else None
        same_run = self.started and run_id == self.id
        if isinstance(step, RunResumed):
            follows = same_run and step.attempt == self.attempt() + 1
        else:
            follows = same_run and attempt == self.attempt() and self.follows(step)
        return None if follows else RunTakenOverError

    def follows(self, step: RunEvent | Message) -> bool:
        match step:
            case ModelCalled():
                return not self.unanswered() and not self.pending()
            case ModelAnswered() | ModelFailed() | AnswerInterrupted():
                return step.call == self.unanswered() != 0
            case ToolFinished():
                return (step.message, step.index) in self.started_tools()
            case ToolStarted() | ApprovalRequested():
                return all((step.message, step.index) != self.location_of(request) for request in self.pending())
            case RunCompleted():
                return not (self.unanswered() or self.pending() or self.started_tools())
            case _:
                return True

    # The tried steps

    def attempt_to(self, run_id: str, attempt: int, *steps: RunEvent | Message) -> None:
        """Record all of the steps, or none."""
        before, started, id_ = list(self.recorded), self.started, self.id
        error: type[ClewError] | None = None
        for step in steps:
            version = len(self.recorded) + 1
            at = step if isinstance(step, Message) else placed(step, version)
            error = self.expected(run_id, attempt, at)
            if error is not None:
                break
            self.recorded.append(MessageAppended(message=at) if isinstance(at, Message) else at)
            if isinstance(at, RunStarted):
                self.started, self.id = version, run_id
            elif isinstance(at, RunCompleted | RunFailed | RunAbandoned):
                self.started = 0
        intent = Advance(run_id, attempt, steps)
        if error is not None:
            self.recorded, self.started, self.id = before, started, id_
            with pytest.raises(error):
                decide("t", self.control, intent)
            return
        decided = decide("t", self.control, intent)
        assert [each.data for each in decided] == self.recorded[len(before) :]
        assert all(each.run_id == run_id for each in decided)
        for each in decided:
            self.apply(each.data, each.messages, run_id)

    def apply(self, data: ThreadEvent, messages: int, run_id: str | None = None) -> None:
        version = self.control.version + 1
        self.control = advance(self.control, event(data, version, messages=messages, run_id=run_id))

    runs = st.sampled_from("ab")
    attempts = st.integers(1, 3)
    other_attempt = st.tuples(runs, attempts)

    def run_and_attempt(self, other: tuple[str, int] | None) -> tuple[str, int]:
        """Return the run and attempt of a step: mostly those of the open run."""
        return other or (self.id or "a", self.attempt())

    usually_open = st.none() | st.none() | st.none() | other_attempt

    @rule(other=usually_open)
    def start(self, other: Any) -> None:
        self.attempt_to(*(other or ("ab"[len(self.recorded) % 2], 1)), STARTED)

    @rule(other=usually_open, more=st.integers(0, 2))
    def resume(self, other: Any, more: int) -> None:
        run_id, attempt = self.run_and_attempt(other)
        self.attempt_to(run_id, attempt + 1, resumed(attempt + more))

    @rule(other=usually_open)
    def call(self, other: Any) -> None:
        self.attempt_to(*self.run_and_attempt(other), CALLED)

    @rule(other=usually_open, back=st.integers(1, 4), calls=st.integers(0, 3))
    def answer(self, other: Any, back: int, calls: int) -> None:
        contents = tuple(FunctionCall(call_id="1", name="f", arguments="{}") for _ in range(calls))
        call = self.unanswered() if back < 4 else -back
        steps = (Message(role="assistant", contents=contents), ModelAnswered(call=call, message=-1, ms=1))
        self.attempt_to(*self.run_and_attempt(other), *steps)

    @rule(other=usually_open, interrupted=st.booleans(), back=st.integers(0, 2))
    def fault(self, other: Any, interrupted: bool, back: int) -> None:  # noqa: FBT001 - drawn
        call = max(self.unanswered() - back, 0)
        step = (
            AnswerInterrupted(call=call, reason="fault") if interrupted else ModelFailed(call=call, error=FAILURE, ms=1)
        )
        self.attempt_to(*self.run_and_attempt(other), step)

    @rule(other=usually_open, message=small, index=small)
    def start_tool(self, other: Any, message: int, index: int) -> None:
        self.attempt_to(*self.run_and_attempt(other), ToolStarted(message=message, index=index))

    @rule(other=usually_open, message=small, index=small)
    def finish_tool(self, other: Any, message: int, index: int) -> None:
        step = ToolFinished(message=message, index=index, result=-1, ms=1)
        self.attempt_to(*self.run_and_attempt(other), Message.tool("1", "x"), step)

    @rule(other=usually_open, message=small, index=small)
    def fail_tool(self, other: Any, message: int, index: int) -> None:
        step = ToolFailed(message=message, index=index, result=-1, reason="raised")
        self.attempt_to(*self.run_and_attempt(other), Message.tool("1", "x"), step)

    @rule(other=usually_open, message=small, index=small)
    def request_approval(self, other: Any, message: int, index: int) -> None:
        self.attempt_to(
            *self.run_and_attempt(other), ApprovalRequested(message=message, index=index, reason="approval")
        )

    @rule(other=usually_open, number=small, approved=st.booleans())
    def decide_approval(self, other: Any, number: int, approved: bool) -> None:  # noqa: FBT001 - drawn
        asked = [version for version, data in enumerate(self.recorded, 1) if isinstance(data, ApprovalRequested)]
        request = asked[-1 - number % len(asked)] if asked else number
        self.attempt_to(*self.run_and_attempt(other), ApprovalGiven(request=request, approved=approved))

    @rule(other=usually_open)
    def end(self, other: Any) -> None:
        self.attempt_to(*self.run_and_attempt(other), RunCompleted())

    @rule(other=usually_open)
    def abandon(self, other: Any) -> None:
        self.attempt_to(*self.run_and_attempt(other), RunAbandoned(reason="asked"))

    @precondition(lambda self: len(self.recorded) > 3)
    @rule(cut=st.sampled_from(["fork", "rewind"]), to=small)
    def cut(self, cut: str, to: int) -> None:
        """Fork or rewind: a run that started before ends."""
        forked = ThreadForked(parent_id="p", parent_version=len(self.recorded), parent_hash="")
        data = forked if cut == "fork" else HistoryRewound(to=to + 1)
        self.recorded.append(data)
        self.started = 0
        self.apply(data, self.control.messages)

    @invariant()
    def the_control_agrees_with_the_model(self) -> None:
        run = self.control.run
        if not self.started:
            assert run is None
            return
        assert run is not None
        assert (run.id, run.began, run.attempt, run.call) == (self.id, self.started, self.attempt(), self.unanswered())
        assert sorted(run.tools) == sorted(self.started_tools())
        assert len(set(run.tools)) == len(run.tools)
        assert {version for version, _ in run.approvals} == self.pending()

    @invariant()
    def no_approval_and_no_model_call_counts_twice(self) -> None:
        approved_requests = [data.request for data in self.recorded if isinstance(data, ApprovalGiven)]
        assert len(approved_requests) == len(set(approved_requests))
        answered = [
            data.call for data in self.recorded if isinstance(data, ModelAnswered | ModelFailed | AnswerInterrupted)
        ]
        assert len(answered) == len(set(answered))

    @invariant()
    def no_tool_finishes_more_often_than_it_starts(self) -> None:
        starts = sum(isinstance(data, ToolStarted) for data in self.recorded)
        assert sum(isinstance(data, ToolFinished) for data in self.recorded) <= starts


Steps.TestCase.settings = settings(max_examples=max(30, round(100 * SCALE)), stateful_step_count=40, deadline=None)
TestSteps = Steps.TestCase


def test_an_ended_thread_has_no_open_run() -> None:
    control = advance(advance(Control(), event(ThreadStarted())), event(STARTED, 2, run_id="r"))
    assert control.run == OpenRun("r", 2)
    assert advance(control, event(ThreadEnded(), 3)).run is None
