from __future__ import annotations

import asyncio
import builtins
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.domain.history_stores.store_histories import anything, stored
from tests.infrastructure.history_store_contract import MESSAGES, HistoryStoreContract
from tests.servers.redis_server import PASSWORD, RedisServer

from clew import RedisHistory
from clew.domain.history_stores import HistoryStore, StoreContext, StoredMessage, kept_from
from clew.domain.json_values import Json
from clew.domain.messages import FunctionCall, Message
from clew.errors import AgentConfigurationError, HistoryStoreError, InvalidNameError, MissingExtraError
from clew.testing import check_history_store

TURN = (
    Message.user("Look."),
    Message.assistant(calls=[FunctionCall(call_id="a", name="look", arguments="{}")]),
    Message.tool("a", "found"),
    Message.assistant("Found."),
)

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=6) | st.sampled_from(
    ["a", "a:b", "b", "%3A", "a%3Ab"]
)


async def messages_of(store: HistoryStore) -> list[StoredMessage]:
    return list(await store.list_messages())


class TestRedisHistory(HistoryStoreContract):
    @pytest.fixture(autouse=True)
    def _server(self, redis: RedisServer) -> None:
        self.redis = redis

    def store(self, context: StoreContext) -> HistoryStore:
        return RedisHistory(self.redis.url, context.tenant, context.thread_id)


@pytest.mark.parametrize("limit", [2, 3, 100])
def test_a_store_with_a_limit_passes_the_public_check(redis: RedisServer, limit: int) -> None:
    asyncio.run(check_history_store(lambda ctx: RedisHistory(redis.url, ctx.tenant, ctx.thread_id, limit)))


def test_trims_whole_groups_of_messages_also_after_redis_was_killed(
    redis: RedisServer,
) -> None:
    messages = stored(TURN * 40)

    async def fill(store: RedisHistory, *, batch_size: int) -> None:
        for start in range(0, len(messages), batch_size):
            await store.add_messages(messages[start : start + batch_size])
            first = redis.ask("LRANGE", store.key, 0, 0)
            assert '"function-result"' not in first[0]
            assert redis.ask("LLEN", store.key) <= 10

    async def check() -> None:
        store = RedisHistory(redis_url=redis.url, tenant="default", thread_id="long", max_messages=10)
        await fill(store, batch_size=1)
        before = await messages_of(store)
        assert before == messages[-9:]  # the tenth message would be a result without its call
        redis.kill()
        with pytest.raises(HistoryStoreError, match="cannot be reached"):
            await store.list_messages()
        redis.start()
        assert await messages_of(store) == []
        await fill(store, batch_size=160)
        assert await messages_of(store) == before
        await store.add_messages(stored(TURN, first=160))
        assert await messages_of(store) == [*before[4:], *stored(TURN, first=160)]

    asyncio.run(check())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(anything, st.integers(1, 8), st.integers(1, 8))
def test_keeps_the_same_messages_for_any_batch_size(
    redis: RedisServer, messages: list[Message], limit: int, batch_size: int
) -> None:
    redis.flush()
    all_messages = stored(messages)

    async def check() -> None:
        store = RedisHistory(redis.url, "default", "any", max_messages=limit)
        for start in range(0, len(messages), batch_size):
            await store.add_messages(all_messages[start : start + batch_size])
        assert await messages_of(store) == all_messages[kept_from(messages, limit) :]

    asyncio.run(check())


@given(st.tuples(names, names, names), st.tuples(names, names, names))
def test_different_threads_tenants_and_prefixes_have_different_keys(
    first: tuple[str, str, str], second: tuple[str, str, str]
) -> None:
    one, two = (
        RedisHistory("redis://localhost", tenant, thread, key_prefix=prefix).key
        for tenant, thread, prefix in (first, second)
    )
    assert (one == two) == (first == second)
    assert one.startswith(f"{first[2]}:")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(st.tuples(names, names), min_size=2, max_size=4, unique=True))
def test_no_thread_sees_messages_of_another_thread(redis: RedisServer, threads: list[tuple[str, str]]) -> None:
    redis.flush()

    async def check() -> None:
        stores = [RedisHistory(redis.url, tenant, thread) for tenant, thread in threads]
        for number, store in enumerate(stores):
            await store.add_messages(stored([Message.user(f"Of {number}.")], first=number))
        for number, store in enumerate(stores):
            assert [each.message.text for each in await store.list_messages()] == [f"Of {number}."]

    asyncio.run(check())
    assert len(redis.keys()) == len(threads)


def test_a_lower_limit_applies_from_the_next_message(redis: RedisServer) -> None:
    async def check() -> None:
        await RedisHistory(redis.url, "default", "less").add_messages(MESSAGES)
        limited = RedisHistory(redis.url, "default", "less", max_messages=2)
        await limited.add_messages(stored([Message.user("More?")], first=9))
        assert [each.id for each in await limited.list_messages()] == ["id-4", "id-9"]

    asyncio.run(check())


def test_the_state_is_the_key_and_refuses_keys_of_other_stores(redis: RedisServer) -> None:
    async def check() -> None:
        store = RedisHistory(redis.url, "acme", "t/1", max_messages=5, key_prefix="shop")
        assert await store.serialize() == {"key": "shop:acme:t%2F1"}
        moved = RedisHistory(redis.url, "acme", "t/1", key_prefix="new")
        await moved.update_from_state({"key": "shop:acme:t%2F1"})
        assert moved.key == store.key
        wrong: list[Json] = [None, [], {}, {"key": 5}, {"key": ""}, "shop:acme:t%2F1"]
        for state in wrong:
            with pytest.raises(HistoryStoreError, match="not a state of RedisHistory"):
                await store.update_from_state(state)
        for key in ("shop:other:t%2F1", "shop:acme:t%2F2", "t%2F1", "shop:acme:xt%2F1"):
            with pytest.raises(HistoryStoreError, match="another thread or tenant"):
                await store.update_from_state({"key": key})
        assert await store.serialize() == {"key": "shop:acme:t%2F1"}

    asyncio.run(check())


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda redis: redis.ask("SET", "clew:default:bad", "text"), "other than a list"),
        (lambda redis: redis.ask("RPUSH", "clew:default:bad", "no json"), "other than Clew's messages"),
        (lambda redis: redis.ask("RPUSH", "clew:default:bad", '{"id": "a"}'), "other than Clew's messages"),
        (
            lambda redis: redis.ask("RPUSH", "clew:default:bad", '{"id": "a", "message": {}}'),
            "other than Clew's messages",
        ),
        (lambda redis: redis.kill(), "cannot be reached"),
    ],
    ids=["another type", "not JSON", "without a message", "an empty message", "killed"],
)
def test_explains_errors_without_the_password(
    redis: RedisServer, spoil: Callable[[RedisServer], Any], words: str
) -> None:
    spoil(redis)
    store = RedisHistory(redis.url, "default", "bad")
    assert PASSWORD not in repr(store)
    for ask in (store.list_messages, lambda: store.add_messages(MESSAGES)):
        with pytest.raises(HistoryStoreError, match=words) as failed:
            asyncio.run(ask())
        assert PASSWORD not in "".join(traceback.format_exception(failed.value))


def test_explains_missing_rights_and_full_memory(redis: RedisServer) -> None:
    redis.ask("ACL", "SETUSER", "weak", "on", f">{PASSWORD}", "~clew:*", "+lrange", "+watch", "+multi", "+exec")
    weak = redis.url.replace("//:", "//weak:")
    with pytest.raises(HistoryStoreError, match=r"Allow it LRANGE.*'clew:default:full'"):
        asyncio.run(RedisHistory(weak, "default", "full").add_messages(MESSAGES))
    with pytest.raises(HistoryStoreError, match="Allow it LRANGE"):
        asyncio.run(RedisHistory(weak, "default", "full", key_prefix="other").list_messages())
    full = RedisHistory(redis.url, "default", "full")
    redis.ask("CONFIG", "SET", "maxmemory", "100")
    try:
        with pytest.raises(HistoryStoreError, match="memory is full"):
            asyncio.run(full.add_messages(MESSAGES))
    finally:
        redis.ask("CONFIG", "SET", "maxmemory", "0")
    assert asyncio.run(full.list_messages()) == []


@pytest.mark.parametrize("password", ["wrong-" + PASSWORD, ""])
def test_does_not_show_a_refused_password(redis: RedisServer, password: str) -> None:
    url = redis.url.replace(f":{PASSWORD}@", f":{password}@" if password else "")
    store = RedisHistory(url, "default", "locked")
    with pytest.raises(HistoryStoreError, match="refuses this user or this password") as failed:
        asyncio.run(store.list_messages())
    assert PASSWORD not in "".join(traceback.format_exception(failed.value))


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:6379",
        f"http://:{PASSWORD}@localhost",
        f"redis://:{PASSWORD}@localhost:port",
        f"redis://:{PASSWORD}@localhost?option={PASSWORD}",
        f"redis://:{PASSWORD}[@localhost",
        f"redis://localhost?db={PASSWORD}",
        None,
        6379,
    ],
)
def test_refuses_an_invalid_url_without_showing_it(url: Any) -> None:
    with pytest.raises(AgentConfigurationError, match="redis_url is not the URL") as refused:
        RedisHistory(url, "default", "any")
    assert PASSWORD not in str(refused.value)


@pytest.mark.parametrize("limit", [0, -1, True, 2.0, "5"])
def test_refuses_an_invalid_limit(limit: Any) -> None:
    with pytest.raises(AgentConfigurationError, match="Give 1 or more"):
        RedisHistory("redis://localhost", "default", "any", max_messages=limit)


def test_refuses_invalid_names() -> None:
    for names_ in (("", "any"), ("default", ""), ("default", "a" * 201), ("default", "\ud800")):
        with pytest.raises(InvalidNameError):
            RedisHistory("redis://localhost", *names_)
    with pytest.raises(InvalidNameError):
        RedisHistory("redis://localhost", "default", "any", key_prefix="")


def test_without_the_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    original_import = builtins.__import__

    def import_without_redis(name: str, *args: Any, **options: Any) -> Any:
        if name.partition(".")[0] == "redis":
            raise ImportError(name)
        return original_import(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", import_without_redis)
    with pytest.raises(MissingExtraError, match=r"\.\[redis\]"):
        RedisHistory("redis://localhost", "default", "any")


def test_keeps_no_connection_open_between_requests(redis: RedisServer) -> None:
    async def check() -> None:
        stores = [RedisHistory(redis.url, "default", f"t{number}") for number in range(20)]
        await asyncio.gather(*(store.add_messages(MESSAGES) for store in stores))
        await asyncio.gather(*(store.list_messages() for store in stores))

    asyncio.run(check())
    connections = (redis.ask("CLIENT", "LIST").count("cmd=") for _ in range(1_000))  # closed ones may linger
    assert 1 in connections
