"""Operations: what the service does, written once and run by a thread or by asyncio.

An operation is a generator. It yields a `Read`, which is a short call that may read the disk, a `Wait` for a future of
the writer, or a `Pause`. It is sent the result. The caller that runs it decides how to wait.
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
    """Call this; asyncio calls it in a thread."""

    do: Callable[[], T]


@dataclass(frozen=True, slots=True)
class Wait(Generic[T]):
    """Wait for the writer."""

    outcome: Future[T]


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait that many seconds; asyncio needs no thread for it."""

    seconds: float


Step: TypeAlias = Read[Any] | Wait[Any] | Pause

Operation: TypeAlias = Generator[Step, Any, T]


def read(do: Callable[[], T]) -> Operation[T]:
    """The result of ``do``."""
    found: T = yield Read(do)
    return found


def wait(outcome: Future[T]) -> Operation[T]:
    """The outcome of the writer's future."""
    found: T = yield Wait(outcome)
    return found


def pause(seconds: float) -> Operation[None]:
    """Wait that many seconds."""
    yield Pause(seconds)


def run(operation: Operation[T]) -> T:
    """Run an operation in the calling thread."""
    try:
        step = next(operation)
        while True:
            try:
                found: Any = None
                if isinstance(step, Wait):
                    found = step.outcome.result()
                elif isinstance(step, Read):
                    found = step.do()
                else:
                    time.sleep(step.seconds)
            except BaseException as error:  # noqa: BLE001  # the operation decides what it means
                step = operation.throw(error)
            else:
                step = operation.send(found)
    except StopIteration as done:
        outcome: T = done.value
        return outcome
