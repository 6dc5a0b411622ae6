"""Ctrl-C in the main thread, which writes its own appends, at every line of the writer and its locks."""

from __future__ import annotations

import linecache
import sqlite3
import threading
from contextlib import closing
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tests.infrastructure.interruptions import Interruptions, Points
from tests.infrastructure.recorder_steps import PATIENCE, append, event, recomputed_hashes, wait_until

from clew.domain.ports import Key, Shred
from clew.domain.streams import digest
from clew.infrastructure import append_queue
from clew.infrastructure.recorder_ports import Append
from clew.infrastructure.sqlite import file_lock, wal_checkpoints, writer
from clew.infrastructure.sqlite.recorder import SQLiteRecorder

FILES = {module.__file__ for module in (append_queue, file_lock, wal_checkpoints, writer)}


def lines_of_the_writer() -> Points:
    """Each line that writes an append, if the interpreter can handle a signal before it.

    It handles none between taking a lock and its block, and in a function not before the first call.
    """

    def is_point(frame: FrameType, kind: str) -> bool | None:
        if frame.f_code.co_filename not in FILES:
            return None
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        uninterrupted = (
            "with ",
            "try:",
            "finally:",
            "if self._fd is not None:",
            "fcntl.flock(self._fd, fcntl.LOCK_UN)",
        )
        return kind == "line" and not line.startswith(uninterrupted)

    return is_point


@pytest.mark.parametrize("content", ["event", "everything"])
def test_continues_wherever_an_append_is_interrupted(tmp_path: Path, content: str) -> None:
    """Nothing half-written is stored or cached, no lock is left, and a listener learns of every stored event."""
    path = str(tmp_path / "clew.db")
    lines, number, told = Interruptions(lines_of_the_writer), 0, threading.Semaphore(0)
    with closing(SQLiteRecorder.open(path)) as recorder, closing(SQLiteRecorder.open(path)) as other:
        end = recorder.listen(partial(release, told), "a")
        while lines.more:
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
            lines.interrupt_next(future.result)
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
    assert lines.count > 60


def release(semaphore: threading.Semaphore) -> None:
    semaphore.release()


def rows_of(recorder: SQLiteRecorder, stream: str) -> list[Any]:
    return recorder.own_rows(stream, limit=10_000)
