"""Operations: what the service does, written once and run by threads or by asyncio.

An operation is a generator. It yields a :class:`Read`, something short to be done that may touch the disk, or a
:class:`Wait`, a future of the writer's, or a :class:`Pause`; what it is sent back is the outcome. The face that runs it
decides how to wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Read(Generic[T]):
    """Do this; asyncio does it in a thread."""

    do: Callable[[], T]


@dataclass(frozen=True, slots=True)
class Wait(Generic[T]):
    """Wait for the writer."""

    outcome: Future[T]


@dataclass(frozen=True, slots=True)
class Pause:
    """Let so many seconds go by; asyncio needs no thread for that."""

    seconds: float


Step: TypeAlias = Read[Any] | Wait[Any] | Pause

Operation: TypeAlias = Generator[Step, Any, T]


def read(do: Callable[[], T]) -> Operation[T]:
    """The outcome of ``do``."""
    found: T = yield Read(do)
    return found


def wait(outcome: Future[T]) -> Operation[T]:
    """The outcome of the writer's future."""
    found: T = yield Wait(outcome)
    return found


def pause(seconds: float) -> Operation[None]:
    """Nothing, after so many seconds."""
    yield Pause(seconds)


def run(operation: Operation[T]) -> T:
    """Run an operation in the calling thread."""
    try:
        step = next(operation)
        while True:
            try:
                found = _done(step)
            except BaseException as error:  # noqa: BLE001  # the operation decides what it means
                step = operation.throw(error)
            else:
                step = operation.send(found)
    except StopIteration as done:
        outcome: T = done.value
        return outcome


def _done(step: Step) -> Any:
    match step:
        case Read(do):
            return do()
        case Wait(outcome):
            return outcome.result()
        case Pause(seconds):
            time.sleep(seconds)
            return None
