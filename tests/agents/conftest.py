"""What the tests of agents share: their event loop is asyncio's, and their stores are files or on PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """The loop that tests marked ``anyio`` run on."""
    return "asyncio"


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store that several may open at once."""
    if request.param == "postgres":
        address: str = request.getfixturevalue("postgres")
        return address
    return f"sqlite:///{tmp_path}/clew.db?synchronous=OFF"
