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
HELD = {1: (1.0, 0.0)}


class TestSQLiteVectors(VectorIndexContract):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        self.own = tmp_path_factory.mktemp("vectors")

    def make(self) -> VectorIndex:
        return SQLiteVectors(str(self.own / f"{next(_numbers)}.vectors"))


def test_makes_no_file_before_there_is_a_vector(tmp_path: Path) -> None:
    path = tmp_path / "a.vectors"
    with closing(SQLiteVectors(str(path))) as index:
        assert index.missing(SPACE, [b"x"]) == {b"x"}
        assert index.nearest(SPACE, "c", entries(HELD), 1, (1, 0), 1) == []
        index.drop()
        assert not path.exists()
        put(index, (1, 0))
        assert path.exists()


def test_another_process_finds_what_was_put(tmp_path: Path) -> None:
    path = str(tmp_path / "a b#?.vectors")
    with closing(SQLiteVectors(path)) as one, closing(SQLiteVectors(path)) as other:
        assert other.nearest(SPACE, "c", entries(HELD), 1, (1, 0), 1) == []
        put(one, (1, 0))
        assert other.missing(SPACE, [digest((1, 0))]) == set()
        assert dict(other.nearest(SPACE, "c", entries(HELD), 1, (1, 0), 1)) == pytest.approx({1: 1})


def test_forgets_what_it_made_of_a_file_that_is_deleted_while_it_is_open(tmp_path: Path) -> None:
    path = tmp_path / "a.vectors"
    with closing(SQLiteVectors(str(path))) as index:
        put(index, (1, 0))
        assert index.nearest(SPACE, "c", entries(HELD), 1, (1, 0), 1)
        path.unlink()
        assert index.nearest(SPACE, "c", entries(HELD), 1, (1, 0), 1) == []
        assert index.missing(SPACE, [digest((1, 0))]) == {digest((1, 0))}
        put(index, (1, 0))
        assert index.nearest(SPACE, "c", entries(HELD), 1, (1, 0), 1)


@pytest.mark.parametrize("damage", [b"no database at all" * 100, b"SQLite format 3\x00" + b"\x55" * 5_000])
def test_makes_a_damaged_file_anew(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "a.vectors"
    path.write_bytes(damage)
    with closing(SQLiteVectors(str(path))) as index:
        assert index.missing(SPACE, [b"x"]) == {b"x"}
        path.write_bytes(damage)
        put(index, (1, 0))
        assert index.missing(SPACE, [digest((1, 0))]) == set()


def test_leaves_another_programs_database_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.vectors"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE theirs (a)")
    before = path.read_bytes()
    with closing(SQLiteVectors(str(path))) as index:
        for use in (lambda: put(index, (1, 0)), lambda: index.missing(SPACE, [b"x"])):
            with pytest.raises(StoreSchemaError, match="another program's"):
                use()
    assert path.read_bytes() == before


def test_leaves_a_newer_clews_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.vectors"
    with closing(SQLiteVectors(str(path))) as index:
        put(index, (1, 0))
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
        with pytest.raises(StoreSchemaError, match="a newer Clew made it"):
            put(index, (0, 1))


def test_says_what_to_do_when_the_file_cannot_be_made(tmp_path: Path) -> None:
    with (
        closing(SQLiteVectors(str(tmp_path / "nowhere" / "a.vectors"))) as index,
        pytest.raises(StoreUnavailableError, match="folder"),
    ):
        put(index, (1, 0))


def test_stays_where_it_was_opened_when_the_process_goes_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with closing(SQLiteVectors("a.vectors")) as index:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        put(index, (1, 0))
    assert (tmp_path / "a.vectors").exists()


def test_a_child_of_a_fork_searches_on_its_own(tmp_path: Path) -> None:
    with closing(SQLiteVectors(str(tmp_path / "a.vectors"))) as index:
        put(index, (1, 0))
        assert index.nearest(SPACE, "c", entries(HELD), 1, (1, 0), 1)

        def search_and_put() -> None:
            assert [number for number, _ in index.nearest(SPACE, "c", entries(HELD), 1, (1, 0), 1)] == [1]
            put(index, (0, 1))

        index._matrices._lock.acquire()  # as a thread of the parent's would hold it, that the child does not have
        try:
            assert in_forked_child(search_and_put) == 0
        finally:
            index._matrices._lock.release()
        assert index.missing(SPACE, [digest((0, 1))]) == set()


def test_is_read_after_a_process_was_killed_while_it_wrote(tmp_path: Path) -> None:
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
        assert index.nearest(SPACE, "c", entries(HELD), 1, (1, 0), 1)


def test_is_read_where_nothing_may_be_written(tmp_path: Path) -> None:
    path = tmp_path / "a.vectors"
    with closing(SQLiteVectors(str(path))) as index:
        put(index, (1, 0))
        path.chmod(0o400)
        assert index.missing(SPACE, [digest((1, 0))]) == set()


def test_nothing_heavy_is_imported_to_open_one(tmp_path: Path) -> None:
    code = f"import sys; from clew import Conversations; Conversations.open('sqlite:///{tmp_path}/a.db').close(); "
    subprocess.run([sys.executable, "-c", code + "sys.exit('numpy' in sys.modules)"], check=True)
