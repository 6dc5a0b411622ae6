"""The reading connections of a SQLite store: a few kept open, each lent for one query."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from clew.domain.errors import ClosedError

MOST_KEPT = 8
REST_SECONDS = 1.0


class Readers:
    """Connections for reading, made by ``connect`` when none is free."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._free: list[sqlite3.Connection] = []
        self._lent = 0
        self._closed = False
        self._change = threading.Condition()
        self._watcher: _Watcher | None = None

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Lend a connection. Raises ClosedError after ``close``."""
        with self._change:
            self._check_open()
            self._lent += 1
            connection = self._free.pop() if self._free else None
        try:
            if connection is None:
                connection = self._connect()
            yield connection
        finally:
            with self._change:
                self._lent -= 1
                self._change.notify_all()
                if connection is not None:
                    if self._closed or len(self._free) >= MOST_KEPT or connection.in_transaction:
                        connection.close()
                    else:
                        self._free.append(connection)

    def changed(self) -> bool:
        """Whether any connection committed since this was last asked."""
        with self._change:
            self._check_open()
            self._lent += 1
            watcher, self._watcher = self._watcher, None
        try:
            if watcher is None:
                watcher = _Watcher(self._connect())
            return watcher.changed()
        finally:
            with self._change:
                self._lent -= 1
                self._change.notify_all()
                # Whoever asked at the same time had a connection of its own, and one is enough.
                if watcher is not None and (self._closed or self._watcher is not None):
                    watcher.connection.close()
                elif watcher is not None:
                    self._watcher = watcher

    def close(self) -> None:
        """Close what is free; what is lent is closed when it comes back."""
        with self._change:
            self._closed = True
            for connection in self._free:
                connection.close()
            self._free.clear()
            if self._watcher is not None:
                self._watcher.connection.close()
                self._watcher = None

    def rest(self) -> None:
        """Let nobody begin to read, and wait a while for those who do; ``go_on`` ends it."""
        self._change.acquire()
        until = time.monotonic() + REST_SECONDS
        while self._lent and (left := until - time.monotonic()) > 0:
            self._change.wait(left)

    def go_on(self) -> None:
        """End the rest."""
        self._change.release()

    def _check_open(self) -> None:
        if self._closed:
            msg = "The store is closed: nothing can be read. Open it again."
            raise ClosedError(msg)


class _Watcher:
    """A connection and what it saw last: the numbers of two connections cannot be compared."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self._seen: int | None = None

    def changed(self) -> bool:
        before, self._seen = self._seen, self.connection.execute("PRAGMA data_version").fetchone()[0]
        return before != self._seen
