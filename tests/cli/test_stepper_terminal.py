"""``clew replay`` in a real process on a pseudo-terminal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.terminal_session import Session

from clew import Conversations, Message


def opened(folder: Path) -> Conversations:
    return Conversations.open(f"sqlite:///{folder}/clew.db?synchronous=OFF")


def fill(folder: Path) -> None:
    with opened(folder) as conversations:
        thread = conversations.start_thread("Café 漢字", thread_id="first", messages=[Message.user("one\x1b[2J")])
        thread.append([Message.assistant("two " * 100), Message.user("three")])
        thread.rewind(to=2)
        thread.append(Message.assistant("four"))


def test_the_stepper_steps_grows_resizes_and_restores_the_terminal(tmp_path: Path) -> None:
    fill(tmp_path)
    with Session(tmp_path, "replay", "first") as session:
        lines = session.until("version 6 of 6", "four")
        assert len(lines) == 24
        assert lines[0] == "Café 漢字 first"
        assert session.is_full_screen()
        session.press("\x1b[D")
        assert "    three" in session.until("version 5 of 6", "Taken back by the rewind:")
        session.press("h")
        session.until("version 4 of 6", "▶ 3 user")
        session.press("\x1b[C")
        session.until("version 5 of 6")
        session.press("g")
        session.until("version 1 of 6", "The thread began: Café 漢字")
        session.press("2\r")
        session.until("version 2 of 6", "one\\x1b[2J")
        session.resize(10, 40)
        lines = session.until_height(10)
        assert lines[4] == "─" * 40
        assert max(map(len, lines)) <= 40
        with opened(tmp_path) as conversations:
            conversations.thread("first").append(Message.user("five"))
        session.press("\x1b[F")
        session.until("version 7 of 7", "five")
        session.press("\x1b")
        session.press("q")
        assert session.end() == 0
        assert session.is_restored()


@pytest.mark.parametrize(
    ("leave", "code", "message"),
    [
        (Session.interrupt, 130, "clew: interrupted."),
        (Session.terminate, 143, ""),
        (lambda session: session.press("h"), 1, "is deleted, so `clew replay` cannot read it."),
    ],
    ids=["Ctrl-C", "SIGTERM", "an error"],
)
def test_every_exit_restores_the_terminal(
    tmp_path: Path, leave: Callable[[Session], None], code: int, message: str
) -> None:
    fill(tmp_path)
    with Session(tmp_path, "replay", "first", "--at", "3") as session:
        session.until("version 3 of 6")
        assert session.is_full_screen()
        with opened(tmp_path) as conversations:
            conversations.thread("first").delete()
        leave(session)
        assert session.end() == code
        assert session.is_restored()
        after = session.output.rpartition("\x1b[?1049l")[2]
        assert message in after
        assert "Traceback" not in after


def test_a_thread_of_ten_thousand_events_opens_and_steps_both_ways(tmp_path: Path) -> None:
    with opened(tmp_path) as conversations:
        thread = conversations.start_thread(thread_id="long")
        thread.append([Message.user(f"message {number}") for number in range(2, 10_001)])
    with Session(tmp_path, "replay", "long") as session:
        session.until("version 10000 of 10000", "▶ 9999 user", "    message 10000", "    message 9999")
        for keys, version in (("h", 9_999), ("h", 9_998), ("l", 9_999), ("5000\r", 5_000), ("h", 4_999), ("[", 4_998)):
            session.press(keys)
            session.until(f"version {version} of 10000", f"    message {version}", f"    message {version - 1}")
        session.press("g")
        session.until("version 1 of 10000", "The thread began")
        session.press("q")
        assert session.end() == 0


@pytest.mark.parametrize("arguments", [[], ["--json"]], ids=["dumb", "json"])
def test_json_and_dumb_terminals_have_no_stepper(tmp_path: Path, arguments: list[str]) -> None:
    fill(tmp_path)
    with Session(tmp_path, "replay", "first", *arguments, term="xterm" if arguments else "dumb") as session:
        assert session.end() == 0
        assert "\x1b[?1049h" not in session.output
        assert session.output.count("history-rewound") == 1
