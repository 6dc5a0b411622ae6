"""How long the write-ahead log of a SQLite store grows, and how shredded text leaves it."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import AbstractContextManager, suppress
from typing import Protocol

from clew.domain.errors import ClewError

COMMIT_BYTES = 3 * 4096
"""About what a small commit adds to the log: a page of the events, of their index and of their counter."""

LOOK_BYTES = 256 * 1024
PASSIVE_BYTES = 4 * 1024 * 1024
TRUNCATE_BYTES = 24 * 1024 * 1024
PATIENT_BYTES = 40 * 1024 * 1024

BUSY_MS = 20
SCRUB_MS = 200
PATIENT_MS = 2_000
AGAIN_SECONDS = 0.05


class Written(Protocol):
    """A file with one connection that writes."""

    path: str
    lock_timeout: float

    def exclusive(self) -> AbstractContextManager[None]:
        """Keep out the other writers."""
        ...

    def writing(self) -> sqlite3.Connection:
        """The connection; the caller is inside ``exclusive``."""
        ...


class Checkpoints:
    """Called by the writer thread between batches: SQLite's own checkpoints are off.

    A passive checkpoint lets the log begin again from its start, where writing costs less than at a growing end. It
    cannot while somebody always reads, so from a certain length on the writer waits for the readers, each of which
    holds on for one query only.
    """

    def __init__(self, store: Written) -> None:
        self._store = store
        self._written = 0
        self._look_at = LOOK_BYTES
        self._try_at = 0.0
        self._scrub = False
        self._wipe = False

    def count(self, state_bytes: int) -> None:
        """A commit added so many bytes of events to the log."""
        self._written += COMMIT_BYTES + state_bytes

    def scrub(self) -> None:
        """Text was shredded: what the log still has of it is to go."""
        self._scrub = True

    def wipe(self) -> None:
        """Text was written that is overwritten soon: the log need not be emptied of it now, but when it is time."""
        self._wipe = True

    def take_over(self) -> None:
        """See to a log that was there at the opening: of text that a process shredded before it was killed.

        The caller holds the lock. What does not succeed now is tried again as after a shredding of this process's.
        """
        self._scrub = True
        with suppress(sqlite3.Error):
            self._scrub = not self._checkpoint("TRUNCATE", BUSY_MS)

    def keep(self) -> float | None:
        """Do what is due; the seconds until the next try when shredded text is still in the log."""
        if not self._scrub and self._written < self._look_at:
            return None
        now = time.monotonic()
        if now < self._try_at:
            return self._try_at - now if self._scrub else None
        if self._scrub:
            self._try("TRUNCATE", SCRUB_MS)
            return AGAIN_SECONDS if self._scrub else None
        self._look_at = self._written + LOOK_BYTES
        size = log_size(self._store.path)
        if size >= TRUNCATE_BYTES:
            self._try("TRUNCATE", BUSY_MS if size < PATIENT_BYTES else PATIENT_MS)
        elif self._written >= PASSIVE_BYTES:
            self._try("TRUNCATE" if self._wipe else "PASSIVE", BUSY_MS)
        return None

    def finish(self) -> None:
        """The last try for shredded text, when the store is closed; the caller holds the lock."""
        if self._scrub or self._wipe:
            self._checkpoint("TRUNCATE", PATIENT_MS)

    def truncate(self) -> bool:
        """Empty the log if nobody reads it; the caller holds the lock."""
        return self._checkpoint("TRUNCATE", BUSY_MS)

    def _try(self, mode: str, busy_ms: int) -> None:
        try:
            with self._store.exclusive():
                done = self._checkpoint(mode, busy_ms)
        except (sqlite3.Error, OSError, ClewError):
            done = False  # the disk fails, or another process has the lock: the next append will say so
        if done:
            self._written = 0
            self._look_at = LOOK_BYTES
            if mode == "TRUNCATE":
                self._scrub = self._wipe = False
        else:
            self._try_at = time.monotonic() + AGAIN_SECONDS

    def _checkpoint(self, mode: str, busy_ms: int) -> bool:
        connection = self._store.writing()
        connection.execute(f"PRAGMA busy_timeout = {busy_ms}")
        try:
            busy, _, _ = connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
        finally:
            connection.execute(f"PRAGMA busy_timeout = {int(self._store.lock_timeout * 1000)}")
        return not busy


def log_size(path: str) -> int:
    """The bytes of a database's write-ahead log, 0 when it has none."""
    try:
        return os.stat(path + "-wal").st_size  # noqa: PTH116 - paths stay as they were given
    except FileNotFoundError:
        return 0
