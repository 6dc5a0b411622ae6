"""Usage: counts of threads, events, messages and tokens."""

from __future__ import annotations

from datetime import date

import pytest
from tests.service import recorded_runs
from tests.service.recorded_runs import record
from tests.service.settable_clock import SettableClock

from clew import Conversations, Message
from clew.domain.errors import InvalidContentError, UnknownThreadError
from clew.domain.formats.conversation_import import Item
from clew.domain.json_values import JsonObject
from clew.service.usage_queries import UsageCounts

DAY = 86_400


@pytest.fixture
def used(conversations: Conversations, clock: SettableClock) -> Conversations:
    metadata: JsonObject = {"usage": {"prompt_tokens": 7, "completion_tokens": 3}}
    thread = conversations.start_thread(thread_id="one", messages=[Message.user("x" * 500)])
    clock.move(2 * DAY)
    thread.append(Message.assistant("y", metadata=metadata))
    thread.fork(thread_id="fork").append(Message.assistant("z", metadata={"usage": {"input_tokens": 2}}))
    return conversations


def counted(counts: list[UsageCounts]) -> list[tuple[object, ...]]:
    return [
        (each.thread_id, each.day, each.threads, each.forks, each.events, each.messages, each.input_tokens)
        for each in counts
    ]


def test_counts_in_total_by_thread_and_by_day(used: Conversations) -> None:
    began = next(used.threads()).created_at.date()
    later = date.fromordinal(began.toordinal() + 2)
    (total,) = used.usage()
    assert counted([total]) == [(None, None, 2, 1, 5, 3, 9)]
    assert total.output_tokens == 3
    assert counted(used.usage(by="thread")) == [("one", None, 1, 0, 3, 2, 7), ("fork", None, 1, 1, 2, 1, 2)]
    assert counted(used.usage(by="day")) == [(None, began, 1, 0, 2, 1, 0), (None, later, 2, 1, 3, 2, 9)]
    assert counted(used.usage(thread="fork")) == [(None, None, 1, 1, 2, 1, 2)]
    assert counted(used.usage(until=began)) == [(None, None, 1, 0, 2, 1, 0)]
    assert counted(used.usage(since=later, until=later, by="thread")) == [
        ("fork", None, 1, 1, 2, 1, 2),
        ("one", None, 1, 0, 1, 1, 7),
    ]
    assert sum(each.bytes for each in used.usage(by="day")) == total.bytes > 500


def test_counts_the_tokens_in_imported_messages(conversations: Conversations) -> None:
    messages = [
        {"role": "assistant", "content": "a", "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}},
        {"role": "assistant", "content": "b", "metadata": {"usage": {"input_tokens": 1, "output_tokens": 1}}},
        {"role": "assistant", "content": "c", "usage": [5], "other": 1},
        {"role": "assistant", "content": "d", "usage": {"prompt_tokens": True, "completion_tokens": -2}},
    ]
    assert conversations.import_items([Item("here", 1, {"messages": messages})]).failed == []
    (total,) = conversations.usage()
    assert (total.messages, total.input_tokens, total.output_tokens) == (4, 6, 3)


def test_a_redaction_reduces_the_counts(used: Conversations) -> None:
    (before,) = used.usage()
    used.thread("one").redact(3)
    (after,) = used.usage()
    assert (after.messages, after.events) == (before.messages, before.events + 1)
    assert (after.input_tokens, after.output_tokens) == (2, 0)


def test_counts_calls_and_tokens_of_runs_by_thread_and_day(conversations: Conversations, clock: SettableClock) -> None:
    def calls(counts: list[UsageCounts]) -> list[tuple[object, ...]]:
        return [
            (
                each.thread_id,
                each.input_tokens,
                each.output_tokens,
                each.model_calls,
                each.tool_calls,
                each.failed_calls,
            )
            for each in counts
        ]

    conversations.start_thread(thread_id="one")
    conversations.start_thread(thread_id="two")
    record(conversations, "one", "r1", *recorded_runs.with_a_tool())
    record(conversations, "two", "r2", *recorded_runs.cut_short())
    clock.move(DAY)
    record(conversations, "one", "r3", *recorded_runs.failing())
    conversations.thread("one").fork(thread_id="fork")
    assert calls(conversations.usage()) == [(None, 1_330, 57, 6, 1, 4)]
    assert calls(conversations.usage(by="thread")) == [
        ("one", 1_330, 57, 5, 1, 3),
        ("two", 0, 0, 1, 0, 1),
        ("fork", 0, 0, 0, 0, 0),
    ]
    assert calls(conversations.usage(by="day")) == [(None, 1_320, 55, 4, 1, 2), (None, 10, 2, 2, 0, 2)]
    conversations.thread("one").redact(5)
    assert calls(conversations.usage(thread="one")) == [(None, 1_330, 57, 5, 1, 3)]


def test_an_empty_store_has_zero_usage(conversations: Conversations) -> None:
    assert conversations.usage() == [UsageCounts(None, None, 0, 0, 0, 0, 0, 0, 0)]
    assert conversations.usage(by="day") == conversations.usage(by="thread") == []
    with pytest.raises(UnknownThreadError):
        conversations.usage(thread="missing")
    with pytest.raises(InvalidContentError, match="Use one of: total"):
        conversations.usage(by="week")  # type: ignore[arg-type]
