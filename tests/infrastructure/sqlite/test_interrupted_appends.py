"""Ctrl-C in the main thread, which writes its own appends, at every point of the writer and its locks."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.infrastructure.interruptions import Interruptions, signal_points
from tests.infrastructure.recorder_steps import PATIENCE, append, event, recomputed_hashes, wait_until

from clew.domain.ports import Key, Shred
from clew.domain.streams import digest
from clew.infrastructure import append_queue
from clew.infrastructure.recorder_ports import Append
from clew.infrastructure.sqlite import datastore, file_lock, wal_checkpoints, writer
from clew.infrastructure.sqlite.recorder import SQLiteRecorder

FILES = [module.__file__ for module in (append_queue, file_lock, wal_checkpoints, writer)]


@pytest.mark.parametrize("content", ["event", "everything"])
def test_continues_wherever_an_append_is_interrupted(tmp_path: Path, content: str) -> None:
    """Nothing half-written is stored or cached, no lock is left, and a listener learns of every stored event."""
    path = str(tmp_path / "clew.db")
    points, number, told = Interruptions(signal_points(*FILES)), 0, threading.Semaphore(0)
    with closing(SQLiteRecorder.open(path)) as recorder, closing(SQLiteRecorder.open(path)) as other:
        end = recorder.listen(partial(release, told), "a")
        while points.more:
            number += 1
            head = append(recorder, event("a", 1 + len(rows_of(recorder, "a")))).versions[0]
            assert told.acquire(timeout=PATIENCE)
            more: dict[str, Any] = {}
            if content == "everything":
                shred = Shred("a", head, digest(f"a {head}".encode()), b"")
                more = {"key": Key("a", f"k{number}", b"content"), "shreds": [shred]}
            wait_until(lambda: not recorder.datastore.queue._writing)  # otherwise the writer thread writes the next one
            while told.acquire(blocking=False):
                pass
            future = recorder.enqueue(Append([event("a", head + 1), event(f"new{number}", 1)], **more))
            points.interrupt_next(future.result)
            error = future.exception(PATIENCE)
            assert isinstance(error, KeyboardInterrupt | None)
            rows = rows_of(recorder, "a")
            assert [row.version for row in rows] in ([*range(1, head + 1)], [*range(1, head + 2)])
            assert error is not None or rows[-1].version == head + 1
            assert [row.hash for row in rows] == recomputed_hashes(rows)
            if rows[-1].version == head + 1:
                assert told.acquire(timeout=PATIENCE)
            assert bool(rows_of(recorder, f"new{number}")) == (rows[-1].version == head + 1)
            # Another process could write now: this one holds neither its lock nor a transaction.
            assert append(other, event("b", number)).versions == (number,)
        end()
        wait_until(lambda: not recorder.datastore.queue._writing)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert points.count > 60


def test_a_second_close_does_the_rest_of_an_interrupted_one(tmp_path: Path) -> None:
    path = tmp_path / "clew.db"
    points, number = Interruptions(signal_points(*FILES, datastore.__file__)), 0
    while points.more:
        number += 1
        recorder = SQLiteRecorder.open(str(path), synchronous="OFF")
        append(recorder, event("a", number))
        points.interrupt_next(recorder.close)
        recorder.close()
        assert sorted(each.name for each in tmp_path.iterdir()) == [path.name, f"{path.name}.lock"]
        assert recorder.datastore.lock._fd is None
    assert points.count > 15


def release(semaphore: threading.Semaphore) -> None:
    semaphore.release()


def rows_of(recorder: SQLiteRecorder, stream: str) -> list[Any]:
    return recorder.own_rows(stream, limit=10_000)
