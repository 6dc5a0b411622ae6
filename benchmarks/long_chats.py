"""A group chat of 10,000 turns and 10 participants: `at=`, forks and rewinds in a process that has not read it."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

from tests.agents.group_chats import agent_of, grow_chat

from benchmarks.measurement import Setting, store_url
from benchmarks.report import Figure, at_most
from clew import Engine

CHAT = "long"
PLACES = (2, 4, 6, 8, 9)
"""Tenths of the chat at which each is measured."""


def run(setting: Setting) -> Iterator[Figure]:
    """How long each takes, wall time with the store on disk and ``synchronous=OFF``: the median over the places."""
    turns = setting.size(10_000, 1_000)
    took = asyncio.run(_measure(store_url(setting.fresh(CHAT)), turns))
    for name, seconds in took.items():
        yield Figure(
            f"{name}, {turns:,} turns of 10 participants", statistics.median(seconds) * 1e3, "ms", budget=at_most(10)
        )


async def _measure(url: str, turns: int) -> dict[str, list[float]]:
    async with Engine.open(url, embedded=False) as engine:
        version = await grow_chat(engine, turns=turns, chat_id=CHAT)
    took: dict[str, list[float]] = {}
    for place in PLACES:
        async with Engine.open(url, embedded=False) as engine:
            chat = await engine.chat(CHAT, [agent_of(engine, f"P{each}") for each in range(10)])
            at, newest = version * place // 10, await chat.thread.version
            steps: dict[str, Callable[[], Awaitable[Any]]] = {
                "state of a chat at an earlier version": partial(chat.state, at=at),
                "fork at another one": partial(chat.fork, at=at - 500),
                "fork": chat.fork,
                "rewind": partial(chat.thread.rewind, to=at + 500),
                "state after the rewind": chat.refresh,
            }
            for name, step in steps.items():
                began = time.perf_counter()
                await step()
                took.setdefault(name, []).append(time.perf_counter() - began)
            await chat.thread.rewind(to=newest)
    return took
