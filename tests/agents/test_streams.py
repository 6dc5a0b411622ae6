"""Streams of runs: all readers reach the end, and nothing waits for a stream without readers."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from tests.agents.turns import PATIENCE

from clew import Agent, Engine, ScriptedChatClient
from clew.agents.response import AgentUpdate
from clew.agents.stream import AgentStream
from clew.domain.runs.errors import RunStoppedError

WORDS = "one two three four"


def stream_of(text: str, **options: Any) -> AgentStream[Any]:
    return Agent(client=ScriptedChatClient(text, **options)).run("Count.", stream=True)


async def read_all(stream: AgentStream[Any]) -> list[AgentUpdate]:
    return [update async for update in stream]


@pytest.mark.anyio
async def test_all_readers_of_a_stream_reach_its_end() -> None:
    async with asyncio.timeout(PATIENCE):
        stream = stream_of(WORDS, delay=0.001)
        some, others, response = await asyncio.gather(read_all(stream), read_all(stream), stream.get_final_response())
        assert response.text == WORDS
        assert len(some) + len(others) <= len(WORDS.split()) + 1
        assert await read_all(stream) == []
        assert await stream.get_final_response() is response


@pytest.mark.anyio
async def test_all_readers_of_a_stream_learn_that_it_stopped() -> None:
    async with asyncio.timeout(PATIENCE):
        stream = stream_of(WORDS, delay=PATIENCE)
        first, second = (asyncio.ensure_future(stream.get_final_response()) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        with pytest.raises(RunStoppedError):
            await second


def test_an_ending_event_loop_does_not_wait_for_unread_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    streams: list[AgentStream[Any]] = []
    full = asyncio.Event()

    class Updates(asyncio.Queue[Any]):
        async def put(self, item: Any) -> None:
            if self.full():
                full.set()
            await super().put(item)

    async def begin() -> None:
        async with Engine.open("memory:") as engine:
            thread = await engine.start_thread()
            agent = Agent(client=ScriptedChatClient("word " * 100), engine=engine)
            streams.append(agent.run("Talk.", thread=thread, stream=True))
            await anext(streams[0])
            await full.wait()

    monkeypatch.setattr(asyncio, "Queue", Updates)
    loop = threading.Thread(target=lambda: asyncio.run(begin()), daemon=True)
    loop.start()
    loop.join(PATIENCE)
    assert not loop.is_alive()
