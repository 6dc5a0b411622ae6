"""The raw loop as a baseline: one INSERT per commit, rows like Clew's, no chain, no queue."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Literal

STATE = bytes(range(256)) + bytes(64)
"""As long as a stored message of 200 characters."""

HASH = bytes(32)
TYPE = "message-appended"
TABLE = """CREATE TABLE event (position INTEGER PRIMARY KEY AUTOINCREMENT, stream INTEGER NOT NULL,
version INTEGER NOT NULL, type TEXT NOT NULL, state BLOB NOT NULL, hash BLOB NOT NULL, digest BLOB)"""


def raw_store(path: Path, synchronous: Literal["FULL", "OFF"]) -> sqlite3.Connection:
    """A connection to a new file with a table of events, in WAL mode."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    connection.execute(TABLE)
    connection.execute("CREATE UNIQUE INDEX event_stream_version ON event (stream, version)")
    return connection


def insert(connection: sqlite3.Connection, stream: int, version: int) -> None:
    """One event, one commit."""
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(
        "INSERT INTO event (stream, version, type, state, hash) VALUES (?, ?, ?, ?, ?)",
        (stream, version, TYPE, STATE, HASH),
    )
    connection.execute("COMMIT")
