"""The tables of a Clew database in PostgreSQL: how they are made, recognised and brought up to date."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import psycopg

from clew.domain.errors import StoreSchemaError
from clew.infrastructure.postgres.errors import unavailable
from clew.infrastructure.postgres.sessions import Address
from clew.infrastructure.postgres.sql_files import statements

SCHEMA_VERSION = 1

_LOCK = 0x436C6577
"""Of the advisory lock under which tables are made: ``Clew`` in ASCII."""

# A look into the table of tables: what PostgreSQL remembers of names may be older than the lock.
_IS_THERE = "SELECT 1 FROM pg_catalog.pg_class WHERE relname = 'clew_meta' AND pg_table_is_visible(oid)"

_MIGRATIONS = statements("schema.sql")


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


def migrate(address: Address) -> int:
    """Lead a database to the present schema, all the way or not at all; returns the schema that it had."""
    with closing(address.connect()) as connection:
        try:
            found = _version(connection, address)
            if found != SCHEMA_VERSION:
                _lead(connection, address)
        except psycopg.Error as error:
            raise unavailable(address.shown, error) from None
    return found


def _version(connection: psycopg.Connection[tuple[Any, ...]], address: Address) -> int:
    if not connection.execute(_IS_THERE).fetchall():
        return 0
    found = int(connection.execute("SELECT schema FROM clew_meta").fetchall()[0][0])
    if found > SCHEMA_VERSION:
        msg = f"{address.shown}: this database has schema {found}, and this Clew knows schema {SCHEMA_VERSION}. "
        raise StoreSchemaError(msg + "Open it with the Clew that made it, or a newer one.")
    return found


def _lead(connection: psycopg.Connection[tuple[Any, ...]], address: Address) -> int:
    """One process at a time: several that made the same tables at once would fail."""
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        for schema in range(_version(connection, address) + 1, SCHEMA_VERSION + 1):
            connection.execute(_MIGRATIONS[f"schema {schema}"].encode())
            connection.execute("UPDATE clew_meta SET schema = %s", (schema,))
    return SCHEMA_VERSION
