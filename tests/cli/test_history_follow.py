"""``clew log -f`` in a pipe and on a terminal, while other processes write."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.acceptance.clew_command import COMMAND, ENVIRONMENT
from tests.cli.terminal_session import Session

from clew import Conversations, Message

if TYPE_CHECKING:
    from tests.cli.conftest import CalledClew as Clew


@pytest.fixture
def conversations(tmp_path: Path) -> Iterator[Conversations]:
    with Conversations.open(f"sqlite:///{tmp_path}/clew.db?synchronous=OFF") as opened:
        thread = opened.start_thread("Refund", thread_id="first", messages=[Message.user("one")], actor="user:1")
        thread.append(Message.user("two"))
        yield opened


@contextmanager
def following(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*COMMAND, "log", "-f", *arguments],
        cwd=folder,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_writes_existing_events_and_then_new_ones(tmp_path: Path, conversations: Conversations) -> None:
    thread = conversations.thread("first")
    with following(tmp_path, "fir", "--json") as process:
        there: list[Any] = [json.loads(line(process)) for _ in range(3)]
        assert [each["version"] for each in there] == [1, 2, 3]
        conversations.start_thread("another")
        for number in range(3):
            thread.append(Message.user(f"later {number}"))
            came = json.loads(line(process))
            assert (came["thread_id"], came["version"]) == ("first", 4 + number)
            assert came["data"]["message"]["contents"][0]["text"] == f"later {number}"
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
        assert (process.returncode, output, errors) == (130, "", "")


def test_without_a_thread_it_follows_all_after_a_position(tmp_path: Path, conversations: Conversations) -> None:
    with following(tmp_path, "--after", "2") as process:
        assert line(process).split()[2:] == ["first", "3", "message-appended", "user:", "two"]
        conversations.start_thread("Another", thread_id="second", actor="user:2")
        assert line(process).split()[2:] == ["second", "1", "thread-started", "user:2", "·", "Another"]
        conversations.thread("first").fork(thread_id="third").append(Message.user("three\n\x1b[2Jfour"))
        assert line(process).split()[2:5] == ["third", "4", "thread-forked"]
        assert line(process).endswith(" user: three \\x1b[2Jfour\n")


def test_ends_without_new_events_when_the_reader_has_left(tmp_path: Path, conversations: Conversations) -> None:
    with following(tmp_path, "first") as process:
        assert "thread-started" in line(process)
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(timeout=60) == 1
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert conversations.thread("first").version == 3


def test_follows_on_a_terminal_and_ends_quietly_with_ctrl_c(tmp_path: Path, conversations: Conversations) -> None:
    with Session(tmp_path, "log", "first", "--follow", "--after", "2") as session:
        session.until_written("two")
        conversations.thread("first").append(Message.user("漢字 " * 200))
        session.until_written("…")
        session.interrupt()
        assert session.end() == 130
        lines = session.output.replace("^C", "").splitlines()
    assert len(lines) == 2
    assert "message-appended" in lines[1]
    assert "interrupted" not in session.output
    assert len(lines[1]) < 200


def test_writes_the_events_before_a_damaged_one_and_continues_after_it(
    clew: Clew, tmp_path: Path, conversations: Conversations
) -> None:
    conversations.thread("first").append([Message.user("three"), Message.user("four")])
    with closing(sqlite3.connect(tmp_path / "clew.db", isolation_level=None)) as raw:
        raw.execute("UPDATE event SET state = CAST(substr(state, 1, 40) AS BLOB) WHERE position = 4")
    for thread in ((), ("first",)):
        followed = clew.run("log", "-f", "--json", *thread)
        assert [json.loads(each)["version"] for each in followed.stdout.splitlines()] == [1, 2, 3]
        assert "first version 4 (message-appended) cannot be read" in followed.stderr
        assert "read the events after version 4, or of the whole store after position 4" in followed.stderr
        assert followed.returncode == 1
        with following(tmp_path, "--json", "--after", "4", *thread) as process:
            assert json.loads(line(process))["version"] == 5
    listed = clew.run("log", "first", "--json")
    assert [json.loads(each)["version"] for each in listed.stdout.splitlines()] == [1, 2, 3]
    assert listed.returncode == 1
    done = clew.run("log", "first")
    assert [each.split()[0] for each in done.stdout.splitlines()[2:]] == ["1", "2", "3"]
    assert "first version 4 (message-appended) cannot be read" in done.stderr
    assert done.returncode == 1
    assert "version 4 (message-appended) cannot be read" in clew.refused(1, "log", "first", "--after", "3")


@pytest.mark.usefixtures("conversations")
def test_after_skips_earlier_events(clew: Clew) -> None:
    assert [each["version"] for each in clew.lines("log", "first", "--json", "--after", "1")] == [2, 3]
    assert "thread-started" not in clew.text("log", "first", "--after", "1")
    assert clew.lines("log", "first", "--json", "--after", "3") == []


@pytest.mark.usefixtures("conversations")
def test_refuses_unknown_threads_and_missing_arguments(clew: Clew) -> None:
    assert "no thread 'zz'" in clew.refused(1, "log", "-f", "zz")
    assert "Missing argument 'THREAD'" in clew.refused(2, "log")
    assert "Missing argument 'THREAD'" in clew.refused(2, "log", "--after", "1")
    assert "--after" in clew.refused(2, "log", "first", "--after", "-1")
    assert "the database does not exist" in clew.refused(1, "--db", "sqlite:///none.db", "log", "-f")
