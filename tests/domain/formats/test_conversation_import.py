from __future__ import annotations

import hashlib
import json
from collections import Counter
from typing import Any

import pytest

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


def there(
    given: Conversation, *, status: Status = "active", redacted: tuple[int, ...] = (), version: int | None = None
) -> StoredThread:
    """The thread that importing ``given`` makes, perhaps with some messages redacted since."""
    start = given.start()
    messages = [
        HistoryMessage(number + 2, message.role, None if number in redacted else message, f"e{number}", 0)
        for number, message in enumerate(given.messages)
    ]
    started = ThreadStarted(title=start.title, metadata=start.metadata, source=start.source)
    control = Control(version=1 + len(messages) if version is None else version, status=status)
    return StoredThread(started, control, messages)


def reason(given: Conversation, thread: StoredThread) -> str:
    with pytest.raises(ImportFormatError) as caught:
        plan("t", given, thread)
    return str(caught.value).removeprefix("Conversation of thread 't': ")


def test_reads_a_list_of_messages_as_a_conversation_without_an_id() -> None:
    found = read_conversation([HELLO, HI])
    assert (found.id, found.fields, found.values) == (None, {}, [HELLO, HI])
    assert found.messages == (Message.user("Hello"), Message.assistant("Hi"))


def test_reads_an_object_with_all_its_other_fields() -> None:
    found = read_conversation({"id": 7, "messages": [HELLO], "title": "T", "metadata": {"a": None}, "x": [10**299]})
    assert (found.id, found.fields) == (7, {"title": "T", "metadata": {"a": None}, "x": [10**299]})
    start = found.start()
    assert (start.title, start.metadata) == ("T", {"a": None})
    assert start.source == Source(id=7, fields={"title": "T", "x": [10**299]})
    assert source_fields(ThreadStarted(metadata=start.metadata, source=start.source)) == found.fields


def test_takes_a_title_only_from_text_and_metadata_only_from_an_object() -> None:
    start = read_conversation({"messages": [HELLO], "title": 5, "metadata": ["m"]}).start()
    assert (start.title, start.metadata) == (None, {})
    assert start.source == Source(id=None, fields={"title": 5, "metadata": ["m"]})


def test_takes_an_object_without_any_messages() -> None:
    assert read_conversation({"id": "c", "messages": []}).messages == ()


@pytest.mark.parametrize(
    ("value", "said"),
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
def test_refuses_what_is_no_conversation(value: object, said: str) -> None:
    with pytest.raises(ImportFormatError) as caught:
        read_conversation(value)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize("field", ["id", "metadata", "other"])
@pytest.mark.parametrize(
    "value",
    [float("nan"), "\ud800", {"\ud800": 1}, 10**4300],
    ids=["NaN", "surrogate", "surrogate key", "huge integer"],
)
def test_refuses_fields_that_would_not_come_back_equal(field: str, value: object) -> None:
    with pytest.raises(InvalidContentError):
        read_conversation({field: value, "messages": [HELLO]})


def test_names_a_thread_by_the_digest_of_its_key() -> None:
    assert thread_id("airline-0-0") == hashlib.sha256(b'"airline-0-0"').hexdigest()[:16]
    assert thread_id({"b": 1, "a": "ü"}) == hashlib.sha256('{"a":"ü","b":1}'.encode()).hexdigest()[:16]
    ids: list[Any] = [1, 1.0, True, "1", [1]]
    assert len({thread_id(id_) for id_ in ids}) == 5


def test_knows_a_conversation_by_its_id_alone() -> None:
    assert conversation(HELLO).key(1) == conversation(HELLO, HI, x=1).key(2) == "c"


@pytest.mark.parametrize("value", [[HELLO], {"messages": [HELLO]}, {"id": None, "messages": [HELLO]}])
def test_knows_a_conversation_without_an_id_by_its_content_and_its_occurrence(value: object) -> None:
    found = read_conversation(value)
    content = json.dumps({"messages": [HELLO]}, sort_keys=True, separators=(",", ":"))
    assert found.key(2) == [hashlib.sha256(content.encode()).hexdigest(), 2]


def test_counts_equal_conversations_without_ids() -> None:
    counts: Counter[str] = Counter()
    bare, other = read_conversation([HELLO]), read_conversation([HI])
    assert [count_occurrence(each, counts) for each in (bare, other, bare, bare, other)] == [1, 1, 2, 3, 2]
    assert [count_occurrence(conversation(HELLO), counts) for _ in range(3)] == [1, 1, 1]


def test_begins_a_thread_that_is_not_there() -> None:
    given = conversation(HELLO, HI)
    assert plan("t", given, None) == given.start()


@pytest.mark.parametrize("status", ["active", "suspended", "ended", "deleted"])
def test_skips_equal_content_whatever_the_status(status: Status) -> None:
    given = conversation(HELLO, HI, metadata={"n": 1})
    assert plan("t", given, there(given, status=status)) is None


def test_a_redacted_message_equals_any() -> None:
    given = conversation(HELLO, HI)
    assert plan("t", given, there(given, redacted=(0, 1))) is None
    changed = conversation({"role": "assistant", "content": "Other"}, HI)
    assert plan("t", changed, there(given, redacted=(0,))) is None
    assert "at message 1" in reason(changed, there(given, redacted=(1,)))


def test_extends_an_active_thread_by_the_rest() -> None:
    thread = there(conversation(HELLO), version=9)
    assert plan("t", conversation(HELLO, HI, BYE), thread) == Extend((Message.assistant("Hi"), Message.user("Bye")), 9)
    assert plan("t", conversation(BYE, HI), there(conversation(HELLO), redacted=(0,))) == Extend(
        (Message.assistant("Hi"),), 2
    )


@pytest.mark.parametrize("status", ["suspended", "ended", "deleted"])
def test_refuses_to_extend_a_thread_that_is_not_active_and_says_its_status(status: Status) -> None:
    said = reason(conversation(HELLO, HI, BYE), there(conversation(HELLO), status=status))
    assert "2 more messages than its thread" in said
    assert f"the thread is {status}, at version 2" in said


def test_refuses_a_conversation_that_its_thread_has_left_behind() -> None:
    said = reason(conversation(HELLO), there(conversation(HELLO, HI, BYE)))
    assert said.startswith("it ends at message 1, but its thread has 3 messages; the thread is active, at version 4")


@pytest.mark.parametrize("other", [{"role": "assistant", "content": "hi"}, {**HI, "n": 1}, {**HI, "content": None}])
def test_refuses_a_conversation_that_differs_and_says_where(other: dict[str, Any]) -> None:
    said = reason(conversation(HELLO, other, BYE), there(conversation(HELLO, HI)))
    assert said.startswith("it differs from its thread at message 2; the thread is active, at version 3")


@pytest.mark.parametrize(("one", "other"), [(1, 1.0), (1, True), (0, False), (0.0, -0.0)])
def test_is_strict_about_numbers(one: object, other: object) -> None:
    thread = there(conversation({**HELLO, "n": one}, x=0))
    assert "message 1" in reason(conversation({**HELLO, "n": other}, x=0), thread)
    thread = there(conversation(HELLO, x=one))
    assert "in 'x'" in reason(conversation(HELLO, x=other), thread)
    assert "taken" in reason(conversation(HELLO, id=one), there(conversation(HELLO, id=other)))


def test_the_order_of_keys_says_nothing() -> None:
    given = read_conversation({"messages": [{"content": "Hello", "role": "user"}], "x": {"b": 1, "a": 2}, "id": "c"})
    assert plan("t", given, there(conversation(HELLO, x={"a": 2, "b": 1}))) is None


def test_refuses_other_fields_and_names_them() -> None:
    thread = there(conversation(HELLO, metadata={"topic": "a"}, gone=1, same=[1]))
    assert "in 'gone', 'metadata', 'new';" in reason(conversation(HELLO, metadata={}, new=None, same=[1]), thread)
    assert "in 'metadata'" in reason(conversation(HELLO, HI, metadata={}, gone=1, same=[1]), thread)
    many = conversation(HELLO, **{f"field{number}": 1 for number in range(9)})
    assert "'field4' and 4 more fields" in reason(many, there(conversation(HELLO)))


def test_refuses_a_thread_of_that_id_that_came_from_elsewhere() -> None:
    given = conversation(HELLO)
    assert "taken by another thread" in reason(given, StoredThread(None, Control(version=1), ()))
    assert "taken by another thread" in reason(given, StoredThread(ThreadStarted(), Control(version=1), ()))


def test_says_a_failure_on_one_line_of_bounded_length() -> None:
    said = failure(Item("a.jsonl", 3, None), "two\nlines\u2028" + "x" * 1000)
    assert said.error.startswith("two lines x")
    assert len(said.error) == 500
    assert failure(Item("a.json", None, None, 2), "no") == ImportFailure("a.json", None, "conversation 2: no")
