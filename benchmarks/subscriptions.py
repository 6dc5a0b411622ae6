"""Subscribers: the delay of an event, what many of them cost an append, and the size of the write-ahead log."""

from __future__ import annotations

import asyncio
import gc
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack

from benchmarks.measurement import Setting, median_ratio, percentile, store_url
from benchmarks.report import Figure, at_most, at_most_times
from benchmarks.synthetic_data import MessageGenerator
from clew import Conversations, Engine, Message
from clew.aio.threads import LocalThread
from clew.domain.events import MessageAppended

WARM_UP = 5
LONGEST_PAUSE = 0.04
"""Longest pause between appends in seconds: twice the polling interval, so that appends hit any point of it."""

PATIENCE = 30.0
MEBI = 1024 * 1024
HELLO = Message.user("Hello")

REST = 0.2
"""Seconds in which subscribers that wait use hardly any CPU."""


def run(setting: Setting) -> Iterator[Figure]:
    """Time from the call of append() to the delivery of the event to the subscriber, at ``synchronous=OFF``."""
    appends = setting.size(250, 60)
    for where, across, budget in (("in the process", False, 10), ("across processes", True, 60)):
        took = _delays(setting, appends, across=across)
        yield Figure(f"wake-up {where}, p50", percentile(took, 50), "ms")
        yield Figure(f"wake-up {where}, p99", percentile(took, 99), "ms", budget=at_most(budget))
    yield from asyncio.run(_appends_next_to_subscribers(setting))
    yield from _log_under_a_subscriber(setting)


def write(conversations: Conversations, thread_id: str, appends: int) -> None:
    """Append messages that contain their start time, by the clock that all processes of a machine share."""
    pause = random.Random(appends)
    thread = conversations.thread(thread_id)
    for _ in range(WARM_UP + appends):
        time.sleep(pause.uniform(0, LONGEST_PAUSE))
        thread.append(Message.user(str(time.monotonic_ns())))


def _delays(setting: Setting, appends: int, *, across: bool) -> list[float]:
    url = setting.url("wake")
    took: list[float] = []
    with Conversations.open(url) as conversations:
        thread = conversations.start_thread()
        with conversations.subscribe() as subscription:
            subscription.wait(PATIENCE)
            writer = _writer_elsewhere(url, thread.id, appends) if across else None
            if writer is None:
                threading.Thread(target=write, args=(conversations, thread.id, appends)).start()
            while len(took) < WARM_UP + appends and (event := subscription.wait(PATIENCE)) is not None:
                now = time.monotonic_ns()
                if isinstance(event.data, MessageAppended):
                    took.append((now - int(event.data.message.text)) / 1e6)
        if writer is not None:
            writer.wait()
    return took[WARM_UP:]


def _writer_elsewhere(url: str, thread_id: str, appends: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "benchmarks.subscriptions", url, thread_id, str(appends)])


async def _appends_next_to_subscribers(setting: Setting) -> list[Figure]:
    """CPU of an append while other threads have subscribers, each on its own thread, which all wait."""
    budgets = {0: None, setting.size(1_000, 100): at_most_times(1.2), setting.size(10_000, 1_000): at_most_times(2)}
    appends, rounds = setting.size(200, 100), setting.size(7, 5)
    measured: dict[int, list[float]] = {subscribers: [] for subscribers in budgets}
    async with AsyncExitStack() as stack:
        quiet = {each: await next_to_subscribers(stack, setting.url("next_to"), each) for each in budgets}
        for number in range(rounds + 1):
            for subscribers in [*budgets][number % 3 :] + [*budgets][: number % 3]:
                gc.collect()
                begin = time.process_time()
                for _ in range(appends):
                    await quiet[subscribers].append(HELLO)
                if number:  # the first round fills caches
                    measured[subscribers].append((time.process_time() - begin) / appends * 1e6)
    return [
        Figure(
            f"append with {subscribers:,} subscribers on other threads (CPU)",
            statistics.median(took),
            "µs",
            baseline=statistics.median(measured[0]),
            ratio=median_ratio(took, measured[0]),
            budget=budgets[subscribers],
        )
        for subscribers, took in measured.items()
        if subscribers
    ]


async def next_to_subscribers(stack: AsyncExitStack, url: str, subscribers: int) -> LocalThread:
    """A thread without subscribers in a store where other threads have so many."""
    engine = await stack.enter_async_context(Engine.open(url, embedded=False))

    async def follow(thread: LocalThread) -> None:
        async with thread.subscribe(after=1) as events:
            async for _ in events:
                pass

    for _ in range(subscribers):
        task = asyncio.create_task(follow(await engine.start_thread()))
        stack.callback(task.cancel)
    busy = True
    while busy:  # until all have read and wait
        begin = time.process_time()
        await asyncio.sleep(REST)
        busy = time.process_time() - begin > REST / 10
    return await engine.start_thread()


def _log_under_a_subscriber(setting: Setting) -> Iterator[Figure]:
    """A subscriber that reads without a pause must not prevent checkpoints of the log."""
    path = setting.fresh("log")
    log = path.with_name(path.name + "-wal")
    batches = setting.size(400, 60)
    generator = MessageGenerator()
    messages = [generator.message(4_000) for _ in range(100)]
    largest = 0
    with Conversations.open(store_url(path)) as conversations:
        thread = conversations.start_thread()
        subscription = conversations.subscribe()
        seen: list[int] = []
        reader = threading.Thread(target=lambda: seen.extend(event.version for event in subscription))
        reader.start()
        for _ in range(batches):
            thread.append(messages)
            largest = max(largest, log.stat().st_size)
        while len(seen) <= batches * len(messages) and reader.is_alive():
            time.sleep(0.01)
        subscription.close()
        reader.join()
        written = path.stat().st_size + log.stat().st_size
    yield Figure(
        f"write-ahead log under a subscriber while {written / MEBI:,.0f} MiB are appended, largest",
        largest / MEBI,
        "MiB",
        budget=at_most(64),
    )


if __name__ == "__main__":
    with Conversations.open(sys.argv[1]) as opened:
        write(opened, sys.argv[2], int(sys.argv[3]))
