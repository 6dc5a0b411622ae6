"""Append pools with a substitute for the database, for tests of the pool."""

from __future__ import annotations

import linecache
import threading
from collections.abc import Callable, Sequence
from types import FrameType

from tests.infrastructure.interruptions import Points
from tests.infrastructure.recorder_steps import PATIENCE, event

from clew.domain.ports import Appended, Draft
from clew.infrastructure.postgres import append_pool
from clew.infrastructure.postgres.append_pool import AppendPool
from clew.infrastructure.recorder_ports import Append

DONE = Appended((), (), ())

Write = Callable[[Append], Appended | Exception]


def ignore_commit(_: Sequence[tuple[Append, Appended]]) -> None:
    """A callback after each batch that does nothing."""


def pool_of(write: Write, *, workers: int, batch_size: int = 4) -> AppendPool:
    """A pool that writes each append of a batch with this function."""

    def write_batch(appends: Sequence[Append], *, patient: bool) -> list[Appended | Exception]:  # noqa: ARG001 - the port's
        return [write(append) for append in appends]

    return AppendPool(write_batch, ignore_commit, workers=workers, batch_size=batch_size)


def unbatchable(stream: str, version: int = 1) -> Append:
    """An append that cannot be part of a batch."""
    return Append([event(stream, version)], drafts=[Draft(stream, "run", b"")])


def lines_of_the_pool() -> Points:
    """Each line of the pool's code that a thread executes."""

    def is_point(frame: FrameType, kind: str) -> bool | None:
        if frame.f_code.co_filename != append_pool.__file__:
            return None
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        # The interpreter handles no signal between taking a lock and entering its block.
        return kind == "line" and not line.startswith(("with ", "try:", "finally:"))

    return is_point


def join(threads: list[threading.Thread]) -> None:
    """Wait until the threads have ended."""
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
