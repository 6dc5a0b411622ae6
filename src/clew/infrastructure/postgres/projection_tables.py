"""A projection's tables in PostgreSQL: how they are made, filled and read, from their declaration alone.

Text is kept as bytes of UTF-8: it may hold U+0000, and is in the order of code points whatever the collation. None
comes before everything else, as in SQLite.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from psycopg.types.numeric import Int8

from clew.domain.errors import InvalidProjectionError
from clew.domain.projection import Column, Query, RowValues, Table
from clew.infrastructure.postgres.connection import Session
from clew.infrastructure.postgres.identifiers import HIGHEST, within
from clew.infrastructure.projection_changes import WaitingRows
from clew.infrastructure.projection_sql import (
    DESCENDING,
    Dialect,
    Tables,
    columns_of,
    kinds,
    quoted,
    table_of,
    upsert,
)

_TYPES = {"integer": "bigint", "text": "bytea", "json": "bytea"}


@lru_cache(maxsize=256)
def statements(name: str, table: Table) -> tuple[str, ...]:
    """The statements that make a table of this name, and its indexes."""
    columns = ", ".join(map(_declaration, table.columns))
    key = f"CONSTRAINT {index_name(name, 'key')} PRIMARY KEY ({quoted(table.key)})"
    needed = _needed(table)
    indexes = [
        f"CREATE INDEX {index_name(name, number)} ON {name} ({', '.join(_in_order(each, needed) for each in index)})"
        for number, index in enumerate(table.indexes)
    ]
    return f"CREATE TABLE {name} ({columns}, {key})", *indexes


def table_name(generation: int, table: str) -> str:
    """The name in SQL of a table, or of an index of words, of a generation."""
    return f"clew_g{generation}_{table}"


def index_name(table: str, which: int | str) -> str:
    """The name of an index of a table: such as no table has, and no index of another one."""
    return f"{table.replace('clew_g', 'clew_i', 1)}_{which}"


def _declaration(column: Column) -> str:
    default = " NOT NULL DEFAULT 0" if column.adds else ""
    return f'"{column.name}" {_TYPES[column.kind]}{default}'


def _needed(table: Table) -> frozenset[str]:
    """The columns that are never NULL: their order is the same however NULL is sorted."""
    return frozenset(table.key) | {column.name for column in table.columns if column.adds}


def _in_order(column: str, needed: frozenset[str]) -> str:
    """A column in an index or an order, ascending, or descending with the sign before it."""
    if column.startswith(DESCENDING):
        name = column[1:]
        return f'"{name}" DESC' if name in needed else f'"{name}" DESC NULLS LAST'
    return f'"{column}"' if column in needed else f'"{column}" NULLS FIRST'


class Filling(WaitingRows):
    """What is to be written to one table."""

    def __init__(self, session: Session, name: str, table: Table) -> None:
        super().__init__(table)
        self._session = session
        self._name = name
        self._kinds = kinds(table)

    def delete(self, key: Sequence[Any]) -> None:
        """Delete the rows that begin with these values of the key."""
        self.flush()
        columns = self.begins(key)
        where = " AND ".join(f'"{column}" = %b' for column in columns)
        values = [_ASKING.compared(self._kinds[column], value) for column, value in zip(columns, key, strict=True)]
        sql = f"DELETE FROM {self._name} WHERE {where}"  # noqa: S608 - checked names
        self._session.connection.execute(sql.encode(), values)

    def get(self, key: Sequence[Any]) -> RowValues | None:
        """The row with this key, as it is by now."""
        if self.waits(key):
            self.flush()
        found = select(self._session, {self.table.name: (self._name, self.table)}, self.row_with(key))
        return found[0] if found else None

    def flush(self) -> None:
        """Write what waits, all rows with the same columns at once."""
        for columns, rows in self.take().items():
            arrays = [_array(self._kinds[column], [row[column] for row in rows]) for column in columns]
            self._session.connection.execute(self._upsert(columns).encode(), arrays, prepare=True)

    def _upsert(self, columns: tuple[str, ...]) -> str:
        arrays = ", ".join(f"%s::{_TYPES[self._kinds[column]]}[]" for column in columns)
        return upsert(self._name, self.table, columns, f"SELECT * FROM unnest({arrays})")  # noqa: S608 - checked names


class _Asking(Dialect):
    value = "%b"

    def compared(self, kind: str, value: Any) -> Any:
        if value is None:
            return None
        return Int8(_integer(_within(value))) if kind == "integer" else _text(kind, value)

    def listed(self, kind: str, values: Sequence[Any]) -> tuple[str, Any]:
        return f"= ANY (%s::{_TYPES[kind]}[])", _array(kind, [_within(each) for each in values])

    def limit(self, rows: int) -> Any:
        return Int8(within(rows)) if rows >= 0 else None

    def order(self, table: Table, query: Query) -> str:
        needed = _needed(table)
        return ", ".join(_in_order(each, needed) for each in query.order)


_ASKING = _Asking()


def select(session: Session, tables: Tables, query: Query, *, alone: bool = False) -> list[RowValues]:
    """The rows that a query names; ``alone`` it is a transaction by itself."""
    try:
        sql, parameters = _ASKING.select(tables, query)
    except UnicodeEncodeError:
        return []  # what is no valid Unicode was never stored
    table = table_of(tables, query)[1]
    columns = columns_of(table, query)
    reads = [_READS[kinds(table)[column]] for column in columns]
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
