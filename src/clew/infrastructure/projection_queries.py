"""Queries of the tables of projections, compiled to SQL. Queries of the same shape are compiled once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import takewhile
from operator import methodcaller
from typing import Any, NamedTuple, cast

import orjson

from clew.domain.errors import InvalidProjectionError
from clew.domain.projection import Query, Where
from clew.infrastructure.projection_store import (
    DESCENDING,
    Decode,
    Found,
    SqlTable,
    SqlTables,
    decode_column,
    quoted,
)

_column_of = methodcaller("lstrip", DESCENDING)

_COMPARISONS = {"=", "<", "<=", ">", ">="}

_MOST_QUERIES = 256
"""The most compiled queries that are cached for one generation."""


_DIGITS = bytes.maketrans(b"0123456789", b"0" * 10)
_LONG_NUMBER = b"0" * 19


def decode_json(stored: Sequence[str] | Sequence[bytes]) -> list[Any]:
    """The values of stored JSON. Only ``json`` reads integers of more than 64 bits, which have 19 digits or more."""
    # One text is read and checked faster than many.
    if isinstance(stored[0], str):
        text = f"[{','.join(cast('Sequence[str]', stored))}]".encode()
    else:
        text = b"[%b]" % b",".join(cast("Sequence[bytes]", stored))
    if len(text) >= len(_LONG_NUMBER) and _LONG_NUMBER in text.translate(_DIGITS):
        return list(map(json.loads, stored))
    values: list[Any] = orjson.loads(text)
    return values


class Select(NamedTuple):
    """The SQL of a query, and how its rows are read: ``decoders`` are those of columns, by their place in a row."""

    sql: str
    columns: Sequence[str]
    decoders: Mapping[int, Decode]

    def read(self, stored: Sequence[tuple[Any, ...]]) -> Found:
        """The rows with decoded values, column by column."""
        if not stored or not self.decoders:
            return Found(self.columns, stored)
        columns: list[Sequence[Any]] = list(zip(*stored, strict=True))
        for place, decode in self.decoders.items():
            values = columns[place]
            columns[place] = decode_column(decode, values) if None in values else decode(values)
        return Found(self.columns, list(zip(*columns, strict=True)))


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
        # The shortest one, which no other condition can extend, so that nothing else seems as good.
        listed = min(_found_by(table, query), key=len, default=()) if dialect.lists_subqueries else ()
        for each in query.where:
            sign = "+" if listed and (each.column not in listed or each.is_ not in {"=", "in"}) else ""
            conditions.append(sign + _condition(tables, table, each, is_page=is_page))
        sql += f" WHERE {' AND '.join(conditions)}"
    if query.order:
        sql += f" ORDER BY {dialect.order(table.declared, query)}"
    if query.limit is not None:
        sql += f" LIMIT {dialect.placeholder}"
    decoders: dict[int, Decode] = {}
    for place, name in enumerate(columns):
        if table.kinds[name] in dialect.decoders:
            decoders[place] = dialect.decoders[table.kinds[name]]
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
        if is_page and dialect.lists_subqueries and not value.order and value.limit is None:
            prefix = max(_found_by(tables[value.table], value, value.columns), key=len, default=())
            if prefix and set(prefix).issuperset(_listed(value)):  # else the query finds the few rows that it lists
                return _probe(tables, f'{table.name}."{column}"', value, prefix)
        return f'"{column}" IN ({_select(tables, value).sql})'
    if is_ not in _COMPARISONS:
        raise InvalidProjectionError(f"{is_!r} is not a comparison of columns. Use =, <, <=, >, >= or in.")
    if value is None and is_ == "=":
        return f'"{column}" IS NULL'
    return f'"{column}" {is_} {dialect.placeholder}'


def _listed(query: Query) -> list[str]:
    """The columns that a query lists the values of."""
    listed: list[str] = []
    for column, is_, value in query.where:
        if is_ == "in" and not isinstance(value, Query):
            listed.append(column)
    return listed


def _found_by(table: SqlTable, query: Query, columns: Sequence[str] = ()) -> list[tuple[str, ...]]:
    """The first columns of the key and of indexes, by which a query finds rows with given values of these columns.

    Without columns, those that it lists the values of. SQLite expects a tenant to have a few rows and may read all of
    them. A sign before the conditions on columns that are not of these prevents it.
    """
    known, listed = {*columns}, set[str]()
    for column, is_, value in query.where:
        if is_ == "=" and value is not None:
            known.add(column)
        elif is_ == "in" and not isinstance(value, Query):
            listed.add(column)
    known |= listed
    sought = {*columns} or listed
    found: list[tuple[str, ...]] = []
    for key in (table.declared.key, *table.declared.indexes) if sought else ():
        prefix = tuple(takewhile(known.__contains__, key))
        if not sought.isdisjoint(prefix):
            found.append(prefix)
    return found


def _probe(tables: SqlTables, column: str, query: Query, prefix: Sequence[str]) -> str:
    """The condition that the query selects the column's value, found by the key or an index for each row.

    The signs keep SQLite from using another index of the table, which could find many rows.
    """
    table = tables[query.table]
    conditions = [f'probed."{query.columns[0]}" = {column}']
    for each in query.where:
        sign = "" if each.column in prefix else "+"
        conditions.append(sign + _condition(tables, table, each, is_page=False))
    return f"EXISTS (SELECT 1 FROM {table.name} AS probed WHERE {' AND '.join(conditions)})"  # noqa: S608 - checked names
