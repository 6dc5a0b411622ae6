"""Shredded text leaves no byte in a SQLite file or its log, even with a concurrent reader or after a kill."""

from __future__ import annotations

import os
import random
import re
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.infrastructure.recorder_steps import append, event, fill, in_forked_child, wait_until

from clew.domain.ports import Key, Shred
from clew.domain.streams import digest
from clew.infrastructure.recorder_ports import Append
from clew.infrastructure.sqlite.recorder import SQLiteRecorder
from clew.infrastructure.sqlite.wal_checkpoints import Checkpoints


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "clew.db")


@pytest.fixture
def recorder(path: str) -> Iterator[SQLiteRecorder]:
    recorder = SQLiteRecorder.open(path)
    yield recorder
    recorder.close()


def bytes_of(path: str) -> bytes:
    return b"".join(Path(path + end).read_bytes() for end in ("", "-wal") if Path(path + end).exists())


def text(number: int, chance: random.Random) -> bytes:
    length = chance.choice([3, 40, 90, 200, 500, 3900, 4200, 20_000 if chance.random() < 0.2 else 60])
    return b"SECRET-%06d-" % number + chance.randbytes(length).hex().encode()


@pytest.mark.parametrize("seed", range(3))
def test_shredded_text_leaves_no_byte_in_the_file(path: str, seed: int) -> None:
    chance = random.Random(seed)
    recorder = SQLiteRecorder.open(path, synchronous="OFF")
    texts = {number: text(number, chance) for number in range(1, 401)}
    for number, state in texts.items():
        recorder.submit(Append([event("a", number, state)], key=Key("a", str(number), state)))
    fill(recorder, "b", 1)
    order = list(texts)
    chance.shuffle(order)
    version = 400
    for start in range(0, 360, 30):
        shredded = order[start : start + 30]
        version += 1
        shreds = [
            # Stubs that are longer than the text could move neighbouring rows.
            Shred("a", number, digest(texts[number]), b"s" * chance.choice([0, 30, 150, 330, 400, 2000]))
            for number in shredded
        ]
        append(recorder, event("a", version), shreds=shreds)
        wait_until(lambda: Path(path + "-wal").stat().st_size == 0)
        remaining = {int(number) for number in re.findall(rb"SECRET-(\d{6})-", bytes_of(path))}
        assert remaining == set(order[start + 30 :])
    recorder.close()


def test_removes_the_text_from_the_log_after_a_reader_ends(path: str, recorder: SQLiteRecorder) -> None:
    secret = b"SECRET-IN-THE-LOG" * 10
    append(recorder, event("a", 1, secret))
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM event").fetchall()
    append(recorder, event("a", 2), shreds=[Shred("a", 1, digest(secret), b"stub")])
    assert secret in bytes_of(path)
    reader.execute("ROLLBACK")
    wait_until(lambda: secret not in bytes_of(path))
    reader.close()
    append(recorder, event("a", 3))


def redact_and_die(path: str, secret: bytes) -> None:
    recorder = SQLiteRecorder.open(path)
    append(recorder, event("a", 1, secret))
    with recorder.datastore.readers.reading() as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT * FROM event").fetchall()
        append(recorder, event("a", 2), shreds=[Shred("a", 1, digest(secret), b"stub")])
        os.kill(os.getpid(), signal.SIGKILL)


def test_removes_the_text_of_a_killed_process_from_the_log(path: str) -> None:
    secret = b"SECRET-IN-THE-LOG" * 10
    assert in_forked_child(lambda: redact_and_die(path, secret)) == -signal.SIGKILL
    assert secret in bytes_of(path)
    recorder = SQLiteRecorder.open(path)
    assert secret not in bytes_of(path)
    assert [row.state for row in recorder.lineage("a")] == [b"stub", b"a 2"]
    recorder.close()


def test_removes_the_text_of_a_killed_process_after_a_reader_ends(path: str) -> None:
    secret = b"SECRET-IN-THE-LOG" * 10
    SQLiteRecorder.open(path).close()
    assert in_forked_child(lambda: redact_and_die(path, secret)) == -signal.SIGKILL
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM event").fetchall()
    recorder = SQLiteRecorder.open(path)
    append(recorder, event("a", 3))
    assert secret in bytes_of(path)
    reader.execute("ROLLBACK")
    wait_until(lambda: secret not in bytes_of(path))
    recorder.close()
    reader.close()


def test_opens_a_store_whose_log_cannot_be_emptied(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = b"SECRET-IN-THE-LOG" * 10
    assert in_forked_child(lambda: redact_and_die(path, secret)) == -signal.SIGKILL

    def fail(*_: object) -> bool:
        message = "disk I/O error of the test"
        raise sqlite3.OperationalError(message)

    with monkeypatch.context() as broken:
        broken.setattr(Checkpoints, "_checkpoint", fail)
        recorder = SQLiteRecorder.open(path)
    assert secret in bytes_of(path)
    append(recorder, event("a", 3))
    wait_until(lambda: secret not in bytes_of(path))
    recorder.close()


def test_removes_the_text_when_the_store_closes(path: str) -> None:
    secret = b"SECRET-IN-THE-LOG" * 10
    recorder = SQLiteRecorder.open(path)
    append(recorder, event("a", 1, secret))
    other = sqlite3.connect(path, isolation_level=None)
    assert other.execute("SELECT count(*) FROM event").fetchone() == (1,)
    append(recorder, event("a", 2), shreds=[Shred("a", 1, digest(secret), b"stub")])
    recorder.close()
    assert secret not in bytes_of(path)
    other.close()
