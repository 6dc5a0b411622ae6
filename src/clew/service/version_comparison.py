"""Versions of threads: a step shows one with its last messages, a diff compares two, a fork point is where two part.

Variants are the messages that stand in the same place of a conversation, one in each branch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from clew.domain.decider import check_version
from clew.domain.decider_state import Control, detached
from clew.domain.differences.diff import Diff
from clew.domain.differences.diff import diff as compare
from clew.domain.event_index import REWINDS
from clew.domain.events import HISTORY_REWOUND, MESSAGE_APPENDED, Event, HistoryRewound
from clew.domain.fork_tree import ForkPoint, last_shared
from clew.domain.history import HistoryMessage, Step, Walk, as_message, previous_version, removed_messages
from clew.domain.runs.events import GuardrailTripped
from clew.service.core import Core, load, with_checkpoints
from clew.service.effects import Operation, read
from clew.service.history_reads import FIRST_PAGE_BACK, PAGE, back
from clew.service.thread_commands import content_event
from clew.service.thread_directory import sharing
from clew.service.thread_queries import (
    At,
    MessageRef,
    event,
    history,
    readable,
    records,
    resolve,
)

_PATH_OF_MESSAGES = frozenset({MESSAGE_APPENDED, HISTORY_REWOUND})

_ENDS_OF_RUNS = frozenset({"guardrail-tripped", "run-completed", "run-failed", "run-abandoned", HISTORY_REWOUND})

LAST = 12
"""Messages that a step contains by default."""


class Variant(NamedTuple):
    """A message in one branch of a conversation; ``thread_id`` is the thread that it is recorded in.

    ``newest`` is the newest version of that thread whose path has the message: rewind to it, or fork there, to continue
    this branch.
    """

    thread_id: str
    message: HistoryMessage
    newest: int


def step(core: Core, thread_id: str, at: At = None, at_message: int | None = None, last: int = LAST) -> Operation[Step]:
    """A version of a thread, the newest by default, with the last messages on its path.

    The control is folded from the snapshot before the version; the messages are read backwards along the path until
    there are enough. Only after a rewind to another branch are they read back to the fork of the two branches.
    """
    head = yield from readable(core, thread_id, "replay")
    version = yield from resolve(core, thread_id, head, at, at_message)
    stream = core.stream(thread_id)
    stepped = yield from event(core, thread_id, version)
    head = yield from with_checkpoints(core, thread_id, head)
    control = head
    if version != head.version:
        control = yield from read(lambda: core.log.with_checkpoints(stream, core.log.control(stream, version)))
    path = Walk(version)
    yield from back(core, stream, path, lambda: len(path.messages) >= last)
    messages = path.last(last)
    removed = yield from _removed(core, stream, stepped, path, last)
    whole = partial(core.log.whole_messages, stream)
    shown, taken = (yield from read(partial(whole, messages))), (yield from read(partial(whole, removed)))
    (stepped,) = yield from read(partial(core.log.with_blobs, [stepped]))
    return Step(stepped, detached(control), detached(head), shown, taken)


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


def fork_point(core: Core, one: str, other: str) -> Operation[ForkPoint | None]:
    """The last version that two threads share; None if they have no common past. Raises what readable() raises."""
    mine = yield from readable(core, one, "fork_point")
    others = yield from readable(core, other, "fork_point")
    version = last_shared((yield from _lineage(core, one, mine)), (yield from _lineage(core, other, others)))
    if version < max(mine.began, others.began):  # at most events of a purged thread that had the id before
        return None
    return ForkPoint((yield from event(core, one, version)).thread_id, version)


def _lineage(core: Core, thread_id: str, control: Control) -> Operation[list[tuple[str, int]]]:
    """A thread and its ancestors, each with the last version of it that belongs to the thread's past."""
    stream: str | None = core.stream(thread_id)
    last = control.version
    lineage: list[tuple[str, int]] = []
    while stream is not None:
        lineage.append((stream, last))
        info = yield from read(partial(core.log.stream, stream))
        stream, last = (None, 0) if info is None or info.cut is None else (info.parent, min(last, info.cut))
    return lineage


def variants(core: Core, thread_id: str, ref: MessageRef) -> Operation[list[Variant]]:
    """The messages that follow the same message as this one, in all branches; this one is among them.

    The branches are the forks of the thread and of its ancestors, and what their rewinds abandoned. A purged thread
    that had the id before is none of them. Raises what content_event(), check_version() and readable() raise.
    """
    control = yield from readable(core, thread_id, "variants")
    message = yield from content_event(core, thread_id, ref, "variants", {MESSAGE_APPENDED})
    check_version(thread_id, control, message.version)
    path = Walk(message.version - 1)
    yield from back(core, message.stream, path, lambda: bool(path.messages))
    place = path.messages[0].version if path.messages else 1
    holder = (yield from event(core, thread_id, place)).thread_id
    found = {(message.stream, message.version): message}
    for branch in (yield from sharing(core, thread_id, holder, place)):
        for each in (yield from _following(core, branch, place, control.began)):
            found[each.stream, each.version] = each
    for address, each in [*found.items()]:
        if (yield from _is_stopped(core, each)):
            del found[address]
    in_order = sorted(found.values(), key=lambda each: each.position or 0)
    whole = yield from read(partial(core.log.with_blobs, in_order))
    newest = yield from _newest(core, in_order)
    return [
        Variant(each.thread_id, item, last)
        for each, last in zip(whole, newest, strict=True)
        if (item := as_message(each)) is not None
    ]


def _is_stopped(core: Core, message: Event) -> Operation[bool]:
    """Whether a guardrail stopped the message: the rewind after its trip took it off the path."""
    if message.run_id is None:
        return False
    tripped, after, head = False, message.version, (yield from load(core, message.thread_id)).version
    while after < head:
        upto = min(after + PAGE, head)
        page = partial(core.log.lineage, message.stream, after=after, upto=upto, types=_ENDS_OF_RUNS)
        for each in (yield from read(page)):
            if isinstance(each.data, HistoryRewound):
                return tripped and each.data.to < message.version
            if each.run_id == message.run_id:
                tripped = tripped or isinstance(each.data, GuardrailTripped)
                if not tripped:
                    return False
        after = upto
    return False


def _newest(core: Core, messages: Sequence[Event]) -> Operation[list[int]]:
    """For each message the newest version of its thread whose path has it. Only rewinds are read."""
    newest: list[int] = []
    rewinds_of: dict[str, list[Event]] = {}
    for message in messages:
        head = (yield from load(core, message.thread_id)).version
        if message.stream not in rewinds_of:
            after = min(each.version for each in messages if each.stream == message.stream)
            indexed = partial(core.log.indexed, message.stream, REWINDS, after=after, upto=head, limit=head)
            rewinds_of[message.stream] = [*reversed((yield from read(indexed)))]
        rewinds = [each for each in rewinds_of[message.stream] if each.version > message.version]
        starts = [(message.version, message.version)]
        starts += [(each.version, previous_version(each.version, each)) for each in rewinds]
        ends = [*(version - 1 for version, _ in starts[1:]), head]
        has_it: list[range] = []
        for (start, continued), end in zip(starts, ends, strict=True):
            if not has_it or any(continued in versions for versions in has_it):
                has_it.append(range(start, end + 1))
        newest.append(has_it[-1][-1])
    return newest


def _following(core: Core, thread_id: str, place: int, began: int) -> Operation[list[Event]]:
    """The messages of a lineage that follow the message at ``place``: the next one, and those after rewinds to it.

    There are none if the lineage did not begin at the version ``began``: then a purged thread had that past.
    """
    stream, control = core.stream(thread_id), (yield from load(core, thread_id))
    head, after = control.version, max(place, began)
    if control.began != began:
        return []
    rewinds = yield from read(partial(core.log.indexed, stream, REWINDS, after=after, upto=head, limit=head))
    starts = [(each.version, previous_version(each.version, each)) for each in reversed(rewinds)]
    ends_there = [range(place, place + 1)]
    """Versions whose path ends with the message at ``place``."""
    following: list[Event] = []
    for version, target in [(place, place), *starts] if place == after else starts:
        if any(target in versions for versions in ends_there):
            ending = yield from _next(core, stream, version, head)
            ends_there.append(range(version, head + 1 if ending is None else ending.version))
            if ending is not None and ending.type == MESSAGE_APPENDED:
                following.append(ending)
    return following


def _next(core: Core, stream: str, after: int, head: int) -> Operation[Event | None]:
    """The first message or rewind after a version, None if there is none."""
    while after < head:
        upto = min(after + FIRST_PAGE_BACK, head)
        page = yield from read(partial(core.log.lineage, stream, after=after, upto=upto, types=_PATH_OF_MESSAGES))
        if page:
            return page[0]
        after = upto
    return None


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
