"""Several processes, some of them killed, fill the projections: each event counts once."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import time
from pathlib import Path

import pytest
from tests.infrastructure.recorder_steps import in_forked_child
from tests.service.projection_contents import (
    CANARY,
    History,
    batches_of,
    canary_remains,
    contents,
    made,
    projector,
    rebuild,
)

from clew.conversations import Conversations
from clew.domain.messages import Message
from clew.domain.projection import Words
from clew.infrastructure.sqlite.projection_store import SQLiteProjections
from clew.infrastructure.stores import store_at
from clew.projections import SHIPPED


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "clew.db")


def url(path: str) -> str:
    return f"sqlite:///{path}?synchronous=OFF"


def fill_forever(path: str, seed: int) -> None:
    """Catch up, then rebuild random projections until the process is killed."""
    chance = random.Random(seed)
    log, store = store_at(url(path)).open_log(), SQLiteProjections(path + ".projections")
    one = projector(log, store)
    with batches_of(chance.choice([5, 40, 300])):
        while True:
            one.drain()
            rebuild(one, chance.choice(SHIPPED).name)


def run_and_kill(path: str, seed: int, delay: float) -> None:
    """Start a child that fills projections, and kill it after a while."""
    child = os.fork()
    if child == 0:
        try:
            fill_forever(path, seed)
        finally:
            os._exit(1)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def assert_equal_to_a_clean_build(path: str) -> None:
    log, store, clean = (
        store_at(url(path)).open_log(),
        SQLiteProjections(path + ".projections"),
        SQLiteProjections(None),
    )
    projector(log, store).drain()
    projector(log, clean).drain()
    assert contents(log, store) == contents(log, clean)
    for each in (store, clean, log):
        each.close()


def test_each_event_counts_once_although_processes_are_killed(path: str, scale: float) -> None:
    chance = random.Random(7)
    with Conversations.open(url(path), embedded=False) as conversations:
        history = made(History(conversations), 1, 200)
        for run in range(max(12, round(200 * scale))):
            run_and_kill(path, run, 0.01 + chance.random() ** 2 * 0.08)
            made(history, run, 5)
    assert_equal_to_a_clean_build(path)


def test_two_processes_on_one_database_count_each_event_once(path: str) -> None:
    Conversations.open(url(path)).close()

    def work(number: int) -> None:
        with Conversations.open(url(path)) as conversations:
            for count in range(20):
                thread = conversations.start_thread(thread_id=f"{number}-{count}")
                thread.append([Message.user(f"every word{number}{count}")] * 5)
                ids = [row.id for row in conversations.threads()]
                assert f"{number}-{count}" in ids
                assert len(conversations.search(f"word{number}{count}")) == 5

    children = []
    for number in range(2):
        child = os.fork()
        if child == 0:
            os._exit(in_forked_child(lambda: work(number)) & 0xFF)  # noqa: B023  # called at once
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]
    with Conversations.open(url(path)) as conversations:
        assert sum(day.messages for day in conversations.usage()) == 200
    assert_equal_to_a_clean_build(path)


def test_the_next_process_completes_an_interrupted_redaction(path: str, tmp_path: Path) -> None:
    def redact_and_die() -> None:
        conversations = Conversations.open(url(path))
        thread = conversations.start_thread(thread_id="t")
        thread.append([Message.user(f"the {CANARY} sings"), Message.user("something else")])
        assert len(conversations.search(CANARY)) == 1
        conversations._core.models.stop()  # the background worker must not come first
        conversations._core.models.projector.forget = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign] # the process dies there
        thread.redact(2)

    assert in_forked_child(redact_and_die) == -signal.SIGKILL
    assert canary_remains(tmp_path)
    log, store = store_at(url(path)).open_log(), SQLiteProjections(path + ".projections")
    projector(log, store).catch_up("search")
    assert store.find("search", "words", Words((CANARY,)), before=None, limit=9) == []
    assert len(store.find("search", "words", Words(("something",)), before=None, limit=9)) == 1
    store.close()
    log.close()
    assert not canary_remains(tmp_path)


def test_the_next_process_removes_text_that_a_killed_one_left_in_the_write_ahead_log(path: str, tmp_path: Path) -> None:
    def redact_and_die() -> None:
        conversations = Conversations.open(url(path))
        thread = conversations.start_thread(thread_id="t")
        thread.append(Message.user(f"the {CANARY} sings"))
        assert len(conversations.search(CANARY)) == 1
        conversations._core.models.stop()  # the background worker would die there first
        conversations._core.models._store._keep = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[attr-defined]
        thread.redact(2)

    assert in_forked_child(redact_and_die) == -signal.SIGKILL
    assert canary_remains(tmp_path)
    log, store = store_at(url(path)).open_log(), SQLiteProjections(path + ".projections")
    projector(log, store).advance()
    assert not canary_remains(tmp_path)
    store.close()
    log.close()


def test_a_forked_process_fills_projections(path: str) -> None:
    with Conversations.open(url(path)) as conversations:
        conversations.start_thread(thread_id="before").append(Message.user("every word"))
        assert len(conversations.search("word")) == 1

        def work() -> None:
            conversations.start_thread(thread_id="child").append(Message.user("every word"))
            assert len(conversations.search("word")) == 2
            conversations.close()

        assert in_forked_child(work) == 0
        conversations.thread("before").append(Message.user("every word"))
        assert len(conversations.search("word")) == 3
    assert_equal_to_a_clean_build(path)


def test_a_forked_process_fills_the_file_after_its_parent_closed(path: str) -> None:
    conversations = Conversations.open(url(path))
    conversations.start_thread("of the parent")
    conversations.wait()
    receive, send = os.pipe()
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            assert len(list(conversations.threads())) == 1
            os.write(tell, b"x")
            os.read(receive, 1)
            conversations.start_thread("of the child")
            conversations.wait()
            with sqlite3.connect(f"{path}.projections") as other:  # not in a deleted write-ahead log
                assert other.execute("SELECT min(position) FROM generation").fetchone() == (2,)
            os._exit(0)
        finally:
            os._exit(1)
    os.close(tell)
    assert os.read(told, 1) == b"x", "the child has read the file"
    conversations.close()
    os.write(send, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
