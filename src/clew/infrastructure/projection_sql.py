"""Tables of projections in SQL: the statements that all databases share, built once for each table and query."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from operator import itemgetter
from typing import Any, NamedTuple

from clew.domain.errors import InvalidProjectionError
from clew.domain.projection import Column, Query, RowValues, Table, Where

DESCENDING = "-"

_COMPARISONS = {"=", "<", "<=", ">", ">="}

_MOST_QUERIES = 256
"""The most queries of one generation in the cache of SQL."""


class SqlTable:
    """A table of one generation: its name in SQL, and data derived from its declaration."""

    def __init__(self, name: str, declared: Table) -> None:
        self.name = name
        self.declared = declared
        self.kinds = {column.name: column.kind for column in declared.columns}
        self.adding = frozenset(column.name for column in declared.columns if column.adds)
        self.key_of = itemgetter(*declared.key)
        self._upserts: dict[tuple[tuple[str, ...], str], str] = {}

    def check(self, columns: Iterable[str]) -> None:
        """Raise InvalidProjectionError for columns that are not declared."""
        unknown = set(columns) - self.kinds.keys()
        if unknown:
            raise InvalidProjectionError(f"table {self.declared.name!r} has no column {', '.join(sorted(unknown))!r}.")

    def upsert(self, columns: tuple[str, ...], rows: str) -> str:
        """The statement that sets these columns of rows, or adds to them; ``rows`` is SQL that yields the rows."""
        statement = self._upserts.get((columns, rows))
        if statement is None:
            self.check(columns)
            statement = self._upserts[columns, rows] = self._upsert(columns, rows)
        return statement

    def _upsert(self, columns: tuple[str, ...], rows: str) -> str:
        sets = [
            f'"{column}" = {self.name}."{column}" + excluded."{column}"'
            if column in self.adding
            else f'"{column}" = excluded."{column}"'
            for column in columns
            if column not in self.declared.key
        ]
        action = f"UPDATE SET {', '.join(sets)}" if sets else "NOTHING"
        key = quoted(self.declared.key)
        return f"INSERT INTO {self.name} ({quoted(columns)}) {rows} ON CONFLICT ({key}) DO {action}"


class Select(NamedTuple):
    """The SQL of a query, and how its rows are read."""

    sql: str
    columns: Sequence[str]
    decoders: Mapping[str, Callable[[Any], Any]]

    def read(self, fetched: Iterable[Sequence[Any]]) -> list[RowValues]:
        """The rows with their columns by name."""
        rows = [dict(zip(self.columns, row, strict=True)) for row in fetched]
        for column, decode in self.decoders.items():
            for row in rows:
                if row[column] is not None:
                    row[column] = decode(row[column])
        return rows


class SqlTables:
    """The tables of one generation, and a cache of compiled queries."""

    def __init__(self, dialect: Dialect, generation: int, tables: Iterable[Table]) -> None:
        self._dialect = dialect
        self._tables = {table.name: SqlTable(dialect.table_name(generation, table.name), table) for table in tables}
        self._queries: dict[Query, Select] = {}
        self.names = [table.name for table in self._tables.values()]

    def __getitem__(self, name: str) -> SqlTable:
        """The table that was declared with this name. Raises InvalidProjectionError."""
        found = self._tables.get(name)
        if found is None:
            there = ", ".join(sorted(self._tables))
            raise InvalidProjectionError(f"The projection declares no table {name!r}. It declares: {there}.")
        return found

    def select(self, query: Query) -> tuple[Select, list[Any]]:
        """A query in SQL, and its parameters. Raises InvalidProjectionError for names that are not declared."""
        shape = _shape(query)
        select = self._queries.get(shape)
        if select is None:
            if len(self._queries) >= _MOST_QUERIES:
                self._queries.clear()
            select = self._queries[shape] = self._compiled(shape)
        return select, self._parameters(query)

    def _parameters(self, query: Query) -> list[Any]:
        dialect, kinds = self._dialect, self._tables[query.table].kinds
        found: list[Any] = []
        for column, is_, value in query.where:
            if isinstance(value, Query):
                found += self._parameters(value)
            elif is_ == "in":
                found.append(dialect.encode_list(kinds[column], value))
            elif value is not None:
                encode = dialect.encoders.get(kinds[column])
                found.append(value if encode is None else encode(value))
            elif is_ != "=":
                found.append(None)
        if query.limit is not None:
            found.append(dialect.encode_limit(query.limit))
        return found

    def _compiled(self, query: Query) -> Select:
        table = self[query.table]
        columns = query.columns or tuple(table.kinds)
        table.check([*columns, *map(itemgetter(0), query.where), *[each.lstrip(DESCENDING) for each in query.order]])
        sql = f"SELECT {quoted(columns)} FROM {table.name}"  # noqa: S608 - checked names
        if query.where:
            sql += f" WHERE {' AND '.join(map(self._condition, repeat(table), query.where))}"
        if query.order:
            sql += f" ORDER BY {self._dialect.order(table.declared, query)}"
        if query.limit is not None:
            sql += f" LIMIT {self._dialect.placeholder}"
        decoders: dict[str, Callable[[Any], Any]] = {}
        for name in columns:
            if table.kinds[name] in self._dialect.decoders:
                decoders[name] = self._dialect.decoders[table.kinds[name]]
        return Select(sql, columns, decoders)

    def _condition(self, table: SqlTable, where: Where) -> str:
        column, is_, value = where
        if is_ == "in":
            if not isinstance(value, Query):
                return f'"{column}" {self._dialect.in_list(table.kinds[column])}'
            if len(value.columns) != 1:
                raise InvalidProjectionError(
                    f"column {column!r} in a Query of {len(value.columns)} columns: name one column."
                )
            return f'"{column}" IN ({self._compiled(value).sql})'
        if is_ not in _COMPARISONS:
            raise InvalidProjectionError(f"{is_!r} is not a comparison of columns. Use =, <, <=, >, >= or in.")
        if value is None and is_ == "=":
            return f'"{column}" IS NULL'
        return f'"{column}" {is_} {self._dialect.placeholder}'


def _shape(query: Query) -> Query:
    """A query without its values: queries of one shape have the same SQL."""
    where = [
        Where(column, is_, _shape(value) if isinstance(value, Query) else None if value is None else ...)
        for column, is_, value in query.where
    ]
    limit = None if query.limit is None else 0
    return Query(query.table, tuple(where), tuple(query.order), limit, tuple(query.columns))


class Dialect(ABC):
    """How one database names tables, and writes and reads values.

    ``placeholder`` marks a parameter. By kind of column, ``encoders`` convert a value to its stored form, and
    ``decoders`` convert it back. Values of other kinds are stored unchanged.
    """

    def __init__(
        self,
        placeholder: str,
        encoders: Mapping[str, Callable[[Any], Any]],
        decoders: Mapping[str, Callable[[Any], Any]],
    ) -> None:
        self.placeholder = placeholder
        self.encoders = encoders
        self.decoders = decoders
        self.tables = lru_cache(maxsize=256)(self._tables)

    def _tables(self, generation: int, declared: tuple[Table, ...]) -> SqlTables:
        """The tables of a generation, cached."""
        return SqlTables(self, generation, declared)

    @abstractmethod
    def table_name(self, generation: int, table: str) -> str:
        """The name in SQL of a table of a generation."""

    @abstractmethod
    def encode_list(self, kind: str, values: Sequence[Any]) -> Any:
        """Values to compare a column of this kind with, as one parameter."""

    @abstractmethod
    def encode_limit(self, rows: int) -> Any:
        """A number of rows; a negative one means all."""

    @abstractmethod
    def in_list(self, kind: str) -> str:
        """The condition that a column of this kind has one of the values in a parameter."""

    @abstractmethod
    def order(self, table: Table, query: Query) -> str:
        """The columns that a query orders its rows by."""


def quoted(columns: Iterable[str]) -> str:
    """Names of columns in SQL, where they may be reserved words."""
    return '"' + '", "'.join(columns) + '"'


@lru_cache(maxsize=256)
def declared_tables(declaration: str) -> tuple[Table, ...]:
    """The tables of a generation, from the JSON that its declaration is stored as."""
    return tuple(
        [
            Table(name, tuple([Column(*column) for column in columns]), tuple(key), tuple(map(tuple, indexes)))
            for name, columns, key, indexes in json.loads(declaration)
        ]
    )
