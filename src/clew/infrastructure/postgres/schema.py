"""The tables of a Clew database in PostgreSQL: how they are made, recognised and brought up to date."""

from __future__ import annotations

import re
from contextlib import closing
from typing import Any

import psycopg

from clew.domain.errors import StoreSchemaError
from clew.infrastructure.postgres.address import Address
from clew.infrastructure.postgres.errors import unavailable
from clew.infrastructure.postgres.sql_files import statements

SCHEMA_VERSION = 1

FEWEST_PARTITIONS, MOST_PARTITIONS = 2, 1024

_LOCK = 0x436C6577
"""Of the advisory lock under which tables are made: ``Clew`` in ASCII."""

_MIGRATIONS = statements("schema.sql")
_SQL = {name: sql.encode() for name, sql in statements("connection.sql").items()}

_DIVISIBLE = re.compile(r"/\* (PARTITION BY HASH \(\w+\)) \*/")
_DIVIDED = re.compile(r"CREATE TABLE (\w+) \([^;]*\) PARTITION BY HASH \(\w+\);")


def prepare(address: Address, *, create: bool) -> None:
    """See that the tables are there, and make them in an empty database if ``create`` says so.

    Raises StoreUnavailableError, or StoreSchemaError for tables that are missing or of another Clew.
    """
    with closing(address.connect()) as connection:
        try:
            found = _version(connection, address)
            if found == 0:
                if not create:
                    msg = f"{address.shown}: Clew's tables are not there. Make them with `clew migrate`."
                    raise StoreSchemaError(msg)
                found = _lead(connection, address)
        except psycopg.Error as error:
            raise unavailable(address.shown, error) from None
    if found < SCHEMA_VERSION:
        msg = f"{address.shown}: this database has schema {found}, and this Clew knows schema {SCHEMA_VERSION}. "
        raise StoreSchemaError(msg + "Bring it up to date with `clew migrate`.")


def version(address: Address) -> int:
    """The schema of a database, 0 without one. Raises StoreUnavailableError, or StoreSchemaError for a newer one."""
    with closing(address.connect()) as connection:
        try:
            return _version(connection, address)
        except psycopg.Error as error:
            raise unavailable(address.shown, error) from None


def migrate(address: Address, *, partitions: int | None = None) -> int:
    """Lead a database to the present schema, all the way or not at all; returns the schema that it had.

    In an empty database what grows with the number of events is divided into so many ``partitions``, from 2 to 1024,
    or 0 for none. None is whatever is there. Raises StoreSchemaError where the tables are there, divided otherwise,
    and for a number that is none of these.
    """
    if partitions not in {None, 0, *range(FEWEST_PARTITIONS, MOST_PARTITIONS + 1)}:
        msg = (
            f"{address.shown}: tables are not divided into {partitions!r} partitions. Say a number from "
            f"{FEWEST_PARTITIONS} to {MOST_PARTITIONS}, or 0 to leave them whole."
        )
        raise StoreSchemaError(msg)
    with closing(address.connect()) as connection:
        try:
            found = _version(connection, address)
            if found != SCHEMA_VERSION:
                _lead(connection, address, partitions)
            there = int(connection.execute(_SQL["partitions"]).fetchall()[0][0])
        except psycopg.Error as error:
            raise unavailable(address.shown, error) from None
    if partitions not in {None, there}:
        divided = f"divided into {there} partitions" if there else "not divided"
        msg = f"{address.shown}: Clew's tables are there, {divided}, and that stays so: tables are divided when they "
        raise StoreSchemaError(
            msg + f"are made. Run `clew migrate --partitions {partitions}` on an empty database, and bring the log "
            "there: docs/scaling.md says how."
        )
    return found


def lock(connection: psycopg.Connection[tuple[Any, ...]], number: int = _LOCK) -> None:
    """Let nobody else make tables or roles, or what another lock is for, until the transaction ends."""
    connection.execute(_SQL["lock"], {"lock": number})


def stay_home(connection: psycopg.Connection[tuple[Any, ...]]) -> None:
    """Let what is made in the rest of the transaction be in the schema of the tables."""
    connection.execute(_SQL["home"])


def _version(connection: psycopg.Connection[tuple[Any, ...]], address: Address) -> int:
    if not connection.execute(_SQL["is there"]).fetchall():
        return 0
    rows = connection.execute(_SQL["schema"]).fetchall()
    if not rows:
        msg = f"{address.shown}: clew_meta is empty, as in a broken copy. Restore or copy the database again."
        raise StoreSchemaError(msg)
    found = int(rows[0][0])
    if found > SCHEMA_VERSION:
        msg = f"{address.shown}: this database has schema {found}, and this Clew knows schema {SCHEMA_VERSION}. "
        raise StoreSchemaError(msg + "Open it with the Clew that made it, or a newer one.")
    return found


def _lead(connection: psycopg.Connection[tuple[Any, ...]], address: Address, partitions: int | None = None) -> int:
    """One process at a time: several that made the same tables at once would fail."""
    with connection.transaction():
        lock(connection)
        for schema in range(_version(connection, address) + 1, SCHEMA_VERSION + 1):
            connection.execute(_divided(_MIGRATIONS[f"schema {schema}"], partitions or 0).encode())
            connection.execute(_SQL["raise schema"], {"schema": schema})
    return SCHEMA_VERSION


def _divided(sql: str, partitions: int) -> str:
    """The statements that make tables, with those that can be divided in so many partitions."""
    if not partitions:
        return sql

    def with_parts(table: re.Match[str]) -> str:
        """Before what is said of the table, as that is then said of its partitions, too."""
        parts = (
            f"CREATE TABLE {table[1]}_{part} PARTITION OF {table[1]} "
            f"FOR VALUES WITH (MODULUS {partitions}, REMAINDER {part});"
            for part in range(partitions)
        )
        return "\n".join((table[0], *parts))

    return _DIVIDED.sub(with_parts, _DIVISIBLE.sub(r"\1", sql))
