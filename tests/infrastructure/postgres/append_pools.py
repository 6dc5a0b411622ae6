"""Pools of writers as the tests of them need them."""

from __future__ import annotations

import linecache
import threading
from collections.abc import Callable, Sequence
from types import FrameType

from tests.infrastructure.interruptions import Points
from tests.infrastructure.recording import PATIENCE, event

from clew.infrastructure.postgres import append_pool
from clew.infrastructure.postgres.append_pool import AppendPool
from clew.infrastructure.recorder import Append, Appended, Draft

DONE = Appended((), (), ())

Write = Callable[[Append], Appended | Exception]


def nothing() -> None:
    """What a pool calls after each batch, and these tests do not."""


def pool_of(write: Write, *, workers: int, batch_size: int = 4) -> AppendPool:
    """A pool that has each append of a batch written by this."""

    def each(appends: Sequence[Append], *, patient: bool) -> list[Appended | Exception]:  # noqa: ARG001 - the port's
        return [write(append) for append in appends]

    return AppendPool(each, nothing, workers=workers, batch_size=batch_size)


def by_itself(stream: str, version: int = 1) -> Append:
    """An append that cannot be written together with others."""
    return Append([event(stream, version)], drafts=[Draft(stream, "run", b"")])


def lines_of_the_pool() -> Points:
    """Each line of the pool that a thread comes to."""

    def is_point(frame: FrameType, kind: str) -> bool | None:
        if frame.f_code.co_filename != append_pool.__file__:
            return None
        said = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        # A signal is not looked at between a lock and its block.
        return kind == "line" and not said.startswith(("with ", "try:", "finally:"))

    return is_point


def end(threads: list[threading.Thread]) -> None:
    """Wait until they have ended."""
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
