"""Reading a part of a history from its end: some messages, or what a run needs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from clew.domain.context.state import ContextState, context_state_of
from clew.domain.decider_state import Control
from clew.domain.history import History, HistoryMessage, NeededHistory, Walk
from clew.domain.ports import EventLog
from clew.service.core import Core, newest_control
from clew.service.effects import Operation, read, run

PAGE = 500

FIRST_PAGE_BACK = 64
"""Events that are first read at once, backwards: more than a screen shows, and few enough to decode fast."""


def back(core: Core, stream: str, walk: Walk, enough: Callable[[], bool], first: int = 0) -> Operation[None]:
    """Walk back until there are enough messages, or none after version ``first`` is left. The pages grow."""
    size = FIRST_PAGE_BACK
    while walk.at > first and not enough():
        after = max(first, walk.at - size)
        walk.back((yield from read(partial(core.log.lineage, stream, after=after, upto=walk.at))), after)
        size = min(2 * size, PAGE)


def read_part(core: Core, thread_id: str, version: int | None, needed: NeededHistory) -> History | None:
    """The needed part of a history that this process has not read, None if all of it is needed.

    A span that is not needed ends between two messages of the path. So the path before and after it is walked back from
    there, without the events in it.
    """
    stream = core.stream(thread_id)
    control = newest_control(core, stream) if version is None else core.log.control(stream, version)
    context = _recorded_context(core.log, stream, control)
    unneeded = () if context is None else needed.unneeded(context)
    if context is None or not unneeded:
        return None
    messages: list[HistoryMessage] = []
    unread: list[tuple[int, int]] = []

    def read_back(upto: int, after: int, most: float = float("inf")) -> Walk:
        walk = Walk(upto)
        run(back(core, stream, walk, lambda: len(walk.messages) >= most, after))
        messages.extend(walk.messages)
        return walk

    upto, more = control.version, needed.more and needed.more + 1  # one more shows that some are left
    for first, end in reversed(unneeded):
        last = min(end, upto)
        read_back(upto, last)
        if more > 0:
            walk = read_back(last, first - 1, more)
            last, more = walk.at, more - len(walk.messages)
        if first <= last:
            unread.append((first, last))
        upto = first - 1
    if not unread:
        return None
    read_back(upto, 0)
    return History(thread_id, control.version, tuple(reversed(messages)), context, tuple(reversed(unread)))


def _recorded_context(log: EventLog, stream: str, control: Control) -> ContextState | None:
    """The context state that belongs to a control, None if an event lost its part of it to a redaction."""
    versions = control.context.known(lambda at: log.control(stream, at).context)
    recorded = {*versions.states.values(), *versions.reductions.values()}
    events = {at: event for at in recorded for event in log.lineage(stream, after=at - 1, upto=at)}
    return context_state_of(versions, events)
