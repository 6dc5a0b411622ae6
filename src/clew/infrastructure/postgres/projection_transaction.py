"""One transaction on the tables of projections in PostgreSQL, and PostgreSQL's dialect of SQL for them.

Text is stored as bytes of UTF-8: it may contain U+0000, and its order is that of code points whatever the collation.
None comes before every other value, as in SQLite.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import lru_cache, partial
from typing import Any

import psycopg
from psycopg.types.numeric import Int8

from clew.domain.errors import InvalidProjectionError
from clew.domain.projection import Column, Generation, Indexed, Parked, Projection, Query, RowValues, Span, Table
from clew.infrastructure.postgres import schema, text_index
from clew.infrastructure.postgres.connection import Rows, Session
from clew.infrastructure.postgres.errors import unavailable
from clew.infrastructure.postgres.row_level_security import protect
from clew.infrastructure.postgres.sql_files import statements as sql_statements
from clew.infrastructure.postgres.stream_ids import (
    index_name,
    stream_id,
    table_name,
    tenant_id,
    text,
    within,
)
from clew.infrastructure.projection_queries import compile_query, decode_json
from clew.infrastructure.projection_store import (
    DESCENDING,
    Dialect,
    Found,
    GenerationRows,
    SqlSession,
    SqlTable,
    SqlTables,
    quoted,
)
from clew.infrastructure.recorder_ports import HIGHEST

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


class _PostgreSQL(Dialect[Session]):
    def __init__(self) -> None:
        super().__init__(
            "%b",
            {
                "integer": lambda value: Int8(_integer(_within(value))),
                "text": partial(_text, "text"),
                "json": partial(_text, "json"),
            },
            {"text": lambda stored: list(map(text, stored)), "json": decode_json},
        )

    def table_name(self, generation: int, table: str) -> str:
        return table_name(generation, table)

    @staticmethod
    @lru_cache(maxsize=256)
    def create_table(name: str, table: Table) -> tuple[str, ...]:
        columns = ", ".join(map(_declaration, table.columns))
        key = f"CONSTRAINT {index_name(name, 'key')} PRIMARY KEY ({quoted(table.key)})"
        needed = _needed(table)
        indexes = [
            f"CREATE INDEX {index_name(name, number)} ON {name} "
            f"({', '.join([_in_order(each, needed) for each in index])})"
            for number, index in enumerate(table.indexes)
        ]
        return f"CREATE TABLE {name} ({columns}, {key})", *indexes

    def created(self, generation: int, projection: Projection) -> list[str]:
        texts = [statement for index in projection.texts for statement in text_index.created(generation, index)]
        return [*super().created(generation, projection), *texts]

    def encode_list(self, kind: str, values: Sequence[Any]) -> Any:
        return _array(kind, [_within(each) for each in values])

    def encode_limit(self, rows: int) -> Any:
        return Int8(within(rows)) if rows >= 0 else None

    def in_list(self, kind: str) -> str:
        return f"= ANY (%s::{_TYPES[kind]}[])"

    def order(self, table: Table, query: Query) -> str:
        needed = _needed(table)
        return ", ".join([_in_order(each, needed) for each in query.order])

    def execute(self, connection: Session, sql: str, parameters: Sequence[Any] = ()) -> None:
        connection.connection.execute(sql.encode(), parameters or None)

    def run(self, connection: Session, statement: str, **parameters: Any) -> None:
        connection.connection.execute(SQL[statement].encode(), _typed(parameters), prepare=True)

    def ask(self, connection: Session, statement: str, **parameters: Any) -> Rows:
        return _rows(connection, SQL[statement], _typed(parameters))

    def fetch(self, connection: Session, tables: SqlTables, query: Query) -> Found:
        try:
            select, parameters = compile_query(tables, query)
        except UnicodeEncodeError:
            return Found(query.columns, ())  # text that is not valid Unicode was never stored
        return select.read(_rows(connection, select.sql, parameters))

    find = staticmethod(text_index.find)


DIALECT = _PostgreSQL()


def _typed(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """Parameters of a prepared statement: every integer has one type."""
    return {name: Int8(value) if type(value) is int else value for name, value in parameters.items()}


def _rows(session: Session, sql: str, parameters: Mapping[str, Any] | Sequence[Any]) -> Rows:
    """The rows of a statement: in the transaction of the session, or in a separate one."""
    if session.connection.info.pipeline_status == psycopg.pq.PipelineStatus.OFF:
        return session.query(sql, parameters)
    return session.connection.execute(sql.encode(), parameters, prepare=True, binary=True).fetchall()


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


def is_refused(error: BaseException) -> bool:
    """Whether PostgreSQL refuses only the values, and could execute the statement with others."""
    if not isinstance(error, psycopg.Error):
        return True
    by_the_driver = error.sqlstate is None and isinstance(error, (psycopg.DataError, psycopg.ProgrammingError))
    return by_the_driver or (error.sqlstate or "").startswith(REFUSED)


class PostgresSession(SqlSession[Session]):
    """A transaction. Statements are sent without waiting for their answers once changes are written."""

    def __init__(self, session: Session, where: str) -> None:
        super().__init__(DIALECT, session)
        self._session = session
        self._where = where
        self._indexes: dict[tuple[int, str], text_index.TextIndexWriter] = {}
        self._pipeline: AbstractContextManager[Any] | None = None

    def begin(self, projection: Projection, code: str, *, live: bool) -> Generation:
        """Create the tables of a new generation."""
        schema.use_home_schema(self._session.connection)
        generation = super().begin(projection, code, live=live)
        tables = [table_name(generation.id, table.name) for table in projection.tables]
        texts = [name for index in projection.texts for name in text_index.tables(generation.id, index)]
        for name in (*tables, *texts):
            protect(self._session, name)
        return generation

    def rows(self, generation: Generation, projection: Projection) -> GenerationRows:
        """The rows of a generation; while more are made, the server indexes the texts that are ready."""
        rows = super().rows(generation, projection)
        for texts in rows.texts.values():
            if len(texts) >= text_index.AT_ONCE:
                self._begin_pipeline()
                rows.flush_texts()
        return rows

    def park(self, generation: Generation, parked: Parked) -> None:
        """Record an event that the projection could not apply."""
        stored = {name: getattr(parked, name).encode(errors="surrogateescape") for name in ("stream", "type", "error")}
        tenant = tenant_id(stored["stream"].decode(errors="replace"))
        row = {"generation": generation.id, **parked._asdict(), **stored}
        self.dialect.run(self._session, "park", **row, tenant=tenant)

    def forget(self, generation: Generation, index: str | None, position: int, by: int) -> None:
        """Remove the words of the text at a position from one index or from all."""
        del by
        indexes = [index] if index is not None else self._indexes_of(generation.id)
        if generation.id in self._rows:
            for waiting in self._rows[generation.id].texts.values():
                waiting[:] = [each for each in waiting if each.position != position]
        for (number, _), writer in self._indexes.items():
            if number == generation.id:
                writer.forget(position)
        forgotten = [text_index.forget(self._session, generation.id, each, position) for each in indexes]
        if any(forgotten):
            self.dialect.run(self._session, "forget", generation=generation.id)
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
        self.dialect.execute(self._session, "SAVEPOINT switch")
        try:
            return super().switch(generation)
        except psycopg.errors.LockNotAvailable:
            self.dialect.execute(self._session, "ROLLBACK TO switch")
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

    def clean(self, generation: Generation) -> None:
        """Nothing: the server removes old versions of rows when it vacuums the table."""

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

    def upsert(self, table: SqlTable, columns: tuple[str, ...], rows: Sequence[RowValues]) -> None:
        """Write rows that name the same columns, with one statement."""
        arrays = ", ".join([f"%s::{_TYPES[table.kinds.get(column, 'text')]}[]" for column in columns])
        sql = table.upsert(columns, f"SELECT * FROM unnest({arrays})")  # noqa: S608 - types of columns
        values = [_array(table.kinds[column], [row[column] for row in rows]) for column in columns]
        self._session.connection.execute(sql.encode(), values, prepare=True)

    def index(self, generation: int, name: str, texts: list[Indexed]) -> None:
        """Add texts to an index of words."""
        writer = self._indexes.get((generation, name))
        if writer is None:
            writer = self._indexes[generation, name] = text_index.TextIndexWriter(self._session, generation, name)
        writer.add(texts)

    def index_tables(self, generation: int) -> list[str]:
        """The tables of a generation's indexes of words."""
        return [name for index in self._indexes_of(generation) for name in text_index.tables(generation, index)]

    def _indexes_of(self, generation: int) -> Sequence[str]:
        """The names of a generation's indexes of words."""
        ((indexes,),) = self.dialect.ask(self._session, "indexes", generation=generation)
        names: Sequence[str] = indexes
        return names

    def drop_tables(self, names: Iterable[str]) -> None:
        """Drop tables. Raises LockNotAvailable."""
        self.dialect.execute(self._session, f"SET LOCAL lock_timeout = '{DROPPING * 1e3:.0f}ms'")
        for name in names:
            self.dialect.execute(self._session, f"DROP TABLE IF EXISTS {name}")
        self.dialect.execute(self._session, f"SET LOCAL lock_timeout = '{PATIENCE:.0f}s'")

    def check_transaction(self, error: BaseException) -> None:
        """Raise StoreUnavailableError where the server could not execute a statement at all."""
        self._indexes.clear()
        if isinstance(error, psycopg.Error) and not is_refused(error):
            raise unavailable(self._where, error) from error
        with suppress(psycopg.Error):  # the server may refuse something of what was sent since: it is undone as well
            self.drain()


@lru_cache(maxsize=256)
def locks(names: tuple[str, ...]) -> Sequence[str]:
    """The statements that lock these projections against other writers until the transaction ends."""
    numbers = sorted({lock_number(name) for name in names})
    return (SQL["lock shared"], *(SQL["lock one"].replace("{lock}", str(number)) for number in numbers))


def lock_number(name: str) -> int:
    """The number of a projection's lock, from 1."""
    return (stream_id(name) >> 33) + 1
