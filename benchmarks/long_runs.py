"""Runs on long threads: with a reducer that keeps the newest messages, and with the whole history."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress

from benchmarks.measurement import Setting, cpu, interleaved, median_ratio
from benchmarks.report import Figure, at_most_times
from benchmarks.synthetic_data import MessageGenerator
from clew import Agent, Engine, KeepLast
from clew.aio.threads import LocalThread
from clew.domain.json_values import JsonObject
from clew.domain.messages import Message
from clew.domain.models.chat_requests import OPENAI_CHAT
from clew.domain.models.client import Answer, ModelRequest, ThreadKind, Update

KEPT = 20
TICK_SECONDS = 0.001


class InstantClient:
    """A client that answers without looking at the request, so that its own time does not count."""

    kind = "instant"
    wire = OPENAI_CHAT
    model = "instant-1"
    thread_kinds: tuple[ThreadKind, ...] = ("local",)
    options: JsonObject = {}  # noqa: RUF012  # never changed

    async def ask(self, request: ModelRequest) -> AsyncIterator[Update]:
        """Answer."""
        del request
        yield Answer(Message.assistant("It is so."), finish_reason="stop")


def run(setting: Setting) -> Iterator[Figure]:
    """The CPU time of a run by the length of its thread, and the longest time for which the event loop stands still."""
    lengths = 100, 2_000, setting.size(20_000, 5_000)
    rounds = setting.size(15, 5)
    with asyncio.Runner() as runner:
        for words, reducer in ((f"KeepLast({KEPT})", KeepLast(KEPT)), ("the whole history", None)):
            engine = Engine.open(setting.url("long-runs"), embedded=False)
            runner.run(engine.__aenter__())
            agent = Agent(InstantClient(), engine=engine, reducer=reducer)
            threads = {str(length): runner.run(_thread(agent, length)) for length in lengths}
            pauses: dict[str, list[float]] = {name: [] for name in threads}

            def once(name: str, thread: LocalThread) -> Callable[[], float]:
                return lambda: cpu(lambda: pauses[name].append(runner.run(_pause(thread)))) * 1e3  # noqa: B023

            measured = interleaved(rounds, {name: once(name, thread) for name, thread in threads.items()})
            runner.run(engine.__aexit__(None, None, None))
            short, *others = threads
            for name in others:
                yield Figure(
                    f"a run with {words} after {int(name):,} messages, against {short}",
                    statistics.median(measured[name]),
                    "ms",
                    baseline=statistics.median(measured[short]),
                    ratio=median_ratio(measured[name], measured[short]),
                    budget=None if reducer is None else at_most_times(1.3),
                )
            yield Figure(
                f"the longest standstill of the event loop in a run with {words} after {lengths[-1]:,} messages",
                statistics.median(pauses[str(lengths[-1])]) * 1e3,
                "ms",
                baseline=statistics.median(pauses[short]) * 1e3,
            )


async def _thread(agent: Agent, length: int) -> LocalThread:
    thread = await agent.get_local_thread()
    messages = list(MessageGenerator().messages(length))
    for start in range(0, length, 500):
        await thread.append(messages[start : start + 500])
    await thread.run("Is it so?")
    return thread


async def _pause(thread: LocalThread) -> float:
    """The longest time between two turns of the event loop during a run, in seconds."""
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        while True:
            began = time.perf_counter()
            await asyncio.sleep(TICK_SECONDS)
            longest = max(longest, time.perf_counter() - began - TICK_SECONDS)

    watching = asyncio.ensure_future(watch())
    await thread.run("And now?")
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching
    return longest
