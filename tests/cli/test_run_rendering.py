"""Runs in ``show``, ``log`` and ``replay``."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from tests.domain.strategies import event
from tests.service import recorded_runs
from tests.service.recorded_runs import record

from clew import Conversations, Message, Record
from clew.cli.rendering.conversation import run_lines
from clew.cli.rendering.events import find_nothing, what_happened
from clew.domain.runs.events import (
    AgentIdentity,
    ApprovalGiven,
    ApprovalRequested,
    Failure,
    Fingerprint,
    ModelFailed,
    RunEvent,
    RunFailed,
    RunResumed,
    RunStarted,
    ServiceThreadBound,
    ToolFailed,
    ToolStarted,
)
from clew.domain.runs.summaries import RunSummary

if TYPE_CHECKING:
    from tests.cli.conftest import CalledClew as Clew

UNSAFE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u2028-\u202e\u2066-\u2069]")
EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\u202ereversed\u2028x"
SUMMARY = [
    *("run_id", "agent", "version", "last_version", "started_at", "ended_at", "outcome", "reason", "error"),
    *("attempts", "models", "model_calls", "tool_calls", "failed_calls", "input_tokens", "output_tokens"),
    *("model_ms", "tool_ms", "approvals", "interrupted", "context", "missing", "left_out"),
]


@pytest.fixture
def conversations(clew: Clew) -> Iterator[Conversations]:
    seconds = itertools.count(1_768_467_600_000_000, 1_000_000)
    url = f"sqlite:///{clew.folder / 'clew.db'}?synchronous=OFF"
    with Conversations.open(url, now=lambda: next(seconds)) as opened:
        opened.start_thread("Parcel", thread_id="parcel")
        yield opened


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


def test_the_log_connects_the_events_of_a_run(clew: Clew, conversations: Conversations) -> None:
    record(conversations, "parcel", "r1", *recorded_runs.with_a_tool())
    conversations.thread("parcel").append(Message.user("Thanks!"), actor="user:42")
    usual = lines(clew.text("log", "parcel", env={"COLUMNS": "80"}))[2:]
    assert [line[:23] for line in usual[:2]] == ["  1  2026-01-15 09:00  ", "  2  2026-01-15 09:00  "]
    assert [line[23:] for line in usual] == [
        "thread-started               Parcel",
        "run-started         user:42  Joker (joker) · openai-chat…",
        "│ message-appended           user: Where is W-1?",
        "│ model-called               gpt-x · streamed",
        '│ message-appended           assistant: → look_up({"id":…',
        "│ model-answered             830 ms · 120→45 tokens · to…",
        "│ tool-started               look_up",
        '│ message-appended           tool: ← {"found": "W-1"}',
        "│ tool-finished              look_up · 12 ms",
        "│ model-called               gpt-x · streamed",
        "│ model-failed               30 ms · ModelOverloadedErro…",
        "│ model-called               gpt-x · attempt 2 · streamed",
        "│ message-appended           assistant: W-1 is on its wa…",
        "│ model-answered             1.3 s · 1,200→10 tokens · s…",
        "└ run-completed              stop",
        "message-appended    user:42  user: Thanks!",
    ]
    wide = lines(clew.text("log", "parcel", env={"COLUMNS": "120"}))[2:]
    assert [line[:26] for line in wide[:2]] == ["  1  2026-01-15 09:00:00Z ", "  2  2026-01-15 09:00:01Z "]
    narrow = lines(clew.text("log", "parcel", env={"COLUMNS": "60"}))
    assert narrow[10] == "  9  │ tool-finished              look_up · 12 ms"
    assert max(map(len, narrow)) <= 60
    assert lines(clew.text("log", "parcel", "--after", "8"))[2].endswith("│ tool-finished     user:42  look_up · 12 ms")


def test_the_log_marks_rewound_events_and_never_cuts_the_actor(clew: Clew, conversations: Conversations) -> None:
    thread = conversations.thread("parcel")
    thread.append([Message.user("One " * 40), Message.assistant("Two")], actor="user:42")
    thread.append(Message.user("Three"))
    thread.rewind(to=2)
    output = lines(clew.text("log", "parcel"))
    assert [line[:3] for line in output[2:7]] == ["  1", "  2", "↩ 3", "↩ 4", "  5"]
    assert "user:42  user: One One" in output[3]
    assert output[-1] == "↩ taken back by a rewind"
    assert [line[:3] for line in lines(clew.text("log", "parcel", "--after", "3"))[2:]] == ["↩ 4", "  5", "↩ t"]
    thread.rewind(to=4)  # which undoes the rewind
    output = lines(clew.text("log", "parcel"))
    assert [line[:3] for line in output[2:8]] == ["  1", "  2", "  3", "  4", "↩ 5", "  6"]


def test_the_log_in_json_has_the_run_and_its_events(clew: Clew, conversations: Conversations) -> None:
    record(conversations, "parcel", "r1", *recorded_runs.with_a_tool())
    shape = clew.lines("log", "parcel", "--json")
    assert [each["run_id"] for each in shape] == [None, *["r1"] * 14]
    assert shape[1]["data"] == {
        "agent": {"id": "joker", "name": "Joker", "type": "Agent"},
        "fingerprint": {"client": "openai-chat", "instructions": "ab" * 32, "tools": ["cd" * 32, "ef" * 32]},
    }
    assert shape[5]["data"] == {
        "call": 4,
        "message": 5,
        "finish_reason": "tool_calls",
        "usage": {"input_tokens": 120, "output_tokens": 45},
        "first_ms": 210,
        "ms": 830,
    }
    assert shape[8]["data"] == {"message": 5, "index": 0, "result": 8, "ms": 12}


def test_the_log_shows_redacted_for_the_tool_of_a_redacted_call(clew: Clew, conversations: Conversations) -> None:
    record(conversations, "parcel", "r1", *recorded_runs.with_a_tool())
    record(conversations, "parcel", "r2", *recorded_runs.waiting())
    assert lines(clew.text("log", "parcel", "--after", "20"))[2].endswith("│ approval-requested  user:42  refund")
    conversations.thread("parcel").redact(5)
    conversations.thread("parcel").redact(19)
    output = lines(clew.text("log", "parcel"))
    assert [re.sub(" {2,}", " ", line[23:]) for line in output if "tool-" in line or "approval" in line] == [
        "│ tool-started [redacted]",
        "│ tool-finished [redacted] · 12 ms",
        "│ approval-requested [redacted]",
    ]
    assert "look_up" not in clew.text("show", "parcel")
    assert "approve? [redacted] (version 21)" in clew.text("show", "parcel")


def test_show_has_a_line_for_each_run_after_its_messages(clew: Clew, conversations: Conversations) -> None:
    record(conversations, "parcel", "r1", *recorded_runs.with_a_tool())
    record(conversations, "parcel", "r2", *recorded_runs.cut_short())
    record(conversations, "parcel", "r3", *recorded_runs.failing())
    conversations.thread("parcel").append(Message.user("And now?"))
    record(conversations, "parcel", "r4", *recorded_runs.waiting())
    output = lines(clew.text("show", "parcel"))
    assert [line for line in output if line and not line[2:3].isdigit()] == [
        "Parcel",
        "parcel · version 37 · 11 messages",
        "    Where is W-1?",
        '    → look_up({"id": "W-1"})',
        '    ← {"found": "W-1"}',
        "    W-1 is on its way.",
        "    └ Joker completed · 3 model calls · 1 tool call · 1 failed · 1,320→55 tokens · 2.1 s",
        "    Tell me about W-1.",
        "    W-1 is",
        "    [partial: the run was cancelled]",
        "    └ Joker abandoned (cancelled) · 1 model call · 1 failed",
        '    → look_up({"id": "W-1"})',
        "    ← error: invalid arguments",
        "    └ Joker failed · 2 model calls · 2 failed · 10→2 tokens · 105 ms",
        "      ModelOverloadedError 429 rate_limit: Too many requests",
        "    And now?",
        "    Refund W-1.",
        '    → refund({"id": "W-1"})',
        "    └ Joker waits for approval · 1 model call · 90→9 tokens · 400 ms",
        "      approve? refund (version 37)",
    ]
    assert "└ Joker open · 1 model call" in clew.text("show", "parcel", "--at", "4")
    assert "└" not in clew.text("show", "parcel", "--at", "1")


def test_a_run_is_completed_after_a_fork_or_rewind_at_its_final_answer(
    clew: Clew, conversations: Conversations
) -> None:
    record(conversations, "parcel", "r1", *recorded_runs.with_a_tool())
    thread = conversations.thread("parcel")
    answer = thread.history().messages[-1].version
    assert answer < thread.version
    completed = "└ Joker completed · 3 model calls · 1 tool call · 1 failed · 1,320→55 tokens · 2.1 s"
    thread.fork(at=answer, thread_id="fork")
    assert completed in clew.text("show", "fork")
    thread.rewind(to=answer)
    assert completed in clew.text("show", "parcel")


def test_show_in_json_has_the_runs(clew: Clew, conversations: Conversations) -> None:
    assert clew.object("show", "parcel", "--json")["runs"] == []
    record(conversations, "parcel", "r1", *recorded_runs.cut_short())
    record(conversations, "parcel", "r2", *recorded_runs.failing())
    record(conversations, "parcel", "r3", *recorded_runs.waiting())
    shape = clew.object("show", "parcel", "--json")
    assert list(shape) == ["thread_id", "version", "messages", "runs", "records"]
    assert all(list(run) == SUMMARY for run in shape["runs"])
    assert shape["runs"][0] == {
        "run_id": "r1",
        "agent": {"id": "joker", "name": "Joker", "type": "Agent"},
        "version": 2,
        "last_version": 7,
        "started_at": "2026-01-15T09:00:01.000000+00:00",
        "ended_at": "2026-01-15T09:00:01.000000+00:00",
        "outcome": "abandoned",
        "reason": "cancelled",
        "error": None,
        "attempts": 1,
        "models": ["gpt-x"],
        "model_calls": 1,
        "tool_calls": 0,
        "failed_calls": 1,
        "input_tokens": 0,
        "output_tokens": 0,
        "model_ms": 0,
        "tool_ms": 0,
        "approvals": [],
        "interrupted": [{"message": 5, "reason": "cancelled"}],
        "context": [],
        "missing": [],
        "left_out": 0,
    }
    assert shape["runs"][1]["error"] == {
        "kind": "ModelOverloadedError",
        "message": "Too many requests",
        "status": 429,
        "code": "rate_limit",
    }
    assert (shape["runs"][2]["outcome"], shape["runs"][2]["ended_at"]) == ("waiting", None)
    assert shape["runs"][2]["approvals"] == [{"version": 22, "message": 20, "index": 0, "reason": "approval"}]
    conversations.thread("parcel").rewind(to=7)
    assert [run["run_id"] for run in clew.object("show", "parcel", "--json")["runs"]] == ["r1"]


def test_replay_describes_the_events_of_a_run(clew: Clew, conversations: Conversations) -> None:
    record(conversations, "parcel", "r1", *recorded_runs.with_a_tool())
    fork = conversations.thread("parcel").fork(thread_id="fork")
    blocks = [block.splitlines()[1].strip() for block in clew.text("replay", fork.id).rstrip("\n").split("\n\n")]
    assert [each.removesuffix(" (inherited from parcel)") for each in blocks][1:9] == [
        "A run began: Joker (joker) · openai-chat · 2 tools",
        "A message was appended: user",
        "A model was called: gpt-x · streamed",
        "A message was appended: assistant",
        "The model answered: 830 ms · 120→45 tokens · tool_calls · first after 210 ms",
        "A tool call was started: look_up",
        "A message was appended: tool",
        "The tool call finished: look_up · 12 ms",
    ]


def test_the_names_in_runs_cannot_control_the_terminal(clew: Clew, conversations: Conversations) -> None:
    began = RunStarted(agent=AgentIdentity(id=EVIL, name=EVIL + "!", type=EVIL), fingerprint=Fingerprint(client=EVIL))
    broken = Failure(kind=EVIL, message=EVIL, code=EVIL)
    record(conversations, "parcel", EVIL, began, recorded_runs.called(-1).model_copy(update={"model": EVIL}))
    record(conversations, "parcel", EVIL, recorded_runs.calling(EVIL), recorded_runs.answered(3, EVIL, (1, 1), 1))
    asked = ApprovalRequested(message=4, index=0, reason="outcome-unknown")
    record(conversations, "parcel", EVIL, ToolStarted(message=4, index=0), asked)
    conversations.thread("parcel").fork(thread_id="waiting")
    outputs = [clew.text("show", "parcel")]
    record(conversations, "parcel", EVIL, ServiceThreadBound(id=EVIL, kind="response"), RunFailed(error=broken))
    outputs += [clew.text(name, "parcel") for name in ("show", "log", "replay")]
    outputs += [clew.text(name, "parcel", "--json") for name in ("show", "log")]
    outputs += [clew.text("audit"), clew.text("audit", "--json")]
    for output in outputs:
        assert UNSAFE.search(output) is None, ascii(output)
    assert "was started, and its outcome is unknown (version 7)" in outputs[0]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (RunResumed(attempt=2, agent=AgentIdentity(id="a"), fingerprint=Fingerprint(client="c")), "a · attempt 2"),
        (recorded_runs.called(2, attempt=3).model_copy(update={"streamed": False}), "gpt-x · attempt 3"),
        (ModelFailed(call=3, error=Failure(kind="E"), ms=61_000), "1 min 1 s · E"),
        (
            ModelFailed(call=3, error=recorded_runs.OVERLOADED, retry_in=0.25, ms=999),
            "999 ms · ModelOverloadedError 429 rate_limit · retries in 0.25 s: Too many requests",
        ),
        (ToolStarted(message=5, index=1), "call 1 of version 5"),
        (ToolFailed(message=5, index=0, result=6, reason="raised", kind="E"), "call 0 of version 5 · raised E"),
        (ApprovalRequested(message=5, index=0, reason="outcome-unknown"), "call 0 of version 5 · outcome unknown"),
        (ApprovalGiven(request=6, approved=True), "approved version 6"),
        (ApprovalGiven(request=6, approved=False, reason="too much"), "rejected version 6: too much"),
        (ServiceThreadBound(id="resp_1", kind="response"), "response resp_1"),
    ],
)
def test_every_event_has_a_text_without_lookups(data: RunEvent, text: str) -> None:
    assert what_happened(event(data, run_id="r"), find_nothing) == text


def test_an_approval_names_the_tool_that_it_is_for(clew: Clew, conversations: Conversations) -> None:
    record(conversations, "parcel", "r1", *recorded_runs.waiting())
    record(conversations, "parcel", "r1", ApprovalGiven(request=-1, approved=False, reason="too much"))
    assert re.search(r"approval-given +rejected refund: too much", clew.text("log", "parcel"))
    assert "└ Joker open" in clew.text("show", "parcel")


def test_a_resumed_run_shows_its_attempts() -> None:
    run = RunSummary("r", AgentIdentity(id="joker"), 1, 2, 0, attempts=2)
    assert [line.plain for line in run_lines(run, {})] == ["└ joker open · attempt 2"]


def test_a_log_names_actors_as_far_as_the_terminal_is_wide(clew: Clew) -> None:
    actor = "user:alice@example-company.com"
    with Conversations.open(f"sqlite:///{clew.folder / 'clew.db'}") as conversations:
        conversations.start_thread("Refund", thread_id="t", actor=actor)
    assert f"{actor}  Refund" in clew.text("log", "t")
    assert f"{actor}  Refund" in clew.text("log", "t", env={"COLUMNS": "120"})
    assert "user:alice@exam…  Refund" in clew.text("log", "t", env={"COLUMNS": "80"})
    assert clew.text("log", "t", env={"COLUMNS": "40"}).splitlines()[2].split() == ["1", "thread-started", "Refund"]


@pytest.mark.parametrize("width", [20, 30, 40, 47])
def test_a_tree_fits_a_narrow_terminal(clew: Clew, width: int) -> None:
    with Conversations.open(f"sqlite:///{clew.folder / 'clew.db'}") as conversations:
        conversations.start_thread("A refund").fork().fork()
    assert max(map(len, clew.text("tree", env={"COLUMNS": str(width)}).splitlines())) <= width


def test_records_are_shown_as_what_they_are(clew: Clew, conversations: Conversations) -> None:
    thread = conversations.thread("parcel")
    records = [Record("step", {"n": 1}, b"xyz", "main"), Record("step", "secret"), Record("x" * 9, EVIL, key=EVIL)]
    first, second, _ = thread.append(records)
    thread.redact(second)
    log = clew.text("log", "parcel", "--after", str(first.version - 1))
    assert 'record-appended   step: key main · {"n": 1} · 3 bytes' in log
    assert "record-appended   step: [redacted]" in log
    replay = clew.text("replay", "parcel")
    assert 'A record was appended: step: key main · {"n": 1} · 3 bytes' in replay
    assert "step: " not in clew.text("show", "parcel")
    for output in (log, replay, clew.text("log", "parcel", "--json"), clew.text("audit")):
        assert UNSAFE.search(output) is None, ascii(output)
        assert "secret" not in output
