from __future__ import annotations

from collections.abc import Iterator

import pytest

from clew.conversations import Conversations
from clew.domain.messages import Message
from clew.domain.projection import Recorded
from clew.infrastructure.envelope import RecordedRows, recorded
from clew.infrastructure.event_log import ConversationLog
from clew.infrastructure.recorder import Row


@pytest.fixture
def rows() -> Iterator[list[Row]]:
    with Conversations.open("memory:", embedded=False) as conversations:
        conversations.start_thread(messages=[Message.user(f"word {number}") for number in range(9)])
        log = conversations._core.log
        assert isinstance(log, ConversationLog)
        yield log.rows_after(0, 100, "")


def test_rows_are_the_same_events_one_by_one_and_all_together(rows: list[Row]) -> None:
    found, events = RecordedRows(rows), [recorded(row) for row in rows]
    assert len(found) == len(events) == 10
    assert [*found] == events
    assert [found[number] for number in range(10)] == events
    assert (found[-1], [*found[3:7]]) == (events[-1], events[3:7])
    assert [*found[8:20]] == events[8:]
    with pytest.raises(IndexError):
        found[10]


def test_a_damaged_row_is_told_from_the_others_when_it_is_looked_at(rows: list[Row]) -> None:
    rows[4] = rows[4]._replace(state=b"\0" * 17 + b"{")
    found = RecordedRows(rows)
    assert [type(each).__name__ for each in found] == ["Recorded"] * 4 + ["Unreadable"] + ["Recorded"] * 5


def test_an_event_of_a_type_that_is_not_known_or_of_a_newer_schema_has_no_data(rows: list[Row]) -> None:
    newer = rows[4]._replace(state=rows[4].state.replace(b'"d":', b'"v":2,"d":'))
    unknown = rows[4]._replace(type="song-sung")
    known, later, other = RecordedRows([rows[4], newer, unknown])
    assert isinstance(known, Recorded)
    assert known.data is not None
    assert [each.data for each in (later, other) if isinstance(each, Recorded)] == [None, None]
