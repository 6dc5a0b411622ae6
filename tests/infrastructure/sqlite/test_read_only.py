"""A store that is opened for reading: all of it can be read, nothing can be written, and no file is made or changed."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from tests.infrastructure.recorder_steps import PATIENCE

from clew import Conversations, Engine, Message
from clew.domain.errors import (
    ReadOnlyStoreError,
    StoreSchemaError,
    StoreUnavailableError,
    StoreUrlError,
)
from clew.infrastructure.inmemory.vectors import InMemoryVectors, OverlaidVectors
from clew.infrastructure.sqlite import immutable_reads
from clew.infrastructure.sqlite.projection_store import SQLiteProjections
from clew.infrastructure.sqlite.reads import FileChangedError
from clew.infrastructure.sqlite.recorder import SQLiteRecorder
from clew.infrastructure.sqlite.vectors import SQLiteVectors
from clew.infrastructure.stores import store_at


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with a thread, a fork and a fact, that no process has open."""
    path = tmp_path / "clew.db"
    with Conversations.open(path) as conversations:
        thread = conversations.start_thread("Refund", thread_id="refund", messages=[Message.user("Where is it?")])
        thread.append(Message.assistant("It is lost."))
        thread.checkpoint("lost")
        thread.fork(thread_id="what-if")
        conversations.memory("user/1").remember("Likes tea")
        conversations.wait(conversations.position(), timeout=PATIENCE)
    return path


def files(path: Path) -> dict[str, tuple[int, int]]:
    """All files next to the store, with what would show a change."""
    return {each.name: ((found := each.stat()).st_size, found.st_mtime_ns) for each in path.parent.iterdir()}


@pytest.fixture
def unchanged(path: Path) -> Iterator[None]:
    """Checks at the end that no file was made, changed or removed."""
    before = files(path)
    yield
    assert files(path) == before


def read_everything(conversations: Conversations) -> None:
    assert [each.id for each in conversations.threads()] == ["refund", "what-if"]
    assert [each.thread.id for each in conversations.tree()] == ["refund", "what-if"]
    assert [hit.thread_id for hit in conversations.search("lost")] == ["refund"]
    assert len(list(conversations.audit())) == conversations.position()
    thread = conversations.thread("refund")
    assert [message.text for message in thread.history(at="lost")] == ["Where is it?", "It is lost."]
    assert [event.version for event in thread.events()] == [1, 2, 3, 4]
    assert [fact.text for fact in conversations.memory("user/1").facts()] == ["Likes tea"]
    assert conversations.verify().first_bad is None
    assert b"".join(conversations.export_events())
    assert conversations.usage()


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("by_url", [False, True])
def test_everything_can_be_read(path: Path, *, by_url: bool) -> None:
    with Conversations.open(f"sqlite:///{path}?mode=ro" if by_url else path, read_only=not by_url) as conversations:
        read_everything(conversations)


@pytest.mark.parametrize("state", ["missing", "behind", "damaged", "another program's"])
def test_read_models_are_in_memory_if_their_file_cannot_be_used(path: Path, state: str) -> None:
    file = path.with_name("clew.db.projections")
    if state == "behind":
        older = file.read_bytes()
        with Conversations.open(path) as conversations:
            conversations.start_thread(thread_id="newer", messages=[Message.user("lost again")])
            conversations.search("lost")
        file.write_bytes(older)
    else:
        file.unlink()
    if state == "damaged":
        file.write_bytes(os.urandom(8192))
    if state == "another program's":
        SQLiteVectors(str(file)).put("space", {b"digest": [1.0]})
    before = files(path)
    with Conversations.open(path, read_only=True) as conversations:
        if state == "behind":
            assert [each.id for each in conversations.threads()] == ["refund", "what-if", "newer"]
            assert [hit.thread_id for hit in conversations.search("lost")] == ["newer", "refund"]
        else:
            read_everything(conversations)
    assert files(path) == before


def test_current_read_models_are_read_in_their_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        pytest.fail("a copy in memory was made")

    monkeypatch.setattr(SQLiteProjections, "_prepared", fail)
    with Conversations.open(path, read_only=True) as conversations:
        read_everything(conversations)


WRITES: dict[str, Callable[[Conversations], object]] = {
    "start": lambda conversations: conversations.start_thread(),
    "open": lambda conversations: conversations.open_thread("new"),
    "append": lambda conversations: conversations.thread("refund").append(Message.user("More")),
    "checkpoint": lambda conversations: conversations.thread("refund").checkpoint("here"),
    "fork": lambda conversations: conversations.thread("refund").fork(),
    "rewind": lambda conversations: conversations.thread("refund").rewind(2),
    "label": lambda conversations: conversations.thread("refund").label({"a": 1}),
    "redact": lambda conversations: conversations.thread("refund").redact(2),
    "delete": lambda conversations: conversations.thread("refund").delete(),
    "remember": lambda conversations: conversations.memory("user/1").remember("Likes coffee"),
    "restore": lambda conversations: conversations.restore_thread(
        conversations.thread("refund").serialize(), as_new=True
    ),
    "import": lambda conversations: conversations.import_events(BytesIO(exported())),
}


def exported() -> bytes:
    with Conversations.open("memory:") as conversations:
        conversations.start_thread("Imported")
        return b"".join(conversations.export_events())


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("write", list(WRITES))
def test_every_write_raises_an_error(path: Path, write: str) -> None:
    with Conversations.open(path, read_only=True) as conversations:
        with pytest.raises(ReadOnlyStoreError, match="read-only here"):
            WRITES[write](conversations)
        read_everything(conversations)


@pytest.mark.usefixtures("unchanged")
def test_an_engine_can_be_read_only(path: Path) -> None:
    async def use() -> None:
        async with Engine.open(path, read_only=True) as engine:
            thread = await engine.thread("refund")
            assert len((await thread.history()).messages) == 2
            with pytest.raises(ReadOnlyStoreError):
                await thread.append(Message.user("More"))

    asyncio.run(use())


def test_a_missing_an_empty_and_another_database_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("This is not a database.")
    SQLiteVectors(str(tmp_path / "other")).put("space", {b"digest": [1.0]})
    before = files(tmp_path / "x")
    for name, error in (
        ("missing", StoreUnavailableError),
        ("empty", StoreUnavailableError),
        ("text", StoreSchemaError),
        ("other", StoreSchemaError),
    ):
        with pytest.raises(error) as caught:
            Conversations.open(tmp_path / name, read_only=True)
        assert name in str(caught.value)
    assert files(tmp_path / "x") == before


def test_a_store_in_memory_and_other_modes_are_refused(path: Path) -> None:
    with pytest.raises(StoreUrlError, match="nothing to read"):
        Conversations.open("memory:", read_only=True)
    with pytest.raises(StoreUrlError, match="mode=ro or rw"):
        Conversations.open(f"sqlite:///{path}?mode=rwc")


# Next to a writer


def test_a_reader_sees_the_commits_of_a_writer_and_both_leave_nothing(path: Path) -> None:
    names = set(files(path))
    with Conversations.open(path, read_only=True) as reading:
        with Conversations.open(path) as writing:
            for number in range(3):
                writing.thread("refund").append(Message.user(f"word{number}"))
                assert reading.thread("refund").history().messages[-1].text == f"word{number}"
                assert len(reading.search(f"word{number}")) == 1
                assert next(iter(reading.threads())).version == 5 + number
        assert set(files(path)) == names
        assert reading.thread("refund").version == 7
        with Conversations.open(path) as writing:
            writing.thread("refund").append(Message.user("later"))
        assert [hit.version for hit in reading.search("later")] == [8]
    assert set(files(path)) == names


def test_a_subscription_of_a_reader_follows_a_writer(path: Path) -> None:
    with Conversations.open(path, read_only=True) as reading, Conversations.open(path) as writing:
        subscription = reading.subscribe()
        seen: list[Any] = []
        goal = 5 + 3
        thread = threading.Thread(target=lambda: seen.extend(islice(subscription, goal)))
        thread.start()
        for number in range(3):
            writing.thread("refund").append(Message.user(str(number)))
        thread.join(PATIENCE)
        assert len(seen) == goal


WRITER = """
import os, sys
from clew import Conversations, Message
with Conversations.open(sys.argv[1]) as conversations:
    thread = conversations.thread("refund")
    sys.stdin.read(1)
    for number in range(int(sys.argv[2])):
        thread.append([Message.user(f"{number} {part} " + "x" * 3000) for part in range(8)])
        if number % 50 == 49:
            conversations._core.log.recorder.datastore._writer.checkpoints.purge_due = True
    if len(sys.argv) > 3:
        os.kill(os.getpid(), 9)
"""


def writer(path: Path, count: int, *more: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(count), *more], stdin=subprocess.PIPE)


def test_reads_are_whole_while_another_process_writes_opens_and_closes(path: Path, scale: float) -> None:
    rounds = max(2, round(10 * scale))
    with Conversations.open(path, read_only=True) as reading:
        for _ in range(rounds):
            with writer(path, 100) as process:
                before = len(reading.thread("refund").history().messages)
                process.communicate(b"x")
                assert process.returncode == 0
            running = writer(path, 100)
            assert running.stdin is not None
            running.stdin.write(b"x")
            running.stdin.flush()
            while running.poll() is None:
                messages = reading.thread("refund").history().messages
                assert len(messages) >= before
                before = len(messages)
                assert reading.verify("refund").first_bad is None
            running.stdin.close()
    # A read that runs at the moment of the last close keeps the log. The next writer removes it.
    Conversations.open(path).close()
    assert {"clew.db-shm", "clew.db-wal"}.isdisjoint(files(path))


def test_the_log_of_a_killed_writer_is_read(path: Path) -> None:
    process = writer(path, 3, "kill")
    process.communicate(b"x")
    assert process.returncode == -signal.SIGKILL
    before = files(path)
    assert before["clew.db-wal"][0] > 0
    with Conversations.open(path, read_only=True) as conversations:
        assert len(conversations.thread("refund").history().messages) == 26
        assert conversations.search("2")
        assert conversations.verify().first_bad is None
    assert files(path) == before


def test_a_log_without_its_index_and_a_journal_are_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(immutable_reads, "PATIENCE_SECONDS", 0)
    for ending, why in (("-wal", "Copy the first two files"), ("-journal", "once for writing")):
        other = path.with_name(path.name + ending)
        other.write_bytes(b"content")
        before = files(path)
        with pytest.raises(StoreUnavailableError, match=why):
            Conversations.open(path, read_only=True)
        assert files(path) == before
        other.unlink()


def test_a_read_is_repeated_if_the_file_changed_meanwhile(path: Path) -> None:
    with closing(store_at(f"sqlite:///{path}?mode=ro").open_log()) as log:
        recorder = log.recorder
        assert isinstance(recorder, SQLiteRecorder)
        reads: list[int] = []

        def take(rows: Any) -> list[Any]:
            reads.append(1)
            if len(reads) == 1:
                with Conversations.open(path) as conversations:
                    conversations.start_thread(thread_id="meanwhile")
            return list(rows)

        names = [name for (name,) in recorder.query("SELECT name FROM stream", (), take)]
        assert len(reads) == 2
        assert "default/thread/meanwhile" in names


def test_a_change_in_the_same_tick_is_not_missed(path: Path) -> None:
    os.utime(path)
    state = immutable_reads.State.of(str(path))
    assert state.is_fresh()
    connection = immutable_reads.open_snapshot(str(path))
    assert connection.state is not None
    os.utime(path, ns=(0, connection.state.file[3] + 1))
    with pytest.raises(FileChangedError):
        connection.check()
    connection.close()


def test_new_vectors_are_kept_in_memory(path: Path) -> None:
    pytest.importorskip("numpy")
    file = f"{path}.vectors"
    stored = {bytes([number]) * 32: [1.0, number / 10] for number in range(5)}
    with closing(SQLiteVectors(file)) as writing:
        writing.put("space", dict(list(stored.items())[:3]))
    before = files(path)
    entries = dict(enumerate(stored))
    with closing(OverlaidVectors(SQLiteVectors(file, read_only=True))) as index, closing(InMemoryVectors()) as whole:
        missing = index.missing("space", list(stored))
        assert missing == set(list(stored)[3:])
        index.put("space", {digest: stored[digest] for digest in missing})
        whole.put("space", stored)
        for top in (1, 3, 5):
            near = index.nearest("space", "c", entries, 1, [0.0, 1.0], top)
            assert near == whole.nearest("space", "c", entries, 1, [0.0, 1.0], top)
        index.drop()
        assert index.missing("space", list(stored)) == missing
    assert files(path) == before


# The command

READS = [
    *("threads", "threads --json", "tree", "tree refund", "show refund", "show refund --at lost", "log refund"),
    *("replay refund", "diff refund what-if", "search lost", "audit", "stats", "verify", "doctor", "doctor --verify"),
    *("export --format clew", "export --format markdown", "memory list user/1", "project status"),
]
WRITE_COMMANDS = ["fork refund", "rewind refund --to 2", "label refund a=1", "project run --once", "rebuild --all"]


def drop_privileges() -> None:
    """In a child of root: file modes apply to it, as to every other user."""
    libc = ctypes.CDLL(None)
    for privilege in (1, 2, 3):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER
        libc.prctl(24, privilege, 0, 0, 0)  # PR_CAPBSET_DROP: the program that is executed does not get it


RUN = """
import contextlib, io, json, sys
from clew.cli.app import run
for command in json.load(sys.stdin):
    out, err = io.TextIOWrapper(io.BytesIO()), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(["--db", sys.argv[1], *command.split()])
    out.flush()
    print(json.dumps([command, code, out.buffer.getvalue().decode(), err.getvalue()]))
"""


def clew(path: Path, *commands: str) -> list[tuple[str, int, str, str]]:
    """For each command, its exit code and what it wrote, as a user without privileges."""
    result = subprocess.run(
        [sys.executable, "-c", RUN, str(path)],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        preexec_fn=drop_privileges,
        check=True,
    )
    return [tuple(json.loads(line)) for line in result.stdout.splitlines()]


@pytest.fixture(params=["file", "folder"])
def protected(request: pytest.FixtureRequest, path: Path) -> Iterator[Path]:
    """A store whose file or folder this user may not write to."""
    if request.param == "file":
        path.chmod(0o444)
    else:
        path.parent.chmod(0o555)
    yield path
    path.parent.chmod(0o755)


def test_commands_that_read_work_on_a_protected_store(protected: Path) -> None:
    before = files(protected)
    for command, code, out, err in clew(protected, *READS):
        assert (code, err) == (0, ""), (command, out, err)
        assert command != "doctor" or "This user can only read" in out
    assert files(protected) == before


def test_commands_that_write_say_that_a_protected_store_is_open_only_for_reading(protected: Path) -> None:
    before = files(protected)
    for command, code, _, err in clew(protected, *WRITE_COMMANDS):
        assert (code, "read-only here" in err, "\n" in err.strip()) == (1, True, False), (command, err)
    assert files(protected) == before
