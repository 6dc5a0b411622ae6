"""The effects that operations of the service yield, and the runner that carries them out in a thread.

An operation is a generator. It yields a `Read`, which is a short call that may read the disk, a `Wait` for a future of
the writer, or a `Pause`, and receives the result. The runner decides how to wait.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from clew.domain.errors import CorruptEventError
from clew.domain.json_values import check_count

T = TypeVar("T")
C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Read(Generic[T]):
    """A call that may read the disk: asyncio makes it in a thread."""

    do: Callable[[], T]


@dataclass(frozen=True, slots=True)
class Wait(Generic[T]):
    """A wait for the writer."""

    outcome: Future[T]


@dataclass(frozen=True, slots=True)
class Pause:
    """A wait of that many seconds, for which asyncio needs no thread."""

    seconds: float


Step: TypeAlias = Read[Any] | Wait[Any] | Pause

Operation: TypeAlias = Generator[Step, Any, T]


def read(do: Callable[[], T]) -> Operation[T]:
    """The result of ``do``."""
    result: T = yield Read(do)
    return result


def wait(outcome: Future[T]) -> Operation[T]:
    """The outcome of the writer's future."""
    result: T = yield Wait(outcome)
    return result


def withdraw(outcome: Future[Any]) -> Operation[None]:
    """Cancel a write, or wait for it if a thread has begun it: then nothing of it is stored later."""
    if not outcome.cancel():
        with suppress(BaseException):  # the caller raises what interrupted it
            yield Wait(outcome)


def pause(seconds: float) -> Operation[None]:
    """Wait that many seconds."""
    yield Pause(seconds)


def run(operation: Operation[T]) -> T:
    """Run an operation in the calling thread."""
    try:
        step = next(operation)
        while True:
            try:
                result: Any = None
                if isinstance(step, Wait):
                    result = step.outcome.result()
                elif isinstance(step, Read):
                    result = step.do()
                else:
                    time.sleep(step.seconds)
            except BaseException as error:  # noqa: BLE001  # the operation decides what it means
                step = operation.throw(error)
            else:
                step = operation.send(result)
    except StopIteration as done:
        outcome: T = done.value
        return outcome
    except KeyboardInterrupt as error:
        # Ctrl-C can interrupt ``with`` itself. Then the traceback keeps the generator of a context manager, and what
        # that one holds, such as a lock. A program that continues may keep the traceback, as an interactive one does.
        traceback.clear_frames(error.__traceback__)
        raise


PAGE = 100
"""Items of a list that are first read together."""

GROWTH = 10
"""How much larger than the first page the last pages of a long list are."""

Page: TypeAlias = tuple[list[T], C | None]
"""The items, possibly none, and the cursor of the next page; None after the last page."""


def undamaged(page: Callable[[int], T], size: int) -> T:
    """A page of at most ``size`` events, which ends before a damaged one.

    Raises CorruptEventError when the first event is damaged.
    """
    while True:
        try:
            return page(size)
        except CorruptEventError:
            if size == 1:
                raise
            size //= 2


class Pages(Generic[T]):
    """The pages of a list, up to ``limit`` items. ``page`` reads the page after a cursor; the first has ``size`` items.

    Raises InvalidContentError for a limit that is not a whole number.
    """

    def __init__(
        self,
        page: Callable[[Any, int], Operation[Page[T, Any]]],
        after: object = None,
        limit: int | None = None,
        *,
        size: int = PAGE,
    ) -> None:
        if limit is not None:
            check_count(limit, "limit")
        self._page = page
        self._after = after
        self._remaining = limit
        self._size = size
        self._largest = PAGE * GROWTH
        self._done = limit is not None and limit <= 0

    def next(self) -> Operation[list[T]]:
        """The next page, empty after the last."""
        while not self._done:
            size = self._size if self._remaining is None else min(self._size, self._remaining)
            self._size = min(2 * size, self._largest)
            items, self._after = yield from self._page(self._after, size)
            if self._remaining is not None:
                self._remaining -= len(items)
            self._done = self._after is None or self._remaining == 0
            if items:
                return items
        return []
