"""An index of vectors in a separate SQLite file next to the log. It can be deleted at any time.

It can be rebuilt from the log; only the embedder has to be called again.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeAlias, TypeVar

from clew.domain.errors import ClosedError
from clew.infrastructure.sqlite.errors import is_damage, unavailable
from clew.infrastructure.sqlite.file_access import create_next_to
from clew.infrastructure.sqlite.schema import file_uri, rebuildable_version
from clew.infrastructure.vector_matrices import Matrices, check_installed, packed

T = TypeVar("T")

APPLICATION_ID = 0x436C6556
"""``CleV`` in ASCII, in the header of the file."""

SCHEMA_VERSION = 1
TIMEOUT = 60.0
TOGETHER = 500
"""Digests in one query."""

_TABLES = (
    "CREATE TABLE space (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
    "CREATE TABLE vector (space INTEGER, digest BLOB, vector BLOB NOT NULL, PRIMARY KEY (space, digest))",
)

_PUT = "INSERT OR IGNORE INTO vector (space, digest, vector) VALUES ((SELECT id FROM space WHERE name = ?), ?, ?)"

_Identity: TypeAlias = tuple[int, int] | None
"""The device and the number of a file."""


class SQLiteVectors:
    """Stores vectors by space and digest in the file at ``path``: see the port. The first vector creates the file.

    The file is opened for each read or write. These are rare: vectors are compared in memory, and only new ones are
    read. A damaged file is rebuilt. The file has the mode of ``database``, the log's. Raises StoreUnavailableError, or
    StoreSchemaError for another program's file.
    """

    def __init__(self, path: str, database: str | None = None, *, read_only: bool = False) -> None:
        # The file is opened later, when the process may have changed its folder.
        self.path = os.path.abspath(path)  # noqa: PTH100  # paths stay as given but for that
        self._database = os.path.abspath(database or path)  # noqa: PTH100  # as above
        self._where = path
        self._read_only = read_only
        self._closed = False
        self._matrices = Matrices()
        self._seen: _Identity = None

    def missing(self, space: str, digests: Collection[bytes]) -> set[bytes]:
        """The digests that have no vector yet."""
        check_installed()

        def find(connection: sqlite3.Connection) -> set[bytes]:
            return {digest for digest, _ in _vectors(connection, space, digests, "NULL")}

        nothing: set[bytes] = set()
        return set(digests) - self._do(find, nothing, write=False)

    def put(self, space: str, vectors: Mapping[bytes, Sequence[float]]) -> None:
        """Store vectors; existing ones stay as they are."""
        rows = sorted((digest, packed(vector)) for digest, vector in vectors.items())

        def insert(connection: sqlite3.Connection) -> None:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT OR IGNORE INTO space (name) VALUES (?)", (space,))
            connection.executemany(_PUT, ((space, *row) for row in rows))
            connection.execute("COMMIT")

        self._do(insert, None, write=True)

    def nearest(
        self, space: str, collection: str, entries: Mapping[int, bytes], stamp: int, vector: Sequence[float], top: int
    ) -> list[tuple[int, float]]:
        """The entries nearest to a vector."""
        self._check_open()
        file = self._identity()
        if file != self._seen:  # the file was deleted, so its vectors are no longer valid
            self._matrices.clear()
            self._seen = file

        def fetch(digests: Collection[bytes]) -> Mapping[bytes, bytes]:
            return self._do(lambda connection: dict(_vectors(connection, space, digests, "vector")), {}, write=False)

        return self._matrices.nearest((space, collection), entries, stamp, vector, top, fetch)

    def drop(self) -> None:
        """Delete the file."""
        self._check_open()
        try:
            self._remove()
        except OSError as error:
            raise unavailable(self._where, error) from error
        self._matrices.clear()

    def close(self) -> None:
        """Release the memory. Does nothing the second time."""
        self._closed = True
        self._matrices.clear()

    def _do(self, work: Callable[[sqlite3.Connection], T], otherwise: T, *, write: bool) -> T:
        """The result of work on the file; ``otherwise`` if it only reads and the file does not exist."""
        self._check_open()
        for last in (False, True):
            if not write and self._identity() is None:
                break
            try:
                with closing(self._connect(write=write)) as connection:
                    return work(connection)
            except OSError as error:
                raise unavailable(self._where, error) from error
            except sqlite3.Error as error:
                if self._read_only:
                    break  # the caller computes the vectors again
                if last or not is_damage(error):
                    raise unavailable(self._where, error) from error
                with suppress(OSError):
                    self._remove()
        return otherwise

    def _connect(self, *, write: bool) -> sqlite3.Connection:
        # A reader, too, rolls back the unfinished write of a killed process, unless the store is read-only.
        if write:
            create_next_to(self._database, self.path)
        mode = "ro" if self._read_only else "rw"
        connection = sqlite3.connect(
            file_uri(self.path, f"mode={mode}"), uri=True, isolation_level=None, timeout=TIMEOUT
        )
        try:
            connection.execute("PRAGMA synchronous = NORMAL")
            self._set_up(connection, write=write)
        except BaseException:
            connection.close()
            raise
        return connection

    def _set_up(self, connection: sqlite3.Connection, *, write: bool) -> None:
        """Create the tables if they are missing. Raises StoreSchemaError for a file that is not ours."""
        if write:
            connection.execute("BEGIN IMMEDIATE")
        version = rebuildable_version(connection, self._where, APPLICATION_ID, SCHEMA_VERSION)
        if write:
            for statement in _TABLES if version is None else ():
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            connection.execute("COMMIT")

    def _identity(self) -> _Identity:
        """The file that exists now; None if there is none, or if it is empty."""
        try:
            status = os.stat(self.path)  # noqa: PTH116  # paths stay as they were given
        except OSError:
            return None
        return (status.st_dev, status.st_ino) if status.st_size else None

    def _remove(self) -> None:
        for ending in ("", "-journal"):
            Path(self.path + ending).unlink(missing_ok=True)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("The store is closed: its vectors cannot be used. Open it again.")


def _vectors(
    connection: sqlite3.Connection, space: str, digests: Collection[bytes], column: str
) -> Iterator[tuple[bytes, bytes]]:
    """The digests that have vectors, each with its vector or with another ``column``."""
    space_id = connection.execute("SELECT id FROM space WHERE name = ?", (space,)).fetchone()
    wanted = sorted(digests) if space_id else []
    for first in range(0, len(wanted), TOGETHER):
        some = wanted[first : first + TOGETHER]
        marks = ", ".join("?" * len(some))
        sql = f"SELECT digest, {column} FROM vector WHERE space = ? AND digest IN ({marks})"  # noqa: S608  # of constants
        yield from connection.execute(sql, (*space_id, *some))
