"""The SQLite file of projections: when it is damaged, deleted, or of another program."""

from __future__ import annotations

import contextlib
import gc
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.infrastructure.interruptions import Interruptions, signal_points
from tests.infrastructure.projection_contract import ProjectionContract
from tests.infrastructure.recorder_steps import PATIENCE, in_thread

from clew.conversations import Conversations
from clew.domain.errors import StoreSchemaError, StoreUnavailableError
from clew.domain.event_types import Status
from clew.domain.messages import Message
from clew.domain.projection import Query
from clew.infrastructure.projection_queries import Select, compile_query
from clew.infrastructure.projection_store import SqlTables
from clew.infrastructure.sqlite import file_lock, projection_store
from clew.infrastructure.sqlite.projection_store import SQLiteProjections
from clew.service.effects import read, run
from clew.types import ThreadOrder


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/clew.db?synchronous=OFF"


@pytest.fixture
def file(tmp_path: Path, url: str) -> Path:
    """The projection file of a log with one thread."""
    with Conversations.open(url) as conversations:
        conversations.start_thread("A title", messages=[Message.user(f"word{number}") for number in range(99)])
        conversations.wait()
    return tmp_path / "clew.db.projections"


def titles(url: str) -> list[str | None]:
    with Conversations.open(url) as conversations:
        assert len(conversations.search("word7")) == 1
        return [summary.title for summary in conversations.threads()]


@pytest.fixture
def plans(file: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[list[str]]]:
    """Return the query plans of the reads since the start."""
    queries: list[tuple[str, list[Any]]] = []

    def record(tables: SqlTables, query: Query) -> tuple[Select, list[Any]]:
        select, parameters = compile_query(tables, query)
        queries.append((select.sql, parameters))
        return select, parameters

    def explained() -> list[list[str]]:
        with closing(sqlite3.connect(file)) as connection:
            return [
                [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", values)] for sql, values in queries
            ]

    monkeypatch.setattr(projection_store, "compile_query", record)
    return explained


def test_a_search_reads_only_the_threads_that_it_shows(url: str, plans: Callable[[], list[list[str]]]) -> None:
    with Conversations.open(url) as conversations:
        assert len(conversations.search("word7")) == 1
    scans = [line for plan in plans() for line in plan if "_thread" in line]
    assert len(plans()) == 1
    assert len(scans) >= 2, "the query and its subquery"
    assert all(re.search(r"\(tenant=\? AND (thread_id|tree)=\?\)$", line) for line in scans), scans


@pytest.mark.parametrize("status", [None, "active"])
def test_a_list_by_label_in_order_of_change_reads_only_its_page(
    url: str, plans: Callable[[], list[list[str]]], monkeypatch: pytest.MonkeyPatch, status: Status | None
) -> None:
    monkeypatch.setattr("clew.service.thread_directory.FEW", 0)
    with Conversations.open(url) as conversations:
        for _ in range(3):
            conversations.start_thread("Labelled", labels={"topic": 1})
        newest = conversations.threads(labels={"topic": 1}, status=status, order="updated", newest_first=True, limit=2)
        assert [thread.title for thread in newest] == ["Labelled", "Labelled"]
    _, scan = plans()  # the first one counts the threads with the label
    assert re.search(r"_thread USING INDEX \w+ \(tenant=\?( AND status=\?)? AND updated_at<\?\)$", scan[0]), scan
    by_index = r"probed USING COVERING INDEX \w+ \(tenant=\? AND name=\? AND same=\? AND newest=\? AND begun=\?\)$"
    assert re.search(by_index, scan[2]), scan
    assert len(scan) == 3, scan


@pytest.mark.parametrize("order", ["updated", "begun"])
@pytest.mark.parametrize("status", [None, "active"])
def test_a_list_by_a_rare_label_looks_its_threads_up(
    url: str, plans: Callable[[], list[list[str]]], status: Status | None, order: ThreadOrder
) -> None:
    with Conversations.open(url) as conversations:
        for _ in range(3):
            conversations.start_thread("Labelled", labels={"topic": 1, "more": 1})
        labels = {"topic": 1, "more": 1}
        newest = conversations.threads(labels=labels, status=status, order=order, newest_first=True, limit=2)
        assert [thread.title for thread in newest] == ["Labelled", "Labelled"]
    _, places, rows = plans()  # the first one finds the threads
    assert re.search(r"_thread USING COVERING INDEX \w+ \(tenant=\? AND begun=\?\)$", places[0]), places
    assert re.search(r"_thread USING INDEX \w+ \(tenant=\? AND begun=\?\)$", rows[0]), rows


def test_forks_are_read_with_one_query(url: str, plans: Callable[[], list[list[str]]]) -> None:
    with Conversations.open(url) as conversations:
        thread = conversations.start_thread()
        forks = [thread.fork().id for _ in range(20)]
        list(conversations.threads(limit=1))
        before = len(plans())
        assert [fork.id for fork in thread.forks()] == forks
    (scan,) = plans()[before:]
    assert re.fullmatch(r"SEARCH \w+_thread USING INDEX \w+ \(tenant=\? AND parent_id=\?\)", "".join(scan)), scan


def test_creates_no_file_before_a_read_or_an_append(tmp_path: Path, url: str) -> None:
    with Conversations.open(url):
        pass
    assert not list(tmp_path.glob("clew.db.projections*"))


def test_reading_leaves_no_write_ahead_log(file: Path, url: str) -> None:
    files = sorted(each.name for each in file.parent.iterdir())
    for embedded in (True, False):
        with Conversations.open(url, embedded=embedded) as reading, Conversations.open(url) as other:
            assert list(reading.threads())
            assert list(other.threads())
            assert sorted(each.name for each in file.parent.iterdir()) != files
        assert sorted(each.name for each in file.parent.iterdir()) == files


def test_closes_an_in_memory_store_without_references() -> None:
    projections = SQLiteProjections(None)
    with projections.session(0):
        pass
    connection = projections._writing
    assert connection is not None
    del projections
    gc.collect()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")


def test_rebuilds_a_deleted_file(file: Path, url: str) -> None:
    file.unlink()
    assert titles(url) == ["A title"]
    assert file.exists()


def test_rebuilds_a_file_that_is_deleted_while_it_is_open(file: Path, url: str) -> None:
    with Conversations.open(url) as conversations, Conversations.open(url) as other:
        assert len(list(conversations.threads())) == len(list(other.threads())) == 1
        for each in file.parent.glob("clew.db.projections*"):
            if not each.name.endswith(".lock"):
                each.unlink()
        other.start_thread("Another")
        assert [thread.title for thread in other.threads()] == ["A title", "Another"]
        assert [thread.title for thread in conversations.threads()] == ["A title", "Another"]
        assert len(conversations.search("word7")) == len(other.search("word7")) == 1
    assert titles(url) == ["A title", "Another"]


def test_rebuilds_a_deleted_file_whose_write_ahead_log_remains(file: Path, url: str) -> None:
    file.unlink()
    Path(f"{file}-wal").write_bytes(b"left behind" * 1_000)
    assert titles(url) == ["A title"]


@pytest.mark.parametrize("content", [b"garbage" * 5_000, b"SQLite format 3\0" + b"\xff" * 5_000], ids=["any", "header"])
def test_rebuilds_a_file_that_is_not_a_database(file: Path, url: str, content: bytes) -> None:
    file.write_bytes(content)
    assert titles(url) == ["A title"]


@pytest.mark.parametrize("length", [0, 1, 60, 100, 4096])
def test_rebuilds_a_truncated_file_or_asks_to_delete_it(file: Path, url: str, length: int) -> None:
    with file.open("r+b") as opened:
        opened.truncate(length)
    try:
        assert titles(url) == ["A title"]
    except StoreUnavailableError as error:
        assert "Delete it" in str(error)  # noqa: PT017 - both outcomes are valid
        file.unlink()
        assert titles(url) == ["A title"]


def test_asks_to_delete_a_file_with_damaged_pages(file: Path, url: str) -> None:
    content = bytearray(file.read_bytes())
    content[4096:] = b"\x7f" * (len(content) - 4096)
    file.write_bytes(content)
    with pytest.raises(StoreUnavailableError, match=r"clew\.db\.projections: the file is damaged\. Delete it"):
        titles(url)
    file.unlink()
    assert titles(url) == ["A title"]


def test_does_not_change_another_programs_database(tmp_path: Path, url: str) -> None:
    path = tmp_path / "clew.db.projections"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE accounts (name)")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    with Conversations.open(url) as conversations:
        conversations.start_thread()
        with pytest.raises(StoreSchemaError, match="another program's"):
            list(conversations.threads())
    assert path.read_bytes() == before


def test_does_not_change_a_file_with_a_newer_schema(file: Path, url: str) -> None:
    connection = sqlite3.connect(file)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with Conversations.open(url) as conversations:
        conversations.start_thread()
        with pytest.raises(StoreSchemaError, match="a newer Clew made it"):
            list(conversations.threads())


def test_rebuilds_a_file_with_an_older_schema(file: Path, url: str) -> None:
    connection = sqlite3.connect(file)
    connection.execute("PRAGMA user_version = 0")
    connection.close()
    assert titles(url) == ["A title"]


def test_rebuilds_after_an_older_copy_of_the_log_was_restored(tmp_path: Path, url: str) -> None:
    log = tmp_path / "clew.db"
    with Conversations.open(url) as conversations:
        conversations.start_thread("First", messages=[Message.user("word7")])
    copy = log.read_bytes()
    with Conversations.open(url) as conversations:
        conversations.start_thread("Second")
        conversations.wait()
    log.write_bytes(copy)
    assert titles(url) == ["First"]
    log.write_bytes(copy)
    with Conversations.open(url, embedded=False) as conversations:
        conversations.start_thread("Third")
    assert titles(url) == ["First", "Third"]


class TestSQLiteProjections(ProjectionContract):
    @pytest.fixture(params=["memory", "file"])
    def store(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SQLiteProjections]:
        with closing(SQLiteProjections(None if request.param == "memory" else str(tmp_path / "store"))) as opened:
            yield opened


def test_reading_creates_no_file(tmp_path: Path) -> None:
    with closing(SQLiteProjections(str(tmp_path / "none"))) as store:
        assert store.generations() == []
        assert not (tmp_path / "none").exists()
        with store.session(0):
            pass
        assert (tmp_path / "none").exists()


def test_a_process_ends_while_a_thread_updates_an_in_memory_store() -> None:
    """The process does not close the store, because that would wait forever or crash."""
    busy = """
import threading
from clew.infrastructure.sqlite.projection_store import SQLiteProjections

store = SQLiteProjections(None)
connection = store._connect("rw")
started = threading.Event()
connection.create_function("started", 0, started.set)
endless = "WITH RECURSIVE n(i) AS (SELECT started() UNION ALL SELECT i FROM n) SELECT count(*) FROM n"
threading.Thread(target=connection.execute, args=(endless,), daemon=True).start()
started.wait()
"""
    subprocess.run([sys.executable, "-c", busy], check=True, timeout=PATIENCE)


@pytest.mark.parametrize("path", ["file", None])
def test_can_be_written_wherever_a_transaction_is_interrupted(tmp_path: Path, path: str | None) -> None:
    """Even while the traceback is kept, as an interactive program does."""
    name = None if path is None else str(tmp_path / path)
    points = Interruptions(signal_points(projection_store.__file__, file_lock.__file__, contextlib.__file__))
    written: list[SQLiteProjections] = []

    def write(store: SQLiteProjections) -> None:
        with store.session(0, unless=lambda: True):
            written.append(store)

    with closing(SQLiteProjections(name)) as store, closing(SQLiteProjections(name)) as other:
        while points.more:
            interruption = points.interrupt_next(lambda: run(read(partial(write, store))))
            write(other)
            in_thread(partial(write, store)).join(PATIENCE)
            assert written[-2:] == [other, store]
            del interruption
    assert points.count > 20


def test_a_second_close_does_the_rest_of_an_interrupted_one(tmp_path: Path) -> None:
    path = tmp_path / "clew.db.projections"
    points = Interruptions(signal_points(projection_store.__file__, file_lock.__file__))
    while points.more:
        store = SQLiteProjections(str(path))
        with store.session(0):
            pass
        points.interrupt_next(store.close)
        store.close()
        assert sorted(each.name for each in tmp_path.iterdir()) == [path.name, f"{path.name}.lock"]
        assert store._lock._fd is None
    assert points.count > 5
