"""Operations on an event loop. A cancellation neither loses nor repeats a write."""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from clew.service.effects import Operation, Read, Wait

T = TypeVar("T")


async def drive(operation: Operation[T]) -> T:
    """Run an operation: its reads run in a thread, and the writer's futures are awaited."""
    try:
        step = next(operation)
        while True:
            try:
                result: Any = None
                if isinstance(step, Wait):
                    result = await outcome_of(step.outcome)
                elif isinstance(step, Read):
                    result = await asyncio.to_thread(step.do)
                else:
                    await asyncio.sleep(step.seconds)
            except BaseException as error:  # noqa: BLE001  # the operation decides what it means
                step = operation.throw(error)
            else:
                step = operation.send(result)
    except StopIteration as done:
        outcome: T = done.value
        return outcome


async def outcome_of(outcome: Future[T]) -> T:
    """The outcome of a future of the writer.

    A write that is cancelled before the writer begins with it is withdrawn and never stored. A later cancellation
    waits for the outcome, so nothing is stored after the caller was cancelled.
    """
    loop = asyncio.get_running_loop()
    cancelled: asyncio.CancelledError | None = None
    while True:
        done = loop.create_future()
        outcome.add_done_callback(partial(_notify, loop, done))
        try:
            await done
        except asyncio.CancelledError as error:
            if outcome.cancel():
                raise
            cancelled = error
        if outcome.done():
            break
    if cancelled is not None:
        raise cancelled
    if outcome.cancelled():
        raise asyncio.CancelledError
    return outcome.result()


def _notify(loop: asyncio.AbstractEventLoop, done: asyncio.Future[None], _: Future[Any]) -> None:
    """Wake the task that waits for the writer, from the writer's thread."""
    with contextlib.suppress(RuntimeError):  # the loop is closed: no task waits
        loop.call_soon_threadsafe(_wake, done)


def _wake(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


class ThreadsafeEvent:
    """An event that any thread can set and a task of this loop can wait for."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def set(self) -> None:
        """Wake the task that waits."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: no task waits
            self._loop.call_soon_threadsafe(self._event.set)

    def clear(self) -> None:
        """Let the next wait() wait."""
        self._event.clear()

    async def wait(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109  # the parameter of threading.Event.wait
        """Wait until the event is set, at most ``timeout`` seconds. Returns whether it is set."""
        try:
            return await asyncio.wait_for(self._event.wait(), timeout)
        except TimeoutError:
            return False
