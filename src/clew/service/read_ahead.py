"""Reading the next batch of a log while the one before it is applied, where a server does the reading."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TypeAlias

from clew.domain.ports import EventLog
from clew.domain.projection import Recorded, Unreadable

Batch: TypeAlias = Sequence[Recorded | Unreadable]


class _Reading:
    """The events after a position, as a thread reads them; none where it fails: then they are read again."""

    def __init__(self, log: EventLog, position: int, limit: int, shredded: int) -> None:
        self.asked = position, limit, shredded
        self._log = log
        self._batch: Batch = ()
        self.thread = threading.Thread(target=self._read, name="clew-reading-ahead", daemon=True)
        self.thread.start()

    def batch(self) -> Batch:
        """The events, when they are read."""
        self.thread.join()
        return self._batch

    def _read(self) -> None:
        position, limit, _ = self.asked
        try:
            self._batch = self._log.recorded_after(position, limit)
        except Exception:  # noqa: BLE001 - the caller that needs the batch reads it again, and gets the error
            self._batch = ()


class ReadAhead:
    """The batches of a log. Each is dropped once something was shredded: it may contain the text that was."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._rest: tuple[tuple[int, int, int], Batch] | None = None
        self._next: _Reading | None = None

    def after(self, position: int, limit: int, *, few: bool = False) -> tuple[Batch, int | None]:
        """The events after a position, and how many rows of the log were shredded before they were read.

        ``few``: all of them are applied at once, so nothing is kept of them; the number is then None.
        """
        if few and self._rest is None:
            return self._log.recorded_after(position, limit), None
        shredded = self._log.shredded()
        asked = position, limit, shredded
        rest, self._rest = self._rest, None
        if rest is not None and rest[0] == asked and rest[1]:
            return rest[1], shredded
        ahead, self._next = self._next, None
        batch = ahead.batch() if ahead is not None and ahead.asked == asked else ()
        batch = batch or self._log.recorded_after(position, limit)
        # After fewer than were asked for nothing is known to come.
        if len(batch) == limit and self._log.is_served():
            self._next = _Reading(self._log, batch[-1].position, limit, shredded)
        return batch, shredded

    def keep(self, position: int, limit: int, rest: Batch, shredded: int | None) -> None:
        """Keep the rest of a batch, after a position, for the next call; ``shredded`` is what came with the batch."""
        self._rest = None if shredded is None else ((position, limit, shredded), rest)
