"""Databases that keep tenants apart, as the tests of them need them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.servers.postgres_server import Databases
from tests.servers.tenanted import Logins, fill, keep_apart


@pytest.fixture
def logins(postgres: str) -> Logins:
    """Of one with nothing in it."""
    return keep_apart(postgres)


@pytest.fixture
def filled(logins: Logins) -> Logins:
    """Of one in which two tenants, ``a`` and ``b``, have a thread each."""
    return fill(logins)


@pytest.fixture(scope="module")
def kept(databases: Databases) -> Iterator[Logins]:
    """The same for tests that change nothing."""
    with databases.one() as url:
        yield fill(keep_apart(url))
