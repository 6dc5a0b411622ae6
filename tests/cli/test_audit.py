"""`clew audit` and `clew stats`, called in this process."""

from __future__ import annotations

import re
from itertools import count
from typing import TYPE_CHECKING

import pytest
from tests.cli.terminal_session import Session
from tests.service import recorded_runs
from tests.service.recorded_runs import record

from clew import Conversations, Message
from clew.domain.json_values import JsonObject

if TYPE_CHECKING:
    from tests.cli.conftest import CalledClew as Clew

BEGAN = 1_768_467_600_000_000
DAY = 86_400_000_000
UNSAFE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u2028-\u202e\u2066-\u2069]")
EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\u202ereversed\u2028x"


@pytest.fixture
def used(clew: Clew) -> Clew:
    days = count(BEGAN, DAY)
    url = f"sqlite:///{clew.folder / 'clew.db'}"
    with Conversations.open(url, now=lambda: next(days)) as conversations:
        root = conversations.start_thread("Refund", thread_id="root", actor="user:1")
        usage: JsonObject = {"usage": {"input_tokens": 1_200, "output_tokens": 34}}
        root.append([Message.user("secret"), Message.assistant("secret too", metadata=usage)], actor="user:2")
        fork = root.fork(thread_id="a-fork-with-a-long-name")
        fork.append(Message.user("third"))
        fork.end(reason="paid", actor="a-very-long-actor")
    return clew


# audit


def test_the_audit_trail_has_one_line_for_each_event(used: Clew) -> None:
    assert used.text("audit").splitlines() == [
        "2026-01-15 09:00  user:1      root     v1    started the thread 'Refund'",
        "2026-01-16 09:00  user:2      root     v2    appended a user message (6 characters)",
        "2026-01-16 09:00  user:2      root     v3    appended an assistant message (10 characters)",
        "2026-01-17 09:00  —           a-fork-w v4    forked 'root' at version 3",
        "2026-01-18 09:00  —           a-fork-w v5    appended a user message (5 characters)",
        "2026-01-19 09:00  a-very-long-actor  a-fork-w v6    ended the thread: paid",
    ]
    wide = used.text("audit", env={"COLUMNS": "120"}).splitlines()
    assert wide[-1] == "2026-01-19 09:00:00Z  a-very-long-actor  a-fork-with-a-long-name v6    ended the thread: paid"


def test_the_audit_trail_on_a_terminal_of_80_columns_has_one_line_for_each_event(used: Clew) -> None:
    with Session(used.folder, "audit") as session:
        assert session.end() == 0
        output_lines = re.sub(r"\x1b\[[0-9;]*m|\r", "", session.output).splitlines()
    assert len(output_lines) == 6
    assert max(map(len, output_lines)) <= 80
    assert output_lines[5].startswith("2026-01-19 09:00  a-very-long…  a-fork-w v6  ")
    assert output_lines[2] == "2026-01-16 09:00  user:2        root     v3    appended an assistant message (1…"


def test_a_narrow_terminal_shows_short_run_ids(clew: Clew) -> None:
    run_id = "0199c0de-1111-7222-8333-444455556666"
    with Conversations.open(f"sqlite:///{clew.folder / 'clew.db'}") as conversations:
        conversations.start_thread(thread_id="parcel")
        record(conversations, "parcel", run_id, *recorded_runs.with_a_tool())
    assert clew.text("audit").splitlines()[1].endswith(" [run 0199c0de]")
    assert clew.text("audit", env={"COLUMNS": "120"}).splitlines()[1].endswith(f" [run {run_id}]")
    assert clew.lines("audit", "--json")[1]["run_id"] == run_id


def test_the_audit_trail_in_json_has_the_documented_shape(used: Clew) -> None:
    result = used.lines("audit", "--json")
    events = [*used.lines("log", "root", "--json"), *used.lines("log", "a-fork", "--json")[3:]]
    assert [(each["position"], each["event_id"], each["hash"]) for each in result] == [
        (each["position"], each["event_id"], each["hash"]) for each in events
    ]
    assert {key: value for key, value in result[-1].items() if key not in {"event_id", "hash"}} == {
        "position": 6,
        "time": "2026-01-19T09:00:00.000000+00:00",
        "actor": "a-very-long-actor",
        "type": "thread-ended",
        "what": "ended the thread",
        "why": "paid",
        "thread_id": "a-fork-with-a-long-name",
        "version": 6,
        "run_id": None,
        "cause": None,
        "subject": None,
        "scope": None,
        "said_at": None,
        "on_behalf_of": None,
    }


def test_the_audit_trail_is_filtered_by_thread_actor_type_and_time(used: Clew) -> None:
    def positions(*options: str) -> list[int]:
        return [each["position"] for each in used.lines("audit", "--json", *options)]

    assert positions("--thread", "a-f") == [4, 5, 6]
    assert positions("--actor", "user:2") == [2, 3]
    assert positions("--type", "message-appended") == [2, 3, 5]
    assert positions("--since", "2026-01-17T09:00:00Z", "--until", "2026-01-19T09:00:00Z") == [4, 5]
    assert positions("--limit", "2") == [5, 6]
    assert "No matching events." in used.text("audit", "--actor", "nobody")


def test_an_unknown_type_of_event_is_refused_with_similar_ones(used: Clew) -> None:
    assert "Did you mean message-appended, " in used.refused(2, "audit", "--type", "message-append")
    assert "The types are answer-interrupted, " in used.refused(2, "audit", "--type", "zzz")
    assert "No matching events." in used.text("audit", "--type", "message-redacted")


def test_a_narrow_line_of_a_fork_has_the_short_id_of_its_parent(used: Clew) -> None:
    with Conversations.open(f"sqlite:///{used.folder / 'clew.db'}") as conversations:
        conversations.thread("a-fork-with-a-long-name").fork()
    assert used.text("audit").splitlines()[-1].endswith("forked 'a-fork-w' at version 6")


def test_the_audit_trail_takes_dates_and_ages(used: Clew) -> None:
    def positions(*options: str) -> list[int]:
        return [each["position"] for each in used.lines("audit", "--json", *options)]

    assert positions("--since", "2026-01-17", "--until", "2026-01-19") == [4, 5]
    assert positions("--since", "2026-01-17T10:00:00+01:00") == [4, 5, 6]
    with Conversations.open(f"sqlite:///{used.folder / 'clew.db'}") as conversations:
        conversations.start_thread(thread_id="today")
    for age in ("30m", "12h", "7d", "2w"):
        assert positions("--since", age) == [7]
        assert 7 not in positions("--until", age)
    assert used.lines("stats", "--by", "day", "--since", "7d", "--json")[0]["threads"] == 1
    assert "not a time" in used.refused(2, "audit", "--since", "7 days")
    for undocumented in ("2026-W05", "20260131", "\u0667d"):
        assert "not a time" in used.refused(2, "audit", "--since", undocumented)
    assert "before the year 1" in used.refused(2, "audit", "--since", "999999w")
    output_lines = " ".join(used.text("audit", "--help").split())
    assert "a date (the start of that day in UTC), or an age such as 30m, 12h, 7d or 2w" in output_lines


def test_people_see_the_newest_entries_of_the_audit_trail(used: Clew, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clew.cli.options.DEFAULT_LIMIT", 2)
    output_lines = used.text("audit").splitlines()
    assert output_lines[0].startswith("2026-01-18")
    assert output_lines[-1] == "These are the newest 2. `--limit N` shows more, `--all` shows every one."
    assert used.text("audit", "--all").splitlines()[0].startswith("2026-01-15")
    assert used.text("audit", "--limit", "6").splitlines()[0].startswith("2026-01-15")


def test_all_entries_are_listed_with_all_whatever_the_limit(used: Clew) -> None:
    every = used.text("audit", "--all")
    assert len(every.splitlines()) == 6
    assert used.text("audit", "--limit", "2", "--all") == every
    assert used.lines("audit", "--limit", "2", "--all", "--json") == used.lines("audit", "--json")


def test_audit_and_stats_refuse_invalid_times(used: Clew) -> None:
    assert "has no UTC offset" in used.refused(2, "audit", "--since", "2026-01-17T00:00:00")
    assert "--until 'soon' is not a time" in used.refused(2, "audit", "--until", "soon")
    assert "--since '5' is not a time" in used.refused(2, "audit", "--since", "5")
    assert "--since 'soon' is not a time" in used.refused(2, "stats", "--since", "soon")
    assert "--by" in used.refused(2, "stats", "--by", "week")
    assert "no thread 'x'" in used.refused(1, "stats", "x")
    assert "no thread 'x'" in used.refused(1, "audit", "--thread", "x")


def test_the_audit_trail_cannot_control_the_terminal(clew: Clew) -> None:
    with Conversations.open(f"sqlite:///{clew.folder / 'clew.db'}") as conversations:
        root = conversations.start_thread(EVIL, thread_id=EVIL, actor=EVIL, labels={EVIL: EVIL})
        root.label({EVIL: EVIL})
        root.fork(thread_id=EVIL + "fork", title=EVIL).end(reason=EVIL, actor=EVIL)
    for command in (["audit"], ["audit", "--json"], ["stats"], ["stats", "--by", "thread"]):
        output = clew.text(*command)
        assert UNSAFE.search(output) is None, ascii(output)


# stats


def test_stats_count_everything_in_the_store(used: Clew) -> None:
    assert [line.rstrip() for line in used.text("stats").splitlines()] == [
        "Threads   2 (1 fork)",
        "Messages  3",
        "Events    6",
        f"Bytes     {used.object('stats', '--json')['bytes']:,} B",
        "Tokens    1,200 in, 34 out",
        "",
        "Biggest threads",
        *[line.rstrip() for line in used.text("stats", "--by", "thread").splitlines()],
        "",
        "Messages by day",
        f"2026-01-15  {' ' * 32}  0 messages",
        f"2026-01-16  {'█' * 32}  2 messages",
        f"2026-01-17  {' ' * 32}  0 messages",
        f"2026-01-18  {'█' * 16}{' ' * 16}  1 message",
        f"2026-01-19  {' ' * 32}  0 messages",
    ]
    assert used.text("stats", "--by", "day").splitlines() == used.text("stats").splitlines()[-5:]


def test_stats_in_json_have_the_documented_shapes(used: Clew) -> None:
    total = used.object("stats", "--json")
    counted = {"threads": 2, "forks": 1, "events": 6, "messages": 3, "input_tokens": 1_200, "output_tokens": 34}
    assert total == {**counted, "bytes": total["bytes"], "model_calls": 0, "tool_calls": 0, "failed_calls": 0}
    by_thread = used.lines("stats", "--by", "thread", "--json")
    assert [list(each) for each in by_thread] == [["thread_id", *total]] * 2
    assert [each["thread_id"] for each in by_thread] == ["root", "a-fork-with-a-long-name"]
    by_day = used.lines("stats", "--by", "day", "--since", "2026-01-16", "--until", "2026-01-17", "--json")
    assert [list(each) for each in by_day] == [["day", *total]] * 2
    assert [(each["day"], each["messages"]) for each in by_day] == [("2026-01-16", 2), ("2026-01-17", 0)]
    assert used.object("stats", "root", "--json")["events"] == 3


def test_stats_count_the_calls_of_runs(used: Clew) -> None:
    with Conversations.open(f"sqlite:///{used.folder / 'clew.db'}") as conversations:
        record(conversations, "root", "r", *recorded_runs.with_a_tool())
    assert "Calls     3 to models, 1 to tools, 1 failed" in used.text("stats").splitlines()
    output_lines = used.text("stats", "--by", "thread", env={"COLUMNS": "60"}).splitlines()
    assert output_lines[0].split() == ["Thread", "Messages", "Events", "Bytes", "Tokens", "Calls"]
    assert [line.split()[0] for line in output_lines if line.endswith("2,609      4")] == ["root"]
    assert max(map(len, output_lines)) <= 60
    assert used.object("stats", "root", "--json")["tool_calls"] == 1


def test_stats_of_one_thread_or_of_an_empty_period(used: Clew) -> None:
    assert "Biggest" not in used.text("stats", "root")
    assert used.text("stats", "--since", "2030-01-01").splitlines()[0] == "Threads   0"
    assert "Bytes     0 B" in used.text("stats", "--since", "2030-01-01")
