"""Running operations for asyncio, with cancellation that neither loses nor doubles."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from clew.service.operations import Operation, Read, Wait

T = TypeVar("T")


async def drive(operation: Operation[T]) -> T:
    """Run an operation: short reads in a thread, the writer's futures awaited."""
    step: Read[Any] | Wait[Any]
    try:
        step = next(operation)
        while True:
            try:
                found = await (asyncio.to_thread(step.do) if isinstance(step, Read) else settled(step.outcome))
            except BaseException as error:  # noqa: BLE001  # the operation decides what it means
                step = operation.throw(error)
            else:
                step = operation.send(found)
    except StopIteration as done:
        outcome: T = done.value
        return outcome


async def settled(outcome: Future[T]) -> T:
    """The outcome of a future of the writer's.

    Cancelled before the writer took it, it is withdrawn and never stored. Cancelled later, the outcome is waited for
    and then the cancellation goes on: nothing is stored behind the back of a caller who believes that it was not.
    """
    waiter = asyncio.wrap_future(outcome)
    cancelled: asyncio.CancelledError | None = None
    while not waiter.done():
        try:
            await asyncio.shield(waiter)
        except asyncio.CancelledError as error:
            if waiter.cancelled() or outcome.cancel():
                raise
            cancelled = error
        except Exception:  # noqa: BLE001, S110  # it is raised below, by result()
            pass
    if cancelled is not None:
        waiter.exception()  # looked at, so that asyncio does not report it as lost
        raise cancelled
    return waiter.result()


def waker(loop: asyncio.AbstractEventLoop, woken: asyncio.Event) -> Callable[[], None]:
    """Sets the event from any thread. It does not hold the subscription, which nobody may want any more."""

    def wake() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(woken.set)

    return wake
