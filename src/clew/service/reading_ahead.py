"""Reading the next batch of a log while the one before it is being written."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NamedTuple

from clew.domain.errors import StoreError
from clew.domain.ports import EventLog
from clew.domain.projection import Recorded, Unreadable

Batch = Sequence[Recorded | Unreadable]


class _Read(NamedTuple):
    batch: Batch
    shredded: int
    """How many rows had been shredded before it was read."""


class ReadingAhead:
    """The batches of a log, of which the next is read in a thread once there is much more to read."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._next: _Reading | None = None

    def after(self, position: int, limit: int) -> Batch:
        """The events after a position, as they are now: without what was shredded by now."""
        ahead, self._next = self._next, None
        found = None if ahead is None else ahead.found(position, limit)
        # What was read before the last redaction may be of the text that it was to forget.
        now = found is not None and found.shredded == self._log.shredded()
        batch = found.batch if found is not None and now else self._log.recorded_after(position, limit)
        if len(batch) == limit:
            self._next = _Reading(self._log, batch[-1].position, limit)
        return batch


class _Reading(threading.Thread):
    """Reads one batch."""

    def __init__(self, log: EventLog, position: int, limit: int) -> None:
        super().__init__(name="clew-reading-ahead", daemon=True)
        self._log = log
        self._asked = position, limit
        self._read: _Read | None = None
        self.start()

    def run(self) -> None:
        """Read it; what cannot be read is left to who needs it."""
        try:
            shredded = self._log.shredded()
            self._read = _Read(self._log.recorded_after(*self._asked), shredded)
        except StoreError:
            self._read = None

    def found(self, position: int, limit: int) -> _Read | None:
        """What was read, if it is this."""
        self.join()
        return self._read if self._asked == (position, limit) else None
