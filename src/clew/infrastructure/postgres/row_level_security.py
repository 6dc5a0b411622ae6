"""Tenants that the database itself keeps apart: row-level security, and the roles that it knows."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

import psycopg

from clew.infrastructure.postgres import schema, text_index, vectors
from clew.infrastructure.postgres.connection import Address, Session
from clew.infrastructure.postgres.errors import PostgresUnavailableError, unavailable
from clew.infrastructure.postgres.sql_files import statements

LEAVING = 5.0
"""Seconds for which a closed session may still be listed."""

_SQL = statements("row_level_security.sql")
_STEPS = ("roles", "functions", "finding", "indexes", "protection", "grants", "definers", "drop rights")


def secure(address: Address) -> None:
    """Create the roles, grants and policies, all of them or none. Repeating it updates them.

    The tables must exist. Raises StoreUnavailableError if the user lacks the rights, and, the first time, if other
    sessions are connected: they have not named a tenant, and would see no rows any more.
    """
    with closing(address.connect()) as connection:
        try:
            with connection.transaction():
                schema.lock(connection)
                connection.execute(_SQL["foreign functions"].encode())
                is_new = not connection.execute(_SQL["is secured"].encode()).fetchall()[0][0]
                if is_new:
                    _require_no_other_sessions(connection, address, timeout=LEAVING)
                schema.use_home_schema(connection)
                vectors.make(connection)  # applications cannot create tables later
                for step in _STEPS:
                    connection.execute(_SQL[step].replace("{find}", text_index.FIND_OF_A_TENANT).encode())
                if is_new:
                    # A session that connects from now on waits for this transaction to learn whether it is bound.
                    _require_no_other_sessions(connection, address, timeout=0)
        except psycopg.errors.InsufficientPrivilege as error:
            msg = (
                f"{address.shown}: only a superuser, or the owner of the tables and of their schema with CREATEROLE, "
                f"can set up row-level security. (PostgreSQL says: {' '.join(str(error).split())})"
            )
            raise PostgresUnavailableError(msg) from None
        except psycopg.Error as error:
            raise unavailable(address.shown, error) from None


def _require_no_other_sessions(connection: psycopg.Connection[Any], address: Address, *, timeout: float) -> None:
    until = time.monotonic() + timeout
    while count := _others(connection):
        if time.monotonic() >= until:
            others = "one other session is" if count == 1 else f"{count} other sessions are"
            msg = (
                f"{address.shown}: {others} connected to this database, and would find it empty with row-level "
                "security. Stop the services and poolers first (pg_stat_activity lists them); restart them afterwards."
            )
            raise PostgresUnavailableError(msg)
        time.sleep(0.05)


def _others(connection: psycopg.Connection[Any]) -> int:
    connection.execute("SELECT pg_catalog.pg_stat_clear_snapshot()")
    return int(connection.execute(_SQL["sessions"].encode()).fetchall()[0][0])


def protect(session: Session, table: str) -> None:
    """With row-level security, give a new table of a projection to the operators, and let each tenant read its rows.

    Only operators read a table without a column ``tenant`` (the number of a tenant, or its name as bytes or text).
    """
    session.connection.execute(_SQL["protect"].replace("{table}", table).encode())
