from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.service.failing_projection import Ten
from tests.service.settable_clock import SettableClock

from clew.conversations import Conversations
from clew.domain.ports import EventLog
from clew.infrastructure.sqlite.projection_store import SQLiteProjections


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/clew.db?synchronous=OFF"


@pytest.fixture
def url(any_url: str) -> str:
    return any_url


@pytest.fixture
def conversations(url: str, clock: SettableClock) -> Iterator[Conversations]:
    with Conversations.open(url, now=clock) as opened:
        yield opened


@pytest.fixture
def ten() -> Iterator[Ten]:
    made = Ten()
    yield made
    made.conversations.close()


@pytest.fixture
def log(ten: Ten) -> EventLog:
    return ten.log


@pytest.fixture
def store() -> Iterator[SQLiteProjections]:
    """Projection tables without rows."""
    opened = SQLiteProjections(None)
    yield opened
    opened.close()
