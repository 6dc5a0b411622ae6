"""Appends with asyncio: many tasks of one event loop, each on its own conversation."""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import TypeAlias

from benchmarks.measurement import Setting, interleaved, median_ratio
from benchmarks.report import Figure, at_least
from benchmarks.synthetic_data import MessageGenerator
from clew import Conversations, Engine

try:
    import uvloop
except ImportError:
    uvloop = None

MESSAGES = MessageGenerator().messages(64)

Contender: TypeAlias = Callable[[Setting, int, int], Coroutine[None, None, float]]


def run(setting: Setting) -> Iterator[Figure]:
    """Appends per second through Engine, against Conversations in asyncio's threads."""
    for tasks in (16, 64):
        per_task = setting.size(6_400, 1_600) // tasks
        measured = interleaved(
            setting.size(5, 3),
            {
                "Engine": partial(_run, _engine, setting, tasks, per_task),
                **({} if uvloop is None else {"uvloop": partial(_run_on_uvloop, setting, tasks, per_task)}),
                "to_thread": partial(_run, _to_thread, setting, tasks, per_task // 4),
                "futures": partial(_run, _futures, setting, tasks, per_task),
            },
        )
        yield Figure(
            f"Engine, {tasks} tasks, against asyncio.to_thread(Conversations…)",
            statistics.median(measured["Engine"]),
            "/s",
            baseline=statistics.median(measured["to_thread"]),
            ratio=median_ratio(measured["Engine"], measured["to_thread"]),
            budget=at_least(15_000) if tasks == 16 else None,
        )
        if uvloop is not None:
            yield Figure(
                f"Engine on uvloop, {tasks} tasks, against asyncio's own loop",
                statistics.median(measured["uvloop"]),
                "/s",
                baseline=statistics.median(measured["Engine"]),
                ratio=median_ratio(measured["uvloop"], measured["Engine"]),
                budget=at_least(15_000) if tasks == 16 else None,
            )
        yield Figure(
            f"Engine, {tasks} tasks, against awaiting futures of a thread that stores nothing",
            statistics.median(measured["Engine"]),
            "/s",
            baseline=statistics.median(measured["futures"]),
            ratio=median_ratio(measured["Engine"], measured["futures"]),
        )


def _run(contender: Contender, setting: Setting, tasks: int, per_task: int) -> float:
    return asyncio.run(contender(setting, tasks, per_task))


def _run_on_uvloop(setting: Setting, tasks: int, per_task: int) -> float:
    rate: float = uvloop.run(_engine(setting, tasks, per_task))
    return rate


async def _engine(setting: Setting, tasks: int, per_task: int) -> float:
    async with Engine.open(setting.url("async")) as engine:
        threads = [await engine.start_thread() for _ in range(tasks)]

        async def one(number: int) -> None:
            for turn in range(per_task):
                await threads[number].append(MESSAGES[turn % 64])

        begin = time.perf_counter()
        await asyncio.gather(*(one(number) for number in range(tasks)))
        return tasks * per_task / (time.perf_counter() - begin)


async def _futures(_: Setting, tasks: int, per_task: int) -> float:
    """The upper limit of this machine: an async append without Clew and without SQLite."""
    waiting: SimpleQueue[Future[int] | None] = SimpleQueue()

    def answer() -> None:
        while (future := waiting.get()) is not None:
            future.set_result(1)

    async def one() -> None:
        for _ in range(per_task):
            future: Future[int] = Future()
            waiting.put(future)
            await asyncio.wrap_future(future)

    thread = threading.Thread(target=answer)
    thread.start()
    begin = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(tasks)))
    took = time.perf_counter() - begin
    waiting.put(None)
    thread.join()
    return tasks * per_task / took


async def _to_thread(setting: Setting, tasks: int, per_task: int) -> float:
    with Conversations.open(setting.url("to-thread")) as conversations:
        threads = [conversations.start_thread() for _ in range(tasks)]

        async def one(number: int) -> None:
            for turn in range(per_task):
                await asyncio.to_thread(threads[number].append, MESSAGES[turn % 64])

        begin = time.perf_counter()
        await asyncio.gather(*(one(number) for number in range(tasks)))
        return tasks * per_task / (time.perf_counter() - begin)
