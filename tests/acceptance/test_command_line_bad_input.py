"""Bad input and bad disks: a one-line error with a remedy, and no partial writes."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.clew_command import GLAZE, TEAPOT, Clew

ROOTS_CAPABILITIES = (1, 2)
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH of Linux's capability.h: with them, root writes to read-only files."""

PR_CAPBSET_DROP = 24


@pytest.fixture
def clew(tmp_path: Path) -> Clew:
    return Clew(tmp_path)


@pytest.fixture
def filled(clew: Clew) -> Clew:
    clew.text("import", clew.file("two.jsonl", TEAPOT, GLAZE))
    return clew


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("notes.txt", b"Dear diary", "not valid JSON"),
        ("picture.json", b"\x89PNG\r\n\x1a\n\0\0", "UTF-8"),
        ("cut.json", json.dumps([TEAPOT]).encode()[:-20], "not valid JSON"),
        ("cut.jsonl", json.dumps(TEAPOT).encode()[:-20], "not valid JSON"),
        ("empty.jsonl", b"", "empty"),
        ("blank.jsonl", b" \n\n", "empty"),
        ("none.json", b"[]", "no conversation"),
    ],
)
def test_a_file_without_conversations_is_refused_and_creates_no_database(
    clew: Clew, name: str, content: bytes, expected: str
) -> None:
    (clew.folder / name).write_bytes(content)
    error = clew.refused(1, "import", name)
    assert error.startswith(f"{name}: ")
    assert expected in error
    assert [each.name for each in clew.folder.iterdir()] == [name]


def test_a_directory_without_conversations_and_a_missing_path_are_refused(clew: Clew) -> None:
    (clew.folder / "empty").mkdir()
    (clew.folder / "empty" / "notes.txt").write_text("[]")
    assert "no *.json or *.jsonl file" in clew.refused(1, "import", "empty")
    assert "does not exist" in clew.refused(1, "import", "nowhere")
    assert [each.name for each in clew.folder.iterdir()] == ["empty"]


def test_an_empty_path_is_not_the_working_directory(filled: Clew) -> None:
    clew = filled
    clew.file("more.jsonl", GLAZE | {"id": "more"})
    before = clew.lines("threads", "--json")
    for files in ([""], ["more.jsonl", ""], ["", "more.jsonl"]):
        assert clew.refused(2, "import", *files) == (
            "FILE '' is empty. Give a file or a directory (. for this one). Try 'clew import --help'."
        )
    assert "--backup '' is empty" in clew.refused(2, "migrate", "--backup", "")
    assert clew.lines("threads", "--json") == before
    assert clew.object("import", ".", "--json")["threads"] == 1


def test_a_database_is_refused_with_the_commands_that_read_and_copy_it(filled: Clew) -> None:
    error = filled.refused(1, "--db", "other.db", "import", "clew.db")
    assert error == (
        "clew.db: it is a SQLite database. If Clew wrote it, `clew --db clew.db threads` lists its threads. "
        "To copy it: `clew --db clew.db export --format clew > copy.jsonl`, then import copy.jsonl."
    )
    assert not (filled.folder / "other.db").exists()


def test_ten_failures_are_written_and_the_others_counted(clew: Clew) -> None:
    (clew.folder / "noise.jsonl").write_bytes(b"\xff\n" * 1_234)
    done = clew.run("import", "noise.jsonl")
    *failures, last = done.stderr.splitlines()
    assert [each.partition(": It")[0] for each in failures] == [f"clew: noise.jsonl:{n}" for n in range(1, 11)]
    assert last == "clew: and 1,224 more. `--json` lists all."
    assert len(json.loads(clew.run("import", "noise.jsonl", "--json").stdout)["failed"]) == 1_234


def test_bad_lines_are_reported_with_their_numbers_and_the_rest_is_imported(clew: Clew) -> None:
    wrong_role: dict[str, Any] = {"id": "robot", "messages": [{"role": "robot", "content": "Beep"}]}
    lines = [json.dumps(each) for each in (TEAPOT, wrong_role, GLAZE)]
    (clew.folder / "mixed.jsonl").write_text("\n".join([*lines, "{not JSON", '{"id": 7}']))
    done = clew.run("import", "mixed.jsonl", "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (1, "")
    assert list(report) == ["threads", "messages", "events", "skipped", "failed", "records"]
    assert (report["threads"], report["messages"], report["events"], report["skipped"]) == (2, 6, 8, 0)
    assert [list(each) for each in report["failed"]] == [["file", "line", "error"]] * 3
    assert [(each["file"], each["line"]) for each in report["failed"]] == [("mixed.jsonl", n) for n in (2, 4, 5)]
    assert "robot" in report["failed"][0]["error"]
    again = clew.run("import", "mixed.jsonl")
    assert again.returncode == 1
    assert again.stdout == "Nothing new was imported.\nSkipped 2 conversations that were imported before.\n"
    assert [line.partition(": ")[2][:14] for line in again.stderr.splitlines()] == [
        "mixed.jsonl:2:",
        "mixed.jsonl:4:",
        "mixed.jsonl:5:",
    ]
    assert clew.lines("export") == [TEAPOT, GLAZE]


def test_a_message_of_fifty_megabytes_is_refused_and_the_rest_is_imported(clew: Clew) -> None:
    huge = {"id": "huge", "messages": [{"role": "user", "content": "x" * 50_000_000}]}
    done = clew.run("import", clew.file("huge.jsonl", huge, GLAZE), "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["threads"], report["messages"]) == (1, 1, 1)
    (failed,) = report["failed"]
    assert failed["line"] == 1
    assert "16,777,216" in failed["error"]
    assert len(failed["error"]) < 1_000
    assert clew.lines("export") == [GLAZE]
    assert (clew.folder / "clew.db").stat().st_size < 1_000_000


def test_invalid_names_and_urls_are_usage_errors(filled: Clew) -> None:
    assert "10000 characters" in filled.refused(2, "show", "x" * 10_000)
    for url in ("postgres//x", "mysql://user:secret@host/db", "sqlite:clew.db", "sqlite://clew.db", "", "postgres"):
        error = filled.refused(2, "--db", url, "threads")
        assert "sqlite:///file.db" in error
        assert "secret" not in error
    assert "too long" in filled.refused(1, "--db", f"sqlite:///{'x' * 10_000}.db", "threads").lower()


def test_a_path_that_is_not_utf_8_names_a_database(filled: Clew) -> None:
    folder = filled.folder / os.fsdecode(b"d\xff")
    folder.mkdir()
    filled.file("one.jsonl", GLAZE)
    inside = Clew(folder)
    for arguments in (("--db", "x.db"), ("--db", os.fsdecode(b"\xfe.db"))):
        inside.text(*arguments, "import", "../one.jsonl")
        (thread,) = inside.lines(*arguments, "threads", "--json")
        assert thread["messages"] == 1
        assert "failed" not in inside.text(*arguments, "doctor", "--verify")
    for url in (os.fsdecode(b"\xfe.db"), "sqlite:///%FE.db"):
        assert json.loads(inside.text("threads", "--json", env={"CLEW_DB": url}))["messages"] == 1
    assert b"\xfe.db" in {os.fsencode(each.name) for each in folder.iterdir()}


def test_a_tilde_of_a_path_is_the_users_folder(filled: Clew) -> None:
    home = {"HOME": str(filled.folder)}
    assert filled.text("--db=~/clew.db", "threads", env=home) == filled.text("threads")
    assert filled.text("threads", env={**home, "CLEW_DB": "~/clew.db"}) == filled.text("threads")


def test_a_database_with_a_newer_schema_is_refused_and_unchanged(filled: Clew) -> None:
    with sqlite3.connect(filled.folder / "clew.db") as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    before = (filled.folder / "clew.db").read_bytes()
    for command in (["threads"], ["import", "two.jsonl"], ["verify"]):
        assert "schema 99" in filled.refused(1, *command)
    assert (filled.folder / "clew.db").read_bytes() == before


def test_files_of_other_programs_are_refused_and_unchanged(clew: Clew) -> None:
    with sqlite3.connect(clew.folder / "other.db") as database:
        database.execute("CREATE TABLE bookmarks (url)")
    database.close()
    (clew.folder / "text.db").write_text("Dear diary, this is not a database.\n" * 10)
    clew.file("two.jsonl", TEAPOT, GLAZE)
    before = {each.name: each.read_bytes() for each in clew.folder.iterdir()}
    for command in (["threads"], ["import", "two.jsonl"]):
        assert "another program's" in clew.refused(1, "--db", "sqlite:///other.db", *command)
        assert "not an SQLite database" in clew.refused(1, "--db", "sqlite:///text.db", *command)
    assert {each.name: each.read_bytes() for each in clew.folder.iterdir()} == before


def drop_roots_rights() -> None:
    """Drop two capabilities, so that file permissions also apply to root in the child."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        for capability in ROOTS_CAPABILITIES:
            if libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
                raise OSError(ctypes.get_errno(), "prctl")


def test_a_read_only_database_or_folder_is_refused_and_unchanged(filled: Clew) -> None:
    (filled.folder / "new.jsonl").write_text(json.dumps({**GLAZE, "id": "new"}))
    database, folder = filled.folder / "clew.db", filled.folder / "locked"
    before = database.read_bytes()
    folder.mkdir()
    database.chmod(0o444)
    folder.chmod(0o555)
    try:
        error = filled.refused(1, "import", "new.jsonl", preexec_fn=drop_roots_rights)
        assert "read-only" in error
        elsewhere = ("--db", "sqlite:///locked/new.db", "import", "new.jsonl")
        assert "locked/new.db" in filled.refused(1, *elsewhere, preexec_fn=drop_roots_rights)
    finally:
        database.chmod(0o644)
        folder.chmod(0o755)
    assert database.read_bytes() == before
    assert list(folder.iterdir()) == []
    assert filled.text("import", "new.jsonl").startswith("Imported 1 message ")


@pytest.mark.parametrize("locked", ["clew.db", "."])
def test_doctor_names_a_database_that_it_may_not_open(filled: Clew, locked: str) -> None:
    path, before = filled.folder / locked, (filled.folder / locked).stat().st_mode
    options = {"cwd": filled.folder.parent, "preexec_fn": drop_roots_rights}
    database = f"{filled.folder.name}/clew.db"
    path.chmod(0)
    try:
        lines = filled.run("--db", database, "doctor", **options)
        objects = filled.run("--db", database, "doctor", "--json", **options)
    finally:
        path.chmod(before)
    assert (lines.returncode, lines.stderr, objects.returncode, objects.stderr) == (1, "", 1, "")
    assert f"failed   database: {database}: it may not be opened." in lines.stdout
    finding = json.loads(objects.stdout.splitlines()[-1])
    assert (finding["name"], finding["state"]) == ("database", "failed")
    assert finding["found"].startswith(f"{database}: it may not be opened.")


def test_a_full_disk_ends_an_import_and_a_second_import_completes_it(filled: Clew) -> None:
    long = [
        {"id": f"long {number}", "messages": [{"role": "user", "content": f"{number} " + "x" * 20_000}] * 3}
        for number in range(10)
    ]
    filled.file("long.jsonl", *long)
    max_bytes = (filled.folder / "clew.db").stat().st_size + 250_000

    def limit_file_size() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, max_bytes))

    assert "clew.db: " in filled.refused(1, "import", "long.jsonl", preexec_fn=limit_file_size)
    assert filled.object("verify", "--json")["ok"] is True
    exported = filled.lines("export")
    assert exported[:2] == [TEAPOT, GLAZE]
    assert [each for each in long if each in exported[2:]] == sorted(exported[2:], key=long.index)  # each once
    assert len(exported) < 12
    filled.text("import", "long.jsonl")
    assert sorted(filled.lines("export")[2:], key=long.index) == long
