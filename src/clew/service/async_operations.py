"""For asyncio: operations, with cancellation that neither loses nor doubles, and live subscriptions."""

from __future__ import annotations

import asyncio
import contextlib
import time
import weakref
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from clew.domain.errors import ClosedError
from clew.domain.events import Event
from clew.service.core import Core
from clew.service.feeds import Feed
from clew.service.operations import Operation, Pause, Read, Step

T = TypeVar("T")


async def drive(operation: Operation[T]) -> T:
    """Run an operation: short reads in a thread, the writer's futures awaited."""
    step: Step
    try:
        step = next(operation)
        while True:
            try:
                found = await _done(step)
            except BaseException as error:  # noqa: BLE001  # the operation decides what it means
                step = operation.throw(error)
            else:
                step = operation.send(found)
    except StopIteration as done:
        outcome: T = done.value
        return outcome


async def _done(step: Step) -> Any:
    if isinstance(step, Read):
        return await asyncio.to_thread(step.do)
    return await (asyncio.sleep(step.seconds) if isinstance(step, Pause) else settled(step.outcome))


async def settled(outcome: Future[T]) -> T:
    """The outcome of a future of the writer's.

    Cancelled before the writer took it, it is withdrawn and never stored. Cancelled later, the outcome is waited for
    and then the cancellation goes on: nothing is stored behind the back of a caller who believes that it was not.
    """
    loop = asyncio.get_running_loop()
    cancelled: asyncio.CancelledError | None = None
    while True:
        done = loop.create_future()
        outcome.add_done_callback(partial(_tell, loop, done))
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


def _tell(loop: asyncio.AbstractEventLoop, done: asyncio.Future[None], _: Future[Any]) -> None:
    """Wake who waits for the writer, from its thread."""
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(_wake, done)


def _wake(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


def waker(loop: asyncio.AbstractEventLoop, woken: asyncio.Event) -> Callable[[], None]:
    """Sets the event from any thread. It does not hold the subscription, which nobody may want any more."""

    def wake() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(woken.set)

    return wake


class Subscription(AsyncIterator[Event]):
    """A live stream of events: iterate over it, close it to end the iteration. It holds no thread."""

    def __init__(self, core: Core, feed: Feed, live: weakref.WeakSet[Subscription]) -> None:
        self._feed = feed
        self._page: list[Event] = []
        self._next = 0
        self._closed = False
        self._woken = asyncio.Event()
        self._wake = waker(asyncio.get_running_loop(), self._woken)
        self._end = core.log.listen(self._wake)
        weakref.finalize(self, self._end).atexit = False
        live.add(self)

    async def __anext__(self) -> Event:
        event = await self.wait(None)
        if event is None:
            raise StopAsyncIteration
        return event

    async def wait(self, timeout: float | None) -> Event | None:  # noqa: ASYNC109  # the same as the synchronous one
        """The next event; None when the subscription is closed or nothing came for so many seconds."""
        until = None if timeout is None else time.monotonic() + timeout
        while not self._closed:
            if self._next < len(self._page):
                self._next += 1
                return self._page[self._next - 1]
            self._woken.clear()
            try:
                self._page, self._next = await drive(self._feed.next_page()), 0
            except ClosedError:
                if self._closed:  # the service was closed while this read
                    return None
                raise
            left = None if until is None else until - time.monotonic()
            if self._page or self._closed:
                continue
            if left is not None and left <= 0:
                return None
            try:
                await asyncio.wait_for(self._woken.wait(), left)
            except TimeoutError:
                return None
        return None

    def close(self) -> None:
        """End the iteration, also of a task that waits in it."""
        self._closed = True
        self._end()
        self._wake()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
