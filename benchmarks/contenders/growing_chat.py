"""The growing group chat of each contender of the theme ``chats``, and its measurement. Standard library only.

A contender is a process with one chat. It reads commands from its standard input, one JSON object a line, and answers
each with a line. ``{"grow": 1000, "seconds": 30}`` carries out runs of the chat until it has that many turns, for 30
seconds of CPU at most. ``{"measure": 1000, "times": 1}`` carries out one run more.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

TURNS = 20
"""Turns of a run. Each has an answer of 200 characters; so has the input of the run."""

Run: TypeAlias = Callable[[], Awaitable[int]]
"""Carries out a run. Returns how many answers the models gave."""

Opening: TypeAlias = Callable[[Path, int], AbstractAsyncContextManager[Run]]
"""Starts a chat of so many agents, with its store in a folder."""


def main(package: str, opening: Opening) -> None:
    """Obey the commands on the standard input. The arguments are an empty folder and the number of agents."""
    asyncio.run(_main(package, opening, Path(sys.argv[1]), int(sys.argv[2])))


async def _main(package: str, opening: Opening, folder: Path, agents: int) -> None:
    store = folder / "store"
    store.mkdir()
    async with opening(store, agents) as run:
        chat = _GrowingChat(run, store)
        _answer({"version": version(package)})
        for line in sys.stdin:
            command = json.loads(line)
            _answer(await (chat.grow(command["grow"], command["seconds"]) if "grow" in command else chat.measure()))


def _answer(answer: Mapping[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


class _GrowingChat:
    """A chat, and how many turns it has."""

    def __init__(self, run: Run, store: Path) -> None:
        self._run = run
        self._store = store
        self._turns = 0

    async def grow(self, turns: int, seconds: float) -> dict[str, float]:
        """Grow to so many turns. The answer is empty if the time was over before that."""
        begin = time.process_time()
        while self._turns < turns and time.process_time() < begin + seconds:
            await self._one_run()
        if self._turns < turns:
            return {}
        return {"seconds": time.process_time() - begin, "bytes": self._bytes()}

    async def measure(self) -> dict[str, float]:
        """CPU seconds of the whole process for a turn of one more run."""
        gc.collect()
        begin = time.process_time()
        await self._one_run()
        return {"turn": (time.process_time() - begin) / TURNS}

    async def _one_run(self) -> None:
        answers = await self._run()
        if answers != TURNS:
            raise RuntimeError(f"The models gave {answers} answers in {TURNS} turns.")
        self._turns += TURNS

    def _bytes(self) -> int:
        return sum(path.stat().st_size for path in self._store.rglob("*") if path.is_file())
