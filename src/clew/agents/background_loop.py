"""The event loop of scripts that have none: one thread of the process runs it, as long as that lives."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from clew.domain.runs.errors import AgentConfigurationError

T = TypeVar("T")

_lock = threading.Lock()
_loops: list[asyncio.AbstractEventLoop] = []


def run(work: Coroutine[Any, Any, T]) -> T:
    """Carry out a coroutine and wait for it. Interrupted, it is cancelled, and its end is waited for.

    All of them share a loop, because clients keep their connections by loop. Raises AgentConfigurationError where the
    calling thread has a running loop of its own.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        work.close()
        raise AgentConfigurationError("run_sync: this thread runs an event loop. Use `await agent.run(…)` here.")
    loop, tasks = _loop(), list[asyncio.Task[Any]]()
    outcome: Future[T] = asyncio.run_coroutine_threadsafe(_noted(work, tasks), loop)
    try:
        return outcome.result()
    except BaseException:
        if not outcome.done():
            asyncio.run_coroutine_threadsafe(_ended(tasks), loop).result()
        raise


async def _noted(work: Coroutine[Any, Any, T], tasks: list[asyncio.Task[Any]]) -> T:
    """Carry it out, and let the caller know in which task."""
    task = asyncio.current_task()
    if task is not None:
        tasks.append(task)
    return await work


async def _ended(tasks: list[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait until they have come to their end."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


def _loop() -> asyncio.AbstractEventLoop:
    with _lock:
        if not _loops or _loops[0].is_closed():
            loop = asyncio.new_event_loop()
            threading.Thread(target=_keep_running, args=(loop,), name="clew-agents", daemon=True).start()
            _loops[:] = [loop]
        return _loops[0]


def _keep_running(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop. What ends a program ends a loop, but is the caller's to have: the loop hands it on when it runs."""
    while not loop.is_closed():
        with suppress(SystemExit, KeyboardInterrupt):
            loop.run_forever()
            return


def _forget() -> None:
    """In a child of ``os.fork``, where the thread of the loop is not."""
    global _lock  # noqa: PLW0603  # it may have been held when the process forked
    _lock = threading.Lock()
    _loops.clear()


os.register_at_fork(after_in_child=_forget)
