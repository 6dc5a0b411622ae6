"""Histories that are read from the store, and not from a cache: messages are decoded without their events."""

from __future__ import annotations

import gc
import tracemalloc

import pytest
from hypothesis import given
from tests.service.test_damaged_events import DAMAGED, add
from tests.service.thread_operations import apply_operation, operations

from clew import Conversations, Message
from clew.domain.events import MessageAppended
from clew.domain.history import HistoryMessage, as_message
from clew.domain.records import Record
from clew.errors import CorruptEventError


@given(operations)
def test_a_log_gives_the_messages_of_its_events(operations_done: list[tuple[str, int]]) -> None:
    with Conversations.open("memory:", cache_bytes=0) as conversations:
        thread = conversations.start_thread("Made", messages=[Message.user("first")])
        threads = {thread.id: thread}
        for count, (operation, number) in enumerate(operations_done):
            thread = apply_operation(thread, operation, number, count)
            threads[thread.id] = thread
        log = conversations._core.log
        for id_ in threads:
            stream = f"default/thread/{id_}"
            events = log.lineage(stream)
            expected = [
                as_message(event) if isinstance(event.data, MessageAppended) else event  # a redacted one is an event
                for event in events
            ]
            assert log.history(stream) == expected
            assert list(map(type, log.history(stream))) == list(map(type, expected))
            assert log.history(stream, after=len(events) // 2) == expected[len(events) // 2 :]


def test_a_new_service_reads_the_history_that_was_written(file_url: str) -> None:
    with Conversations.open(file_url) as conversations:
        thread = conversations.start_thread(thread_id="one", messages=[Message.system("Be kind.")])
        thread.append(Message.user("Where is it?", author="ann", metadata={"n": 2**70}), on_behalf_of="bob")
        thread.append([Record("seen", data=1), Message.tool("1", {"rows": [1, None, 0.5]}), Message.assistant("Lost.")])
        thread.redact(thread.history().messages[-1], reason="asked")
        fork = thread.fork(at=3, thread_id="two")
        fork.append(Message.user("And now?"))
        written = [each.history().messages for each in (thread, fork)]
    with Conversations.open(file_url) as conversations:
        assert [conversations.thread(id_).history().messages for id_ in ("one", "two")] == written
        assert written[0][-1].message is None
        assert written[0][1].metadata == {"n": 2**70}


def test_a_damaged_message_is_refused_when_the_history_is_read(url: str) -> None:
    with Conversations.open(url) as conversations:
        thread = conversations.start_thread(thread_id="first", messages=[Message.user("Hello")])
        log = conversations._core.log
        add(log, "first", 3, DAMAGED)
        with pytest.raises(CorruptEventError) as expected:
            log.lineage("default/thread/first")
        with pytest.raises(CorruptEventError, match=r"first version 3 \(message-appended\) cannot be read") as caught:
            thread.history()
        assert (str(caught.value), vars(caught.value)) == (str(expected.value), vars(expected.value))


def test_reading_a_history_takes_little_more_memory_than_the_history(file_url: str) -> None:
    with Conversations.open(file_url, embedded=False) as conversations:
        conversations.start_thread(thread_id="long", messages=[Message.user("x" * 100) for _ in range(2_000)])
        conversations.start_thread(thread_id="other", messages=[Message.user("Hello")]).history()
        thread = conversations.thread("long")
        conversations._core.caches.histories.clear()
        gc.collect()
        tracemalloc.start()
        history = thread.history()
        kept, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert all(type(each) is HistoryMessage for each in history)
    assert most < 1.55 * kept, "with an event for each message it is 1.7 times"
