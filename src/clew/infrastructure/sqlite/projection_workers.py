"""The workers that fill the projections of a SQLite file, each with its leases until they run out."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence

from clew.domain.projection_leases import Share, claimed

TABLE = """CREATE TABLE IF NOT EXISTS worker (
    worker TEXT NOT NULL,
    projection TEXT NOT NULL,
    until REAL NOT NULL,
    held INTEGER NOT NULL,
    PRIMARY KEY (worker, projection)
) WITHOUT ROWID"""

_THERE = "SELECT worker, projection, held FROM worker WHERE until > ? ORDER BY worker, projection"
_PUT = "INSERT INTO worker (worker, projection, until, held) VALUES (?, ?, ?, ?)"


def claim(connection: sqlite3.Connection, worker: str, names: Sequence[str], seconds: float) -> list[str]:
    """The leases that the worker has from now on."""
    now = time.time()
    there = _shares(connection, now)
    others = [each for each in there if each.worker != worker]
    holds = [each.projection for each in there if each.worker == worker and each.held]
    found = claimed(others, worker, names, holds)
    connection.execute("DELETE FROM worker WHERE worker = ? OR until <= ?", (worker, now))
    connection.executemany(_PUT, [(worker, name, now + seconds, name in found) for name in names])
    return found


def release(connection: sqlite3.Connection, worker: str) -> None:
    """Let go of everything of a worker's."""
    connection.execute("DELETE FROM worker WHERE worker = ?", (worker,))


def holders(connection: sqlite3.Connection) -> dict[str, str]:
    """The worker that holds the lease of each projection that somebody holds."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'worker'").fetchone():
        return {}  # nobody has filled it since there are workers
    return {each.projection: each.worker for each in _shares(connection, time.time()) if each.held}


def _shares(connection: sqlite3.Connection, now: float) -> list[Share]:
    return [Share(worker, name, bool(held)) for worker, name, held in connection.execute(_THERE, (now,))]
