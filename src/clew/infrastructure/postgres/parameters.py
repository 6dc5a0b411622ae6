"""Statements with names for parameters, as they go past the driver's cursor: with numbers, and values as bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import psycopg
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq.abc import PGresult

from clew.infrastructure.postgres.round_trip import Asked, Statement

_PLACE = re.compile(r"%(?:\((\w+)\))?([bs])|%%")


class Numbered(NamedTuple):
    """A statement whose parameters are ``$1`` and so on."""

    command: bytes
    keys: Sequence[Any]
    """Of the values in their order: names, or numbers from 0."""
    formats: Sequence[PyFormat]


@lru_cache(maxsize=1_024)
def numbered(sql: str) -> Numbered:
    """A statement of the driver's: ``%(name)b`` or ``%b`` is a value in binary, with ``s`` in whatever form."""
    found: dict[Any, PyFormat] = {}

    def number(place: re.Match[str]) -> str:
        name, form = place.groups()
        if form is None:
            return "%"
        key = len(found) if name is None else name
        found.setdefault(key, PyFormat.BINARY if form == "b" else PyFormat.AUTO)
        return f"${[*found].index(key) + 1}"

    command = _PLACE.sub(number, sql).encode()
    return Numbered(command, [*found], [*found.values()])


@lru_cache(maxsize=1_024)
def _statement(command: bytes, types: tuple[int, ...], formats: tuple[int, ...]) -> Statement:
    return Statement(command, types, formats)


def asked(connection: psycopg.Connection[Any], sql: str, values: Mapping[str, Any] | Sequence[Any] | None) -> Asked:
    """A statement of the driver's with its values, as the driver would say them."""
    command, keys, formats = numbered(sql)
    if values is None or not keys:
        return Statement(command), ()
    transformer = Transformer(connection)
    dumped = transformer.dump_sequence([values[key] for key in keys], formats)
    return _statement(command, tuple(transformer.types or ()), tuple(transformer.formats or ())), dumped


def found(connection: psycopg.Connection[Any], result: PGresult) -> list[tuple[Any, ...]]:
    """The rows of an answer, as the driver would give them."""
    transformer = Transformer(connection)
    transformer.set_pgresult(result)
    return transformer.load_rows(0, result.ntuples, tuple)
