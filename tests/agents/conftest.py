"""Fixtures of the agent tests: the asyncio event loop, and stores that several services can open."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.agents.agui_served import JavaScript


@pytest.fixture
def anyio_backend() -> str:
    """The loop that tests marked ``anyio`` run on."""
    return "asyncio"


@pytest.fixture
def url(shared_url: str) -> str:
    """An empty store that several services can open at once."""
    return shared_url


@pytest.fixture(scope="session")
def javascript() -> Iterator[JavaScript]:
    """A process of Node with AG-UI's client."""
    made = JavaScript()
    yield made
    made.close()
