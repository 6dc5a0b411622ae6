"""The example of a custom history store."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from ast import literal_eval
from contextlib import closing
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from tests.infrastructure.history_store_contract import HistoryStoreContract

from clew import HistoryStore, StoreContext

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "database_history.py"


def load_example() -> Any:
    spec = spec_from_file_location("database_history", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TestDatabaseHistory(HistoryStoreContract):
    @pytest.fixture(autouse=True)
    def _database(self, tmp_path: Path) -> None:
        self.path = str(tmp_path / "history.db")
        self.store_class = load_example().DatabaseHistory

    def store(self, context: StoreContext) -> HistoryStore:
        store: HistoryStore = self.store_class(self.path, context)
        return store


def test_stores_the_conversation_in_its_own_table(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    done = subprocess.run([sys.executable, str(EXAMPLE), path], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    with closing(sqlite3.connect(path)) as database:
        rows = database.execute("SELECT key, text FROM message ORDER BY rowid").fetchall()
    assert [literal_eval(key)[0] for key, _ in rows] == ["default"] * 2
    messages = [json.loads(text)["message"] for _, text in rows]
    assert [(each["role"], each["contents"][0]["text"]) for each in messages] == [
        ("user", "Hi."),
        ("assistant", "Hello."),
    ]


def test_has_fewer_than_forty_lines() -> None:
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) < 40
