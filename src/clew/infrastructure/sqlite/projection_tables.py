"""A projection's tables in SQL: how they are made, filled and read, from their declaration alone."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from clew.domain.errors import InvalidProjectionError
from clew.domain.projection import Column, Query, RowValues, Table, Where
from clew.infrastructure.projection_changes import WaitingRows
from clew.infrastructure.sqlite.reads import within_range

_DESCENDING = "-"


@lru_cache(maxsize=256)
def statements(name: str, table: Table) -> tuple[str, ...]:
    """The statements that make a table of this name, and its indexes."""
    one_integer = len(table.key) == 1 and _kinds(table)[table.key[0]] == "integer"
    columns = [_declaration(column, needed=one_integer and column.name in table.key) for column in table.columns]
    # An integer key is SQLite's own row number, and any other is the order in which the rows lie.
    order = "" if one_integer else " WITHOUT ROWID"
    made = f"CREATE TABLE {name} ({', '.join(columns)}, PRIMARY KEY ({_names(table.key)})){order}"
    indexes = [
        f"CREATE INDEX i{name}_{number} ON {name} ({_names(index)})" for number, index in enumerate(table.indexes)
    ]
    return made, *indexes


def _declaration(column: Column, *, needed: bool) -> str:
    """A column in SQL. A sum that is too large for SQLite would become a float: it is refused."""
    type_ = "INTEGER" if column.kind == "integer" else "TEXT"
    name = _names((column.name,))
    if column.adds:
        return f"{name} {type_} NOT NULL DEFAULT 0 CHECK (typeof({name}) = 'integer')"
    return f"{name} {type_}{' NOT NULL' if needed else ''}"


def _names(columns: Iterable[str]) -> str:
    """Names of columns in SQL, which may be words of its own."""
    return ", ".join(f'"{column}"' for column in columns)


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
        found = self.select(
            Query(self.table.name, [Where(c, "=", k) for c, k in zip(self.table.key, key, strict=True)])
        )
        return found[0] if found else None

    def select(self, query: Query) -> list[RowValues]:
        """The rows that a query names, among those that were flushed."""
        return select(self._connection, {self.table.name: (self._name, self.table)}, query)

    def flush(self) -> None:
        """Write what waits."""
        for columns, rows in self.take().items():
            if self._json:
                for row in rows:
                    for column in self._json.intersection(columns):
                        row[column] = _json(row[column])
            self._connection.executemany(self._upsert(columns), [tuple(row.values()) for row in rows])

    def _upsert(self, columns: tuple[str, ...]) -> str:
        key = self.table.key
        sets = [
            f'"{column}" = "{column}" + excluded."{column}"'
            if column in self.adding
            else f'"{column}" = excluded."{column}"'
            for column in columns
            if column not in key
        ]
        done = f"UPDATE SET {', '.join(sets)}" if sets else "NOTHING"
        marks = ", ".join("?" * len(columns))
        return (
            f"INSERT INTO {self._name} ({_names(columns)}) VALUES ({marks}) "  # noqa: S608 - checked names
            f"ON CONFLICT ({_names(key)}) DO {done}"
        )


def select(connection: sqlite3.Connection, tables: dict[str, tuple[str, Table]], query: Query) -> list[RowValues]:
    """The rows that a query names; ``tables`` are the tables of the projection, each with its name in SQL."""
    sql, parameters = _sql(tables, query)
    table = _table(tables, query)[1]
    columns = list(query.columns) or [column.name for column in table.columns]
    kinds = _kinds(table)
    json_columns = [number for number, column in enumerate(columns) if kinds[column] == "json"]
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


def _sql(tables: dict[str, tuple[str, Table]], query: Query) -> tuple[str, list[Any]]:
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
        # Where some rows are listed, and all of them wanted, they are sought one by one and then sorted: the sign keeps
        # SQLite from reading the whole table in this order.
        values = [where.value for where in query.where if where.is_ == "in"]
        sign = "+" if values and (query.limit is None or not all(isinstance(each, Query) for each in values)) else ""
        sql += " ORDER BY " + ", ".join(
            f'{sign}"{each[1:]}" DESC' if each.startswith(_DESCENDING) else f'{sign}"{each}"' for each in query.order
        )
    if query.limit is not None:
        sql += " LIMIT ?"
        parameters.append(query.limit)
    return sql, parameters


def _condition(tables: dict[str, tuple[str, Table]], table: Table, where: Where) -> tuple[str, Sequence[Any]]:
    column, is_, value = where
    if is_ == "in":
        if isinstance(value, Query):
            if len(value.columns) != 1:
                raise InvalidProjectionError(f"column {column!r} in a Query of {len(value.columns)} columns: give one.")
            sql, parameters = _sql(tables, value)
            return f'"{column}" IN ({sql})', parameters
        # As one parameter: SQLite takes only so many.
        stored = json.dumps([_stored(table, column, each) for each in value])
        return f'"{column}" IN (SELECT value FROM json_each(?))', (stored,)  # noqa: S608 - checked names
    if is_ not in {"=", "<", "<=", ">", ">="}:
        raise InvalidProjectionError(f"{is_!r} is no comparison of columns. Use =, <, <=, >, >= or in.")
    if value is None and is_ == "=":
        return f'"{column}" IS NULL', ()
    return f'"{column}" {is_} ?', (_stored(table, column, value),)


def _stored(table: Table, column: str, value: Any) -> Any:
    """A value as it lies in the column."""
    return _json(value) if _kinds(table)[column] == "json" else value


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)


def _table(tables: dict[str, tuple[str, Table]], query: Query) -> tuple[str, Table]:
    if query.table not in tables:
        raise InvalidProjectionError(f"There is no table {query.table!r}. There are: {', '.join(sorted(tables))}.")
    return tables[query.table]


def _kinds(table: Table) -> dict[str, str]:
    return {column.name: column.kind for column in table.columns}
