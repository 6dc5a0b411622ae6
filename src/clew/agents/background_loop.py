"""The event loop for scripts without one: a background thread runs it as long as the process lives."""

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
    """Run a coroutine to its end. An interrupt cancels it, and waits for its end.

    All coroutines share one loop, because clients keep their connections by loop. Raises AgentConfigurationError if the
    calling thread runs an event loop itself.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        work.close()
        raise AgentConfigurationError("run_sync: this thread runs an event loop. Use `await agent.run(…)` here.")
    loop, tasks = _loop(), list[asyncio.Task[Any]]()
    outcome: Future[T] = asyncio.run_coroutine_threadsafe(_run_noted(work, tasks), loop)
    try:
        return outcome.result()
    except BaseException:
        if not outcome.done():
            asyncio.run_coroutine_threadsafe(_cancel(tasks), loop).result()
        raise


async def _run_noted(work: Coroutine[Any, Any, T], tasks: list[asyncio.Task[Any]]) -> T:
    """Run it, and let the caller know in which task."""
    task = asyncio.current_task()
    if task is not None:
        tasks.append(task)
    return await work


async def _cancel(tasks: list[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait for their end."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The loop of the background thread, None if nothing has needed it yet."""
    return next((loop for loop in _loops if loop.is_running()), None)


def _loop() -> asyncio.AbstractEventLoop:
    with _lock:
        if not _loops or _loops[0].is_closed():
            loop = asyncio.new_event_loop()
            threading.Thread(target=_keep_running, args=(loop,), name="clew-agents", daemon=True).start()
            _loops[:] = [loop]
        return _loops[0]


def _keep_running(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop, again after SystemExit and KeyboardInterrupt: they end the loop, and are raised in the caller."""
    while not loop.is_closed():
        with suppress(SystemExit, KeyboardInterrupt):
            loop.run_forever()
            return


def _forget() -> None:
    """Start over in a child of ``os.fork``: it does not have the thread of the loop."""
    global _lock  # noqa: PLW0603  # it may have been held when the process forked
    _lock = threading.Lock()
    _loops.clear()


os.register_at_fork(after_in_child=_forget)
