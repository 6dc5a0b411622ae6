"""Feeds: what a live subscription reads next. A subscription decides how to wait."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, TypeAlias

from clew.domain.errors import CorruptEventError
from clew.domain.json_values import check_count
from clew.service.authorization import action_on, check, permitted
from clew.service.effects import Operation, read, undamaged
from clew.service.history_reads import PAGE

if TYPE_CHECKING:
    from clew.domain.events import Event
    from clew.domain.ports import EventLog
    from clew.service.core import Core


Page: TypeAlias = tuple["list[Event]", int]
"""Events, and the position or version up to which the log was read."""


class Feed:
    """Events after a place, in pages: by position over all threads of a tenant, or by version in one thread.

    A page ends before a damaged event; the next page raises CorruptEventError. There can be a next page after commits
    ``of`` a stream, or of streams whose names start with it. A place that is not a whole number raises
    InvalidContentError.
    """

    def __init__(self, page: Callable[[int], Operation[Page]], after: int, of: str) -> None:
        check_count(after, "after")
        self.of = of
        self._page = page
        self._after = after

    def next_page(self) -> Operation[list[Event]]:
        """The next events; none at the end of the log."""
        events, self._after = yield from self._page(self._after)
        return events


def store_feed(core: Core, after: int) -> Feed:
    """Every event of the tenant's threads that the actor may read, in position order."""
    return Feed(partial(_of_store, core), after, core.prefix())


def thread_feed(core: Core, thread_id: str, after: int) -> Feed:
    """Every event of one thread's lineage, in version order. Every page is authorized."""
    stream = core.stream(thread_id)
    # Of a fork's lineage only its own stream grows: its ancestors' later events are behind the cuts.
    return Feed(partial(_of_thread, core, thread_id, stream), after, stream)


def _of_store(core: Core, after: int) -> Operation[Page]:
    """The next page of events that the actor may read. An empty page is the end of the log."""
    while True:
        page = partial(_store_page, core.log, core.prefix(), after)
        try:
            events, after = yield from read(partial(undamaged, page, PAGE))
        except CorruptEventError as error:
            if error.position is None or (yield from permitted(core, "subscribe", [error], _damaged_thread)):
                raise
            after = error.position
            continue
        permitted_events = yield from permitted(core, "subscribe", events, attrgetter("thread_id"))
        if permitted_events or not events:
            return list(permitted_events), after


def _of_thread(core: Core, thread_id: str, stream: str, after: int) -> Operation[Page]:
    yield from check(core, "subscribe", thread_id)
    return (yield from read(partial(undamaged, partial(_thread_page, core.log, stream, after), PAGE)))


def _damaged_thread(error: CorruptEventError) -> str | None:
    return action_on(error.stream or "", "subscribe")[1]


def _store_page(log: EventLog, prefix: str, after: int, size: int) -> Page:
    last = log.last_position()  # read first: later events are on the next page
    events = log.with_blobs(log.events_after(after, size, prefix))
    # At the end, events of other tenants are skipped, and not read again at every wake-up.
    return events, events[-1].position or after if events else max(after, last)


def _thread_page(log: EventLog, stream: str, after: int, size: int) -> Page:
    events = log.with_blobs(log.lineage(stream, after=after, upto=after + size))
    return events, events[-1].version if events else after
