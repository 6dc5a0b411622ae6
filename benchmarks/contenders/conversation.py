"""The conversation that all contenders hold, and how their CPU is taken. Standard library only: all of them have it.

A contender is a function that opens what it is, and for each shape of conversation a function that says one thing and
has it answered, the growing conversation sent with it. Its process holds a conversation of each shape and prints what
that cost, as JSON.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import string
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol, TypeAlias

Shape: TypeAlias = Literal["whole", "streamed", "with a tool"]

SHAPES: tuple[Shape, ...] = ("whole", "streamed", "with a tool")

MODEL = "instant-1"
INSTRUCTIONS = "You answer at once."
WARMING = 5
"""Turns of another conversation before the one that is measured: connections, caches, what is built once."""

Say: TypeAlias = Callable[[str], Awaitable[str]]
"""Says something and gives what was answered."""


class Contender(Protocol):
    """What holds conversations."""

    async def converse(self, shape: Shape) -> Say:
        """Begin a conversation."""
        ...

    def counted(self) -> int:
        """How many commits were made so far; 0 for what makes none."""
        ...


Opening: TypeAlias = Callable[[str, list[str]], AbstractAsyncContextManager[Contender]]
"""Makes a contender, from the server's address and the rest of the command line."""


def weather(city: str) -> str:
    """The weather in a city."""
    return f"Rain in {city}."


def main(opening: Opening) -> None:
    """Hold the conversations; the command line has the server's address, the number of turns, and more."""
    address, turns, *rest = sys.argv[1:]
    print(json.dumps(asyncio.run(_measured(opening, address, int(turns), rest))))


async def _measured(opening: Opening, address: str, turns: int, rest: list[str]) -> dict[str, Any]:
    texts = _texts(turns)
    found: dict[str, Any] = {}
    async with opening(address, rest) as contender:
        for shape in SHAPES:
            say = await contender.converse(shape)
            for text in texts[:WARMING]:
                await say(text)
            say = await contender.converse(shape)
            gc.collect()
            commits, began, cpu = contender.counted(), time.perf_counter(), time.process_time()
            for text in texts:
                if len(await say(text)) != 200:
                    raise RuntimeError("The answer is not what the server said.")
            cpu, took = time.process_time() - cpu, time.perf_counter() - began
            made = contender.counted() - commits
            found[shape] = {"cpu": cpu * 1e3 / turns, "wall": took * 1e3 / turns, "commits": made / turns}
    return found


def _texts(count: int) -> list[str]:
    """Words of 200 characters, always the same."""
    some = random.Random(1)
    return ["".join(some.choices(string.ascii_lowercase + "   ", k=200)) for _ in range(count)]
