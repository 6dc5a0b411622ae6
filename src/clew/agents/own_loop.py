"""The event loop of scripts that have none: one thread of the process runs it, as long as that lives."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from clew.domain.run_errors import AgentConfigurationError

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
    outcome: Future[T] = asyncio.run_coroutine_threadsafe(work, _loop())
    try:
        return outcome.result()
    except BaseException:
        if not outcome.done() and outcome.cancel():
            asyncio.run_coroutine_threadsafe(_settled(), _loop()).result()
        raise


async def _settled() -> None:
    """Wait until everything that was cancelled has come to its end."""
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task() and task.cancelling()]
    if others:
        await asyncio.wait(others)


def _loop() -> asyncio.AbstractEventLoop:
    with _lock:
        if not _loops or _loops[0].is_closed():
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="clew-agents", daemon=True).start()
            _loops[:] = [loop]
        return _loops[0]
