"""SQLite files: refused files and their errors, waits for locks, and the size of the log."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from eventsourcing.persistence import OperationalError
from tests.infrastructure.recorder_steps import (
    PATIENCE,
    addresses,
    append,
    event,
    failure,
    fill,
    interrupt_when,
    is_waiting_for_a_lock,
    take,
    wait_until,
)

from clew.domain.errors import ClewError, StoreSchemaError, StoreUnavailableError, StoreUrlError
from clew.domain.ports import Fork
from clew.infrastructure.recorder_ports import Append
from clew.infrastructure.sqlite.datastore import ClewSQLiteDatastore
from clew.infrastructure.sqlite.file_lock import FileLock
from clew.infrastructure.sqlite.recorder import SQLiteRecorder
from clew.infrastructure.sqlite.schema import SCHEMA_VERSION


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "clew.db")


@pytest.fixture
def recorder(path: str) -> Iterator[SQLiteRecorder]:
    recorder = SQLiteRecorder.open(path)
    yield recorder
    recorder.close()


def check_refused(path: str, kind: type[ClewError], *words: str) -> None:
    with pytest.raises(kind) as caught:
        SQLiteRecorder.open(path)
    message = str(caught.value)
    assert "\n" not in message
    assert path in message
    for word in words:
        assert word in message


def test_the_file_header_identifies_clew(path: str, recorder: SQLiteRecorder) -> None:
    fill(recorder, "a", 1)
    recorder.close()
    header = Path(path).read_bytes()[:100]
    assert header[68:72] == b"Clew"
    assert header[60:64] == SCHEMA_VERSION.to_bytes(4, "big")


def test_is_durable_deletes_securely_and_checkpoints_itself(recorder: SQLiteRecorder) -> None:
    connection = recorder.datastore.writing()
    settings = {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in (
        "journal_mode", "synchronous", "fullfsync", "checkpoint_fullfsync", "secure_delete", "wal_autocheckpoint",
    )}  # fmt: skip
    assert settings == {
        "journal_mode": "wal", "synchronous": 2, "fullfsync": 1, "checkpoint_fullfsync": 1, "secure_delete": 1,
        "wal_autocheckpoint": 0,
    }  # fmt: skip


@pytest.mark.parametrize(("name", "value"), [("FULL", 2), ("NORMAL", 1), ("OFF", 0)])
def test_durability_is_configurable(path: str, name: str, value: int) -> None:
    recorder = SQLiteRecorder.open(path, synchronous=name)  # type: ignore[arg-type] # one of the literals
    assert recorder.datastore.writing().execute("PRAGMA synchronous").fetchone()[0] == value
    recorder.close()


def test_refuses_a_file_that_is_not_a_database(path: str) -> None:
    Path(path).write_bytes(b"{}" * 100)
    check_refused(path, StoreSchemaError, "not an SQLite database")
    assert Path(path).read_bytes() == b"{}" * 100
    assert not Path(path + ".lock").exists()


def test_refuses_a_file_that_has_only_the_header_of_a_database(path: str) -> None:
    Path(path).write_bytes(b"SQLite format 3\0" + b"x" * 4000)
    check_refused(path, StoreSchemaError, "not an SQLite database")


@pytest.mark.parametrize("application_id", [0, 4711])
def test_refuses_another_programs_database_without_changing_it(path: str, application_id: int) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE theirs (x)")
    connection.execute(f"PRAGMA application_id = {application_id}")
    connection.commit()
    connection.close()
    before = Path(path).read_bytes()
    check_refused(path, StoreSchemaError, "another program")
    assert Path(path).read_bytes() == before
    assert not Path(path + ".lock").exists()


def test_refuses_a_newer_schema(path: str) -> None:
    SQLiteRecorder.open(path).close()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.close()
    check_refused(path, StoreSchemaError, f"schema {SCHEMA_VERSION + 1}", "newer")


def test_accepts_an_empty_file(path: str) -> None:
    Path(path).touch()
    recorder = SQLiteRecorder.open(path)
    fill(recorder, "a", 1)
    recorder.close()


def test_accepts_a_database_without_tables(path: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
    assert Path(path).stat().st_size > 0
    recorder = SQLiteRecorder.open(path)
    fill(recorder, "a", 1)
    recorder.close()


def test_refuses_a_missing_folder(tmp_path: Path) -> None:
    check_refused(str(tmp_path / "missing" / "clew.db"), StoreUnavailableError, "folder does not exist")


def test_refuses_a_folder(tmp_path: Path) -> None:
    check_refused(str(tmp_path), StoreUnavailableError, "it is a folder")


def test_refuses_a_name_that_is_too_long(tmp_path: Path) -> None:
    check_refused(str(tmp_path / ("x" * 300)), StoreUnavailableError, "too long")


def test_refuses_a_read_only_file(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    SQLiteRecorder.open(path).close()
    # Root may write to any file, so the test replaces the system's answer.
    monkeypatch.setattr(os, "access", lambda *_: False)
    check_refused(path, StoreUnavailableError, "read-only")


def test_refuses_a_file_if_its_lock_cannot_be_created(path: str) -> None:
    Path(path + ".lock").mkdir()
    check_refused(path, StoreUnavailableError, "it is a folder")


@pytest.mark.parametrize("name", [":memory:", "file::memory:?cache=shared", "file:x?mode=memory", "file:x.db?mode=ro"])
def test_refuses_a_name_that_is_not_a_file(name: str) -> None:
    with pytest.raises(StoreUrlError):
        SQLiteRecorder.open(name)


@pytest.mark.parametrize("name", ["a b.db", "100%.db", "ä?.db", "#1.db", "a%20b.db"])
def test_opens_a_file_with_any_name(tmp_path: Path, name: str) -> None:
    recorder = SQLiteRecorder.open(str(tmp_path / name))
    fill(recorder, "a", 1)
    assert len(recorder.lineage("a")) == 1
    recorder.close()
    assert (tmp_path / name).is_file()


def test_opens_a_relative_path_and_a_uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recorder = SQLiteRecorder.open("here.db")
    fill(recorder, "a", 1)
    recorder.close()
    recorder = SQLiteRecorder.open(f"file:{tmp_path}/here.db")
    assert len(recorder.lineage("a")) == 1
    recorder.close()


def test_creates_no_tables_without_create(path: str) -> None:
    with pytest.raises(StoreUnavailableError):
        ClewSQLiteDatastore(path, create=False)
    Path(path).touch()
    with pytest.raises(StoreSchemaError, match="tables do not exist"):
        ClewSQLiteDatastore(path, create=False)


def test_reports_a_full_disk_and_continues_when_it_has_space(recorder: SQLiteRecorder) -> None:
    fill(recorder, "a", 3)
    connection = recorder.datastore.writing()
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages + 1}")
    small, large = event("b", 1, b"x"), event("a", 4, bytes(100_000))
    futures = [recorder.submit(Append([one])) for one in (large, small, large)]
    errors = [future.exception(PATIENCE) for future in futures]
    assert isinstance(errors[0], StoreUnavailableError)
    assert isinstance(errors[0], OperationalError)
    assert "disk is full" in str(errors[0])
    assert errors[1] is None
    assert isinstance(errors[2], StoreUnavailableError)
    connection.execute("PRAGMA max_page_count = 1000000")
    append(recorder, large)
    assert addresses(recorder.rows(after=0, limit=10))[-2:] == [("b", 1), ("a", 4)]


def test_opens_and_appends_if_the_length_of_the_emptied_log_cannot_be_stored(
    recorder: SQLiteRecorder, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(recorder, "a", 3)
    copied = str(tmp_path / "copy.db")
    for suffix in ("", "-wal"):
        shutil.copy(path + suffix, copied + suffix)
    other = sqlite3.connect(copied)  # without it, SQLite removes the log when Clew first looks at the file
    assert other.execute("SELECT count(*) FROM event").fetchone() == (3,)

    def refuse(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        copy = SQLiteRecorder.open(copied)
        assert copy.datastore._writer.checkpoints.purge_due
        fill(copy, "a", 4, start=4)
    copy.close()
    other.close()
    assert addresses(SQLiteRecorder.open(copied).own_rows("a", limit=10))[-1] == ("a", 4)


def test_reports_that_another_program_locks_the_database(path: str) -> None:
    recorder = SQLiteRecorder.open(path, lock_timeout=0.1)
    fill(recorder, "a", 1)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    error = failure(recorder, event("a", 2))
    assert isinstance(error, StoreUnavailableError)
    assert "locked" in str(error)
    other.execute("ROLLBACK")
    other.close()
    fill(recorder, "a", 2, start=2)
    recorder.close()


def test_reports_a_damaged_database(path: str) -> None:
    recorder = SQLiteRecorder.open(path)
    fill(recorder, "a", 200)
    recorder.close()
    content = bytearray(Path(path).read_bytes())
    content[4096:] = os.urandom(len(content) - 4096)
    Path(path).write_bytes(content)
    with pytest.raises(ClewError, match="damaged"):
        SQLiteRecorder.open(path).lineage("a")


def test_reads_a_circular_lineage_only_once(path: str) -> None:
    recorder = SQLiteRecorder.open(path)
    fill(recorder, "a", 3)
    append(recorder, event("f", 3), forks={"f": Fork("a", 2)})
    recorder.datastore.writing().execute("UPDATE stream SET parent = 2, cut = 2 WHERE name = 'a'")
    assert addresses(recorder.lineage("f")) == [("f", 3)]
    recorder.datastore.writing().execute("UPDATE stream SET parent = 1, cut = 1 WHERE name = 'a'")
    assert recorder.snapshot("f") is None
    recorder.close()


def test_finds_rows_without_a_stream(recorder: SQLiteRecorder) -> None:
    fill(recorder, "a", 2)
    fill(recorder, "b", 3)
    recorder.datastore.writing().execute("DELETE FROM stream WHERE name = 'b'")
    assert recorder.orphans(10) == [(2, 1), (2, 2), (2, 3)]
    assert recorder.orphans(2) == [(2, 1), (2, 2)]


def test_an_interrupted_wait_does_not_block_other_processes(path: str) -> None:
    recorder = SQLiteRecorder.open(path)
    other = FileLock(path + ".lock", PATIENCE)
    with other.held(), interrupt_when(), recorder.datastore.lock.held():
        pytest.fail("two processes had the lock")
    wait_until(lambda: not is_waiting_for_a_lock())
    take(other)
    fill(recorder, "a", 1)
    take(other)
    other.close()
    recorder.close()


# The write-ahead log


def test_limits_the_log_with_permanently_active_readers(path: str, scale: float) -> None:
    recorder = SQLiteRecorder.open(path, synchronous="OFF")
    stop = threading.Event()

    def read() -> None:
        after = 0
        while not stop.is_set():
            page = recorder.rows(after=after, limit=20)
            after = page[-1].position if page else 0

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    longest = 0
    state = os.urandom(32_768)
    try:
        for version in range(1, max(1500, round(10_000 * scale))):
            append(recorder, event("a", version, state))
            longest = max(longest, Path(path + "-wal").stat().st_size)
    finally:
        stop.set()
        for reader in readers:
            reader.join(PATIENCE)
    recorder.close()
    assert 0 < longest <= 64 * 1024 * 1024
    assert Path(path).stat().st_size > 40 * 1024 * 1024


def test_reads_a_deep_lineage_and_its_snapshot_in_one_query(recorder: SQLiteRecorder) -> None:
    fill(recorder, "s0", 2)
    futures = [
        recorder.submit(Append([event(f"s{depth}", depth + 2)], forks={f"s{depth}": Fork(f"s{depth - 1}", depth + 1)}))
        for depth in range(1, 1001)
    ]
    assert all(future.exception(PATIENCE) is None for future in futures)
    statements: list[str] = []
    with recorder.datastore.readers.reading() as connection:
        connection.set_trace_callback(statements.append)
    assert [row.version for row in recorder.lineage("s1000")] == list(range(1, 1003))
    assert len(statements) == 1
    assert recorder.snapshot("s1000") is None
    assert len(statements) == 2
