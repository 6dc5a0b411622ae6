"""Tables of projections in SQL, as far as all databases have it alike; each fills in how its own values are written."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from clew.domain.errors import InvalidProjectionError
from clew.domain.projection import Column, Query, Table

Tables = Mapping[str, tuple[str, Table]]
"""The tables of a projection, each with its name in SQL."""

DESCENDING = "-"


class Dialect(ABC):
    """How a database is asked for rows: what stands in the SQL for a value, and what is sent for it."""

    value: str
    """What stands for a value."""

    @abstractmethod
    def compared(self, kind: str, value: Any) -> Any:
        """What is sent for a value that a column of this kind is compared with."""

    @abstractmethod
    def listed(self, kind: str, values: Sequence[Any]) -> tuple[str, Any]:
        """A condition behind a column of this kind, that it has one of these values, and what is sent for them."""

    @abstractmethod
    def limit(self, rows: int) -> Any:
        """What is sent for the number of rows; if it is below 0, all."""

    @abstractmethod
    def order(self, table: Table, query: Query) -> str:
        """The order of the rows, of which the query says something."""

    def select(self, tables: Tables, query: Query) -> tuple[str, list[Any]]:
        """A query, and what is sent with it. Raises InvalidProjectionError for what is not declared."""
        name, table = table_of(tables, query)
        _check(table, query)
        parameters: list[Any] = []
        conditions: list[str] = []
        for column, is_, value in query.where:
            condition, sent = self._condition(tables, column, kinds(table)[column], is_, value)
            conditions.append(f'"{column}" {condition}')
            parameters += sent
        sql = f"SELECT {quoted(columns_of(table, query))} FROM {name}"  # noqa: S608 - checked names
        if conditions:
            sql += f" WHERE {' AND '.join(conditions)}"
        if query.order:
            sql += f" ORDER BY {self.order(table, query)}"
        if query.limit is not None:
            sql += f" LIMIT {self.value}"
            parameters.append(self.limit(query.limit))
        return sql, parameters

    def _condition(self, tables: Tables, column: str, kind: str, is_: str, value: Any) -> tuple[str, Sequence[Any]]:
        if is_ == "in":
            if isinstance(value, Query):
                if len(value.columns) != 1:
                    many = len(value.columns)
                    raise InvalidProjectionError(f"column {column!r} in a Query of {many} columns: give one.")
                sql, parameters = self.select(tables, value)
                return f"IN ({sql})", parameters
            condition, sent = self.listed(kind, value)
            return condition, (sent,)
        if is_ not in {"=", "<", "<=", ">", ">="}:
            raise InvalidProjectionError(f"{is_!r} is no comparison of columns. Use =, <, <=, >, >= or in.")
        if value is None and is_ == "=":
            return "IS NULL", ()
        return f"{is_} {self.value}", (self.compared(kind, value),)


def upsert(name: str, table: Table, columns: Sequence[str], rows: str) -> str:
    """The statement that sets these columns of rows, or adds to them; ``rows`` says in SQL which rows."""
    adding = {column.name for column in table.columns if column.adds}
    sets = [
        f'"{column}" = {name}."{column}" + excluded."{column}"'
        if column in adding
        else f'"{column}" = excluded."{column}"'
        for column in columns
        if column not in table.key
    ]
    done = f"UPDATE SET {', '.join(sets)}" if sets else "NOTHING"
    return f"INSERT INTO {name} ({quoted(columns)}) {rows} ON CONFLICT ({quoted(table.key)}) DO {done}"


def quoted(columns: Iterable[str]) -> str:
    """Names of columns in SQL, which may be words of its own."""
    return ", ".join(f'"{column}"' for column in columns)


@lru_cache(maxsize=256)
def kinds(table: Table) -> dict[str, str]:
    """The kind of each column."""
    return {column.name: column.kind for column in table.columns}


def columns_of(table: Table, query: Query) -> Sequence[str]:
    """The columns that a query of a table asks for."""
    return query.columns or [column.name for column in table.columns]


def table_of(tables: Tables, query: Query) -> tuple[str, Table]:
    """The table of a query, with its name in SQL. Raises InvalidProjectionError when there is none."""
    if query.table not in tables:
        raise InvalidProjectionError(f"There is no table {query.table!r}. There are: {', '.join(sorted(tables))}.")
    return tables[query.table]


@lru_cache(maxsize=256)
def declared(declaration: str) -> Sequence[Table]:
    """The tables of a generation, from the JSON in which their declaration is kept."""
    return [
        Table(name, tuple(Column(*column) for column in columns), tuple(key), tuple(map(tuple, indexes)))
        for name, columns, key, indexes in json.loads(declaration)
    ]


def _check(table: Table, query: Query) -> None:
    named = {
        *query.columns,
        *(where.column for where in query.where),
        *(each.lstrip(DESCENDING) for each in query.order),
    }
    unknown = named - kinds(table).keys()
    if unknown:
        raise InvalidProjectionError(f"table {table.name!r} has no column {', '.join(sorted(unknown))!r}.")
