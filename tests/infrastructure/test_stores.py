from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from clew.conversations import Conversations
from clew.domain.errors import StoreError, StoreUnavailableError, StoreUrlError
from clew.infrastructure.stores import store_at


def test_every_memory_store_has_a_separate_log() -> None:
    first, second = store_at("memory:").open_log(), store_at("memory:").open_log()
    try:
        assert first.last_position() == second.last_position() == 0
        assert first.recorder is not second.recorder
    finally:
        first.close()
        second.close()


def test_three_slashes_are_relative_and_four_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Conversations.open("sqlite:///near.db") as conversations:
        conversations.start_thread(thread_id="a")
    assert (tmp_path / "near.db").is_file()
    with Conversations.open(f"sqlite:///{tmp_path}/near.db") as conversations:
        assert conversations.thread("a").version == 1
    with Conversations.open("sqlite:///./near.db") as conversations:
        assert conversations.thread("a").version == 1


def test_a_plain_path_is_a_sqlite_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("near.db", "./a b%20c.db", f"{tmp_path}/far.db", Path("here.db"), Path("no ending?")):
        store_at(path).open_log().close()
    assert databases(tmp_path) == {"near.db", "a b%20c.db", "far.db", "here.db", "no ending?"}


@pytest.mark.parametrize("name", ["foo", "a b", "a#b.db", "a?b.db", "[a", "\N{SNOWMAN}", os.fsdecode(b"\xff.db")])
def test_a_name_that_cannot_be_a_url_is_a_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path, threads in ((name, 1), (Path(name), 2)):
        with Conversations.open(path) as conversations:
            conversations.start_thread()
            assert len(list(conversations.threads())) == threads
    assert databases(tmp_path) == {name, f"{name}.projections"}


@pytest.mark.parametrize("name", ["my:file.db", "a=b", "memory", "a//b.db"])
def test_a_name_that_can_be_a_url_is_a_file_after_a_dot_and_a_slash(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    with pytest.raises(StoreUrlError, match=r"\./file"):
        store_at(name)
    store_at(f"./{name}").open_log().close()
    assert Path(name).is_file()


def databases(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir() if not each.name.endswith((".lock", "-wal", "-shm"))}


def test_additional_slashes_before_an_absolute_path_are_ignored(tmp_path: Path) -> None:
    store_at(f"sqlite://///{tmp_path}/a.db").open_log().close()
    assert (tmp_path / "a.db").is_file()


@pytest.mark.parametrize(("written", "name"), [("a%20b.db", "a b.db"), ("%C3%BC.db", "ü.db"), ("a%3Fb.db", "a?b.db")])
def test_decodes_percent_escapes(tmp_path: Path, written: str, name: str) -> None:
    store_at(f"sqlite:///{tmp_path}/{written}").open_log().close()
    assert (tmp_path / name).is_file()


@pytest.mark.parametrize(
    ("query", "level"),
    [("", 2), ("?synchronous=FULL", 2), ("?synchronous=normal", 1), ("?synchronous=OFF", 0)],
)
def test_the_url_selects_the_durability(tmp_path: Path, query: str, level: int) -> None:
    log = store_at(f"sqlite:///{tmp_path}/a.db{query}").open_log()
    try:
        datastore: Any = log.recorder.datastore  # type: ignore[attr-defined]  # of a SQLite store
        assert datastore.writing().execute("PRAGMA synchronous").fetchone()[0] == level
    finally:
        log.close()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "clew.db?synchronous=OFF",
        "postgres//host/database",
        "host=clew.db password=x",
        "sqlite:",
        "sqlite://",
        "sqlite:///",
        "sqlite:////",
        "sqlite:clew.db",
        "sqlite://clew.db",
        "sqlite://host/clew.db",
        "sqlite:///clew.db#part",
        "sqlite:///clew.db?synchronous=MAYBE",
        "sqlite:///clew.db?synchronous=",
        "sqlite:///clew.db?mode=rwc",
        "sqlite:///clew%00.db",
        "sqlite:///:memory:",
        "sqlite://[clew.db",
        "memory://",
        "memory:x",
        "memory",
        "Postgres",
        "postgres:/x",
        "host = clew.db",
        "./clew.db?synchronous=OFF",
        "1://host/db",
        "clew\ud800.db",
        Path("clew\ud800.db"),
        "postgresql://[",
        "mysql://host/db",
        "http://[::1",
        None,
        7,
        b"memory:",
        b"clew.db",
    ],
    ids=range(35),
)
def test_refuses_an_invalid_url_in_one_line(url: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreUrlError) as caught:
        store_at(url).open_log()
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "url",
    [
        "mysql://ann:secret@host/db",
        "mysql://ann:se@secret@host/db?token=secret",
        "mysql://ann:secret?x@host/db",
        "mysql://ann:s@secret?x@host/db",
        "mysql:ann:secret@host/db",
        "sqlite://ann:secret@host/clew.db",
        "sqlite:///clew.db?password=secret",
        "nonsense://ann:secret@[/db",
    ],
)
def test_an_error_shows_no_password(url: str) -> None:
    with pytest.raises(StoreUrlError) as caught:
        store_at(url).open_log()
    assert "secret" not in str(caught.value)


def test_a_missing_folder_is_unavailable_and_not_created(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError):
        store_at(f"sqlite:///{tmp_path}/missing/clew.db").open_log()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_not_a_database(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        store_at(f"sqlite:///{tmp_path}").open_log()


@pytest.mark.parametrize("name", ["new.db", "missing/new.db", "file.txt/new.db"])
def test_without_create_a_missing_database_is_unavailable_and_not_created(tmp_path: Path, name: str) -> None:
    (tmp_path / "file.txt").touch()
    with pytest.raises(StoreUnavailableError, match="the database does not exist"):
        store_at(f"sqlite:///{tmp_path}/{name}").open_log(create=False)
    assert [each.name for each in tmp_path.iterdir()] == ["file.txt"]


def test_without_create_an_empty_file_is_unavailable_and_stays_empty(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    with pytest.raises(StoreUnavailableError, match="the file is empty"):
        store_at(f"sqlite:///{tmp_path}/empty.db").open_log(create=False)
    assert [(each.name, each.stat().st_size) for each in tmp_path.iterdir()] == [("empty.db", 0)]


def test_without_create_a_too_long_name_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match="too long"):
        store_at(f"sqlite:///{tmp_path}/{'x' * 10_000}.db").open_log(create=False)


def test_without_create_an_invalid_url_is_still_an_invalid_url(tmp_path: Path) -> None:
    for url in ("sqlite://", "mysql://host/db", f"sqlite:///{tmp_path}/new.db?mode=rwc"):
        with pytest.raises(StoreUrlError):
            store_at(url).open_log(create=False)
    assert list(tmp_path.iterdir()) == []


def test_without_create_an_existing_store_and_memory_can_be_opened(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    Conversations.open(url).close()
    for each in (url, "memory:"):
        with Conversations.open(each, create=False) as conversations:
            assert list(conversations.threads()) == []
            assert conversations.start_thread(thread_id="a").version == 1


def test_the_name_of_a_store_includes_a_server_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert store_at("postgresql:///d").name == "postgresql://localhost:5432/d"
    monkeypatch.setenv("PGHOST", "db")
    monkeypatch.setenv("PGPORT", "6432")
    assert store_at("postgresql://u@/d").name == "postgresql://db:6432/d"
    assert store_at("postgresql://u@other:1/d").name == "postgresql://other:1/d"
