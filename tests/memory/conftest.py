"""Fixtures of the tests of shipped providers: the asyncio event loop."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """The loop that tests marked ``anyio`` run on."""
    return "asyncio"
