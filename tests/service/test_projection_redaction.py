"""Redacted text leaves the text indexes: searches do not find it, and no file of the store contains it."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.infrastructure.recorder_steps import PATIENCE, wait_until
from tests.service.projection_contents import CANARY, batches_of, canary_remains, contents, projector

from clew.conversations import Conversations
from clew.domain.errors import StoreUnavailableError
from clew.domain.messages import FunctionCall, FunctionResult, Message
from clew.domain.projection import Words
from clew.infrastructure.sqlite.projection_store import SQLiteProjections
from clew.projections import SHIPPED, Change, IndexText, Recorded, Rows, Usage

MESSAGES = [
    Message.user(f"the {CANARY} sings"),
    Message(role="assistant", contents=(FunctionCall(call_id="1", name="f", arguments=json.dumps({"a": CANARY})),)),
    Message(role="tool", contents=(FunctionResult(call_id="1", result={CANARY: [1, CANARY]}),)),
    Message(role="user", author=CANARY, contents=()),
]


@pytest.fixture
def conversations(file_url: str) -> Iterator[Conversations]:
    with Conversations.open(file_url) as opened:
        yield opened


def count_found(conversations: Conversations) -> int:
    store = conversations._core.models._store
    conversations._core.models.projector.catch_up("search")
    return len(store.find("search", "words", Words((CANARY,)), before=None, limit=99))


@pytest.mark.parametrize("message", MESSAGES, ids=["text", "arguments", "result", "author"])
def test_no_byte_of_redacted_text_is_in_any_file(
    conversations: Conversations, tmp_path: Path, message: Message
) -> None:
    thread = conversations.start_thread(thread_id="t", messages=[Message.user(f"word{n}") for n in range(50)])
    appended = thread.append(message)
    fork = thread.fork()
    thread.append([Message.user(f"more{number}") for number in range(50)])
    conversations.wait()
    assert count_found(conversations) == (0 if message.author else 1), "the author's name is not part of the text"
    assert canary_remains(tmp_path)
    fork.redact(appended.version)
    assert not canary_remains(tmp_path), "it is gone when the redaction returns"
    assert count_found(conversations) == 0
    conversations.wait()
    conversations.rebuild("search")
    assert not canary_remains(tmp_path)
    assert len(conversations.search("word7")) == 1


def test_removes_text_while_it_is_indexed_in_small_batches(conversations: Conversations, tmp_path: Path) -> None:
    threads = [conversations.start_thread() for _ in range(3)]
    with batches_of(2):
        for number in range(12):
            message = threads[number % 3].append(Message.user(f"the {CANARY} sings {number}"))
            assert count_found(conversations) == 1
            threads[number % 3].redact(message.version)
            assert count_found(conversations) == 0
    assert not canary_remains(tmp_path)


def test_removes_text_after_a_long_read(conversations: Conversations, tmp_path: Path) -> None:
    thread = conversations.start_thread()
    message = thread.append(Message.user(f"the {CANARY} sings"))
    assert count_found(conversations) == 1
    reader = sqlite3.connect(tmp_path / "clew.db.projections", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM generation").fetchall()
    thread.redact(message.version)
    assert count_found(conversations) == 0
    assert canary_remains(tmp_path)
    reader.execute("ROLLBACK")
    reader.close()
    thread.append(Message.user("more"))
    # At the next change, or soon after it if a reader of this process blocks it.
    wait_until(lambda: not canary_remains(tmp_path))


def test_removes_text_from_a_running_rebuild(conversations: Conversations, tmp_path: Path) -> None:
    thread = conversations.start_thread(messages=[Message.user(f"word{number}") for number in range(20)])
    message = thread.append(Message.user(f"the {CANARY} sings"))
    conversations.wait()
    redacted = False

    def redact(reached: int, _: int) -> None:
        nonlocal redacted
        if reached >= 22 and not redacted:
            redacted = True
            thread.redact(message.version)
            assert not canary_remains(tmp_path)

    thread.append([Message.user(f"more{number}") for number in range(20)])
    with batches_of(5):
        conversations.rebuild("search", progress=redact)
    assert redacted
    assert count_found(conversations) == 0
    assert not canary_remains(tmp_path)
    assert len(conversations.search("more19")) == 1


class ForeignIndex:
    """A text index that only one program knows."""

    name = "mine"
    version = 1
    tables = ()
    texts = ("words",)
    types = frozenset({"message-appended"})

    def project(self, event: Recorded, _: Rows) -> Iterator[Change]:
        if event.message is not None:
            yield IndexText("words", event.message.text)


@pytest.mark.parametrize("first", [False, True], ids=["projected later", "projected before"])
def test_removes_text_from_an_index_unknown_to_the_redacting_process(
    file_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, first: bool
) -> None:
    def count(program: Conversations, word: str) -> int:
        program._core.models.projector.catch_up("mine")
        return len(program._core.models._store.find("mine", "words", Words((word,)), before=None, limit=9))

    with Conversations.open(file_url, projections=[*SHIPPED, ForeignIndex()]) as program:
        thread = program.start_thread(thread_id="t")
        thread.append([Message.user(f"the {CANARY} sings"), Message.user("something else")])
        assert (count(program, CANARY), count(program, "something")) == (1, 1)
        program._core.models.stop()  # a background reader can keep the text for a moment
        with Conversations.open(file_url) as other:
            models = other._core.models
            models.stop()
            forget = models.projector.forget

            def delayed(stream: str, versions: Sequence[int], by: int) -> None:
                if first:
                    program._core.models.projector.drain()
                forget(stream, versions, by)

            monkeypatch.setattr(models.projector, "forget", delayed)
            other.thread("t").redact(2)
            assert not canary_remains(tmp_path)
        assert (count(program, CANARY), count(program, "something")) == (0, 1)


def test_removes_text_without_an_embedded_projection(file_url: str, tmp_path: Path) -> None:
    with Conversations.open(file_url) as runner:
        thread = runner.start_thread(thread_id="t")
        thread.append(Message.user(f"the {CANARY} sings"))
        assert count_found(runner) == 1
        with Conversations.open(file_url, embedded=False) as other:
            other.thread("t").redact(2)
        assert not canary_remains(tmp_path)
        assert count_found(runner) == 0


def test_removes_text_that_is_redacted_while_it_is_indexed(conversations: Conversations, tmp_path: Path) -> None:
    thread = conversations.start_thread()
    models = conversations._core.models
    done = threading.Event()

    def index() -> None:
        while not done.is_set():
            models.projector.advance()

    worker = threading.Thread(target=index)
    worker.start()
    for number in range(25):
        message = thread.append(Message.user(f"the {CANARY} sings {number}"))
        thread.redact(message.version)
    done.set()
    worker.join()
    assert count_found(conversations) == 0
    wait_until(lambda: not canary_remains(tmp_path))
    clean = SQLiteProjections(None)
    log = conversations._core.log
    projector(log, clean).drain()
    models.projector.drain()
    assert contents(log, models._store) == contents(log, clean)
    clean.close()


def test_rebuilding_a_log_with_redactions_indexes_nothing_twice(
    conversations: Conversations, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = conversations.start_thread()
    for number in range(10):
        thread.redact(thread.append(Message.user(f"word{number}")).version)
    conversations.wait()

    def reindex(*_: object) -> None:
        pytest.fail("the rebuild does not contain text that was shredded before")

    monkeypatch.setattr("clew.infrastructure.sqlite.projection_store.SQLiteSession.reindex", reindex)
    with batches_of(3):
        conversations.rebuild("search")


def test_a_redaction_waits_for_a_process_that_indexes_the_text(
    conversations: Conversations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = conversations.start_thread()
    conversations.wait()
    conversations._core.models.stop()
    message = thread.append(Message.user(f"the {CANARY} sings"))
    projecting, read, answered = conversations._core.models.projector, threading.Event(), threading.Event()
    project = SHIPPED[1].__class__.project

    def slowly(self: Any, event: Recorded, rows: Rows) -> list[Change]:
        changes = list(project(self, event, rows))
        read.set()
        answered.wait(2)
        return changes

    monkeypatch.setattr(SHIPPED[1].__class__, "project", slowly)
    worker = threading.Thread(target=projecting.advance)
    worker.start()
    assert read.wait(PATIENCE)
    thread.redact(message)
    remained = canary_remains(tmp_path)
    answered.set()
    worker.join()
    assert not remained
    assert not canary_remains(tmp_path)


@pytest.mark.parametrize("ends", ["before closing", "while closing"])
def test_text_leaves_the_write_ahead_log_after_the_last_read(file_url: str, tmp_path: Path, ends: str) -> None:
    with Conversations.open(file_url) as other:  # like another process: the last one to close empties the log anyway
        with Conversations.open(file_url, embedded=False) as conversations:
            message = conversations.start_thread(messages=[Message.user(f"the {CANARY} sings")])
            other.wait()
            with closing(sqlite3.connect(f"{tmp_path}/clew.db.projections", isolation_level=None)) as reader:
                reader.execute("BEGIN")
                reader.execute("SELECT count(*) FROM generation").fetchall()
                message.redact(2)
                other._core.models.stop()
                if ends == "before closing":
                    reader.execute("ROLLBACK")
                    wait_until(lambda: not canary_remains(tmp_path))
                else:
                    conversations._core.models.stop()
                    assert canary_remains(tmp_path)
        assert not canary_remains(tmp_path)


def test_a_store_keeps_its_folder_when_the_process_changes_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(here)
    with Conversations.open("sqlite:///clew.db") as conversations:
        thread = conversations.start_thread(messages=[Message.user(f"the {CANARY} sings")])
        conversations.wait()
        monkeypatch.chdir(elsewhere)
        assert len(conversations.search(CANARY)) == 1
        thread.redact(2)
        assert not conversations.search(CANARY)
        assert not canary_remains(here)
    assert not list(elsewhere.iterdir())


def test_a_thread_is_recounted_once_per_batch(conversations: Conversations) -> None:
    thread = conversations.start_thread(messages=[Message.user(f"word{number}") for number in range(50)])
    for version in range(2, 52):
        thread.redact(version)
    conversations._core.models.stop()

    class CountingUsage(Usage):
        seen = 0

        def project(self, event: Recorded, rows: Rows) -> Iterable[Change]:
            CountingUsage.seen += 1
            return super().project(event, rows)

    log, store, plain = conversations._core.log, SQLiteProjections(None), SQLiteProjections(None)
    projector(log, store, [CountingUsage()]).drain()
    assert CountingUsage.seen == 2 * log.last_position()
    with batches_of(1):
        projector(log, plain, [Usage()]).drain()
    assert contents(log, store, [Usage()]) == contents(log, plain, [Usage()])


def test_reports_a_redaction_although_the_read_models_are_unavailable(file_url: str, tmp_path: Path) -> None:
    with Conversations.open(file_url) as conversations:
        thread = conversations.start_thread(messages=[Message.user(f"the {CANARY} sings")])
        conversations.wait()
    with (tmp_path / "clew.db.projections").open("r+b") as file:
        file.seek(8_192)
        file.write(b"\xff" * 40_960)
    with Conversations.open(file_url, embedded=False) as conversations:
        again = conversations.thread(thread.id)
        with pytest.raises(StoreUnavailableError, match=r"is redacted, by version 3.*Delete it"):
            again.redact(2)
        assert again.history().messages[0].redacted


REDACT = """
import sys
from clew import Conversations
with Conversations.open(sys.argv[1]) as conversations:
    conversations.thread("t").redact(2)
"""


def test_the_next_append_removes_text_that_another_process_redacted_under_a_reader(
    conversations: Conversations, file_url: str, tmp_path: Path
) -> None:
    thread = conversations.start_thread(thread_id="t", messages=[Message.user(f"the {CANARY} sings")])
    conversations.wait()
    files = [str(tmp_path / "clew.db"), str(tmp_path / "clew.db.projections")]
    readers = [sqlite3.connect(file, isolation_level=None) for file in files]
    for reader in readers:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM sqlite_master").fetchall()
    subprocess.run([sys.executable, "-c", REDACT, file_url], check=True)
    assert canary_remains(tmp_path), "the readers still see the old text"
    for reader in readers:
        reader.close()
    thread.append(Message.user("later"))
    conversations.wait()
    wait_until(lambda: not canary_remains(tmp_path))
