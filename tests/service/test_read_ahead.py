"""The next batch is read while one is applied; a redaction discards it."""

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


class RecordingReads:
    """Records the reads of a log as if a server read it, and those by the main thread."""

    def __init__(self, conversations: Conversations, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: Any = conversations._core.log
        self._recorded_after = self.log.recorded_after
        self.positions: list[int] = []
        self.by_main_thread: list[int] = []
        self.failing = False
        monkeypatch.setattr(self.log, "is_served", lambda: True)
        monkeypatch.setattr(self.log, "recorded_after", self._read)

    def _read(self, position: int, limit: int, upto: int) -> Sequence[Recorded | Unreadable]:
        self.positions.append(position)
        if threading.current_thread() is threading.main_thread():
            self.by_main_thread.append(position)
        if self.failing:
            raise StoreUnavailableError("unavailable")
        events: Sequence[Recorded | Unreadable] = self._recorded_after(position, limit, upto)
        return events


@pytest.fixture
def read(conversations: Conversations, monkeypatch: pytest.MonkeyPatch) -> RecordingReads:
    return RecordingReads(conversations, monkeypatch)


def pages(ahead: ReadAhead, limit: int) -> list[int]:
    positions: list[int] = []
    while batch := ahead.after(positions[-1] if positions else 0, limit, EVENTS)[0]:
        positions += [event.position for event in batch]
    return positions


def test_all_batches_except_the_first_and_last_are_read_ahead(read: RecordingReads) -> None:
    assert pages(ReadAhead(read.log), 10) == [*range(1, EVENTS + 1)]
    assert read.positions == [0, 10, 20, 30, 31]
    assert read.by_main_thread == [0, 31]


def test_reads_nothing_ahead_without_a_server(read: RecordingReads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read.log, "is_served", lambda: False)
    ReadAhead(read.log).after(0, 10, EVENTS)
    assert read.positions == [0]


def test_kept_events_come_before_events_read_ahead(read: RecordingReads) -> None:
    ahead = ReadAhead(read.log)
    batch, shredded = ahead.after(0, 10, EVENTS)
    ahead.keep(4, 10, batch[4:], shredded)
    assert [event.position for event in ahead.after(4, 10, EVENTS)[0]] == [5, 6, 7, 8, 9, 10]
    assert [event.position for event in ahead.after(10, 10, EVENTS)[0]] == [*range(11, 21)]
    assert read.by_main_thread == [0]


@pytest.mark.parametrize("position", [4, 10], ids=["kept", "read ahead"])
def test_reads_again_after_a_redaction(conversations: Conversations, read: RecordingReads, position: int) -> None:
    ahead = ReadAhead(read.log)
    batch, shredded = ahead.after(0, 10, EVENTS)
    ahead.keep(4, 10, batch[4:], shredded)
    conversations.thread("t").redact(position + 2)
    events, _ = ahead.after(position, 10, EVENTS)
    assert [event.position for event in events if isinstance(event, Recorded) and event.redacted] == [position + 2]
    assert read.by_main_thread[:2] == [0, position]


def test_the_caller_gets_the_error_of_a_read_ahead(read: RecordingReads) -> None:
    ahead = ReadAhead(read.log)
    ahead.after(0, 10, EVENTS)
    first = ahead._next
    assert first is not None
    first.thread.join()
    read.failing = True
    assert [event.position for event in ahead.after(10, 10, EVENTS)[0]] == [*range(11, 21)]
    with pytest.raises(StoreUnavailableError):
        ahead.after(20, 10, EVENTS)
