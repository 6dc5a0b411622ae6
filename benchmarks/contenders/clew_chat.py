"""Clew's group chat in a SQLite store with all read models."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.contenders.growing_chat import TURNS, Run, main
from benchmarks.contenders.growing_thread import WINDOW, Texts
from clew import Agent, Engine, KeepLast, Message
from clew.domain.json_values import JsonObject
from clew.domain.models.chat_requests import OPENAI_CHAT
from clew.domain.models.client import Answer, ModelRequest, ThreadKind, Update

TEXTS = Texts()


class Instant:
    """A model that answers at once, and counts its answers."""

    kind = "instant"
    wire = OPENAI_CHAT
    model = "instant-1"
    thread_kinds: tuple[ThreadKind, ...] = ("local",)
    options: JsonObject = {}  # noqa: RUF012  # never changed
    answers = 0

    async def ask(self, request: ModelRequest) -> AsyncIterator[Update]:
        """Answer."""
        del request
        self.answers += 1
        yield Answer(Message.assistant(TEXTS.next()), finish_reason="stop")


@asynccontextmanager
async def chatting(folder: Path, agents: int) -> AsyncIterator[Run]:
    """A chat whose agents speak in turn. A run includes the update of the read models."""
    client = Instant()
    async with Engine.open(folder / "clew.db") as engine:
        chat = await engine.start_chat(
            [Agent(client, engine=engine, id=f"agent-{number}", reducer=KeepLast(WINDOW)) for number in range(agents)],
            max_turns=TURNS,
        )

        async def run() -> int:
            before = client.answers
            await chat.run(TEXTS.next())
            await engine.wait()
            return client.answers - before

        yield run


if __name__ == "__main__":
    main("clew", chatting)
