"""Versions of a thread: a step shows one with its last messages, a diff compares two."""

from __future__ import annotations

from clew.domain.decider_state import detached
from clew.domain.differences.diff import Diff
from clew.domain.differences.diff import diff as compare
from clew.domain.events import Event, HistoryRewound
from clew.domain.history import HistoryMessage, Step, Walk, removed_messages
from clew.service.core import Core
from clew.service.effects import Operation, read
from clew.service.thread_queries import At, back, event, history, readable, records, resolve

LAST = 12
"""Messages that a step contains by default."""


def step(core: Core, thread_id: str, at: At = None, at_message: int | None = None, last: int = LAST) -> Operation[Step]:
    """A version of a thread, the newest by default, with the last messages on its path.

    The control is folded from the snapshot before the version; the messages are read backwards along the path until
    there are enough. Only after a rewind to another branch are they read back to the fork of the two branches.
    """
    head = yield from readable(core, thread_id, "replay")
    version = yield from resolve(core, thread_id, head, at, at_message)
    stream = core.stream(thread_id)
    stepped = yield from event(core, thread_id, version)
    control = head
    if version != head.version:
        control = yield from read(lambda: core.log.control(stream, version))
    path = Walk(version)
    yield from back(core, stream, path, lambda: len(path.messages) >= last)
    messages = path.last(last)
    removed = yield from _removed(core, stream, stepped, path, last)
    return Step(stepped, detached(control), detached(head), messages, removed)


def _removed(core: Core, stream: str, stepped: Event, path: Walk, last: int) -> Operation[tuple[HistoryMessage, ...]]:
    """The messages that a rewind removed, of the last ones before it."""
    if not isinstance(stepped.data, HistoryRewound):
        return ()
    before = Walk(stepped.version - 1)
    yield from back(core, stream, before, lambda: len(before.messages) >= last)
    messages = before.last(last)
    if messages:
        yield from back(core, stream, path, lambda: path.reached(messages[0].version))
    return removed_messages(messages, path)


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
    own = yield from records(core, thread_id, at=one.version)
    others = yield from records(core, other.thread_id, at=other.version)
    return (yield from read(lambda: compare(one, other, own, others)))
