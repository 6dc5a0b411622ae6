"""Migrations: all the way or not at all, under the lock, with a copy; those of releases, and two that are made up."""

from __future__ import annotations

import fcntl
import sqlite3
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest

from clew import Conversations, Message
from clew.domain.errors import StoreSchemaError, StoreUnavailableError, StoreUrlError
from clew.infrastructure.sqlite import migrations as sqlite_migrations
from clew.infrastructure.sqlite import schema as sqlite_schema
from clew.infrastructure.stores import store_at

NOW = sqlite_schema.SCHEMA_VERSION
THEN = NOW + 2
STEPS = {
    NOW: ("ALTER TABLE stream ADD COLUMN note TEXT", "UPDATE stream SET note = 'old'"),
    NOW + 1: ("CREATE TABLE extra (a INTEGER)", "INSERT INTO extra VALUES (7)"),
}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A database with the present schema, which is to be an old one."""
    path = tmp_path / "clew.db"
    with Conversations.open(f"sqlite:///{path}") as conversations:
        conversations.start_thread("Old", thread_id="old", messages=[Message.user("Hello")])
    return path


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Clew that knows the schema after the next."""
    monkeypatch.setattr(sqlite_schema, "SCHEMA_VERSION", THEN)
    monkeypatch.setattr(sqlite_schema, "MIGRATIONS", STEPS)


def rows(path: Path, sql: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def dump(path: Path) -> list[str]:
    """All that is in a database."""
    with closing(sqlite3.connect(path)) as connection:
        return [*connection.iterdump(), *map(str, connection.execute("PRAGMA user_version").fetchone())]


GOLDEN = Path(__file__).parents[2] / "golden"
EXPORTED = {1: "51d5f9ac6fbf9d805d89826b47a954262ed9b2b97378ebe242a40c5d06724d91"}
"""By schema, the SHA-256 of all events of its golden database, as exported by the Clew that made it."""


@pytest.fixture(params=sorted(EXPORTED))
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[int, Path]:
    """A schema, and a database that a Clew of that schema has made: forks, redactions, a rewind, a key, a snapshot."""
    path = tmp_path / "golden.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript((GOLDEN / f"schema-{request.param}.sql").read_text())
    return request.param, path


def test_a_database_of_an_older_clew_is_opened_only_when_it_was_migrated(golden: tuple[int, Path]) -> None:
    schema, path = golden
    with pytest.raises(StoreSchemaError, match=rf"has schema {schema}, and this Clew knows.*`clew migrate`"):
        Conversations.open(f"sqlite:///{path}")
    assert store_at(f"sqlite:///{path}").migrate() == (schema, NOW)


def test_a_database_of_an_older_clew_reads_as_it_did_and_goes_on(golden: tuple[int, Path], tmp_path: Path) -> None:
    schema, path = golden
    copy = tmp_path / "copy.db"
    before = dump(path)
    store_at(f"sqlite:///{path}").migrate(backup=str(copy))
    assert dump(copy) == before
    with Conversations.open(f"sqlite:///{path}") as conversations:
        assert conversations.verify() == (6, 152, None)
        assert sha256(b"".join(conversations.export_events())).hexdigest() == EXPORTED[schema]
        assert [said.text for said in conversations.thread("twig").history()] == ["", "x", "No", "Well"]
        root, long = conversations.thread("root"), conversations.thread("long")
        assert [said.text for said in root.history(at="here")] == ["", "x"]
        assert root.append(Message.user("Thanks"), idempotency_key="k-1") == root.append(
            Message.user("Thanks"), idempotency_key="k-1"
        )
        long.append(Message.user("And on"))
        assert len(long.history().messages) == 132
        assert conversations.verify() == (6, 153, None)


def test_a_migrated_database_has_the_tables_of_a_new_one(golden: tuple[int, Path], old: Path) -> None:
    _, path = golden
    store_at(f"sqlite:///{path}").migrate()
    tables = "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name"
    assert rows(path, tables) == rows(old, tables)


def test_there_is_nothing_to_migrate_in_a_present_database(old: Path, tmp_path: Path) -> None:
    before = dump(old)
    assert sqlite_migrations.migrate(str(old), backup=str(tmp_path / "copy")) == (NOW, NOW)
    assert dump(old) == before
    assert not (tmp_path / "copy").exists()


@pytest.mark.usefixtures("newer")
def test_leads_from_schema_to_schema_and_the_store_is_as_it_was(old: Path) -> None:
    url = f"sqlite:///{old}"
    assert store_at(url).schemas() == (NOW, THEN)
    assert store_at(url).migrate() == (NOW, THEN)
    assert store_at(url).schemas() == (THEN, THEN)
    assert rows(old, "SELECT note FROM stream UNION ALL SELECT a FROM extra") == [("old",), (7,)]
    with Conversations.open(url) as conversations:
        thread = conversations.thread("old")
        thread.append(Message.user("And on"))
        assert [said.text for said in thread.history()] == ["Hello", "And on"]
        assert conversations.verify().first_bad is None


@pytest.mark.usefixtures("newer")
def test_an_older_database_is_not_opened_and_the_error_says_what_to_do(old: Path) -> None:
    before = dump(old)
    for create in (True, False):
        with pytest.raises(
            StoreSchemaError, match=rf"has schema {NOW}, and this Clew knows schema {THEN}.*`clew migrate`"
        ):
            Conversations.open(f"sqlite:///{old}", create=create)
    assert dump(old) == before


def test_a_newer_database_is_neither_opened_nor_migrated(old: Path) -> None:
    with closing(sqlite3.connect(old)) as connection:
        connection.execute(f"PRAGMA user_version = {THEN}")
    for refused in (Conversations.open, lambda url: store_at(url).schemas(), lambda url: store_at(url).migrate()):
        with pytest.raises(
            StoreSchemaError, match=rf"has schema {THEN}, and this Clew knows schema {NOW}.*a newer one"
        ):
            refused(f"sqlite:///{old}")


def test_a_schema_that_no_migration_begins_with_is_refused(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_schema, "SCHEMA_VERSION", THEN)
    monkeypatch.setattr(sqlite_schema, "MIGRATIONS", {NOW + 1: STEPS[NOW + 1]})
    with pytest.raises(StoreSchemaError, match=r"Open it with the Clew that made it\.$"):
        store_at(f"sqlite:///{old}").migrate()


@pytest.mark.parametrize("backup", [False, True])
def test_a_migration_that_fails_leaves_everything_as_it_was(
    old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, backup: bool
) -> None:
    before = dump(old)
    monkeypatch.setattr(sqlite_schema, "SCHEMA_VERSION", THEN)
    monkeypatch.setattr(
        sqlite_schema, "MIGRATIONS", {**STEPS, NOW + 1: (*STEPS[NOW + 1], "INSERT INTO nowhere VALUES (1)")}
    )
    with pytest.raises(StoreUnavailableError, match="nowhere"):
        sqlite_migrations.migrate(str(old), backup=str(tmp_path / "copy") if backup else None)
    assert dump(old) == before
    monkeypatch.undo()
    with Conversations.open(f"sqlite:///{old}") as conversations:
        assert conversations.verify().first_bad is None
        conversations.thread("old").append(Message.user("Hello"))


@pytest.mark.usefixtures("newer")
def test_the_copy_is_the_database_as_it_was_its_log_included(old: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(old)) as left:  # what is only in the log is part of it
        left.execute("PRAGMA journal_mode = WAL")
        left.execute("PRAGMA wal_autocheckpoint = 0")
        with left:
            left.execute("INSERT INTO counter VALUES ('late', 5)")
        log = (tmp_path / "clew.db-wal").read_bytes()
    (tmp_path / "clew.db-wal").write_bytes(log)
    before = dump(old)
    copy = tmp_path / "copy.db"
    sqlite_migrations.migrate(str(old), backup=str(copy))
    assert dump(copy) == before
    assert any("late" in line for line in before)


@pytest.mark.usefixtures("newer")
def test_a_copy_that_cannot_be_made_stops_the_migration(old: Path, tmp_path: Path) -> None:
    before = dump(old)
    (tmp_path / "there").write_text("mine")
    for backup, why in (("there", "there is a file already"), ("clew.db", "there is a file"), ("no/x", "folder")):
        with pytest.raises(StoreUnavailableError, match=why):
            sqlite_migrations.migrate(str(old), backup=str(tmp_path / backup))
    assert dump(old) == before
    assert (tmp_path / "there").read_text() == "mine"


@pytest.mark.usefixtures("newer")
def test_half_a_copy_does_not_stay(old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(sqlite3.Connection):
        def backup(self, *_: object, **__: object) -> None:
            raise sqlite3.OperationalError("disk is full")

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *given, **named: connect(*given, **named, factory=Failing))
    with pytest.raises(StoreUnavailableError, match="disk is full"):
        sqlite_migrations.migrate(str(old), backup=str(tmp_path / "copy"))
    monkeypatch.undo()
    assert not (tmp_path / "copy").exists()
    assert sqlite_migrations.schemas(str(old)).found == NOW


@pytest.mark.usefixtures("newer")
def test_waits_for_the_lock_of_the_store_and_gives_up_in_time(old: Path) -> None:
    before = dump(old)
    with Path(f"{old}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(StoreUnavailableError, match="another process has held the lock"):
            sqlite_migrations.migrate(str(old), lock_timeout=0.05)
        assert dump(old) == before
    assert sqlite_migrations.migrate(str(old), lock_timeout=0.05) == (NOW, THEN)


def test_refuses_while_another_program_has_the_store_open(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Conversations.open(f"sqlite:///{old}") as conversations:
        before = dump(old)
        with monkeypatch.context() as patch:
            patch.setattr(sqlite_schema, "SCHEMA_VERSION", THEN)
            patch.setattr(sqlite_schema, "MIGRATIONS", STEPS)
            with pytest.raises(StoreUnavailableError, match="another program has it open"):
                sqlite_migrations.migrate(str(old))
        assert dump(old) == before
        conversations.thread("old").append(Message.user("And on"))


def test_refuses_what_is_no_database_of_clews_and_makes_nothing(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "other.db")) as connection:
        connection.execute("CREATE TABLE t (a)")
    (tmp_path / "text").write_text("This is no database.")
    (tmp_path / "empty.db").touch()
    there = sorted(tmp_path.iterdir())
    for name, error, why in (
        ("other.db", StoreSchemaError, "another program's"),
        ("text", StoreSchemaError, "not an SQLite database"),
        ("empty.db", StoreUnavailableError, "the file is empty"),
        ("missing.db", StoreUnavailableError, "the database does not exist"),
    ):
        with pytest.raises(error, match=why):
            sqlite_migrations.migrate(str(tmp_path / name))
    assert sorted(tmp_path.iterdir()) == there


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("memory:", "The store 'memory:' has no tables to migrate"),
        ("postgresql+shards://me:secret@host/db", "is a directory of shards, not a store"),
        ("mysql://me:secret@host/db", "does not name a store that Clew can open"),
        ("http://[", "does not name a store that Clew can open"),
        ("clew", "does not name a store that Clew can open"),
    ],
)
def test_a_url_of_no_file_is_refused_and_keeps_its_secrets(url: str, why: str) -> None:
    with pytest.raises(StoreUrlError, match=why) as found:
        store_at(url).migrate()
    assert "secret" not in str(found.value)
