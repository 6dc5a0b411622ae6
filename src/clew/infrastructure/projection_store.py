"""Projections in an SQL database: their generations, rows and leases. SQLite and PostgreSQL share this.

A generation has its own tables. Each database adds a dialect, and how its connections are used.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache, partial
from itertools import repeat
from operator import add, itemgetter
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from clew.domain.errors import InvalidProjectionError, UnknownProjectionError
from clew.domain.projection import (
    Change,
    Column,
    Delete,
    ForgetText,
    Generation,
    Indexed,
    IndexText,
    Parked,
    Projection,
    Query,
    Recount,
    RowValues,
    Table,
    Upsert,
    Value,
    Where,
    Words,
)
from clew.domain.projection_leases import Share, claimed
from clew.infrastructure import code_digest

C = TypeVar("C")
"""A connection to the database."""

T = TypeVar("T")

DESCENDING = "-"

Decode: TypeAlias = Callable[[Sequence[Any]], list[Any]]
"""Converts stored values of a column back. None of them is None."""


def decode_column(decode: Decode, stored: Sequence[Any]) -> Sequence[Any]:
    """The values of a column, some of which are None."""
    present = [each for each in stored if each is not None]
    if not present:
        return stored
    values = iter(decode(present))
    return [None if each is None else next(values) for each in stored]


class Found(NamedTuple):
    """The rows that a query found."""

    columns: Sequence[str]
    values: Sequence[tuple[Any, ...]]

    def rows(self) -> list[RowValues]:
        """The rows with their columns by name."""
        return list(map(dict, map(zip, repeat(self.columns), self.values)))


class _Combined(NamedTuple):
    """How the stored value of a column and an upserted one become one: in Python, and in SQL."""

    of: Callable[[Any, Any], Any]
    sql: str


_KEPT = (
    "{{column}} = CASE WHEN {{table}}.{{column}} {} excluded.{{column}} THEN {{table}}.{{column}} "
    "ELSE excluded.{{column}} END"
)
_REPLACED = "{column} = excluded.{column}"
_COMBINED = {
    None: _Combined(add, "{column} = {table}.{column} + excluded.{column}"),
    "least": _Combined(min, _KEPT.format("<")),
    "greatest": _Combined(max, _KEPT.format(">")),
}


class SqlTable:
    """A table of one generation: its name in SQL, and data derived from its declaration."""

    def __init__(self, name: str, declared: Table) -> None:
        self.name = name
        self.declared = declared
        self.kinds = {column.name: column.kind for column in declared.columns}
        self.combining = {column.name: _COMBINED[column.keeps] for column in declared.columns if column.combines}
        self.key_of = itemgetter(*declared.key)
        self._upserts: dict[tuple[tuple[str, ...], str], str] = {}

    def check(self, columns: Iterable[str]) -> None:
        """Raise InvalidProjectionError for columns that are not declared."""
        unknown = set(columns) - self.kinds.keys()
        if unknown:
            raise InvalidProjectionError(f"table {self.declared.name!r} has no column {', '.join(sorted(unknown))!r}.")

    def upsert(self, columns: tuple[str, ...], rows: str) -> str:
        """The statement that sets or combines these columns of rows; ``rows`` is SQL that yields the rows."""
        statement = self._upserts.get((columns, rows))
        if statement is None:
            self.check(columns)
            statement = self._upserts[columns, rows] = self._upsert(columns, rows)
        return statement

    def _upsert(self, columns: tuple[str, ...], rows: str) -> str:
        sets = [
            (self.combining[column].sql if column in self.combining else _REPLACED).format(
                column=f'"{column}"', table=self.name
            )
            for column in columns
            if column not in self.declared.key
        ]
        action = f"UPDATE SET {', '.join(sets)}" if sets else "NOTHING"
        key = quoted(self.declared.key)
        return f"INSERT INTO {self.name} ({quoted(columns)}) {rows} ON CONFLICT ({key}) DO {action}"


class SqlTables:
    """The tables of one generation. ``compiled`` is a cache for the queries of them."""

    def __init__(self, dialect: Dialect[Any], generation: int, tables: Iterable[Table]) -> None:
        self.dialect = dialect
        self.compiled: dict[Query, Any] = {}
        self._tables = {table.name: SqlTable(dialect.table_name(generation, table.name), table) for table in tables}
        self.names = [table.name for table in self._tables.values()]

    def __getitem__(self, name: str) -> SqlTable:
        """The table that was declared with this name. Raises InvalidProjectionError."""
        table = self._tables.get(name)
        if table is None:
            declared = ", ".join(sorted(self._tables))
            raise InvalidProjectionError(f"The projection declares no table {name!r}. It declares: {declared}.")
        return table


def quoted(columns: Iterable[str]) -> str:
    """Names of columns in SQL, where they may be reserved words."""
    return '"' + '", "'.join(columns) + '"'


class Dialect(ABC, Generic[C]):
    """How one database names tables, writes and reads values, and executes statements.

    ``placeholder`` marks a parameter. By kind of column, ``encoders`` convert a value to its stored form, and
    ``decoders`` convert values back. Values of other kinds are stored unchanged. The statements with a name are the
    same in all databases, except for their SQL; a statement may ignore some of its parameters.
    """

    lists_subqueries = False
    """Whether all values of a subquery are listed before the first row is compared with them, even for one page."""

    def __init__(
        self,
        placeholder: str,
        encoders: Mapping[str, Callable[[Any], Any]],
        decoders: Mapping[str, Decode],
    ) -> None:
        self.placeholder = placeholder
        self.encoders = encoders
        self.decoders = decoders
        self.tables: Callable[[int, tuple[Table, ...]], SqlTables] = lru_cache(maxsize=256)(partial(SqlTables, self))
        """The tables of a generation, by its number and their declarations."""

    def created(self, generation: int, projection: Projection) -> list[str]:
        """The statements that create the tables of a generation."""
        return [
            statement
            for table in projection.tables
            for statement in self.create_table(self.table_name(generation, table.name), table)
        ]

    def shape(self, projection: Projection) -> str:
        """The digest of a projection's tables and indexes, as this version of Clew creates them."""
        return code_digest.shape(projection, self.created(0, projection))

    def generations(self, connection: C) -> list[Generation]:
        """The generations, oldest first."""
        return [Generation(*row[:7], *map(bool, row[7:])) for row in self.ask(connection, "generations")]

    def live(self, connection: C, name: str) -> tuple[int, SqlTables]:
        """The live generation of a projection, and its tables. Raises UnknownProjectionError if it was never built."""
        rows = self.ask(connection, "live", name=name)
        if not rows:
            raise UnknownProjectionError(name, [each for (each,) in self.ask(connection, "live names")])
        ((generation, declaration),) = rows
        return generation, self.tables(generation, _declared_tables(declaration))

    def parked(self, connection: C, name: str, limit: int) -> tuple[int, list[Parked]]:
        """The number of events that the live generation of a projection has parked, and the first of them."""
        rows = self.ask(connection, "parked", generation=self.live(connection, name)[0], limit=limit)
        decode = self.decoders.get("text", list)
        return (rows[0][0] if rows else 0), [
            Parked(position, decode([stream])[0], version, decode([type_])[0], decode([error])[0])
            for _, position, stream, version, type_, error in rows
        ]

    def shares(self, connection: C) -> list[Share]:
        """The workers of each projection."""
        return [Share(*row) for row in self.ask(connection, "shares", now=time.time())]

    # What a database adds

    @abstractmethod
    def table_name(self, generation: int, table: str) -> str:
        """The name in SQL of a table of a generation."""

    @abstractmethod
    def create_table(self, name: str, table: Table) -> Sequence[str]:
        """The statements that create a table of this name, and its indexes."""

    @abstractmethod
    def encode_list(self, kind: str, values: Sequence[Any]) -> Any:
        """Values to compare a column of this kind with, as one parameter."""

    @abstractmethod
    def encode_limit(self, rows: int, /) -> Any:
        """A number of rows; a negative one means all."""

    @abstractmethod
    def in_list(self, kind: str) -> str:
        """The condition that a column of this kind has one of the values in a parameter."""

    @abstractmethod
    def order(self, table: Table, query: Query) -> str:
        """The columns that a query orders its rows by."""

    @abstractmethod
    def execute(self, connection: C, sql: str, parameters: Sequence[Any] = ()) -> None:
        """Execute a statement in a transaction."""

    @abstractmethod
    def run(self, connection: C, statement: str, **parameters: Any) -> None:
        """Execute the statement of this name in a transaction."""

    @abstractmethod
    def ask(self, connection: C, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
        """The rows of the statement of this name."""

    @abstractmethod
    def fetch(self, connection: C, tables: SqlTables, query: Query) -> Found:
        """The stored rows that match a query."""

    @abstractmethod
    def find(
        self, connection: C, generation: int, /, index: str, words: Words, *, before: int | None, limit: int
    ) -> list[int]:
        """The positions of texts with these words, newest first."""


class SqlSession(ABC, Generic[C]):
    """A transaction in which generations of projections are changed; the store that opened it commits it.

    ``forgot`` are the generations that text was removed from.
    """

    def __init__(self, dialect: Dialect[C], connection: C) -> None:
        self.dialect = dialect
        self.forgot: set[int] = set()
        self._connection = connection
        self._rows: dict[int, GenerationRows] = {}

    def generations(self) -> list[Generation]:
        """The generations, oldest first."""
        return self.dialect.generations(self._connection)

    def fetch(self, tables: SqlTables, query: Query) -> list[RowValues]:
        """The stored rows that match a query."""
        return self.dialect.fetch(self._connection, tables, query).rows()

    def begin(self, projection: Projection, code: str, *, live: bool) -> Generation:
        """Create the tables of a new generation."""
        dialect, connection = self.dialect, self._connection
        name, version, shape = projection.name, projection.version, dialect.shape(projection)
        row = {"name": name, "version": version, "code": code, "shape": shape, "live": live}
        tables, texts = json.dumps(code_digest.declared(projection.tables)), list(projection.texts)
        dialect.run(connection, "begin", **row, tables=tables, texts=texts)
        ((generation,),) = dialect.ask(connection, "newest", name=name)
        for statement in dialect.created(generation, projection):
            dialect.execute(connection, statement)
        return Generation(generation, name, version, code, shape, 0, b"", live)

    def rows(self, generation: Generation, projection: Projection) -> GenerationRows:
        """The rows of a generation, with the changes that wait to be written."""
        rows = self._rows.get(generation.id)
        if rows is None:
            rows = self._rows[generation.id] = GenerationRows(self, generation.id, projection)
        return rows

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Undo the changes that are made inside if an error is raised there."""
        self.flush()
        self.dialect.execute(self._connection, "SAVEPOINT attempt")
        try:
            yield
            self.flush()
        except BaseException as error:
            self._rows.clear()
            self.check_transaction(error)
            self.dialect.execute(self._connection, "ROLLBACK TO attempt")
            self.dialect.execute(self._connection, "RELEASE attempt")
            raise
        self.dialect.execute(self._connection, "RELEASE attempt")

    def flush(self) -> None:
        """Write the changes that wait."""
        for rows in self._rows.values():
            rows.flush()

    def move(self, generation: Generation, position: int, hash_: bytes) -> None:
        """Record the position that a generation has reached."""
        self.dialect.run(self._connection, "move", generation=generation.id, position=position, hash=hash_)

    def park(self, generation: Generation, parked: Parked) -> None:
        """Record an event that the projection could not apply."""
        self.dialect.run(self._connection, "park", generation=generation.id, **parked._asdict())

    def switch(self, generation: Generation) -> bool:
        """Make this generation the live one, and drop the others of its projection."""
        for other in self.generations():
            if other.name == generation.name and other.id != generation.id:
                self.drop(other)
        self.dialect.run(self._connection, "switch", generation=generation.id)
        return True

    def drop(self, generation: Generation) -> None:
        """Drop a generation with its tables."""
        self.flush()
        self._rows.pop(generation.id, None)
        self.drop_tables(self.table_names(generation.id))
        for statement in ("drop parked", "drop stretches", "drop"):
            self.dialect.run(self._connection, statement, generation=generation.id)

    def table_names(self, generation: int) -> list[str]:
        """The names in SQL of all tables of a generation, including those of its indexes of words."""
        ((declaration,),) = self.dialect.ask(self._connection, "declared", generation=generation)
        return [*self.dialect.tables(generation, _declared_tables(declaration)).names, *self.index_tables(generation)]

    def delete(self, table: SqlTable, columns: Sequence[str], values: Sequence[Value]) -> None:
        """Delete the stored rows with these values of their key."""
        encoders = self.dialect.encoders
        where = " AND ".join([f'"{column}" = {self.dialect.placeholder}' for column in columns])
        encoded = [
            value if value is None or table.kinds[column] not in encoders else encoders[table.kinds[column]](value)
            for column, value in zip(columns, values, strict=True)
        ]
        self.dialect.execute(self._connection, f"DELETE FROM {table.name} WHERE {where}", encoded)  # noqa: S608 - checked names

    # What a database adds

    @abstractmethod
    def upsert(self, table: SqlTable, columns: tuple[str, ...], rows: Sequence[RowValues]) -> None:
        """Write rows that name the same columns, in the same order."""

    @abstractmethod
    def index(self, generation: int, name: str, texts: list[Indexed]) -> None:
        """Add texts to an index of words."""

    @abstractmethod
    def index_tables(self, generation: int) -> Iterable[str]:
        """The names in SQL of the tables of a generation's indexes of words."""

    @abstractmethod
    def drop_tables(self, names: Iterable[str]) -> None:
        """Drop tables."""

    @abstractmethod
    def check_transaction(self, error: BaseException) -> None:
        """Raise StoreUnavailableError after an error that has ended the transaction itself."""


class _PendingRows:
    """The rows that wait to be written to a table, each key once."""

    def __init__(self, table: SqlTable) -> None:
        self.table = table
        self.key_of = table.key_of
        self.combining = table.combining
        self.rows: dict[Any, RowValues] = {}


class GenerationRows:
    """The rows of one generation: those that are stored, and the changes that wait to be written."""

    def __init__(self, session: SqlSession[Any], generation: int, projection: Projection) -> None:
        self._session = session
        self._generation = generation
        self._projection = projection
        self._tables = session.dialect.tables(generation, tuple(projection.tables))
        self._pending: dict[str, _PendingRows] = {}
        self.texts: dict[str, list[Indexed]] = {}

    def get(self, table: str, *key: Value) -> RowValues | None:
        """The row with this key."""
        pending = self._pending.get(table)
        if pending is not None and (key if len(key) > 1 else key[0]) in pending.rows:
            self._write(pending)
        columns = self._tables[table].declared.key
        where = [Where(column, "=", value) for column, value in zip(columns, key, strict=True)]
        rows = self._session.fetch(self._tables, Query(table, where))
        return rows[0] if rows else None

    def select(self, query: Query) -> list[RowValues]:
        """The rows that match a query."""
        for pending in self._pending.values():
            self._write(pending)
        return self._session.fetch(self._tables, query)

    def apply(self, position: int, tenant: str, changes: Iterable[Change]) -> list[ForgetText | Recount]:
        """Make the changes of a tenant's event at a position; returns those that need the log."""
        from_log: list[ForgetText | Recount] = []
        for change in changes:
            if type(change) is Upsert:
                name, values = change
                pending = self._pending.get(name)
                if pending is None:
                    pending = self._pending[name] = _PendingRows(self._tables[name])
                key = pending.key_of(values)
                row = pending.rows.get(key)
                if row is None:
                    pending.rows[key] = dict(values)
                    continue
                combining = pending.combining
                if not combining:
                    row.update(values)
                    continue
                for column, value in values.items():
                    combined = combining.get(column) if column in row else None
                    row[column] = value if combined is None else combined.of(row[column], value)
            elif type(change) is IndexText:
                index, text, scopes = change
                texts = self.texts.get(index)
                if texts is None:
                    self._check_index(index)
                    texts = self.texts[index] = []
                texts.append(Indexed(position, tenant, text, scopes))
            elif type(change) is Delete:
                self._delete(change)
            else:
                from_log.append(self._checked(change))
        return from_log

    def flush(self) -> None:
        """Write the changes that wait."""
        for pending in self._pending.values():
            if pending.rows:
                self._write(pending)
        if self.texts:
            self.flush_texts()

    def flush_texts(self) -> None:
        """Write the texts that wait."""
        for index, texts in self.texts.items():
            if texts:
                self._session.index(self._generation, index, texts)
                texts.clear()

    def _checked(self, change: object) -> ForgetText | Recount:
        if isinstance(change, ForgetText):
            self._check_index(change.text_index)
            return change
        if isinstance(change, Recount):
            key = self._tables[change.table].declared.key
            if key[:2] != ("tenant", "thread_id"):
                raise InvalidProjectionError(
                    f"table {change.table!r} cannot be recounted: its key is {key!r}, and does not begin with tenant "
                    "and thread_id."
                )
            return change
        raise InvalidProjectionError(
            f"projection {self._projection.name!r} yields {type(change).__name__}, which is not a change."
        )

    def _check_index(self, index: str) -> None:
        if index not in self._projection.texts:
            raise InvalidProjectionError(f"projection {self._projection.name!r} declares no index of words {index!r}.")

    def _delete(self, change: Delete) -> None:
        pending = self._pending.get(change.table)
        if pending is not None:
            self._write(pending)
        table = self._tables[change.table]
        key = table.declared.key
        if not 0 < len(change.key) <= len(key):
            raise InvalidProjectionError(
                f"table {change.table!r}: {len(change.key)} values for a key of {key!r}. Give the first columns."
            )
        self._session.delete(table, key[: len(change.key)], change.key)

    def _write(self, pending: _PendingRows) -> None:
        rows, pending.rows = pending.rows, {}
        groups: dict[tuple[str, ...], list[RowValues]] = {}
        for row in rows.values():
            groups.setdefault(tuple(row), []).append(row)
        for columns, group in groups.items():
            self._session.upsert(pending.table, columns, group)


class SqlProjections(ABC, Generic[C]):
    """The reads and the leases of a projection store."""

    def __init__(self, dialect: Dialect[C]) -> None:
        self._dialect = dialect
        self._live: Callable[[C, str], tuple[int, SqlTables]] = dialect.live

    def shape(self, projection: Projection) -> str:
        """The digest of a projection's tables and indexes, as this version of Clew creates them."""
        return self._dialect.shape(projection)

    def generations(self) -> list[Generation]:
        """The generations, oldest first."""
        try:
            return self._read("", self._dialect.generations)
        except UnknownProjectionError:
            return []

    def select(self, name: str, query: Query) -> list[RowValues]:
        """Rows of the live tables of a projection."""
        fetch = self._dialect.fetch
        return self._read(name, lambda connection: fetch(connection, self._live(connection, name)[1], query)).rows()

    def values(self, name: str, query: Query) -> Sequence[tuple[Value, ...]]:
        """The same rows as tuples of the query's columns."""

        def fetch(connection: C) -> Sequence[tuple[Value, ...]]:
            tables = self._live(connection, name)[1]
            present = list(filter(tables[query.table].kinds.__contains__, query.columns))
            values = self._dialect.fetch(connection, tables, query._replace(columns=present)).values
            for place, column in enumerate(query.columns):
                if column not in present:
                    values = [(*row[:place], None, *row[place:]) for row in values]
            return values

        return self._read(name, fetch)

    def find(self, name: str, index: str, words: Words, *, before: int | None, limit: int) -> list[int]:
        """The positions of texts with these words, newest first."""
        find = partial(self._dialect.find, index=index, words=words, before=before, limit=limit)
        return self._read(name, lambda connection: find(connection, self._live(connection, name)[0]))

    def parked(self, name: str, limit: int) -> tuple[int, list[Parked]]:
        """The number of events that the live generation has parked, and the first of them."""
        return self._read(name, lambda connection: self._dialect.parked(connection, name, limit))

    def claim(self, worker: str, names: Sequence[str], seconds: float) -> list[str]:
        """The projections whose leases a worker has from now on."""
        dialect, now = self._dialect, time.time()
        with self._lease_transaction() as connection:
            claimed_names = claimed(dialect.shares(connection), worker, names)
            dialect.run(connection, "drop old leases", worker=worker, names=list(names), now=now)
            for name in names:
                lease = {"worker": worker, "projection": name, "held": name in claimed_names}
                dialect.run(connection, "put lease", **lease, now=now, seconds=seconds)
        return claimed_names

    def release(self, worker: str) -> None:
        """End the leases of a worker at once."""
        with self._lease_transaction() as connection:
            self._dialect.run(connection, "drop leases", worker=worker)

    def holders(self) -> dict[str, str]:
        """By projection, the worker that holds its lease."""
        try:
            shares = self._read("", self._dialect.shares)
        except UnknownProjectionError:
            return {}
        return {each.projection: each.worker for each in shares if each.held}

    @abstractmethod
    def _read(self, name: str, work: Callable[[C], T]) -> T:
        """What ``work`` reads. Raises UnknownProjectionError, with the name, if no projection was ever built."""

    @abstractmethod
    def _lease_transaction(self) -> AbstractContextManager[C]:
        """A transaction in which no other worker claims or releases leases."""


@lru_cache(maxsize=256)
def _declared_tables(declaration: str) -> tuple[Table, ...]:
    """The tables of a generation, from the JSON that its declaration is stored as."""
    return tuple(
        [
            Table(name, tuple([Column(*column) for column in columns]), tuple(key), tuple(map(tuple, indexes)))
            for name, columns, key, indexes in json.loads(declaration)
        ]
    )
