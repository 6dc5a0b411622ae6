"""Clew's own JSONL and Markdown on the command line."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.acceptance.clew_command import COMMAND, ENVIRONMENT, GLAZE
from tests.service.transferred_stores import STARTED, file_of, fill, forged, import_lines, state

from clew import Conversations, Message
from clew.domain.ports import Blob, Write
from clew.domain.streams import digest

if TYPE_CHECKING:
    from tests.cli.conftest import CalledClew as Clew

COPY = ("--db", "sqlite:///copy.db")


@pytest.fixture
def exported(clew: Clew) -> str:
    """A file, copy.jsonl, with everything that a store can contain."""
    with Conversations.open(f"sqlite:///{clew.folder / 'clew.db'}") as store:
        fill(store)
    text = clew.text("export", "--format", "clew")
    (clew.folder / "copy.jsonl").write_text(text, encoding="utf-8")
    return text


def test_a_store_is_copied_to_another_database(clew: Clew, exported: str) -> None:
    lines = exported.splitlines()
    assert clew.object(*COPY, "import", "copy.jsonl", "--json") == {
        "threads": 5,
        "messages": 9,
        "events": len(lines) - 2,
        "skipped": 0,
        "definitions": 0,
        "torn": False,
        "failed": [],
    }
    assert clew.text(*COPY, "export", "--format", "clew") == exported
    assert clew.text(*COPY, "export", "--format", "clew", "--json") == exported
    assert clew.object(*COPY, "verify", "--json")["ok"] is True
    assert clew.lines(*COPY, "threads", "--json") == clew.lines("threads", "--json")
    again = clew.text(*COPY, "import", "copy.jsonl")
    assert again == f"Nothing new was imported.\nSkipped {len(lines) - 2} events that were imported before.\n"


def test_a_thread_is_copied_with_its_ancestors(clew: Clew, exported: str) -> None:
    text = clew.text("export", "leaf", "branch", "--format", "clew")
    assert len(text.splitlines()) < len(exported.splitlines())
    (clew.folder / "some.jsonl").write_text(text, encoding="utf-8")
    output = clew.text(*COPY, "import", "some.jsonl")
    assert output == f"Imported {len(text.splitlines()) - 2} events into 3 threads, verified.\n"


def test_definitions_are_copied_only_on_request(clew: Clew, exported: str) -> None:
    with Conversations.open(f"sqlite:///{clew.folder}/clew.db") as store:
        kind = Blob(digest(b"Be kind."), "definition", b"Be kind.")
        ran = state(r="run-1", agent={"id": "joker"}, fingerprint={"client": "chat", "instructions": kind.digest.hex()})
        import_lines(store, file_of(*forged(("thread-started", STARTED), ("run-started", ran))))
        store._core.log.submit(Write((), {}, blobs=[kind])).outcome.result()
    assert "Be kind." not in clew.text("export", "--format", "clew")
    lines = clew.text("export", "--format", "clew", "--definitions")
    assert lines.count("Be kind.") == 1
    clew.text(*COPY, "import", "copy.jsonl")
    (clew.folder / "defined.jsonl").write_text(lines, encoding="utf-8")
    skipped = len(exported.splitlines()) - 2
    assert clew.text(*COPY, "import", "defined.jsonl") == (
        "Imported 2 events into 1 thread, verified.\nImported 1 definition of agents.\n"
        f"Skipped {skipped} events that were imported before.\n"
    )
    assert clew.text(*COPY, "export", "--format", "clew", "--definitions") == lines
    assert "--format clew" in clew.refused(2, "export", "--definitions")


def test_an_events_file_is_recognised_by_its_first_line(clew: Clew, exported: str) -> None:
    folder = clew.folder / "files"
    folder.mkdir()
    (folder / "one.json").write_text(exported, encoding="utf-8")
    (folder / "two.jsonl").write_text(clew.text("export", "other", "--format", "clew"), encoding="utf-8")
    matches = clew.object(*COPY, "import", "files", "--json")
    assert (matches["threads"], matches["skipped"]) == (5, 5)
    clew.file("chats.jsonl", GLAZE)
    assert "chats.jsonl is not in Clew's own JSONL" in clew.refused(1, "import", "chats.jsonl", "copy.jsonl")


def test_a_truncated_file_is_reported_and_completed_later(clew: Clew, exported: str) -> None:
    lines = exported.splitlines(keepends=True)
    clew.folder.joinpath("torn.jsonl").write_text("".join(lines[:-1]), encoding="utf-8")
    done = clew.run(*COPY, "import", "torn.jsonl")
    assert done.returncode == 1
    assert done.stdout == f"Imported {len(lines) - 2} events into 5 threads, verified.\n"
    assert done.stderr.startswith(f"clew: torn.jsonl:{len(lines) - 1}: The file has no end.")
    done = clew.run(*COPY, "import", "torn.jsonl", "--json")
    matches = json.loads(done.stdout)
    assert (done.returncode, matches["torn"], matches["skipped"]) == (1, True, len(lines) - 2)
    assert [(each["file"], each["line"]) for each in matches["failed"]] == [("torn.jsonl", len(lines) - 1)]
    clew.text(*COPY, "import", "copy.jsonl")
    assert clew.text(*COPY, "export", "--format", "clew") == exported


def test_failures_name_their_lines(clew: Clew, exported: str) -> None:
    clew.text(*COPY, "import", "copy.jsonl")
    for folder, text in (("copy.db", "Mine\x1b[2J"), ("clew.db", "Theirs")):
        with Conversations.open(f"sqlite:///{clew.folder / folder}") as store:
            store.thread("other").append(Message.user(text))
    clew.folder.joinpath("copy.jsonl").write_text(clew.text("export", "--format", "clew"), encoding="utf-8")
    done = clew.run(*COPY, "import", "copy.jsonl")
    assert done.returncode == 1
    line = len(exported.splitlines())
    assert done.stderr.startswith(
        f"clew: copy.jsonl:{line}: Thread 'other' exists with different events: its version 6"
    )
    damaged = exported.replace("Four", "Five")
    clew.folder.joinpath("copy.jsonl").write_text(damaged, encoding="utf-8")
    matches = json.loads(clew.run("--db", "sqlite:///new.db", "import", "copy.jsonl", "--json").stdout)
    (failure,) = matches["failed"]
    assert failure["file"] == "copy.jsonl"
    assert "Four" in exported.splitlines()[failure["line"] - 1]
    assert "its hash does not match" in failure["error"]


def test_another_tenant_s_file_is_refused(clew: Clew, exported: str) -> None:
    assert exported
    done = clew.run(*COPY, "--tenant", "b", "import", "copy.jsonl")
    assert done.returncode == 1
    assert "The file has threads of tenant 'default', but the store is open for 'b'" in done.stderr
    assert clew.object(*COPY, "verify", "--json")["events"] == 0


def test_a_newer_format_is_refused_and_creates_no_database(clew: Clew) -> None:
    clew.folder.joinpath("new.jsonl").write_text('{"format":{"name":"clew","version":2}}\n', encoding="utf-8")
    assert "A newer Clew wrote the file" in clew.refused(1, "import", "new.jsonl")
    assert "does not exist" in clew.refused(1, "import", "nothing.jsonl")
    assert not clew.folder.joinpath("clew.db").exists()


@pytest.mark.parametrize("text", ["", '{"messages":[]}\n'])
def test_standard_input_without_events_is_refused_and_creates_no_database(
    clew: Clew, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(text.encode()))))  # type: ignore[type-var,unused-ignore]  # typeshed versions differ
    assert "Standard input is not in Clew's own JSONL" in clew.refused(1, "import", "-")
    assert not clew.folder.joinpath("clew.db").exists()


def test_standard_input_is_imported(clew: Clew, exported: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = io.TextIOWrapper(io.BufferedReader(io.BytesIO(exported.encode())))  # type: ignore[type-var,unused-ignore]  # typeshed versions differ
    monkeypatch.setattr(sys, "stdin", source)
    assert clew.object(*COPY, "import", "-", "--json")["failed"] == []
    assert clew.text(*COPY, "export", "--format", "clew") == exported


def errors_on_a_terminal(clew: Clew, *arguments: str) -> str:
    """The output of a command on stderr if only that is a terminal; stdout goes to output.txt."""
    ours, theirs = pty.openpty()
    env = {**ENVIRONMENT, "TERM": "xterm-256color", "COLUMNS": "100"}
    with (
        (clew.folder / "output.txt").open("wb") as output,
        subprocess.Popen([*COMMAND, *arguments], cwd=clew.folder, env=env, stdout=output, stderr=theirs) as process,
    ):
        os.close(theirs)
        written = b""
        with contextlib.suppress(OSError):  # Linux reports so that the other side is closed
            while block := os.read(ours, 65_536):
                written += block
    os.close(ours)
    assert process.returncode == 0
    return written.decode()


def test_a_terminal_shows_the_progress(clew: Clew, exported: str) -> None:
    output = errors_on_a_terminal(clew, *COPY, "import", "copy.jsonl", "copy.jsonl")
    assert "Importing" in output
    assert "100%" in output
    assert "Exported" in errors_on_a_terminal(clew, "export", "--format", "clew")
    assert (clew.folder / "output.txt").read_text(encoding="utf-8") == exported
    assert errors_on_a_terminal(clew, "export", "--format", "clew", "--json") == ""


def test_exports_markdown(clew: Clew, exported: str) -> None:
    assert exported
    text = clew.text("export", "root", "branch", "--format", "markdown")
    assert text.startswith("# Größe \\x1b\\[31m\n\n- Thread: `root/ä`\n")
    assert "\x1b" not in text
    assert "\n\n# Branch\n\n- Thread: `branch`\n- Forked from: `root/ä` at version 5\n" in text
    assert "- `branch` at version 5: Branch" in text
    assert "*Redacted.*" in text
    every = clew.text("export", "--format", "markdown")
    assert [line for line in every.splitlines() if line.startswith("# ")][1:] == ["# `other`", "# `last`"]
    assert "# Branch" in clew.text("export", "--format", "markdown", "--forks")
    assert "deleted" in clew.refused(1, "export", "leaf", "--format", "markdown")


def test_an_unknown_format_is_wrong_usage(clew: Clew) -> None:
    assert "'openai', 'clew', 'markdown'" in clew.refused(2, "export", "--format", "xml")
    assert not Path(clew.folder / "clew.db").exists()
