"""Processes that run an agent and are killed at a numbered point of the run."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import traceback
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from clew.infrastructure.postgres.appends import PostgresWriter
from clew.infrastructure.sqlite.writer import SQLiteWriter

PassPoint = Callable[[str], None]
"""Called with the name of a point when the process reaches it; the process may be killed there."""


class PassedPoints(NamedTuple):
    """The points that a process passed, and whether it was killed at the next one."""

    points: list[str]
    killed: bool


def run_until(point: int | None, work: Callable[[PassPoint], Coroutine[Any, Any, None]]) -> PassedPoints:
    """Do the work in a process that is killed at a point, counted from 1; None lets it finish.

    The points are before and after each commit, and those that ``work`` names.
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
    assert code in {0, -signal.SIGKILL}, "the process failed before it was killed: see its output"
    return PassedPoints(names, code != 0)


def _end_in_child(point: int | None, work: Callable[[PassPoint], Coroutine[Any, Any, None]], pipe: int) -> None:
    numbers = itertools.count(1)

    def pass_point(name: str) -> None:
        if next(numbers) == point:
            os.kill(os.getpid(), signal.SIGKILL)
        os.write(pipe, f"{name}\n".encode())

    def with_points(commit: Callable[..., Any]) -> Callable[..., Any]:
        def passing(*arguments: Any, **options: Any) -> Any:
            pass_point("before a commit")
            result = commit(*arguments, **options)
            pass_point("after a commit")
            return result

        return passing

    # Only in this process, which ends.
    SQLiteWriter.commit = with_points(SQLiteWriter.commit)  # type: ignore[method-assign]
    PostgresWriter.write = with_points(PostgresWriter.write)  # type: ignore[method-assign]
    try:
        asyncio.run(work(pass_point))
    except BaseException:  # noqa: BLE001  # the child must not run the parent's code
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
