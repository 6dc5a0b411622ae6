from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.agents.fake_history_stores import FakeHistoryBackend
from tests.agents.killed_processes import PassPoint, run_until
from tests.agents.run_checks import check_requests, check_store, events_of
from tests.servers.redis_server import PASSWORD, RedisServer

from clew import (
    Agent,
    Engine,
    HistoryStore,
    Message,
    RedisHistory,
    ScriptedChatClient,
    StoreContext,
    StoredMessage,
    tool,
)
from clew.agents import history_replication
from clew.domain.context.events import ContextFailed, ContextStateRecorded, HistoryReduced
from clew.domain.json_values import Json, JsonObject
from clew.errors import AgentConfigurationError, HistoryStoreSharedError
from clew.infrastructure import clock
from clew.testing import call

LEASE = 60 * 1_000_000
"""Microseconds after which the lease of a killed process has expired."""


async def lookup(number: int) -> str:
    """Look a number up."""
    return f"found {number}"


def answer(body: JsonObject) -> Any:
    """Call the tool for a look-up, otherwise answer with the number of received messages."""
    messages: Any = body["messages"]
    last = messages[-1]
    if last["role"] == "user" and last["content"].startswith("Look up"):
        return call("lookup", number=int(last["content"].split()[-1]))
    return f"{last['role']}: {len(messages)}"


def agent_of(engine: Engine, backend: FakeHistoryBackend | None = None, **options: Any) -> Agent:
    if backend is not None:
        options["history_store"] = backend.store
    return Agent(ScriptedChatClient(answer), engine=engine, name="Keeper", tools=[lookup], **options)


def sent(agent: Agent) -> list[str]:
    """Return the texts of the newest request."""
    client: Any = agent.client
    return [each.get("content") or "" for each in client.requests[-1]["messages"]]


async def ids_of(thread: Any) -> list[str]:
    """Return the ids of the messages on the log."""
    return [each.event_id for each in await thread.history()]


async def data_of(thread: Any, kind: type[Any]) -> list[Any]:
    return [event.data for event in await events_of(thread) if isinstance(event.data, kind)]


async def checked(engine: Engine, thread: Any) -> None:
    """Check that requests can be rebuilt and that the store verifies."""
    events = await events_of(thread)
    await check_requests(thread, events)
    await check_store(engine, thread, events)


def test_a_store_has_the_messages_of_the_log_in_order(any_url: str) -> None:
    async def check() -> None:
        backend = FakeHistoryBackend()
        async with Engine.open(any_url) as engine:
            agent = agent_of(engine, backend)
            one, two = await agent.run("I am Alice."), await agent.run("I am Bob.")
            await agent.run("Who am I?", thread=one.thread)
            assert sent(agent) == ["I am Alice.", "user: 1", "Who am I?"]
            await one.thread.append(Message.user("This is not part of a run."))
            await agent.run("Look up 7", thread=one.thread, stream=True).get_final_response()
            assert backend.texts(one.thread)[4:] == ["This is not part of a run.", "Look up 7", "", "", "tool: 8"]
            for response in (one, two):
                assert backend.ids(response.thread) == await ids_of(response.thread)
                await checked(engine, response.thread)
            assert [context.thread_id for context in backend.made] == [one.thread.id, two.thread.id]
            assert backend.restored_states == []

    asyncio.run(check())


def test_another_process_calls_the_factory_with_the_recorded_state(url: str) -> None:
    async def check() -> None:
        backend = FakeHistoryBackend()

        async def make(context: StoreContext) -> HistoryStore:
            await asyncio.sleep(0)
            return backend.store(context)

        async with Engine.open(url) as engine:
            thread = (await agent_of(engine, history_store=make).run("One.")).thread
            recorded = await data_of(thread, ContextStateRecorded)
            state: Json = {"key": f"default/{thread.id}"}
            assert recorded == [ContextStateRecorded(provider="history-store", state=state)]
        async with Engine.open(url) as engine:
            agent = agent_of(engine, history_store=make)
            again = await agent.thread(thread.id)
            await again.run("Two.")
            await again.run("Three.")
            assert await data_of(again, ContextStateRecorded) == recorded
            assert [context.state for context in backend.made] == [None, state]
            assert backend.restored_states == [state]
            assert backend.ids(again) == await ids_of(again)

    asyncio.run(check())


def test_no_store_is_made_for_a_remote_thread(any_url: str) -> None:
    async def check() -> None:
        backend = FakeHistoryBackend()
        async with Engine.open(any_url) as engine:
            client = ScriptedChatClient("Yes.", thread_kinds=("remote",), loop=True)
            agent = Agent(client, engine=engine, history_store=backend.store)
            response = await agent.run("Are you there?")
            await agent.run("Still?", thread=response.thread)
            assert response.thread.kind == "remote"
            assert (backend.made, backend.rows) == ([], {})

    asyncio.run(check())


def test_a_fork_starts_with_an_empty_store_that_receives_inherited_messages(any_url: str) -> None:
    async def check() -> None:
        backend = FakeHistoryBackend()
        async with Engine.open(any_url) as engine:
            agent = agent_of(engine, backend)
            parent = (await agent.run("One.")).thread
            await agent.run("Two.", thread=parent)
            before = backend.ids(parent)
            fork = await parent.fork(at_message=2)
            await agent.run("Another two.", thread=fork)
            assert backend.texts(fork) == ["One.", "user: 1", "Another two.", "user: 3"]
            assert backend.ids(fork)[:2] == before[:2]
            assert backend.ids(parent) == before
            assert [context.state for context in backend.made] == [None, None]
            own = (await agent.run("Once more.", thread=parent, fork=True)).thread
            assert backend.ids(own) == await ids_of(own)

    asyncio.run(check())


def test_rewound_messages_in_the_store_are_not_sent(any_url: str) -> None:
    async def check() -> None:
        backend = FakeHistoryBackend()
        async with Engine.open(any_url) as engine:
            agent = agent_of(engine, backend, read_history_from="store")
            thread = (await agent.run("One.")).thread
            answered = (await thread.history()).version
            await agent.run("Two.", thread=thread)
            await thread.rewind(to=answered)
            await agent.run("Three.", thread=thread)
            assert sent(agent) == ["One.", "user: 1", "Three."]
            assert backend.texts(thread) == ["One.", "user: 1", "Two.", "user: 3", "Three.", "user: 3"]
            await checked(engine, thread)

    asyncio.run(check())


def test_a_bounded_store_decides_which_messages_are_sent(any_url: str) -> None:
    async def check() -> None:
        backend = FakeHistoryBackend(most=2)
        async with Engine.open(any_url) as engine:
            agent = agent_of(engine, backend, read_history_from="store", instructions="Be brief.")
            thread = (await agent.run("One.")).thread
            for text in ("Two.", "Three."):
                await agent.run(text, thread=thread)
            assert sent(agent) == ["Be brief.", "Two.", "user: 4", "Three."]
            await agent.run("Look up 4", thread=thread)
            assert sent(agent)[:4] == ["Be brief.", "Three.", "user: 4", "Look up 4"]
            assert len(sent(agent)) == 6
            # The store's last two messages are now a result without its call and the answer.
            await agent.run("Five.", thread=thread)
            assert sent(agent) == ["Be brief.", "tool: 6", "Five."]
            assert len(await thread.history()) == 12
            reduced = await data_of(thread, HistoryReduced)
            assert {each.reducer for each in reduced} == {"history-store"}
            await checked(engine, thread)

    asyncio.run(check())


@pytest.mark.parametrize("most", [None, 2])
def test_a_run_continued_in_another_process_feeds_the_same_store(url: str, most: int | None) -> None:
    async def check() -> None:
        backend = FakeHistoryBackend(most=most)
        careful = tool(lookup, approval="always")

        def agent_in(engine: Engine) -> Agent:
            client = ScriptedChatClient(answer)
            return Agent(client, engine=engine, tools=[careful], history_store=backend.store, read_history_from="store")

        async with Engine.open(url) as engine:
            thread = (await agent_in(engine).run("One.")).thread
            response = await agent_in(engine).run("Look up 2", thread=thread)
            assert backend.ids(thread) == (await ids_of(thread))[-most if most else 0 :]
            await response.approvals[0].approve(actor="user:42")
        async with Engine.open(url) as engine:
            agent = agent_in(engine)
            thread = await agent.thread(thread.id)
            assert (await agent.continue_run(thread)).text.startswith("tool")
            assert len(sent(agent)) == 5
            assert backend.ids(thread) == (await ids_of(thread))[-most if most else 0 :]
            await agent.run("Three.", thread=thread)
            assert len(sent(agent)) == (2 if most else 7)
            await checked(engine, thread)

    asyncio.run(check())


@pytest.mark.parametrize("fault", ["raises", "hangs"])
@pytest.mark.parametrize("read_from", ["log", "store"])
def test_a_run_records_an_unavailable_store_and_continues(
    any_url: str, monkeypatch: pytest.MonkeyPatch, fault: str, read_from: str
) -> None:
    monkeypatch.setattr(history_replication, "SECONDS", 0.01)

    async def check() -> None:
        backend = FakeHistoryBackend(most=2)
        async with Engine.open(any_url) as engine:
            agent = agent_of(engine, backend, read_history_from=read_from)
            thread = (await agent.run("One.")).thread
            await agent.run("Two.", thread=thread)
            await agent.run("Three.", thread=thread)
            assert len(sent(agent)) == (3 if read_from == "store" else 5)
            backend.error, backend.hangs = (OSError("s3cret"), False) if fault == "raises" else (None, True)
            await agent.run("Look up 4", thread=thread)
            assert len(sent(agent)) == 9
            [failed] = await data_of(thread, ContextFailed)
            assert (failed.provider, failed.hook) == ("history-store", "list_messages")
            assert failed.error.kind == ("OSError" if fault == "raises" else "HistoryStoreError")
            assert "s3cret" not in str(await events_of(thread))
            backend.error, backend.hangs = None, False
            await agent.run("Five.", thread=thread)
            assert backend.ids(thread) == (await ids_of(thread))[-2:]
            assert len(sent(agent)) == (2 if read_from == "store" else 11)
            assert len(await data_of(thread, ContextFailed)) == 1
            await checked(engine, thread)

    asyncio.run(check())


def test_a_run_records_a_failing_factory_and_tries_again_later(any_url: str) -> None:
    async def check() -> None:
        backend = FakeHistoryBackend()
        down = True

        def make(context: StoreContext) -> HistoryStore:
            if down:
                message = "s3cret"
                raise OSError(message)
            return backend.store(context)

        async with Engine.open(any_url) as engine:
            agent = agent_of(engine, history_store=make)
            thread = (await agent.run("One.")).thread
            assert [each.hook for each in await data_of(thread, ContextFailed)] == ["history_store"]
            down = False
            await agent.run("Two.", thread=thread)
            assert backend.ids(thread) == await ids_of(thread)

    asyncio.run(check())


def test_refuses_to_store_two_threads_under_one_key(any_url: str) -> None:
    async def check() -> None:
        backend = FakeHistoryBackend(key=lambda _: "one for all")
        async with Engine.open(any_url) as engine:
            agent = agent_of(engine, backend)
            one = (await agent.run("I am Alice.")).thread
            two = await agent.get_local_thread()
            with pytest.raises(HistoryStoreSharedError, match=one.id):
                await agent.run("I am Bob.", thread=two)
            assert [each.message.text for each in backend.rows["one for all"]] == ["I am Alice.", "user: 1"]
            await agent.run("Who am I?", thread=one)
            fork = await one.fork()
            with pytest.raises(HistoryStoreSharedError, match=one.id):
                await agent.run("And I?", thread=fork)

    asyncio.run(check())


def test_a_store_state_with_a_password_is_refused_and_not_stored(tmp_path: Path) -> None:
    class Careless(HistoryStore):
        async def add_messages(self, messages: Any) -> None:
            pass

        async def list_messages(self) -> list[StoredMessage]:
            return []

        async def serialize(self, **_: Any) -> Any:
            return {"dsn": f"redis://:{PASSWORD}@cache:6379/0"}

    async def check() -> None:
        async with Engine.open(f"sqlite:///{tmp_path}/clew.db") as engine:
            agent = agent_of(engine, history_store=lambda _: Careless())
            thread = (await agent.run("One.")).thread
            assert await data_of(thread, ContextStateRecorded) == []
            failed = await data_of(thread, ContextFailed)
            assert {each.hook for each in failed} == {"serialize"}
            assert "state of the history store.dsn" in failed[0].error.message

    asyncio.run(check())
    assert all(PASSWORD.encode() not in file.read_bytes() for file in tmp_path.iterdir())


def test_an_invalid_store_configuration_is_an_error(any_url: str) -> None:
    async def check() -> None:
        async with Engine.open(any_url) as engine:
            agent = agent_of(engine, history_store=lambda _: None)
            with pytest.raises(AgentConfigurationError, match=r"clew\.HistoryStore"):
                await agent.run("One.")
            with pytest.raises(AgentConfigurationError, match="read_history_from"):
                agent_of(engine, read_history_from="store")

    asyncio.run(check())


# Killed processes


class FileHistory(HistoryStore):
    """Stores one message per line in a file; the process may be killed before and after each line."""

    def __init__(self, file: Path, pass_point: PassPoint = lambda _: None) -> None:
        self.file = file
        self.pass_point = pass_point

    async def add_messages(self, messages: Any) -> None:
        stored = {each.id for each in await self.list_messages()}
        for message in messages:
            if message.id not in stored:
                self.pass_point("before a message is stored")
                with self.file.open("a") as file:
                    file.write(f"{message.to_text()}\n")
                self.pass_point("after a message is stored")

    async def list_messages(self) -> list[StoredMessage]:
        lines = self.file.read_text().split("\n")[:-1] if self.file.exists() else []
        return [StoredMessage.from_text(line) for line in lines]


def test_the_store_equals_the_log_after_a_kill_at_any_point_and_the_next_run(tmp_path: Path) -> None:
    async def work(folder: Path, pass_point: PassPoint) -> None:
        async with Engine.open(f"sqlite:///{folder}/clew.db?synchronous=OFF", embedded=False) as engine:
            agent = agent_of(engine, history_store=lambda _: FileHistory(folder / "history", pass_point))
            thread = await engine.open_thread("killed")
            await agent.run("Look up 1", thread=thread)

    async def check_next_run(folder: Path) -> None:
        later = f"sqlite:///{folder}/clew.db?synchronous=OFF"
        async with Engine.open(later, embedded=False, now=lambda: clock.now() + LEASE) as engine:
            store = FileHistory(folder / "history")
            agent = agent_of(engine, history_store=lambda _: store)
            thread = await engine.open_thread("killed")
            await agent.run("Two.", thread=thread, abandon_run=True)
            assert [each.id for each in await store.list_messages()] == await ids_of(thread)
            await checked(engine, thread)

    points: list[str] = []
    for point in range(1, 200):
        folder = tmp_path / str(point)
        folder.mkdir()
        passed = run_until(point, lambda pass_point, folder=folder: work(folder, pass_point))  # type: ignore[misc]  # its own
        points = passed.points
        asyncio.run(check_next_run(folder))
        if not passed.killed:
            break
    assert points.count("before a message is stored") == 4
    assert points.count("before a commit") >= 4


# Redis


async def forty_turns(engine: Engine, redis: RedisServer, *, lost: bool) -> tuple[Any, JsonObject]:
    """Run forty turns and one more, before which Redis may be killed; return the thread and the last request."""

    def make(ctx: StoreContext) -> HistoryStore:
        return RedisHistory(redis_url=redis.url, tenant=ctx.tenant, thread_id=ctx.thread_id, max_messages=100)

    agent = agent_of(engine, read_history_from="store", history_store=make)
    thread = await agent.get_local_thread()
    key = f"clew:default:{thread.id}"
    for number in range(40):
        await agent.run(f"Look up {number}", thread=thread)
        stored = [json.loads(each)["message"] for each in redis.ask("LRANGE", key, 0, -1)]
        assert len(stored) == min(100, 4 * number + 4)
        assert stored[0]["role"] == "user"
    before = redis.ask("LRANGE", key, 0, -1)
    if lost:
        redis.kill()
        redis.start()
        assert redis.keys() == []
    await agent.run("Go on.", thread=thread)
    # The store dropped a user's message, and with the next one a call and its result.
    assert redis.ask("LRANGE", key, 0, -1)[:-2] == before[3:]
    client: Any = agent.client
    return thread, client.requests[-1]


def test_an_emptied_redis_does_not_change_the_next_request(any_url: str, redis: RedisServer) -> None:
    async def check() -> None:
        async with Engine.open(any_url) as engine:
            _, whole = await forty_turns(engine, redis, lost=False)
            thread, lost = await forty_turns(engine, redis, lost=True)
            assert json.dumps(whole) == json.dumps(lost)
            assert len(lost["messages"]) == 101  # type: ignore[arg-type]  # it is a list
            assert len(await thread.history()) == 162
            await checked(engine, thread)

    asyncio.run(check())


def test_a_run_continues_without_redis_and_does_not_store_the_password(redis: RedisServer, tmp_path: Path) -> None:
    async def check() -> None:
        async with Engine.open(f"sqlite:///{tmp_path}/clew.db") as engine:
            agent = agent_of(
                engine,
                read_history_from="store",
                history_store=lambda ctx: RedisHistory(redis.url, ctx.tenant, ctx.thread_id, max_messages=2),
            )
            thread = (await agent.run("One.")).thread
            await agent.run("Two.", thread=thread)
            redis.kill()
            await agent.run("Look up 3", thread=thread)
            assert len(sent(agent)) == 7
            [failed] = await data_of(thread, ContextFailed)
            assert "cannot be reached" in failed.error.message
            redis.start()
            await agent.run("Four.", thread=thread)
            assert sent(agent) == ["tool: 7", "Four."]
            assert redis.keys() == [f"clew:default:{thread.id}"]
            await checked(engine, thread)

    asyncio.run(check())
    assert all(PASSWORD.encode() not in file.read_bytes() for file in tmp_path.iterdir())
