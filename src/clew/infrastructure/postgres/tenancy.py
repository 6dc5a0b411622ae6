"""Tenants that the database itself keeps apart: row-level security, and the roles that it knows."""

from __future__ import annotations

from contextlib import closing

import psycopg

from clew.infrastructure.postgres import schema, text_index, vectors
from clew.infrastructure.postgres.address import Address
from clew.infrastructure.postgres.errors import PostgresUnavailableError, unavailable
from clew.infrastructure.postgres.session import Session
from clew.infrastructure.postgres.sql_files import statements

APP = "clew_app"
"""The role of those who read and write on behalf of one tenant."""

OPERATOR = "clew_operator"
"""The role of those who work for all tenants: fill projections, verify, follow the whole store."""

_SQL = statements("tenancy.sql")
_STEPS = ("schema", "roles", "functions", "finding", "indexes", "protection", "grants", "definers", "leave")


def secure(address: Address) -> None:
    """Make the roles, grants and policies, all of them or none; done again it brings them up to date.

    The tables must be there. Raises StoreUnavailableError where the user may not do so.
    """
    with closing(address.connect()) as connection:
        try:
            with connection.transaction():
                schema.lock(connection)
                connection.execute(_SQL["strangers"].encode())
                vectors.make(connection)  # an application may not make tables any more
                for step in _STEPS:
                    connection.execute(_SQL[step].replace("{find}", text_index.FIND_OF_A_TENANT).encode())
        except psycopg.errors.InsufficientPrivilege as error:
            msg = (
                f"{address.shown}: row-level security is set up by a superuser, or by the owner of the tables and of "
                f"their schema with CREATEROLE. (PostgreSQL says: {' '.join(str(error).split())})"
            )
            raise PostgresUnavailableError(msg) from None
        except psycopg.Error as error:
            raise unavailable(address.shown, error) from None


def protect(session: Session, table: str) -> None:
    """Where tenants are kept apart, give a new table of a projection to the operators, and its rows to each to read.

    A table without a column ``tenant`` (the number of a tenant, or its name as bytes or text) nobody else reads.
    """
    session.connection.execute(_SQL["protect"].replace("{table}", table).encode())
