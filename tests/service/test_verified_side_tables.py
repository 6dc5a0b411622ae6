"""What `verify` finds next to the chain: idempotency keys, leases, drafts, triggers, and read models of another log."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import psycopg
import pytest

from clew import Conversations, Fold, Message, Record
from clew.domain.ports import IntegrityFault
from clew.service.doctor import examine

CARD = "4111-2222"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A closed store with keys, a fork and a redaction."""
    path = tmp_path / "clew.db"
    with Conversations.open(path) as conversations:
        thread = conversations.start_thread(thread_id="t")
        for number in range(3):
            messages = [Message.user(f"pay {number}"), Message.user("now")]
            thread.append(messages, idempotency_key=f"{CARD}-{number}")
        fork = thread.fork(thread_id="f")
        fork.append(Message.user("pay more"), idempotency_key=f"{CARD}-0")
        thread.redact(3)
        assert conversations.verify().first_bad is None
    return path


def changed(path: Path, *statements: str) -> IntegrityFault | None:
    """The fault after statements of another program."""
    with sqlite3.connect(path) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()
    with Conversations.open(path) as conversations:
        return conversations.verify().first_bad


def place(fault: IntegrityFault | None) -> tuple[str, int]:
    assert fault is not None
    assert fault.kind == "changed"
    return fault.thread_id, fault.version


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("DELETE FROM append_key", ("t", 2)),
        ("DELETE FROM append_key WHERE first = (SELECT max(first) FROM append_key)", ("f", 9)),
        ("UPDATE append_key SET key = x'00' WHERE first = 4", ("t", 4)),
        ("UPDATE append_key SET first = first + 1000, last = last + 1000", ("t", 2)),
        ("UPDATE append_key SET digest = NULL", ("t", 4)),
        ("UPDATE append_key SET digest = NULL WHERE first = 6", ("t", 6)),
        ("UPDATE append_key SET stream = stream + 5", ("t", 2)),
        ("UPDATE append_key SET last = last - 1 WHERE first = 4", ("t", 4)),
        ("UPDATE append_key SET last = last + 1 WHERE first = 6", ("t", 6)),
        ("UPDATE append_key SET first = first - 1 WHERE first = 6", ("t", 6)),
        ("INSERT INTO append_key VALUES (7, 7, 1, randomblob(32), randomblob(16), randomblob(32))", ("t", 0)),
    ],
)
def test_finds_a_key_that_was_removed_or_changed(path: Path, statement: str, expected: tuple[str, int]) -> None:
    fault = changed(path, statement)
    assert place(fault) == expected
    assert fault is not None
    assert "idempotency key" in fault.reason
    assert CARD not in fault.reason


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("DELETE FROM entry", ("t", 9)),
        ("DELETE FROM entry WHERE number = 0", ("t", 13)),
        ("DELETE FROM entry WHERE version = 11 AND number > 1", ("t", 11)),
        ("UPDATE entry SET version = 2 WHERE version = 10 AND number = 1", ("t", 10)),
        ("DELETE FROM entry WHERE stream = (SELECT max(stream) FROM entry)", ("g", 13)),
        ("DELETE FROM entry WHERE number = 65538", ("t", 14)),
        ("DELETE FROM entry WHERE version = 14 AND number > 65538", ("t", 14)),
    ],
)
def test_finds_what_the_index_lacks(path: Path, statement: str, expected: tuple[str, int]) -> None:
    with Conversations.open(path) as conversations:
        thread = conversations.thread("t")
        assert thread.version == 8
        records = thread.append([Record("step", 1, key=CARD), Record("step", 2), Record("step", 3, key=CARD)])
        thread.redact(records[0])
        thread.fork(at=11, thread_id="g").rewind(to=10)
        thread.rewind(to=9)
        thread.checkpoint("here")
        assert conversations.verify().first_bad is None
    fault = changed(path, statement)
    assert place(fault) == expected
    assert fault is not None
    assert fault.reason == "the index lacks it"


def test_a_key_that_is_missing_in_a_copy_of_the_events_is_not_a_fault(path: Path, url: str) -> None:
    with Conversations.open(path) as conversations:
        exported = b"".join(conversations.export_events())
    with Conversations.open(url.replace("clew.db", "copy.db")) as copy:
        copy.import_events(BytesIO(exported))
        assert copy.verify().first_bad is None
        copy.thread("t").append(Message.user("later"), idempotency_key="new")
        assert copy.verify().first_bad is None


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("INSERT INTO lease VALUES (1, 'x', 9223372036854775807)", ("t", 0)),
        ("INSERT INTO lease VALUES (99, 'x/1', 1)", ("#99", 0)),
        ("INSERT INTO draft VALUES (1, 'x', zeroblob(10), 'junk')", ("t", 0)),
        (
            "CREATE TRIGGER evil AFTER INSERT ON event BEGIN UPDATE event SET type = 'x' WHERE position = 2; END",
            ("#trigger:evil", 0),
        ),
        ("DROP INDEX event_stream_version", ("#index:event_stream_version", 0)),
        ("DROP INDEX append_key_stream_key", ("#index:append_key_stream_key", 0)),
    ],
)
def test_finds_what_is_not_of_clew(path: Path, statement: str, expected: tuple[str, int]) -> None:
    assert place(changed(path, statement)) == expected


VALUES = ["'x'", "x'ff00'", "NULL", "1.5"]


def test_a_value_of_another_type_in_a_table_raises_no_error_of_python(path: Path, tmp_path: Path) -> None:
    with Conversations.open(path) as conversations:
        thread = conversations.thread("t")
        thread.append([Record("step", 1, key="k", blob=bytes(3_000)), *[Message.user("many")] * 150])
        thread.fork(thread_id="g").append(Message.user("more"))
        thread.fold(Fold("count", 1, 0, lambda count, _: count + 1, state_type=int))
    with sqlite3.connect(path) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        columns = [
            (table, row[1])
            for table in tables
            if table not in {"tracking", "sqlite_sequence"}
            for row in connection.execute(f"PRAGMA table_info({table})")
        ]
    connection.close()
    faults: dict[tuple[str, str, str], IntegrityFault | None] = {}
    copy = tmp_path / "copy.db"
    for table, column in columns:
        for value in VALUES:
            shutil.copy(path, copy)
            with sqlite3.connect(copy, isolation_level=None) as connection, suppress(sqlite3.Error):
                connection.execute(f"UPDATE {table} SET {column} = {value}")  # noqa: S608 - of its own tables
                with Conversations.open(copy) as conversations:
                    faults[table, column, value] = conversations.verify().first_bad
            connection.close()
    found = {
        (table, column) for (table, column, value), fault in faults.items() if value == "'x'" and fault is not None
    }
    assert found >= {("append_key", "last"), ("snapshot", "state"), ("counter", "value"), ("record_blob", "data")}
    assert str(faults["counter", "value", "'x'"]).startswith("IntegrityFault(thread_id='#counter:")
    assert len(faults) > 60


def test_finds_a_key_that_was_removed_on_a_server(postgres: str) -> None:
    def fault(statement: str, *parameters: Any) -> IntegrityFault | None:
        with psycopg.connect(postgres) as connection:
            connection.execute(statement, parameters)
        with Conversations.open(postgres) as conversations:
            return conversations.verify().first_bad

    with Conversations.open(postgres) as conversations:
        thread = conversations.start_thread(thread_id="t")
        thread.append(Message.user("pay"), idempotency_key=CARD)
        assert conversations.verify().first_bad is None
        with conversations.batch(idempotency_key="several") as batch:
            batch.append(thread, [Message.user("a"), Message.user("b")])
            batch.append(conversations.start_thread(thread_id="u"), Message.user("c"))
        assert conversations.verify().first_bad is None
    assert place(fault("UPDATE clew_key SET last = last + 1")) == ("t", 2)
    assert place(fault("UPDATE clew_key SET last = last - 1, digest = NULL")) == ("t", 2)
    assert place(fault("DELETE FROM clew_key")) == ("t", 2)


@pytest.fixture
def rolled_back(tmp_path: Path) -> str:
    """A store in whose place an older copy was put, with the read models of the newer one."""
    path, old = tmp_path / "clew.db", tmp_path / "old"
    with Conversations.open(path) as conversations:
        conversations.start_thread(thread_id="t", messages=[Message.user("one")])
        conversations.search("one")
    shutil.copy(path, old)
    with Conversations.open(path) as conversations:
        conversations.thread("t").append(Message.user("two"))
        assert conversations.search("two")
    shutil.copy(old, path)
    return f"sqlite:///{path}"


def alarms(url: str) -> list[str]:
    return [each.name for each in examine(url, tenant="default") if each.state == "failed"]


@pytest.mark.parametrize("is_read", [False, True])
def test_an_older_copy_of_the_log_is_an_alarm(rolled_back: str, *, is_read: bool) -> None:
    with Conversations.open(rolled_back) as conversations:
        if is_read:
            assert not conversations.search("two")
        fault = conversations.verify().first_bad
        name, version = place(fault)
        assert (name.startswith("#projection:"), version) == (True, 0)
        assert fault is not None
        assert "filled from another log, up to position 3" in fault.reason
    with Conversations.open(rolled_back) as conversations:
        assert conversations.search("one")
        assert conversations.verify().first_bad is not None
    assert "projection search" in alarms(rolled_back)


def test_a_rebuild_ends_the_alarm(rolled_back: str) -> None:
    with Conversations.open(rolled_back) as conversations:
        for status in conversations.projections():
            conversations.rebuild(status.name)
        assert conversations.verify().first_bad is None
    assert alarms(rolled_back) == []
