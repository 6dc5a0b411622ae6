"""What the tests of agents share: their event loop is asyncio's, and their stores are those that several may open."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """The loop that tests marked ``anyio`` run on."""
    return "asyncio"


@pytest.fixture
def url(shared_url: str) -> str:
    """An empty store that several may open at once."""
    return shared_url
