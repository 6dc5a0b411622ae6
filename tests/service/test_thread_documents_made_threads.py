"""Threads that hypothesis made, carried as documents into stores that know something of them already."""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test
from tests.service.made_runs import cut_short, failing, record, waiting, with_a_tool
from tests.service.test_state_machine import ConversationsAgreeWithTheModel

from clew.conversations import Conversations
from clew.domain.context.events import ContextStateRecorded
from clew.domain.decider import Record
from clew.domain.errors import ClewError
from clew.domain.events import Event
from clew.domain.messages import Message
from clew.service.core import CommitOptions, commit
from clew.service.operations import run
from clew.sync.threads import Thread

STORES = 60


def events_of(store: Conversations, thread_id: str) -> list[Event]:
    return [event._replace(position=None) for event in store.thread(thread_id).events()]


class CarriedThreadsAgreeWithTheirSources(ConversationsAgreeWithTheModel):
    """Each of the stores has another of the other kind, into which its threads are carried one by one."""

    def __init__(self) -> None:
        super().__init__()
        url = f"sqlite:///{self.folder.name}/carried.db?synchronous=OFF"
        self.others = [Conversations.open(each, now=lambda: self.now) for each in (url, "memory:")]

    @rule(which=st.sampled_from([0, 1]), thread=st.integers(0, 9_999))
    def carry(self, which: int, thread: int) -> None:
        """Bring a thread up to date elsewhere; again there is nothing to be done."""
        id_ = self.pick(thread)
        if self.model.status(id_) == "deleted":
            return
        self.check_carried(self.stores[which], self.others[which], id_)

    def check_carried(self, store: Conversations, other: Conversations, id_: str) -> None:
        document: Any = json.loads(json.dumps(store.thread(id_).serialize()))
        restored = other.restore_thread(document)
        assert events_of(other, id_) == events_of(store, id_)
        assert restored.history() == store.thread(id_).history()
        assert restored.state() == store.thread(id_).state()
        assert restored.verify().first_bad is None
        last = other._core.log.last_position()
        other.restore_thread(document)
        assert other._core.log.last_position() == last

    def teardown(self) -> None:
        try:
            for store, other in zip(self.stores, self.others, strict=True):
                for id_ in self.model.lines:
                    if self.model.status(id_) != "deleted":
                        self.check_carried(store, other, id_)
                assert other.verify().first_bad is None
        finally:
            for other in self.others:
                other.close()
            super().teardown()


moves = st.lists(
    st.tuples(
        st.sampled_from(
            ["tool", "wait", "cut", "fail", "state", "say", "fork", "rewind", "redact", "suspend", "resume"]
        ),
        st.integers(0, 9_999),
    ),
    max_size=12,
)


def lived(store: Conversations, done: list[tuple[str, int]]) -> str:
    """The id of a thread on which runs, states and all else came in this order, as far as it was allowed."""
    thread: Thread = store.start_thread(thread_id="0", metadata={"made": True})
    for number, (move, which) in enumerate(done, start=1):
        version = which % thread.version + 1
        with contextlib.suppress(ClewError):
            match move:
                case "tool" | "wait" | "cut" | "fail":
                    made = {"tool": with_a_tool, "wait": waiting, "cut": cut_short, "fail": failing}[move]
                    record(store, thread.id, f"run-{number}", *made(f"W-{number}"))
                case "state":
                    kept = ContextStateRecorded(provider=f"p{which % 2}", state={"n": which}, seen=version)
                    run(commit(store._core, thread.id, Record((kept,)), CommitOptions()))
                case "say":
                    thread.append(Message.user(str(which)))
                case "fork":
                    thread = store.thread(thread.id).fork(at=version, thread_id=str(number))
                case "rewind":
                    thread.rewind(version)
                case "redact":
                    said = thread.history().messages
                    thread.redact(said[which % len(said)] if said else 1)
                case "suspend":
                    thread.suspend()
                case _:
                    thread.resume()
    return thread.id


@given(moves)
def test_runs_and_states_are_the_same_elsewhere(done: list[tuple[str, int]]) -> None:
    with Conversations.open("memory:") as store, Conversations.open("memory:") as other:
        id_ = lived(store, done)
        document: Any = json.loads(json.dumps(store.thread(id_).serialize()))
        restored = other.restore_thread(document)
        assert events_of(other, id_) == events_of(store, id_)
        assert restored.state() == store.thread(id_).state()
        assert restored.history().context == store.thread(id_).history().context
        assert document["states"] == restored.state().states
        assert other.verify().first_bad is None
        new = other.restore_thread(document, as_new=True)
        said = [each.message for each in restored.history() if each.message is not None]
        assert [each.message for each in new.history()] == said
        assert new.state().states == restored.state().states
        restored.fork(title="On").append(Message.user("On we go"))
        assert other.verify().first_bad is None


def test_threads_that_are_carried_elsewhere_are_equal_to_their_sources(scale: float) -> None:
    run_state_machine_as_test(
        CarriedThreadsAgreeWithTheirSources,
        settings=settings(
            max_examples=math.ceil(STORES * scale),
            stateful_step_count=40,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
