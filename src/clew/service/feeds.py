"""Feeds: what a live subscription has read and what it reads next, without saying how it waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from clew.service.operations import Operation, read
from clew.service.reading import PAGE

if TYPE_CHECKING:
    from clew.domain.events import Event
    from clew.service.core import Core


class Feed:
    """Events after a place, a page at a time: by position over all threads of a tenant, or by version on one."""

    def __init__(self, page: Callable[[int], list[Event]], place: Callable[[Event], int], after: int) -> None:
        self._page = page
        self._place = place
        self.after = after

    def next_page(self) -> Operation[list[Event]]:
        """The events that are there now; none when the feed has reached the end."""
        after = self.after
        found = yield from read(lambda: self._page(after))
        if found:
            self.after = self._place(found[-1])
        return found


def store_feed(core: Core, after: int) -> Feed:
    """Every event of the tenant's threads, in position order."""
    prefix = core.prefix()
    return Feed(
        lambda position: core.log.events_after(position, PAGE, prefix), lambda event: event.position or 0, after
    )


def thread_feed(core: Core, thread_id: str, after: int) -> Feed:
    """Every event of one thread's lineage, in version order."""
    stream = core.stream(thread_id)
    return Feed(
        lambda version: core.log.lineage(stream, after=version, upto=version + PAGE),
        lambda event: event.version,
        after,
    )
