"""`clew threads` and `clew tree`, called in this process."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from rich.text import Text

from clew import Conversations, Message
from clew.cli.rendering import threads as thread_rendering
from clew.domain.fork_tree import BranchCheckpoint, branches
from clew.service.thread_queries import ThreadSummary

if TYPE_CHECKING:
    from tests.cli.conftest import CalledClew as Clew

UNSAFE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u2028-\u202e\u2066-\u2069]")
EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\u202ereversed\u2028x"


def opened(clew: Clew) -> Conversations:
    return Conversations.open(f"sqlite:///{clew.folder / 'clew.db'}")


@pytest.fixture
def branched(clew: Clew) -> Clew:
    with opened(clew) as conversations:
        root = conversations.start_thread("Refund", thread_id="root", labels={"topic": "refund"})
        root.append([Message.user("My teapot broke"), Message.assistant("I am sorry")])
        root.checkpoint("before refund", at=2)
        root.fork(thread_id="titled", at=3, title="What if").label(stars=5)
        root.edit(2, "My cup broke", thread_id="edited").end()
        conversations.start_thread(thread_id="other", messages=[Message.user("Is the glaze safe?")])
    return clew


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


# threads


def test_threads_are_listed_by_status_label_and_last_change(branched: Clew) -> None:
    def ids(*options: str) -> list[str]:
        return [each["thread_id"] for each in branched.lines("threads", "--json", *options)]

    assert ids() == ["root", "titled", "edited", "other"]
    assert ids("--status", "ended") == ["edited"]
    assert ids("--label", "topic=refund") == ["root", "titled", "edited"]
    assert ids("--label", "topic=refund", "--label", "stars=5") == ["titled"]
    assert ids("--label", "stars=6") == []
    assert ids("--newest") == ["other", "edited", "titled", "root"]
    assert ids("--newest", "--limit", "2") == ["other", "edited"]
    assert ids("--limit", "2") == ids("-n", "2") == ["edited", "other"]
    assert "No matching threads." in branched.text("threads", "--status", "deleted")
    assert lines(branched.text("threads", "--newest"))[2].startswith("other")


def test_people_see_the_newest_threads_and_a_hint(branched: Clew, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clew.cli.options.DEFAULT_LIMIT", 2)
    output = branched.text("threads")
    assert [line.split()[0] for line in lines(output)[2:4]] == ["edited", "other"]
    assert lines(output)[4] == "These are the newest 2. `--limit N` shows more, `--all` shows every one."
    assert len(lines(branched.text("threads", "--all"))) == len(lines(branched.text("threads", "--limit", "4"))) == 6
    assert "These are" not in branched.text("threads", "--limit", "4")
    assert "These are the newest 3." in branched.text("threads", "-n", "3", "--newest")


def test_threads_refuse_an_invalid_status_or_label(branched: Clew) -> None:
    assert "--status 'gone' does not exist. Give active" in branched.refused(2, "threads", "--status", "gone")
    assert "'topic' is not a label" in branched.refused(2, "threads", "--label", "topic")
    assert "has no value" in branched.refused(2, "threads", "--label", "topic=")
    assert "--limit" in branched.refused(2, "threads", "--limit", "0")


def test_threads_are_listed_and_found_by_when_they_were_said(clew: Clew) -> None:
    messages = [{"role": "user", "content": "tea", "created_at": f"2023-03-0{day}T12:00:00Z"} for day in (1, 4)]
    clew.text("import", clew.file("old.jsonl", {"id": "old", "messages": messages}))
    with opened(clew) as conversations:
        conversations.start_thread("New", thread_id="new", messages=[Message.user("tea")])
    wide = {"COLUMNS": "120"}
    table = clew.text("threads", env=wide)
    assert lines(table)[0].split()[-1] == "Said"
    assert lines(table)[2].endswith("2023-03-01 to 2023-03-04")
    assert "Said" not in clew.text("threads", "--said-since", "2024-01-01", env=wide)
    old, new = clew.lines("threads", "--json")
    assert (old["first_said_at"], old["last_said_at"]) == (
        "2023-03-01T12:00:00.000000+00:00",
        "2023-03-04T12:00:00.000000+00:00",
    )
    assert "first_said_at" not in new
    assert [each["thread_id"] for each in clew.lines("threads", "--json", "--said-since", "2024-01-01")] == ["new"]
    assert clew.lines("threads", "--json", "--said-until", "2024-01-01") == [old]
    assert clew.lines("threads", "--json", "--said-since", "2023-03-05", "--said-until", "2024-01-01") == []
    assert clew.text("threads", "--said-until", "2020-01-01").strip() == "No matching threads."
    assert "--said-until" in clew.refused(2, "threads", "--said-since", "2024-01-01", "--said-until", "2023-01-01")


# tree


def test_a_tree_shows_forks_at_their_cuts_with_checkpoints_heads_and_times(branched: Clew) -> None:
    updated = branched.lines("threads", "--json")[0]["updated_at"][:16].replace("T", " ")
    output = [line.replace(updated, "TIME") for line in lines(branched.text("tree"))]
    assert output == [
        "root  Refund                          active       2 msg    v4  TIME",
        "│  ◆ 2 before refund",
        "├─1─ edited  My cup broke             ended        1 msg    v4  TIME",
        "└─3─ titled  What if                  active       2 msg    v5  TIME",
        "",
        "other  Is the glaze safe?             active       1 msg    v2  TIME",
    ]
    assert lines(branched.text("tree", "tit"))[3].startswith("└─3─ titled ◀ What if")
    wide = lines(branched.text("tree", env={"COLUMNS": "120"}))
    assert wide[0].endswith(f"active       2 messages    v4  {updated}")
    assert {len(line) for line in wide if "◆" not in line and line} == {120}
    narrow = lines(branched.text("tree", env={"COLUMNS": "60"}))
    assert narrow[0].endswith("active       2 msg    v4")


def test_a_tree_in_json_is_a_line_each_depth_first(branched: Clew) -> None:
    result = branched.lines("tree", "--json")
    assert [(each["thread_id"], each["depth"], each["forks"]) for each in result] == [
        ("root", 0, 2), ("edited", 1, 0), ("titled", 1, 0), ("other", 0, 0),
    ]  # fmt: skip
    assert branched.lines("tree", "edited", "--json") == result[:3]
    listed = branched.lines("threads", "--json")
    assert result[0] == {**listed[0], "depth": 0, "forks": 2, "checkpoints": [{"name": "before refund", "version": 2}]}


def test_people_see_the_newest_trees(branched: Clew, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clew.cli.options.DEFAULT_LIMIT", 1)
    output = lines(branched.text("tree"))
    assert output[0].startswith("other")
    assert output[1] == "These are the newest 1 trees. `--all` draws every one."
    assert len(lines(branched.text("tree", "--all"))) == 6
    assert lines(branched.text("tree", "root"))[-1] == "└─ … and 1 more fork"
    assert [line.split()[1] for line in lines(branched.text("tree", "titled"))[2:]] == ["edited", "titled"]
    with opened(branched) as conversations:
        for each in ("root", "other"):
            conversations.thread(each).delete()
    assert "deleted" in branched.text("tree", "other")


def test_an_empty_store_has_no_tree(clew: Clew) -> None:
    opened(clew).close()
    assert "There are no threads." in clew.text("tree")
    assert clew.lines("tree", "--json") == []
    assert "no thread 'x'" in clew.refused(1, "tree", "x")


def test_names_in_lists_and_trees_cannot_control_the_terminal(clew: Clew) -> None:
    with opened(clew) as conversations:
        root = conversations.start_thread(EVIL, thread_id=EVIL, messages=[Message.user(EVIL)])
        root.fork(thread_id=EVIL + "fork", at=1).append(Message.user(EVIL))
        conversations.start_thread(thread_id="untitled", messages=[Message.user(EVIL)])
    for output in (clew.text("threads"), clew.text("tree"), clew.text("tree", EVIL), clew.text("tree", "--json")):
        assert UNSAFE.search(output) is None, ascii(output)
    assert "\\x1b[2J" in clew.text("tree")


# Drawing


def summary(id_: str, parent: str | None = None, cut: int | None = None) -> ThreadSummary:
    time = datetime(2026, 1, 31, tzinfo=UTC)
    return ThreadSummary(id_, None, "active", 7, 5, parent, cut, "", time, time, {}, {}, {}, imported=False)


def drawn(*threads: ThreadSummary, marked: str | None = None, most: int | None = None, width: int = 60) -> list[str]:
    result = list(branches(threads, {"a": [BranchCheckpoint("x", 2), BranchCheckpoint("y", 4)]}))
    return [
        line.plain.rstrip()
        for line in thread_rendering.tree_lines(result, width, lambda _: Text(), marked=marked, most=most)
    ]


def left(result: list[str]) -> list[str]:
    return [line[:28].rstrip() for line in result]


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_lists_and_trees_have_whole_uuids_and_a_part_of_each_title(clew: Clew, width: int) -> None:
    ids = [str(UUID(int=7**number)) for number in (45, 44, 43)]
    with opened(clew) as conversations:
        thread = conversations.start_thread("Refund of a teapot", thread_id=ids[0])
        thread.fork(thread_id=ids[1]).fork(thread_id=ids[2])
        conversations.start_thread("Refund of a cup", thread_id="short")
    wide = {"COLUMNS": str(width)}
    table, tree = clew.text("threads", env=wide).splitlines(), clew.text("tree", env=wide).splitlines()
    for id_ in ids:
        assert [len([line for line in output if id_ in line.split()]) for output in (table, tree)] == [1, 1]
    assert all("Re" in line for line in table[2:])
    assert all("active" in line for line in [*table[2:], *tree] if line)
    assert max(map(len, [*table, *tree])) <= width
    assert ("Updated" in table[0], "20" in tree[2][-16:]) == (width >= 100, width >= 100)


def test_lines_connect_a_thread_with_all_its_forks() -> None:
    result = drawn(
        summary("a"), summary("b", "a", 2), summary("c", "b", 3), summary("d", "b", 3), summary("e", "a", 12)
    )
    assert left(result) == ["a", "│  ◆ 2 x  ◆ 4 y", "├─2─ b", "│  ├─3─ c", "│  └─3─ d", "└─12─ e"]
    assert all(line.endswith("active       5 msg    v7") for line in (result[0], *result[2:]))
    assert {len(line) for line in (result[0], *result[2:])} == {60}


def test_forks_beyond_the_limit_are_counted_but_the_marked_one_is_drawn() -> None:
    threads = [summary("a"), *(summary(f"f{number:04}", "a", 2) for number in range(1_000))]
    threads.append(summary("deep", "f0500", 9))
    assert left(drawn(*threads, most=2))[2:] == ["├─2─ f0000", "├─2─ f0001", "└─ … and 998 more forks"]
    assert left(drawn(*threads, most=2, marked="deep"))[2:] == [
        "├─2─ f0000", "├─2─ f0001", "├─2─ f0500", "│  └─9─ deep ◀", "└─ … and 997 more forks",
    ]  # fmt: skip
    assert len(drawn(*threads)) == 1_003


def test_a_deep_chain_stays_within_the_width() -> None:
    chain = [summary("a"), *(summary(f"f{number}", f"f{number - 1}" if number else "a", 2) for number in range(1_500))]
    result = drawn(*chain)
    assert len(result) == 1_502
    assert max(map(len, result)) == 60
    assert result[-1].startswith("⋯           └─2─ f1499")


def test_long_names_and_many_checkpoints_are_cut() -> None:
    thread = summary("x" * 200)
    marks = {thread.id: [BranchCheckpoint(f"checkpoint {number}", number) for number in range(50)]}
    result = list(thread_rendering.tree_lines(list(branches([thread], marks)), 60, lambda _: Text("title")))
    assert [len(line.plain) for line in result] == [60, 60]
    assert [line.plain.count("…") for line in result] == [1, 1]
