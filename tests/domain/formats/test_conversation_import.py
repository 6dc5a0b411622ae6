from __future__ import annotations

import hashlib
import json
from collections import Counter
from typing import Any

import pytest

from clew.domain.decider import message_appended
from clew.domain.decider_state import Control
from clew.domain.errors import ImportFormatError, InvalidContentError
from clew.domain.event_types import Status
from clew.domain.events import Source, ThreadStarted
from clew.domain.formats.conversation_import import (
    Conversation,
    Extend,
    ImportFailure,
    Item,
    StoredThread,
    count_occurrence,
    failure,
    plan,
    read_conversation,
    said,
    source_fields,
    thread_id,
)
from clew.domain.history import HistoryMessage
from clew.domain.messages import Message

HELLO = {"role": "user", "content": "Hello"}
HI = {"role": "assistant", "content": "Hi"}
BYE = {"role": "user", "content": "Bye"}


def conversation(*messages: dict[str, Any], **fields: Any) -> Conversation:
    return read_conversation({"id": "c", **fields, "messages": list(messages)})


def stored_thread(
    imported: Conversation, *, status: Status = "active", redacted: tuple[int, ...] = (), version: int | None = None
) -> StoredThread:
    """Return the thread that the import creates, with some messages redacted later."""
    start = imported.start()
    messages = [
        HistoryMessage(number + 2, message.role, None if number in redacted else message, f"e{number}", 0)
        for number, message in enumerate(imported.messages)
    ]
    started = ThreadStarted(title=start.title, metadata=start.metadata, source=start.source)
    control = Control(version=1 + len(messages) if version is None else version, status=status)
    return StoredThread(started, control, messages)


def reason(imported: Conversation, thread: StoredThread) -> str:
    with pytest.raises(ImportFormatError) as caught:
        plan("t", imported, thread)
    return str(caught.value).removeprefix("Conversation of thread 't': ")


def test_reads_a_list_of_messages_as_a_conversation_without_an_id() -> None:
    parsed = read_conversation([HELLO, HI])
    assert (parsed.id, parsed.fields, parsed.values) == (None, {}, [HELLO, HI])
    assert parsed.messages == (Message.user("Hello"), Message.assistant("Hi"))


def test_reads_an_object_with_all_its_other_fields() -> None:
    parsed = read_conversation({"id": 7, "messages": [HELLO], "title": "T", "metadata": {"a": None}, "x": [10**299]})
    assert (parsed.id, parsed.fields) == (7, {"title": "T", "metadata": {"a": None}, "x": [10**299]})
    start = parsed.start()
    assert (start.title, start.metadata) == ("T", {"a": None})
    assert start.source == Source(id=7, fields={"title": "T", "x": [10**299]})
    assert source_fields(ThreadStarted(metadata=start.metadata, source=start.source)) == parsed.fields


def test_reads_a_title_only_from_text_and_metadata_only_from_an_object() -> None:
    start = read_conversation({"messages": [HELLO], "title": 5, "metadata": ["m"]}).start()
    assert (start.title, start.metadata) == (None, {})
    assert start.source == Source(id=None, fields={"title": 5, "metadata": ["m"]})


def test_accepts_an_object_without_messages() -> None:
    assert read_conversation({"id": "c", "messages": []}).messages == ()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (5, "int is not a conversation"),
        (None, "NoneType is not a conversation"),
        ("text", "str is not a conversation"),
        ([], "An empty list is not a conversation"),
        ({}, "The object has no 'messages'"),
        ({"messages": {"role": "user"}}, "'messages' is dict"),
        ([HELLO, {"role": "wizard"}], "message 2: the role 'wizard' is not known"),
        ([HELLO, "Hi"], "message 2: str is not an object"),
    ],
)
def test_accepts_only_a_conversation(value: object, text: str) -> None:
    with pytest.raises(ImportFormatError) as caught:
        read_conversation(value)
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize("field", ["id", "metadata", "other"])
@pytest.mark.parametrize(
    "value",
    [float("nan"), "\ud800", {"\ud800": 1}, 10**4300],
    ids=["NaN", "surrogate", "surrogate key", "huge integer"],
)
def test_refuses_fields_that_cannot_round_trip(field: str, value: object) -> None:
    with pytest.raises(InvalidContentError):
        read_conversation({field: value, "messages": [HELLO]})


def test_names_a_thread_by_the_digest_of_its_key() -> None:
    assert thread_id("airline-0-0") == hashlib.sha256(b'"airline-0-0"').hexdigest()[:16]
    assert thread_id({"b": 1, "a": "ü"}) == hashlib.sha256('{"a":"ü","b":1}'.encode()).hexdigest()[:16]
    ids: list[Any] = [1, 1.0, True, "1", [1]]
    assert len({thread_id(id_) for id_ in ids}) == 5


def test_identifies_a_conversation_by_its_id() -> None:
    assert conversation(HELLO).key(1) == conversation(HELLO, HI, x=1).key(2) == "c"


@pytest.mark.parametrize("value", [[HELLO], {"messages": [HELLO]}, {"id": None, "messages": [HELLO]}])
def test_identifies_a_conversation_without_an_id_by_content_and_occurrence(value: object) -> None:
    parsed = read_conversation(value)
    content = json.dumps({"messages": [HELLO]}, sort_keys=True, separators=(",", ":"))
    assert parsed.key(2) == [hashlib.sha256(content.encode()).hexdigest(), 2]


def test_counts_equal_conversations_without_ids() -> None:
    counts: Counter[str] = Counter()
    bare, other = read_conversation([HELLO]), read_conversation([HI])
    assert [count_occurrence(each, counts) for each in (bare, other, bare, bare, other)] == [1, 1, 2, 3, 2]
    assert [count_occurrence(conversation(HELLO), counts) for _ in range(3)] == [1, 1, 1]


def test_starts_a_missing_thread() -> None:
    imported = conversation(HELLO, HI)
    assert plan("t", imported, None) == imported.start()


@pytest.mark.parametrize("status", ["active", "suspended", "ended", "deleted"])
def test_skips_equal_content_in_any_status(status: Status) -> None:
    imported = conversation(HELLO, HI, metadata={"n": 1})
    assert plan("t", imported, stored_thread(imported, status=status)) is None


def test_a_redacted_message_equals_any_other() -> None:
    imported = conversation(HELLO, HI)
    assert plan("t", imported, stored_thread(imported, redacted=(0, 1))) is None
    changed = conversation({"role": "assistant", "content": "Other"}, HI)
    assert plan("t", changed, stored_thread(imported, redacted=(0,))) is None
    assert "at message 1" in reason(changed, stored_thread(imported, redacted=(1,)))


def test_extends_an_active_thread_with_the_remaining_messages() -> None:
    thread = stored_thread(conversation(HELLO), version=9)
    assert plan("t", conversation(HELLO, HI, BYE), thread) == Extend(
        (message_appended(Message.assistant("Hi")), message_appended(Message.user("Bye"))), (), 9
    )
    assert plan("t", conversation(BYE, HI), stored_thread(conversation(HELLO), redacted=(0,))) == Extend(
        (message_appended(Message.assistant("Hi")),), (), 2
    )


@pytest.mark.parametrize("status", ["suspended", "ended", "deleted"])
def test_refuses_to_extend_an_inactive_thread(status: Status) -> None:
    text = reason(conversation(HELLO, HI, BYE), stored_thread(conversation(HELLO), status=status))
    assert "2 more messages than its thread" in text
    assert f"the thread is {status}, at version 2" in text


@pytest.mark.parametrize("status", ["active", "suspended", "ended", "deleted"])
def test_skips_the_beginning_of_a_thread(status: Status) -> None:
    thread = stored_thread(conversation(HELLO, HI, BYE, x=1), status=status)
    for shorter in (conversation(x=1), conversation(HELLO, x=1), conversation(HELLO, HI, x=1)):
        assert plan("t", shorter, thread) is None
    assert "at message 2" in reason(conversation(HELLO, BYE, x=1), thread)
    assert "in 'x'" in reason(conversation(HELLO, HI, x=2), thread)


@pytest.mark.parametrize("other", [{"role": "assistant", "content": "hi"}, {**HI, "n": 1}, {**HI, "content": None}])
def test_refuses_a_different_conversation_and_names_the_message(other: dict[str, Any]) -> None:
    text = reason(conversation(HELLO, other, BYE), stored_thread(conversation(HELLO, HI)))
    assert text.startswith("it differs from its thread at message 2; the thread is active, at version 3")


@pytest.mark.parametrize(("one", "other"), [(1, 1.0), (1, True), (0, False), (0.0, -0.0)])
def test_numbers_of_different_types_differ(one: object, other: object) -> None:
    thread = stored_thread(conversation({**HELLO, "n": one}, x=0))
    assert "message 1" in reason(conversation({**HELLO, "n": other}, x=0), thread)
    thread = stored_thread(conversation(HELLO, x=one))
    assert "in 'x'" in reason(conversation(HELLO, x=other), thread)
    assert "taken" in reason(conversation(HELLO, id=one), stored_thread(conversation(HELLO, id=other)))


def test_ignores_the_order_of_keys() -> None:
    imported = read_conversation({"messages": [{"content": "Hello", "role": "user"}], "x": {"b": 1, "a": 2}, "id": "c"})
    assert plan("t", imported, stored_thread(conversation(HELLO, x={"a": 2, "b": 1}))) is None


def test_refuses_different_fields_and_names_them() -> None:
    thread = stored_thread(conversation(HELLO, metadata={"topic": "a"}, gone=1, same=[1]))
    assert "in 'gone', 'metadata', 'new';" in reason(conversation(HELLO, metadata={}, new=None, same=[1]), thread)
    assert "in 'metadata'" in reason(conversation(HELLO, HI, metadata={}, gone=1, same=[1]), thread)
    many = conversation(HELLO, **{f"field{number}": 1 for number in range(9)})
    assert "'field4' and 4 more fields" in reason(many, stored_thread(conversation(HELLO)))


def test_refuses_a_thread_with_this_id_that_was_not_imported() -> None:
    imported = conversation(HELLO)
    assert "taken by another thread" in reason(imported, StoredThread(None, Control(version=1), ()))
    assert "taken by another thread" in reason(imported, StoredThread(ThreadStarted(), Control(version=1), ()))


def test_a_failure_is_one_line_of_limited_length() -> None:
    text = failure(Item("a.jsonl", 3, None), "two\nlines\u2028" + "x" * 1000)
    assert text.error.startswith("two lines x")
    assert len(text.error) == 500
    assert failure(Item("a.json", None, None, 2), "no") == ImportFailure("a.json", None, "conversation 2: no")


NOON = 1_714_557_600_000_000  # 2024-05-01T10:00:00Z


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"timestamp": "2024-05-01T10:00:00Z"}, NOON),
        ({"timestamp": "2024-05-01T12:00:00.000001+02:00"}, NOON + 1),
        ({"created_at": 1_714_557_600}, NOON),
        ({"create_time": 1_714_557_600.5}, NOON + 500_000),
        ({"created_at": 1_714_557_600_123}, NOON + 123_000),
        ({"created_at": NOON}, NOON),
        ({"created_at": -1}, -1_000_000),
        ({"timestamp": "yesterday", "created_at": None, "create_time": 1_714_557_600}, NOON),
        ({"timestamp": "2024-05-01T10:00:00Z", "created_at": 1}, NOON),
        ({"timestamp": "2024-05-01T10:00:00"}, None),
        ({"timestamp": "0001-01-01T00:00:00+14:00"}, None),
        ({"created_at": True}, None),
        ({"created_at": 10**400}, None),
        ({"created_at": -1.7e308}, None),
        ({"created_at": "1714557600"}, None),
        ({"created_at": {"seconds": 1}}, None),
        ({"time": 1_714_557_600}, None),
        ({}, None),
    ],
    ids=range(18),
)
def test_reads_when_a_message_was_said(fields: dict[str, Any], expected: int | None) -> None:
    assert said({"role": "user", "content": "Hello", **fields}) == expected
    start = conversation(HI, {**HELLO, **fields}).start()
    assert start.said == (() if expected is None else (None, expected))
