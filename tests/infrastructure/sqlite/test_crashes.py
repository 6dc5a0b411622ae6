"""Processes that are killed during appends: acknowledged appends are stored, appends are atomic, the chain is valid."""

from __future__ import annotations

import os
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest
from tests.infrastructure.recorder_steps import PATIENCE, append, event, fill, in_forked_child, last_version
from tests.infrastructure.sqlite.test_processes import environment

from clew.domain.ports import Row
from clew.domain.streams import ROOT, digest, link
from clew.infrastructure.recorder_ports import Append
from clew.infrastructure.sqlite.recorder import SQLiteRecorder

EVENTS_EACH = 3
WRITES = "pwrite64,pwritev,fdatasync,fsync,ftruncate,unlink"

ONE_APPEND = """
import os, sys
from eventsourcing.persistence import StoredEvent
from clew.infrastructure.recorder_ports import Append
from clew.infrastructure.sqlite.recorder import SQLiteRecorder
recorder = SQLiteRecorder.open(sys.argv[1])
if sys.argv[2] == "append":
    for number in range(2):
        heads = {name: len(recorder.own_rows(name, limit=99)) + 1 for name in ("a", "b")}
        tag = f"crash {number} of 2 parts".encode()
        events = [StoredEvent(name, version, "noted", tag + bytes(3000)) for name, version in heads.items()]
        outcome = recorder.submit(Append(events))
        error = outcome.exception()
        os.write(1, f"{number} {'stored' if error is None else type(error).__name__}\\n".encode())
    if sys.argv[3] == "leave":
        os._exit(0)
recorder.close()
os.write(1, b"closed\\n")
"""


class Checker:
    """Compares the events since the last check with the acknowledged appends."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._position = 0
        self._heads: defaultdict[str, bytes] = defaultdict(lambda: ROOT)
        self._versions: Counter[str] = Counter()

    def check(self, acknowledged: Iterable[bytes]) -> list[Row]:
        recorder = SQLiteRecorder.open(self._path)
        try:
            rows = recorder.rows(after=self._position, limit=1_000_000)
            assert recorder.orphans(1) == []
        finally:
            recorder.close()
        for row in rows:
            assert row.version == self._versions[row.stream] + 1
            assert row.hash == link(self._heads[row.stream], row.stream, row.version, row.type, digest(row.state))
            self._versions[row.stream], self._heads[row.stream] = row.version, row.hash
            self._position = row.position
        parts = Counter(row.state.split()[0] for row in rows)
        assert set(parts.values()) <= {EVENTS_EACH}, "an append is incomplete"
        lost = set(acknowledged) - set(parts)
        assert not lost, "an acknowledged append is missing"
        return rows


def append_until_killed(path: str, run: int, answers: int) -> None:
    """Append from three threads without end. Writes the name of each acknowledged append to the pipe."""
    recorder = SQLiteRecorder.open(path)

    def work(number: int) -> None:
        count = 0
        names = [f"s{number}", f"t{number}", f"u{number}-{run}"]
        versions = {name: last_version(recorder, name) for name in names}
        while True:
            count += 1
            name = f"{run}.{number}.{count}"
            events = []
            for stream in names:
                versions[stream] += 1
                events.append(event(stream, versions[stream], f"{name} {'x' * (count * 37 % 3000)}".encode()))
            append(recorder, *events)
            os.write(answers, name.encode() + b"\n")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def kill_writer(path: str, run: int, delay: float) -> list[bytes]:
    """Start a child that appends, and kill it ``delay`` seconds after its first append. Returns acknowledged names."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            append_until_killed(path, run, write)
        finally:
            os._exit(1)
    os.close(write)
    assert select.select([read], [], [], PATIENCE)[0], "no append of the child succeeded"
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    with os.fdopen(read, "rb") as answers:
        text = answers.read()
    return text.split(b"\n")[:-1]


def test_keeps_every_acknowledged_append_after_random_kills(tmp_path: Path, scale: float) -> None:
    path = str(tmp_path / "clew.db")
    chance = random.Random(20)
    checker = Checker(path)
    seen = 0
    for run in range(max(20, round(1000 * scale))):
        acknowledged = kill_writer(path, run, chance.random() ** 2 * 0.04)
        assert acknowledged
        seen += len(checker.check(acknowledged))
    assert seen > 0
    recorder = SQLiteRecorder.open(path)
    assert recorder.query("PRAGMA integrity_check") == [("ok",)]
    recorder.close()


def test_appends_are_atomic_if_the_process_is_killed_at_any_statement(tmp_path: Path) -> None:
    path = str(tmp_path / "clew.db")
    checker = Checker(path)
    step = 0
    finished = False
    while not finished:
        step += 1
        finished = in_forked_child(lambda: append_and_die(path, step)) == 0  # noqa: B023 - called at once
        rows = checker.check([str(step).encode()] if finished else [])
        assert len(rows) in (0, EVENTS_EACH)
    assert step > 4, "the appends had too few statements to die in"


def append_and_die(path: str, step: int) -> None:
    recorder = SQLiteRecorder.open(path)
    remaining = step

    def count(_: str) -> None:
        nonlocal remaining
        remaining -= 1
        if remaining == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    heads = {name: last_version(recorder, name) for name in ("a", "b")}
    recorder.datastore.writing().set_trace_callback(count)
    events = [event("a", heads["a"] + 1, f"{step} 1".encode()), event("b", heads["b"] + 1, f"{step} 2".encode())]
    append(recorder, *events, event("b", heads["b"] + 2, f"{step} 3".encode()))
    recorder.close()


# Faults of the system calls, injected by strace; without strace, a kill at every SQL statement.


def strace(options: list[str], path: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    # Only the database and its log: SQLite rebuilds the index of the log.
    files = ["-P", path, "-P", path + "-wal"]
    command = ["strace", "-f", "-qq", *files, *options, sys.executable, "-c", ONE_APPEND, path, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=60, check=False)


def can_trace() -> bool:
    if shutil.which("strace") is None:
        return False
    probe = ["strace", "-f", "-qq", "-e", "trace=fsync", "-e", "inject=fsync:signal=KILL:when=1"]
    program = "import os; os.fsync(os.open('.', os.O_RDONLY))"
    done = subprocess.run([*probe, sys.executable, "-c", program], capture_output=True, timeout=60, check=False)
    return done.returncode == -signal.SIGKILL


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a database and its log without a checkpoint, as after a killed process."""
    folder = tmp_path_factory.mktemp("before")

    def work() -> None:
        recorder = SQLiteRecorder.open(str(folder / "clew.db"))
        fill(recorder, "a", 5)
        fill(recorder, "b", 5)
        os._exit(0)

    assert in_forked_child(work) == 0
    assert (folder / "clew.db-wal").stat().st_size > 0
    return folder


def copy_store(store: Path, folder: Path) -> str:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(store, folder)
    return str(folder / "clew.db")


def stored_after(path: str) -> tuple[int, int]:
    """The versions of both streams, after a check of the chain and of the database."""
    recorder = SQLiteRecorder.open(path)
    try:
        for name in ("a", "b"):
            previous = ROOT
            for row in recorder.lineage(name):
                previous = link(previous, row.stream, row.version, row.type, digest(row.state))
                assert row.hash == previous
        assert recorder.query("PRAGMA integrity_check") == [("ok",)]
        return last_version(recorder, "a"), last_version(recorder, "b")
    finally:
        recorder.close()


def calls_to_break(path: str, steps: list[str]) -> list[tuple[str, int]]:
    """The name and the number of each call that writes or syncs."""
    dry = strace(["-e", f"trace={WRITES}"], path, *steps)
    assert dry.returncode == 0, dry.stderr
    # strace counts by thread and by name of the call.
    calls = Counter(re.findall(r"^(?:\[pid +(\d+)\] )?(\w+)\(", dry.stderr, re.MULTILINE))
    highest: Counter[str] = Counter()
    for (_, name), count in calls.items():
        highest[name] = max(highest[name], count)
    assert highest["pwrite64"] > 2
    assert highest["fdatasync"] > 0
    return [(name, number) for name in sorted(highest) for number in range(1, highest[name] + 1)]


def sample(calls: list[tuple[str, int]], scale: float) -> list[tuple[str, int]]:
    """All at full scale, otherwise an even sample."""
    count = min(len(calls), max(5, round(len(calls) * scale)))
    return [calls[round(index * (len(calls) - 1) / (count - 1))] for index in range(count)]


@pytest.mark.parametrize("steps", [["append", "leave"], ["append", "close"], ["close"]])
def test_appends_are_atomic_if_the_process_is_killed_at_any_write_or_sync(
    store: Path, tmp_path: Path, scale: float, steps: list[str]
) -> None:
    folder = tmp_path / "copy"
    if not can_trace():
        kill_at_statements(store, folder)
        return
    for name, number in sample(calls_to_break(copy_store(store, folder), steps), scale):
        path = copy_store(store, folder)
        done = strace(["-e", f"trace={name}", "-e", f"inject={name}:signal=KILL:when={number}"], path, *steps)
        assert done.returncode == -signal.SIGKILL
        acknowledged = done.stdout.count("stored")
        a, b = stored_after(path)
        assert a == b, "the append is incomplete"
        assert 5 + acknowledged <= a <= 7


def kill_at_statements(store: Path, folder: Path) -> None:
    for step in range(1, 40):
        path = copy_store(store, folder)
        status = in_forked_child(lambda: append_and_die(path, step))  # noqa: B023 - called at once
        a, b = stored_after(path)
        assert (a, b) in ((5, 5), (6, 7))
        if status == 0:
            assert (a, b) == (6, 7)
            return
        assert status == -signal.SIGKILL
    pytest.fail("the append never finished")


@pytest.mark.parametrize("fault", ["EIO", "ENOSPC"])
def test_acknowledges_only_stored_appends_if_the_disk_fails(
    store: Path, tmp_path: Path, scale: float, fault: str
) -> None:
    if not can_trace():
        kill_at_statements(store, tmp_path / "copy")
        return
    folder = tmp_path / "copy"
    seen: Counter[str] = Counter()
    steps = ["append", "leave"]
    calls = calls_to_break(copy_store(store, folder), steps)
    sampled = sample(calls, scale)
    # All others follow only if no call of the sample was one of the append: which ones are depends on the threads.
    for index, (name, number) in enumerate([*sampled, *(call for call in calls if call not in sampled)]):
        if index >= len(sampled) and seen.keys() >= {"stored", "SQLiteUnavailableError"}:
            break
        path = copy_store(store, folder)
        done = strace(["-e", f"trace={name}", "-e", f"inject={name}:error={fault}:when={number}"], path, *steps)
        answers = [line.split()[1] for line in done.stdout.splitlines()]
        seen.update(answers)
        # A fault in the checkpoint at the start is harmless: the store retries it later.
        assert len(answers) == 2, done.stderr
        assert set(answers) <= {"stored", "SQLiteUnavailableError"}
        a, b = stored_after(path)
        assert a == b == 5 + answers.count("stored")
    assert seen["stored"] > 0
    assert seen["SQLiteUnavailableError"] > 0


def test_writes_submitted_appends_if_a_sigterm_handler_closes_the_store(tmp_path: Path) -> None:
    path = str(tmp_path / "clew.db")

    def work() -> None:
        recorder = SQLiteRecorder.open(path)
        futures = [recorder.submit(Append([event("a", version)])) for version in range(1, 51)]
        signal.signal(signal.SIGTERM, lambda *_: recorder.close())
        os.kill(os.getpid(), signal.SIGTERM)
        assert all(future.result(PATIENCE).versions for future in futures)

    assert in_forked_child(work) == 0
    recorder = SQLiteRecorder.open(path)
    assert len(recorder.lineage("a")) == 50
    recorder.close()
