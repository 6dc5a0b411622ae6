"""Events that other events name by their version: how they are found for those who show them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from clew.domain.events import Event
    from clew.sync.threads import Thread

Lookup: TypeAlias = "Callable[[Event, int], Event | None]"
"""The event at a version of the lineage that an event belongs to; None where it is not known."""

KEPT = 16
"""Events that are kept because others may name them."""


def lookup(thread: Callable[[str], Thread]) -> Lookup:
    """What finds the events that other events name, in the thread of that id.

    Several in a row name the same one, so the last are kept.
    """
    from clew.domain.errors import ClewError

    @lru_cache(maxsize=KEPT)
    def found(thread_id: str, version: int) -> Event | None:
        try:
            return next(thread(thread_id).events(after=version - 1, at=version), None)
        except ClewError:  # a version that no event is at, which somebody wrote there
            return None

    return lambda event, version: found(event.thread_id, version)


def nowhere(event: Event, version: int) -> None:
    """A lookup that knows of nothing."""
    del event, version
