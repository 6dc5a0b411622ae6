"""Reading a SQLite file without changing it, and without making files next to it.

SQLite makes a write-ahead log and its index for every connection to a database in that mode, also for one that only
reads. It does not if both exist already, or if the file is opened as one that never changes. So a connection lives for
one read only, and a file that no process writes is read as unchanging; if it did change, the read is repeated.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, TypeVar

from clew.infrastructure.sqlite.errors import SQLiteUnavailableError
from clew.infrastructure.sqlite.reads import FileChangedError, Readers
from clew.infrastructure.sqlite.schema import file_uri, has_journal

T = TypeVar("T")

TIMEOUT = 30.0

TICK_SECONDS = 0.02
"""File systems change a file's time in ticks: two changes in one tick have the same time."""

PATIENCE_SECONDS = 0.5
"""How long to wait for a process that closes the store: it removes the log and its index one after the other."""


class State(NamedTuple):
    """A database and its write-ahead log, as far as the system shows their changes."""

    file: tuple[int, int, int, int]
    """Device, number, size and time of the last change in nanoseconds."""
    log: tuple[int, int] | None
    """Size and time of the last change; None without a log."""

    @classmethod
    def of(cls, path: str) -> State:
        """The state now. Raises OSError if the database does not exist."""
        file = os.stat(path)  # noqa: PTH116 - paths stay as they were given
        log = None
        with suppress(FileNotFoundError):
            found = os.stat(path + "-wal")  # noqa: PTH116 - as above
            log = found.st_size, found.st_mtime_ns
        return cls((file.st_dev, file.st_ino, file.st_size, file.st_mtime_ns), log)

    def is_fresh(self) -> bool:
        """Whether another change could still have the same time."""
        return time.time_ns() - max(self.file[3], self.log[1] if self.log else 0) < TICK_SECONDS * 1e9


class Snapshot(sqlite3.Connection):
    """A connection for one read."""

    path: str
    state: State | None = None
    """The file when it was opened as one that never changes."""

    def check(self) -> None:
        """Raise FileChangedError if a process wrote to a file that was read as unchanging."""
        if self.state is not None and self.state != State.of(self.path):
            raise FileChangedError


def open_snapshot(path: str, timeout: float = TIMEOUT) -> Snapshot:
    """A connection to the database as it is now. ``timeout`` is in seconds, for SQLite's locks.

    Raises OSError, sqlite3.Error, or StoreUnavailableError if only a writer can read it.
    """
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        state = State.of(path)
        _refuse_journal(path)
        has_index = os.path.exists(path + "-shm")  # noqa: PTH110 - False also where it cannot look
        if state.log is not None and has_index:
            connection = _connected(path, "mode=ro&readonly_shm=1", timeout, None)
            try:
                connection.execute("SELECT 1 FROM sqlite_master").fetchone()  # from now on, nobody removes the log
            except sqlite3.OperationalError:
                connection.close()
                if time.monotonic() > until:
                    raise
            else:
                return connection
        elif state.log is None or not state.log[0]:
            if not state.is_fresh():
                return _connected(path, "mode=ro&immutable=1", timeout, state)
        elif time.monotonic() > until:
            raise SQLiteUnavailableError(
                f"{path}: its newest events are in {path}-wal, which cannot be read without {path}-shm. Copy the first "
                "two files into a folder that you may write to, and open the copy."
            )
        time.sleep(TICK_SECONDS)


def read(path: str, work: Callable[[sqlite3.Connection], T], timeout: float = TIMEOUT) -> T:
    """What ``work`` reads in one transaction. Raises what ``open_snapshot`` raises."""
    while True:
        connection = open_snapshot(path, timeout)
        try:
            try:
                connection.execute("BEGIN")
                return work(connection)
            finally:
                connection.close()
                connection.check()
        except FileChangedError:
            continue


class SnapshotReaders(Readers):
    """Readers whose connections live for one read: see ``release``."""

    def __init__(self, path: str) -> None:
        super().__init__(lambda: open_snapshot(path))

    def release(self, connection: sqlite3.Connection | None) -> None:
        """Close a connection. Raises FileChangedError if what it read is not to be used."""
        super().release(None)
        if isinstance(connection, Snapshot):
            connection.close()
            connection.check()


def _refuse_journal(path: str) -> None:
    """Raise StoreUnavailableError where SQLite would first have to undo a change."""
    if has_journal(path):
        raise SQLiteUnavailableError(
            f"{path}: {path}-journal shows that it is being created or migrated, or that this was interrupted. Wait, "
            "or open the database, or a copy of both files, once for writing."
        )


def _connected(path: str, options: str, timeout: float, state: State | None) -> Snapshot:
    connection = sqlite3.connect(
        file_uri(path, options),
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=timeout,
        factory=Snapshot,
    )
    connection.path, connection.state = path, state
    return connection
