"""A projection's tables in SQL: how they are made, filled and read, from their declaration alone."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from clew.domain.errors import InvalidProjectionError
from clew.domain.projection import Column, Query, RowValues, Table
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
from clew.infrastructure.sqlite.queries import within_range


@lru_cache(maxsize=256)
def statements(name: str, table: Table) -> tuple[str, ...]:
    """The statements that make a table of this name, and its indexes."""
    one_integer = len(table.key) == 1 and kinds(table)[table.key[0]] == "integer"
    columns = [_declaration(column, needed=one_integer and column.name in table.key) for column in table.columns]
    # An integer key is SQLite's own row number, and any other is the order in which the rows lie.
    order = "" if one_integer else " WITHOUT ROWID"
    made = f"CREATE TABLE {name} ({', '.join(columns)}, PRIMARY KEY ({quoted(table.key)})){order}"
    indexes = [
        f"CREATE INDEX i{name}_{number} ON {name} ({quoted(index)})" for number, index in enumerate(table.indexes)
    ]
    return made, *indexes


def _declaration(column: Column, *, needed: bool) -> str:
    """A column in SQL. A sum that is too large for SQLite would become a float: it is refused."""
    type_ = "INTEGER" if column.kind == "integer" else "TEXT"
    name = quoted((column.name,))
    if column.adds:
        return f"{name} {type_} NOT NULL DEFAULT 0 CHECK (typeof({name}) = 'integer')"
    return f"{name} {type_}{' NOT NULL' if needed else ''}"


class Filling(WaitingRows):
    """What is to be written to one table."""

    def __init__(self, connection: sqlite3.Connection, name: str, table: Table) -> None:
        super().__init__(table)
        self._connection = connection
        self._name = name
        self._json = {column.name for column in table.columns if column.kind == "json"}

    def delete(self, key: Sequence[Any]) -> None:
        """Delete the rows that begin with these values of the key."""
        self.flush()
        where = " AND ".join(f'"{column}" = ?' for column in self.begins(key))
        self._connection.execute(f"DELETE FROM {self._name} WHERE {where}", key)  # noqa: S608 - checked names

    def get(self, key: Sequence[Any]) -> RowValues | None:
        """The row with this key, as it is by now."""
        if self.waits(key):
            self.flush()
        found = select(self._connection, {self.table.name: (self._name, self.table)}, self.row_with(key))
        return found[0] if found else None

    def flush(self) -> None:
        """Write what waits."""
        for columns, rows in self.take().items():
            if self._json:
                for row in rows:
                    for column in self._json.intersection(columns):
                        row[column] = _json(row[column])
            marks = f"VALUES ({', '.join('?' * len(columns))})"
            sql = upsert(self._name, self.table, columns, marks)
            self._connection.executemany(sql, [tuple(row.values()) for row in rows])


class _Asking(Dialect):
    value = "?"

    def compared(self, kind: str, value: Any) -> Any:
        return _json(value) if kind == "json" else value

    def listed(self, kind: str, values: Sequence[Any]) -> tuple[str, Any]:
        # As one parameter: SQLite takes only so many.
        return "IN (SELECT value FROM json_each(?))", json.dumps([self.compared(kind, each) for each in values])

    def limit(self, rows: int) -> Any:
        return rows

    def order(self, table: Table, query: Query) -> str:
        del table
        # Where some rows are listed, and all of them wanted, they are sought one by one and then sorted: the sign keeps
        # SQLite from reading the whole table in this order.
        values = [where.value for where in query.where if where.is_ == "in"]
        sign = "+" if values and (query.limit is None or not all(isinstance(each, Query) for each in values)) else ""
        return ", ".join(
            f'{sign}"{each[1:]}" DESC' if each.startswith(DESCENDING) else f'{sign}"{each}"' for each in query.order
        )


_ASKING = _Asking()


def select(connection: sqlite3.Connection, tables: Tables, query: Query) -> list[RowValues]:
    """The rows that a query names."""
    sql, parameters = _ASKING.select(tables, query)
    table = table_of(tables, query)[1]
    columns = columns_of(table, query)
    json_columns = [number for number, column in enumerate(columns) if kinds(table)[column] == "json"]
    found = _found(connection, sql, parameters)
    if not json_columns:
        return [dict(zip(columns, row, strict=True)) for row in found]
    rows: list[RowValues] = []
    for row in found:
        values = list(row)
        for number in json_columns:
            if values[number] is not None:
                values[number] = json.loads(values[number])
        rows.append(dict(zip(columns, values, strict=True)))
    return rows


def _found(connection: sqlite3.Connection, sql: str, parameters: list[Any]) -> list[tuple[Any, ...]]:
    try:
        return connection.execute(sql, parameters).fetchall()
    except OverflowError:  # an integer beyond SQLite's stands for the nearest that it has
        return connection.execute(sql, within_range(parameters)).fetchall()
    except UnicodeEncodeError:
        return []  # what is no valid Unicode was never stored
    except (sqlite3.ProgrammingError, sqlite3.InterfaceError) as error:
        raise InvalidProjectionError(f"A query compares a column with what no column holds: {error}") from error


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)
