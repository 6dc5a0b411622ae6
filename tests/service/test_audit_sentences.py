from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.domain.events import EVENT_TYPES
from clew.domain.projection import Recorded, Unreadable
from clew.service.audit_trail import what, why


def recorded(type_: str, data: dict[str, Any] | None, **more: Any) -> Recorded:
    return Recorded(1, "default", "thread", "t", 2, type_, 0, 0, data, 100, b"", "e", **more)


def message(role: str, *contents: dict[str, Any]) -> dict[str, Any]:
    return {"message": {"role": role, "contents": list(contents)}}


ASSISTANT = "appended an assistant message"
UNREADABLE = "which cannot be read: verify says what is wrong with it"
REMAINS = "deleted the thread and its side at the service, of which 1 of 2 remain"
LOCAL = "forked 'p' at version 7 into a 'local' thread"
ANSWERED = "recorded the answer of the model (version 5, 1,200 tokens in and 4 out)"
FAILED = "recorded that the model failed ('E' 429 'c'), and will be asked again"
BOUND = "bound the thread to 'response' 'r1' of the service"
TOOL_CALL = "the tool call of version 5, content 0"
TOOL_ERROR = f"recorded that {TOOL_CALL}, failed"
INSTEAD = "recorded the answer of middleware ('Cache') instead of the model (version 5)"
MISSING_PROVIDERS = "started a run of agent 'a', without 'x', 'y', which was missing"
PROVIDED_BY = "recorded what 'p' gave to the run"
PROVIDED = {
    "messages": [{}],
    "tools": ["secret", "secret"],
    "facts": [{}],
    "citations": [{}],
    "reads": [{"scope": "user/42", "version": 3}],
}
EVERYTHING = "(6 characters of instructions, 1 message, 2 tools, 1 fact, 1 citation; read 'user/42' at version 3)"
BROKEN = "recorded that 'p' failed in 'invoking' ('E')"
STATE_KEPT = "recorded that 'p' keeps something of the thread"
REDUCED = {
    "agent": "a",
    "reducer": "r",
    "left_out": [[2, 5], [8, 8]],
    "summary": {"text": "secret"},
    "trimmed": [[9, 10]],
    "over_budget": True,
}
SUMMARIZED = "(a summary in their place, 1 message trimmed, over budget)"
STATEMENT = {
    "text": "secret",
    "key": "units",
    "learned": {"thread": "t", "version": 4},
    "promoted": {"scope": "user/42", "fact": "e", "version": 2},
}
STATED = "(6 characters, key 'units', learned in 't' at version 4, promoted from 'e' of 'user/42')"
LEARNED = "in 't' at version 4"
ADDED = "added document 'd' to 'n', 'm'"
REPLACED = f"{ADDED} (6 characters, in place of 'c')"
TEXT = {"type": "text", "text": "secret"}
CALL = {"type": "function-call", "call_id": "1", "name": "secret", "arguments": "secret"}
RESULT = {"type": "function-result", "call_id": "1", "result": "secret"}


@pytest.mark.parametrize(
    ("type_", "data", "sentence"),
    [
        ("thread-started", {"title": None}, "started the thread"),
        ("thread-started", {"title": "Refund"}, "started the thread 'Refund'"),
        ("thread-started", {"source": {"id": 1}}, "imported the thread"),
        ("thread-forked", {"parent_id": "p", "parent_version": 7}, "forked 'p' at version 7"),
        ("thread-forked", {"parent_id": "p", "parent_version": 7, "title": "If"}, "forked 'p' at version 7 'If'"),
        ("thread-labelled", {"labels": {"a": 1, "b": "é"}}, "set label 'a' to 1, 'b' to \"\\u00e9\""),
        ("thread-labelled", {"labels": {"a": None}}, "removed label 'a'"),
        ("thread-labelled", {"labels": {"a": True, "b": None}}, "set label 'a' to true and removed label 'b'"),
        ("thread-labelled", {"labels": {}}, "set no label"),
        ("message-appended", message("user", TEXT), "appended a user message (6 characters)"),
        ("message-appended", message("assistant", TEXT, TEXT, CALL), f"{ASSISTANT} (12 characters, 1 call)"),
        ("message-appended", message("tool", RESULT, RESULT), "appended a tool message (2 results)"),
        ("message-appended", message("user", {"type": "raw"}), "appended a user message (1 other content)"),
        ("message-appended", message("assistant"), f"{ASSISTANT} (empty)"),
        ("message-redacted", {"version": 5, "reason": "r"}, "redacted version 5"),
        ("history-rewound", {"to": 3}, "rewound to version 3"),
        ("checkpoint-made", {"name": "x", "at": 7}, "made checkpoint 'x' at version 7"),
        ("thread-suspended", {}, "suspended the thread"),
        ("thread-resumed", {}, "resumed the thread"),
        ("thread-ended", {}, "ended the thread"),
        ("thread-deleted", {}, "deleted the thread"),
        ("thread-purged", {"rows": 3, "digest": "ab"}, "destroyed the content of 3 events"),
        ("thread-restarted", {"title": "New"}, "started the thread again"),
        ("thread-deleted", {"service": [{"id": "a"}]}, "deleted the thread and its side at the service"),
        ("thread-deleted", {"service": [{"id": "a", "failed": "x"}, {"id": "b"}]}, REMAINS),
        ("thread-started", {"kind": "remote", "title": "A"}, "started the remote thread 'A'"),
        ("thread-forked", {"parent_id": "p", "parent_version": 7, "kind": "local"}, LOCAL),
        ("service-thread-bound", {"id": "r1", "kind": "response"}, BOUND),
        ("run-started", {"agent": {"id": "joker", "name": None}}, "started a run of agent 'joker'"),
        ("run-started", {"agent": {"id": "joker", "name": "Joker"}}, "started a run of agent 'Joker'"),
        ("run-resumed", {"agent": {"id": "a"}, "attempt": 2}, "resumed the run of agent 'a' (attempt 2)"),
        ("model-called", {"model": "m"}, "asked model 'm'"),
        ("model-called", {"model": "m", "attempt": 2}, "asked model 'm' (attempt 2)"),
        ("model-called", {"model": "m", "left_out": [3]}, "asked model 'm', without the signed parts of 1 message"),
        ("request-changed", {"call": 4, "by": "Polite"}, "changed the request of version 4 ('Polite')"),
        ("request-withheld", {"call": 4, "by": "Cache"}, "did not send the request of version 4 ('Cache')"),
        ("model-answered", {"message": 5}, "recorded the answer of the model (version 5)"),
        ("model-answered", {"message": 5, "answered_by": "Cache"}, INSTEAD),
        ("model-answered", {"message": 5, "usage": {"input_tokens": 1_200, "output_tokens": 4}}, ANSWERED),
        ("model-failed", {"error": {"kind": "E"}}, "recorded that the model failed ('E')"),
        ("model-failed", {"error": {"kind": "E", "status": 429, "code": "c", "message": "s"}, "retry_in": 2}, FAILED),
        ("answer-interrupted", {"message": 5}, "recorded that the answer was interrupted (version 5 is a part of it)"),
        ("answer-interrupted", {}, "recorded that the answer was interrupted (nothing of it)"),
        ("tool-started", {"message": 5, "index": 0}, f"began {TOOL_CALL}"),
        ("tool-finished", {"message": 5, "index": 0, "result": 7}, f"finished {TOOL_CALL} (result: version 7)"),
        ("tool-failed", {"message": 5, "index": 0, "result": 7}, f"{TOOL_ERROR} (result: version 7)"),
        ("tool-failed", {"message": 5, "index": 0, "result": 7, "kind": "E"}, f"{TOOL_ERROR} (result: version 7, 'E')"),
        (
            "guardrail-tripped",
            {"guardrail": "no_cards", "stage": "before", "reason": "a card number"},
            "stopped the run ('no_cards', 'before' the model)",
        ),
        ("tool-progressed", {"message": 5, "index": 0, "text": "secret"}, f"reported the progress of {TOOL_CALL}"),
        (
            "tool-progressed",
            {"message": 5, "index": 0, "fraction": 0.5},
            f"reported the progress of {TOOL_CALL} (50%)",
        ),
        (
            "handed-off",
            {"message": 5, "index": 0, "agent": {"id": "refunds"}, "reason": "secret"},
            f"handed the conversation to 'refunds', by {TOOL_CALL}",
        ),
        ("chat-configured", {"selection": {}, "termination": []}, "configured the group chat"),
        ("participant-joined", {"participant": {"id": "e"}, "thread_id": "c"}, "let a participant join, on thread 'c'"),
        ("participant-left", {"participant": "e"}, "let participant 'e' leave"),
        ("channel-restored", {"participant": {"id": "e"}, "thread_id": "c"}, "restored a channel, on thread 'c'"),
        ("chat-restored", {"chat": "c", "head": "ab"}, "restored the history of chat 'c'"),
        ("chat-run-started", {}, "began a run of the group chat"),
        ("turn-selected", {"state": {}}, "let the turn selection decide"),
        ("turn-started", {"participant": "e", "thread_id": "c"}, "gave the turn to 'e', on thread 'c'"),
        ("turn-finished", {"turn": 7}, "finished the turn of version 7"),
        ("turn-failed", {"turn": 7, "error": {"kind": "E"}}, "ended the turn of version 7 with an error"),
        ("chat-run-ended", {"run": 5, "reason": "text"}, "ended the chat run of version 5 ('text')"),
        ("child-thread", {"message": 5, "index": 0, "thread_id": "c1"}, f"gave {TOOL_CALL}, the thread 'c1'"),
        (
            "tool-started",
            {"message": 5, "index": 0, "standing": {"actor": "user:boss", "request": 7}},
            f"began {TOOL_CALL} (always approved by user:boss: version 7)",
        ),
        (
            "tool-started",
            {"message": 5, "index": 0, "standing": {"request": 7, "thread_id": "inner"}},
            f"began {TOOL_CALL} (always approved by somebody without a name: version 7 of the thread 'inner')",
        ),
        ("approval-requested", {"message": 5, "index": 0}, f"asked for approval of {TOOL_CALL}"),
        ("approval-given", {"request": 7, "approved": True}, "approved the request of version 7"),
        (
            "approval-given",
            {"request": 7, "approved": True, "always": True},
            "approved the request of version 7, and all later calls of this tool in the thread",
        ),
        ("approval-given", {"request": 7, "approved": False}, "rejected the request of version 7"),
        ("record-appended", {"type": "state", "data": "secret", "key": "secret"}, "appended a record of type 'state'"),
        ("record-appended", {"type": "pdf", "base64": "AP8="}, "appended a record of type 'pdf' with 2 bytes"),
        ("record-appended", {"type": "pdf", "base64": 5}, f"recorded 'record-appended', {UNREADABLE}"),
        ("run-completed", {}, "completed the run"),
        ("run-failed", {"error": {"kind": "E", "message": "secret"}}, "ended the run with an error ('E')"),
        ("run-abandoned", {"reason": "asked"}, "gave up the run"),
        ("run-started", {"agent": {"id": "a"}, "missing": ["x", "y"]}, MISSING_PROVIDERS),
        ("context-provided", {"provider": "p"}, f"{PROVIDED_BY} (nothing)"),
        ("context-provided", {"provider": "p", "instructions": "secret", **PROVIDED}, f"{PROVIDED_BY} {EVERYTHING}"),
        ("context-failed", {"provider": "p", "hook": "invoking", "error": {"kind": "E", "message": "secret"}}, BROKEN),
        (
            "context-state-recorded",
            {"provider": "standing-approvals", "state": [{"tool": "pay"}, {"tool": "ship"}]},
            "recorded the standing approvals of the thread: pay, ship",
        ),
        (
            "context-state-recorded",
            {"provider": "standing-approvals", "state": []},
            "recorded the standing approvals of the thread: none",
        ),
        ("context-state-recorded", {"provider": "p"}, "recorded that 'p' keeps nothing of the thread"),
        ("context-state-recorded", {"provider": "p", "state": "secret"}, STATE_KEPT),
        ("history-reduced", {"agent": "a", "reducer": "r", "upto": 9}, "recorded that 'r' looked at what 'a' is sent"),
        ("history-reduced", REDUCED, f"recorded that 'r' left versions 2 to 5, 8 out of {SUMMARIZED} what 'a' is sent"),
        ("scope-opened", {"holds": "facts"}, "opened the scope for facts"),
        ("scope-opened", {"holds": "documents", "embedder": "e"}, "opened the scope for documents, searched by 'e'"),
        ("fact-remembered", {"fact": "f", "statement": {"text": "secret"}}, "remembered fact 'f' (6 characters)"),
        ("fact-remembered", {"fact": "f", "statement": STATEMENT}, f"remembered fact 'f' {STATED}"),
        ("fact-superseded", {"fact": "f", "by": "g", "statement": STATEMENT}, f"replaced fact 'f' by 'g' {STATED}"),
        ("fact-retracted", {"fact": "f", "reason": "moved"}, "retracted fact 'f'"),
        ("document-added", {"document": "d", "text": "secret", "namespaces": ["n", "m"]}, f"{ADDED} (6 characters)"),
        ("document-added", {"document": "d", "text": "secret", "namespaces": ["n", "m"], "replaces": "c"}, REPLACED),
        ("document-removed", {"document": "d"}, "removed document 'd'"),
        ("fact-retracted", {"fact": "f", "learned": {"thread": "t", "version": 4}}, f"retracted fact 'f' {LEARNED}"),
        ("state-claimed", {"provider": "p", "thread_id": "t"}, "recorded that a state of 'p' belongs to 't'"),
        ("document-added", {"document": "d", "text": 5, "namespaces": []}, f"recorded 'document-added', {UNREADABLE}"),
        ("model-called", {}, f"recorded 'model-called', {UNREADABLE}"),
        ("run-failed", {"error": 5}, f"recorded 'run-failed', {UNREADABLE}"),
        ("os:system", None, "recorded 'os:system', which this Clew does not know"),
        ("message-appended", {"message": 5}, f"recorded 'message-appended', {UNREADABLE}"),
    ],
)  # fmt: skip
def test_describes_each_event(type_: str, data: dict[str, Any] | None, sentence: str) -> None:
    assert what(recorded(type_, data)) == sentence


def test_describes_a_redacted_message() -> None:
    redacted = recorded("message-appended", None, redacted=True, role="user")
    assert what(redacted) == "appended a user message (redacted since)"
    assert what(redacted._replace(role=None)) == "appended a message (redacted since)"


@pytest.mark.parametrize(
    ("type_", "data", "sentence"),
    [
        ("thread-labelled", {"labels": {"a": None, "b": None}}, "set or removed label 'a', 'b' (redacted since)"),
        ("checkpoint-made", {"name": "", "at": 7}, "made a checkpoint at version 7 (redacted since)"),
        ("thread-started", {}, "started the thread (redacted since)"),
        ("thread-forked", {"parent_id": "p", "parent_version": 7}, "forked 'p' at version 7 (redacted since)"),
        ("message-redacted", {"version": 5}, "redacted version 5 (redacted since)"),
        ("run-failed", {"error": {"kind": "E", "message": ""}}, "ended the run with an error ('E') (redacted since)"),
        ("tool-failed", None, "recorded 'tool-failed' (redacted since)"),
    ],
)
def test_says_that_the_text_of_an_event_was_redacted(type_: str, data: dict[str, Any] | None, sentence: str) -> None:
    assert what(recorded(type_, data, redacted=True)) == sentence


def test_describes_an_unreadable_row_by_its_type() -> None:
    unreadable = Unreadable(1, "default/thread/t", 2, "message-appended", b"", "ValueError: x")
    assert what(unreadable).startswith("recorded 'message-appended', which cannot be read")
    assert why(unreadable) is None


def test_returns_the_recorded_reason() -> None:
    assert why(recorded("thread-ended", {"reason": "done"})) == "done"
    assert why(recorded("thread-ended", {})) is None
    assert why(recorded("os:system", None)) is None
    assert why(recorded("approval-given", {"approved": False, "reason": "too much"})) == "too much"
    assert why(recorded("tool-failed", {"reason": "timeout"})) == "timeout"


def test_every_event_type_has_a_sentence() -> None:
    (cases,) = [mark.args[1] for mark in test_describes_each_event.pytestmark]
    assert {type_ for type_, _, sentence in cases if "cannot be read" not in sentence} >= set(EVENT_TYPES)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


FIELDS = [
    *("labels", "title", "message", "name", "at", "to", "version", "reason", "kind", "id", "service", "agent"),
    *("provider", "hook", "instructions", "messages", "reads", "state", "reducer", "left_out", "trimmed", "holds"),
    *("embedder", "fact", "by", "statement", "document", "text", "namespaces", "replaces", "missing", "facts"),
    *("attempt", "error", "model", "usage", "index", "result", "request", "approved", "parent_id", "parent_version"),
]


@given(
    st.sampled_from(sorted(EVENT_TYPES)),
    st.dictionaries(st.sampled_from(FIELDS), JSON),
)
def test_describes_any_data_in_printable_text(type_: str, data: dict[str, Any]) -> None:
    sentence = what(recorded(type_, data))
    assert sentence.isprintable()
    assert sentence
