"""Reading past damaged events: the events before, then an error, then the events after it."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Callable, Iterable, Iterator

import pytest
from eventsourcing.persistence import StoredEvent
from hypothesis import given
from hypothesis import strategies as st
from tests.infrastructure.recorder_steps import wait_until
from tests.service.grants import Grants
from tests.service.transferred_stores import STORED_MESSAGE

from clew import Conversations, Engine, Message
from clew.domain.events import Event
from clew.domain.ports import EventLog
from clew.errors import CorruptEventError
from clew.infrastructure.recorder_ports import Append
from clew.infrastructure.shards import Positions, Shard
from clew.infrastructure.stores import store_at
from clew.service import feeds, shards, thread_queries
from clew.service.shards import ShardEvents
from clew.sync.subscription import Subscription

DAMAGED = bytes(17) + b"{"

Read = Callable[[int], Iterable[Event]]


def add(log: EventLog, thread_id: str, version: int, *states: bytes, type_: str = "message-appended") -> None:
    """Append events with these stored bytes."""
    stored = [
        StoredEvent(f"default/thread/{thread_id}", number, type_, state) for number, state in enumerate(states, version)
    ]
    log._recorder.submit(Append(stored)).result()  # type: ignore[attr-defined]  # the log is an application


def available(subscription: Subscription) -> Iterator[Event]:
    with subscription as events:
        while (event := events.wait(0)) is not None:
            yield event


def read_on(read_after: Read, place: str) -> tuple[list[int], list[int]]:
    """Return the places of all readable and of all damaged events; each error continues after the damaged event."""
    readable: list[int] = []
    damaged: list[int] = []
    while True:
        try:
            for event in read_after(damaged[-1] if damaged else 0):
                readable.append(getattr(event, place))  # noqa: PERF401  # events before the error count
        except CorruptEventError as error:
            damaged.append(getattr(error, place))
            assert_helps(error)
        else:
            return readable, damaged


def assert_helps(error: CorruptEventError) -> None:
    """Check that the error names the event and the next step."""
    text = str(error)
    assert f"{error.stream} version {error.version} (message-appended) cannot be read" in text
    assert "verify shows where the damage begins" in text
    assert f"after version {error.version}, or of the whole store after position {error.position}." in text


def test_reads_the_events_before_and_after_a_damaged_one(url: str) -> None:
    with Conversations.open(url) as conversations:
        first = conversations.start_thread(thread_id="first", messages=[Message.user("Hello")] * 30)
        log = conversations._core.log
        add(log, "first", 32, DAMAGED)
        conversations.start_thread(thread_id="other", messages=[Message.user("Hello")] * 30)
        add(log, "first", 33, STORED_MESSAGE)
        in_thread = [*range(1, 32), 33], [32]
        assert read_on(lambda after: available(first.subscribe(after=after)), "version") == in_thread
        assert read_on(lambda after: first.events(after=after), "version") == in_thread
        assert read_on(lambda after: conversations.thread("first").events(after=after), "version") == in_thread
        positions, damaged = read_on(lambda after: available(conversations.subscribe(after=after)), "position")
        assert (len(positions), positions) == (31 + 31 + 1, sorted(positions))
        assert [(each.stream, each.version) for each in log.rows_after(damaged[0] - 1, 1, "")] == [
            ("default/thread/first", 32)
        ]


def test_the_error_repeats_until_the_reader_skips_the_event(url: str) -> None:
    with Conversations.open(url) as conversations:
        first = conversations.start_thread(thread_id="first")
        add(conversations._core.log, "first", 2, DAMAGED)
        for subscription in (conversations.subscribe(), first.subscribe()):
            with subscription as events:
                assert next(events).version == 1
                for _ in range(2):
                    with pytest.raises(CorruptEventError) as caught:
                        next(events)
                again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301  # made here
                assert (str(again), vars(again)) == (str(caught.value), vars(caught.value))
                assert (again.stream, again.version) == ("default/thread/first", 2)


def test_a_damaged_label_does_not_hide_other_events(url: str) -> None:
    with Conversations.open(url) as conversations:
        first = conversations.start_thread(thread_id="first", messages=[Message.user("Hello")])
        add(conversations._core.log, "first", 3, DAMAGED, type_="thread-labelled")
        add(conversations._core.log, "first", 4, STORED_MESSAGE)
        events = first.events()
        assert [next(events).version for _ in range(2)] == [1, 2]
        with pytest.raises(CorruptEventError, match=r"version 3 \(thread-labelled\)"):
            next(events)
        assert [event.version for event in first.events(after=3)] == [4]
        with pytest.raises(CorruptEventError, match="version 3"):  # the state at version 4 is unknown
            next(first.events(at=4))


def test_the_engine_reads_past_damage_too(url: str) -> None:
    async def work() -> None:
        async with Engine.open(url) as engine:
            thread = await engine.start_thread(thread_id="first", messages=[Message.user("Hello")] * 6)
            add(engine._core.log, "first", 8, DAMAGED, STORED_MESSAGE)
            streams: tuple[AsyncIterator[Event], ...] = (engine.subscribe(), thread.subscribe(), thread.events())
            for events in streams:
                assert [(await anext(events)).version for _ in range(7)] == [*range(1, 8)]
                with pytest.raises(CorruptEventError) as caught:
                    await anext(events)
                assert_helps(caught.value)
            position, version = caught.value.position or 0, caught.value.version or 0
            assert [event.version async for event in thread.events(after=version)] == [9]
            async with engine.subscribe(after=position) as all_, thread.subscribe(after=version) as one:
                assert [(await anext(all_)).version, (await anext(one)).version] == [9, 9]

    asyncio.run(work())


def test_damage_of_an_unreadable_thread_is_hidden(url: str) -> None:
    with Conversations.open(url, authorize=Grants(ada={"hers"})) as service:
        operator, ada = service.acting_as("operator"), service.acting_as("ada")
        operator.start_thread(thread_id="theirs")
        add(service._core.log, "theirs", 2, DAMAGED)
        operator.start_thread(thread_id="hers")
        assert [event.thread_id for event in available(ada.subscribe())] == ["hers"]
        with pytest.raises(CorruptEventError):
            list(available(operator.subscribe()))


def test_reading_all_shards_reports_the_damage_after_the_events_before_it(
    file_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "RETRY_SECONDS", 0.01)
    with Conversations.open(file_url) as conversations:
        conversations.start_thread(thread_id="first", messages=[Message.user("Hello")])
        add(conversations._core.log, "first", 3, DAMAGED, STORED_MESSAGE)
    shard = Shard("east", "", takes=True, tenants=1)
    with ShardEvents(lambda: [shard], lambda _: store_at(file_url).open_log(), Positions()) as events:
        assert [next(events).event.version for _ in range(2)] == [1, 2]
        assert events.wait(0) is None
        wait_until(lambda: "first version 3 (message-appended)" in events.failing().get("east", ""))
    with ShardEvents(lambda: [shard], lambda _: store_at(file_url).open_log(), Positions().at("east", 3)) as events:
        assert next(events).event.version == 4


@given(st.lists(st.booleans(), max_size=25), st.integers(1, 9))
def test_each_readable_event_is_read_once_around_any_damage(sound: list[bool], page: int) -> None:
    with pytest.MonkeyPatch.context() as patch, Conversations.open("memory:") as conversations:
        patch.setattr(feeds, "PAGE", page)
        patch.setattr(thread_queries, "PAGE", page)
        thread = conversations.start_thread(thread_id="first")
        if sound:
            add(conversations._core.log, "first", 2, *(STORED_MESSAGE if each else DAMAGED for each in sound))
        expected = (
            [1, *(version for version, each in enumerate(sound, 2) if each)],
            [version for version, each in enumerate(sound, 2) if not each],
        )
        reads: list[Read] = [
            lambda after: available(conversations.subscribe(after=after)),
            lambda after: available(thread.subscribe(after=after)),
            lambda after: thread.events(after=after),
        ]
        for read in reads:  # in this store a position is a version
            assert read_on(read, "version") == expected
