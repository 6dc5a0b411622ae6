"""The reading connections of a SQLite store: a few stay open, and each query borrows one."""

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
    """Connections for reading, opened by ``connect`` when none is free."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._free: list[sqlite3.Connection] = []
        self._lent = 0
        self._closed = False
        self._resting = False
        self._lock = threading.RLock()  # after a fork the child closes what rest() holds
        self._change = threading.Condition(self._lock)
        self._watcher: _Watcher | None = None

    def lend(self) -> sqlite3.Connection:
        """Borrow a connection until ``give_back``. Raises ClosedError after ``close``."""
        with self._lock:
            if self._closed:
                raise _closed()
            self._lent += 1
            if self._free:
                return self._free.pop()
        try:
            return self._connect()
        except BaseException:
            self.give_back(None)
            raise

    def give_back(self, connection: sqlite3.Connection | None) -> None:
        """Return a borrowed connection; None for one that could not be opened."""
        with self._lock:
            self._lent -= 1
            if self._resting:
                self._change.notify_all()
            if connection is None:
                return
            if self._closed or len(self._free) >= MOST_KEPT or connection.in_transaction:
                connection.close()
            else:
                self._free.append(connection)

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Borrow a connection for a while."""
        connection = self.lend()
        try:
            yield connection
        finally:
            self.give_back(connection)

    def changed(self) -> bool:
        """Whether any connection committed since the last call."""
        with self._lock:
            if self._closed:
                raise _closed()
            self._lent += 1
            watcher, self._watcher = self._watcher, None
        try:
            if watcher is None:
                watcher = _Watcher(self._connect())
            return watcher.changed()
        finally:
            with self._lock:
                self._lent -= 1
                if self._resting:
                    self._change.notify_all()
                # Another caller at the same time had a connection of its own, and one is enough.
                if watcher is not None and (self._closed or self._watcher is not None):
                    watcher.connection.close()
                elif watcher is not None:
                    self._watcher = watcher

    def close(self) -> None:
        """Close the free connections; a borrowed one is closed when it is given back."""
        with self._lock:
            self._closed = True
            for connection in self._free:
                connection.close()
            self._free.clear()
            if self._watcher is not None:
                self._watcher.connection.close()
                self._watcher = None

    def rest(self) -> None:
        """Let no new read begin, and wait a while for those that run; ``go_on`` ends it."""
        self._lock.acquire()
        self._resting = True
        until = time.monotonic() + REST_SECONDS
        while self._lent and (left := until - time.monotonic()) > 0:
            self._change.wait(left)

    def go_on(self) -> None:
        """End the rest."""
        self._resting = False
        self._lock.release()


def _closed() -> ClosedError:
    return ClosedError("The store is closed: nothing can be read. Open it again.")


class _Watcher:
    """A connection and the number that it read last: numbers of two connections cannot be compared."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self._seen: int | None = None

    def changed(self) -> bool:
        before, self._seen = self._seen, self.connection.execute("PRAGMA data_version").fetchone()[0]
        return before != self._seen
