from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import CalledClew
from tests.infrastructure.recording import wait_until

from clew.conversations import Conversations
from clew.domain.messages import Message

NAMES = ["directory", "search", "audit", "usage", "memory"]

MINE = """
from clew.projections import Column, Table, Upsert

class Mine:
    name, version, texts, types = "mine", 1, (), None
    tables = (Table("event", (Column("position", "integer"),), ("position",)),)

    def project(self, event, rows):
        if event.position == 2:
            raise ValueError("the secret")
        yield Upsert("event", {"position": event.position})

several = [Mine()]
nothing = 7
"""


@pytest.fixture
def loading(filled: CalledClew, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CalledClew:
    """With a module of a projection in the working directory."""
    (tmp_path / "my_projections.py").write_text(MINE, encoding="utf-8")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "my_projections", raising=False)
    return filled


def lines(clew: CalledClew, *arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in clew.text(*arguments).splitlines()]


def test_says_how_far_projections_are_and_fills_none(filled: CalledClew, tmp_path: Path) -> None:
    assert [each["state"] for each in lines(filled, "project", "status", "--json")] == ["waiting"] * 5
    assert not (tmp_path / "clew.db.projections").exists()
    assert filled.text("project", "status", "--name", "search").startswith(
        "search  version 1  waiting   position 0 of "
    )


def test_the_json_of_a_projection(filled: CalledClew) -> None:
    found = lines(filled, "project", "run", "--once", "--json")
    assert [each["name"] for each in found] == NAMES
    last = found[0]["last_position"]
    assert found[1] == {
        "name": "search",
        "version": 1,
        "state": "live",
        "position": last,
        "last_position": last,
        "lag": 0,
        "lag_seconds": 0.0,
        "built": None,
        "parked": 0,
        "parked_events": [],
    }
    assert found == lines(filled, "project", "status", "--json")


def test_fills_only_what_is_named(filled: CalledClew) -> None:
    found = lines(filled, "project", "run", "--once", "--name", "usage", "--name", "audit", "--json")
    assert [(each["name"], each["state"]) for each in found] == [("usage", "live"), ("audit", "live")]
    assert [each["state"] for each in lines(filled, "project", "status", "--json")] == [
        "waiting",
        "waiting",
        "live",
        "live",
        "waiting",
    ]


@pytest.mark.parametrize("name", ["Mine", "several"])
def test_fills_a_projection_of_ones_own_and_names_what_it_went_on_without(loading: CalledClew, name: str) -> None:
    load = ("--load", f"my_projections:{name}")
    loading.text("project", "run", "--once", *load)
    found = lines(loading, "project", "status", "--name", "mine", *load, "--json")[0]
    assert (found["state"], found["lag"], found["parked"]) == ("live", 0, 1)
    (parked,) = found["parked_events"]
    assert list(parked) == ["position", "stream", "version", "type", "error"]
    assert (parked["position"], parked["error"]) == (2, "ValueError in my_projections.py, line 10")
    text = loading.text("project", "status", "--name", "mine", *load)
    assert "went on without position 2: default/thread/" in text
    assert "secret" not in text
    rebuilt = lines(loading, "rebuild", "mine", *load, "--json")
    assert (rebuilt[0]["state"], rebuilt[0]["parked"]) == ("live", 1)
    assert lines(loading, "project", "status", "--json")[-1]["state"] == "other"


@pytest.mark.parametrize(
    "load",
    ["my_projections", "my_projections:", ":Mine", "unheard_of:Mine", "my_projections:None_", "my_projections:nothing"],
)
def test_refuses_to_load_what_is_no_projection(loading: CalledClew, load: str) -> None:
    done = loading.run("project", "status", "--load", load)
    assert done.returncode == 2
    assert "--load" in done.stderr


def test_rebuilds_what_is_named_or_all(filled: CalledClew) -> None:
    assert [each["name"] for each in lines(filled, "rebuild", "search", "usage", "search", "--json")] == [
        "search",
        "usage",
    ]
    assert [each["name"] for each in lines(filled, "rebuild", "--all", "--json")] == NAMES
    assert filled.text("rebuild", "audit").startswith("audit  version 2  live ")


def test_shows_a_bar_on_a_terminal(filled: CalledClew, tmp_path: Path) -> None:
    filled.text("project", "run", "--once")
    terminal, stderr = pty.openpty()
    command = [sys.executable, "-m", "clew", "rebuild", "search"]
    done = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=stderr, timeout=60, check=True)
    os.close(stderr)
    shown = os.read(terminal, 100_000).decode()
    os.close(terminal)
    assert "Rebuilding search" in shown
    assert done.stdout.startswith(b"search  version 1  live")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["rebuild"], 2, "say --all"),
        (["rebuild", "search", "--all"], 2, "say --all"),
        (["rebuild", "nothing"], 1, "There is no projection 'nothing'"),
        (["project", "run", "--once", "--name", "nothing"], 1, "There is no projection 'nothing'"),
        (["project", "status", "--name", "nothing"], 1, "There is no projection 'nothing'"),
        (["project", "status", "--once"], 2, "--once is for run"),
        (["project", "walk"], 2, "walk"),
        (["project"], 2, "run|status"),
    ],
)
def test_refuses_what_cannot_be_meant(filled: CalledClew, arguments: list[str], code: int, said: str) -> None:
    done = filled.run(*arguments)
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr


@pytest.mark.parametrize("arguments", [["project", "run"], ["project", "status"], ["rebuild", "search"]])
def test_makes_no_database(clew: CalledClew, tmp_path: Path, arguments: list[str]) -> None:
    assert clew.run(*arguments).returncode == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_runs_until_it_is_told_to_end(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "clew", "project", "run", "--json"]
    with (
        subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running,
        Conversations.open(f"sqlite:///{tmp_path}/clew.db", embedded=False) as conversations,
    ):
        conversations.wait(timeout=30)
        thread = conversations.start_thread(messages=[Message.user("something new")])
        conversations.wait(timeout=30)
        assert len(conversations.search("something")) == 1
        thread.redact(2)
        conversations.wait(timeout=30)
        assert conversations.search("something") == []
        os.kill(running.pid, number)
        output, errors = running.communicate(timeout=30)
        last = conversations.projections()[0].last_position
    assert (running.returncode, errors) == (0, "")
    assert {json.loads(line)["position"] for line in output.splitlines()} == {last}
    wait_until(lambda: not (tmp_path / "clew.db.projections-wal").exists())
