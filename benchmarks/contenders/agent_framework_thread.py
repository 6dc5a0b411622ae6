"""agent-framework with its FileHistoryProvider, a file of JSON lines. It runs in a separate environment.

The package has no history in SQLite.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agent_framework import (
    Agent,
    BaseChatClient,
    ChatResponse,
    CompactionProvider,
    FileHistoryProvider,
    Message,
    SlidingWindowStrategy,
)

from benchmarks.contenders.growing_thread import NEWEST, WINDOW, Contender, Operation, Texts, main

TEXTS = Texts()


class Instant(BaseChatClient):
    """A model that answers at once."""

    async def _inner_get_response(self, **_: Any) -> ChatResponse:
        return ChatResponse(messages=[_said("assistant")], response_id="response")


def _said(role: str) -> Message:
    return Message(role=role, contents=[TEXTS.next()])


@asynccontextmanager
async def appending(folder: Path) -> AsyncIterator[Operation]:
    """Append a message."""
    history = FileHistoryProvider(folder)

    async def append(thread: str, times: int) -> None:
        for _ in range(times):
            await history.save_messages(thread, [_said("user")])

    yield append


@asynccontextmanager
async def reading(folder: Path) -> AsyncIterator[Operation]:
    """Read the history, and take its newest messages."""
    history = FileHistoryProvider(folder)

    async def read(thread: str, times: int) -> int:
        for _ in range(times):
            newest = (await history.get_messages(thread))[-NEWEST:]
        return len(newest)

    yield read


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Operation]:
    """Run an agent that sends the newest messages."""
    history = FileHistoryProvider(folder)
    window = CompactionProvider(before_strategy=SlidingWindowStrategy(keep_last_groups=WINDOW))
    agent = Agent(Instant(), "You answer at once.", context_providers=[history, window])

    async def run(thread: str, times: int) -> None:
        session = agent.create_session(session_id=thread)
        for _ in range(times):
            await agent.run(TEXTS.next(), session=session)

    yield run


if __name__ == "__main__":
    main(Contender("agent-framework-core", {"newest": reading, "append": appending, "run": running}))
