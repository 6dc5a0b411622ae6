"""`clew search`, called in this process."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from clew import Conversations, Message

if TYPE_CHECKING:
    from tests.cli.conftest import CalledClew as Clew

UNSAFE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u2028-\u202e\u2066-\u2069]")
EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\u202ereversed\u2028x"


@pytest.fixture
def searchable(clew: Clew) -> Clew:
    with Conversations.open(f"sqlite:///{clew.folder / 'clew.db'}", now=lambda: 1_768_467_600_000_000) as conversations:
        root = conversations.start_thread("Refund", thread_id="root", messages=[Message.user("My teapot\n\nbroke")])
        for each in ("one", "two", "three", "four"):
            root.fork(thread_id=each)
        conversations.start_thread(thread_id="it's", messages=[Message.user("Two teapots", author="Maeve")])
    return clew


def test_hits_are_grouped_by_thread_with_forks_and_a_command(searchable: Clew) -> None:
    assert searchable.text("search", "teapot*").splitlines() == [
        "it's",
        "  1 user Maeve  version 2 · 2026-01-15 09:00:00Z",
        "    Two teapots",
        "    clew show 'it'\"'\"'s' --at 2",
        "",
        "root  Refund",
        "  1 user  version 2 · 2026-01-15 09:00:00Z",
        "    My teapot broke",
        "    also in one, two, three and 1 more",
        "    clew show root --at 2",
    ]
    assert searchable.text("search", '"teapot broke" my -cup', "--thread", "thr").splitlines()[0] == "root  Refund"
    assert searchable.text("search", "teapot*", "--limit", "1").splitlines()[-1].startswith("These are the newest 1.")
    assert searchable.text("search", "cup") == "No matching messages.\n"


def test_matches_are_highlighted_on_a_terminal(searchable: Clew, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert re.search(r"\x1b\[1;30;43mteapot\x1b\[0m", searchable.text("search", "teapot"))


def test_hits_in_json_have_the_documented_shape(searchable: Clew) -> None:
    assert searchable.object("search", "broke", "--json") == {
        "thread_id": "root",
        "version": 2,
        "message": 1,
        "position": 2,
        "role": "user",
        "author": None,
        "time": "2026-01-15T09:00:00.000000+00:00",
        "actor": None,
        "snippet": [{"text": "My teapot ", "found": False}, {"text": "broke", "found": True}],
        "forks": ["one", "two", "three", "four"],
        "fork_count": 4,
    }
    assert searchable.lines("search", "cup", "--json") == []


def test_refuses_an_empty_search_and_an_unknown_thread(searchable: Clew) -> None:
    assert "has no word" in searchable.refused(2, "search", "***")
    assert "only exceptions" in searchable.refused(2, "search", "--", "-teapot")
    assert "InvalidSearchError" in searchable.run("search", '""', "--json").stderr
    assert "no thread 'x'" in searchable.refused(1, "search", "teapot", "--thread", "x")
    assert "--limit" in searchable.refused(2, "search", "teapot", "--limit", "0")


def test_hits_cannot_control_the_terminal(clew: Clew) -> None:
    with Conversations.open(f"sqlite:///{clew.folder / 'clew.db'}") as conversations:
        root = conversations.start_thread(EVIL, thread_id=EVIL, messages=[Message.user(f"apple {EVIL}", author=EVIL)])
        root.fork(thread_id=EVIL + "fork")
    for output in (clew.text("search", "apple"), clew.text("search", "owned", "--json")):
        assert UNSAFE.search(output) is None, ascii(output)
    assert UNSAFE.search(clew.refused(2, "search", EVIL.replace("owned", "").replace("reversed", "")[:2])) is None
