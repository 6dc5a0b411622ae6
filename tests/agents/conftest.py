"""Fixtures of the agent tests: the asyncio event loop, and stores that several services can open."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """The loop that tests marked ``anyio`` run on."""
    return "asyncio"


@pytest.fixture
def url(shared_url: str) -> str:
    """An empty store that several services can open at once."""
    return shared_url
