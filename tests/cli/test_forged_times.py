"""A stored time that no calendar has is shown as the nearest one that it has, by every command."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.cli.conftest import CalledClew
from tests.service.transferred_stores import poison

from clew.conversations import Conversations

COMMANDS = [
    "threads",
    "threads --json",
    "tree",
    "tree --json",
    "audit",
    "audit --json",
    "stats",
    "stats --json",
    "search hello",
    "search hello --json",
    "show f",
    "show f --json",
    "log f",
    "log f --json",
    "export f",
    "export f --format clew",
    "export f --format markdown",
    "replay f --json",
    "memory list",
    "memory list user/2 --json",
    "memory at user/2 4",
    "memory why user/2 f1",
]


@pytest.mark.parametrize("time", [300_000_000_000_000_000, -(10**17), 10**30])
def test_every_command_survives_a_forged_time(clew: CalledClew, time: int) -> None:
    with Conversations.open("sqlite:///clew.db") as store:
        poison(store, time)
    for command in COMMANDS:
        done = clew.run(*command.split())
        assert "mistake in Clew" not in done.stderr, (command, done.stderr)
        assert done.returncode == 0, (command, done.stderr)
    for command in ("verify", "doctor"):
        done = clew.run(command)
        assert done.returncode in {1, 3}
        assert "microseconds" in " ".join(done.stdout.split())
        assert done.stderr == ""
    entries: list[Any] = [json.loads(line) for line in clew.run("audit", "--json").stdout.splitlines()]
    shown = "9999-12-31T23:59:59.999999+00:00" if time > 0 else "0001-01-01T00:00:00.000000+00:00"
    assert {each["time"] for each in entries if each["thread_id"] == "f"} == {shown}
