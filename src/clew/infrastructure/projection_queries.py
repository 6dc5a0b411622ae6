"""Queries of the tables of projections, compiled to SQL. Queries of the same shape are compiled once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from operator import methodcaller
from typing import Any, NamedTuple

import orjson

from clew.domain.errors import InvalidProjectionError
from clew.domain.projection import Query, RowValues, Where
from clew.infrastructure.projection_store import DESCENDING, SqlTable, SqlTables, quoted

_column_of = methodcaller("lstrip", DESCENDING)

_COMPARISONS = {"=", "<", "<=", ">", ">="}

_MOST_QUERIES = 256
"""The most compiled queries that are cached for one generation."""


_DIGITS = bytes.maketrans(b"0123456789", b"0" * 10)
_LONG_NUMBER = b"0" * 19


def decode_json(stored: str | bytes) -> Any:
    """The value of stored JSON. Only ``json`` reads integers of more than 64 bits, which have 19 digits or more."""
    text = stored.encode() if isinstance(stored, str) else stored
    is_long = len(text) >= len(_LONG_NUMBER) and _LONG_NUMBER in text.translate(_DIGITS)
    return json.loads(text) if is_long else orjson.loads(text)


class Select(NamedTuple):
    """The SQL of a query, and how its rows are read."""

    sql: str
    columns: Sequence[str]
    decoders: Mapping[str, Callable[[Any], Any]]

    def read(self, stored: Iterable[Sequence[Any]]) -> list[RowValues]:
        """The rows with their columns by name."""
        rows = [dict(zip(self.columns, row, strict=True)) for row in stored]
        for column, decode in self.decoders.items():
            for row in rows:
                if row[column] is not None:
                    row[column] = decode(row[column])
        return rows


def compile_query(tables: SqlTables, query: Query) -> tuple[Select, list[Any]]:
    """A query in SQL, and its parameters. Raises InvalidProjectionError for names that are not declared."""
    parameters: list[Any] = []
    shape = _shape(tables, query, parameters)
    select = tables.compiled.get(shape)
    if select is None:
        if len(tables.compiled) >= _MOST_QUERIES:
            tables.compiled.clear()
        select = tables.compiled[shape] = _select(tables, shape)
    return select, parameters


def _shape(tables: SqlTables, query: Query, parameters: list[Any]) -> Query:
    """A query without its values, which become parameters: queries of one shape have the same SQL."""
    dialect, table = tables.dialect, tables[query.table]
    where: list[Where] = []
    for column, is_, value in query.where:
        if column not in table.kinds:
            table.check((column,))
        shape: Any = None if value is None else ...
        if isinstance(value, Query):
            shape = _shape(tables, value, parameters)
        elif is_ == "in":
            parameters.append(dialect.encode_list(table.kinds[column], value))
        elif value is not None:
            encode = dialect.encoders.get(table.kinds[column])
            parameters.append(value if encode is None else encode(value))
        elif is_ != "=":
            parameters.append(None)
        where.append(Where(column, is_, shape))
    if query.limit is not None:
        parameters.append(dialect.encode_limit(query.limit))
    limit = None if query.limit is None else 0
    return Query(query.table, tuple(where), tuple(query.order), limit, tuple(query.columns))


def _select(tables: SqlTables, query: Query) -> Select:
    dialect, table = tables.dialect, tables[query.table]
    columns = query.columns or tuple(table.kinds)
    table.check([*columns, *map(_column_of, query.order)])
    sql = f"SELECT {quoted(columns)} FROM {table.name}"  # noqa: S608 - checked names
    if query.where:
        is_page = bool(query.order) and query.limit is not None
        conditions: list[str] = []
        listed = _listed_key(table, query) if dialect.lists_subqueries else ()
        for each in query.where:
            sign = "+" if listed and each.column not in listed else ""
            conditions.append(sign + _condition(tables, table, each, is_page=is_page))
        sql += f" WHERE {' AND '.join(conditions)}"
    if query.order:
        sql += f" ORDER BY {dialect.order(table.declared, query)}"
    if query.limit is not None:
        sql += f" LIMIT {dialect.placeholder}"
    decoders: dict[str, Callable[[Any], Any]] = {}
    for name in columns:
        if table.kinds[name] in dialect.decoders:
            decoders[name] = dialect.decoders[table.kinds[name]]
    return Select(sql, columns, decoders)


def _condition(tables: SqlTables, table: SqlTable, where: Where, *, is_page: bool) -> str:
    column, is_, value = where
    dialect = tables.dialect
    if is_ == "in":
        if not isinstance(value, Query):
            return f'"{column}" {dialect.in_list(table.kinds[column])}'
        if len(value.columns) != 1:
            raise InvalidProjectionError(
                f"column {column!r} in a Query of {len(value.columns)} columns: name one column."
            )
        if is_page and dialect.lists_subqueries and (prefix := _key_prefix(tables[value.table], value)):
            return _probe(tables, f'{table.name}."{column}"', value, prefix)
        return f'"{column}" IN ({_select(tables, value).sql})'
    if is_ not in _COMPARISONS:
        raise InvalidProjectionError(f"{is_!r} is not a comparison of columns. Use =, <, <=, >, >= or in.")
    if value is None and is_ == "=":
        return f'"{column}" IS NULL'
    return f'"{column}" {is_} {dialect.placeholder}'


def _listed_key(table: SqlTable, query: Query) -> tuple[str, ...]:
    """The first columns of the key, if the query lists the values of one of them, by which it finds its rows.

    SQLite expects a tenant to have a few rows and may read all of them. A sign before its other conditions prevents it.
    """
    known: set[str] = set()
    listed = False
    for column, is_, value in query.where:
        if value is not None and (is_ == "=" or (is_ == "in" and not isinstance(value, Query))):
            known.add(column)
            listed |= is_ == "in" and column in table.declared.key
    return tuple(takewhile(known.__contains__, table.declared.key)) if listed else ()


def _key_prefix(table: SqlTable, query: Query) -> tuple[str, ...]:
    """The first columns of the key, by which the query finds rows with a value of its column; else none."""
    if query.order or query.limit is not None:
        return ()
    known = {*query.columns}
    for each in query.where:
        if each.is_ == "=" and each.value is not None:
            known.add(each.column)
    prefix = tuple(takewhile(known.__contains__, table.declared.key))
    return prefix if query.columns[0] in prefix else ()


def _probe(tables: SqlTables, column: str, query: Query, prefix: Sequence[str]) -> str:
    """The condition that the query selects the column's value, found by the key for each row.

    The signs keep SQLite from using another index of the table, which could find many rows.
    """
    table = tables[query.table]
    conditions = [f'probed."{query.columns[0]}" = {column}']
    for each in query.where:
        sign = "" if each.column in prefix else "+"
        conditions.append(sign + _condition(tables, table, each, is_page=False))
    return f"EXISTS (SELECT 1 FROM {table.name} AS probed WHERE {' AND '.join(conditions)})"  # noqa: S608 - checked names
