"""Reading on where stored bytes are damaged: what comes before is given, then the error, then what comes after it."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Callable, Iterable, Iterator

import pytest
from eventsourcing.persistence import StoredEvent
from hypothesis import given
from hypothesis import strategies as st
from tests.infrastructure.recording import wait_until
from tests.service.grants import Grants
from tests.service.moving_stores import SAID

from clew import Conversations, Engine, Message
from clew.domain.events import Event
from clew.domain.ports import EventLog
from clew.errors import CorruptEventError
from clew.infrastructure.recorder import Append
from clew.infrastructure.shards import Positions, Shard
from clew.infrastructure.stores import store_at
from clew.service import feeds, shards, thread_queries
from clew.service.shards import ShardEvents
from clew.sync.subscription import Subscription

DAMAGED = bytes(17) + b"{"

Read = Callable[[int], Iterable[Event]]


def add(log: EventLog, thread_id: str, version: int, *states: bytes, type_: str = "message-appended") -> None:
    """Append events as somebody who damages them."""
    stored = [
        StoredEvent(f"default/thread/{thread_id}", number, type_, state) for number, state in enumerate(states, version)
    ]
    log._recorder.submit(Append(stored)).result()  # type: ignore[attr-defined]  # the log is an application


def those_there(subscription: Subscription) -> Iterator[Event]:
    with subscription as events:
        while (event := events.wait(0)) is not None:
            yield event


def read_on(ask: Read, place: str) -> tuple[list[int], list[int]]:
    """The places of all events, and of those that are damaged, behind which it is asked again."""
    found: list[int] = []
    damaged: list[int] = []
    while True:
        try:
            for event in ask(damaged[-1] if damaged else 0):
                found.append(getattr(event, place))  # noqa: PERF401 - what came before the error counts
        except CorruptEventError as error:
            damaged.append(getattr(error, place))
            assert_helps(error)
        else:
            return found, damaged


def assert_helps(error: CorruptEventError) -> None:
    """It names the event, and says what to do."""
    said = str(error)
    assert f"{error.stream} version {error.version} (message-appended) cannot be read" in said
    assert "verify says where the damage begins" in said
    assert f"after version {error.version}, or of the whole store after position {error.position}." in said


def test_what_comes_before_and_after_a_damaged_event_is_read(url: str) -> None:
    with Conversations.open(url) as conversations:
        first = conversations.start_thread(thread_id="first", messages=[Message.user("Hello")] * 30)
        log = conversations._core.log
        add(log, "first", 32, DAMAGED)
        conversations.start_thread(thread_id="other", messages=[Message.user("Hello")] * 30)
        add(log, "first", 33, SAID)
        in_thread = [*range(1, 32), 33], [32]
        assert read_on(lambda after: those_there(first.subscribe(after=after)), "version") == in_thread
        assert read_on(lambda after: first.events(after=after), "version") == in_thread
        assert read_on(lambda after: conversations.thread("first").events(after=after), "version") == in_thread
        positions, damaged = read_on(lambda after: those_there(conversations.subscribe(after=after)), "position")
        assert (len(positions), positions) == (31 + 31 + 1, sorted(positions))
        assert [(each.stream, each.version) for each in log.rows_after(damaged[0] - 1, 1, "")] == [
            ("default/thread/first", 32)
        ]


def test_the_error_comes_again_until_it_is_asked_behind_it_and_survives_pickling(url: str) -> None:
    with Conversations.open(url) as conversations:
        first = conversations.start_thread(thread_id="first")
        add(conversations._core.log, "first", 2, DAMAGED)
        for subscription in (conversations.subscribe(), first.subscribe()):
            with subscription as events:
                assert next(events).version == 1
                for _ in range(2):
                    with pytest.raises(CorruptEventError) as caught:
                        next(events)
                again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - made here
                assert (str(again), vars(again)) == (str(caught.value), vars(caught.value))
                assert (again.stream, again.version) == ("default/thread/first", 2)


def test_an_event_that_says_what_the_thread_is_does_not_hide_the_others(url: str) -> None:
    with Conversations.open(url) as conversations:
        first = conversations.start_thread(thread_id="first", messages=[Message.user("Hello")])
        add(conversations._core.log, "first", 3, DAMAGED, type_="thread-labelled")
        add(conversations._core.log, "first", 4, SAID)
        events = first.events()
        assert [next(events).version for _ in range(2)] == [1, 2]
        with pytest.raises(CorruptEventError, match=r"version 3 \(thread-labelled\)"):
            next(events)
        assert [event.version for event in first.events(after=3)] == [4]
        with pytest.raises(CorruptEventError, match="version 3"):  # it is not known what there is to see
            next(first.events(at=4))


def test_asyncio_reads_on_as_well(url: str) -> None:
    async def work() -> None:
        async with Engine.open(url) as engine:
            thread = await engine.start_thread(thread_id="first", messages=[Message.user("Hello")] * 6)
            add(engine._core.log, "first", 8, DAMAGED, SAID)
            asked: tuple[AsyncIterator[Event], ...] = (engine.subscribe(), thread.subscribe(), thread.events())
            for events in asked:
                assert [(await anext(events)).version for _ in range(7)] == [*range(1, 8)]
                with pytest.raises(CorruptEventError) as caught:
                    await anext(events)
                assert_helps(caught.value)
            position, version = caught.value.position or 0, caught.value.version or 0
            assert [event.version async for event in thread.events(after=version)] == [9]
            async with engine.subscribe(after=position) as all_, thread.subscribe(after=version) as one:
                assert [(await anext(all_)).version, (await anext(one)).version] == [9, 9]

    asyncio.run(work())


def test_who_may_not_read_a_thread_hears_nothing_of_its_damage(url: str) -> None:
    with Conversations.open(url, authorize=Grants(ada={"hers"})) as service:
        operator, ada = service.acting_as("operator"), service.acting_as("ada")
        operator.start_thread(thread_id="theirs")
        add(service._core.log, "theirs", 2, DAMAGED)
        operator.start_thread(thread_id="hers")
        assert [event.thread_id for event in those_there(ada.subscribe())] == ["hers"]
        with pytest.raises(CorruptEventError):
            list(those_there(operator.subscribe()))


def test_who_reads_all_shards_is_given_what_comes_before_and_told_of_the_damage(
    file_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "RETRY_SECONDS", 0.01)
    with Conversations.open(file_url) as conversations:
        conversations.start_thread(thread_id="first", messages=[Message.user("Hello")])
        add(conversations._core.log, "first", 3, DAMAGED, SAID)
    shard = Shard("east", "", takes=True, tenants=1)
    with ShardEvents(lambda: [shard], lambda _: store_at(file_url).open_log(), Positions()) as events:
        assert [next(events).event.version for _ in range(2)] == [1, 2]
        assert events.wait(0) is None
        wait_until(lambda: "first version 3 (message-appended)" in events.failing().get("east", ""))
    with ShardEvents(lambda: [shard], lambda _: store_at(file_url).open_log(), Positions().at("east", 3)) as events:
        assert next(events).event.version == 4


@given(st.lists(st.booleans(), max_size=25), st.integers(1, 9))
def test_nothing_is_left_out_or_given_twice_wherever_the_damage_is(sound: list[bool], page: int) -> None:
    with pytest.MonkeyPatch.context() as patch, Conversations.open("memory:") as conversations:
        patch.setattr(feeds, "PAGE", page)
        patch.setattr(thread_queries, "PAGE", page)
        thread = conversations.start_thread(thread_id="first")
        if sound:
            add(conversations._core.log, "first", 2, *(SAID if each else DAMAGED for each in sound))
        expected = (
            [1, *(version for version, each in enumerate(sound, 2) if each)],
            [version for version, each in enumerate(sound, 2) if not each],
        )
        reads: list[Read] = [
            lambda after: those_there(conversations.subscribe(after=after)),
            lambda after: those_there(thread.subscribe(after=after)),
            lambda after: thread.events(after=after),
        ]
        for read in reads:  # in this store a position is a version
            assert read_on(read, "version") == expected
