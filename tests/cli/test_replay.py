"""``clew replay`` without a terminal, and its stepper on a screen of the tests."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from clew import Conversations, Message
from clew.cli import stepper
from clew.sync.threads import LocalThread

if TYPE_CHECKING:
    from rich.text import Text
    from tests.cli.conftest import CalledClew as Clew

SHAPE = ["thread_id", "version", "type", "time", "actor", "status", "messages", "checkpoints", "data"]


@pytest.fixture
def conversations(clew: Clew) -> Iterator[Conversations]:
    with Conversations.open(f"sqlite:///{clew.folder / 'clew.db'}?synchronous=OFF") as opened:
        yield opened


@pytest.fixture
def branch(conversations: Conversations) -> LocalThread:
    """A fork of a thread that was rewound and redacted."""
    thread = conversations.start_thread("Refund", thread_id="main", messages=[Message.user("Where?")], actor="user:1")
    thread.checkpoint("before")
    thread.append(Message.assistant("Wrong."))
    thread.rewind(to="before")
    thread.append([Message.assistant("Here."), Message.user("Thanks.")])
    thread.redact(4)
    fork = thread.fork(thread_id="branch")
    fork.append(Message.user("And\nnow?"))
    return fork


def test_replay_prints_every_step_in_order(clew: Clew, branch: LocalThread) -> None:
    blocks = clew.text("replay", branch.id).rstrip("\n").split("\n\n")
    assert [each.split(" · ")[0] for each in blocks] == [f"version {version} of 10" for version in range(1, 11)]
    assert " · active · 0 messages · thread-started · " in blocks[0]
    assert blocks[0].splitlines()[0].endswith(" · by user:1")
    assert blocks[0].splitlines()[1:] == ["    The thread began: Refund (inherited from main)"]
    assert " · 1 message · checkpoint before · message-appended · " in blocks[1]
    assert blocks[3].splitlines()[1:] == [
        "    A message was appended: assistant (inherited from main)",
        "    [redacted]",
    ]
    assert blocks[4].splitlines()[1:] == ["    The history was rewound: to version 2 (inherited from main)"]
    assert blocks[9].splitlines()[1:] == ["    A message was appended: user", "    And", "    now?"]


def test_replay_writes_a_line_of_json_a_step(clew: Clew, branch: LocalThread) -> None:
    steps = clew.lines("replay", "bra", "--json")
    assert all(list(step) == SHAPE for step in steps)
    assert [step["version"] for step in steps] == list(range(1, 11))
    assert [step["thread_id"] for step in steps] == ["main"] * 8 + ["branch"] * 2
    assert [step["messages"] for step in steps] == [0, 1, 1, 2, 1, 2, 3, 3, 3, 4]
    assert [step["checkpoints"] for step in steps[:3]] == [[], ["before"], []]
    assert steps[3]["data"] is None
    assert steps[4]["data"] == {"to": 2}
    assert steps[9]["data"]["message"]["contents"] == [{"type": "text", "text": "And\nnow?"}]
    assert (steps[0]["actor"], steps[9]["actor"], steps[9]["status"]) == ("user:1", None, "active")
    assert [step["time"] for step in steps] == [event["time"] for event in clew.lines("log", "branch", "--json")]
    branch.end()
    assert clew.lines("replay", "branch", "--json")[-1]["status"] == "ended"


def test_replay_ends_at_the_version_that_at_means(clew: Clew, branch: LocalThread) -> None:
    for at, version in (("before", 2), ("4", 4), ("message:2", 6)):
        assert len(clew.lines("replay", branch.id, "--at", at, "--json")) == version
    assert "version 4 of 10" in clew.text("replay", branch.id, "--at", "4")
    assert "version 5 of 10" not in clew.text("replay", branch.id, "--at", "4")


def test_replay_refuses_an_unknown_version(clew: Clew, branch: LocalThread, conversations: Conversations) -> None:
    assert "no thread 'zz'" in clew.refused(1, "replay", "zz")
    assert "no version 11" in clew.refused(1, "replay", "branch", "--at", "11")
    assert "no checkpoint 'later'" in clew.refused(1, "replay", "branch", "--at", "later")
    assert "has no UTC offset" in clew.refused(2, "replay", "branch", "--at", "2026-01-31T12:00:00")
    branch.delete()
    assert "deleted" in clew.refused(1, "replay", "branch")
    assert len(clew.lines("replay", "main", "--json")) == 8
    conversations.start_thread(thread_id="mains")
    assert "More than one thread" in clew.refused(1, "replay", "mai")


def test_a_replayed_message_cannot_control_the_terminal(clew: Clew, conversations: Conversations) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\u202e"
    thread = conversations.start_thread(evil, messages=[Message.user(evil, author=evil)], labels={evil: evil})
    thread.append(Message.tool(evil, evil, name=evil))
    thread.label(**{evil: evil})
    thread.end(reason=evil)
    assert not set(clew.text("replay", thread.id)) & set("\x1b\x07\x9b\r\u202e")
    assert not set(clew.text("replay", thread.id, "--json")) & set("\x1b\x07\x9b\r")


class HeldScreen:
    """A screen of a test: it calls functions between groups of keys, and stores every frame."""

    size = os.terminal_size((80, 24))

    def __init__(self, *lots: Any) -> None:
        self.lots = list(lots)
        self.frames: list[str] = []

    def draw(self, lines: Sequence[Text]) -> None:
        self.frames.append("\n".join(line.plain for line in lines))

    def keys(self) -> list[str]:
        keys = self.lots.pop(0)
        while callable(keys):
            keys()
            keys = self.lots.pop(0)
        return list(keys)


def versions(thread: LocalThread, *lots: Any) -> list[int]:
    """The versions that the stepper shows: the first one, and one for each group of keys."""
    screen = HeldScreen(*lots, "q")
    stepper.run(thread, thread.step(), screen)  # type: ignore[arg-type]  # it has the used part of Screen
    return [int(frame.partition("version ")[2].split()[0]) for frame in screen.frames]


def test_the_stepper_follows_the_keys(branch: LocalThread) -> None:
    assert versions(branch, "h", "hh", "l", "g", "c", "G") == [10, 9, 7, 8, 1, 2, 10]
    assert versions(branch, ["4", "enter"], ["page up"], ["page down", "escape"]) == [10, 4, 1, 10]
    assert versions(branch, "hq", "l") == [10]


def test_the_stepper_finds_the_messages_near_and_far(branch: LocalThread, monkeypatch: pytest.MonkeyPatch) -> None:
    for page in (100, 3, 1):
        monkeypatch.setattr(stepper, "SEARCH_PAGE", page)
        assert versions(branch, *"[[[[[[]]]]]]") == [10, 7, 6, 4, 2, 2, 2, 4, 6, 7, 10, 10, 10]


def test_the_stepper_shows_new_events(branch: LocalThread) -> None:
    def write() -> None:
        branch.append(Message.user("More."))
        branch.checkpoint("late")

    screen = HeldScreen("h", write, "G", "[", lambda: branch.redact(11), ["resize"], "q")
    stepper.run(branch, branch.step(), screen)  # type: ignore[arg-type]  # it has the used part of Screen
    assert "version 9 of 10" in screen.frames[1]
    assert "version 12 of 12" in screen.frames[2]
    assert "checkpoint late" in screen.frames[3]
    assert "    More." in screen.frames[3]
    assert "    More." not in screen.frames[4]
    assert "[redacted]" in screen.frames[4]


def test_the_stepper_shows_old_messages_and_those_that_a_rewind_removed(branch: LocalThread) -> None:
    screen = HeldScreen(["5", "enter"], "h", "q")
    stepper.run(branch, branch.step(at=6), screen)  # type: ignore[arg-type]  # it has the used part of Screen
    opened, rewind, before = screen.frames
    assert "    Here." in opened
    assert "    Thanks." not in opened
    assert "Taken back by the rewind:\n  - assistant  version 4" in rewind
    assert "▶ 2 assistant  version 4" in before
    assert "    Where?" in before
