"""Many processes on one SQLite file: no append is lost, races end in conflicts, a tail sees each event once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.infrastructure.recorder_steps import (
    PATIENCE,
    append,
    event,
    failure,
    fill,
    in_forked_child,
    last_version,
    recomputed_hashes,
    take,
)

from clew.domain.errors import ConflictError, StoreUnavailableError
from clew.infrastructure.recorder_ports import Append, RecordedConflictError
from clew.infrastructure.sqlite.file_lock import FileLock
from clew.infrastructure.sqlite.recorder import SQLiteRecorder

PROCESSES = 16

TAIL = """
import json, sys
from clew.infrastructure.sqlite.recorder import SQLiteRecorder
path, count = sys.argv[1], int(sys.argv[2])
recorder = SQLiteRecorder.open(path)
with recorder.subscribe(gt=0) as subscription:
    print("ready", flush=True)
    for _ in range(count):
        notification = next(subscription)
        print(json.dumps([notification.id, notification.originator_id, notification.originator_version]))
recorder.close()
"""


def start(work: Callable[[], None]) -> int:
    """Start a forked child that does the work. Returns its process id."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return child


def finish(children: list[int]) -> None:
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * len(children)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "clew.db")


def test_sixteen_processes_lose_no_append_and_a_tail_sees_every_event_in_order(path: str, scale: float) -> None:
    per_process = max(10, round(200 * scale))
    count = PROCESSES * per_process * 2
    tail = subprocess.Popen(
        [sys.executable, "-c", TAIL, path, str(count)], stdout=subprocess.PIPE, text=True, env=environment()
    )
    assert tail.stdout is not None
    assert tail.stdout.readline() == "ready\n"

    def write(number: int) -> None:
        recorder = SQLiteRecorder.open(path)
        for version in range(1, per_process + 1):
            append(recorder, event(f"s{number}", version), event(f"t{number}", version))
        recorder.close()

    finish([start(lambda number=number: write(number)) for number in range(PROCESSES)])  # type: ignore[misc] # a bound loop variable
    printed, _ = tail.communicate(timeout=PATIENCE)
    assert tail.returncode == 0
    recorder = SQLiteRecorder.open(path)
    rows = recorder.rows(after=0, limit=count + 1)
    assert len(rows) == count
    assert [json.loads(line) for line in printed.splitlines()] == [[r.position, r.stream, r.version] for r in rows]
    for number in range(PROCESSES):
        lineage = recorder.lineage(f"s{number}")
        assert [row.version for row in lineage] == list(range(1, per_process + 1))
        assert [row.hash for row in lineage] == recomputed_hashes(lineage)
    recorder.close()


def test_sixteen_processes_that_race_for_a_version_get_conflicts(path: str, scale: float) -> None:
    goal = max(20, round(200 * scale))
    SQLiteRecorder.open(path).close()

    def race(number: int) -> None:
        recorder = SQLiteRecorder.open(path)
        while True:
            version = last_version(recorder, "a")
            if version >= goal:
                break
            try:
                append(recorder, event("a", version + 1, f"by {number}".encode()))
            except ConflictError as error:
                lost = error.stream, error.expected, error.actual > version
                if lost != ("a", version, True):
                    raise
        recorder.close()

    finish([start(lambda number=number: race(number)) for number in range(PROCESSES)])  # type: ignore[misc] # as above
    recorder = SQLiteRecorder.open(path)
    rows = recorder.lineage("a")
    assert [row.version for row in rows] == list(range(1, goal + 16))[: len(rows)]
    assert len(rows) >= goal
    assert [row.hash for row in rows] == recomputed_hashes(rows)
    recorder.close()


def test_sixteen_processes_create_the_schema_once(path: str) -> None:
    def work(number: int) -> None:
        recorder = SQLiteRecorder.open(path)
        append(recorder, event(f"s{number}", 1))
        recorder.close()

    finish([start(lambda number=number: work(number)) for number in range(PROCESSES)])  # type: ignore[misc] # as above
    recorder = SQLiteRecorder.open(path)
    assert len(recorder.streams(limit=100)) == PROCESSES
    recorder.close()


def test_sees_another_processs_events_immediately(path: str) -> None:
    recorder = SQLiteRecorder.open(path)
    fill(recorder, "a", 2)

    def work() -> None:
        other = SQLiteRecorder.open(path)
        fill(other, "a", 4, start=3)
        other.close()

    assert in_forked_child(work) == 0
    error = failure(recorder, event("a", 3))
    assert isinstance(error, RecordedConflictError)
    assert (error.expected, error.actual) == (2, 4)
    fill(recorder, "a", 5, start=5)
    rows = recorder.lineage("a")
    assert [row.hash for row in rows] == recomputed_hashes(rows)
    recorder.close()


def test_wakes_a_listener_after_another_processs_commit(path: str) -> None:
    recorder = SQLiteRecorder.open(path)
    subscription = recorder.subscribe(gt=0)

    def work() -> None:
        other = SQLiteRecorder.open(path)
        append(other, event("a", 1))
        other.close()

    child = start(work)
    assert next(subscription).originator_id == "a"
    finish([child])
    subscription.stop()
    recorder.close()


def test_a_forked_child_continues_after_the_parent_closes_the_store(path: str) -> None:
    recorder = SQLiteRecorder.open(path)
    fill(recorder, "a", 3)
    closed_read, closed_write = os.pipe()
    wrote_read, wrote_write = os.pipe()

    def work() -> None:
        fill(recorder, "child", 1)
        os.write(wrote_write, b"x")
        assert os.read(closed_read, 1) == b"x"
        fill(recorder, "child", 3, start=2)
        fill(recorder, "a", 5, start=5)
        recorder.close()

    child = start(work)
    assert os.read(wrote_read, 1) == b"x"
    fill(recorder, "a", 4, start=4)
    recorder.close()
    other = SQLiteRecorder.open(path)
    other.close()
    os.write(closed_write, b"x")
    finish([child])
    recorder = SQLiteRecorder.open(path)
    assert [row.version for row in recorder.lineage("a")] == [1, 2, 3, 4, 5]
    assert [row.version for row in recorder.lineage("child")] == [1, 2, 3]
    assert recorder.query("PRAGMA integrity_check") == [("ok",)]
    recorder.close()
    for end in (closed_read, closed_write, wrote_read, wrote_write):
        os.close(end)


def test_a_forked_child_that_exits_does_not_release_the_parents_locks(path: str) -> None:
    recorder = SQLiteRecorder.open(path)
    fill(recorder, "a", 1)
    assert in_forked_child(lambda: None) == 0

    def work() -> None:
        other = SQLiteRecorder.open(path)
        fill(other, "a", 2, start=2)
        other.close()

    assert in_forked_child(work) == 0
    assert Path(path + "-wal").exists(), "another process removed the log of an open store"
    fill(recorder, "a", 3, start=3)
    assert len(recorder.lineage("a")) == 3
    recorder.close()


def test_reports_that_another_process_holds_the_lock(path: str) -> None:
    recorder = SQLiteRecorder.open(path, lock_timeout=0.2)
    fill(recorder, "a", 1)
    other = FileLock(path + ".lock", 1)
    with other.held():
        error = failure(recorder, event("a", 2))
    assert isinstance(error, StoreUnavailableError)
    assert "another process has held the lock" in str(error)
    assert [row.version for row in recorder.lineage("a")] == [1]
    other.close()
    fill(recorder, "a", 2, start=2)
    recorder.close()


def test_a_waiting_process_gets_the_lock_when_it_is_free(path: str) -> None:
    recorder = SQLiteRecorder.open(path)
    other = FileLock(path + ".lock", 1)
    with other.held():
        future = recorder.submit(Append([event("a", 1)]))
        time.sleep(0.05)
        assert not future.done()
    assert future.result(PATIENCE).versions == (1,)
    take(other)
    other.close()
    recorder.close()


def test_a_program_ends_without_closing_its_store(path: str) -> None:
    program = """
import sys
from eventsourcing.persistence import StoredEvent
from clew.infrastructure.recorder_ports import Append
from clew.infrastructure.sqlite.recorder import SQLiteRecorder
recorder = SQLiteRecorder.open(sys.argv[1])
recorder.listen(lambda: None)
recorder.submit(Append([StoredEvent("a", 1, "noted", b"x")])).result()
"""
    done = subprocess.run([sys.executable, "-c", program, path], env=environment(), timeout=PATIENCE, check=False)
    assert done.returncode == 0
    recorder: Any = SQLiteRecorder.open(path)
    assert len(recorder.lineage("a")) == 1
    recorder.close()


def test_closing_a_second_store_does_not_release_the_locks_of_the_first(path: str) -> None:
    recorder = SQLiteRecorder.open(path)
    fill(recorder, "a", 1)
    SQLiteRecorder.open(path).close()

    def work() -> None:
        other = SQLiteRecorder.open(path)
        fill(other, "a", 2, start=2)
        other.close()

    assert in_forked_child(work) == 0
    assert Path(path + "-wal").exists(), "another process removed the log of an open store"
    fill(recorder, "a", 3, start=3)
    assert len(recorder.lineage("a")) == 3
    recorder.close()
