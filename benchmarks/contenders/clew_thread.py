"""Clew's thread in a SQLite store. The argument ``log`` disables the read models."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.contenders.growing_thread import NEWEST, WINDOW, Contender, Operation, Texts, main
from clew import Agent, Conversations, Engine, KeepLast, Message, ScriptedChatClient
from clew.projections import SHIPPED

PROJECTIONS = () if sys.argv[2:] == ["log"] else SHIPPED
ANSWERS = 100


def _conversations(folder: Path, cache_bytes: int = 2**28) -> Conversations:
    return Conversations.open(folder / "clew.db", projections=PROJECTIONS, cache_bytes=cache_bytes)


@asynccontextmanager
async def starting(folder: Path) -> AsyncIterator[Operation]:
    """Start the thread with that id."""
    with _conversations(folder) as conversations:

        async def start(thread: str, _: int) -> None:
            conversations.start_thread(thread_id=thread)

        yield start


@asynccontextmanager
async def appending(folder: Path) -> AsyncIterator[Operation]:
    """Append a message, and update the read models."""
    texts = Texts()
    with _conversations(folder) as conversations:

        async def append(thread: str, times: int) -> None:
            for _ in range(times):
                conversations.thread(thread).append(Message.user(texts.next()))
            conversations.wait()

        yield append


@asynccontextmanager
async def reading(folder: Path) -> AsyncIterator[Operation]:
    """Read the newest messages from the store, not from a cache."""
    with _conversations(folder, cache_bytes=0) as conversations:

        async def read(thread: str, times: int) -> int:
            for _ in range(times):
                newest = conversations.thread(thread).history(last=NEWEST)
            return len(newest.messages)

        yield read


@asynccontextmanager
async def forking(folder: Path) -> AsyncIterator[Operation]:
    """Fork at the newest message, and update the read models."""
    with _conversations(folder) as conversations:

        async def fork(thread: str, times: int) -> None:
            for _ in range(times):
                conversations.thread(thread).fork()
            conversations.wait()

        yield fork


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Operation]:
    """Run an agent that sends the newest messages."""
    texts = Texts()
    async with Engine.open(folder / "clew.db", projections=PROJECTIONS) as engine:
        client = ScriptedChatClient([texts.next() for _ in range(ANSWERS)])
        agent = Agent(client, engine=engine, instructions="You answer at once.", reducer=KeepLast(WINDOW))

        async def run(thread: str, times: int) -> None:
            held = await agent.thread(thread)
            for _ in range(times):
                await held.run(texts.next())
            await engine.wait()

        yield run


if __name__ == "__main__":
    main(
        Contender(
            "clew",
            {"start": starting, "newest": reading, "fork": forking, "append": appending, "run": running},
        )
    )
