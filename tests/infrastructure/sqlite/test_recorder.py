"""The SQLite store keeps the contract."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.infrastructure.recorder_contract import RecorderContract
from tests.infrastructure.recorder_steps import Opener
from tests.infrastructure.waiting_contract import LostReplyContract, TwoProcessContract

from clew.infrastructure.sqlite.recorder import SQLiteRecorder


class TestSQLiteRecorder(RecorderContract, LostReplyContract, TwoProcessContract):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        return lambda: SQLiteRecorder.open(str(tmp_path / "clew.db"))

    @pytest.fixture
    def break_commit(self, recorder: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
        def break_next(happens: bool) -> None:  # noqa: FBT001 - its only parameter
            def commit(connection: sqlite3.Connection) -> None:
                monkeypatch.undo()
                if happens:
                    connection.execute("COMMIT")
                message = "disk I/O error of the test"
                raise sqlite3.OperationalError(message)

            monkeypatch.setattr(recorder.datastore._writer, "commit", commit)

        return break_next
