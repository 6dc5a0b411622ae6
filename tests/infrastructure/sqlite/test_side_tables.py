"""Blobs, leases and drafts in a SQLite file: with several processes, and the removal of deleted drafts."""

from __future__ import annotations

import os
import random
import re
import signal
import sqlite3
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from tests.infrastructure.recorder_steps import append, event, failure, fill, in_forked_child, wait_until
from tests.infrastructure.sqlite.test_processes import finish, start
from tests.infrastructure.sqlite.test_shredding import bytes_of

from clew.domain.ports import Blob, Claim, Draft, Lease, Shred
from clew.domain.runs.errors import RunInProgressError
from clew.domain.streams import digest
from clew.infrastructure.sqlite import wal_checkpoints as sqlite_checkpoints
from clew.infrastructure.sqlite.recorder import SQLiteRecorder

SECRET = b"SECRET-OF-A-DRAFT" * 30


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "clew.db")


@pytest.fixture
def recorder(path: str) -> Iterator[SQLiteRecorder]:
    recorder = SQLiteRecorder.open(path)
    yield recorder
    recorder.close()


@pytest.fixture
def reader(path: str, recorder: SQLiteRecorder) -> Iterator[sqlite3.Connection]:
    """Another program with an open connection, so that SQLite keeps the log when the store closes."""
    fill(recorder, "other", 1)
    connection = sqlite3.connect(path, isolation_level=None)
    assert connection.execute("SELECT count(*) FROM event").fetchone() == (1,)
    yield connection
    connection.close()


# Processes


def test_exactly_one_of_two_processes_gets_each_lease(path: str, tmp_path: Path) -> None:
    names = [f"s{number}" for number in range(30)]
    recorder = SQLiteRecorder.open(path)
    append(recorder, *[event(name, 1) for name in names])
    recorder.close()
    ready, start_signal = os.pipe()

    def race(holder: str) -> None:
        mine = SQLiteRecorder.open(path)
        os.close(start_signal)
        os.read(ready, 1)  # both children start when the parent closes its end
        for name in names:
            error = failure(mine, event(name, 2), claims=[Claim(name, holder, now=10, until=20)])
            with (tmp_path / holder).open("a") as won:
                won.write(f"{name} " if error is None else "")
            assert error is None or isinstance(error, RunInProgressError)
        mine.close()

    children = [start(lambda holder=holder: race(holder)) for holder in ("me", "you")]  # type: ignore[misc] # a bound loop variable
    os.close(ready)
    os.close(start_signal)
    finish(children)
    won = {holder: (tmp_path / holder).read_text().split() for holder in ("me", "you")}
    assert sorted(won["me"] + won["you"]) == sorted(names)
    recorder = SQLiteRecorder.open(path)
    for holder, mine in won.items():
        assert [recorder.lease(name) for name in mine] == [Lease(name, holder, 20) for name in mine]
    assert all(len(recorder.lineage(name)) == 2 for name in names)
    recorder.close()


def claim_and_die(path: str) -> None:
    recorder = SQLiteRecorder.open(path)
    append(recorder, event("a", 1), claims=[Claim("a", "gone", now=10, until=20)], drafts=[Draft("a", "run", b"He")])
    os.kill(os.getpid(), signal.SIGKILL)


def test_another_process_gets_the_lease_of_a_killed_process_after_it_expires(path: str) -> None:
    SQLiteRecorder.open(path).close()
    assert in_forked_child(lambda: claim_and_die(path)) == -signal.SIGKILL
    recorder = SQLiteRecorder.open(path)
    error = failure(recorder, claims=[Claim("a", "me", now=19, until=40)])
    assert isinstance(error, RunInProgressError)
    assert error.holder == "gone"
    append(recorder, claims=[Claim("a", "me", now=20, until=40)])
    assert recorder.lease("a") == Lease("a", "me", 40)
    assert recorder.draft("a") == Draft("a", "run", b"He")
    recorder.close()


def write_and_die(path: str, step: int) -> None:
    recorder = SQLiteRecorder.open(path)
    version = len(recorder.lineage("a")) + 1
    remaining = step

    def count(_: str) -> None:
        nonlocal remaining
        remaining -= 1
        if remaining == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    data = b"blob %d" % step
    recorder.datastore.writing().set_trace_callback(count)
    append(
        recorder,
        event("a", version),
        blobs=[Blob(sha256(data).digest(), "definition", data)],
        claims=[Claim("a", "me", now=step, until=step + 1)],
        drafts=[Draft("a", f"run {step}", data)],
    )
    recorder.close()


def test_side_rows_and_events_of_an_append_are_atomic(path: str) -> None:
    recorder = SQLiteRecorder.open(path)
    fill(recorder, "a", 1)
    recorder.close()
    step, version, status, last = 0, 1, -1, 0
    while status != 0:
        step += 1
        status = in_forked_child(lambda: write_and_die(path, step))  # noqa: B023 - called at once
        recorder = SQLiteRecorder.open(path)
        added = len(recorder.lineage("a")) - version
        assert added == 1 if status == 0 else added in (0, 1)
        version += added
        data = b"blob %d" % step
        last = step if added else last
        assert (recorder.blob(sha256(data).digest()) is not None) == bool(added)
        assert recorder.lease("a") == (Lease("a", "me", last + 1) if last else None)
        assert recorder.draft("a") == (Draft("a", f"run {last}", b"blob %d" % last) if last else None)
        recorder.close()
    assert step > 7, "the append had too few statements to be killed at"


# Deleted drafts


def checkpoint(recorder: SQLiteRecorder) -> None:
    with recorder.datastore.lock.held():
        assert recorder.datastore.writing().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0


@pytest.mark.parametrize("seed", range(3))
def test_deleted_drafts_leave_no_byte_in_the_file(path: str, seed: int) -> None:
    chance = random.Random(seed)
    recorder = SQLiteRecorder.open(path, synchronous="OFF")
    names = [f"s{number}" for number in range(80)]
    append(recorder, *[event(name, 1) for name in names])
    existing: dict[str, int] = {}
    for number in range(1, 601):
        name = chance.choice(names)
        if chance.random() < 0.4:
            append(recorder, drafts=[Draft(name, "run", None)])
            existing.pop(name, None)
        else:
            data = b"DRAFT-%06d-" % number + b"x" * chance.choice([0, 40, 300, 900, 3_000, 3_900, 4_100, 9_000])
            append(recorder, drafts=[Draft(name, "run", data * 2)])
            existing[name] = number
        if number % 50 == 0:
            checkpoint(recorder)
            assert {int(match) for match in re.findall(rb"DRAFT-(\d{6})-", bytes_of(path))} == set(existing.values())
    recorder.close()
    match = re.findall(rb"DRAFT-(\d{6})-", bytes_of(path))
    assert sorted(map(int, match)) == sorted([*existing.values()] * 2)


def test_closing_the_store_removes_deleted_drafts_from_the_log(
    path: str, recorder: SQLiteRecorder, reader: sqlite3.Connection
) -> None:
    append(recorder, drafts=[Draft("other", "run", SECRET)])
    append(recorder, drafts=[Draft("other", "run", None)])
    assert SECRET[:200] in bytes_of(path)
    recorder.close()
    assert SECRET[:17] not in bytes_of(path)
    reader.execute("SELECT count(*) FROM event")


@pytest.mark.usefixtures("reader")
def test_the_next_checkpoint_removes_deleted_drafts_from_the_log(
    path: str, recorder: SQLiteRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_checkpoints, "PASSIVE_BYTES", 20_000)
    monkeypatch.setattr(sqlite_checkpoints, "CHECK_BYTES", 20_000)
    append(recorder, drafts=[Draft("other", "run", SECRET)])
    append(recorder, drafts=[Draft("other", "run", None)])
    append(recorder, event("a", 1, b"x" * 300_000))
    wait_until(lambda: SECRET[:17] not in bytes_of(path))


@pytest.mark.usefixtures("reader")
def test_redacting_an_answer_removes_its_draft_from_the_log(path: str, recorder: SQLiteRecorder) -> None:
    append(recorder, drafts=[Draft("other", "run", SECRET)])
    append(recorder, event("other", 2, SECRET), drafts=[Draft("other", "run", None)])
    assert SECRET[:200] in bytes_of(path)
    append(recorder, event("other", 3), shreds=[Shred("other", 2, digest(SECRET), b"stub")])
    wait_until(lambda: SECRET[:17] not in bytes_of(path))
