"""`clew diff`, called in this process."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.acceptance.clew_command import TEAPOT

from clew import Conversations, Message, Record
from clew.domain.formats.conversation_import import read_conversation

if TYPE_CHECKING:
    from tests.cli.conftest import CalledClew as Clew

OTHER: dict[str, Any] = {
    "id": "other",
    "messages": [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "My teapot broke. It cost 24 euros.", "name": "Maeve"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "c9",
                    "type": "function",
                    "function": {"name": "refund", "arguments": '{"note":"late","sum":24}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "c9", "content": '{"ok": true}'},
        {"role": "user", "content": "Thanks"},
    ],
}
SHARED = {"messages": 0, "version": 0}
EXAMPLE = {"airline-48-1", "airline-48-3"}


@pytest.fixture
def both(clew: Clew) -> Clew:
    """A store with two conversations that have no common past."""
    clew.text("import", clew.file("two.jsonl", TEAPOT, OTHER))
    return clew


def compared(clew: Clew, *options: str, columns: int = 80) -> str:
    return clew.text("diff", *clew.ids(), *options, env={"COLUMNS": str(columns)})


def test_a_wide_terminal_shows_both_sides_next_to_each_other(both: Clew) -> None:
    first, second = both.ids()
    assert compared(both).splitlines() == [
        f"a  {first}                    │ b  {second}",
        "   version 6 · 5 messages              │    version 6 · 5 messages",
        "───────────────────────────────────────┼───────────────────────────────────────",
        "2 the same, 2 changed, 1 only in a, 1 only in b",
        "",
        "… 1 message the same (version 2):",
        "  system: Be kind.",
        "                                       │",
        "~ user Maeve  version 3                │ ~ user Maeve  version 3",
        "  My teapot broke. It cost [-48-]      │   My teapot broke. It cost {+24+}",
        "  euros.                               │   euros.",
        "                                       │",
        "~ assistant  version 4                 │ ~ assistant  version 4",
        "  → refund                             │   → refund",
        "                                       │     note: {+late+}",
        "    sum: [-48-]                        │     sum: {+24+}",
        "",
        "… 1 message the same (version 5):",
        '  tool: ← {"ok": true}',
        "                                       │",
        "- assistant  version 6                 │ + user  version 6",
        "  48 euros are on their way.           │   Thanks",
    ]


def test_a_narrow_terminal_shows_one_below_the_other(both: Clew) -> None:
    lines = compared(both, columns=50).splitlines()
    assert max(map(len, lines)) <= 50
    assert "│" not in "".join(lines)
    output = "\n".join(lines)
    assert "  My teapot broke. It cost [-48-] {+24+} euros." in lines
    assert "    note: {+late+}\n    sum: [-48-] {+24+}" in output
    assert "- assistant  version 6 · only in a\n  48 euros are on their way." in output
    assert "+ user  version 6 · only in b\n  Thanks" in output


@pytest.mark.parametrize("columns", [40, 50, 71, 72, 80, 121])
def test_every_line_fits(both: Clew, columns: int) -> None:
    wide = {**TEAPOT, "id": "wide", "messages": [{"role": "user", "content": "日本語 " * 40 + "x" * 200}]}
    both.text("import", both.file("wide.jsonl", wide))
    first, _, third = both.ids()
    output = both.text("diff", first, third, "--all", env={"COLUMNS": str(columns)})
    assert output.count("日") == 40
    for line in output.splitlines():
        assert sum(2 if character in "日本語" else 1 for character in line) <= columns, line


def test_in_colour_words_are_underlined_red_and_green_instead_of_bracketed(both: Clew) -> None:
    output = both.text("diff", *both.ids(), env={"COLUMNS": "100", "FORCE_COLOR": "1"})
    assert "\x1b[1;4;31m48\x1b[0m" in output
    assert "\x1b[1;4;32m24\x1b[0m" in output
    assert "[-" not in output
    plain = both.text("diff", *both.ids(), env={"COLUMNS": "100", "FORCE_COLOR": "1", "NO_COLOR": "1"})
    assert "[-48-]" in plain
    stacked = both.text("diff", *both.ids(), env={"COLUMNS": "60", "FORCE_COLOR": "1"})
    assert "\x1b[1;4;31m[-48-]\x1b[0m" in stacked


def test_all_shows_what_is_the_same_and_long_values_whole(both: Clew) -> None:
    assert "= system" not in compared(both)
    assert "= system  version 2                    │ = system  version 2\n  Be kind." in compared(both, "--all")
    assert "1 message the same" not in compared(both, "--all")
    result = {"role": "tool", "tool_call_id": "c1", "content": json.dumps({"found": ["teapot"] * 60})}
    long = {"id": "long", "messages": [*OTHER["messages"][:3], result]}
    both.text("import", both.file("long.jsonl", long))
    output, whole = (both.text("diff", both.ids()[0], both.ids()[2], *options) for options in ([], ["--all"]))
    assert output.count("teapot") < 40 < whole.count("teapot")
    assert "characters)" in output
    assert "characters)" not in whole


def test_a_long_changed_value_is_cut_around_the_change(clew: Clew) -> None:
    with Conversations.open(f"sqlite:///{clew.folder / 'clew.db'}") as conversations:
        for thread_id, word in (("a", "sea"), ("b", "shore")):
            result = f"{'word ' * 200}{word} {'more ' * 200}{word * 200}"
            conversations.start_thread(thread_id=thread_id, messages=[Message.tool("1", result, name="look")])
    output, whole = (clew.text("diff", "a", "b", *options, env={"COLUMNS": "60"}) for options in ([], ["--all"]))
    assert "← look" in output
    assert "[-sea-] {+shore+}" in output
    assert output.count("word") < 100 < whole.count("word")
    assert "(600 characters)" in output
    assert whole.count("more") == 200


def test_markdown_is_a_document(both: Clew) -> None:
    output = compared(both, "--format", "markdown")
    assert output.startswith("# Diff\n\n| | thread | version | messages |\n")
    assert "> My teapot broke. It cost ~~48~~ **24** euros.\n" in output
    assert "### user Maeve · changed · version 3\n" in output
    assert "> - *note*: **late**\n> - *sum*: ~~48~~ **24**\n" in output


def test_json_has_the_documented_shape(both: Clew) -> None:
    first, second = both.ids()
    shape = both.object("diff", first, second, "--json")
    assert {key: value for key, value in shape.items() if key != "rows"} == {
        "a": {"thread_id": first, "version": 6, "messages": 5},
        "b": {"thread_id": second, "version": 6, "messages": 5},
        "shared": SHARED,
        "counts": {"same": 2, "changed": 2, "only_a": 1, "only_b": 1},
        "records": [],
    }
    assert [row["kind"] for row in shape["rows"]] == ["same", "changed", "changed", "same", "only-a", "only-b"]
    ours, theirs = (both.object("show", id_, "--json")["messages"] for id_ in (first, second))
    same, text, call = shape["rows"][:3]
    assert same == {"kind": "same", "a": ours[0], "b": theirs[0], "fields": [], "contents": []}
    assert text == {
        "kind": "changed",
        "a": ours[1],
        "b": theirs[1],
        "fields": [],
        "contents": [
            {
                "kind": "changed",
                "a": ours[1]["contents"][0],
                "b": theirs[1]["contents"][0],
                "fields": [
                    {
                        "kind": "changed",
                        "path": ["text"],
                        "a": "My teapot broke. It cost 48 euros.",
                        "b": "My teapot broke. It cost 24 euros.",
                        "parts": [
                            {"kind": "same", "text": "My teapot broke. It cost "},
                            {"kind": "only-a", "text": "48"},
                            {"kind": "only-b", "text": "24"},
                            {"kind": "same", "text": " euros."},
                        ],
                    }
                ],
            }
        ],
    }
    assert call["contents"][0]["fields"] == [
        {"kind": "only-b", "path": ["arguments", "note"], "a": None, "b": "late", "parts": []},
        {"kind": "changed", "path": ["arguments", "sum"], "a": 48, "b": 24, "parts": []},
    ]
    assert shape["rows"][4] == {"kind": "only-a", "a": ours[4], "b": None, "fields": [], "contents": []}


def test_the_example_in_the_docs_is_what_the_command_writes(clew: Clew, corpus: list[dict[str, Any]]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "diff-example.md").read_text(encoding="utf-8")
    there = {value["id"]: value for value in corpus if value.get("id") in EXAMPLE}
    assert set(there) == EXAMPLE or "CLEW_CORPUS" not in os.environ
    with Conversations.open(f"sqlite:///{clew.folder / 'clew.db'}") as conversations:
        for id_, value in there.items():
            conversations.start_thread(thread_id=id_, messages=read_conversation(value).messages)
    for id_ in EXAMPLE:
        assert f"clew diff {' '.join(sorted(EXAMPLE))}" in page
        assert f"| {id_} |" in page
    if there:  # the corpus is not part of the project
        first, second = sorted(there)
        assert clew.text("diff", first, second, env={"COLUMNS": "80"}) in page
        assert page.endswith(clew.text("diff", first, second, "--format", "markdown"))


def test_versions_of_one_thread_and_forks_share_their_past(both: Clew) -> None:
    first = both.ids()[0]
    shape = both.object("diff", first, "--at", "message:2", "--other-at", "5", "--json")
    assert (shape["a"]["version"], shape["b"]["version"]) == (3, 5)
    assert shape["shared"] == {"messages": 2, "version": 3}
    assert [row["kind"] for row in shape["rows"]] == ["only-b", "only-b"]
    everything = both.object("diff", first, "--at", "message:2", "--other-at", "5", "--json", "--all")
    assert [row["kind"] for row in everything["rows"]] == ["same", "same", "only-b", "only-b"]
    assert "… 2 messages shared (versions 2\u20133), the last:\n  user: My teapot broke." in both.text(
        "diff", first, "--at", "3"
    )
    fork = both.object("fork", first, "--at", "message:2", "--json")["thread_id"]
    assert "… 2 messages shared" in both.text("diff", first, fork)
    assert both.text("diff", first, first).splitlines()[-2].startswith("… 5 messages shared")


def test_equal_messages_name_the_versions_of_both_sides(clew: Clew) -> None:
    with Conversations.open(f"sqlite:///{clew.folder / 'clew.db'}") as conversations:
        same = [Message.user("Where is it?"), Message.assistant("It is here.")]
        conversations.start_thread(thread_id="a", messages=[Message.system("Be kind."), *same])
        conversations.start_thread(thread_id="b", messages=same)
    assert "… 2 messages the same (versions 3\u20134 ⇄ 2\u20133), the last:\n  assistant: It is here.\n" in clew.text(
        "diff", "a", "b"
    )
    assert "no messages" in clew.text("diff", "a", "b", "--at", "1", "--other-at", "1")


def test_redacted_messages_and_different_authors_and_metadata_are_shown(clew: Clew) -> None:
    with Conversations.open(f"sqlite:///{clew.folder / 'clew.db'}") as conversations:
        ours = Message.user("Where is it?", author="ann", metadata={"page no.": 1})
        theirs = Message.user("Where is it?", author="bob", metadata={"page no.": 2})
        conversations.start_thread(thread_id="a", messages=[ours, Message.user("My card is 4111")]).redact(3)
        conversations.start_thread(thread_id="b", messages=[theirs, Message.user("My card is 4111")])
    output = clew.text("diff", "a", "b", env={"COLUMNS": "60"})
    assert '  author: [-ann-] {+bob+}\n  metadata["page no."]: [-1-] {+2+}\n  Where is it?\n' in output
    assert "[-[redacted]-]\n  {+My card is 4111+}" in output
    assert "author" in clew.text("diff", "a", "b", "--format", "markdown")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["zz", "zz"], 1, "no thread 'zz'"),
        (["FIRST", "zz"], 1, "no thread 'zz'"),
        (["FIRST"], 2, "nothing to compare with"),
        (["FIRST", "--at", "99"], 1, "no version 99"),
        (["FIRST", "--other-at", "message:9"], 1, "no message 9"),
        (["FIRST", "--other-at", "later"], 1, "no checkpoint 'later'"),
        (["FIRST", "--other-at", "2026-01-31T12:00"], 2, "--other-at '2026-01-31T12:00' has no UTC offset"),
        (["FIRST", "FIRST", "--format", "html"], 2, "--format"),
        ([], 2, "THREAD"),
    ],
)
def test_refuses_an_invalid_comparison(both: Clew, arguments: list[str], code: int, message: str) -> None:
    first = both.ids()[0]
    command = ["diff", *(first if each == "FIRST" else each for each in arguments)]
    assert message in both.refused(code, *command)
    done = both.run(*command, "--json")
    assert (done.returncode, done.stdout) == (code, "")
    assert message in json.loads(done.stderr)["error"]["message"]


def test_a_deleted_thread_is_not_compared(both: Clew) -> None:
    first, second = both.ids()
    with Conversations.open(f"sqlite:///{both.folder / 'clew.db'}") as conversations:
        conversations.thread(second).delete()
    assert "deleted" in both.refused(1, "diff", first, second)


def test_no_text_can_control_the_terminal(clew: Clew) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\u202ereversed\u2028x"

    def conversation(text: str) -> dict[str, Any]:
        call = {"id": "1", "type": "function", "function": {"name": text, "arguments": json.dumps({text: text})}}
        return {
            "id": text,
            "messages": [
                {"role": "user", "content": f"The words that are kept here {text}", "name": text},
                {"role": "assistant", "content": "The words are kept here", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "1", "content": text},
            ],
        }

    clew.text("import", clew.file("evil.jsonl", conversation(evil), conversation(f"{evil} {evil}")))
    for options in ([], ["--all"], ["--format", "markdown"], ["--json"]):
        for columns in (50, 100):
            output = compared(clew, *options, columns=columns)
            assert re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]", output) is None, ascii(output)
            assert "[2J" in output


def test_records_that_differ_are_listed_after_the_turns(clew: Clew) -> None:
    with Conversations.open(f"sqlite:///{clew.folder / 'clew.db'}") as conversations:
        thread = conversations.start_thread(thread_id="with-records", messages=[Message.user("Hello")])
        fork = thread.fork(thread_id="other-records")
        thread.append([Record("step", {"n": 1}, key="k"), Record("log", "only *here*"), Record("x", "y")])
        fork.append([Record("step", {"n": 2}, b"xyz", key="k"), Record("x", "y")])
    lines = clew.text("diff", "with-records", "other-records").splitlines()
    assert lines[lines.index("Records") :] == [
        "Records",
        '~ step · version 3 ⇄ 4 · key k · {"n": 1} ⇄ key k · {"n": 2} · 3 bytes',
        '- log · version 4 · "only *here*"',
    ]
    markdown = clew.text("diff", "with-records", "other-records", "--format", "markdown")
    assert '- only in a: log · version 4 · "only \\*here\\*"' in markdown
    rows = json.loads(clew.text("diff", "with-records", "other-records", "--json"))["records"]
    assert [row["kind"] for row in rows] == ["changed", "only-a", "same"]
    assert rows[0]["b"] == {
        "version": 4,
        "type": "step",
        "data": {"n": 2},
        "key": "k",
        "base64": "eHl6",
        "redacted": False,
    }
