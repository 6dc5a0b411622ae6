"""Histories, events, states and replays at a version, a checkpoint, a time or a message; live subscriptions."""

from __future__ import annotations

import gc
import threading
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from tests.service.settable_clock import SettableClock

from clew.conversations import Conversations
from clew.domain.errors import (
    ClosedError,
    InvalidTimeError,
    UnknownCheckpointError,
    UnknownVersionError,
)
from clew.domain.events import Event, to_time
from clew.domain.messages import FunctionCall, Message
from clew.sync.subscription import Subscription
from clew.sync.threads import Thread


def texts(thread: Thread, **at: Any) -> list[str]:
    return [message.text for message in thread.history(**at)]


def user(*words: str) -> list[Message]:
    return [Message.user(word) for word in words]


# Times


def test_reads_a_thread_at_a_time(conversations: Conversations, clock: SettableClock) -> None:
    began = clock.move(0)
    thread = conversations.start_thread(messages=user("one"))
    later = clock.move(10)
    thread.append(user("two"))
    clock.move(10)
    thread.rewind(to=2)
    assert texts(thread, at=began) == ["one"]
    assert texts(thread, at=later - timedelta(microseconds=1)) == ["one"]
    assert texts(thread, at=later) == ["one", "two"]
    assert texts(thread, at=later.astimezone(timezone(timedelta(hours=-9)))) == ["one", "two"]
    assert texts(thread, at=datetime.max.replace(tzinfo=UTC)) == ["one"]
    assert thread.state(at=later).version == 3
    assert [event.version for event in thread.events(at=later)] == [1, 2, 3]
    for early in (began - timedelta(microseconds=1), datetime.min.replace(tzinfo=UTC)):
        with pytest.raises(UnknownVersionError, match="did not exist at"):
            thread.history(at=early)
    with pytest.raises(InvalidTimeError, match="no offset"):
        thread.history(at=later.replace(tzinfo=None))


def test_finds_a_time_in_the_ancestors_of_a_fork(conversations: Conversations, clock: SettableClock) -> None:
    thread = conversations.start_thread(messages=user("one"))
    then = clock.move(10)
    thread.append(user("two"))
    clock.move(10)
    fork = thread.fork().fork().fork()
    assert texts(fork, at=then) == ["one", "two"]
    assert texts(fork, at=then - timedelta(seconds=1)) == ["one"]
    assert fork.history(at=to_time(clock.now)).version == fork.version == 6


def test_recorded_time_never_decreases_along_a_lineage(conversations: Conversations, clock: SettableClock) -> None:
    thread = conversations.start_thread(messages=user("one"))
    clock.move(-3600)
    thread.append(user("two"))
    fork = thread.fork()
    clock.move(7200)
    thread.append(user("three"))
    clock.move(-7200)
    thread.append(user("four"))
    fork.append(user("other"))
    start = 1_700_000_000 * 1_000_000
    hour = 3600 * 1_000_000
    assert [event.recorded_at - start for event in thread.events()] == [0, 0, 0, hour, hour]
    assert [event.recorded_at - start for event in fork.events()] == [0, 0, 0, 0, 0]
    assert thread.summary().updated_at == to_time(start + hour)
    assert texts(thread, at=to_time(start + hour)) == ["one", "two", "three", "four"]


# Messages


def test_reads_up_to_a_message_of_the_current_path(conversations: Conversations) -> None:
    thread = conversations.start_thread()
    assert thread.history(at_message=0).version == 1
    thread.label(x=1)
    thread.append(user("one", "two"))
    thread.rewind(to=3)
    thread.append(user("three"))
    assert [texts(thread, at_message=number) for number in range(3)] == [[], ["one"], ["one", "three"]]
    assert thread.history(at_message=0).version == 2
    assert [event.version for event in thread.events(at_message=2)] == [1, 2, 3, 4, 5, 6]
    assert thread.state(at_message=1).version == 3
    assert [state.version for _, state in thread.replay(at_message=1)] == [1, 2, 3]
    fork = thread.fork()
    assert texts(fork, at_message=1) == ["one"]
    assert fork.history(at_message=0).version == 2


@pytest.mark.parametrize("number", [-1, 2, 10**30, "1", 1.0, True])
def test_refuses_a_missing_message(conversations: Conversations, number: Any) -> None:
    thread = conversations.start_thread(messages=user("one"))
    for use in (thread.history, thread.state, lambda at_message: list(thread.events(at_message=at_message))):
        with pytest.raises(UnknownVersionError):
            use(at_message=number)


@pytest.mark.parametrize("at", [0, -1, 3, 10**30, True, 1.0, b"x", ("x",)])
def test_refuses_a_missing_version(conversations: Conversations, at: Any) -> None:
    thread = conversations.start_thread(messages=user("one"))
    for use in (
        lambda: thread.history(at=at),
        lambda: thread.view(at=at),
        lambda: thread.state(at=at),
        lambda: list(thread.events(at=at)),
        lambda: list(thread.replay(at=at)),
    ):
        with pytest.raises(UnknownVersionError):
            use()


def test_an_unknown_checkpoint_error_lists_the_checkpoints(conversations: Conversations) -> None:
    thread = conversations.start_thread()
    thread.checkpoint("here")
    with pytest.raises(UnknownCheckpointError, match=r"'there'.*'here'"):
        thread.history(at="there")


# Histories, states, replays


def test_later_reads_see_the_changes_of_other_services(shared_url: str) -> None:
    with Conversations.open(shared_url) as one, Conversations.open(shared_url) as other:
        here = one.start_thread(thread_id="shared", messages=user("one"))
        there = other.thread("shared")
        for number in range(5):
            there.append(user(str(number)))
            assert len(here.history()) == len(there.history()) == 2 + number
        here.rewind(to=2)
        assert texts(there) == ["one"]
        there.redact(2)
        assert here.history().messages[0].redacted
        there.end()
        assert here.status == "ended"


def test_replay_gives_each_event_with_the_state_after_it(conversations: Conversations) -> None:
    thread = conversations.start_thread("Refund", labels={"a": 1}, messages=user("one"))
    thread.checkpoint("here")
    thread.label(a=None, b=2)
    thread.append(user("two"))
    thread.rewind(to="here")
    thread.suspend()
    fork = thread.fork()
    replayed = list(fork.replay())
    assert [event.version for event, _ in replayed] == list(range(1, 9))
    for event, state in replayed:
        assert state == fork.state(at=event.version)
        assert state.messages == fork.history(at=event.version).messages
    assert [len(state.messages) for _, state in replayed] == [0, 1, 1, 1, 2, 1, 1, 1]
    assert [state.status for _, state in replayed][-2:] == ["suspended", "active"]
    assert replayed[3][1].labels == {"b": 2}
    assert replayed[-1][1].title == "Refund"


def test_reads_a_lineage_of_many_pages(conversations: Conversations) -> None:
    thread = conversations.start_thread(messages=user(*map(str, range(700))))
    fork = thread.fork(at=600)
    fork.append(user(*map(str, range(500))))
    assert [event.version for event in fork.events()] == list(range(1, 1102))
    assert [event.version for event in fork.events(after=590, at=1000)] == list(range(591, 1001))
    assert list(fork.events(after=1101)) == []
    assert len(fork.history()) == 1099
    assert fork.state(at=900).control.messages == 898
    assert texts(fork, at_message=600) == [*map(str, range(599)), "0"]
    with fork.subscribe(after=300) as events:
        assert [next(events).version for _ in range(801)] == list(range(301, 1102))


def test_the_view_puts_results_after_their_calls(conversations: Conversations) -> None:
    thread = conversations.start_thread(messages=user("Where?"))
    thread.append(Message.assistant(calls=[FunctionCall(call_id="1", name="find", arguments="{}")]))
    thread.append([Message.user("Quick!"), Message.tool("1", "here")])
    assert [message.role for message in thread.view().messages] == ["user", "assistant", "tool", "user"]
    assert [message.role for message in thread.history()] == ["user", "assistant", "user", "tool"]


# Subscriptions


def follow(subscription: Subscription, count: int) -> list[Event]:
    return [next(subscription) for _ in range(count)]


def test_a_subscription_gives_old_events_and_then_new_ones(conversations: Conversations) -> None:
    first = conversations.start_thread(thread_id="first", messages=user("one"))
    _, second = (event.position or 0 for event in first.events())
    with (
        conversations.subscribe() as everything,
        first.subscribe() as one,
        conversations.subscribe(after=second) as later,
    ):
        assert [event.type for event in follow(everything, 2)] == ["thread-started", "message-appended"]
        assert everything.wait(0) is None
        assert later.wait(0.01) is None
        writer = threading.Thread(target=lambda: (first.append(user("two")), conversations.start_thread(thread_id="b")))
        writer.start()
        assert [(event.thread_id, event.version) for event in follow(everything, 2)] == [("first", 3), ("b", 1)]
        assert [(event.thread_id, event.version) for event in follow(later, 2)] == [("first", 3), ("b", 1)]
        assert [event.version for event in follow(one, 3)] == [1, 2, 3]
        assert one.wait(0) is None
        writer.join()


def test_a_subscription_follows_the_lineage_of_a_fork(conversations: Conversations) -> None:
    thread = conversations.start_thread(messages=user("one"))
    fork = thread.fork()
    thread.append(user("not of the fork"))
    with fork.subscribe(after=1) as events:
        assert [(event.thread_id, event.version) for event in follow(events, 2)] == [(thread.id, 2), (fork.id, 3)]
        fork.append(user("two"))
        assert next(events).version == 4


def test_a_subscription_sees_each_event_once_and_in_order_during_writes(conversations: Conversations) -> None:
    def write(writer: int) -> None:
        thread = conversations.open_thread(f"thread-{writer}")
        for number in range(20):
            thread.append(user(str(number)))

    with conversations.subscribe() as events:
        writers = [threading.Thread(target=write, args=(writer,)) for writer in range(8)]
        for each in writers:
            each.start()
        seen = follow(events, 8 * 21)
        for each in writers:
            each.join()
        assert events.wait(0) is None
    positions = [event.position or 0 for event in seen]
    assert sorted(set(positions)) == positions
    assert len(seen) == 8 * 21
    for writer in range(8):
        assert [e.version for e in seen if e.thread_id == f"thread-{writer}"] == list(range(1, 22))


def test_a_subscription_sees_the_events_of_another_service(shared_url: str) -> None:
    with Conversations.open(shared_url) as one, Conversations.open(shared_url) as other:
        thread = one.start_thread(thread_id="shared")
        started = next(iter(thread.events())).position or 0
        with one.subscribe(after=started) as events:
            other.thread("shared").append(user("one"))
            assert next(events).version == 2
        assert thread.version == 2


@pytest.mark.parametrize("closing", ["the subscription", "the service", "the service of another actor"])
def test_close_ends_an_iteration_that_waits_in_another_thread(conversations: Conversations, closing: str) -> None:
    thread = conversations.start_thread()
    service = conversations.acting_as("user:1") if closing == "the service of another actor" else conversations
    subscription = service.thread(thread.id).subscribe()
    seen: list[int] = []
    reached = threading.Event()

    def work() -> None:
        for event in subscription:
            seen.append(event.version)
            reached.set()

    waiting = threading.Thread(target=work)
    waiting.start()
    reached.wait()
    subscription.close() if closing == "the subscription" else conversations.close()
    waiting.join()
    assert seen == [1]


def test_a_closed_subscription_gives_no_more_events(conversations: Conversations) -> None:
    conversations.start_thread(messages=user("one", "two"))
    subscription = conversations.subscribe()
    assert next(subscription).version == 1
    subscription.close()
    subscription.close()
    assert list(subscription) == []
    assert subscription.wait(0) is None


def test_a_wait_respects_its_timeout_while_others_write(conversations: Conversations) -> None:
    thread = conversations.start_thread(thread_id="quiet")
    stop = threading.Event()

    def write() -> None:
        noisy = conversations.start_thread()
        while not stop.is_set():
            noisy.append(user("noise"))

    writer = threading.Thread(target=write)
    writer.start()
    with thread.subscribe(after=1) as events:
        assert events.wait(0.05) is None
    stop.set()
    writer.join()


def test_forgets_an_unreferenced_subscription(conversations: Conversations) -> None:
    conversations.start_thread()
    assert next(conversations.subscribe()).version == 1
    gc.collect()
    assert list(conversations._live) == []


def test_subscribing_after_close_is_refused(url: str) -> None:
    conversations = Conversations.open(url)
    thread = conversations.start_thread()
    conversations.close()
    for use in (conversations.subscribe, thread.subscribe):
        with pytest.raises(ClosedError):
            next(use())
