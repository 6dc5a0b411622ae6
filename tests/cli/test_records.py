"""`clew records`, and records in the other commands, called in this process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from clew import Conversations, Message, Record
from clew.domain.events import RecordAppended

if TYPE_CHECKING:
    from tests.cli.conftest import CalledClew as Clew


@pytest.fixture
def stored(clew: Clew) -> Clew:
    """A thread with two messages and four records, of which the last is redacted, and a fork with one more."""
    with Conversations.open(clew.folder / "clew.db") as conversations:
        thread = conversations.start_thread(thread_id="order-7")
        thread.append([Message.user("Refund."), Record("step", {"node": "classify"}, key="main")])
        thread.append(
            [Message.assistant("Done."), Record("step", {"node": "pay\x1b[31m"}, key="other")], actor="app:bot"
        )
        thread.append([Record("receipt", blob=b"%PDF", key="order-7"), Record("secret", "4711", b"4711", "4711")])
        thread.redact(7)
        thread.fork(at=4, thread_id="retry", then=Record("step", {"node": "retry"}, key="main"))
    return clew


def test_lists_the_records_of_the_path_by_type_key_and_version(stored: Clew) -> None:
    assert rows(stored, "order") == [
        ["3", "step", "main", '{"node": "classify"}'],
        ["5", "step", "other", "app:bot", '{"node": "pay\\u001b[31m"}'],
        ["6", "receipt", "order-7", "4 bytes"],
        ["7", "secret", "[redacted]"],
    ]
    assert [line[0] for line in rows(stored, "order", "--type", "step")] == ["3", "5"]
    assert [line[0] for line in rows(stored, "order", "--type", "step", "--type", "receipt")] == ["3", "5", "6"]
    assert [line[0] for line in rows(stored, "order", "--key", "main")] == ["3"]
    assert [line[0] for line in rows(stored, "order", "--at", "5", "--last", "1")] == ["5"]
    assert [line[0] for line in rows(stored, "order", "--at", "message:1")] == []
    assert [line[0] for line in rows(stored, "retry")] == ["3", "6"]


def rows(clew: Clew, *arguments: str) -> list[list[str]]:
    """The cells of the table's rows, without times."""
    lines = clew.text("records", *arguments, env={"COLUMNS": "120"}).splitlines()
    if "Ver" not in lines[0]:
        return []
    cells = [[cell for cell in row.strip().split("  ") if cell] for row in lines[2:] if row[:3].strip().isdecimal()]
    return [[cell.strip() for cell in row if not cell.strip().endswith("Z")] for row in cells]


def test_says_when_there_are_none_and_when_there_are_more(stored: Clew) -> None:
    assert stored.text("records", "order-7", "--key", "4711") == "No matching records.\n"
    assert "These are the newest 2. `--last N` shows more, `--all` shows every one." in stored.text(
        "records", "order-7", "--last", "2"
    )
    assert "newest" not in stored.text("records", "order-7", "--last", "4")
    assert "newest" not in stored.text("records", "order-7", "--last", "1", "--all")
    with Conversations.open(stored.folder / "clew.db") as conversations:
        conversations.thread("order-7").append([Record("bulk", number) for number in range(60)])
    assert "These are the newest 50." in stored.text("records", "order-7")


def test_a_narrow_terminal_cuts_and_a_pipe_does_not(stored: Clew) -> None:
    with Conversations.open(stored.folder / "clew.db") as conversations:
        conversations.thread("order-7").append(Record("long", "x" * 300))
    narrow = stored.text("records", "order-7", env={"COLUMNS": "50"})
    assert max(map(len, narrow.splitlines())) <= 50
    assert "Time" not in narrow
    assert "x" * 300 in stored.text("records", "order-7")


def test_json_has_everything(stored: Clew) -> None:
    first, *_, receipt, secret = map(json.loads, stored.text("records", "order-7", "--json").splitlines())
    assert first.pop("event_id")
    assert first.pop("time").endswith("+00:00")
    assert first == {
        "version": 3,
        "type": "step",
        "data": {"node": "classify"},
        "key": "main",
        "base64": None,
        "redacted": False,
        "actor": None,
    }
    assert receipt["base64"] == "JVBERg=="
    assert [secret[name] for name in ("data", "key", "base64", "redacted")] == [None, None, None, True]
    (last,) = stored.text("records", "order-7", "--json", "--type", "step", "--last", "1").splitlines()
    assert json.loads(last)["data"] == {"node": "pay\x1b[31m"}
    assert stored.text("records", "order-7", "--json", "--key", "none") == ""


@pytest.mark.parametrize(
    ("options", "code", "error"),
    [
        (("--type", ""), 1, "record type: it must be 1 to 200 printable characters."),
        (("--key", ""), 1, "record key: 0 characters, but it must have 1 to 1,000."),
        (("--last", "0"), 2, "--last"),
        (("--at", "99"), 1, "has no version 99"),
        (("--at", "nowhere"), 1, "nowhere"),
    ],
)
def test_refuses_wrong_options(stored: Clew, options: tuple[str, ...], code: int, error: str) -> None:
    done = stored.run("records", "order-7", *options)
    assert (done.returncode, done.stdout) == (code, "")
    assert error in done.stderr


def test_completes_types_and_keys(stored: Clew) -> None:
    for option, typed, result in (
        ("--type", "", "receipt\nstep\n"),
        ("--type", "s", "step\n"),
        ("--key", "", "order-7\nother\nmain\n"),
        ("--key", "o", "order-7\nother\n"),
    ):
        words = f"clew records order-7 {option} {typed}"
        environment = {"_CLEW_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": "4"}
        assert stored.run(env=environment).stdout.lstrip("\n") == result


def test_show_has_records_in_their_place(stored: Clew) -> None:
    text = stored.text("show", "order-7")
    assert text.startswith("order-7 · version 8 · 2 messages · 4 records\n")
    places = [text.index(part) for part in ("Refund.", "◇ step  version 3 · key main", "Done.", "◇ step  version 5")]
    assert places == sorted(places)
    assert "◇ receipt  version 6 · key order-7 · 4 bytes" in text
    assert "◇ secret  version 7 · [redacted]" in text
    assert "4711" not in text
    assert "\x1b" not in text
    assert "2 records" not in stored.text("show", "order-7", "--at", "4")
    shown = stored.object("show", "order-7", "--json")
    assert [(each["version"], each["type"]) for each in shown["records"]] == [
        (3, "step"),
        (5, "step"),
        (6, "receipt"),
        (7, "secret"),
    ]
    assert [each["version"] for each in stored.object("show", "retry", "--json")["records"]] == [3, 6]


def test_the_other_commands_show_records_as_what_they_are(stored: Clew) -> None:
    assert "appended a record of type 'receipt' with 4 bytes" in stored.text("audit", "--thread", "order-7")
    assert "appended a record (redacted since)" in stored.text("audit", "--thread", "order-7")
    differences = stored.text("diff", "order-7", "retry", env={"COLUMNS": "120"})
    assert "+ step · version 6 · key main" in differences or "~ step" in differences
    assert "receipt · version 6 · key order-7 · 4 bytes" in differences
    markdown = stored.text("export", "order-7", "--format", "markdown")
    assert markdown.index("Refund.") < markdown.index("## Record: `step`") < markdown.index("Done.")
    assert "version 6, key `order-7`\n\n4 bytes." in markdown
    assert "## Record: `secret`" in markdown
    assert "4711" not in markdown
    assert "v8" in stored.text("tree", "order-7")
    assert "2 msg" in stored.text("tree", "order-7")
    (line,) = stored.text("export", "order-7").splitlines()
    assert len(json.loads(line)["messages"]) == 2


def test_an_export_of_events_brings_records_to_another_store(stored: Clew) -> None:
    (stored.folder / "events.jsonl").write_text(stored.text("export", "--format", "clew"))
    stored.text("--db", "other.db", "import", "events.jsonl")
    assert stored.text("--db", "other.db", "records", "order-7", "--json") == stored.text(
        "records", "order-7", "--json"
    )
    with Conversations.open(stored.folder / "other.db") as conversations:
        assert conversations.verify().first_bad is None
        first = next(conversations.thread("order-7").events(types=["record-appended"]))
        assert isinstance(first.data, RecordAppended)
