"""A part of a history equals the same slice of the whole history, and reads only the events near it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.service.thread_operations import apply_operation, operations

from clew.conversations import Conversations
from clew.domain.decider_state import SNAPSHOT_EVERY
from clew.domain.errors import ThreadDeletedError, UnknownVersionError
from clew.domain.history import HistoryMessage
from clew.domain.messages import Message
from clew.engine import Engine
from clew.service import history_reads
from clew.sync.threads import LocalThread


def part(
    messages: tuple[HistoryMessage, ...], *, last: int | None, before: int | None = None, after: int | None = None
) -> tuple[HistoryMessage, ...]:
    end = 10**9 if before is None else before
    found = [message for message in messages if (after or 0) < message.version < end]
    return tuple(found if last is None else found[max(0, len(found) - last) :])


lasts = st.none() | st.integers(0, 9)
places = st.none() | st.integers(0, 99)


def check(thread: LocalThread, last: int | None, place: int | None, after: int | None) -> None:
    for at in range(1, thread.version + 1):
        whole = thread.history(at=at)
        assert thread.history(at=at, last=last, after=after).messages == part(whole.messages, last=last, after=after)
        if place is None:
            continue
        place = min(place, thread.version + 1)
        if whole.messages:
            first = whole.messages[place % len(whole)]
            got = thread.history(at=at, last=last, before=first, after=after)
            assert got.messages == part(whole.messages, last=last, before=first.version, after=after)
        earlier = thread.history(at=place - 1).messages if 1 < place <= at else () if place < at else whole.messages
        got = thread.history(at=at, last=last, before=place, after=after)
        assert got.messages == part(earlier, last=last, after=after)


@given(operations, lasts, places, places, st.integers(1, 7))
def test_a_part_equals_the_slice_of_the_whole_history(
    operations_done: list[tuple[str, int]], last: int | None, before: int | None, after: int | None, page: int
) -> None:
    with pytest.MonkeyPatch.context() as patch, Conversations.open("memory:") as conversations:
        patch.setattr(history_reads, "FIRST_PAGE_BACK", page)
        thread = conversations.start_thread("Made", messages=[Message.user("first")])
        threads = {thread.id: thread}
        for count, (operation, number) in enumerate(operations_done):
            thread = apply_operation(thread, operation, number, count)
            threads[thread.id] = thread
        for each in threads.values():
            check(each, last, before, after)


def test_pages_back_through_a_fork_to_the_beginning(conversations: Conversations) -> None:
    thread = conversations.start_thread(messages=[Message.user(str(number)) for number in range(10)])
    fork = thread.fork(at=8)
    fork.append([Message.assistant("a"), Message.user("b")])
    fork.rewind(to=fork.version - 1)
    fork.append(Message.user("c"))
    fork.redact(3)
    pages = [fork.history(last=4)]
    while pages[-1].messages:
        pages.append(fork.history(last=4, before=pages[-1].messages[0]))
    assert [[message.text for message in page] for page in pages] == [
        ["5", "6", "a", "c"],
        ["", "2", "3", "4"],
        ["0"],
        [],
    ]
    assert [len(page) for page in pages] == [4, 4, 1, 0]
    assert pages[0].version == fork.version
    assert [message.text for message in fork.history(after=pages[0].messages[2])] == ["c"]
    assert [message.text for message in fork.history(before=4)] == ["0", ""]


def test_a_page_continues_on_the_path_of_its_message_after_a_rewind(conversations: Conversations) -> None:
    thread = conversations.start_thread(messages=[Message.user(text) for text in ("one", "two", "three")])
    newest = thread.history(last=1)
    thread.rewind(to=2)
    thread.append(Message.user("other"))
    assert [message.text for message in thread.history(last=1)] == ["other"]
    assert [message.text for message in thread.history(last=9, before=newest.messages[0])] == ["one", "two"]


def test_refuses_what_describes_no_part(conversations: Conversations) -> None:
    thread = conversations.start_thread(messages=[Message.user("one")])
    for wrong in ({"last": -1}, {"last": True}, {"last": "9"}, {"before": -3}, {"before": "x"}, {"after": 1.5}):
        (name,) = wrong
        with pytest.raises(UnknownVersionError, match=f"{name}=.* Give a whole number, 0 or more"):
            thread.history(**wrong)
    for beyond in ({"at": 9}, {"at": 9, "last": 1}, {"before": 9}, {"before": 4}, {"before": 4, "last": 1}):
        with pytest.raises(UnknownVersionError, match=f"no version {next(iter(beyond.values()))}"):
            thread.history(**beyond)
    assert len(thread.history(before=3)) == 1
    thread.delete()
    with pytest.raises(ThreadDeletedError, match="history"):
        thread.history(last=1)


def test_the_engine_reads_the_same_parts(shared_url: str) -> None:
    with Conversations.open(shared_url) as conversations:
        thread = conversations.start_thread(thread_id="one", messages=[Message.user(str(each)) for each in range(9)])
        parts = [thread.history(last=3), thread.history(last=2, before=5), thread.history(after=6, at=8)]

    async def of_engine() -> list[Any]:
        async with Engine.open(shared_url) as engine:
            one = await engine.thread("one")
            return [await one.history(last=3), await one.history(last=2, before=5), await one.history(after=6, at=8)]

    assert asyncio.run(of_engine()) == parts
    assert [[message.text for message in each] for each in parts] == [["6", "7", "8"], ["1", "2"], ["5", "6"]]


def test_reads_a_bounded_part_of_a_long_thread(file_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Conversations.open(file_url) as conversations:
        thread = conversations.start_thread(thread_id="long")
        thread.append([Message.user(str(each)) for each in range(3_000)])
        thread = thread.fork()
        thread.append([Message.user(str(each)) for each in range(20)])
        thread.rewind(to=2_000)
        name = thread.id
    with Conversations.open(file_url) as conversations:
        again = conversations.thread(name)
        rows: list[int] = []
        recorder = conversations._core.log.recorder  # type: ignore[attr-defined]  # the log is an application
        lineage = recorder.lineage

        def counting(*arguments: Any, **options: Any) -> Any:
            events = lineage(*arguments, **options)
            rows.append(len(events))
            return events

        monkeypatch.setattr(recorder, "lineage", counting)
        for options in ({}, {"before": 1_500}, {"after": 1_940}, {"at": 1_000}):
            rows.clear()
            found = again.history(last=50, **options)
            assert [message.text for message in found] == [
                str(each) for each in range(found.messages[-1].version - 51, found.messages[-1].version - 1)
            ]
            assert sum(rows) <= SNAPSHOT_EVERY + 3 * history_reads.FIRST_PAGE_BACK, (options, rows)
            assert len(rows) <= 4, (options, rows)
        rows.clear()
        assert [len(again.history(after=version)) for version in (again.version, 1_999)] == [0, 1]
        assert sum(rows) <= history_reads.FIRST_PAGE_BACK + 1, rows  # the rewind, and what it abandoned
