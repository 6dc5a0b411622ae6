"""Operations on an event loop. A cancellation neither loses nor repeats a write."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
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
    waits = _of_thread.waits
    if waits is None or waits.loop is not loop:
        waits = _of_thread.waits = _Waits(loop)
    while True:
        done = loop.create_future()
        if not waits.added:
            loop.call_soon(waits.begin)
        waits.added.append((outcome, done))
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


class _Waits:
    """The waits of a loop's tasks for the writer.

    The writer is called once for all appends of an iteration of the loop, and wakes the loop once for all outcomes that
    it sets meanwhile.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.added: list[tuple[Future[Any], asyncio.Future[None]]] = []
        """The outcomes that tasks wait for since the last iteration, and what to set when they are known."""
        self._done: deque[asyncio.Future[None]] = deque()
        self._woken = False

    def begin(self) -> None:
        """Have the outcomes written."""
        added, self.added = self.added, []
        try:
            for outcome, done in added:
                outcome.add_done_callback(partial(self._note, done))
        except BaseException:  # Ctrl-C, after which the loop may run again: what was noted twice is woken once
            self.added += added
            self._woken = False
            self.loop.call_soon(self.begin)
            raise

    def _note(self, done: asyncio.Future[None], _: Future[Any]) -> None:
        """Wake the loop, from the writer's thread."""
        self._done.append(done)
        if not self._woken:
            self._woken = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: no task waits
                self.loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._woken = False  # before the first is taken: what is noted later wakes the loop again
        while self._done:
            done = self._done.popleft()
            if not done.done():
                done.set_result(None)


class _OfThread(threading.local):
    waits: _Waits | None = None


_of_thread = _OfThread()
"""The waits of the loop that runs in this thread."""


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
