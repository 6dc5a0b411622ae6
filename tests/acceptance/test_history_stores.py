"""External history stores in applications."""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.programs import in_another_process, requests, turns_in
from tests.servers.redis_server import PASSWORD, RedisServer

from clew import Agent, Engine, HistoryStore, RedisHistory, ScriptedChatClient, StoredMessage
from clew.errors import HistoryStoreSharedError
from clew.testing import call

HELLO = [("user", "I am Alice."), ("assistant", "Noted.")]

KILLED_BEFORE_FEEDING = """
import asyncio, os, signal
from clew import Agent, Engine, HistoryStore, ScriptedChatClient

class Dying(HistoryStore):
    async def add_messages(self, messages):
        os.kill(os.getpid(), signal.SIGKILL)
    async def list_messages(self):
        return []

async def main():
    async with Engine.open("sqlite:///clew.db") as engine:
        agent = Agent(ScriptedChatClient("Noted."), engine=engine, history_store=lambda ctx: Dying())
        await agent.run("I am Alice.", thread=await engine.open_thread("killed"))

asyncio.run(main())
"""


class DatabaseHistory(HistoryStore):
    def __init__(self, path: Path, key: str, newest: int | None = None) -> None:
        self.path, self.key, self.newest = path, key, newest

    async def add_messages(self, messages: Any) -> None:
        with closing(sqlite3.connect(self.path)) as database, database:
            database.execute("CREATE TABLE IF NOT EXISTS stored (key, id, message, UNIQUE (key, id))")
            rows = [(self.key, each.id, each.to_text()) for each in messages]
            database.executemany("INSERT OR IGNORE INTO stored VALUES (?, ?, ?)", rows)

    async def list_messages(self) -> list[StoredMessage]:
        rows = [StoredMessage.from_text(text) for _, text in self.rows()]
        return rows if self.newest is None else rows[-self.newest :]

    async def serialize(self, **_: Any) -> Any:
        return {"key": self.key}

    async def update_from_state(self, state: Any, **_: Any) -> None:
        self.key = state["key"]

    def rows(self) -> list[Any]:
        with closing(sqlite3.connect(self.path)) as database:
            if not database.execute("SELECT 1 FROM sqlite_master").fetchone():
                return []
            return database.execute(
                "SELECT id, message FROM stored WHERE key = ? ORDER BY rowid", (self.key,)
            ).fetchall()


async def ids(thread: Any) -> list[str]:
    """Return the event ids of the thread's messages."""
    return [message.event_id for message in await thread.history()]


async def events(thread: Any, type_: str) -> list[Any]:
    return [event async for event in thread.events() if event.type == type_]


def test_a_custom_history_store_receives_the_messages_of_its_thread(tmp_path: Path) -> None:
    made: dict[str, DatabaseHistory] = {}

    async def make(ctx: Any) -> DatabaseHistory:
        made[ctx.thread_id] = DatabaseHistory(tmp_path / "history.db", key=f"{ctx.tenant}/{ctx.thread_id}")
        return made[ctx.thread_id]

    async def talk() -> None:
        async with Engine.open(f"sqlite:///{tmp_path}/clew.db") as engine:
            agent = Agent(ScriptedChatClient("Noted.", loop=True), engine=engine, history_store=make)
            one, two = await agent.run("I am Alice."), await agent.run("I am Bob.")
            await agent.run("Who am I?", thread=one.thread)
            assert turns_in((await requests(one.thread))[-1]) == [*HELLO, ("user", "Who am I?")]
            assert len(made) == 2
            for thread in (one.thread, two.thread):
                assert [id_ for id_, _ in made[thread.id].rows()] == await ids(thread)

    asyncio.run(talk())


def test_messages_that_a_killed_process_did_not_feed_are_fed_later(tmp_path: Path) -> None:
    done = in_another_process(KILLED_BEFORE_FEEDING, tmp_path)
    assert done.returncode == -signal.SIGKILL
    store = DatabaseHistory(tmp_path / "history.db", "killed")

    async def continue_later() -> None:
        # A minute later, the lease of the killed process is expired.
        later = time.time_ns() // 1_000 + 60_000_000
        async with Engine.open(f"sqlite:///{tmp_path}/clew.db", now=lambda: later) as engine:
            agent = Agent(ScriptedChatClient("Noted."), engine=engine, history_store=lambda _: store)
            thread = await agent.thread("killed")
            assert (await thread.history()).messages[0].text == "I am Alice."
            await agent.run("Who am I?", thread=thread, abandon_run=True)
            assert [id_ for id_, _ in store.rows()] == await ids(thread)

    asyncio.run(continue_later())


def test_a_store_that_returns_two_messages_limits_the_request(tmp_path: Path) -> None:
    async def talk() -> None:
        async with Engine.open("memory:") as engine:
            agent = Agent(
                ScriptedChatClient("Noted.", loop=True),
                engine=engine,
                history_store=lambda ctx: DatabaseHistory(tmp_path / "history.db", ctx.thread_id, newest=2),
                read_history_from="store",
            )
            thread = (await agent.run("I am Bob.")).thread
            for text in ("I am Alice.", "Who am I?"):
                await agent.run(text, thread=thread)
            assert turns_in((await requests(thread))[-1]) == [*HELLO, ("user", "Who am I?")]
            assert len(await thread.history()) == 6

    asyncio.run(talk())


def test_a_failing_store_is_recorded_and_loses_no_message() -> None:
    class Broken(HistoryStore):
        async def add_messages(self, messages: Any) -> None:
            raise OSError(PASSWORD, len(messages))

        async def list_messages(self) -> list[StoredMessage]:
            return []

    async def talk() -> None:
        async with Engine.open("memory:") as engine:
            agent = Agent(ScriptedChatClient("Noted."), engine=engine, history_store=lambda _: Broken())
            thread = (await agent.run("I am Alice.")).thread
            assert [(each.role, each.text) for each in await thread.history()] == HELLO
            (failed,) = await events(thread, "context-failed")
            assert (failed.data.provider, failed.data.error.kind) == ("history-store", "OSError")
            assert PASSWORD not in repr([event async for event in thread.events()])

    asyncio.run(talk())


def test_a_remote_thread_has_no_history_store() -> None:
    async def talk() -> None:
        async with Engine.open("memory:") as engine:
            client = ScriptedChatClient("Noted.", thread_kinds=["remote"])
            agent = Agent(client, engine=engine, history_store=lambda _: pytest.fail("the store was created"))
            assert (await agent.run("I am Alice.")).text == "Noted."

    asyncio.run(talk())


# In Redis


async def lookup(number: int) -> str:
    """Look something up."""
    return f"found {number}"


def answers() -> Iterator[Any]:
    for number in range(40):
        yield from (call("lookup", number=number), f"It is {number}.")
    yield "Done."


async def forty_turns(redis: RedisServer, engine: Engine, *, lost: bool) -> tuple[Any, Any]:
    """Run forty turns; return the thread and its last request. If ``lost``, Redis loses the list before it."""
    agent = Agent(
        client=ScriptedChatClient(list(answers())),
        engine=engine,
        tools=[lookup],
        read_history_from="store",
        history_store=lambda ctx: RedisHistory(
            redis_url=redis.url, tenant=ctx.tenant, thread_id=ctx.thread_id, max_messages=100
        ),
    )
    thread = await agent.get_local_thread()
    for number in range(40):
        await agent.run(f"Look up {number}", thread=thread)
    if lost:
        redis.flush()
    await agent.run("Go on.", thread=thread)
    return thread, (await requests(thread))[-1].body


def test_redis_gets_the_last_hundred_messages_again_after_a_loss(redis: RedisServer, tmp_path: Path) -> None:
    async def talk() -> None:
        async with Engine.open(f"sqlite:///{tmp_path}/clew.db") as engine:
            whole, sent = await forty_turns(redis, engine, lost=False)
            before = redis.ask("LRANGE", f"clew:default:{whole.id}", 0, -1)
            assert len(before) <= 100
            assert json.loads(before[0])["message"]["role"] != "tool"
            assert len(await whole.history()) == 162
            thread, sent_after = await forty_turns(redis, engine, lost=True)
            assert json.dumps(sent_after) == json.dumps(sent)
            assert redis.keys() == [f"clew:default:{thread.id}"]
            after = redis.ask("LRANGE", redis.keys()[0], 0, -1)
            assert [json.loads(each)["message"] for each in after] == [json.loads(each)["message"] for each in before]

    asyncio.run(talk())
    assert all(PASSWORD.encode() not in file.read_bytes() for file in tmp_path.iterdir())


def test_one_key_for_two_threads_is_an_error(redis: RedisServer) -> None:
    async def talk() -> None:
        async with Engine.open("memory:") as engine:
            agent = Agent(
                ScriptedChatClient("Noted.", loop=True),
                engine=engine,
                history_store=lambda ctx: RedisHistory(redis.url, ctx.tenant, "constant"),
            )
            one = await agent.run("I am Alice.")
            with pytest.raises(HistoryStoreSharedError, match=one.thread.id):
                await agent.run("I am Bob.")
            assert redis.ask("LLEN", "clew:default:constant") == 2

    asyncio.run(talk())


def test_a_run_continues_without_redis(redis: RedisServer, tmp_path: Path) -> None:
    async def talk() -> None:
        async with Engine.open(f"sqlite:///{tmp_path}/clew.db") as engine:
            agent = Agent(
                ScriptedChatClient("Noted.", loop=True),
                engine=engine,
                read_history_from="store",
                history_store=lambda ctx: RedisHistory(redis.url, ctx.tenant, ctx.thread_id, max_messages=100),
            )
            thread = (await agent.run("I am Alice.")).thread
            redis.kill()
            await agent.run("Who am I?", thread=thread)
            assert turns_in((await requests(thread))[-1]) == [*HELLO, ("user", "Who am I?")]
            (failed,) = await events(thread, "context-failed")
            assert "cannot be reached" in failed.data.error.message

    asyncio.run(talk())
    assert all(PASSWORD.encode() not in file.read_bytes() for file in tmp_path.iterdir())
