"""llm with its log in SQLite. It runs in a separate environment."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import llm
import sqlite_utils
from llm.logs import LogStore
from llm.parts import Message, TextPart

from benchmarks.contenders.growing_thread import NEWEST, Contender, Operation, Texts, main

TEXTS = Texts()


class Instant(llm.Model):
    """A model that answers at once."""

    model_id = "instant"

    def execute(self, *_: Any, **__: Any) -> Iterator[str]:
        """The next text."""
        yield TEXTS.next()


@contextmanager
def _log(folder: Path) -> Iterator[LogStore]:
    with sqlite_utils.Database(folder / "logs.db") as database:
        yield LogStore(database)


def _said(role: str) -> Message:
    return Message(role=role, parts=[TextPart(text=TEXTS.next())])


@asynccontextmanager
async def starting(folder: Path) -> AsyncIterator[Operation]:
    """Create the thread."""
    with _log(folder) as log:

        async def start(thread: str, _: int) -> None:
            log.ensure_thread(thread)

        yield start


@asynccontextmanager
async def appending(folder: Path) -> AsyncIterator[Operation]:
    """Append a message."""
    with _log(folder) as log:

        async def append(thread: str, times: int) -> None:
            for _ in range(times):
                log.append(thread, [_said("user")])

        yield append


@asynccontextmanager
async def reading(folder: Path) -> AsyncIterator[Operation]:
    """Read the thread, and take its newest messages."""
    with _log(folder) as log:

        async def read(thread: str, times: int) -> int:
            for _ in range(times):
                newest = log.thread_messages(thread)[-NEWEST:]
            return len(newest)

        yield read


@asynccontextmanager
async def forking(folder: Path) -> AsyncIterator[Operation]:
    """Start a thread at the newest message."""
    with _log(folder) as log:

        async def fork(thread: str, times: int) -> None:
            for _ in range(times):
                log.fork(log.thread_tip(thread), forked_from=thread)

        yield fork


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Operation]:
    """Continue the conversation as ``llm -c`` does. It sends the complete history, and logs the turn."""
    model = Instant()
    with _log(folder) as log:

        async def run(thread: str, times: int) -> None:
            for _ in range(times):
                conversation = llm.Conversation(model, id=thread, loaded_messages=log.thread_messages(thread))
                response = conversation.prompt(TEXTS.next())
                response.text()
                log.log(response)

        yield run


if __name__ == "__main__":
    operations = {"start": starting, "newest": reading, "fork": forking, "append": appending, "run": running}
    main(Contender("llm", operations))
