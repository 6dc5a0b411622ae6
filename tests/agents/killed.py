"""Processes that run an agent and are killed at a point of the run that a test names by its number."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sqlite3
import traceback
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from clew.infrastructure.sqlite.writer import SQLiteWriter

Passing = Callable[[str], None]
"""Says that the process comes to a point, by its name: it may end there."""


class Passed(NamedTuple):
    """The points that a process passed, and whether it was killed at the next."""

    points: list[str]
    killed: bool


def run_until(point: int | None, work: Callable[[Passing], Coroutine[Any, Any, None]]) -> Passed:
    """Do the work in a process that is killed at a point, counted from 1; without one, it goes through.

    Points are before and after each commit, and those that ``work`` names.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        _end_in_child(point, work, write)
    os.close(write)
    with os.fdopen(read) as passed:
        names = passed.read().split("\n")[:-1]
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in {0, -signal.SIGKILL}, "the process that was to be killed failed on its own: see what it printed"
    return Passed(names, code != 0)


def _end_in_child(point: int | None, work: Callable[[Passing], Coroutine[Any, Any, None]], told: int) -> None:
    numbers = itertools.count(1)

    def passing(name: str) -> None:
        if next(numbers) == point:
            os.kill(os.getpid(), signal.SIGKILL)
        os.write(told, f"{name}\n".encode())

    really = SQLiteWriter.commit

    def commit(self: SQLiteWriter, connection: sqlite3.Connection) -> None:
        passing("before a commit")
        really(self, connection)
        passing("after a commit")

    SQLiteWriter.commit = commit  # type: ignore[method-assign]  # of this process, which ends
    try:
        asyncio.run(work(passing))
    except BaseException:  # noqa: BLE001  # nothing of the parent's is to go on in here
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
