"""The run that a thread is in the middle of, and what may happen in it next."""

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
MADE_OF = Fingerprint(client="scripted")
BEGAN = RunStarted(agent=AGENT, fingerprint=MADE_OF)
BROKEN = Failure(kind="ModelStreamError")
CALLED = ModelCalled(definitions=1, client="c", wire="openai-chat", model="m", digest="")
RUN = OpenRun("r", 2)
ASKED = RUN._replace(asked=((7, CallLocation(5, 0)), (8, CallLocation(5, 1))))


def again(attempt: int) -> RunResumed:
    return RunResumed(attempt=attempt, agent=AGENT, fingerprint=MADE_OF)


# What comes after what


@pytest.mark.parametrize(
    ("before", "data", "after"),
    [
        (None, BEGAN, OpenRun("r", 9)),
        (None, CALLED, None),
        (RUN, again(2), RUN._replace(attempt=2)),
        (RUN, CALLED, RUN._replace(call=9)),
        (RUN._replace(call=5), ModelAnswered(call=5, message=6, ms=1), RUN),
        (RUN._replace(call=5), ModelFailed(call=5, error=BROKEN, ms=1), RUN),
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
            RUN._replace(asked=((9, CallLocation(5, 1)),)),
        ),
        (ASKED, ApprovalGiven(request=7, approved=True), RUN._replace(asked=((8, CallLocation(5, 1)),))),
        (RUN, MessageAppended(message=Message.user("Hi")), RUN),
        (RUN, ServiceThreadBound(id="x", kind="response"), RUN),
        (ASKED, RunCompleted(), None),
        (ASKED, RunFailed(error=BROKEN), None),
        (ASKED, RunAbandoned(reason="asked"), None),
    ],
    ids=range(18),
)
def test_the_open_run_after_each_event(before: OpenRun | None, data: ThreadEvent, after: OpenRun | None) -> None:
    assert run_after(before, 9, "r", data) == after


@pytest.mark.parametrize(
    ("run", "step"),
    [
        (RUN, BEGAN),
        (RUN._replace(attempt=3), again(3)),
        (RUN._replace(attempt=3), again(5)),
        (RUN._replace(call=4), CALLED),
        (ASKED, CALLED),
        (RUN, ModelAnswered(call=4, message=5, ms=1)),
        (RUN, ModelAnswered(call=0, message=5, ms=1)),
        (RUN._replace(call=4), ModelFailed(call=3, error=BROKEN, ms=1)),
        (RUN._replace(call=4), AnswerInterrupted(call=5, reason="fault")),
        (ASKED, ToolStarted(message=5, index=1)),
        (ASKED, ApprovalRequested(message=5, index=0, reason="approval")),
        (RUN, ToolFinished(message=5, index=0, result=6, ms=1)),
        (ASKED, ToolFinished(message=5, index=0, result=6, ms=1)),
        (RUN._replace(call=4), RunCompleted()),
        (RUN._replace(tools=(CallLocation(5, 0),)), RunCompleted()),
        (ASKED, RunCompleted()),
    ],
    ids=range(16),
)
def test_what_does_not_come_next_is_refused(run: OpenRun, step: RunEvent) -> None:
    with pytest.raises(RunTakenOverError, match="the run r is not"):
        check_step("t", run, "r", run.attempt, step)


@pytest.mark.parametrize(
    ("run", "run_id", "request_"), [(None, "r", 7), (RUN, "r", 7), (ASKED, "r", 6), (ASKED, "q", 7)]
)
def test_an_approval_that_nobody_waits_for_is_refused(run: OpenRun | None, run_id: str, request_: int) -> None:
    with pytest.raises(ApprovalNotPendingError, match=f"Version {request_} of thread 't'"):
        check_step("t", run, run_id, 1, ApprovalGiven(request=request_, approved=True))


def test_an_approval_is_given_by_anybody_whatever_the_attempt() -> None:
    check_step("t", ASKED, "r", 99, ApprovalGiven(request=8, approved=False))


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
def test_a_reference_below_0_counts_back_from_the_event_that_holds_it(step: RunEvent, after: RunEvent) -> None:
    assert placed(step, 10) == after


# Any steps at all, against a model that looks back over all that happened

small = st.integers(0, 3)


class Steps(RuleBasedStateMachine):
    """Steps of two runs and three attempts are tried on one thread; the model keeps plain lists.

    Nobody else changes the thread meanwhile, so that a reference that counts back is right.
    """

    def __init__(self) -> None:
        super().__init__()
        self.control = advance(Control(), event(ThreadStarted()))
        self.happened: list[ThreadEvent] = [ThreadStarted()]
        self.first = 0  # where the open run began in what happened; 0 when none is open
        self.id = ""

    # The model

    def own(self) -> list[tuple[int, ThreadEvent]]:
        """The events of the open run, with their versions."""
        if not self.first:
            return []
        return [(version, data) for version, data in enumerate(self.happened, 1) if version >= self.first]

    def attempt(self) -> int:
        return 1 + sum(isinstance(data, RunResumed) for _, data in self.own())

    def unanswered(self) -> int:
        found = 0
        for version, data in self.own():
            if isinstance(data, ModelCalled):
                found = version
            elif isinstance(data, ModelAnswered | ModelFailed | AnswerInterrupted):
                found = 0
        return found

    def begun(self) -> set[tuple[int, int]]:
        found: set[tuple[int, int]] = set()
        for _, data in self.own():
            if isinstance(data, ToolStarted):
                found.add((data.message, data.index))
            elif isinstance(data, ToolFinished | ToolFailed | ApprovalRequested):
                found.discard((data.message, data.index))
        return found

    def pending(self) -> set[int]:
        asked = {version for version, data in self.own() if isinstance(data, ApprovalRequested)}
        return asked - {data.request for _, data in self.own() if isinstance(data, ApprovalGiven)}

    def asked_at(self, request: int) -> tuple[int, int]:
        data = self.happened[request - 1]
        assert isinstance(data, ApprovalRequested)
        return data.message, data.index

    def expected(self, run_id: str, attempt: int, step: RunEvent | Message) -> type[ClewError] | None:
        """The error that the step leads to, if any."""
        if isinstance(step, ApprovalGiven):
            return (
                None if run_id == self.id and self.first and step.request in self.pending() else ApprovalNotPendingError
            )
        if isinstance(step, RunStarted):
            return RunTakenOverError if self.first else None
        theirs = self.first and run_id == self.id
        if isinstance(step, RunResumed):
            fits = theirs and step.attempt == self.attempt() + 1
        else:
            fits = theirs and attempt == self.attempt() and self.fits(step)
        return None if fits else RunTakenOverError

    def fits(self, step: RunEvent | Message) -> bool:
        match step:
            case ModelCalled():
                return not self.unanswered() and not self.pending()
            case ModelAnswered() | ModelFailed() | AnswerInterrupted():
                return step.call == self.unanswered() != 0
            case ToolFinished():
                return (step.message, step.index) in self.begun()
            case ToolStarted() | ApprovalRequested():
                return all((step.message, step.index) != self.asked_at(request) for request in self.pending())
            case RunCompleted():
                return not (self.unanswered() or self.pending() or self.begun())
            case _:
                return True

    # What is tried

    def attempt_to(self, run_id: str, attempt: int, *steps: RunEvent | Message) -> None:
        """All of the steps are recorded, or none."""
        before, first, id_ = list(self.happened), self.first, self.id
        error: type[ClewError] | None = None
        for step in steps:
            version = len(self.happened) + 1
            at = step if isinstance(step, Message) else placed(step, version)
            error = self.expected(run_id, attempt, at)
            if error is not None:
                break
            self.happened.append(MessageAppended(message=at) if isinstance(at, Message) else at)
            if isinstance(at, RunStarted):
                self.first, self.id = version, run_id
            elif isinstance(at, RunCompleted | RunFailed | RunAbandoned):
                self.first = 0
        intent = Advance(run_id, attempt, steps)
        if error is not None:
            self.happened, self.first, self.id = before, first, id_
            with pytest.raises(error):
                decide("t", self.control, intent)
            return
        decided = decide("t", self.control, intent)
        assert [each.data for each in decided] == self.happened[len(before) :]
        assert all(each.run_id == run_id for each in decided)
        for each in decided:
            self.take(each.data, each.messages, run_id)

    def take(self, data: ThreadEvent, messages: int, run_id: str | None = None) -> None:
        version = self.control.version + 1
        self.control = advance(self.control, event(data, version, messages=messages, run_id=run_id))

    runs = st.sampled_from("ab")
    attempts = st.integers(1, 3)
    theirs = st.tuples(runs, attempts)

    def who(self, other: tuple[str, int] | None) -> tuple[str, int]:
        """Whose step it is: mostly of who carries out the run that is open."""
        return other or (self.id or "a", self.attempt())

    mostly = st.none() | st.none() | st.none() | theirs

    @rule(other=mostly)
    def start(self, other: Any) -> None:
        self.attempt_to(*(other or ("ab"[len(self.happened) % 2], 1)), BEGAN)

    @rule(other=mostly, more=st.integers(0, 2))
    def resume(self, other: Any, more: int) -> None:
        run_id, attempt = self.who(other)
        self.attempt_to(run_id, attempt + 1, again(attempt + more))

    @rule(other=mostly)
    def call(self, other: Any) -> None:
        self.attempt_to(*self.who(other), CALLED)

    @rule(other=mostly, back=st.integers(1, 4), calls=st.integers(0, 3))
    def answer(self, other: Any, back: int, calls: int) -> None:
        contents = tuple(FunctionCall(call_id="1", name="f", arguments="{}") for _ in range(calls))
        call = self.unanswered() if back < 4 else -back
        steps = (Message(role="assistant", contents=contents), ModelAnswered(call=call, message=-1, ms=1))
        self.attempt_to(*self.who(other), *steps)

    @rule(other=mostly, interrupted=st.booleans(), back=st.integers(0, 2))
    def fault(self, other: Any, interrupted: bool, back: int) -> None:  # noqa: FBT001 - drawn
        call = max(self.unanswered() - back, 0)
        step = (
            AnswerInterrupted(call=call, reason="fault") if interrupted else ModelFailed(call=call, error=BROKEN, ms=1)
        )
        self.attempt_to(*self.who(other), step)

    @rule(other=mostly, message=small, index=small)
    def start_tool(self, other: Any, message: int, index: int) -> None:
        self.attempt_to(*self.who(other), ToolStarted(message=message, index=index))

    @rule(other=mostly, message=small, index=small)
    def finish_tool(self, other: Any, message: int, index: int) -> None:
        step = ToolFinished(message=message, index=index, result=-1, ms=1)
        self.attempt_to(*self.who(other), Message.tool("1", "x"), step)

    @rule(other=mostly, message=small, index=small)
    def fail_tool(self, other: Any, message: int, index: int) -> None:
        step = ToolFailed(message=message, index=index, result=-1, reason="raised")
        self.attempt_to(*self.who(other), Message.tool("1", "x"), step)

    @rule(other=mostly, message=small, index=small)
    def ask(self, other: Any, message: int, index: int) -> None:
        self.attempt_to(*self.who(other), ApprovalRequested(message=message, index=index, reason="approval"))

    @rule(other=mostly, which=small, approved=st.booleans())
    def give(self, other: Any, which: int, approved: bool) -> None:  # noqa: FBT001 - drawn
        asked = [version for version, data in enumerate(self.happened, 1) if isinstance(data, ApprovalRequested)]
        request = asked[-1 - which % len(asked)] if asked else which
        self.attempt_to(*self.who(other), ApprovalGiven(request=request, approved=approved))

    @rule(other=mostly)
    def end(self, other: Any) -> None:
        self.attempt_to(*self.who(other), RunCompleted())

    @rule(other=mostly)
    def abandon(self, other: Any) -> None:
        self.attempt_to(*self.who(other), RunAbandoned(reason="asked"))

    @precondition(lambda self: len(self.happened) > 3)
    @rule(cut=st.sampled_from(["fork", "rewind"]), to=small)
    def cut(self, cut: str, to: int) -> None:
        """Somebody forks or rewinds: what began before does not go on."""
        forked = ThreadForked(parent_id="p", parent_version=len(self.happened), parent_hash="")
        data = forked if cut == "fork" else HistoryRewound(to=to + 1)
        self.happened.append(data)
        self.first = 0
        self.take(data, self.control.messages)

    @invariant()
    def the_control_has_what_the_model_has(self) -> None:
        run = self.control.run
        if not self.first:
            assert run is None
            return
        assert run is not None
        assert (run.id, run.began, run.attempt, run.call) == (self.id, self.first, self.attempt(), self.unanswered())
        assert sorted(run.tools) == sorted(self.begun())
        assert len(set(run.tools)) == len(run.tools)
        assert {version for version, _ in run.asked} == self.pending()

    @invariant()
    def no_approval_and_no_model_call_counts_twice(self) -> None:
        given = [data.request for data in self.happened if isinstance(data, ApprovalGiven)]
        assert len(given) == len(set(given))
        answered = [
            data.call for data in self.happened if isinstance(data, ModelAnswered | ModelFailed | AnswerInterrupted)
        ]
        assert len(answered) == len(set(answered))

    @invariant()
    def a_tool_finishes_once_for_each_time_that_it_was_begun(self) -> None:
        begun = sum(isinstance(data, ToolStarted) for data in self.happened)
        assert sum(isinstance(data, ToolFinished) for data in self.happened) <= begun


Steps.TestCase.settings = settings(max_examples=max(30, round(100 * SCALE)), stateful_step_count=40, deadline=None)
TestSteps = Steps.TestCase


def test_a_thread_that_ended_has_no_open_run() -> None:
    begun = advance(advance(Control(), event(ThreadStarted())), event(BEGAN, 2, run_id="r"))
    assert begun.run == OpenRun("r", 2)
    assert advance(begun, event(ThreadEnded(), 3)).run is None
