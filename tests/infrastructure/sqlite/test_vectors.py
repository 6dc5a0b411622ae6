from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest
from tests.infrastructure.recorder_steps import in_forked_child
from tests.infrastructure.vector_contract import SPACE, VectorIndexContract, digest, entries, put

from clew.domain.errors import StoreSchemaError, StoreUnavailableError
from clew.domain.memory.ports import VectorIndex
from clew.infrastructure.sqlite.vectors import SCHEMA_VERSION, SQLiteVectors

_numbers = count()
STORED = {1: (1.0, 0.0)}


class TestSQLiteVectors(VectorIndexContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        self.folder = tmp_path_factory.mktemp("vectors")

    def make(self) -> VectorIndex:
        return SQLiteVectors(str(self.folder / f"{next(_numbers)}.vectors"))


def test_creates_no_file_before_the_first_vector(tmp_path: Path) -> None:
    path = tmp_path / "a.vectors"
    with closing(SQLiteVectors(str(path))) as index:
        assert index.missing(SPACE, [b"x"]) == {b"x"}
        assert index.nearest(SPACE, "c", entries(STORED), 1, (1, 0), 1) == []
        index.drop()
        assert not path.exists()
        put(index, (1, 0))
        assert path.exists()


def test_another_process_finds_a_stored_vector(tmp_path: Path) -> None:
    path = str(tmp_path / "a b#?.vectors")
    with closing(SQLiteVectors(path)) as one, closing(SQLiteVectors(path)) as other:
        assert other.nearest(SPACE, "c", entries(STORED), 1, (1, 0), 1) == []
        put(one, (1, 0))
        assert other.missing(SPACE, [digest((1, 0))]) == set()
        assert dict(other.nearest(SPACE, "c", entries(STORED), 1, (1, 0), 1)) == pytest.approx({1: 1})


def test_forgets_the_vectors_of_a_file_that_is_deleted_while_it_is_open(tmp_path: Path) -> None:
    path = tmp_path / "a.vectors"
    with closing(SQLiteVectors(str(path))) as index:
        put(index, (1, 0))
        assert index.nearest(SPACE, "c", entries(STORED), 1, (1, 0), 1)
        path.unlink()
        assert index.nearest(SPACE, "c", entries(STORED), 1, (1, 0), 1) == []
        assert index.missing(SPACE, [digest((1, 0))]) == {digest((1, 0))}
        put(index, (1, 0))
        assert index.nearest(SPACE, "c", entries(STORED), 1, (1, 0), 1)


@pytest.mark.parametrize("damage", [b"not a database" * 100, b"SQLite format 3\x00" + b"\x55" * 5_000])
def test_replaces_a_damaged_file(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "a.vectors"
    path.write_bytes(damage)
    with closing(SQLiteVectors(str(path))) as index:
        assert index.missing(SPACE, [b"x"]) == {b"x"}
        path.write_bytes(damage)
        put(index, (1, 0))
        assert index.missing(SPACE, [digest((1, 0))]) == set()


def test_does_not_change_another_programs_database(tmp_path: Path) -> None:
    path = tmp_path / "a.vectors"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE theirs (a)")
    before = path.read_bytes()
    with closing(SQLiteVectors(str(path))) as index:
        for use in (lambda: put(index, (1, 0)), lambda: index.missing(SPACE, [b"x"])):
            with pytest.raises(StoreSchemaError, match="another program's"):
                use()
    assert path.read_bytes() == before


def test_does_not_change_a_file_with_a_newer_schema(tmp_path: Path) -> None:
    path = tmp_path / "a.vectors"
    with closing(SQLiteVectors(str(path))) as index:
        put(index, (1, 0))
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
        with pytest.raises(StoreSchemaError, match="a newer Clew made it"):
            put(index, (0, 1))


def test_explains_what_to_do_if_the_file_cannot_be_created(tmp_path: Path) -> None:
    with (
        closing(SQLiteVectors(str(tmp_path / "missing" / "a.vectors"))) as index,
        pytest.raises(StoreUnavailableError, match="folder"),
    ):
        put(index, (1, 0))


def test_keeps_its_path_when_the_process_changes_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with closing(SQLiteVectors("a.vectors")) as index:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        put(index, (1, 0))
    assert (tmp_path / "a.vectors").exists()


def test_a_forked_child_searches_independently(tmp_path: Path) -> None:
    with closing(SQLiteVectors(str(tmp_path / "a.vectors"))) as index:
        put(index, (1, 0))
        assert index.nearest(SPACE, "c", entries(STORED), 1, (1, 0), 1)

        def search_and_put() -> None:
            assert [number for number, _ in index.nearest(SPACE, "c", entries(STORED), 1, (1, 0), 1)] == [1]
            put(index, (0, 1))

        index._matrices._lock.acquire()  # as if held by a parent's thread that the child does not have
        try:
            assert in_forked_child(search_and_put) == 0
        finally:
            index._matrices._lock.release()
        assert index.missing(SPACE, [digest((0, 1))]) == set()


def test_can_be_read_after_a_process_was_killed_during_a_write(tmp_path: Path) -> None:
    path = tmp_path / "a.vectors"
    code = (
        "import os, sqlite3, sys; connection = sqlite3.connect(sys.argv[1], isolation_level=None); "
        "connection.execute('PRAGMA cache_size = 5'); connection.execute('BEGIN IMMEDIATE'); "
        "[connection.execute('INSERT INTO vector VALUES (1, ?, ?)', (os.urandom(32), os.urandom(400)))"
        " for _ in range(500)]; os._exit(0)"
    )
    with closing(SQLiteVectors(str(path))) as index:
        put(index, (1, 0))
        subprocess.run([sys.executable, "-c", code, str(path)], check=True)
        assert path.with_name("a.vectors-journal").exists()
        assert index.missing(SPACE, [digest((1, 0)), digest((0, 1))]) == {digest((0, 1))}
        assert index.nearest(SPACE, "c", entries(STORED), 1, (1, 0), 1)


def test_can_be_read_without_write_permission(tmp_path: Path) -> None:
    path = tmp_path / "a.vectors"
    with closing(SQLiteVectors(str(path))) as index:
        put(index, (1, 0))
        path.chmod(0o400)
        assert index.missing(SPACE, [digest((1, 0))]) == set()


def test_opening_a_store_does_not_import_numpy(tmp_path: Path) -> None:
    code = f"import sys; from clew import Conversations; Conversations.open('sqlite:///{tmp_path}/a.db').close(); "
    subprocess.run([sys.executable, "-c", code + "sys.exit('numpy' in sys.modules)"], check=True)
