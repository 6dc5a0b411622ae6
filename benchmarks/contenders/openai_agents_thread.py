"""openai-agents with its SQLiteSession; forks with its AdvancedSQLiteSession. It runs in a separate environment."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

from agents import (
    Agent,
    Model,
    ModelResponse,
    RunConfig,
    Runner,
    SessionSettings,
    SQLiteSession,
    Usage,
)
from agents.extensions.memory import AdvancedSQLiteSession
from openai.types.responses import ResponseOutputMessage, ResponseOutputText

from benchmarks.contenders.growing_thread import NEWEST, WINDOW, Contender, Operation, Texts, main

PACKAGE = "openai-agents"


class Instant(Model):
    """A model that answers at once."""

    def __init__(self) -> None:
        self._texts = Texts()

    async def get_response(self, *_: Any, **__: Any) -> ModelResponse:
        """The next text."""
        text = ResponseOutputText(text=self._texts.next(), annotations=[], type="output_text")
        message = ResponseOutputMessage(id="msg", content=[text], role="assistant", status="completed", type="message")
        return ModelResponse(output=[message], usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> Any:
        """Not used."""
        raise NotImplementedError


@asynccontextmanager
async def _sessions(folder: Path, session: Callable[..., Any]) -> AsyncIterator[Callable[[str], Any]]:
    """A function that opens the session of a thread, once."""
    opened: list[Any] = []

    @cache
    def open_session(thread: str) -> Any:
        opened.append(session(session_id=thread, db_path=folder / "sessions.db"))
        return opened[-1]

    yield open_session
    for each in opened:
        each.close()


def _appending(session: Callable[..., Any]) -> Any:
    @asynccontextmanager
    async def appending(folder: Path) -> AsyncIterator[Operation]:
        texts = Texts()
        async with _sessions(folder, session) as sessions:

            async def append(thread: str, times: int) -> None:
                for _ in range(times):
                    await sessions(thread).add_items([{"role": "user", "content": texts.next()}])

            yield append

    return appending


@asynccontextmanager
async def reading(folder: Path) -> AsyncIterator[Operation]:
    """Read the newest items."""
    async with _sessions(folder, SQLiteSession) as sessions:

        async def read(thread: str, times: int) -> int:
            for _ in range(times):
                newest = await sessions(thread).get_items(limit=NEWEST)
            return len(newest)

        yield read


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Operation]:
    """Run an agent that sends the newest items."""
    texts, agent = Texts(), Agent(name="agent", instructions="You answer at once.", model=Instant())
    config = RunConfig(session_settings=SessionSettings(limit=WINDOW), tracing_disabled=True)
    async with _sessions(folder, SQLiteSession) as sessions:

        async def run(thread: str, times: int) -> None:
            for _ in range(times):
                await Runner.run(agent, texts.next(), session=sessions(thread), run_config=config)

        yield run


def _advanced(**arguments: Any) -> Any:
    return AdvancedSQLiteSession(create_tables=True, **arguments)


@asynccontextmanager
async def forking(folder: Path) -> AsyncIterator[Operation]:
    """Branch at the newest message of the main branch."""
    turns: dict[str, int] = {}
    async with _sessions(folder, _advanced) as sessions:

        async def fork(thread: str, times: int) -> None:
            session = sessions(thread)
            if thread not in turns:  # the first call is not measured
                turns[thread] = len(await session.get_conversation_turns("main"))
            for _ in range(times):
                await session.switch_to_branch("main")
                await session.create_branch_from_turn(turns[thread])

        yield fork


if __name__ == "__main__":
    if sys.argv[2:] == ["advanced"]:
        main(Contender(PACKAGE, {"fork": forking, "append": _appending(_advanced)}))
    else:
        main(Contender(PACKAGE, {"newest": reading, "append": _appending(SQLiteSession), "run": running}))
