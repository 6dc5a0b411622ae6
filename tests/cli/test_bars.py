"""Projections catch up before a command reads them, with a bar if they are far behind."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from clew import Conversations, Message
from clew.cli import output
from clew.projections import SHIPPED


def lags(url: str) -> dict[str, int]:
    with Conversations.open(url, embedded=False) as conversations:
        return {status.name: status.lag for status in conversations.projections()}


@pytest.mark.parametrize(("many", "terminal", "left"), [(1, True, 0), (1, False, 5), (100, True, 5)])
def test_a_projection_far_behind_catches_up_with_a_bar_on_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, many: int, terminal: bool, left: int
) -> None:
    url = f"sqlite:///{tmp_path}/clew.db"
    with Conversations.open(url, embedded=False) as conversations:
        conversations.start_thread(messages=[Message.user("Hello")] * 4)
    monkeypatch.setattr(output, "MANY_EVENTS", many)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    with Conversations.open(url) as conversations:
        output.catch_up(conversations, "search")
    assert lags(url) == {each.name: left if each.name == "search" else 5 for each in SHIPPED}
