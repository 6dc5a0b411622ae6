from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.domain.history_stores.store_histories import path_of

from clew.agents.history_replication import StoreFeed
from clew.domain.context.events import ContextFailed
from clew.domain.history import HistoryMessage
from clew.domain.history_stores import HistoryStore, StoreContext, StoredMessage, StoreFactory, as_stored
from clew.domain.json_values import Json
from clew.domain.messages import Message
from clew.errors import AgentConfigurationError, HistoryStoreError, MissingExtraError

CONTEXT = StoreContext("acme", "thread-1", "local")
SECRET = "hunter2"  # noqa: S105  # not a real password

Fault = Literal["raises", "hangs"]


class FailingStore(HistoryStore):
    """Stores messages in a list; ``faults`` says which methods fail and how."""

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self.stored: list[StoredMessage] = []
        self.faults: dict[str, Fault] = {}
        self.serialized: Json = None
        self.restored: Json = None
        self.calls: list[str] = []
        self.reached = asyncio.Event()

    async def add_messages(self, messages: Sequence[StoredMessage]) -> None:
        await self._pass("add_messages")
        known = {each.id for each in self.stored}
        self.stored += [each for each in messages if each.id not in known]
        if self.most is not None:
            self.stored = self.stored[-self.most :]

    async def list_messages(self) -> list[StoredMessage]:
        await self._pass("list_messages")
        return list(self.stored)

    async def serialize(self, **options: Any) -> Json:
        assert not options
        await self._pass("serialize")
        return self.serialized

    async def update_from_state(self, state: Json, **options: Any) -> None:
        assert not options
        await self._pass("update_from_state")
        self.restored = state

    async def _pass(self, name: str) -> None:
        self.calls.append(name)
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


def test_the_factory_is_called_once_with_the_context_of_the_store() -> None:
    made: list[StoreContext] = []
    store = FailingStore()

    def make(context: StoreContext) -> HistoryStore:
        made.append(context)
        return store

    async def make_later(context: StoreContext) -> HistoryStore:
        await asyncio.sleep(0)
        return make(context)

    async def check(factory: StoreFactory) -> None:
        feed = StoreFeed(factory, CONTEXT._replace(state={"key": "a"}))
        assert await feed.open()
        assert await feed.open()
        assert made == [("acme", "thread-1", "local", {"key": "a"})]
        assert store.restored == {"key": "a"}
        assert feed.failures() == ()
        made.clear()

    asyncio.run(check(make))
    asyncio.run(check(make_later))


def test_a_store_without_a_recorded_state_restores_none() -> None:
    store = FailingStore()
    assert asyncio.run(feed_of(store).open())
    assert store.calls == []


def test_a_factory_that_fails_is_recorded_and_tried_again() -> None:
    tries = 0

    def make(_: StoreContext) -> HistoryStore:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise OSError(SECRET)
        return FailingStore()

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


@pytest.mark.parametrize("made", [None, FailingStore, "store"], ids=["None", "a class", "text"])
def test_a_factory_that_returns_no_store_is_a_configuration_error(made: Any) -> None:
    with pytest.raises(AgentConfigurationError, match=r"clew\.HistoryStore"):
        asyncio.run(StoreFeed(lambda _: made, CONTEXT).open())


def test_a_missing_package_is_a_configuration_error() -> None:
    def make(_: StoreContext) -> HistoryStore:
        raise MissingExtraError("RedisHistory", "redis", "redis")

    with pytest.raises(MissingExtraError):
        asyncio.run(StoreFeed(make, CONTEXT).open())


@given(st.integers(0, 9), st.data(), st.none() | st.integers(1, 9))
def test_a_store_with_losses_has_the_path_or_its_end_after_one_feed(
    count: int, data: st.DataObject, most: int | None
) -> None:
    store = FailingStore(most)
    messages = path(count)

    async def check() -> None:
        feed = feed_of(store)
        assert await feed.open()
        await feed.catch_up(messages)
        lost = data.draw(st.integers(0, len(store.stored)))
        store.stored = store.stored[lost:] if data.draw(st.booleans()) else store.stored[: len(store.stored) - lost]
        listed = await feed.catch_up(messages)
        assert listed == tuple(each.id for each in store.stored)
        assert store.stored == as_stored(messages)[count - len(store.stored) :]
        assert len(store.stored) == count or most is not None or lost
        assert feed.failures() == ()

    asyncio.run(check())


def test_the_next_process_feeds_what_a_killed_one_did_not() -> None:
    store = FailingStore()

    async def check() -> None:
        one = feed_of(store)
        await one.open()
        await one.catch_up(path(2))
        two = feed_of(store)
        await two.open()
        assert await two.catch_up(path(5)) == tuple(f"id-{number}" for number in range(5))
        store.calls.clear()
        await two.add(path(7)[5:])
        assert store.calls == ["add_messages"]
        assert [each.id for each in store.stored] == [f"id-{number}" for number in range(7)]

    asyncio.run(check())


def test_ignores_listed_messages_that_are_not_on_the_path() -> None:
    store = FailingStore()

    async def check() -> None:
        feed = feed_of(store)
        await feed.open()
        await feed.catch_up(path(6))
        store.stored.reverse()
        assert await feed.catch_up(path(3)) == ("id-0", "id-1", "id-2")
        assert len(store.stored) == 6

    asyncio.run(check())


def test_a_long_path_is_fed_in_pieces() -> None:
    store = FailingStore()

    async def check() -> None:
        feed = feed_of(store, seconds=60.0)
        await feed.open()
        listed = await feed.catch_up(path(1_200))
        assert listed is not None
        assert len(listed) == 1_200
        assert store.calls == ["list_messages", *["add_messages"] * 3, "list_messages"]

    asyncio.run(check())


def test_a_redacted_message_is_never_fed() -> None:
    store = FailingStore()

    async def check() -> None:
        feed = feed_of(store)
        await feed.open()
        messages = path_of([Message.user("One."), None, Message.user("Two."), None])
        assert await feed.catch_up(messages) == ("id-0", "id-2")
        store.calls.clear()
        await feed.add(messages[3:])
        assert store.calls == []

    asyncio.run(check())


@pytest.mark.parametrize("fault", ["raises", "hangs"])
@pytest.mark.parametrize("hook", ["list_messages", "add_messages"])
def test_a_failing_store_is_fed_again_at_the_next_run(hook: str, fault: Fault) -> None:
    store = FailingStore()

    async def check() -> None:
        feed = feed_of(store)
        await feed.open()
        store.faults = {hook: fault}
        assert await feed.catch_up(path(2)) is None
        [failed] = feed.failures()
        assert hooks([failed]) == [hook]
        assert failed.error.kind == ("OSError" if fault == "raises" else "HistoryStoreError")
        assert failed.error.message == (None if fault == "raises" else "The history store took longer than 0.01 s.")
        store.faults = {}
        store.calls.clear()
        await feed.add(path(3)[2:])
        assert store.calls == []
        assert await feed.catch_up(path(4)) == ("id-0", "id-1", "id-2", "id-3")
        await feed.add(path(5)[4:])
        assert [each.id for each in store.stored] == [f"id-{number}" for number in range(5)]
        assert feed.failures() == ()

    asyncio.run(check())


def test_a_store_that_fails_within_a_run_has_no_gap_afterwards() -> None:
    store = FailingStore()

    async def check() -> None:
        feed = feed_of(store)
        await feed.open()
        await feed.catch_up(path(2))
        store.faults = {"add_messages": "raises"}
        await feed.add(path(3)[2:])
        store.faults = {}
        await feed.add(path(4)[3:])
        assert hooks(feed.failures()) == ["add_messages"]
        assert [each.id for each in store.stored] == ["id-0", "id-1"]
        await feed.catch_up(path(4))
        assert [each.id for each in store.stored] == [f"id-{number}" for number in range(4)]

    asyncio.run(check())


def test_the_message_of_clews_own_store_errors_is_recorded() -> None:
    class UnreachableStore(FailingStore):
        async def list_messages(self) -> list[StoredMessage]:
            raise HistoryStoreError("Redis at 127.0.0.1:1: it could not be reached.")

    async def check() -> None:
        feed = feed_of(UnreachableStore())
        await feed.open()
        await feed.catch_up(path(1))
        assert [each.error.message for each in feed.failures()] == ["Redis at 127.0.0.1:1: it could not be reached."]

    asyncio.run(check())


@pytest.mark.parametrize(
    "listing", [None, 7, "text", [Message.user("No id.")]], ids=["None", "a number", "text", "messages"]
)
def test_an_invalid_list_of_a_store_is_a_failure(listing: Any) -> None:
    class InvalidList(FailingStore):
        async def list_messages(self) -> Any:
            return listing

    async def check() -> None:
        feed = feed_of(InvalidList())
        await feed.open()
        assert await feed.catch_up(path(1)) is None
        [failed] = feed.failures()
        assert failed.error.kind == "HistoryStoreError"
        assert "list of StoredMessage" in (failed.error.message or "")

    asyncio.run(check())


def test_the_serialized_state_is_a_copy() -> None:
    store = FailingStore()
    keys: list[Json] = ["a"]
    store.serialized = {"keys": keys}

    async def check() -> None:
        feed = feed_of(store)
        await feed.open()
        state = await feed.state()
        keys.append("b")
        assert state == {"keys": ["a"]}
        assert feed.failures() == ()

    asyncio.run(check())


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (
            {"url": f"redis://:{SECRET}@cache:6379"},
            "state of the history store.url: it looks like a URL with a password",
        ),
        ({"redis": {"password": SECRET}}, "state of the history store.redis.password: it looks like a credential"),
        ({"when": object()}, "state of the history store.when: object is not JSON"),
        ({5: "five"}, "a key is int"),
    ],
    ids=["a password in a URL", "a password by its name", "an object", "a key that is not text"],
)
def test_refuses_a_state_with_secrets_or_without_json(state: Any, reason: str) -> None:
    store = FailingStore()
    store.serialized = state

    async def check() -> None:
        feed = feed_of(store)
        await feed.open()
        assert await feed.state() is None
        [failed] = feed.failures()
        assert hooks([failed]) == ["serialize"]
        assert reason in (failed.error.message or "")

    asyncio.run(check())


@pytest.mark.parametrize("fault", ["raises", "hangs"])
def test_a_failing_serialize_or_restore_is_only_recorded(fault: Fault) -> None:
    store = FailingStore()
    store.faults = {"serialize": fault, "update_from_state": fault}

    async def check() -> None:
        feed = feed_of(store)
        await feed.open()
        assert await feed.state() is None
        assert hooks(feed.failures()) == ["serialize"]
        again = feed_of(store, CONTEXT._replace(state={"key": "a"}))
        assert not await again.open()
        assert hooks(again.failures()) == ["update_from_state"]

    asyncio.run(check())


@pytest.mark.parametrize(
    "call", [lambda feed: feed.catch_up(path(1)), lambda feed: feed.state()], ids=["before", "state"]
)
def test_a_cancellation_is_not_a_failure_of_the_store(call: Callable[[StoreFeed], Awaitable[Any]]) -> None:
    store = FailingStore()
    store.faults = {"list_messages": "hangs", "serialize": "hangs"}

    async def check() -> None:
        feed = feed_of(store, seconds=60.0)
        await feed.open()
        task = asyncio.ensure_future(call(feed))
        await store.reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert feed.failures() == ()

    asyncio.run(check())


def test_a_timeout_raised_by_the_store_differs_from_a_slow_store() -> None:
    class TimesOut(FailingStore):
        async def list_messages(self) -> list[StoredMessage]:
            raise TimeoutError(SECRET)

    async def check() -> None:
        feed = feed_of(TimesOut(), seconds=60.0)
        await feed.open()
        await feed.catch_up(path(1))
        assert [(each.error.kind, each.error.message) for each in feed.failures()] == [("TimeoutError", None)]

    asyncio.run(check())
