"""A projection's tables in PostgreSQL: how they are made, filled and read, from their declaration alone.

Text is kept as bytes of UTF-8: it may hold U+0000, and is in the order of code points whatever the collation. None
comes before everything else, as in SQLite.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from psycopg.types.numeric import Int8

from clew.domain.errors import InvalidProjectionError
from clew.domain.projection import Column, Query, RowValues, Table, Where
from clew.infrastructure.postgres.reads import HIGHEST, within
from clew.infrastructure.postgres.sessions import Session
from clew.infrastructure.projection_changes import WaitingRows

Tables = Mapping[str, tuple[str, Table]]
"""The tables of a projection, each with its name in SQL."""

_DESCENDING = "-"
_TYPES = {"integer": "bigint", "text": "bytea", "json": "bytea"}


@lru_cache(maxsize=256)
def statements(name: str, table: Table) -> tuple[str, ...]:
    """The statements that make a table of this name, and its indexes."""
    columns = ", ".join(map(_declaration, table.columns))
    made = f"CREATE TABLE {name} ({columns}, PRIMARY KEY ({_names(table.key)}))"
    needed = _needed(table)
    indexes = [
        f"CREATE INDEX {index_name(name, number)} ON {name} ({', '.join(_in_order(each, needed) for each in index)})"
        for number, index in enumerate(table.indexes)
    ]
    return made, *indexes


def index_name(table: str, number: int) -> str:
    """The name of an index of a table."""
    return f"{table.replace('clew_g', 'clew_i', 1)}_{number}"


def _declaration(column: Column) -> str:
    default = " NOT NULL DEFAULT 0" if column.adds else ""
    return f'"{column.name}" {_TYPES[column.kind]}{default}'


def _needed(table: Table) -> frozenset[str]:
    """The columns that are never NULL: their order is the same however NULL is sorted."""
    return frozenset(table.key) | {column.name for column in table.columns if column.adds}


def _in_order(column: str, needed: frozenset[str]) -> str:
    """A column in an index or an order, ascending, or descending with the sign before it."""
    if column.startswith(_DESCENDING):
        name = column[1:]
        return f'"{name}" DESC' if name in needed else f'"{name}" DESC NULLS LAST'
    return f'"{column}"' if column in needed else f'"{column}" NULLS FIRST'


def _names(columns: Iterable[str]) -> str:
    """Names of columns in SQL, which may be words of its own."""
    return ", ".join(f'"{column}"' for column in columns)


class Filling(WaitingRows):
    """What is to be written to one table."""

    def __init__(self, session: Session, name: str, table: Table) -> None:
        super().__init__(table)
        self._session = session
        self._name = name
        self._kinds = _kinds(table)

    def delete(self, key: Sequence[Any]) -> None:
        """Delete the rows that begin with these values of the key."""
        self.flush()
        columns = self.begins(key)
        where = " AND ".join(f'"{column}" = %b' for column in columns)
        values = [_compared(self.table, column, value) for column, value in zip(columns, key, strict=True)]
        sql = f"DELETE FROM {self._name} WHERE {where}"  # noqa: S608 - checked names
        self._session.connection.execute(sql.encode(), values)

    def get(self, key: Sequence[Any]) -> RowValues | None:
        """The row with this key, as it is by now."""
        if self.waits(key):
            self.flush()
        query = Query(self.table.name, [Where(c, "=", k) for c, k in zip(self.table.key, key, strict=True)])
        found = select(self._session, {self.table.name: (self._name, self.table)}, query)
        return found[0] if found else None

    def flush(self) -> None:
        """Write what waits, all rows with the same columns at once."""
        for columns, rows in self.take().items():
            arrays = [_array(self._kinds[column], [row[column] for row in rows]) for column in columns]
            self._session.connection.execute(self._upsert(columns).encode(), arrays, prepare=True)

    def _upsert(self, columns: tuple[str, ...]) -> str:
        key = self.table.key
        sets = [
            f'"{column}" = {self._name}."{column}" + excluded."{column}"'
            if column in self.adding
            else f'"{column}" = excluded."{column}"'
            for column in columns
            if column not in key
        ]
        done = f"UPDATE SET {', '.join(sets)}" if sets else "NOTHING"
        arrays = ", ".join(f"%s::{_TYPES[self._kinds[column]]}[]" for column in columns)
        return (
            f"INSERT INTO {self._name} ({_names(columns)}) SELECT * FROM unnest({arrays}) "  # noqa: S608 - checked names
            f"ON CONFLICT ({_names(key)}) DO {done}"
        )


def select(session: Session, tables: Tables, query: Query, *, alone: bool = False) -> list[RowValues]:
    """The rows that a query names; ``alone`` it is a transaction by itself."""
    try:
        sql, parameters = sql_of(tables, query)
    except UnicodeEncodeError:
        return []  # what is no valid Unicode was never stored
    table = _table(tables, query)[1]
    columns = list(query.columns) or [column.name for column in table.columns]
    kinds = _kinds(table)
    reads = [_READS[kinds[column]] for column in columns]
    if alone:
        found = session.ask(sql, parameters)
    else:
        found = session.connection.execute(sql.encode(), parameters, prepare=True, binary=True).fetchall()
    return [
        {
            column: None if value is None else value if read is None else read(value)
            for column, read, value in zip(columns, reads, row, strict=True)
        }
        for row in found
    ]


def sql_of(tables: Tables, query: Query) -> tuple[str, list[Any]]:
    """A query in SQL, and its parameters. Raises InvalidProjectionError for what is not declared."""
    name, table = _table(tables, query)
    there = {column.name for column in table.columns}
    named = {
        *query.columns,
        *(where.column for where in query.where),
        *(each.lstrip(_DESCENDING) for each in query.order),
    }
    if not named <= there:
        raise InvalidProjectionError(f"table {table.name!r} has no column {', '.join(sorted(named - there))!r}.")
    parameters: list[Any] = []
    conditions: list[str] = []
    for where in query.where:
        condition, values = _condition(tables, table, where)
        conditions.append(condition)
        parameters += values
    sql = f"SELECT {_names(query.columns or [column.name for column in table.columns])} FROM {name}"  # noqa: S608 - checked names
    if conditions:
        sql += f" WHERE {' AND '.join(conditions)}"
    if query.order:
        needed = _needed(table)
        sql += " ORDER BY " + ", ".join(_in_order(each, needed) for each in query.order)
    if query.limit is not None:
        sql += " LIMIT %b"
        parameters.append(Int8(within(query.limit)) if query.limit >= 0 else None)
    return sql, parameters


def _condition(tables: Tables, table: Table, where: Where) -> tuple[str, Sequence[Any]]:
    column, is_, value = where
    if is_ == "in":
        if isinstance(value, Query):
            if len(value.columns) != 1:
                raise InvalidProjectionError(f"column {column!r} in a Query of {len(value.columns)} columns: give one.")
            sql, parameters = sql_of(tables, value)
            return f'"{column}" IN ({sql})', parameters
        kind = _kinds(table)[column]
        listed = _array(kind, [_within(each) for each in value])
        return f'"{column}" = ANY (%s::{_TYPES[kind]}[])', (listed,)
    if is_ not in {"=", "<", "<=", ">", ">="}:
        raise InvalidProjectionError(f"{is_!r} is no comparison of columns. Use =, <, <=, >, >= or in.")
    if value is None and is_ == "=":
        return f'"{column}" IS NULL', ()
    return f'"{column}" {is_} %b', (_compared(table, column, value),)


def _compared(table: Table, column: str, value: Any) -> Any:
    """A value as it lies in the column, to be compared with it."""
    kind = _kinds(table)[column]
    if value is None:
        return None
    return Int8(_integer(_within(value))) if kind == "integer" else _text(kind, value)


def _within(value: Any) -> Any:
    """A value that is compared; an integer beyond those of 64 bits stands for the nearest."""
    return within(value) if type(value) is int else value


def _array(kind: str, values: Sequence[Any]) -> str:
    """The values of a column as an array in PostgreSQL's own words, which are sooner made than one of the driver's."""
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
    """Text or JSON as it is stored. Raises UnicodeEncodeError for what is no valid Unicode."""
    if kind == "json":
        value = json.dumps(value, ensure_ascii=False)
    if isinstance(value, int):
        value = str(int(value))
    if not isinstance(value, str):
        raise InvalidProjectionError(f"A column of text is given {type(value).__name__}.")
    return value.encode()


_READS: dict[str, Callable[[bytes], Any] | None] = {
    "integer": None,
    "text": lambda stored: stored.decode(errors="surrogateescape"),
    "json": json.loads,
}


def _table(tables: Tables, query: Query) -> tuple[str, Table]:
    if query.table not in tables:
        raise InvalidProjectionError(f"There is no table {query.table!r}. There are: {', '.join(sorted(tables))}.")
    return tables[query.table]


@lru_cache(maxsize=256)
def _kinds(table: Table) -> dict[str, str]:
    return {column.name: column.kind for column in table.columns}
