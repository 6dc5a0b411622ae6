"""Databases that keep tenants apart, and stores of projections, as the tests of them need them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from tests.servers.postgres_server import Databases
from tests.servers.tenant_databases import Logins, fill, isolate_tenants

from clew.infrastructure.postgres import schema
from clew.infrastructure.postgres.connection import Address
from clew.infrastructure.postgres.projection_store import PostgresProjections
from clew.infrastructure.sqlite.projection_store import SQLiteProjections


@pytest.fixture
def logins(postgres: str) -> Logins:
    """Of one with nothing in it."""
    return isolate_tenants(postgres)


@pytest.fixture
def filled(logins: Logins) -> Logins:
    """Of one in which two tenants, ``a`` and ``b``, have a thread each."""
    return fill(logins)


@pytest.fixture(scope="module")
def kept(databases: Databases) -> Iterator[Logins]:
    """The same for tests that change nothing."""
    with databases.one() as url:
        yield fill(isolate_tenants(url))


@pytest.fixture
def store(postgres: str) -> Iterator[PostgresProjections]:
    schema.prepare(Address(postgres), create=True)
    with closing(PostgresProjections(postgres)) as opened:
        yield opened


@pytest.fixture
def lite() -> Iterator[SQLiteProjections]:
    with closing(SQLiteProjections(None)) as opened:
        yield opened
