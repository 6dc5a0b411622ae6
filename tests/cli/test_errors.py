from __future__ import annotations

import json

import pytest
from tests.cli.conftest import CalledClew

from clew import Conversations
from clew.cli.errors import report
from clew.domain.errors import InvalidNameError, StoreUnavailableError, StoreUrlError, ThreadDeletedError
from clew.infrastructure.sqlite.errors import SQLiteUnavailableError


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        (StoreUrlError("x"), 2, "StoreUrlError"),
        (InvalidNameError("x"), 2, "InvalidNameError"),
        (StoreUnavailableError("x"), 1, "StoreUnavailableError"),
        (SQLiteUnavailableError("x"), 1, "StoreUnavailableError"),
        (ThreadDeletedError("t", "deleted", "history", "Nothing."), 1, "ThreadDeletedError"),
        (OSError(28, "No space left on device"), 1, "OSError"),
        (PermissionError(13, "Permission denied", "a.json"), 1, "PermissionError"),
        (ZeroDivisionError("x"), 1, "ZeroDivisionError"),
        (KeyboardInterrupt(), 130, "KeyboardInterrupt"),
    ],
)
def test_an_error_is_one_line_with_a_code_and_in_json_with_a_stable_name(
    error: BaseException, code: int, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(error, as_json=False) == code
    assert report(error, as_json=True) == code
    plain, as_json = capsys.readouterr().err.splitlines()
    assert plain.startswith("clew: ")
    result = json.loads(as_json)
    assert result["error"]["type"] == kind
    assert result["error"]["message"] == plain.removeprefix("clew: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["append"], "No such command 'append'. Try 'clew --help'."),
        (["thread"], "No such command 'thread'. Did you mean 'threads'? Try 'clew --help'."),
        (["stats", "--by", "x"], "'x' is not one of 'thread', 'day', 'run', 'agent', 'actor', 'model', 'label'. Try"),
        (["threads", "--limit", "1e3"], "'--limit' / '-n': it must be a whole number. Try 'clew threads --help'."),
        (["threads", "--limit", "0"], "'--limit' / '-n': it must be at least 1. Try 'clew threads --help'."),
        (["label", "t", "n=" + "9" * 5_000], "Label 'n': a number of 5,000 digits is too long. To store it as text"),
    ],
)
def test_wrong_usage_is_explained_in_plain_words(filled: CalledClew, arguments: list[str], message: str) -> None:
    assert message in filled.refused(2, *arguments)


def test_an_error_about_a_thread_names_the_commands_that_help(filled: CalledClew) -> None:
    assert filled.refused(1, "--db", "clew.db", "show", "zz") == (
        "There is no thread 'zz'. `clew threads` lists the threads in clew.db."
    )
    id_ = filled.ids()[0]
    filled.text("delete", id_)
    for command in ("show", "export"):
        assert filled.refused(1, command, id_) == (
            f"Thread '{id_}' is deleted, so `clew {command}` cannot read it. `clew log {id_}` lists its events."
        )


@pytest.mark.parametrize("arguments", [["search", "-broken teapot*"], ["memory", "search", "user/42", "-x"]])
def test_a_word_that_begins_with_a_dash_needs_two_dashes_before_it(filled: CalledClew, arguments: list[str]) -> None:
    command = " ".join(each for each in arguments if each.isalpha())
    assert f"Write -- before words that begin with -: clew {command} -- -broken. " in filled.refused(2, *arguments)
    assert "Write --" not in filled.refused(2, *arguments[:-1], "--brokn", "x")
    assert "Write --" not in filled.refused(2, "threads", "-b")
    assert filled.text("search", "--", "-teapot glaze") != "No matching messages.\n"


def test_a_blank_url_is_quoted_and_its_variable_is_named(clew: CalledClew) -> None:
    assert clew.refused(2, "--db", " ", "threads").startswith("' ' does not name a store")
    assert clew.refused(2, "threads", env={"CLEW_DB": " "}).startswith("CLEW_DB: ' ' does not name a store")
    assert list(clew.folder.iterdir()) == []


def test_the_number_of_a_message_that_is_too_long_is_not_repeated(filled: CalledClew) -> None:
    id_ = filled.lines("threads", "--json")[0]["thread_id"]
    error = filled.refused(1, "show", id_, "--at", "message:" + "9" * 5_000)
    assert error.strip() == "--at: no thread has a message number of 5000 digits."


WRONG_VALUES = [
    (["threads", "--label", "topic"], "'topic' is not a label. Write NAME=VALUE. Try"),
    (["label", "t", "topic"], "'topic' is not a label. Write NAME=VALUE, or NAME= to remove it."),
    (["rebuild", "--all", "search"], "Name projections, or give --all, not both."),
    (["rebuild"], "Name the projections to rebuild, or give --all."),
    (["memory", "search", "user/42", ""], "WORDS '' is empty. Give what the facts should be about."),
    (["memory", "search", "user/42", " ", ""], "WORDS '' is empty. Give what the facts should be about."),
    (["memory", "why", "user/42", ""], "FACT '' is empty. Give a fact's id, or a prefix of it."),
    (["edit", "ID", "message:1", ""], "TEXT is empty. Give the new text of the message."),
    (
        ["audit", "--since", "2026-02-01", "--until", "2026-01-01"],
        "--since 2026-02-01 00:00:00+00:00 is after --until 2026-01-01 00:00:00+00:00. Exchange them.",
    ),
    (["stats", "--since", "2026-02-01", "--until", "2026-01-01"], "--since 2026-02-01 is after --until 2026-01-01."),
    (["show", "ID", "--at"], "Option '--at' requires an argument. Try 'clew show --help'."),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG_VALUES)
def test_empty_and_contradictory_values_are_wrong_usage(filled: CalledClew, arguments: list[str], message: str) -> None:
    id_ = filled.ids()[0]
    with Conversations.open("clew.db") as conversations:
        conversations.memory("user/42").remember("Prefers kilometres.")
    before = filled.lines("threads", "--json")
    assert message in filled.refused(2, *(id_ if each == "ID" else each for each in arguments))
    assert filled.lines("threads", "--json") == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["edit", "ID", "0", "x"], "has no version 0: its versions are 1 to 6."),
        (["request", "ID", "99"], "has no version 99: its versions are 1 to 6."),
        (["edit", "ID", "1", "x"], "The versions of its messages are in its history: `clew show ID` lists them."),
        (
            ["rebuild", "foo"],
            "There is no projection 'foo'. There are: approvals, audit, directory,",
        ),
        (["rebuild", "foo"], "add --load MODULE:OBJECT."),
        (["audit", "--scope", "zz"], "There is no memory scope 'zz'. `clew memory list` shows the scopes."),
        (["memory", "list", "zz"], "There is no memory scope 'zz'. `clew memory list` shows the scopes."),
    ],
)
def test_an_error_about_a_version_or_a_name_lists_what_exists(
    filled: CalledClew, arguments: list[str], message: str
) -> None:
    id_ = filled.ids()[0]
    error = filled.refused(1, *(id_ if each == "ID" else each for each in arguments))
    assert message.replace("ID", id_) in error


def test_json_before_the_command_is_explained(clew: CalledClew) -> None:
    error = json.loads(clew.run("--json", "threads").stderr)["error"]
    expected = "No such option: --json: write it after the command, as in clew threads --json."
    assert error == {"type": "UsageError", "message": expected}


def test_lists_without_events_say_so(filled: CalledClew) -> None:
    id_ = filled.ids()[0]
    for arguments in (["log", id_, "--after", "99"], ["stats", "--by", "day", "--since", "2037-01-01"]):
        assert filled.text(*arguments) == "No matching events.\n"
        assert filled.lines(*arguments, "--json") == []


def test_doctor_says_of_an_empty_file_what_other_commands_say(clew: CalledClew) -> None:
    (clew.folder / "empty.db").touch()
    problem = clew.refused(1, "--db", "empty.db", "threads")
    assert problem in clew.run("--db", "empty.db", "doctor").stdout


def test_a_bug_in_clew_names_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyError) as result:
        dict[str, int]()["gone"]
    report(result.value, as_json=False)
    assert f"KeyError in {__file__.rpartition('/')[2]}, line " in capsys.readouterr().err


def test_a_message_is_cut_and_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    report(StoreUrlError("a\r\nb\x1b[2J" + "x" * 10_000 + "end"), as_json=False)
    error = capsys.readouterr().err
    assert error.startswith("clew: a b\\x1b[2Jxxx")
    assert error.endswith("xend\n")
    assert len(error) < 2_020
    assert "x…x" in error
