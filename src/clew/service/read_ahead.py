"""Reading the next batch of a log while the one before it is taken in: a server does it beside."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TypeAlias

from clew.domain.ports import EventLog
from clew.domain.projection import Recorded, Unreadable

Batch: TypeAlias = Sequence[Recorded | Unreadable]


class _Ahead:
    """What comes after a position, as it was when so many rows had been shredded."""

    def __init__(self, position: int, limit: int, shredded: int) -> None:
        self._asked = position, limit, shredded
        self._thread: threading.Thread | None = None
        self._batch: Batch = ()

    def holding(self, batch: Batch) -> _Ahead:
        """This batch, which is there."""
        self._batch = batch
        return self

    def reading(self, log: EventLog) -> _Ahead:
        """The batch that is read meanwhile."""
        self._thread = threading.Thread(target=self._read, args=(log,), name="clew-reading-ahead", daemon=True)
        self._thread.start()
        return self

    def batch(self, position: int, limit: int, shredded: int) -> Batch:
        """The batch, when it is there; none when another was asked for, or something was shredded since.

        What was read before the last redaction may be of the text that it was to forget.
        """
        if self._asked != (position, limit, shredded):
            return ()
        if self._thread is not None:
            self._thread.join()
        return self._batch

    def _read(self, log: EventLog) -> None:
        position, limit, _ = self._asked
        try:
            self._batch = log.recorded_after(position, limit)
        except Exception:  # noqa: BLE001 - who needs the batch asks for it again, and meets what is wrong
            self._batch = ()


class ReadingAhead:
    """The batches of a log, of which the next is read, where a server does it, when one is asked for."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._left: _Ahead | None = None
        self._next: _Ahead | None = None

    def after(self, position: int, limit: int) -> tuple[Batch, int]:
        """The events after a position, without what was shredded by now; and how many rows were."""
        shredded = self._log.shredded()
        left, self._left = self._left, None
        if left is not None and (batch := left.batch(position, limit, shredded)):
            return batch, shredded
        ahead, self._next = self._next, None
        batch = () if ahead is None else ahead.batch(position, limit, shredded)
        batch = batch or self._log.recorded_after(position, limit)
        # Of fewer it is not known what comes after them until they are asked for.
        if len(batch) == limit and self._log.is_served():
            self._next = _Ahead(batch[-1].position, limit, shredded).reading(self._log)
        return batch, shredded

    def keep(self, position: int, limit: int, left: Batch, shredded: int) -> None:
        """What is left of a batch, after a position, and what was said with it: it is asked for next."""
        self._left = _Ahead(position, limit, shredded).holding(left)
