"""Reading the next batch of a log before the one before it is written: a server does both at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from clew.domain.ports import EventLog
from clew.domain.projection import Recorded, Unreadable

Batch = Sequence[Recorded | Unreadable]


class _Read(NamedTuple):
    position: int
    limit: int
    batch: Batch
    shredded: int
    """How many rows had been shredded before it was read."""


class ReadingAhead:
    """The batches of a log, of which one may be read before it is asked for."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._next: _Read | None = None
        self._shredded = 0
        """How many rows had been shredded before what was asked for last was read."""

    def after(self, position: int, limit: int) -> Batch:
        """The events after a position, as they are now: without what was shredded by now."""
        ahead, self._next = self._next, None
        self._shredded = self._log.shredded()
        # What was read before the last redaction may be of the text that it was to forget.
        if ahead is not None and ahead[:2] == (position, limit) and ahead.shredded == self._shredded:
            return ahead.batch
        return self._log.recorded_after(position, limit)

    def keep(self, position: int, limit: int, left: Batch) -> None:
        """What is left of the events that were asked for last, after a position: they are asked for next."""
        self._next = _Read(position, limit, left, self._shredded)

    def read(self, position: int, limit: int) -> None:
        """Read the events after a position, which are asked for next."""
        shredded = self._log.shredded()
        batch = self._log.recorded_after(position, limit)
        # Of fewer it is not known what comes after them until they are asked for.
        self._next = _Read(position, limit, batch, shredded) if len(batch) == limit else None
