"""Comparing threads, forks and versions."""

from __future__ import annotations

from clew.domain.differences.diff import Diff
from clew.domain.differences.diff import diff as compared
from clew.service.core import Core
from clew.service.operations import Operation, read
from clew.service.thread_queries import At, history


def diff(
    core: Core,
    thread_id: str,
    other_id: str | None,
    at: At,
    other_at: At,
    at_message: int | None,
    other_at_message: int | None,
) -> Operation[Diff]:
    """The diff of two threads, or without ``other_id`` of two versions of one. Raises what history() raises."""
    one = yield from history(core, thread_id, at, at_message)
    other = yield from history(core, thread_id if other_id is None else other_id, other_at, other_at_message)
    return (yield from read(lambda: compared(one, other)))
