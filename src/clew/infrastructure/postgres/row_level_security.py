"""Tenants that the database itself keeps apart: row-level security, and the roles that it knows."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

import psycopg

from clew.infrastructure.postgres import schema, text_index, vectors
from clew.infrastructure.postgres.address import Address
from clew.infrastructure.postgres.connection import Session
from clew.infrastructure.postgres.errors import PostgresUnavailableError, unavailable
from clew.infrastructure.postgres.sql_files import statements

LEAVING = 5.0
"""Seconds for which a session may still be shown that was closed."""

_SQL = statements("row_level_security.sql")
_STEPS = ("roles", "functions", "finding", "indexes", "protection", "grants", "definers", "leave")


def secure(address: Address) -> None:
    """Make the roles, grants and policies, all of them or none; done again it brings them up to date.

    The tables must be there. Raises StoreUnavailableError where the user may not do so, and the first time where others
    are connected: whoever is has found that he need not say for which tenant he asks, and would see nothing any more.
    """
    with closing(address.connect()) as connection:
        try:
            with connection.transaction():
                schema.lock(connection)
                connection.execute(_SQL["strangers"].encode())
                is_new = not connection.execute(_SQL["is secured"].encode()).fetchall()[0][0]
                if is_new:
                    _see_that_nobody_is_connected(connection, address, patience=LEAVING)
                schema.stay_home(connection)
                vectors.make(connection)  # an application may not make tables any more
                for step in _STEPS:
                    connection.execute(_SQL[step].replace("{find}", text_index.FIND_OF_A_TENANT).encode())
                if is_new:
                    # Whoever comes from now on waits for this transaction before he is told whether he is bound.
                    _see_that_nobody_is_connected(connection, address, patience=0)
        except psycopg.errors.InsufficientPrivilege as error:
            msg = (
                f"{address.shown}: row-level security is set up by a superuser, or by the owner of the tables and of "
                f"their schema with CREATEROLE. (PostgreSQL says: {' '.join(str(error).split())})"
            )
            raise PostgresUnavailableError(msg) from None
        except psycopg.Error as error:
            raise unavailable(address.shown, error) from None


def _see_that_nobody_is_connected(connection: psycopg.Connection[Any], address: Address, *, patience: float) -> None:
    until = time.monotonic() + patience
    while count := _others(connection):
        if time.monotonic() >= until:
            others = "one other session is" if count == 1 else f"{count} other sessions are"
            msg = (
                f"{address.shown}: {others} connected to this database, and would find it empty once it keeps tenants "
                "apart. Stop the services and poolers first (pg_stat_activity says who it is), and start them again "
                "after."
            )
            raise PostgresUnavailableError(msg)
        time.sleep(0.05)


def _others(connection: psycopg.Connection[Any]) -> int:
    connection.execute("SELECT pg_catalog.pg_stat_clear_snapshot()")
    return int(connection.execute(_SQL["sessions"].encode()).fetchall()[0][0])


def protect(session: Session, table: str) -> None:
    """Where tenants are kept apart, give a new table of a projection to the operators, and its rows to each to read.

    A table without a column ``tenant`` (the number of a tenant, or its name as bytes or text) nobody else reads.
    """
    session.connection.execute(_SQL["protect"].replace("{table}", table).encode())
