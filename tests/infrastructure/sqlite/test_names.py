"""Names for tab completion: found at a glance, and without a trace."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from clew import Conversations
from clew.infrastructure.sqlite.names import checkpoint_names, scope_names, thread_ids


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "clew.db")


def state(folder: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in folder.iterdir()}


def test_finds_the_threads_of_a_tenant_that_begin_so(path: str) -> None:
    ids = ["ab", "abc", "abd", "b", "a/b", "ä", "ab%"]
    with Conversations.open(f"sqlite:///{path}") as conversations:
        for id_ in ids:
            conversations.start_thread(thread_id=id_)
    with Conversations.open(f"sqlite:///{path}", tenant="other") as conversations:
        conversations.start_thread(thread_id="abx")
    assert sorted(thread_ids(path, "default", "", 50)) == sorted(ids)
    assert thread_ids(path, "default", "ab", 50) == ["ab", "ab%", "abc", "abd"]
    assert thread_ids(path, "default", "ab", 2) == ["ab", "ab%"]
    assert thread_ids(path, "default", "ä", 50) == ["ä"]
    assert thread_ids(path, "other", "", 50) == ["abx"]
    assert thread_ids(path, "default", "x", 50) == []


def test_finds_the_memory_scopes_of_a_tenant_that_begin_so(path: str) -> None:
    with Conversations.open(f"sqlite:///{path}") as conversations:
        conversations.start_thread(thread_id="user/1")
        for name in ("user/42", "user/7", "group/g1", "user/\x1b[2J"):
            conversations.memory(name).remember("x")
    with Conversations.open(f"sqlite:///{path}", tenant="other") as conversations:
        conversations.memory("user/43").remember("x")
    assert scope_names(path, "default", "", 50) == ["group/g1", "user/42", "user/7"]
    assert scope_names(path, "default", "user/4", 50) == ["user/42"]
    assert scope_names(path, "default", "user/", 2) == ["user/42"]  # the other is not to be typed
    assert scope_names(path, "other", "", 50) == ["user/43"]
    assert thread_ids(path, "default", "", 50) == ["user/1"]


def test_leaves_out_what_cannot_be_typed_on_one_line(path: str) -> None:
    with Conversations.open(f"sqlite:///{path}") as conversations:
        for id_ in ("a\nb", "\x1b[2J", "a\u202eb", "plain and simple"):
            conversations.start_thread(thread_id=id_)
    assert thread_ids(path, "default", "", 50) == ["plain and simple"]


def test_finds_the_checkpoints_along_the_lineage_the_newest_first(path: str) -> None:
    with Conversations.open(f"sqlite:///{path}") as conversations:
        root = conversations.start_thread(thread_id="root")
        root.checkpoint("first")
        root.checkpoint("second one")
        fork = root.fork(at=2, thread_id="fork")
        root.checkpoint("after the cut")
        fork.checkpoint("own")
    assert checkpoint_names(path, "default", "root", "", 50) == ["after the cut", "second one", "first"]
    assert checkpoint_names(path, "default", "fork", "", 50) == ["own", "first"]
    assert checkpoint_names(path, "default", "f", "fi", 50) == ["first"]
    assert checkpoint_names(path, "default", "root", "", 1) == ["after the cut"]
    assert checkpoint_names(path, "default", "", "", 50) == []  # which thread?
    assert checkpoint_names(path, "default", "nobody", "", 50) == []


def test_an_id_that_is_also_the_beginning_of_another_is_that_thread(path: str) -> None:
    with Conversations.open(f"sqlite:///{path}") as conversations:
        conversations.start_thread(thread_id="a").checkpoint("short")
        conversations.start_thread(thread_id="ab").checkpoint("long")
    assert checkpoint_names(path, "default", "a", "", 50) == ["short"]


def test_looks_without_a_trace_when_nobody_has_the_store_open(path: str, tmp_path: Path) -> None:
    with Conversations.open(f"sqlite:///{path}") as conversations:
        conversations.start_thread(thread_id="a").checkpoint("name")
    before = state(tmp_path)
    assert thread_ids(path, "default", "", 50) == ["a"]
    assert checkpoint_names(path, "default", "a", "", 50) == ["name"]
    assert state(tmp_path) == before


def test_sees_what_is_only_in_the_log_while_another_has_the_store_open(path: str) -> None:
    with Conversations.open(f"sqlite:///{path}") as conversations:
        conversations.start_thread(thread_id="a")
        assert thread_ids(path, "default", "", 50) == ["a"]


def test_a_store_that_is_not_there_is_an_error_and_is_not_made(path: str, tmp_path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError):
        thread_ids(path, "default", "", 50)
    assert list(tmp_path.iterdir()) == []
