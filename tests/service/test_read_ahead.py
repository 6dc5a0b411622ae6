"""The next batch is read while one is taken in, and never shown as it was before something was redacted."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from clew import Conversations, Message
from clew.domain.errors import StoreUnavailableError
from clew.domain.projection import Recorded, Unreadable
from clew.service.projection_batch import ReadAhead

EVENTS = 31


@pytest.fixture
def conversations() -> Iterator[Conversations]:
    with Conversations.open("memory:", embedded=False) as conversations:
        conversations.start_thread(thread_id="t", messages=[Message.user("word")] * (EVENTS - 1))
        yield conversations


class Read:
    """The log as a server reads it, with what was read, and by which thread."""

    def __init__(self, conversations: Conversations, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: Any = conversations._core.log
        self._recorded_after = self.log.recorded_after
        self.asked: list[int] = []
        self.here: list[int] = []
        self.failing = False
        monkeypatch.setattr(self.log, "is_served", lambda: True)
        monkeypatch.setattr(self.log, "recorded_after", self._read)

    def _read(self, position: int, limit: int) -> Sequence[Recorded | Unreadable]:
        self.asked.append(position)
        if threading.current_thread() is threading.main_thread():
            self.here.append(position)
        if self.failing:
            raise StoreUnavailableError("away")
        found: Sequence[Recorded | Unreadable] = self._recorded_after(position, limit)
        return found


@pytest.fixture
def read(conversations: Conversations, monkeypatch: pytest.MonkeyPatch) -> Read:
    return Read(conversations, monkeypatch)


def pages(ahead: ReadAhead, limit: int) -> list[int]:
    found: list[int] = []
    while batch := ahead.after(found[-1] if found else 0, limit)[0]:
        found += [event.position for event in batch]
    return found


def test_each_batch_but_the_first_and_those_at_the_end_is_read_beside(read: Read) -> None:
    assert pages(ReadAhead(read.log), 10) == [*range(1, EVENTS + 1)]
    assert read.asked == [0, 10, 20, 30, 31]
    assert read.here == [0, 31]


def test_where_no_server_reads_nothing_is_read_before_it_is_asked_for(
    read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read.log, "is_served", lambda: False)
    ReadAhead(read.log).after(0, 10)
    assert read.asked == [0]


def test_what_is_left_comes_before_what_was_read_beside(read: Read) -> None:
    ahead = ReadAhead(read.log)
    batch, shredded = ahead.after(0, 10)
    ahead.keep(4, 10, batch[4:], shredded)
    assert [event.position for event in ahead.after(4, 10)[0]] == [5, 6, 7, 8, 9, 10]
    assert [event.position for event in ahead.after(10, 10)[0]] == [*range(11, 21)]
    assert read.here == [0]


@pytest.mark.parametrize("position", [4, 10], ids=["left", "read ahead"])
def test_what_was_read_before_a_redaction_is_read_again(
    conversations: Conversations, read: Read, position: int
) -> None:
    ahead = ReadAhead(read.log)
    batch, shredded = ahead.after(0, 10)
    ahead.keep(4, 10, batch[4:], shredded)
    conversations.thread("t").redact(position + 2)
    found, _ = ahead.after(position, 10)
    assert [event.position for event in found if isinstance(event, Recorded) and event.redacted] == [position + 2]
    assert read.here[:2] == [0, position]


def test_who_asks_meets_what_kept_a_batch_from_being_read(read: Read) -> None:
    ahead = ReadAhead(read.log)
    ahead.after(0, 10)
    first = ahead._next
    assert first is not None
    first.thread.join()
    read.failing = True
    assert [event.position for event in ahead.after(10, 10)[0]] == [*range(11, 21)]
    with pytest.raises(StoreUnavailableError):
        ahead.after(20, 10)
