"""The part of a thread that a service has, after any cuts, forks and rewinds: nothing is lost or sent twice."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.domain.strategies import event

from clew.domain.call_pairing import model_view
from clew.domain.decider_state import Control, advance
from clew.domain.events import Event, HistoryRewound, MessageAppended, ThreadEvent, ThreadForked, ThreadStarted
from clew.domain.history import HistoryBuilder, HistoryMessage
from clew.domain.messages import Message
from clew.domain.models.client import ServiceKind, ServiceReference
from clew.domain.runs.events import (
    AnswerInterrupted,
    Failure,
    ModelAnswered,
    ModelCalled,
    ModelFailed,
    ServiceCall,
    ServiceThreadBound,
)
from clew.domain.runs.remote_threads import ServiceState, service_state
from clew.domain.runs.request_construction import unsent

STREAM = "default/thread/t"
BROKEN = Failure(kind="ModelUnavailableError")


def reference(id_: str, kind: ServiceKind = "response") -> ServiceReference:
    return ServiceReference(kind=kind, id=id_)


def called(service: ServiceCall) -> ModelCalled:
    return ModelCalled(definitions=1, client="c", wire="openai-responses", model="m", digest="", service=service)


@dataclass
class Thread:
    """A simulated remote thread; ``held`` is the part that the service has.

    ``held`` maps each id of the service to the versions of the messages that it has under that id.
    """

    kind: ServiceKind
    stream: str
    names: list[int]
    held: dict[str, list[int]]
    inherited: list[Event] = field(default_factory=list)
    after_cuts: list[Event] = field(default_factory=list)
    own: list[Event] = field(default_factory=list)

    @property
    def events(self) -> list[Event]:
        return [*self.inherited, *self.own]

    @property
    def side(self) -> ServiceState:
        return service_state(self.stream, self.events, self.after_cuts)

    @property
    def control(self) -> Control:
        control = Control()
        for each in self.events:
            control = advance(control, each)
        return control

    @property
    def history(self) -> list[HistoryMessage]:
        builder = HistoryBuilder("t")
        builder.add(self.events)
        return list(builder.history(len(self.events)).messages)

    def add(self, data: ThreadEvent, *, run: bool = True) -> int:
        added = event(data, len(self.events) + 1)._replace(stream=self.stream, run_id="r" if run else None)
        self.own.append(added)
        return added.version

    def append_input(self) -> None:
        self.add(MessageAppended(message=Message.user("Go on.")))

    def ask(self, end: str) -> None:
        """Call the model; the call ends in an answer, a fault, or a broken stream."""
        side = self.side
        if side.diverged:
            return
        call = side.call
        if self.kind == "conversation" and call.reference is None:
            call = ServiceCall(reference=reference(self._name(), "conversation"))
            assert call.reference is not None
            self.held[call.reference.id] = []
            self.add(ServiceThreadBound(id=call.reference.id, kind="conversation"))
            assert self.side.call == call
        view = model_view(self.history)
        sent = [version for version in view.versions if version > call.sent and version != call.answer]
        assert len(unsent(view, call)) == len(sent)
        before = [] if call.reference is None else self.held[call.reference.id]
        path = [each.version for each in self.history]
        assert not set(before) & set(sent), "messages of the service are not sent again"
        assert sorted([*before, *sent]) == path, "all other messages are sent"

        at = self.add(called(call))
        if end == "fault":
            self.add(ModelFailed(call=at, error=BROKEN, ms=1))
            return
        name = self._name()
        if self.kind == "response":
            self.add(ServiceThreadBound(id=name, kind="response"))
        if end == "cut":
            part = self.add(MessageAppended(message=Message.assistant("Half")))
            self.add(AnswerInterrupted(call=at, message=part, reason="fault"))
            return
        answer = self.add(MessageAppended(message=Message.assistant("Whole.")))
        self.add(ModelAnswered(call=at, message=answer, response_id=name, ms=1))
        into = name if call.reference is None or self.kind == "response" else call.reference.id
        self.held[into] = [*before, *sent, answer]

    def rewind(self, to: int) -> None:
        back = event(HistoryRewound(to=to), len(self.events) + 1)._replace(stream=self.stream)
        bound = service_state(self.stream, [*self.events, back], self.after_cuts).bound
        self.add(HistoryRewound(to=to, service_thread_id=bound[-1].reference.id if bound else None), run=False)

    def fork(self, cut: int) -> Thread:
        """Fork the thread; a fork at an inherited version belongs to the ancestor and has only the earlier cuts."""
        events = self.events
        boundary = events[cut - 1]
        after = [each for each in self.after_cuts if each.version <= cut]
        if cut < len(events) and events[cut].stream == boundary.stream:
            after.append(events[cut])
        elif cut < len(events):
            after = [each for each in self.after_cuts if each.version <= cut + 1]
        branch = Thread(self.kind, f"{self.stream}.{len(self.names)}", self.names, self.held, events[:cut], after)
        parent = ThreadForked(parent_id="t", parent_version=cut, parent_hash="")
        branch.add(parent, run=False)
        return branch

    def _name(self) -> str:
        self.names.append(0)
        return f"name-{len(self.names)}"


def started_thread(kind: ServiceKind = "response") -> Thread:
    thread = Thread(kind, STREAM, [], {})
    thread.add(ThreadStarted(kind="remote"), run=False)
    return thread


operations = st.lists(
    st.tuples(
        st.sampled_from(["say", "ask", "ask", "ask", "fault", "cut", "rewind", "fork"]),
        st.floats(min_value=0, max_value=1),
    ),
    max_size=25,
)


@pytest.mark.parametrize("kind", ["response", "conversation"])
@given(done=operations)
def test_no_message_is_lost_or_sent_twice(kind: ServiceKind, done: list[tuple[str, float]]) -> None:
    threads = [started_thread(kind)]
    for operation, where in done:
        thread = threads[-1]
        version = 1 + round(where * (len(thread.events) - 1))
        if operation == "say":
            thread.append_input()
        elif operation == "rewind":
            thread.rewind(version)
        elif operation == "fork":
            threads.append(thread.fork(version))
        else:
            if operation == "ask":
                thread.append_input()
            thread.ask(operation)
        name = threads[-1].side.bound[-1].reference.id if threads[-1].side.bound else None
        assert threads[-1].control.service_thread_id == name
    for thread in threads:
        thread.append_input()
        thread.ask("ask")


def test_no_id_is_bound_before_the_service_assigns_one() -> None:
    thread = started_thread()
    thread.append_input()
    assert thread.side == ServiceState()
    thread.ask("fault")
    assert thread.side == ServiceState()


def test_continues_from_the_last_complete_response_after_a_broken_stream() -> None:
    thread = started_thread()
    thread.append_input()
    thread.ask("ask")
    complete = thread.side.call
    thread.append_input()
    thread.ask("cut")
    side = thread.side
    assert [each.reference.id for each in side.bound] == ["name-1", "name-2"]
    assert side.call == complete
    assert side.call.reference == reference("name-1")


def test_continues_from_the_given_response() -> None:
    thread = started_thread()
    bound = thread.add(ServiceThreadBound(id="resp_given", kind="response"), run=False)
    thread.held["resp_given"] = []
    assert thread.side.call == ServiceCall(reference=reference("resp_given"), sent=bound)
    thread.append_input()
    thread.ask("cut")
    assert thread.side.call == ServiceCall(reference=reference("resp_given"), sent=bound)
    thread.ask("ask")
    assert thread.side.call.reference == reference("name-2")


@pytest.mark.parametrize("cut", ["fork", "rewind"])
def test_an_answer_is_complete_from_its_message_on(cut: str) -> None:
    thread = started_thread()
    thread.append_input()
    thread.ask("ask")
    whole = thread.side.call
    answer_version = thread.history[-1].version
    thread.append_input()
    thread.ask("ask")
    if cut == "fork":
        thread = thread.fork(answer_version).fork(answer_version + 1)
    else:
        thread.rewind(answer_version)
    assert thread.side.call == whole


def test_a_partial_answer_is_not_complete_after_a_cut() -> None:
    thread = started_thread()
    thread.append_input()
    thread.ask("cut")
    half = thread.history[-1].version
    assert thread.fork(half).side.call == ServiceCall()
    thread.rewind(half)
    assert thread.side.call == ServiceCall()


def test_a_service_conversation_is_abandoned_instead_of_rewound() -> None:
    thread = started_thread("conversation")
    thread.append_input()
    before = len(thread.events)
    thread.ask("ask")
    assert not thread.side.diverged
    newest = len(thread.events)
    assert thread.fork(newest).side.diverged, "the parent continues to write into it"
    assert thread.fork(before).side == ServiceState()
    bound = thread.side.bound[0].version
    thread.rewind(bound)
    assert thread.side.diverged, "the service has messages that are not on the path"
    thread.rewind(newest)
    assert not thread.side.diverged, "the rewind is undone"
    thread.rewind(next(each.version for each in thread.events if isinstance(each.data, ModelCalled)))
    assert thread.side.diverged, "the service has the answer"
    thread.rewind(before)
    assert thread.side == ServiceState()


def test_a_failed_call_does_not_abandon_a_service_conversation() -> None:
    thread = started_thread("conversation")
    thread.append_input()
    thread.ask("ask")
    newest = len(thread.events)
    thread.append_input()
    thread.ask("fault")
    thread.rewind(newest)
    assert not thread.side.diverged
    thread.ask("cut")
    thread.rewind(newest)
    assert thread.side.diverged, "the service may have part of the answer"
    given_thread = started_thread("conversation")
    given_thread.add(ServiceThreadBound(id="conv_1", kind="conversation"), run=False)
    assert not given_thread.side.diverged
    assert given_thread.fork(2).side.diverged


def test_a_conversation_named_by_the_service_has_its_answer() -> None:
    thread = started_thread("conversation")
    thread.append_input()
    at = thread.add(called(ServiceCall()))
    thread.add(ServiceThreadBound(id="conv_1", kind="conversation"))
    answer = thread.add(MessageAppended(message=Message.assistant("Whole.")))
    thread.add(ModelAnswered(call=at, message=answer, response_id="resp_1", ms=1))
    call = thread.side.call
    assert (call.reference, call.sent, call.answer) == (reference("conv_1", "conversation"), at, answer)
