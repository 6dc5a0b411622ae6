"""Checkpoints: they keep the write-ahead log of a SQLite store short, and remove shredded text from it."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from clew.domain.errors import ClewError

if TYPE_CHECKING:
    from clew.infrastructure.sqlite.datastore import ClewSQLiteDatastore

COMMIT_BYTES = 3 * 4096
"""About how much a small commit adds to the log: one page each of the events, their index and their counter."""

CHECK_BYTES = 256 * 1024
PASSIVE_BYTES = 4 * 1024 * 1024
TRUNCATE_BYTES = 24 * 1024 * 1024
PATIENT_BYTES = 40 * 1024 * 1024

BUSY_MS = 20
PURGE_MS = 200
PATIENT_MS = 2_000
RETRY_SECONDS = 0.05


# The mark is written with the first row that is shredded, so that a crash does not lose it. It says nothing about an
# empty log, and is removed with the first transaction after the log was emptied.
MARK = "INSERT OR IGNORE INTO counter (name, value) VALUES ('unerased', ?)"
_UNMARK = "DELETE FROM counter WHERE name = 'unerased'"
_MARKED = "SELECT value FROM counter WHERE name = 'unerased'"
REDACTED_AFTER = (
    "SELECT s.name, e.version FROM event e JOIN stream s ON s.id = e.stream "
    "WHERE e.position > ? AND e.type IN ('message-redacted', 'thread-purged') ORDER BY e.position"
)
"""Stream and version of the redactions after a position."""
PENDING = REDACTED_AFTER.replace("?", f"({_MARKED}) - 1")
"""Stream and version of the redactions that the mark stands for."""


class Checkpoints:
    """The checkpoints that a writing thread makes between batches: SQLite's automatic checkpoints are off.

    After a passive checkpoint SQLite writes the log again from its start, which is faster than at a growing end, but
    only if no connection reads at that moment. So the writer waits for the readers once the log has a certain length;
    each of them executes only one query.
    """

    def __init__(self, store: ClewSQLiteDatastore) -> None:
        self._store = store
        self.written = 0
        """About how many bytes commits have added to the log since the last checkpoint."""
        self.purge_due = False
        """Whether the log holds shredded text that must leave it."""
        self.unmark_due = False
        """Whether the next transaction removes the mark of shredded text: the log was empty."""
        self.wipe_due = False
        """Whether the log holds drafts, which are temporary: the next checkpoint empties it."""
        self.check_at = CHECK_BYTES
        """A checkpoint is due when ``written`` has reached this, or when ``purge_due`` is set."""
        self._try_at = 0.0

    def empty_left_log(self) -> None:
        """Empty a log that existed before the store was opened: a killed process may have left shredded text in it.

        The caller holds the lock. If it fails, the writer tries again, as after a redaction.
        """
        self.purge_due = True
        with suppress(sqlite3.Error):
            self._checkpoint("TRUNCATE", BUSY_MS)

    def erase(self) -> int | None:
        """Empty the log if a shredded row is still in it. The position of the first one that remains, None if none is.

        The caller holds the lock.
        """
        first = self._marked()
        if first is not None and log_size(self._store.path):
            self.purge_due = True
            if not self._checkpoint("TRUNCATE", BUSY_MS):
                return first
        return None

    def unmark(self, connection: sqlite3.Connection) -> None:
        """Remove the mark at the start of a transaction, unless another process has written to the log meanwhile."""
        if not log_size(self._store.path):
            connection.execute(_UNMARK)
        self.unmark_due = False

    def _marked(self) -> int | None:
        """The position of the first append that shredded a row since the log was last known to be empty."""
        row = self._store.writing().execute(_MARKED).fetchone()
        return None if row is None else int(row[0])

    def make(self) -> float | None:
        """Make the checkpoint that is due. Returns the seconds until the next try if shredded text is still there."""
        now = time.monotonic()
        if now < self._try_at:
            return self._try_at - now if self.purge_due else None
        if self.purge_due:
            self._try("TRUNCATE", PURGE_MS)
            return RETRY_SECONDS if self.purge_due else None
        self.check_at = self.written + CHECK_BYTES
        size = log_size(self._store.path)
        if size >= TRUNCATE_BYTES:
            self._try("TRUNCATE", BUSY_MS if size < PATIENT_BYTES else PATIENT_MS)
        elif self.written >= PASSIVE_BYTES:
            self._try("TRUNCATE" if self.wipe_due else "PASSIVE", BUSY_MS)
        return None

    def finish(self) -> None:
        """Remove shredded text when the store is closed. The caller holds the lock."""
        if self.purge_due or self.wipe_due:
            self._checkpoint("TRUNCATE", PATIENT_MS)

    def truncate(self) -> bool:
        """Empty the log if no connection reads it. The caller holds the lock."""
        return self._checkpoint("TRUNCATE", BUSY_MS)

    def _try(self, mode: str, busy_ms: int) -> None:
        try:
            done = self._store.lock.hold(partial(self._checkpoint, mode, busy_ms))
        except (sqlite3.Error, OSError, ClewError):
            done = False  # the disk fails, or another process has the lock: the next append reports it
        if done:
            self.written = 0
            self.check_at = CHECK_BYTES
        else:
            self._try_at = time.monotonic() + RETRY_SECONDS

    def _checkpoint(self, mode: str, busy_ms: int) -> bool:
        connection = self._store.writing()
        connection.execute(f"PRAGMA busy_timeout = {busy_ms}")
        try:
            busy, _, _ = connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
        finally:
            connection.execute(f"PRAGMA busy_timeout = {int(self._store.lock_timeout * 1000)}")
        if not busy and mode == "TRUNCATE":
            if self.purge_due and self._store.synchronous != "OFF" and not _synced(self._store.path + "-wal"):
                return False  # the disk fails: the next checkpoint tries again
            self.purge_due = self.wipe_due = False
            self.unmark_due = True
        return not busy


def _synced(path: str) -> bool:
    """Store the length of a file that SQLite has emptied: it does not wait for that, and a power loss could undo it."""
    try:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError:
        return False
    return True


def log_size(path: str) -> int:
    """The bytes of a database's write-ahead log, 0 when it has none."""
    try:
        return os.stat(path + "-wal").st_size  # noqa: PTH116 - paths stay as they were given
    except FileNotFoundError:
        return 0
