"""Behaviour that commands share, called in this process."""

from __future__ import annotations

import base64
import json
import re
import shlex
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.acceptance.clew_command import GLAZE, TEAPOT

from clew import Conversations, Message

if TYPE_CHECKING:
    from tests.cli.conftest import CalledClew as Clew


def test_at_takes_a_version_a_message_a_time_or_a_checkpoint(filled: Clew) -> None:
    first = filled.ids()[0]
    with Conversations.open(f"sqlite:///{filled.folder / 'clew.db'}") as conversations:
        thread = conversations.thread(first)
        thread.checkpoint("before refund", at=3)
        made = next(event for event in thread.events() if event.type == "thread-started").time
    for at, version in (
        ("3", 3),
        ("003", 3),
        ("message:2", 3),
        ("message:0", 1),
        ("before refund", 3),
        (made.isoformat(), 6),
        ((made + timedelta(days=1)).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), 7),
        ((datetime.now(UTC) + timedelta(days=1)).strftime("%Y%m%dT%H%M%S+0100"), 7),
    ):
        assert filled.object("show", first, "--at", at, "--json")["version"] == version


@pytest.mark.parametrize(
    ("at", "code", "message"),
    [
        ("2026-01-31T12:00:00", 2, "has no UTC offset"),
        ("2026-01-31", 1, "did not exist at 2026-01-31T00:00:00+00:00"),
        ("0", 1, "no version 0"),
        ("7", 1, "no version 7"),
        ("9" * 5_000, 1, "no thread has a version of 5000 digits"),
        ("message:6", 1, "no message 6"),
        ("2001-01-01T00:00:00Z", 1, "did not exist at"),
        ("later", 1, "no checkpoint 'later'"),
        ("message:x", 1, "no checkpoint 'message:x'"),
        ("message:x", 1, "The N of message:N is a whole number."),
        ("2026-13-45", 1, "It is not a date: month must be in 1..12."),
        ("2026-02-30T10:00:00Z", 1, "It is not a date: day is out of range for month."),
        ("2026-02-03T25:00:00Z", 1, "It is not a time: write it as 2026-01-31T12:00:00Z."),
        ("2026-1-4", 1, "It is not a time: write it as 2026-01-31T12:00:00Z."),
        ("later", 1, "Give a version, message:N, a time, a date or a checkpoint's name."),
        ("", 2, "--at '' is empty. Give a version, message:N, a time, a date or a checkpoint's name."),
    ],
)
def test_at_refuses_an_unknown_version(filled: Clew, at: str, code: int, message: str) -> None:
    first = filled.ids()[0]
    assert message in filled.refused(code, "show", first, "--at", at)
    assert message in filled.refused(code, "fork", first, "--at", at)


def test_export_writes_imported_threads_then_others_and_forks_on_request(filled: Clew) -> None:
    with Conversations.open(f"sqlite:///{filled.folder / 'clew.db'}") as conversations:
        conversations.start_thread(thread_id="own", messages=[Message.user("Hello")])
        conversations.start_thread(thread_id="gone", messages=[Message.user("Hello")]).delete()
        conversations.thread("own").fork(thread_id="branch")
    filled.text("import", filled.file("more.jsonl", {**GLAZE, "id": "late"}))
    assert [each["id"] for each in filled.lines("export")] == ["teapot", "glaze", "late", "own"]
    everything = filled.lines("export", "--forks")
    assert sorted(each["id"] for each in everything) == ["branch", "glaze", "late", "own", "teapot"]
    assert filled.lines("export", "own", filled.ids()[0]) == [
        {"id": "own", "messages": [{"role": "user", "content": "Hello"}]},
        TEAPOT,
    ]
    assert "deleted" in filled.refused(1, "export", "gone")


def test_a_redacted_message_is_shown_exported_and_logged_as_such(filled: Clew) -> None:
    first = filled.ids()[0]
    with Conversations.open(f"sqlite:///{filled.folder / 'clew.db'}") as conversations:
        conversations.thread(first).redact(3)
    output = filled.object("show", first, "--json")["messages"][1]
    assert output == {"version": 3, "role": "user", "author": None, "contents": [], "redacted": True}
    assert filled.lines("export", first)[0]["messages"][1] == {"role": "user", "content": None, "redacted": True}
    assert filled.lines("log", first, "--json")[2]["data"] is None
    assert "[redacted]" in filled.text("show", first)
    assert "[redacted]" in filled.text("log", first)
    assert filled.object("verify", first, "--json") == {"ok": True, "threads": 1, "events": 7, "first_bad": None}


def test_an_event_of_an_unknown_type_is_logged_as_opaque(filled: Clew) -> None:
    first = filled.ids()[0]
    with sqlite3.connect(filled.folder / "clew.db") as database:
        database.execute("UPDATE event SET type = 'os:system' WHERE version = 4")
    database.close()
    event = filled.lines("log", first, "--json")[3]
    assert event["type"] == "os:system"
    assert list(event["data"]) == ["opaque"]
    assert b"refund" in base64.b64decode(event["data"]["opaque"], validate=True)
    assert "os:system" in filled.text("log", first)


def test_a_unique_prefix_names_a_thread(clew: Clew) -> None:
    with Conversations.open(f"sqlite:///{clew.folder / 'clew.db'}") as conversations:
        for id_ in ("order/1", "order/12", "order/13", "ordér"):
            conversations.start_thread(thread_id=id_)
    assert clew.object("show", "order/1", "--json")["thread_id"] == "order/1"
    assert clew.object("show", "order/12", "--json")["thread_id"] == "order/12"
    assert clew.object("show", "ordé", "--json")["thread_id"] == "ordér"
    message = clew.refused(1, "show", "order")
    assert all(id_ in message for id_ in ("order/1", "order/12", "order/13"))
    assert "ordér" not in message
    assert "no thread 'x'" in clew.refused(1, "show", "x")


def test_a_tenant_sees_its_own_threads_only(filled: Clew) -> None:
    assert filled.lines("--tenant", "other", "threads", "--json") == []
    for name in ("threads", "tree"):
        assert filled.text("--tenant", "other", name) == (
            "Tenant 'other' has no threads. `clew --tenant other import FILE` adds some.\n"
        )
    assert "lists the threads of tenant 'other' in clew.db." in filled.refused(1, "--tenant", "other", "show", "zz")
    assert "no thread" in filled.refused(1, "--tenant", "other", "show", filled.ids()[0])


def test_an_invalid_tenant_is_wrong_usage_and_creates_no_database(clew: Clew) -> None:
    name = clew.file("two.jsonl", TEAPOT, GLAZE)
    for command in (["import", name], ["threads"]):
        assert "tenant" in clew.refused(2, "--tenant", "", *command)
    assert [each.name for each in clew.folder.iterdir()] == [name]


def test_the_database_comes_from_the_option_the_environment_or_the_default(filled: Clew) -> None:
    here = {"CLEW_DB": "sqlite:///other.db"}
    assert "other.db" in filled.refused(1, "threads", env=here)
    assert len(filled.text("--db", "sqlite:///clew.db", "threads", "--json", env=here).splitlines()) == 2
    filled.text("import", "two.jsonl", env=here)
    assert (filled.folder / "other.db").exists()


@pytest.mark.parametrize(
    "command",
    [["threads"], ["show", "x"], ["log", "x"], ["export"], ["export", "x"], ["verify"], ["fork", "x", "--at", "1"]],
)
def test_reading_a_missing_database_is_an_error_and_creates_none(clew: Clew, command: list[str]) -> None:
    message = clew.refused(1, *command)
    assert "the database does not exist" in message
    assert "clew import FILE" in message
    assert list(clew.folder.iterdir()) == []
    (clew.folder / "clew.db").touch()
    assert "the file is empty" in clew.refused(1, *command)
    assert [each.name for each in clew.folder.iterdir()] == ["clew.db"]


def test_errors_are_json_on_stderr_in_json_mode(filled: Clew) -> None:
    for command, code, kind in (
        (["show", "zz"], 1, "UnknownThreadError"),
        (["show", filled.ids()[0], "--at", "2026-01-31T12:00"], 2, "InvalidTimeError"),
        (["show"], 2, "UsageError"),
        (["nope"], 2, "UsageError"),
        (["threads", "--nope"], 2, "UsageError"),
        (["import", "nope.jsonl"], 1, "ImportFormatError"),
    ):
        done = filled.run(*command, "--json")
        assert (done.returncode, done.stdout) == (code, "")
        (line,) = done.stderr.splitlines()
        error = json.loads(line)
        assert list(error) == ["error"]
        assert list(error["error"]) == ["type", "message"]
        assert error["error"]["type"] == kind
        assert error["error"]["message"]


def test_wrong_usage_is_one_line_that_names_the_help(clew: Clew) -> None:
    assert "Try 'clew --help'" in clew.refused(2, "nope")
    assert "Try 'clew show --help'" in clew.refused(2, "show")
    for option in ("--db", "--tenant"):
        assert f"clew memory list {option} NAME" in clew.refused(2, "memory", option, "x", "list")
    assert clew.run().returncode == 2


def test_the_database_and_the_tenant_may_come_after_the_command(filled: Clew) -> None:
    ids = filled.text("threads", "--json")
    for before, after in (
        ([], ["--db", "clew.db"]),
        (["--db", "none.db", "--tenant", "other"], ["--db=clew.db", "--tenant", "default"]),
        (["--db", "clew.db"], ["--tenant", "default"]),
    ):
        assert filled.text(*before, "threads", "--json", *after) == ids
    assert filled.text("memory", "list", "--json", "--tenant", "other", "--db", "clew.db") == ""
    assert filled.text("threads", "--tenant", "other").startswith("Tenant 'other' has no threads")
    assert "none.db: the database does not exist" in filled.refused(1, "threads", "--db", "none.db")
    assert "'--db' has only exceptions" in filled.refused(2, "search", "--", "--db")  # after -- it is a word


def test_every_command_has_help_with_an_example(clew: Clew) -> None:
    listed = clew.text("--help")
    for name in ("import", "export", "threads", "show", "log", "fork", "verify", "demo"):
        assert re.search(rf"^  {name}  +[A-Z].*\.$", listed, re.MULTILINE), listed
        assert f"\n    clew {name}" in clew.text(name, "--help").split("Examples:")[1]
    assert re.fullmatch(r"clew \d+\.\d+\.\d+\n", clew.text("--version"))


def test_the_help_names_arguments_without_types(clew: Clew) -> None:
    for arguments, usage in (
        (["import"], "clew import [OPTIONS] FILE...\n"),
        (["memory", "search"], "clew memory search [OPTIONS] SCOPE WORDS...\n"),
        (["project"], "clew project [OPTIONS] {run|status}\n"),
        (["completion"], "clew completion [OPTIONS] [bash|zsh|fish]\n"),
    ):
        help_ = clew.text(*arguments, "--help")
        assert help_.startswith(f"Usage: {usage}")
        assert re.search(r" <\w", help_) is None
    assert clew.text("import", "--help").partition("Arguments:\n")[2].startswith("  FILE  Files, or directories")
    assert "..." not in clew.text("shards", "--help").partition("Commands:")[2]


def test_a_message_cannot_control_the_terminal(clew: Clew) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\u202ereversed\u2028" + "x"
    conversation = {
        "id": evil,
        "title": evil,
        "messages": [
            {"role": "user", "content": evil, "name": evil},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "1", "type": "function", "function": {"name": evil, "arguments": evil}}],
            },
            {"role": "tool", "tool_call_id": "1", "content": evil},
        ],
    }
    untitled = {"messages": conversation["messages"]}
    clew.text("import", clew.file("evil.jsonl", conversation, untitled))
    first, second = clew.ids()
    outputs = [clew.text("threads"), clew.text("show", first), clew.text("log", first), clew.text("show", second)]
    outputs.append(clew.refused(1, "show", first, "--at", evil))
    outputs.append(clew.refused(1, "import", "\x1b[2J"))
    for output in outputs:
        assert re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]", output) is None, ascii(output)
    assert "\\x1b[2J" in outputs[1]
    assert clew.lines("export")[0] == conversation


def test_long_messages_are_cut_in_lists_and_whole_in_show(clew: Clew) -> None:
    text = " ".join(f"word{number}" for number in range(2_000))
    clew.text("import", clew.file("long.jsonl", {"messages": [{"role": "user", "content": text}]}))
    (id_,) = clew.ids()
    assert text in clew.text("show", id_)
    for listed in (clew.text("threads"), clew.text("log", id_, env={"COLUMNS": "80"})):
        assert "word0" in listed
        assert "word100" not in listed
        assert max(len(line) for line in listed.splitlines()) <= 80


@pytest.mark.parametrize("text", ["{}", "5", "[1, 2]", '[{"role": "robot", "content": "x"}]'])
def test_files_without_conversations_create_no_database(tmp_path: Path, text: str) -> None:
    (tmp_path / "none.json").write_text(text)
    command = [sys.executable, "-m", "clew", "--db", "sqlite:///none.db", "import", "none.json", "--json"]
    done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "mistake" not in done.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["none.json"]


def test_an_output_that_was_closed_before_the_start_is_not_an_error(tmp_path: Path) -> None:
    command = f"{shlex.join([sys.executable, '-m', 'clew'])} demo --samples >&-"
    done = subprocess.run(command, shell=True, cwd=tmp_path, check=False, stderr=subprocess.PIPE, text=True)  # noqa: S602  # the shell closes stdout
    assert "mistake" not in done.stderr


def test_markdown_cannot_be_json(filled: Clew) -> None:
    done = filled.run("export", "--format", "markdown", "--json")
    assert done.returncode == 2
    assert "Markdown is not JSON" in done.stderr
