"""Processes that are interrupted or killed while they copy events: another import completes their work."""

from __future__ import annotations

import json
import random
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.clew_command import COMMAND, ENVIRONMENT
from tests.infrastructure.recorder_steps import PATIENCE, wait_until

from clew import Conversations, Message

THREADS, MESSAGES = 30, 98


@pytest.fixture(scope="module")
def lines() -> list[bytes]:
    """An export of some thousand events with redacted messages far apart."""
    with Conversations.open("memory:") as store:
        threads = [store.start_thread(thread_id=str(number)) for number in range(THREADS)]
        for number in range(MESSAGES):
            messages = [each.append(Message.user(f"{number} {'x' * 60}")) for each in threads[: 1 + number % THREADS]]
            if number % 7 == 0:
                kept = messages[0]
            if number % 7 == number // 14 % 7:  # from one to seven rounds later
                threads[0].redact(kept)
        return list(store.export_events())


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def start(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return subprocess.Popen([*COMMAND, *arguments], cwd=folder, env=ENVIRONMENT, stdin=pipe, stdout=pipe, stderr=pipe)


def events(folder: Path) -> int:
    """The number of events in the database; 0 if it does not exist yet."""
    try:
        database = sqlite3.connect(f"file:{folder}/clew.db?mode=ro", uri=True)
        try:
            return int(database.execute("SELECT count(*) FROM event").fetchone()[0])
        finally:
            database.close()
    except sqlite3.Error:
        return 0


def goes_on(folder: Path, lines: list[bytes]) -> None:
    """Check that the imported events verify, and that another import completes them."""
    with Conversations.open(f"sqlite:///{folder}/clew.db") as copy:
        before = copy.verify()
        assert before.first_bad is None
        (folder / "copy.jsonl").write_bytes(b"".join(lines))
        result = copy.import_events(folder / "copy.jsonl")
        assert (result.skipped, result.failed, result.torn) == (before.events, [], False)
        assert list(copy.export_events()) == lines
        assert copy.verify().first_bad is None


def test_ctrl_c_in_a_long_import_leaves_whole_commits(
    lines: list[bytes], tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    process = start(tmp_path, "import", "-")
    started.append(process)
    assert process.stdin is not None
    process.stdin.write(b"".join(lines[: len(lines) * 3 // 4]))
    process.stdin.flush()
    wait_until(lambda: events(tmp_path) > 0)  # it waits for the rest then, or is about to
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (130, b"clew: interrupted.\n")
    assert 0 < events(tmp_path) < len(lines) * 3 // 4
    goes_on(tmp_path, lines)


def test_a_killed_import_can_be_repeated(
    lines: list[bytes], tmp_path: Path, scale: float, started: list[subprocess.Popen[bytes]]
) -> None:
    chance = random.Random(11)
    for number in range(max(3, round(20 * scale))):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "copy.jsonl").write_bytes(b"".join(lines))
        reached = chance.randrange(len(lines) - 2)
        process = start(folder, "import", "copy.jsonl")
        started.append(process)
        wait_until(lambda: events(folder) >= reached or process.poll() is not None)  # noqa: B023  # called at once
        process.kill()
        process.communicate()
        goes_on(folder, lines)


def test_an_export_ends_when_its_reader_has_left(
    lines: list[bytes], tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    goes_on(tmp_path, lines)
    process = start(tmp_path, "export", "--format", "clew")
    started.append(process)
    assert process.stdout is not None
    assert process.stdout.readline() == lines[0]
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.wait(PATIENCE) == 1


def conversations_file(folder: Path) -> list[dict[str, Any]]:
    """Write a file of many conversations of 19 messages, which are 20 events."""
    messages = [{"role": "user", "content": f"Question {number}"} for number in range(19)]
    values = [{"id": str(number), "messages": messages} for number in range(600)]
    (folder / "all.jsonl").write_text("".join(json.dumps(value) + "\n" for value in values), encoding="utf-8")
    return values


def whole_conversations_are_completed(folder: Path, values: list[dict[str, Any]]) -> int:
    """Check that conversations are there whole or not at all, and that another import completes them."""
    with Conversations.open(f"sqlite:///{folder}/clew.db", projections=()) as there:
        verdict = there.verify()
        assert verdict.first_bad is None
        assert verdict.events == 20 * verdict.threads, "a conversation is there whole or not at all"
        report = there.import_files(folder / "all.jsonl")
        assert (report.skipped, report.threads, report.failed) == (verdict.threads, len(values) - verdict.threads, [])
        assert list(there.export()) == values
    return verdict.threads


def test_ctrl_c_in_a_long_import_leaves_whole_conversations_and_can_be_repeated(
    tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    values = conversations_file(tmp_path)
    process = start(tmp_path, "import", "all.jsonl")
    started.append(process)
    wait_until(lambda: events(tmp_path) >= 200)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (130, b"clew: interrupted.\n")
    assert 10 <= whole_conversations_are_completed(tmp_path, values) < len(values), "it was interrupted in the middle"


def test_a_killed_import_leaves_whole_conversations_and_can_be_repeated(
    tmp_path: Path, scale: float, started: list[subprocess.Popen[bytes]]
) -> None:
    chance = random.Random(12)
    for number in range(max(3, round(20 * scale))):
        folder = tmp_path / str(number)
        folder.mkdir()
        values = conversations_file(folder)
        reached = chance.randrange(5 * len(values))
        process = start(folder, "import", "all.jsonl")
        started.append(process)
        wait_until(lambda: events(folder) > reached)  # noqa: B023  # called at once
        process.kill()
        process.communicate()
        assert 0 < whole_conversations_are_completed(folder, values) < len(values), "it was killed in the middle"
