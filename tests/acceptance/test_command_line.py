"""The output and the exit codes of the command line."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.clew_command import COMMAND, ENVIRONMENT, GLAZE, TEAPOT, Clew

THREAD = ["thread_id", "title", "status", "version", "messages", "parent_id", "forked_at", "head", "created_at"]
THREAD += ["updated_at", "metadata", "kind"]
EVENT = ["thread_id", "version", "position", "type", "time", "actor", "event_id", "data", "hash", "run_id"]
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00")


@pytest.fixture
def clew(tmp_path: Path) -> Clew:
    return Clew(tmp_path)


@pytest.fixture
def filled(clew: Clew) -> Clew:
    clew.text("import", clew.file("two.jsonl", TEAPOT, GLAZE))
    return clew


def test_an_export_equals_the_import_and_a_second_import_adds_nothing(clew: Clew, corpus: list[dict[str, Any]]) -> None:
    file, messages = clew.file("all.jsonl", *corpus), sum(len(each["messages"]) for each in corpus)
    first = clew.object("import", file, "--json")
    assert first == {
        "threads": len(corpus),
        "messages": messages,
        "events": len(corpus) + messages,
        "skipped": 0,
        "failed": [],
        "records": {},
    }
    assert clew.lines("export", "--format", "openai") == corpus
    again = clew.object("import", file, "--json")
    assert again == {"threads": 0, "messages": 0, "events": 0, "skipped": len(corpus), "failed": [], "records": {}}
    assert clew.text("import", file).startswith("Nothing new was imported.\nSkipped ")
    assert clew.lines("export") == corpus
    assert clew.object("verify", "--json")["ok"] is True


def test_threads_have_the_documented_shape(filled: Clew) -> None:
    first, second = filled.lines("threads", "--json")
    assert list(first) == list(second) == THREAD
    assert (first["title"], first["status"], first["version"], first["messages"]) == ("Teapot", "active", 6, 5)
    assert first["metadata"] == {"channel": "web", "big": 10**40, "source_id": "teapot"}
    assert (first["parent_id"], first["forked_at"]) == (None, None)
    assert re.fullmatch(r"[0-9a-f]{64}", first["head"])
    assert TIME.fullmatch(first["created_at"])
    assert TIME.fullmatch(first["updated_at"])
    assert second["metadata"] == {"source_id": "glaze"}


def test_show_has_the_documented_shape(filled: Clew) -> None:
    output = filled.object("show", filled.ids()[0], "--json")
    assert list(output) == ["thread_id", "version", "messages", "runs", "records"]
    assert output["version"] == 6
    assert output["messages"][1] == {
        "version": 3,
        "role": "user",
        "author": "Maeve",
        "contents": [{"type": "text", "text": "My teapot broke. It cost 48 euros."}],
        "redacted": False,
    }
    call, result = output["messages"][2]["contents"][0], output["messages"][3]["contents"][0]
    assert call == {"type": "function-call", "call_id": "c1", "name": "refund", "arguments": '{"sum": 48}'}
    assert result == {"type": "function-result", "call_id": "c1", "result": '{"ok": true}'}
    assert next(iter(call)) == next(iter(result)) == "type"


def test_the_log_of_a_fork_has_the_documented_shape_and_its_lineage(filled: Clew) -> None:
    parent = filled.ids()[0]
    fork = filled.object("fork", parent, "--at", "message:2", "--title", "What if", "--json")
    events = filled.lines("log", fork["thread_id"], "--json")
    assert all(list(event) == EVENT for event in events)
    assert [event["version"] for event in events] == [1, 2, 3, 4]
    assert [event["thread_id"] for event in events] == [parent] * 3 + [fork["thread_id"]]
    assert [event["type"] for event in events] == [
        "thread-started",
        "message-appended",
        "message-appended",
        "thread-forked",
    ]
    assert [event["position"] for event in events[:3]] == [1, 2, 3]
    assert all(TIME.fullmatch(event["time"]) for event in events)
    assert all(re.fullmatch(r"[0-9a-f]{64}", event["hash"]) for event in events)
    assert len({event["event_id"] for event in events}) == 4
    assert events[0]["data"]["metadata"]["big"] == 10**40
    assert events[-1]["data"] == {
        "parent_id": parent,
        "parent_version": 3,
        "parent_hash": events[2]["hash"],
        "title": "What if",
    }
    assert events[-1]["hash"] == fork["head"]


def test_a_fork_does_not_change_when_its_parent_grows(clew: Clew) -> None:
    longer = {**TEAPOT, "messages": [*TEAPOT["messages"], {"role": "user", "content": "Thanks!"}]}
    clew.text("import", clew.file("a.jsonl", TEAPOT))
    (parent,) = clew.ids()
    fork = clew.object("fork", parent[:6], "--at", "4", "--json")
    assert list(fork) == THREAD
    assert (fork["parent_id"], fork["forked_at"], fork["version"], fork["messages"]) == (parent, 4, 5, 3)
    assert (fork["title"], fork["metadata"]) == ("Teapot", {"channel": "web", "big": 10**40})
    before = clew.object("show", fork["thread_id"], "--json")
    assert clew.object("import", clew.file("b.jsonl", longer), "--json")["messages"] == 1
    assert clew.object("show", fork["thread_id"], "--json") == before
    assert before["messages"] == clew.object("show", parent, "--at", "4", "--json")["messages"]
    assert f"Forked {parent} at version 7" in clew.text("fork", parent)


def test_verify_reports_the_thread_and_version_of_a_changed_byte(filled: Clew) -> None:
    first = filled.ids()[0]
    valid = filled.object("verify", "--json")
    assert valid == {"ok": True, "threads": 2, "events": 8, "first_bad": None}
    database = filled.folder / "clew.db"
    stored = database.read_bytes()
    assert stored.count(b"48 euros are on") == 1
    database.write_bytes(stored.replace(b"48 euros are on", b"98 euros are on"))
    done = filled.run("verify", "--json")
    output = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (3, "")
    assert list(output) == ["ok", "threads", "events", "first_bad"]
    assert output["ok"] is False
    assert list(output["first_bad"]) == ["thread_id", "version", "reason", "kind"]
    assert (output["first_bad"]["thread_id"], output["first_bad"]["version"]) == (first, 6)
    report = filled.run("verify", first)
    assert report.returncode == 3
    assert f"thread {first}, version 6" in " ".join(report.stdout.split())


def test_help_imports_no_large_module(clew: Clew) -> None:
    code = "import sys; from clew.cli import main; main(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=clew.folder, env=ENVIRONMENT, check=True, capture_output=True, text=True
    )
    loaded = {name.split(".")[0] for name in done.stderr.split()}
    assert "typer" in loaded
    assert loaded.isdisjoint({"pydantic", "rich", "eventsourcing", "sqlite3", "orjson", "asyncio"})


def on_a_terminal(clew: Clew, *arguments: str, **environment: str) -> str:
    """Return the output of a command on a terminal of 100 columns."""
    parent_end, child_end = pty.openpty()
    env = {**ENVIRONMENT, "TERM": "xterm-256color", "COLUMNS": "100", **environment}
    with subprocess.Popen(
        [*COMMAND, *arguments], cwd=clew.folder, env=env, stdout=child_end, stderr=child_end
    ) as process:
        os.close(child_end)
        written = b""
        while True:
            try:
                block = os.read(parent_end, 65_536)
            except OSError:  # Linux raises it when the other side is closed
                break
            if not block:
                break
            written += block
    os.close(parent_end)
    assert process.returncode == 0
    return written.decode()


def test_colour_is_only_on_terminals_without_no_color(filled: Clew) -> None:
    assert "\x1b[" not in filled.text("threads")
    coloured, plain = on_a_terminal(filled, "threads"), on_a_terminal(filled, "threads", NO_COLOR="1")
    assert "\x1b[32m" in coloured
    assert re.search(r"\x1b\[[0-9;]*3[0-7]", plain) is None
    assert "Teapot" in plain


def test_import_and_verify_show_progress_only_on_a_terminal(clew: Clew) -> None:
    file = clew.file("two.jsonl", TEAPOT, GLAZE)
    assert "Importing" in on_a_terminal(clew, "import", file)
    assert "Importing" not in on_a_terminal(clew, "import", file, "--json")
    assert "Verifying" in on_a_terminal(clew, "verify")
    assert "Verifying" not in clew.text("verify")


def test_text_is_readable_without_unicode_and_json_is_always_utf_8(clew: Clew) -> None:
    clew.text("import", clew.file("u.jsonl", {"id": "ü", "messages": [{"role": "user", "content": "1,240 °C 🫖"}]}))
    (id_,) = clew.ids()
    ascii_only = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    assert "1,240 ?C ?" in clew.text("show", id_, env=ascii_only)
    assert "1,240 °C 🫖" in clew.text("show", id_, "--json", env=ascii_only)
    assert "1,240 °C 🫖" in clew.text("export", env=ascii_only)


def test_a_closed_pipe_ends_the_command_without_an_error_message(clew: Clew, corpus: list[dict[str, Any]]) -> None:
    clew.text("import", clew.file("all.jsonl", *corpus))
    for command in (["export"], ["threads"], ["threads", "--json"]):
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run(
            [*COMMAND, *command], cwd=clew.folder, env=ENVIRONMENT, check=False, stdout=writer, stderr=subprocess.PIPE
        )
        os.close(writer)
        assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize("as_json", [False, True])
def test_an_interrupted_command_prints_one_line(clew: Clew, *, as_json: bool) -> None:
    os.mkfifo(clew.folder / "slow.jsonl")
    command = [*COMMAND, "import", "slow.jsonl", *(["--json"] if as_json else [])]
    with (
        subprocess.Popen(
            command, cwd=clew.folder, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process,
        (clew.folder / "slow.jsonl").open("w"),  # opens when the command opens it, and stays empty
    ):
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert output == ""
    error = {"error": {"type": "KeyboardInterrupt", "message": "interrupted."}}
    assert errors == (json.dumps(error, separators=(",", ":")) if as_json else "clew: interrupted.") + "\n"


def test_the_demo_is_repeatable_without_a_terminal_and_cleans_up(clew: Clew, tmp_path: Path) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    here = {"TMPDIR": str(folder)}
    first = clew.text("demo", env=here)
    assert without_durations(clew.text("demo", env=here)) == without_durations(first)
    assert list(folder.iterdir()) == []
    assert [each.name for each in clew.folder.iterdir()] == ["temporary"]
    assert "\x1b" not in first
    # If clew is not on PATH, the suggested commands contain its full path, which may be long.
    assert max(len(line) for line in first.splitlines() if not line.startswith("$ ")) <= 80
    assert re.search(r"NOT VERIFIED: thread 188667f3228b6306, version 10\b", first)


def without_durations(text: str) -> str:
    """Return the output without the durations of the calls."""
    return re.sub(r"\d+(\.\d+)? m?s\b.*", "… ms", text)


def test_the_demo_in_json_has_the_result_of_each_step(clew: Clew) -> None:
    output = clew.object("demo", "--json")
    assert output["ok"] is True
    steps = {step["step"]: step for step in output["steps"]}
    assert list(steps) == [
        "Import",
        "List",
        "Fork",
        "Continue differently",
        "Go back in time",
        "Checkpoint and rewind",
        "Draw",
        "Compare",
        "Search",
        "Redact",
        "Run an agent",
        "Verify",
        "Tamper",
    ]
    assert steps["Import"]["result"]["threads"] == len(steps["List"]["result"]) == 3
    assert steps["Fork"]["result"]["forked_at"] == 6
    assert len(steps["Continue differently"]["result"]["messages"]) == 7
    assert len(steps["Go back in time"]["result"]["messages"]) == 2
    assert steps["Checkpoint and rewind"]["result"]["messages"] == 5
    assert [each["forked_at"] for each in steps["Draw"]["result"]] == [None, 6]
    assert [len(each["forks"]) for each in steps["Search"]["result"]] == [1]
    assert [row["kind"] for row in steps["Compare"]["result"]["rows"]] == ["only-a"] * 4 + ["only-b"] * 2
    assert steps["Redact"]["result"] == []
    types = [each["type"] for each in steps["Run an agent"]["result"]]
    assert (types[1], types[6:8], types[-1]) == (
        "run-started",
        ["approval-requested", "approval-given"],
        "run-completed",
    )
    assert steps["Verify"]["result"]["ok"] is True
    assert steps["Tamper"]["result"]["first_bad"]["version"] == 10


def test_the_commands_that_the_demo_suggests_work(clew: Clew) -> None:
    suggestions = clew.text("demo").split("What to try next")[1].splitlines()
    commands = [line.removeprefix("$ ") for line in suggestions if line.startswith("$ ")]
    assert len(commands) == 7
    for command in commands:
        words = re.sub(r"^('[^']*'|\S+)( -m clew)? ", "", command)  # without the program, whose path may have spaces
        done = subprocess.run(  # noqa: S602  # as users type it, with a redirection
            f"{shlex.join(COMMAND)} {words}",
            shell=True,
            cwd=clew.folder,
            env=ENVIRONMENT,
            check=False,
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stderr) == (0, ""), command
    assert len(clew.ids()) == 4
