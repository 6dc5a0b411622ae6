"""The tables of a Clew database in PostgreSQL: creating, recognising and migrating them."""

from __future__ import annotations

import re
from contextlib import closing, suppress
from typing import Any

import psycopg

from clew.domain.errors import CorruptEventError, StoreSchemaError
from clew.domain.event_index import numbers_of
from clew.domain.events import CHECKPOINT_MADE, HISTORY_REWOUND, RECORD_APPENDED
from clew.infrastructure.envelope import decode
from clew.infrastructure.postgres.connection import Address
from clew.infrastructure.postgres.errors import unavailable
from clew.infrastructure.postgres.sql_files import statements
from clew.infrastructure.postgres.stream_ids import text

SCHEMA_VERSION = 5

INDEXED = {2: (RECORD_APPENDED, HISTORY_REWOUND), 4: (CHECKPOINT_MADE,)}
"""The types of events that the index has since a schema."""

FEWEST_PARTITIONS, MOST_PARTITIONS = 2, 1024

_LOCK = 0x436C6577
"""Of the advisory lock that serialises creating tables: ``Clew`` in ASCII."""

_MIGRATIONS = statements("schema.sql")
_SQL = {name: sql.encode() for name, sql in statements("bootstrap.sql").items()}

_DIVISIBLE = re.compile(r"/\* (PARTITION BY HASH \(\w+\)) \*/")
_DIVIDED = re.compile(r"CREATE TABLE (\w+) \([^;]*\) PARTITION BY HASH \(\w+\);")


def prepare(address: Address, *, create: bool) -> None:
    """Check the tables; with ``create``, create them in an empty database.

    Raises StoreUnavailableError, or StoreSchemaError for tables that are missing or of another schema.
    """
    with closing(address.connect()) as connection:
        try:
            found = _version(connection, address)
            if found == 0:
                if not create:
                    msg = f"{address.shown}: Clew's tables do not exist. Create them with `clew migrate`."
                    raise StoreSchemaError(msg)
                found = _migrate(connection, address)
        except psycopg.Error as error:
            raise unavailable(address.shown, error) from None
    if found < SCHEMA_VERSION:
        msg = f"{address.shown}: this database has schema {found}, and this Clew knows schema {SCHEMA_VERSION}. "
        raise StoreSchemaError(msg + "Migrate it with `clew migrate`.")


def version(address: Address) -> int:
    """The schema of a database, 0 without one. Raises StoreUnavailableError, or StoreSchemaError for a newer one."""
    with closing(address.connect()) as connection:
        try:
            return _version(connection, address)
        except psycopg.Error as error:
            raise unavailable(address.shown, error) from None


def migrate(address: Address, *, partitions: int | None = None) -> int:
    """Migrate a database to the current schema, completely or not at all; returns the schema that it had.

    In an empty database, the tables that grow with the number of events get this number of ``partitions``: 2 to 1024,
    0 for none, None to accept any. Raises StoreSchemaError for other numbers, and for existing tables with another
    number of partitions.
    """
    if partitions not in {None, 0, *range(FEWEST_PARTITIONS, MOST_PARTITIONS + 1)}:
        msg = (
            f"{address.shown}: tables cannot have {partitions!r} partitions. Use a number from "
            f"{FEWEST_PARTITIONS} to {MOST_PARTITIONS}, or 0 for no partitions."
        )
        raise StoreSchemaError(msg)
    with closing(address.connect()) as connection:
        try:
            found = _version(connection, address)
            if found != SCHEMA_VERSION:
                _migrate(connection, address, partitions)
            there = int(connection.execute(_SQL["partitions"]).fetchall()[0][0])
        except psycopg.Error as error:
            raise unavailable(address.shown, error) from None
    if partitions not in {None, there}:
        divided = f"with {there} partitions" if there else "without partitions"
        msg = f"{address.shown}: Clew's tables exist {divided}, and that cannot change later. "
        raise StoreSchemaError(
            msg + f"Run `clew migrate --partitions {partitions}` on an empty database and import the log there: "
            "docs/scaling.md shows how."
        )
    return found


def lock(connection: psycopg.Connection[tuple[Any, ...]], number: int = _LOCK) -> None:
    """Until the transaction ends, let no other process create tables or roles, or do what another lock protects."""
    connection.execute(_SQL["lock"], {"lock": number})


def use_home_schema(connection: psycopg.Connection[tuple[Any, ...]]) -> None:
    """Create everything in the rest of the transaction in the schema of the tables."""
    connection.execute(_SQL["home"])


def _version(connection: psycopg.Connection[tuple[Any, ...]], address: Address) -> int:
    if not connection.execute(_SQL["exists"]).fetchall():
        return 0
    rows = connection.execute(_SQL["schema"]).fetchall()
    if not rows:
        msg = f"{address.shown}: clew_meta is empty, as in an incomplete copy. Restore or copy the database again."
        raise StoreSchemaError(msg)
    found = int(rows[0][0])
    if found > SCHEMA_VERSION:
        msg = f"{address.shown}: this database has schema {found}, and this Clew knows schema {SCHEMA_VERSION}. "
        raise StoreSchemaError(msg + "Open it with the Clew that created it, or a newer one.")
    return found


def _migrate(connection: psycopg.Connection[tuple[Any, ...]], address: Address, partitions: int | None = None) -> int:
    """One process at a time: two that create the same tables at once would fail."""
    with connection.transaction():
        lock(connection)
        for schema in range(_version(connection, address) + 1, SCHEMA_VERSION + 1):
            connection.execute(_divided(_MIGRATIONS[f"schema {schema}"], partitions or 0).encode())
            for type_ in INDEXED.get(schema, ()):
                _fill_index(connection, type_)
            connection.execute(_SQL["raise schema"], {"schema": schema})
    return SCHEMA_VERSION


def _fill_index(connection: psycopg.Connection[tuple[Any, ...]], type_: str) -> None:
    """Index the stored events of a type."""
    rows = connection.execute(_SQL["rows of a type"], {"type": type_.encode()}).fetchall()
    for tenant, stream, name, version, state in rows:
        with suppress(CorruptEventError):  # `verify` names it
            event = decode(text(name), version, type_, state)
            for number in numbers_of(event):
                row = {"tenant": tenant, "stream": stream, "number": number, "version": version}
                connection.execute(_SQL["index row"], row)


def _divided(sql: str, partitions: int) -> str:
    """The statements that create tables, the divisible ones with this number of partitions."""
    if not partitions:
        return sql

    def with_parts(table: re.Match[str]) -> str:
        """Before the later statements about the table, so that these apply to its partitions too."""
        parts = (
            f"CREATE TABLE {table[1]}_{part} PARTITION OF {table[1]} "
            f"FOR VALUES WITH (MODULUS {partitions}, REMAINDER {part});"
            for part in range(partitions)
        )
        return "\n".join((table[0], *parts))

    return _DIVIDED.sub(with_parts, _DIVISIBLE.sub(r"\1", sql))
