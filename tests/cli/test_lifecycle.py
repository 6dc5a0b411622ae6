"""`clew label`, `end`, `delete` and `redact`: their effects, output and questions."""

from __future__ import annotations

import io
import json
import sqlite3
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import CalledClew as Clew


class Terminal(io.StringIO):
    """A terminal as stdin, with a user who answers."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("given", "result"),
    [
        (["topic=refund"], {"topic": "refund"}),
        (["stars=5", "paid=true", "sum=1.5"], {"stars": 5, "paid": True, "sum": 1.5}),
        (['stars="5"', 'tags=["a", "b"]'], {"stars": "5", "tags": ["a", "b"]}),
        (["big=1" + "0" * 40], {"big": 10**40}),
        (["sum=NaN", "rest=-Infinity"], {"sum": "NaN", "rest": "-Infinity"}),
        (["deep=" + "[" * 100_000], {"deep": "[" * 100_000}),
        (["a=b=c", "b= "], {"a": "b=c", "b": " "}),
        (["actor=me", "self=you", "labels=x"], {"actor": "me", "self": "you", "labels": "x"}),
        (["a=1", "a=2"], {"a": 2}),
    ],
)
def test_a_label_is_json_if_it_parses_as_json_or_else_text(
    filled: Clew, given: list[str], result: dict[str, Any]
) -> None:
    first = filled.ids()[0]
    assert filled.object("label", first, *given, "--json") == {"thread_id": first, "version": 7, "labels": result}


def test_a_label_without_a_value_is_removed(filled: Clew) -> None:
    first = filled.ids()[0]
    assert filled.text("label", first, "topic=refund", "stars=5", "old=x") == (
        f'Labels of {first}: topic="refund", stars=5, old="x"\n'
    )
    assert filled.object("label", first, "topic=", "old=null", "--json")["labels"] == {"stars": 5}
    assert filled.text("label", first, "stars=") == f"{first} has no labels.\n"


@pytest.mark.parametrize("text", ["topic", "=refund", "="])
def test_refuses_an_invalid_label(filled: Clew, text: str) -> None:
    assert "Write NAME=VALUE" in filled.refused(2, "label", filled.ids()[0], "good=1", text)
    assert len(filled.lines("log", filled.ids()[0], "--json")) == 6


def test_refuses_a_label_that_cannot_be_stored(filled: Clew) -> None:
    assert "deeper than 100 levels" in filled.refused(1, "label", filled.ids()[0], "deep=" + "[" * 200 + "]" * 200)
    assert "Unicode" in filled.refused(1, "label", filled.ids()[0], "text=\udcff")


def test_end_and_delete_write_the_thread_and_their_reason_is_in_the_log(filled: Clew) -> None:
    first, second = filled.ids()
    assert filled.object("end", first, "--reason", "Paid", "--json")["status"] == "ended"
    assert filled.object("delete", first, "--reason", "A test", "--json")["status"] == "deleted"
    assert [event["data"] for event in filled.lines("log", first, "--json")[-2:]] == [
        {"reason": "Paid"},
        {"reason": "A test"},
    ]
    assert filled.text("end", second) == f"Ended {second}. `clew fork` continues it in a new thread.\n"
    assert filled.text("delete", second).startswith(f"Deleted {second}. Its forks stay, ")
    assert filled.object("verify", "--json")["ok"] is True


def test_a_redaction_has_the_documented_shape_and_names_the_thread_that_owns_the_message(filled: Clew) -> None:
    first = filled.ids()[0]
    fork = filled.object("fork", first, "--at", "4", "--json")["thread_id"]
    result = filled.object("redact", fork, "message:2", "--reason", "A name", "--yes", "--json")
    assert result == {"thread_id": first, "message": 3, "version": 7, "errors": [], "pending": False}
    for thread in (first, fork):
        assert filled.object("show", thread, "--json")["messages"][1]["redacted"] is True
    assert filled.lines("log", first, "--json")[-1]["data"]["reason"] == "A name"
    assert filled.text("redact", first, "4", "-y") == f"Redacted version 4 of {first}, here and in every fork.\n"
    assert "is already redacted" in filled.refused(1, "redact", first, "4", "--yes")
    assert b"My teapot broke" not in (filled.folder / "clew.db").read_bytes()


def test_says_that_a_redaction_is_pending_and_waits_for_it(filled: Clew) -> None:
    first = filled.ids()[0]
    reader = sqlite3.connect(filled.folder / "clew.db", isolation_level=None, check_same_thread=False)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM event").fetchall()
    done = filled.run("redact", first, "3", "--yes")
    assert (done.returncode, done.stderr) == (5, "")
    assert "Pending: another program still keeps the content in the files." in done.stdout
    threading.Timer(0.5, reader.close).start()
    result = filled.object("redact", first, "4", "--yes", "--wait", "--json")
    assert result == {"thread_id": first, "message": 4, "version": 8, "errors": [], "pending": False}


@pytest.mark.parametrize("command", ["redact", "purge"])
def test_waits_for_what_is_already_redacted_or_purged_and_still_pending(filled: Clew, command: str) -> None:
    first = filled.ids()[0]
    reader = sqlite3.connect(filled.folder / "clew.db", isolation_level=None, check_same_thread=False)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM event").fetchall()
    words = [command, first, *(["3"] if command == "redact" else []), "--yes"]
    done = filled.run(*words, "--json")
    assert done.returncode == 5
    assert f"is already {command.removesuffix('e')}ed" in filled.refused(1, *words)
    assert b"My teapot broke" in (filled.folder / "clew.db").read_bytes()
    threading.Timer(0.5, reader.close).start()
    waited = filled.object(*words, "--wait", "--json")
    assert waited == json.loads(done.stdout) | {"pending": False}
    assert b"My teapot broke" not in b"".join(path.read_bytes() for path in filled.folder.glob("clew.db*"))
    assert filled.object(*words, "--wait", "--json") == waited


def test_a_purge_has_the_documented_shape_and_is_refused_for_a_thread_with_forks(filled: Clew) -> None:
    first = filled.ids()[0]
    filled.text("fork", first)
    assert "has a fork" in filled.refused(1, "purge", first, "--yes")
    result = filled.object("purge", first, "--yes", "--forks", "--reason", "Asked", "--json")
    assert list(result) == ["thread_id", "version", "events", "pending", "children"]
    assert (result["thread_id"], result["pending"]) == (first, False)
    assert filled.lines("log", first, "--json")[-1]["data"]["reason"] == "Asked"
    assert filled.lines("audit", "--json")[-1]["why"] == "Asked"
    for command in (["log", first], ["audit"]):
        assert f"the content of {result['events']} events: Asked" in filled.text(*command, env={"COLUMNS": "200"})
    assert "is already purged" in filled.refused(1, "purge", first, "--yes", "--forks")
    assert b"My teapot broke" not in (filled.folder / "clew.db").read_bytes()
    assert filled.object("verify", "--json")["ok"] is True
    second = filled.ids()[1]
    done = f"Destroyed the content of 1 event of {second}. Its events remain as stubs.\n"
    assert filled.text("purge", second, "-y") == done


def test_says_that_a_purge_is_pending_and_waits_for_it(filled: Clew) -> None:
    first, second = filled.ids()
    reader = sqlite3.connect(filled.folder / "clew.db", isolation_level=None, check_same_thread=False)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM event").fetchall()
    done = filled.run("purge", first, "--yes")
    assert (done.returncode, done.stderr) == (5, "")
    assert "Pending: another program still keeps the content in the files." in done.stdout
    assert f"default/thread/{first} version 8" in filled.run("doctor").stdout
    threading.Timer(0.5, reader.close).start()
    assert filled.object("purge", second, "--yes", "--wait", "--json")["pending"] is False
    assert b"My teapot broke" not in b"".join(path.read_bytes() for path in filled.folder.glob("clew.db*"))


def test_without_a_terminal_a_redaction_needs_yes(filled: Clew, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert "Add --yes" in filled.refused(2, "redact", filled.ids()[0], "message:2")
    assert len(filled.lines("log", filled.ids()[0], "--json")) == 6


@pytest.mark.parametrize("answer", ["y\n", "YES\n", " yes"])
def test_on_a_terminal_it_shows_the_message_and_asks(
    filled: Clew, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = filled.ids()[0]
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    done = filled.run("redact", first, "message:2")
    assert done.returncode == 0
    assert done.stderr == f"Destroy version 3 of {first} for ever? user: My teapot broke. It cost 48 euros. [y/N] "
    assert filled.object("show", first, "--json")["messages"][1]["redacted"] is True


@pytest.mark.parametrize("answer", ["n\n", "\n", "", "what?\n"])
def test_any_answer_except_yes_changes_nothing(filled: Clew, answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = filled.ids()[0]
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    done = filled.run("redact", first, "message:2")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith("[y/N] Nothing was changed.\n")
    assert len(filled.lines("log", first, "--json")) == 6


def test_an_invalid_redaction_is_refused_without_a_question(filled: Clew, monkeypatch: pytest.MonkeyPatch) -> None:
    first = filled.ids()[0]
    filled.text("redact", first, "3", "--yes")
    monkeypatch.setattr(sys, "stdin", Terminal(""))
    assert "is already redacted" in filled.refused(1, "redact", first, "3")
    assert "holds no text" in filled.refused(1, "redact", first, "7")


def test_a_question_can_be_interrupted(filled: Clew, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupting(Terminal):
        def readline(self, *_: Any) -> Any:
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdin", Interrupting())
    done = filled.run("redact", filled.ids()[0], "message:2")
    assert done.returncode == 130
    assert done.stderr.endswith("clew: interrupted.\n")
    assert len(filled.lines("log", filled.ids()[0], "--json")) == 6
