"""What the tests of shipped providers share: their event loop is asyncio's."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """The loop that tests marked ``anyio`` run on."""
    return "asyncio"
