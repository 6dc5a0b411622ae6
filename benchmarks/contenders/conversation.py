"""The conversation that all contenders hold, and the measurement of its costs. Standard library only.

A contender opens its resources and returns, for each shape of conversation, a function that sends one message with the
whole conversation and returns the answer. Its process holds one conversation per shape and prints the costs as JSON.
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
"""Turns of another conversation before the measured one: they open connections and fill caches."""

Say: TypeAlias = Callable[[str], Awaitable[str]]
"""Sends a text and returns the answer."""


class Contender(Protocol):
    """An implementation that holds conversations."""

    async def converse(self, shape: Shape) -> Say:
        """Start a conversation."""
        ...

    def commits(self) -> int:
        """The number of commits so far; 0 without a store."""
        ...


Opening: TypeAlias = Callable[[str, list[str]], AbstractAsyncContextManager[Contender]]
"""Creates a contender from the server's address and further arguments."""


def weather(city: str) -> str:
    """Return the weather in a city."""
    return f"Rain in {city}."


def main(opening: Opening) -> None:
    """Hold the conversations. Arguments: the server's address, the number of turns, and the contender's own."""
    address, turns, *rest = sys.argv[1:]
    print(json.dumps(asyncio.run(_measured(opening, address, int(turns), rest))))


async def _measured(opening: Opening, address: str, turns: int, rest: list[str]) -> dict[str, Any]:
    texts = _texts(turns)
    costs: dict[str, Any] = {}
    async with opening(address, rest) as contender:
        for shape in SHAPES:
            say = await contender.converse(shape)
            for text in texts[:WARMING]:
                await say(text)
            say = await contender.converse(shape)
            gc.collect()
            commits_before, began, cpu = contender.commits(), time.perf_counter(), time.process_time()
            for text in texts:
                if len(await say(text)) != 200:
                    raise RuntimeError("The answer is not the one that the server sent.")
            cpu, took = time.process_time() - cpu, time.perf_counter() - began
            commits = contender.commits() - commits_before
            costs[shape] = {"cpu": cpu * 1e3 / turns, "wall": took * 1e3 / turns, "commits": commits / turns}
    return costs


def _texts(count: int) -> list[str]:
    """Repeatable texts of 200 characters."""
    some = random.Random(1)
    return ["".join(some.choices(string.ascii_lowercase + "   ", k=200)) for _ in range(count)]
