"""One transaction on the tables of projections in SQLite, and SQLite's dialect of SQL for them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from clew.domain.errors import InvalidProjectionError, UnknownProjectionError
from clew.domain.projection import Column, Generation, Indexed, Projection, Query, RowValues, Span, Table, Value
from clew.infrastructure import code_digest
from clew.infrastructure.projection_session import SqlSession
from clew.infrastructure.projection_sql import DESCENDING, Dialect, SqlTable, SqlTables, declared_tables, quoted
from clew.infrastructure.sqlite import text_index
from clew.infrastructure.sqlite.errors import is_of_the_store, unavailable
from clew.infrastructure.sqlite.reads import within_range

TABLES = (
    # tables is their declaration, so that a process without the projection's code can read them.
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

_GENERATIONS = (
    "SELECT id, name, version, code, shape, position, hash, live, "
    "EXISTS (SELECT 1 FROM stretch WHERE stretch.generation = generation.id AND stale) FROM generation ORDER BY id"
)

_SQL = {
    "begin": "INSERT INTO generation (name, version, code, shape, position, hash, live, tables) "
    "VALUES (:name, :version, :code, :shape, 0, x'', :live, :tables)",
    "move": "UPDATE generation SET position = :position, hash = :hash WHERE id = :generation",
    "switch": "UPDATE generation SET live = 1 WHERE id = :generation",
    "park": "INSERT OR REPLACE INTO parked (generation, position, stream, version, type, error) "
    "VALUES (:generation, :position, :stream, :version, :type, :error)",
    "drop parked": "DELETE FROM parked WHERE generation = :generation",
    "drop stretches": "DELETE FROM stretch WHERE generation = :generation",
    "drop": "DELETE FROM generation WHERE id = :generation",
}


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)


class _SQLite(Dialect):
    def __init__(self) -> None:
        super().__init__("?", {"json": _json}, {"json": json.loads})

    def table_name(self, generation: int, table: str) -> str:
        return f"g{generation}_{table}"

    def encode_list(self, kind: str, values: Sequence[Any]) -> Any:
        return json.dumps([_json(each) for each in values] if kind == "json" else list(values))

    def encode_limit(self, rows: int) -> Any:
        return rows

    def in_list(self, kind: str) -> str:
        del kind
        return "IN (SELECT value FROM json_each(?))"  # one parameter: SQLite takes a limited number of them

    def order(self, table: Table, query: Query) -> str:
        del table
        # Where all rows of a list are wanted, SQLite looks them up one by one and then sorts them: the sign keeps it
        # from reading the whole table in this order instead.
        values = [isinstance(where.value, Query) for where in query.where if where.is_ == "in"]
        sign = "+" if values and (query.limit is None or not all(values)) else ""
        return ", ".join(
            [f'{sign}"{each[1:]}" DESC' if each.startswith(DESCENDING) else f'{sign}"{each}"' for each in query.order]
        )


DIALECT = _SQLite()


@lru_cache(maxsize=256)
def statements(name: str, table: Table) -> tuple[str, ...]:
    """The statements that create a table of this name, and its indexes."""
    kinds = {column.name: column.kind for column in table.columns}
    one_integer = len(table.key) == 1 and kinds[table.key[0]] == "integer"
    columns = [_declaration(column, needed=one_integer and column.name in table.key) for column in table.columns]
    # An integer key is SQLite's own row number; any other key is the order in which the rows are stored.
    order = "" if one_integer else " WITHOUT ROWID"
    made = f"CREATE TABLE {name} ({', '.join(columns)}, PRIMARY KEY ({quoted(table.key)})){order}"
    indexes = [
        f"CREATE INDEX i{name}_{number} ON {name} ({quoted(index)})" for number, index in enumerate(table.indexes)
    ]
    return made, *indexes


def _declaration(column: Column, *, needed: bool) -> str:
    """A column in SQL. SQLite would make a float of a sum that is too large: the check refuses it."""
    type_ = "INTEGER" if column.kind == "integer" else "TEXT"
    name = quoted((column.name,))
    if column.adds:
        return f"{name} {type_} NOT NULL DEFAULT 0 CHECK (typeof({name}) = 'integer')"
    return f"{name} {type_}{' NOT NULL' if needed else ''}"


def shape(projection: Projection) -> str:
    """The digest of a projection's tables and indexes, as this version of Clew creates them."""
    return code_digest.shape(projection, (*_made(0, projection), *(text_index.layout() if projection.texts else ())))


def _made(generation: int, projection: Projection) -> list[str]:
    """The statements that create the tables of a generation."""
    return [
        statement
        for table in projection.tables
        for statement in statements(DIALECT.table_name(generation, table.name), table)
    ]


def generations(connection: sqlite3.Connection) -> list[Generation]:
    """The generations, oldest first."""
    return [Generation(*row[:7], *map(bool, row[7:])) for row in connection.execute(_GENERATIONS)]


def live(connection: sqlite3.Connection, name: str) -> tuple[int, SqlTables]:
    """The live generation of a projection, and its tables. Raises UnknownProjectionError if it was never built."""
    row = connection.execute("SELECT id, tables FROM generation WHERE name = ? AND live", (name,)).fetchone()
    if row is None:
        known = connection.execute("SELECT DISTINCT name FROM generation WHERE live ORDER BY 1").fetchall()
        raise UnknownProjectionError(name, [each for (each,) in known])
    return row[0], DIALECT.tables(row[0], declared_tables(row[1]))


def fetch(connection: sqlite3.Connection, tables: SqlTables, query: Query) -> list[RowValues]:
    """The stored rows that match a query."""
    select, parameters = tables.select(query)
    try:
        found = connection.execute(select.sql, parameters).fetchall()
    except OverflowError:  # an integer beyond SQLite's range is compared as the nearest in it
        found = connection.execute(select.sql, within_range(parameters)).fetchall()
    except UnicodeEncodeError:
        return []  # text that is not valid Unicode was never stored
    except (sqlite3.ProgrammingError, sqlite3.InterfaceError) as error:
        raise InvalidProjectionError(f"A query compares a column with a value of another kind: {error}") from error
    return select.read(found)


class SQLiteSession(SqlSession):
    """A transaction; the store commits it. ``forgot`` tells whether text was removed in it."""

    def __init__(self, connection: sqlite3.Connection, where: str, seen: int) -> None:
        super().__init__(DIALECT)
        self._connection = connection
        self._where = where
        self._seen = seen
        self.forgot = False

    def generations(self) -> list[Generation]:
        """The generations, oldest first."""
        return generations(self._connection)

    def begin(self, projection: Projection, code: str, *, live: bool) -> Generation:
        """Create the tables of a new generation."""
        made = shape(projection)
        row = {
            "name": projection.name,
            "version": projection.version,
            "code": code,
            "shape": made,
            "live": live,
            "tables": json.dumps(projection.tables),
        }
        generation = self._connection.execute(_SQL["begin"], row).lastrowid or 0
        for statement in _made(generation, projection):
            self._connection.execute(statement)
        return Generation(generation, projection.name, projection.version, code, made, 0, b"", live)

    def forget(self, generation: Generation, index: str | None, position: int, by: int) -> None:
        """Mark the stretch that holds a position as stale, in one index or in all."""
        self.flush()
        text_index.mark(self._connection, generation.id, index, position, by)

    def stale(self, generation: Generation) -> list[Span]:
        """The stretches that must be built again."""
        return [Span(*each) for each in text_index.stale(self._connection, generation.id)]

    def reindex(self, generation: Generation, span: Span, texts: Iterable[Indexed]) -> None:
        """Build a stretch of an index again."""
        self.flush()  # the texts that wait belong to the old stretch
        text_index.rebuild(self._connection, generation.id, span.text_index, span.first, texts, self._seen)
        self.forgot = True

    def empty(self, generation: Generation) -> None:
        """Empty the stale stretches; they stay stale."""
        self.flush()
        for span in self.stale(generation):
            text_index.empty(self._connection, generation.id, span.text_index, span.first)
            self.forgot = True

    def execute(self, sql: str) -> None:
        """Execute a statement."""
        self._connection.execute(sql)

    def run(self, statement: str, **parameters: Any) -> None:
        """Execute the statement of this name."""
        self._connection.execute(_SQL[statement], parameters)

    def fetch(self, tables: SqlTables, query: Query) -> list[RowValues]:
        """The stored rows that match a query."""
        return fetch(self._connection, tables, query)

    def upsert(self, table: SqlTable, columns: tuple[str, ...], rows: Sequence[RowValues]) -> None:
        """Write rows that name the same columns."""
        sql = table.upsert(columns, f"VALUES ({', '.join('?' * len(columns))})")
        for column in columns:
            if table.kinds[column] == "json":
                for row in rows:
                    row[column] = _json(row[column])
        self._connection.executemany(sql, [tuple(row.values()) for row in rows])

    def delete(self, table: SqlTable, columns: Sequence[str], values: Sequence[Value]) -> None:
        """Delete the stored rows with these values of their key."""
        where = " AND ".join([f'"{column}" = ?' for column in columns])
        self._connection.execute(f"DELETE FROM {table.name} WHERE {where}", values)  # noqa: S608 - checked names

    def index(self, generation: int, name: str, texts: list[Indexed]) -> None:
        """Add texts to an index of words."""
        text_index.add(self._connection, generation, name, texts, self._seen)

    def table_names(self, generation: int) -> list[str]:
        """The names of all tables of a generation."""
        (declaration,) = self._connection.execute(
            "SELECT tables FROM generation WHERE id = ?", (generation,)
        ).fetchone()
        tables = DIALECT.tables(generation, declared_tables(declaration)).names
        return [*tables, *text_index.tables(self._connection, generation)]

    def drop_tables(self, names: Iterable[str]) -> None:
        """Drop tables."""
        for name in names:
            self._connection.execute(f"DROP TABLE {name}")

    def check_transaction(self, error: BaseException) -> None:
        """Raise StoreUnavailableError where the transaction itself has ended, as on a full disk."""
        if isinstance(error, Exception) and (is_of_the_store(error) or not self._connection.in_transaction):
            raise unavailable(self._where, error) from error
