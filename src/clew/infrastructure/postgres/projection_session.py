"""One transaction on the tables of projections in PostgreSQL, and PostgreSQL's dialect of SQL for them.

Text is stored as bytes of UTF-8: it may contain U+0000, and its order is that of code points whatever the collation.
None comes before every other value, as in SQLite.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import lru_cache, partial
from typing import Any

import psycopg
from psycopg.types.numeric import Int8

from clew.domain.errors import InvalidProjectionError, UnknownProjectionError
from clew.domain.projection import Column, Generation, Indexed, Parked, Projection, Query, RowValues, Span, Table, Value
from clew.infrastructure import code_digest
from clew.infrastructure.postgres import schema, text_index
from clew.infrastructure.postgres.connection import Session
from clew.infrastructure.postgres.errors import unavailable
from clew.infrastructure.postgres.row_level_security import protect
from clew.infrastructure.postgres.sql_files import statements as sql_statements
from clew.infrastructure.postgres.stream_ids import (
    HIGHEST,
    index_name,
    stream_id,
    table_name,
    tenant_id,
    within,
)
from clew.infrastructure.projection_session import GenerationRows, SqlSession
from clew.infrastructure.projection_sql import DESCENDING, Dialect, SqlTable, SqlTables, declared_tables, quoted

SQL = sql_statements("projection_store.sql")

PATIENCE = 60.0
"""Seconds to wait for another process that writes the same projection, or has locked a table."""

DROPPING = 0.2
"""Seconds to wait for readers of a table that is to be dropped."""

REFUSED = ("21", "22", "23", "54")
"""The first digits of PostgreSQL's error codes for values that it refuses."""

_TYPES = {"integer": "bigint", "text": "bytea", "json": "bytea"}


def _within(value: Any) -> Any:
    """A value to compare with; an integer of more than 64 bits is compared as the nearest of 64."""
    return within(value) if type(value) is int else value


def _array(kind: str, values: Sequence[Any]) -> str:
    """The values of a column as an array in PostgreSQL's notation, which is faster to make than one of the driver's."""
    if kind == "integer":
        listed = ["NULL" if value is None else str(_integer(value)) for value in values]
    else:
        listed = ["NULL" if value is None else f'"\\\\x{_text(kind, value).hex()}"' for value in values]
    return f"{{{','.join(listed)}}}"


def _integer(value: Any) -> int:
    if not isinstance(value, int):
        raise InvalidProjectionError(f"A column of integers is given {type(value).__name__}.")
    if not -HIGHEST <= value <= HIGHEST:
        raise InvalidProjectionError("A column of integers is given one of more than 64 bits.")
    return int(value)


def _text(kind: str, value: Any) -> bytes:
    """Text or JSON as it is stored. Raises UnicodeEncodeError for text that is not valid Unicode."""
    if kind == "json":
        value = json.dumps(value, ensure_ascii=False)
    if isinstance(value, int):
        value = str(int(value))
    if not isinstance(value, str):
        raise InvalidProjectionError(f"A column of text is given {type(value).__name__}.")
    return value.encode()


class _PostgreSQL(Dialect):
    def __init__(self) -> None:
        super().__init__(
            "%b",
            {
                "integer": lambda value: Int8(_integer(_within(value))),
                "text": partial(_text, "text"),
                "json": partial(_text, "json"),
            },
            {"text": lambda stored: stored.decode(errors="surrogateescape"), "json": json.loads},
        )

    def table_name(self, generation: int, table: str) -> str:
        return table_name(generation, table)

    def encode_list(self, kind: str, values: Sequence[Any]) -> Any:
        return _array(kind, [_within(each) for each in values])

    def encode_limit(self, rows: int) -> Any:
        return Int8(within(rows)) if rows >= 0 else None

    def in_list(self, kind: str) -> str:
        return f"= ANY (%s::{_TYPES[kind]}[])"

    def order(self, table: Table, query: Query) -> str:
        needed = _needed(table)
        return ", ".join([_in_order(each, needed) for each in query.order])


DIALECT = _PostgreSQL()


@lru_cache(maxsize=256)
def statements(name: str, table: Table) -> tuple[str, ...]:
    """The statements that create a table of this name, and its indexes."""
    columns = ", ".join(map(_declaration, table.columns))
    key = f"CONSTRAINT {index_name(name, 'key')} PRIMARY KEY ({quoted(table.key)})"
    needed = _needed(table)
    indexes = [
        f"CREATE INDEX {index_name(name, number)} ON {name} ({', '.join([_in_order(each, needed) for each in index])})"
        for number, index in enumerate(table.indexes)
    ]
    return f"CREATE TABLE {name} ({columns}, {key})", *indexes


def _declaration(column: Column) -> str:
    default = " NOT NULL DEFAULT 0" if column.adds else ""
    return f'"{column.name}" {_TYPES[column.kind]}{default}'


def _needed(table: Table) -> frozenset[str]:
    """The columns that are never NULL: their order does not depend on how NULL is sorted."""
    return frozenset(table.key) | {column.name for column in table.columns if column.adds}


def _in_order(column: str, needed: frozenset[str]) -> str:
    """A column in an index or an order: ascending, or descending with the sign before it."""
    if column.startswith(DESCENDING):
        name = column[1:]
        return f'"{name}" DESC' if name in needed else f'"{name}" DESC NULLS LAST'
    return f'"{column}"' if column in needed else f'"{column}" NULLS FIRST'


def shape(projection: Projection) -> str:
    """The digest of a projection's tables and indexes, as this version of Clew creates them."""
    return code_digest.shape(projection, [statement for _, making in _made(0, projection) for statement in making])


def _made(generation: int, projection: Projection) -> list[tuple[str, Sequence[str]]]:
    """The tables of a generation, those of its indexes of words included, each with the statements that create it."""
    names = [(table_name(generation, table.name), table) for table in projection.tables]
    indexes = [each for index in projection.texts for each in text_index.making(generation, index)]
    return [*((name, statements(name, table)) for name, table in names), *indexes]


def generations(session: Session) -> list[Generation]:
    """The generations, oldest first."""
    return [Generation(*row) for row in _ask(session, "generations")]


def live(session: Session, name: str) -> tuple[int, SqlTables]:
    """The live generation of a projection, and its tables. Raises UnknownProjectionError if it was never built."""
    found = _ask(session, "live", name=name)
    if not found:
        raise UnknownProjectionError(name, [each for (each,) in _ask(session, "live names")])
    generation, declaration = found[0]
    return generation, DIALECT.tables(generation, declared_tables(declaration))


def fetch(session: Session, tables: SqlTables, query: Query, *, alone: bool = False) -> list[RowValues]:
    """The stored rows that match a query; with ``alone`` the read is a separate transaction."""
    try:
        select, parameters = tables.select(query)
    except UnicodeEncodeError:
        return []  # text that is not valid Unicode was never stored
    if alone:
        return select.read(session.query(select.sql, parameters))
    cursor = session.connection.execute(select.sql.encode(), parameters, prepare=True, binary=True)
    return select.read(cursor.fetchall())


def is_refused(error: BaseException) -> bool:
    """Whether PostgreSQL refuses only the values, and could execute the statement with others."""
    if not isinstance(error, psycopg.Error):
        return True
    by_the_driver = error.sqlstate is None and isinstance(error, (psycopg.DataError, psycopg.ProgrammingError))
    return by_the_driver or (error.sqlstate or "").startswith(REFUSED)


class PostgresSession(SqlSession):
    """A transaction; the store commits it. ``forgot`` are the generations that text was removed from."""

    def __init__(self, session: Session, where: str) -> None:
        super().__init__(DIALECT)
        self._session = session
        self._where = where
        self._indexes: dict[tuple[int, str], text_index.TextIndexWriter] = {}
        self._pipeline: AbstractContextManager[Any] | None = None
        self.forgot: set[int] = set()

    def generations(self) -> list[Generation]:
        """The generations, oldest first."""
        return generations(self._session)

    def begin(self, projection: Projection, code: str, *, live: bool) -> Generation:
        """Create the tables of a new generation."""
        schema.use_home_schema(self._session.connection)
        made = shape(projection)
        row = {
            "name": projection.name,
            "version": Int8(projection.version),
            "code": code,
            "shape": made,
            "live": live,
            "tables": json.dumps(projection.tables),
            "texts": list(projection.texts),
        }
        ((generation,),) = _ask(self._session, "begin", **row)
        for name, making in _made(generation, projection):
            for statement in making:
                self.execute(statement)
            protect(self._session, name)
        return Generation(generation, projection.name, projection.version, code, made, 0, b"", live)

    def rows(self, generation: Generation, projection: Projection) -> GenerationRows:
        """The rows of a generation; while more are made, the server indexes the texts that are ready."""
        found = super().rows(generation, projection)
        if any([len(texts) >= text_index.AT_ONCE for texts in found.texts.values()]):  # noqa: C419 - few, and often
            self._begin_pipeline()
            found.flush_texts()
        return found

    def park(self, generation: Generation, parked: Parked) -> None:
        """Record an event that the projection could not apply."""
        stored = {name: getattr(parked, name).encode(errors="surrogateescape") for name in ("stream", "type", "error")}
        tenant = tenant_id(stored["stream"].decode(errors="replace"))
        self.run(
            "park",
            generation=generation.id,
            position=parked.position,
            tenant=tenant,
            version=parked.version,
            **stored,
        )

    def forget(self, generation: Generation, index: str | None, position: int, by: int) -> None:
        """Remove the words of the text at a position from one index or from all."""
        del by
        indexes = [index] if index is not None else self._declared(generation.id)[1]
        if generation.id in self._rows:
            for waiting in self._rows[generation.id].texts.values():
                waiting[:] = [each for each in waiting if each.position != position]
        for (number, _), writer in self._indexes.items():
            if number == generation.id:
                writer.forget(position)
        forgotten = [text_index.forget(self._session, generation.id, each, position) for each in indexes]
        if any(forgotten):
            self.run("forget", generation=generation.id)
            self.forgot.add(generation.id)

    def stale(self, generation: Generation) -> list[Span]:
        """Nothing: words are removed at once."""
        del generation
        return []

    def reindex(self, generation: Generation, span: Span, texts: Iterable[Indexed]) -> None:
        """Nothing is stale."""

    def empty(self, generation: Generation) -> None:
        """Nothing is stale."""

    def move(self, generation: Generation, position: int, hash_: bytes) -> None:
        """Record the position that a generation has reached, and send its changes: the server may begin."""
        self._begin_pipeline()
        if generation.id in self._rows:
            self._rows[generation.id].flush()
        super().move(generation, position, hash_)

    def switch(self, generation: Generation) -> bool:
        """Make this generation the live one and drop the others; False while another connection reads those.

        A transaction that waits to drop a table blocks all new readers of it, and this one all readers of the log.
        """
        self.flush()
        self.execute("SAVEPOINT switch")
        try:
            return super().switch(generation)
        except psycopg.errors.LockNotAvailable:
            self.execute("ROLLBACK TO switch")
            return False

    def drop(self, generation: Generation) -> None:
        """Drop a generation with its tables, unless another connection holds one of them for longer than a moment."""
        super().drop(generation)
        self._indexes = {key: writer for key, writer in self._indexes.items() if key[0] != generation.id}

    def commit(self) -> None:
        """Write the changes that wait and commit, in one round trip: a refused statement ends the transaction."""
        self._write()
        self._session.connection.execute("COMMIT")
        self.drain()

    def flush(self) -> None:
        """Write the changes that wait, and check that the server took all of them."""
        try:
            self._write()
        finally:
            self.drain()

    def drain(self) -> None:
        """Receive the answers to everything that was sent."""
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is not None:
            pipeline.__exit__(None, None, None)

    def _write(self) -> None:
        self._begin_pipeline()
        super().flush()
        for writer in self._indexes.values():
            writer.note()

    def _begin_pipeline(self) -> None:
        """Send the next statements without waiting for answers."""
        if self._pipeline is None:
            self._pipeline = self._session.connection.pipeline()
            self._pipeline.__enter__()

    # What PostgreSQL adds to the shared session

    def execute(self, sql: str) -> None:
        """Execute a statement."""
        self._session.connection.execute(sql.encode())

    def run(self, statement: str, **parameters: Any) -> None:
        """Execute the statement of this name; it is prepared, so every integer has one type."""
        values = {name: Int8(value) if type(value) is int else value for name, value in parameters.items()}
        self._session.connection.execute(SQL[statement].encode(), values, prepare=True)

    def fetch(self, tables: SqlTables, query: Query) -> list[RowValues]:
        """The stored rows that match a query."""
        return fetch(self._session, tables, query)

    def upsert(self, table: SqlTable, columns: tuple[str, ...], rows: Sequence[RowValues]) -> None:
        """Write rows that name the same columns, with one statement."""
        arrays = ", ".join([f"%s::{_TYPES[table.kinds.get(column, 'text')]}[]" for column in columns])
        sql = table.upsert(columns, f"SELECT * FROM unnest({arrays})")  # noqa: S608 - types of columns
        values = [_array(table.kinds[column], [row[column] for row in rows]) for column in columns]
        self._session.connection.execute(sql.encode(), values, prepare=True)

    def delete(self, table: SqlTable, columns: Sequence[str], values: Sequence[Value]) -> None:
        """Delete the stored rows with these values of their key."""
        where = " AND ".join([f'"{column}" = %b' for column in columns])
        sent = [
            None if value is None else DIALECT.encoders[table.kinds[column]](value)
            for column, value in zip(columns, values, strict=True)
        ]
        sql = f"DELETE FROM {table.name} WHERE {where}"  # noqa: S608 - checked names
        self._session.connection.execute(sql.encode(), sent)

    def index(self, generation: int, name: str, texts: list[Indexed]) -> None:
        """Add texts to an index of words."""
        writer = self._indexes.get((generation, name))
        if writer is None:
            writer = self._indexes[generation, name] = text_index.TextIndexWriter(self._session, generation, name)
        writer.add(texts)

    def table_names(self, generation: int) -> list[str]:
        """The names of all tables of a generation."""
        declaration, texts = self._declared(generation)
        tables = DIALECT.tables(generation, declared_tables(declaration)).names
        return [*tables, *(name for index in texts for name in text_index.tables(generation, index))]

    def _declared(self, generation: int) -> tuple[str, Sequence[str]]:
        """The declaration of a generation's tables, and the names of its indexes of words."""
        ((declaration, texts),) = _ask(self._session, "declared", generation=Int8(generation))
        return declaration, texts

    def drop_tables(self, names: Iterable[str]) -> None:
        """Drop tables. Raises LockNotAvailable."""
        self.execute(f"SET LOCAL lock_timeout = '{DROPPING * 1e3:.0f}ms'")
        for name in names:
            self.execute(f"DROP TABLE IF EXISTS {name}")
        self.execute(f"SET LOCAL lock_timeout = '{PATIENCE:.0f}s'")

    def check_transaction(self, error: BaseException) -> None:
        """Raise StoreUnavailableError where the server could not execute a statement at all."""
        self._indexes.clear()
        if isinstance(error, psycopg.Error) and not is_refused(error):
            raise unavailable(self._where, error) from error
        with suppress(psycopg.Error):  # the server may refuse something of what was sent since: it is undone as well
            self.drain()


def locks(names: Iterable[str] | None) -> Sequence[str]:
    """The statements that lock these projections, or all, against other writers until the transaction ends."""
    if names is None:
        return (SQL["lock"],)
    numbers = sorted({lock_number(name) for name in names})
    return (SQL["lock shared"], *(SQL["lock one"].replace("{lock}", str(number)) for number in numbers))


def lock_number(name: str) -> int:
    """The number of a projection's lock, from 1."""
    return (stream_id(name) >> 33) + 1


def _ask(session: Session, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
    return session.connection.execute(SQL[statement].encode(), parameters, prepare=True, binary=True).fetchall()
