"""One opened store in both APIs: ``engine.blocking`` and ``conversations.awaited``."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from tests.infrastructure.recorder_steps import PATIENCE

from clew import Agent, Conversations, Engine, Message, ScriptedChatClient
from clew.domain.errors import BatchError, ClosedError, NotAuthorizedError

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]


async def test_both_read_and_write_one_store(url: str) -> None:
    async with Engine.open(url) as engine:
        blocking = engine.blocking
        thread = await engine.start_thread(thread_id="one")
        await thread.append(Message.user("awaited"))

        def write() -> list[str]:
            same = blocking.thread("one")
            same.append(Message.user("blocking"))
            with blocking.batch() as batch:
                batch.append(same, Message.user("batch"))
                batch.put(blocking.memory("user/42"), "units", "km")
            return [hit.thread_id for hit in blocking.search("awaited")]

        assert await asyncio.to_thread(write) == ["one"]
        await thread.append(Message.user("again"))
        texts = [message.text for message in (await thread.history()).messages]
        assert texts == ["awaited", "blocking", "batch", "again"]
        fact = await (await engine.memory("user/42")).get("units")
        assert fact is not None
        assert fact.value == "km"
        assert isinstance(blocking, Conversations)
        assert isinstance(blocking.awaited, Engine)


async def test_both_have_the_same_actor_and_grants(url: str) -> None:
    def authorize(actor: str | None, _action: str, _thread: str | None) -> bool:
        return actor != "user:eve"

    with Conversations.open(url, authorize=authorize) as conversations:
        conversations.start_thread(thread_id="one")
        ann = conversations.acting_as("user:ann").awaited
        said = await (await ann.thread("one")).append(Message.user("a"))
        assert said.actor == "user:ann"
        assert ann.blocking.thread("one").append(Message.user("b")).actor == "user:ann"
        with pytest.raises(NotAuthorizedError):
            await (await conversations.acting_as("user:eve").awaited.thread("one")).history()


async def test_subscriptions_of_both_see_the_writes_of_both(url: str) -> None:
    with Conversations.open(url) as conversations:
        engine = conversations.awaited
        async with engine.subscribe() as awaited:
            with conversations.subscribe() as blocking:
                thread = conversations.start_thread()
                await (await engine.thread(thread.id)).append(Message.user("a"))
                types = ["thread-started", "message-appended"]
                assert [getattr(await awaited.wait(PATIENCE), "type", None) for _ in types] == types
                assert [getattr(blocking.wait(PATIENCE), "type", None) for _ in types] == types


@pytest.mark.parametrize("closes", ["awaited", "blocking"])
async def test_closing_either_closes_the_store_and_ends_all_subscriptions(url: str, closes: str) -> None:
    engine = Engine.open(url)
    conversations = engine.blocking
    thread, same = await engine.start_thread(thread_id="one"), conversations.thread("one")
    awaited, blocking = engine.subscribe(), conversations.subscribe()
    seen: list[Any] = []
    reader = threading.Thread(target=lambda: seen.extend(blocking))
    reader.start()
    waiting = asyncio.create_task(_all(awaited))
    await asyncio.sleep(0)
    if closes == "awaited":
        await engine.close()
    else:
        conversations.close()
    await asyncio.wait_for(waiting, PATIENCE)
    await asyncio.to_thread(reader.join, PATIENCE)
    assert not reader.is_alive()
    with pytest.raises(ClosedError):
        await thread.append(Message.user("a"))
    with pytest.raises(ClosedError):
        same.append(Message.user("a"))
    await engine.close()
    conversations.close()


async def _all(events: Any) -> list[Any]:
    return [event async for event in events]


async def test_an_agent_runs_on_a_store_that_was_opened_for_both(url: str) -> None:
    with Conversations.open(url) as conversations:
        agent = Agent(ScriptedChatClient("Hello."), engine=conversations.awaited)
        thread = conversations.start_thread(thread_id="one")
        await agent.run("Hi.", thread=await conversations.awaited.thread("one"))
        assert [message.text for message in thread.history().messages] == ["Hi.", "Hello."]
        await conversations.awaited.close()


async def test_a_batch_takes_the_objects_of_its_own_api(url: str) -> None:
    async with Engine.open(url) as engine:
        thread: Any = await engine.start_thread()
        scope: Any = await engine.memory("user/42")
        with engine.blocking.batch() as batch:
            for part in (lambda: batch.append(thread, Message.user("a")), lambda: batch.put(scope, "units", 1)):
                with pytest.raises(BatchError, match="Give one of its"):
                    part()
        assert await thread.version == 1
