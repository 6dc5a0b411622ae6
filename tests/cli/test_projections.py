from __future__ import annotations

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import CalledClew
from tests.infrastructure.recorder_steps import wait_until
from tests.servers.postgres_server import PostgresServer

from clew.conversations import Conversations
from clew.domain.messages import Message
from clew.projections import SHIPPED, Audit

NAMES = [each.name for each in SHIPPED]

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

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
    """A store, and a module with a projection in the working directory."""
    (tmp_path / "my_projections.py").write_text(MINE, encoding="utf-8")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "my_projections", raising=False)
    return filled


def lines(clew: CalledClew, *arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in clew.text(*arguments).splitlines()]


def test_status_reports_progress_and_fills_nothing(filled: CalledClew, tmp_path: Path) -> None:
    assert [each["state"] for each in lines(filled, "project", "status", "--json")] == ["waiting"] * len(NAMES)
    assert not (tmp_path / "clew.db.projections").exists()
    assert filled.text("project", "status", "--name", "search").startswith(
        "search  version 4  waiting   position 0 of "
    )


def test_the_status_in_json_has_the_documented_shape(filled: CalledClew) -> None:
    result = lines(filled, "project", "run", "--once", "--json")
    assert [each["name"] for each in result] == NAMES
    last = result[0]["last_position"]
    assert result[1] == {
        "name": "search",
        "version": 4,
        "state": "live",
        "position": last,
        "last_position": last,
        "lag": 0,
        "lag_exact": True,
        "lag_seconds": 0.0,
        "built": None,
        "parked": 0,
        "parked_events": [],
        "worker": None,
    }
    assert result == lines(filled, "project", "status", "--json")


def test_fills_only_the_named_projection(filled: CalledClew) -> None:
    result = lines(filled, "project", "run", "--once", "--name", "usage", "--name", "audit", "--json")
    assert [(each["name"], each["state"]) for each in result] == [("usage", "live"), ("audit", "live")]
    assert [each["state"] for each in lines(filled, "project", "status", "--json")] == [
        "waiting",
        "waiting",
        "live",
        "live",
        "waiting",
        "waiting",
    ]


@pytest.mark.parametrize("name", ["Mine", "several"])
def test_fills_a_loaded_projection_and_lists_skipped_events(loading: CalledClew, name: str) -> None:
    load = ("--load", f"my_projections:{name}")
    loading.text("project", "run", "--once", *load)
    result = lines(loading, "project", "status", "--name", "mine", *load, "--json")[0]
    assert (result["state"], result["lag"], result["parked"]) == ("live", 0, 1)
    (parked,) = result["parked_events"]
    assert list(parked) == ["position", "stream", "version", "type", "error"]
    assert (parked["position"], parked["error"]) == (2, "ValueError in my_projections.py, line 10")
    text = loading.text("project", "status", "--name", "mine", *load)
    assert "skipped position 2: default/thread/" in text
    assert "secret" not in text
    rebuilt = lines(loading, "rebuild", "mine", *load, "--json")
    assert (rebuilt[0]["state"], rebuilt[0]["parked"]) == ("live", 1)
    assert lines(loading, "project", "status", "--json")[-1]["state"] == "other"


@pytest.mark.parametrize(
    "load",
    ["my_projections", "my_projections:", ":Mine", "unheard_of:Mine", "my_projections:None_", "my_projections:nothing"],
)
def test_refuses_to_load_what_is_not_a_projection(loading: CalledClew, load: str) -> None:
    done = loading.run("project", "status", "--load", load)
    assert done.returncode == 2
    assert "--load" in done.stderr


def test_rebuilds_the_named_projections_or_all(filled: CalledClew) -> None:
    assert [each["name"] for each in lines(filled, "rebuild", "search", "usage", "search", "--json")] == [
        "search",
        "usage",
    ]
    assert [each["name"] for each in lines(filled, "rebuild", "--all", "--json")] == NAMES
    assert filled.text("rebuild", "audit").startswith(f"audit  version {Audit.version}  live ")


def test_shows_a_bar_on_a_terminal(filled: CalledClew, tmp_path: Path) -> None:
    filled.text("project", "run", "--once")
    terminal, stderr = pty.openpty()
    command = [sys.executable, "-m", "clew", "rebuild", "search"]
    done = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=stderr, timeout=60, check=True)
    os.close(stderr)
    output = os.read(terminal, 100_000).decode()
    os.close(terminal)
    assert "Rebuilding search" in output
    assert done.stdout.startswith(b"search  version 4  live")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["rebuild"], 2, "give --all"),
        (["rebuild", "search", "--all"], 2, "give --all"),
        (["rebuild", "nothing"], 1, "There is no projection 'nothing'"),
        (["project", "run", "--once", "--name", "nothing"], 1, "There is no projection 'nothing'"),
        (["project", "status", "--name", "nothing"], 1, "There is no projection 'nothing'"),
        (["project", "status", "--once"], 2, "--once is an option of `clew project run`"),
        (["project", "status", "--workers", "2"], 2, "--workers is an option of `clew project run`"),
        (["project", "run", "--workers", "0"], 2, "--workers"),
        (["project", "run", "--workers", "2", "--name", "nothing"], 1, "There is no projection 'nothing'"),
        (["project", "walk"], 2, "walk"),
        (["project"], 2, "run|status"),
    ],
)
def test_refuses_invalid_arguments(filled: CalledClew, arguments: list[str], code: int, message: str) -> None:
    done = filled.run(*arguments)
    assert (done.returncode, message in done.stderr) == (code, True), done.stderr


@pytest.mark.parametrize("arguments", [["project", "run"], ["project", "status"], ["rebuild", "search"]])
def test_creates_no_database(clew: CalledClew, tmp_path: Path, arguments: list[str]) -> None:
    assert clew.run(*arguments).returncode == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("number", ENDING, ids=lambda number: number.name)
def test_runs_until_a_signal(tmp_path: Path, number: signal.Signals) -> None:
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


def test_several_processes_fill_once_and_skip_what_fails(loading: CalledClew, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "clew", "project", "run", "--once", "--workers", "2", "--json"]
    wanted = ["--name", "mine", "--name", "usage", "--load", "my_projections:Mine"]
    done = subprocess.run([*command, *wanted], cwd=tmp_path, capture_output=True, text=True, check=True)
    result = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(each["name"], each["lag"], each["parked"]) for each in result] == [("mine", 0, 1), ("usage", 0, 0)]
    assert done.stderr == "Projection mine continues without the event at position 2\n"
    states = {each["name"]: each["state"] for each in lines(loading, "project", "status", "--json")}
    assert (states["usage"], states["search"]) == ("live", "waiting")


def test_continues_after_a_server_was_unavailable(postgres: str, postgres_server: PostgresServer) -> None:
    def begun(*options: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "clew", "--db", postgres, "project", "run", *options]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def waits(process: subprocess.Popen[str]) -> str:
        """What a process writes when it has lost the server; warnings may come first."""
        assert process.stderr is not None
        begins = f"clew: postgresql://127.0.0.1:{postgres_server.port}/"
        return next(line for line in process.stderr if line.startswith(begins))

    with Conversations.open(postgres, embedded=False) as conversations:
        conversations.start_thread()
        with (
            begun("--name", "usage") as alone,
            ended(alone),
            begun("--name", "audit", "--workers", "1") as sharing,
            ended(sharing),
            begun("--name", "memory") as leaving,
            ended(leaving),
        ):
            for name in ("usage", "audit", "memory"):
                conversations.wait(projection=name, timeout=30)
            postgres_server.kill()
            try:
                message = [waits(each) for each in (alone, sharing, leaving)]
                leaving.terminate()
                _, errors = leaving.communicate(timeout=30)
                assert leaving.returncode == 0, "it was ended while the server was away"
                assert "cannot be reached" in errors.splitlines()[-1]
            finally:
                postgres_server.start()
            for line in message:
                assert line.endswith(" Trying again in 1 s.\n")
            conversations.start_thread()
            versions = {each.name: each.version for each in SHIPPED}
            for name, running in (("usage", alone), ("audit", sharing)):
                conversations.wait(projection=name, timeout=30)
                running.terminate()
                output, errors = running.communicate(timeout=30)
                assert (running.returncode, "Traceback" in errors) == (0, False)
                assert output.startswith(f"{name}  version {versions[name]}  live ")


def test_a_server_that_is_unavailable_at_the_start_is_an_error(clew: CalledClew) -> None:
    assert "cannot be reached" in clew.refused(1, "--db", "postgresql://127.0.0.1:1/none", "project", "run")


def test_a_signal_ends_it_while_a_server_does_not_answer(scale: float) -> None:
    signals = ENDING[: max(1, int(len(ENDING) * scale))]
    with ExitStack() as stack:
        begun: list[tuple[subprocess.Popen[str], socket.socket]] = []
        for _ in signals:
            server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            server.settimeout(60)
            url = f"postgresql://127.0.0.1:{server.getsockname()[1]}/none?connect_timeout=2"
            command = [sys.executable, "-m", "clew", "--db", url, "project", "run"]
            running = stack.enter_context(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
            stack.enter_context(ended(running))
            begun.append((running, server))
        for number, (running, server) in zip(signals, begun, strict=True):
            stack.enter_context(server.accept()[0])
            running.send_signal(number)
        for running, server in begun:
            _, errors = running.communicate(timeout=60)
            assert (running.returncode, len(errors.splitlines())) == (0, 1), errors
            assert "cannot be reached" in errors
            server.settimeout(0)
            with pytest.raises(BlockingIOError):
                server.accept()  # the first attempt waited


def processes_of(parent: int) -> list[int]:
    """The worker processes of a process."""
    listed = subprocess.run(
        ["ps", "-A", "-ww", "-o", "pid=", "-o", "ppid=", "-o", "args="], capture_output=True, text=True, check=True
    ).stdout
    result = [line.split(maxsplit=2) for line in listed.splitlines()]
    return [int(pid) for pid, of, command in result if int(of) == parent and "spawn_main" in command]


@contextmanager
def ended(running: subprocess.Popen[str]) -> Iterator[None]:
    """Kill the process also if the test fails; otherwise the test would wait for it without end."""
    try:
        yield
    finally:
        running.kill()


def test_workers_are_started_again_and_end_with_the_process_that_started_them(shared_url: str) -> None:
    with Conversations.open(shared_url, embedded=False) as conversations:
        command = [sys.executable, "-m", "clew", "--db", shared_url, "project", "run", "--workers", "2"]
        with (
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running,
            ended(running),
        ):
            assert running.stderr is not None
            thread = conversations.start_thread(messages=[Message.user("before")])
            conversations.wait(timeout=30)
            killed = processes_of(running.pid)[0]
            os.kill(killed, signal.SIGKILL)
            message = running.stderr.readline()
            assert message.startswith("clew: Worker ")
            assert message.endswith(f" (process {killed}) was ended by SIGKILL, and is restarted.\n")
            wait_until(lambda: len(processes_of(running.pid)) == 2)
            thread.append(Message.user("after"))
            conversations.wait(timeout=30)
            running.terminate()
            output, errors = running.communicate(timeout=30)
        assert {each.worker for each in conversations.projections()} == {None}
        last = conversations.projections()[0].last_position
    assert (running.returncode, errors) == (0, "")
    assert len(re.findall(f"position {last:,} of {last:,}\\n", output)) == len(NAMES)
