from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.domain.auditing import what, why
from clew.domain.events import EVENT_TYPES
from clew.domain.projection import Recorded, Unreadable


def recorded(type_: str, data: dict[str, Any] | None, **more: Any) -> Recorded:
    return Recorded(1, "default", "thread", "t", 2, type_, 0, 0, data, 100, b"", "e", **more)


def message(role: str, *contents: dict[str, Any]) -> dict[str, Any]:
    return {"message": {"role": role, "contents": list(contents)}}


ASSISTANT = "appended an assistant message"
UNREADABLE = "which cannot be read: verify says what is wrong with it"
TEXT = {"type": "text", "text": "secret"}
CALL = {"type": "function-call", "call_id": "1", "name": "secret", "arguments": "secret"}
RESULT = {"type": "function-result", "call_id": "1", "result": "secret"}


@pytest.mark.parametrize(
    ("type_", "data", "said"),
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
        ("os:system", None, "recorded 'os:system', which this Clew does not know"),
        ("message-appended", {"message": 5}, f"recorded 'message-appended', {UNREADABLE}"),
    ],
)  # fmt: skip
def test_says_what_was_done(type_: str, data: dict[str, Any] | None, said: str) -> None:
    assert what(recorded(type_, data)) == said


def test_says_what_became_of_a_message_that_was_redacted() -> None:
    redacted = recorded("message-appended", None, redacted=True, role="user")
    assert what(redacted) == "appended a user message (redacted since)"
    assert what(redacted._replace(role=None)) == "appended a message (redacted since)"


def test_says_of_a_row_that_cannot_be_read_what_it_names() -> None:
    unreadable = Unreadable(1, "default/thread/t", 2, "message-appended", b"", "ValueError: x")
    assert what(unreadable).startswith("recorded 'message-appended', which cannot be read")
    assert why(unreadable) is None


def test_tells_the_reason_that_was_given() -> None:
    assert why(recorded("thread-ended", {"reason": "done"})) == "done"
    assert why(recorded("thread-ended", {})) is None
    assert why(recorded("os:system", None)) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(
    st.sampled_from(sorted(EVENT_TYPES)),
    st.dictionaries(st.sampled_from(["labels", "title", "message", "name", "at", "to", "version", "reason"]), JSON),
)
def test_whatever_was_made_of_a_row_something_printable_is_said(type_: str, data: dict[str, Any]) -> None:
    said = what(recorded(type_, data))
    assert said.isprintable()
    assert said
