from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.domain.history_stores.made_paths import path_of

from clew.agents.history_stores import StoreFeed
from clew.domain.context.events import ContextFailed
from clew.domain.history import HistoryMessage
from clew.domain.history_stores import HistoryStore, StoreContext, StoredMessage, StoreFactory, as_stored
from clew.domain.json_values import Json
from clew.domain.messages import Message
from clew.errors import AgentConfigurationError, HistoryStoreError, MissingExtraError

CONTEXT = StoreContext("acme", "thread-1", "local")
SECRET = "hunter2"  # noqa: S105  # a made one

Fault = Literal["raises", "hangs"]


class Shelf(HistoryStore):
    """Keeps messages in a list, and fails as it is told: at which method, and how."""

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self.held: list[StoredMessage] = []
        self.faults: dict[str, Fault] = {}
        self.kept: Json = None
        self.given: Json = None
        self.asked: list[str] = []
        self.reached = asyncio.Event()

    async def add_messages(self, messages: Sequence[StoredMessage]) -> None:
        await self._pass("add_messages")
        known = {each.id for each in self.held}
        self.held += [each for each in messages if each.id not in known]
        if self.most is not None:
            self.held = self.held[-self.most :]

    async def list_messages(self) -> list[StoredMessage]:
        await self._pass("list_messages")
        return list(self.held)

    async def serialize(self, **options: Any) -> Json:
        assert not options
        await self._pass("serialize")
        return self.kept

    async def update_from_state(self, state: Json, **options: Any) -> None:
        assert not options
        await self._pass("update_from_state")
        self.given = state

    async def _pass(self, name: str) -> None:
        self.asked.append(name)
        self.reached.set()
        match self.faults.get(name):
            case "raises":
                message = f"no way in with {SECRET}"
                raise OSError(message)
            case "hangs":
                await asyncio.Event().wait()


def feed_of(store: HistoryStore, context: StoreContext = CONTEXT, seconds: float = 0.01) -> StoreFeed:
    return StoreFeed(lambda _: store, context, seconds)


def path(count: int) -> list[HistoryMessage]:
    return path_of([Message.user(f"Number {number}.") for number in range(count)])


def hooks(failures: Sequence[ContextFailed]) -> list[str]:
    assert all(each.provider == "history-store" for each in failures)
    assert SECRET not in str(failures)
    return [each.hook for each in failures]


def test_the_factory_is_called_once_with_what_the_store_is_for() -> None:
    made: list[StoreContext] = []
    shelf = Shelf()

    def make(context: StoreContext) -> HistoryStore:
        made.append(context)
        return shelf

    async def make_later(context: StoreContext) -> HistoryStore:
        await asyncio.sleep(0)
        return make(context)

    async def check(factory: StoreFactory) -> None:
        feed = StoreFeed(factory, CONTEXT._replace(state={"key": "a"}))
        assert await feed.open()
        assert await feed.open()
        assert made == [("acme", "thread-1", "local", {"key": "a"})]
        assert shelf.given == {"key": "a"}
        assert feed.failures() == ()
        made.clear()

    asyncio.run(check(make))
    asyncio.run(check(make_later))


def test_a_store_without_a_recorded_state_is_not_told_one() -> None:
    shelf = Shelf()
    assert asyncio.run(feed_of(shelf).open())
    assert shelf.asked == []


def test_a_factory_that_fails_is_recorded_and_tried_again() -> None:
    tries = 0

    def make(_: StoreContext) -> HistoryStore:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise OSError(SECRET)
        return Shelf()

    async def check() -> None:
        feed = StoreFeed(make, CONTEXT)
        assert not await feed.open()
        assert hooks(feed.failures()) == ["history_store"]
        assert await feed.catch_up(path(2)) is None
        await feed.add(path(2))
        assert await feed.state() is None
        assert feed.failures() == ()
        assert await feed.open()
        assert await feed.catch_up(path(2)) == ("id-0", "id-1")

    asyncio.run(check())


@pytest.mark.parametrize("made", [None, Shelf, "store"], ids=["None", "a class", "text"])
def test_a_factory_that_makes_no_store_is_a_mistake_of_the_agents_maker(made: Any) -> None:
    with pytest.raises(AgentConfigurationError, match=r"clew\.HistoryStore"):
        asyncio.run(StoreFeed(lambda _: made, CONTEXT).open())


def test_a_package_that_is_missing_is_one_too() -> None:
    def make(_: StoreContext) -> HistoryStore:
        raise MissingExtraError("RedisHistory", "redis", "redis")

    with pytest.raises(MissingExtraError):
        asyncio.run(StoreFeed(make, CONTEXT).open())


@given(st.integers(0, 9), st.data(), st.none() | st.integers(1, 9))
def test_a_store_that_lost_some_holds_the_path_or_its_end_after_one_feed(
    count: int, data: st.DataObject, most: int | None
) -> None:
    shelf = Shelf(most)
    messages = path(count)

    async def check() -> None:
        feed = feed_of(shelf)
        assert await feed.open()
        await feed.catch_up(messages)
        lost = data.draw(st.integers(0, len(shelf.held)))
        shelf.held = shelf.held[lost:] if data.draw(st.booleans()) else shelf.held[: len(shelf.held) - lost]
        listed = await feed.catch_up(messages)
        assert listed == tuple(each.id for each in shelf.held)
        assert shelf.held == as_stored(messages)[count - len(shelf.held) :]
        assert len(shelf.held) == count or most is not None or lost
        assert feed.failures() == ()

    asyncio.run(check())


def test_what_was_stored_while_the_process_was_killed_is_fed_by_the_next_one() -> None:
    shelf = Shelf()

    async def check() -> None:
        one = feed_of(shelf)
        await one.open()
        await one.catch_up(path(2))
        two = feed_of(shelf)
        await two.open()
        assert await two.catch_up(path(5)) == tuple(f"id-{number}" for number in range(5))
        shelf.asked.clear()
        await two.add(path(7)[5:])
        assert shelf.asked == ["add_messages"]
        assert [each.id for each in shelf.held] == [f"id-{number}" for number in range(7)]

    asyncio.run(check())


def test_what_a_store_lists_that_is_not_on_the_path_does_not_count() -> None:
    shelf = Shelf()

    async def check() -> None:
        feed = feed_of(shelf)
        await feed.open()
        await feed.catch_up(path(6))
        shelf.held.reverse()
        assert await feed.catch_up(path(3)) == ("id-0", "id-1", "id-2")
        assert len(shelf.held) == 6

    asyncio.run(check())


def test_a_long_path_is_fed_in_pieces() -> None:
    shelf = Shelf()

    async def check() -> None:
        feed = feed_of(shelf, seconds=60.0)
        await feed.open()
        listed = await feed.catch_up(path(1_200))
        assert listed is not None
        assert len(listed) == 1_200
        assert shelf.asked == ["list_messages", *["add_messages"] * 3, "list_messages"]

    asyncio.run(check())


def test_a_redacted_message_is_never_fed() -> None:
    shelf = Shelf()

    async def check() -> None:
        feed = feed_of(shelf)
        await feed.open()
        messages = path_of([Message.user("One."), None, Message.user("Two."), None])
        assert await feed.catch_up(messages) == ("id-0", "id-2")
        shelf.asked.clear()
        await feed.add(messages[3:])
        assert shelf.asked == []

    asyncio.run(check())


@pytest.mark.parametrize("fault", ["raises", "hangs"])
@pytest.mark.parametrize("hook", ["list_messages", "add_messages"])
def test_a_store_that_fails_is_left_alone_until_the_next_run_and_then_gets_all(hook: str, fault: Fault) -> None:
    shelf = Shelf()

    async def check() -> None:
        feed = feed_of(shelf)
        await feed.open()
        shelf.faults = {hook: fault}
        assert await feed.catch_up(path(2)) is None
        [failed] = feed.failures()
        assert hooks([failed]) == [hook]
        assert failed.error.kind == ("OSError" if fault == "raises" else "HistoryStoreError")
        assert failed.error.message == (None if fault == "raises" else "The history store took longer than 0.01 s.")
        shelf.faults = {}
        shelf.asked.clear()
        await feed.add(path(3)[2:])
        assert shelf.asked == []
        assert await feed.catch_up(path(4)) == ("id-0", "id-1", "id-2", "id-3")
        await feed.add(path(5)[4:])
        assert [each.id for each in shelf.held] == [f"id-{number}" for number in range(5)]
        assert feed.failures() == ()

    asyncio.run(check())


def test_a_store_that_fails_within_a_run_has_no_gap_afterwards() -> None:
    shelf = Shelf()

    async def check() -> None:
        feed = feed_of(shelf)
        await feed.open()
        await feed.catch_up(path(2))
        shelf.faults = {"add_messages": "raises"}
        await feed.add(path(3)[2:])
        shelf.faults = {}
        await feed.add(path(4)[3:])
        assert hooks(feed.failures()) == ["add_messages"]
        assert [each.id for each in shelf.held] == ["id-0", "id-1"]
        await feed.catch_up(path(4))
        assert [each.id for each in shelf.held] == [f"id-{number}" for number in range(4)]

    asyncio.run(check())


def test_what_a_store_of_clews_own_says_is_recorded() -> None:
    class Broken(Shelf):
        async def list_messages(self) -> list[StoredMessage]:
            raise HistoryStoreError("Redis at 127.0.0.1:1: it could not be reached.")

    async def check() -> None:
        feed = feed_of(Broken())
        await feed.open()
        await feed.catch_up(path(1))
        assert [each.error.message for each in feed.failures()] == ["Redis at 127.0.0.1:1: it could not be reached."]

    asyncio.run(check())


@pytest.mark.parametrize(
    "listing", [None, 7, "text", [Message.user("No id.")]], ids=["None", "a number", "text", "messages"]
)
def test_a_store_that_lists_nonsense_counts_as_one_that_failed(listing: Any) -> None:
    class Odd(Shelf):
        async def list_messages(self) -> Any:
            return listing

    async def check() -> None:
        feed = feed_of(Odd())
        await feed.open()
        assert await feed.catch_up(path(1)) is None
        [failed] = feed.failures()
        assert failed.error.kind == "HistoryStoreError"
        assert "list of StoredMessage" in (failed.error.message or "")

    asyncio.run(check())


def test_a_state_is_given_as_it_was_though_the_store_changes_its_own() -> None:
    shelf = Shelf()
    keys: list[Json] = ["a"]
    shelf.kept = {"keys": keys}

    async def check() -> None:
        feed = feed_of(shelf)
        await feed.open()
        state = await feed.state()
        keys.append("b")
        assert state == {"keys": ["a"]}
        assert feed.failures() == ()

    asyncio.run(check())


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (
            {"url": f"redis://:{SECRET}@cache:6379"},
            "state of the history store.url: it looks like a URL with a password",
        ),
        ({"redis": {"password": SECRET}}, "state of the history store.redis.password: it looks like a credential"),
        ({"when": object()}, "state of the history store.when: object is not JSON"),
        ({5: "five"}, "a key is int"),
    ],
    ids=["a password in a URL", "a password by its name", "an object", "a key that is no text"],
)
def test_a_state_that_must_not_be_kept_is_refused_by_name(state: Any, said: str) -> None:
    shelf = Shelf()
    shelf.kept = state

    async def check() -> None:
        feed = feed_of(shelf)
        await feed.open()
        assert await feed.state() is None
        [failed] = feed.failures()
        assert hooks([failed]) == ["serialize"]
        assert said in (failed.error.message or "")

    asyncio.run(check())


@pytest.mark.parametrize("fault", ["raises", "hangs"])
def test_a_store_that_cannot_say_or_take_up_its_state_costs_nothing_else(fault: Fault) -> None:
    shelf = Shelf()
    shelf.faults = {"serialize": fault, "update_from_state": fault}

    async def check() -> None:
        feed = feed_of(shelf)
        await feed.open()
        assert await feed.state() is None
        assert hooks(feed.failures()) == ["serialize"]
        again = feed_of(shelf, CONTEXT._replace(state={"key": "a"}))
        assert not await again.open()
        assert hooks(again.failures()) == ["update_from_state"]

    asyncio.run(check())


@pytest.mark.parametrize(
    "ask", [lambda feed: feed.catch_up(path(1)), lambda feed: feed.state()], ids=["before", "state"]
)
def test_to_be_cancelled_is_no_failure_of_the_store(ask: Callable[[StoreFeed], Awaitable[Any]]) -> None:
    shelf = Shelf()
    shelf.faults = {"list_messages": "hangs", "serialize": "hangs"}

    async def check() -> None:
        feed = feed_of(shelf, seconds=60.0)
        await feed.open()
        asking = asyncio.ensure_future(ask(feed))
        await shelf.reached.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert feed.failures() == ()

    asyncio.run(check())


def test_a_store_that_times_out_by_itself_is_told_apart_from_one_that_is_too_slow() -> None:
    class Impatient(Shelf):
        async def list_messages(self) -> list[StoredMessage]:
            raise TimeoutError(SECRET)

    async def check() -> None:
        feed = feed_of(Impatient(), seconds=60.0)
        await feed.open()
        await feed.catch_up(path(1))
        assert [(each.error.kind, each.error.message) for each in feed.failures()] == [("TimeoutError", None)]

    asyncio.run(check())
