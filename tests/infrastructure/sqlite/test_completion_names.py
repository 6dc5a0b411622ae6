"""Names for tab completion: reading them does not change any file."""

from __future__ import annotations

from pathlib import Path

import pytest

from clew import Conversations
from clew.infrastructure.completion_names import checkpoint_names, thread_ids
from clew.infrastructure.sqlite.completion_names import SQLiteNames


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "clew.db")


def state(folder: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in folder.iterdir()}


def test_changes_no_file_of_a_closed_store(path: str, tmp_path: Path) -> None:
    with Conversations.open(f"sqlite:///{path}") as conversations:
        conversations.start_thread(thread_id="a").checkpoint("name")
    before = state(tmp_path)
    assert thread_ids(SQLiteNames(path), "default", "", 50) == ["a"]
    assert checkpoint_names(SQLiteNames(path), "default", "a", "", 50) == ["name"]
    assert state(tmp_path) == before


def test_reads_the_write_ahead_log_of_an_open_store(path: str) -> None:
    with Conversations.open(f"sqlite:///{path}") as conversations:
        conversations.start_thread(thread_id="a")
        assert thread_ids(SQLiteNames(path), "default", "", 50) == ["a"]


def test_a_missing_store_is_an_error_and_is_not_created(path: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        thread_ids(SQLiteNames(path), "default", "", 50)
    assert list(tmp_path.iterdir()) == []
