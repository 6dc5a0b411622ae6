"""Fixtures: databases with row-level security, and projection stores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from tests.servers.postgres_server import Databases
from tests.servers.row_level_security import Logins, fill, isolate_tenants

from clew.infrastructure.postgres import schema
from clew.infrastructure.postgres.connection import Address
from clew.infrastructure.postgres.projection_store import PostgresProjections
from clew.infrastructure.sqlite.projection_store import SQLiteProjections


@pytest.fixture
def logins(postgres: str) -> Logins:
    """The logins of an empty database with row-level security."""
    return isolate_tenants(postgres)


@pytest.fixture
def filled(logins: Logins) -> Logins:
    """The logins of a database with row-level security, where the tenants ``a`` and ``b`` have one thread each."""
    return fill(logins)


@pytest.fixture(scope="module")
def shared_logins(databases: Databases) -> Iterator[Logins]:
    """Like ``filled``, for all tests of a module that only read."""
    with databases.one() as url:
        yield fill(isolate_tenants(url))


@pytest.fixture
def store(postgres: str) -> Iterator[PostgresProjections]:
    schema.prepare(Address(postgres), create=True)
    with closing(PostgresProjections(postgres)) as projections:
        yield projections


@pytest.fixture
def sqlite_store() -> Iterator[SQLiteProjections]:
    with closing(SQLiteProjections(None)) as projections:
        yield projections
