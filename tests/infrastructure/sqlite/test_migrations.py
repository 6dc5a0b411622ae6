"""Migrations are atomic, hold the lock and can make a backup. The tests use those of releases and two invented ones."""

from __future__ import annotations

import fcntl
import sqlite3
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest

from clew import Conversations, Message, Record
from clew.domain.errors import StoreSchemaError, StoreUnavailableError, StoreUrlError
from clew.domain.event_index import CHECKPOINTS
from clew.infrastructure.sqlite import migrations as sqlite_migrations
from clew.infrastructure.sqlite import schema as sqlite_schema
from clew.infrastructure.stores import store_at

NOW = sqlite_schema.SCHEMA_VERSION
LATER = NOW + 2
STEPS = {
    NOW: ("ALTER TABLE stream ADD COLUMN note TEXT", "UPDATE stream SET note = 'old'"),
    NOW + 1: ("CREATE TABLE extra (a INTEGER)", "INSERT INTO extra VALUES (7)"),
}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A database with the current schema. With ``newer``, this schema is an old one."""
    path = tmp_path / "clew.db"
    with Conversations.open(f"sqlite:///{path}") as conversations:
        conversations.start_thread("Old", thread_id="old", messages=[Message.user("Hello")])
    return path


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that Clew has two more migrations."""
    monkeypatch.setattr(sqlite_schema, "SCHEMA_VERSION", LATER)
    monkeypatch.setattr(sqlite_schema, "MIGRATIONS", STEPS)


def rows(path: Path, sql: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def dump(path: Path) -> list[str]:
    """The complete contents of a database."""
    with closing(sqlite3.connect(path)) as connection:
        return [*connection.iterdump(), *map(str, connection.execute("PRAGMA user_version").fetchone())]


GOLDEN = Path(__file__).parents[2] / "golden"
EXPORTED = dict.fromkeys((1, 2, 3, 4, 5), "51d5f9ac6fbf9d805d89826b47a954262ed9b2b97378ebe242a40c5d06724d91")
"""For each schema, the SHA-256 of the golden database's exported events, from the version that created it."""


@pytest.fixture(params=sorted(EXPORTED))
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[int, Path]:
    """A schema, and a database that was created with it: with forks, redactions, a rewind, a key and a snapshot."""
    path = tmp_path / "golden.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript((GOLDEN / f"schema-{request.param}.sql").read_text())
    return request.param, path


def test_an_older_database_opens_only_after_a_migration(golden: tuple[int, Path]) -> None:
    schema, path = golden
    with pytest.raises(StoreSchemaError, match=rf"has schema {schema}, and this Clew knows.*`clew migrate`"):
        Conversations.open(f"sqlite:///{path}")
    assert store_at(f"sqlite:///{path}").migrate() == (schema, NOW)


def test_a_migrated_database_has_the_same_events_and_accepts_new_ones(golden: tuple[int, Path], tmp_path: Path) -> None:
    schema, path = golden
    copy = tmp_path / "copy.db"
    before = dump(path)
    store_at(f"sqlite:///{path}").migrate(backup=str(copy))
    assert dump(copy) == before
    with Conversations.open(f"sqlite:///{path}") as conversations:
        assert conversations.verify() == (6, 152, None)
        assert sha256(b"".join(conversations.export_events())).hexdigest() == EXPORTED[schema]
        assert [message.text for message in conversations.thread("twig").history()] == ["", "x", "No", "Well"]
        root, long = conversations.thread("root"), conversations.thread("long")
        assert [message.text for message in root.history(at="here")] == ["", "x"]
        assert root.append(Message.user("Thanks"), idempotency_key="k-1") == root.append(
            Message.user("Thanks"), idempotency_key="k-1"
        )
        long.append(Message.user("And on"))
        assert len(long.history().messages) == 132
        assert conversations.verify() == (6, 153, None)


def test_a_migrated_database_has_the_same_tables_as_a_new_one(golden: tuple[int, Path], old: Path) -> None:
    _, path = golden
    store_at(f"sqlite:///{path}").migrate()
    tables = "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name"
    assert rows(path, tables) == rows(old, tables)


def test_the_migration_to_schema_3_indexes_records_and_rewinds(tmp_path: Path) -> None:
    path = tmp_path / "clew.db"
    with Conversations.open(f"sqlite:///{path}") as conversations:
        thread = conversations.start_thread(thread_id="t")
        thread.append([Record("step", 1, key="main"), Record("step", 2, b"x" * 900, "other"), Record("long", "x")])
        thread.rewind(to=2)
        thread.append([Message.user("Hello"), Record("secret", "4711", key="4711")])
        thread.redact(7)
        thread.fork(at=3, thread_id="fork", then=Record("step", 3, key="main"))
        expected = {id_: conversations.thread(id_).records() for id_ in ("t", "fork")}
    entries = "SELECT * FROM entry ORDER BY stream, number, version"
    before = rows(path, entries)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "DROP TABLE entry; DROP TABLE fold_state; DROP TABLE record_blob; PRAGMA user_version = 2"
        )
    assert store_at(f"sqlite:///{path}").migrate() == (2, NOW)
    assert rows(path, entries) == before
    with Conversations.open(f"sqlite:///{path}") as conversations:
        assert {id_: conversations.thread(id_).records() for id_ in expected} == expected
        assert [each.data for each in conversations.thread("fork").records("step", key="main")] == [1, 3]


def test_the_migration_to_schema_5_indexes_checkpoints(tmp_path: Path) -> None:
    path = tmp_path / "clew.db"
    with Conversations.open(f"sqlite:///{path}") as conversations:
        thread = conversations.start_thread(thread_id="t")
        thread.append(Record("step", 1))
        for name in ("one", "secret"):
            thread.checkpoint(name)
        thread.redact(4)
        thread.fork(thread_id="fork").checkpoint("two")
    entries = "SELECT * FROM entry ORDER BY stream, number, version"
    before = rows(path, entries)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DELETE FROM entry WHERE number >= ?", (CHECKPOINTS,))
        connection.executescript("DROP TABLE record_blob; DROP INDEX entry_blob; PRAGMA user_version = 4")
        connection.commit()
    assert len(rows(path, entries)) == len(before) - 5
    assert store_at(f"sqlite:///{path}").migrate() == (4, NOW)
    assert rows(path, entries) == before
    with Conversations.open(f"sqlite:///{path}") as conversations:
        assert conversations.thread("fork").history(at="one").version == 2
        assert conversations.verify().first_bad is None


def test_a_current_database_needs_no_migration(old: Path, tmp_path: Path) -> None:
    before = dump(old)
    assert sqlite_migrations.migrate(str(old), backup=str(tmp_path / "copy")) == (NOW, NOW)
    assert dump(old) == before
    assert not (tmp_path / "copy").exists()


@pytest.mark.usefixtures("newer")
def test_applies_successive_migrations_and_keeps_the_events(old: Path) -> None:
    url = f"sqlite:///{old}"
    assert store_at(url).schemas() == (NOW, LATER)
    assert store_at(url).migrate() == (NOW, LATER)
    assert store_at(url).schemas() == (LATER, LATER)
    assert rows(old, "SELECT note FROM stream UNION ALL SELECT a FROM extra") == [("old",), (7,)]
    with Conversations.open(url) as conversations:
        thread = conversations.thread("old")
        thread.append(Message.user("And on"))
        assert [message.text for message in thread.history()] == ["Hello", "And on"]
        assert conversations.verify().first_bad is None


@pytest.mark.usefixtures("newer")
def test_the_error_of_an_older_database_says_how_to_migrate_it(old: Path) -> None:
    before = dump(old)
    for create in (True, False):
        with pytest.raises(
            StoreSchemaError, match=rf"has schema {NOW}, and this Clew knows schema {LATER}.*`clew migrate`"
        ):
            Conversations.open(f"sqlite:///{old}", create=create)
    assert dump(old) == before


def test_refuses_to_open_or_migrate_a_newer_database(old: Path) -> None:
    with closing(sqlite3.connect(old)) as connection:
        connection.execute(f"PRAGMA user_version = {LATER}")
    for use in (Conversations.open, lambda url: store_at(url).schemas(), lambda url: store_at(url).migrate()):
        with pytest.raises(
            StoreSchemaError, match=rf"has schema {LATER}, and this Clew knows schema {NOW}.*a newer one"
        ):
            use(f"sqlite:///{old}")


def test_refuses_a_schema_without_a_migration(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_schema, "SCHEMA_VERSION", LATER)
    monkeypatch.setattr(sqlite_schema, "MIGRATIONS", {NOW + 1: STEPS[NOW + 1]})
    with pytest.raises(StoreSchemaError, match=r"Open it with the Clew that made it\.$"):
        store_at(f"sqlite:///{old}").migrate()


@pytest.mark.parametrize("backup", [False, True])
def test_a_failed_migration_changes_nothing(
    old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, backup: bool
) -> None:
    before = dump(old)
    monkeypatch.setattr(sqlite_schema, "SCHEMA_VERSION", LATER)
    monkeypatch.setattr(
        sqlite_schema, "MIGRATIONS", {**STEPS, NOW + 1: (*STEPS[NOW + 1], "INSERT INTO missing VALUES (1)")}
    )
    with pytest.raises(StoreUnavailableError, match="missing"):
        sqlite_migrations.migrate(str(old), backup=str(tmp_path / "copy") if backup else None)
    assert dump(old) == before
    monkeypatch.undo()
    with Conversations.open(f"sqlite:///{old}") as conversations:
        assert conversations.verify().first_bad is None
        conversations.thread("old").append(Message.user("Hello"))


@pytest.mark.usefixtures("newer")
def test_the_backup_includes_the_write_ahead_log(old: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(old)) as connection:  # writes a row that is only in the log
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        with connection:
            connection.execute("INSERT INTO counter VALUES ('late', 5)")
        log = (tmp_path / "clew.db-wal").read_bytes()
    (tmp_path / "clew.db-wal").write_bytes(log)
    before = dump(old)
    copy = tmp_path / "copy.db"
    sqlite_migrations.migrate(str(old), backup=str(copy))
    assert dump(copy) == before
    assert any("late" in line for line in before)


@pytest.mark.usefixtures("newer")
def test_does_not_migrate_if_the_backup_fails(old: Path, tmp_path: Path) -> None:
    before = dump(old)
    (tmp_path / "existing").write_text("mine")
    for backup, why in (("existing", "there is a file already"), ("clew.db", "there is a file"), ("no/x", "folder")):
        with pytest.raises(StoreUnavailableError, match=why):
            sqlite_migrations.migrate(str(old), backup=str(tmp_path / backup))
    assert dump(old) == before
    assert (tmp_path / "existing").read_text() == "mine"


@pytest.mark.usefixtures("newer")
def test_removes_an_incomplete_backup(old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(sqlite3.Connection):
        def backup(self, *_: object, **__: object) -> None:
            raise sqlite3.OperationalError("disk is full")

    connect = sqlite3.connect
    monkeypatch.setattr(
        sqlite3, "connect", lambda *arguments, **options: connect(*arguments, **{"factory": Failing, **options})
    )
    with pytest.raises(StoreUnavailableError, match="disk is full"):
        sqlite_migrations.migrate(str(old), backup=str(tmp_path / "copy"))
    monkeypatch.undo()
    assert not (tmp_path / "copy").exists()
    assert sqlite_migrations.schemas(str(old)).found == NOW


@pytest.mark.usefixtures("newer")
def test_waits_for_the_lock_of_the_store_until_the_timeout(old: Path) -> None:
    before = dump(old)
    with Path(f"{old}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(StoreUnavailableError, match="another process has held the lock"):
            sqlite_migrations.migrate(str(old), lock_timeout=0.05)
        assert dump(old) == before
    assert sqlite_migrations.migrate(str(old), lock_timeout=0.05) == (NOW, LATER)


def test_refuses_while_another_program_has_the_store_open(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Conversations.open(f"sqlite:///{old}") as conversations:
        before = dump(old)
        with monkeypatch.context() as patch:
            patch.setattr(sqlite_schema, "SCHEMA_VERSION", LATER)
            patch.setattr(sqlite_schema, "MIGRATIONS", STEPS)
            with pytest.raises(StoreUnavailableError, match="another program has it open"):
                sqlite_migrations.migrate(str(old))
        assert dump(old) == before
        conversations.thread("old").append(Message.user("And on"))


def test_refuses_a_file_that_is_not_clews_database_and_creates_nothing(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "other.db")) as connection:
        connection.execute("CREATE TABLE t (a)")
    (tmp_path / "text").write_text("This is not a database.")
    (tmp_path / "empty.db").touch()
    before = sorted(tmp_path.iterdir())
    for name, error, why in (
        ("other.db", StoreSchemaError, "another program's"),
        ("text", StoreSchemaError, "not an SQLite database"),
        ("empty.db", StoreUnavailableError, "the file is empty"),
        ("missing.db", StoreUnavailableError, "the database does not exist"),
    ):
        with pytest.raises(error, match=why):
            sqlite_migrations.migrate(str(tmp_path / name))
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("memory:", "The store 'memory:' has no tables to migrate"),
        ("postgresql+shards://me:secret@host/db", "is a directory of shards, not a store"),
        ("mysql://me:secret@host/db", "does not name a store that Clew can open"),
        ("http://[", "does not name a store that Clew can open"),
        ("postgres", "does not name a store that Clew can open"),
    ],
)
def test_refuses_a_url_that_is_not_a_file_without_showing_secrets(url: str, why: str) -> None:
    with pytest.raises(StoreUrlError, match=why) as caught:
        store_at(url).migrate()
    assert "secret" not in str(caught.value)
