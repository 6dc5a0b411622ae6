"""One transaction on the tables of projections in SQLite."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from clew.domain.errors import UnknownProjectionError
from clew.domain.projection import (
    Built,
    Indexed,
    Parked,
    Projection,
    Query,
    RowValues,
    Span,
    Table,
    Value,
)
from clew.infrastructure import code_digest
from clew.infrastructure.projection_changes import WaitingChanges
from clew.infrastructure.projection_sql import declared
from clew.infrastructure.sqlite import text_index
from clew.infrastructure.sqlite.errors import is_of_the_store, unavailable
from clew.infrastructure.sqlite.projection_tables import Filling, select, statements

TABLES = (
    # tables is their declaration, so that they can be read by who does not have the projection's code.
    """CREATE TABLE generation (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        name TEXT NOT NULL,
        version INTEGER NOT NULL,
        code TEXT NOT NULL,
        shape TEXT NOT NULL,
        position INTEGER NOT NULL,
        hash BLOB NOT NULL,
        live INTEGER NOT NULL,
        tables TEXT NOT NULL
    )""",
    "CREATE UNIQUE INDEX generation_live ON generation (name) WHERE live",
    """CREATE TABLE parked (
        generation INTEGER NOT NULL,
        position INTEGER NOT NULL,
        stream TEXT NOT NULL,
        version INTEGER NOT NULL,
        type TEXT NOT NULL,
        error TEXT NOT NULL,
        PRIMARY KEY (generation, position)
    ) WITHOUT ROWID""",
)

_BUILT = (
    "SELECT id, name, version, code, shape, position, hash, live, "
    "EXISTS (SELECT 1 FROM stretch WHERE stretch.generation = generation.id AND stale) FROM generation "
)


def built(connection: sqlite3.Connection) -> list[Built]:
    """The generations that there are, oldest first."""
    return [Built(*row[:7], *map(bool, row[7:])) for row in connection.execute(_BUILT + "ORDER BY id")]


def live(connection: sqlite3.Connection, name: str) -> int:
    """The live generation of a projection. Raises UnknownProjectionError when it was never built."""
    row = connection.execute("SELECT id FROM generation WHERE name = ? AND live", (name,)).fetchone()
    if row is None:
        known = [each for (each,) in connection.execute("SELECT DISTINCT name FROM generation WHERE live ORDER BY 1")]
        raise UnknownProjectionError(name, known)
    found: int = row[0]
    return found


def tables_of(connection: sqlite3.Connection, generation: int) -> dict[str, tuple[str, Table]]:
    """The tables of a generation as they were declared, each with its name in SQL."""
    row = connection.execute("SELECT tables FROM generation WHERE id = ?", (generation,)).fetchone()
    return {table.name: (_table_name(generation, table.name), table) for table in declared(row[0])}


def shape(projection: Projection) -> str:
    """The digest of a projection's tables and indexes as they are made here."""
    return code_digest.shape(projection, (*_made(0, projection), *(text_index.layout() if projection.texts else ())))


class SQLiteSession:
    """What is done in it is committed by the store that gave it. ``forgot`` tells whether text has left it."""

    def __init__(self, connection: sqlite3.Connection, where: str, seen: int) -> None:
        self._connection = connection
        self._where = where
        self._seen = seen
        self._generations: dict[int, _Generation] = {}
        self.forgot = False

    def built(self) -> list[Built]:
        """The generations that there are."""
        return built(self._connection)

    def begin(self, projection: Projection, code: str, *, live: bool) -> Built:
        """Make the tables of a new generation."""
        made, declared = shape(projection), json.dumps(projection.tables)
        cursor = self._connection.execute(
            "INSERT INTO generation (name, version, code, shape, position, hash, live, tables) "
            "VALUES (?, ?, ?, ?, 0, x'', ?, ?)",
            (projection.name, projection.version, code, made, live, declared),
        )
        generation = cursor.lastrowid or 0
        for statement in _made(generation, projection):
            self._connection.execute(statement)
        return Built(generation, projection.name, projection.version, code, made, 0, b"", live)

    def rows(self, built: Built, projection: Projection) -> _Generation:
        """The rows of a generation as they are now."""
        found = self._generations.get(built.generation)
        if found is None:
            found = _Generation(self._connection, built.generation, projection, self._seen)
            self._generations[built.generation] = found
        return found

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """What is applied inside is undone if it raises."""
        self.flush()
        self._connection.execute("SAVEPOINT attempt")
        try:
            yield
            self.flush()
        except BaseException as error:
            self._generations.clear()
            # A disk that is full may have ended the whole transaction: then nothing more may be written.
            if isinstance(error, Exception) and (is_of_the_store(error) or not self._connection.in_transaction):
                raise unavailable(self._where, error) from error
            self._connection.execute("ROLLBACK TO attempt")
            self._connection.execute("RELEASE attempt")
            raise
        self._connection.execute("RELEASE attempt")

    def park(self, built: Built, parked: Parked) -> None:
        """Note an event that the projection could not take in."""
        self._connection.execute(
            "INSERT OR REPLACE INTO parked (generation, position, stream, version, type, error) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            (built.generation, *parked),
        )

    def forget(self, built: Built, index: str | None, position: int, by: int) -> None:
        """Note that the stretch of an index, or of all, that holds a position is to be made anew."""
        self.flush()
        text_index.mark(self._connection, built.generation, index, position, by)

    def stale(self, built: Built) -> list[Span]:
        """The stretches that are to be made anew."""
        return [Span(*each) for each in text_index.stale(self._connection, built.generation)]

    def reindex(self, built: Built, span: Span, texts: Iterable[Indexed]) -> None:
        """Make a stretch of an index anew."""
        self.flush()  # what waits belongs to the old one
        text_index.remake(self._connection, built.generation, span.text_index, span.first, texts, self._seen)
        self.forgot = True

    def empty(self, built: Built) -> None:
        """Make the stretches that are to be made anew without any text; they stay to be made."""
        self.flush()
        for span in self.stale(built):
            text_index.empty(self._connection, built.generation, span.text_index, span.first)
            self.forgot = True

    def move(self, built: Built, position: int, hash_: bytes) -> None:
        """Note how far a generation has come."""
        self._connection.execute(
            "UPDATE generation SET position = ?, hash = ? WHERE id = ?", (position, hash_, built.generation)
        )

    def switch(self, built: Built) -> bool:
        """Let this generation be the live one, and drop the others of its name, which nobody can hold."""
        for other in self.built():
            if other.name == built.name and other.generation != built.generation:
                self.drop(other)
        self._connection.execute("UPDATE generation SET live = 1 WHERE id = ?", (built.generation,))
        return True

    def drop(self, built: Built) -> None:
        """Drop a generation with its tables."""
        self.flush()
        self._generations.pop(built.generation, None)
        for name, _ in tables_of(self._connection, built.generation).values():
            self._connection.execute(f"DROP TABLE {name}")
        text_index.drop(self._connection, built.generation)
        self._connection.execute("DELETE FROM parked WHERE generation = ?", (built.generation,))
        self._connection.execute("DELETE FROM generation WHERE id = ?", (built.generation,))

    def flush(self) -> None:
        """Write what waits."""
        for generation in self._generations.values():
            generation.flush()


class _Generation:
    """The tables and indexes of one generation, with what is to be written to them."""

    def __init__(self, connection: sqlite3.Connection, generation: int, projection: Projection, seen: int) -> None:
        self._connection = connection
        self._seen = seen
        self._generation = generation
        self._tables = {
            table.name: Filling(connection, _table_name(generation, table.name), table) for table in projection.tables
        }
        self._changes = WaitingChanges(projection, self._tables)
        self.apply = self._changes.apply

    def get(self, table: str, *key: Value) -> RowValues | None:
        """The row with this key."""
        self._changes.table(table)
        return self._tables[table].get(key)

    def select(self, query: Query) -> list[RowValues]:
        """The rows that a query names."""
        self._changes.table(query.table)
        self.flush()
        return select(self._connection, tables_of(self._connection, self._generation), query)

    def flush(self) -> None:
        """Write what waits."""
        for table in self._tables.values():
            table.flush()
        for index, texts in self._changes.texts.items():
            if texts:
                text_index.add(self._connection, self._generation, index, texts, self._seen)
                texts.clear()


def _made(generation: int, projection: Projection) -> Iterator[str]:
    """The statements that make the tables of a generation."""
    for table in projection.tables:
        yield from statements(_table_name(generation, table.name), table)


def _table_name(generation: int, table: str) -> str:
    return f"g{generation}_{table}"
