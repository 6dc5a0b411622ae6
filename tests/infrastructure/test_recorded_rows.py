from __future__ import annotations

from collections.abc import Iterator

import pytest

from clew.conversations import Conversations
from clew.domain.messages import Message
from clew.domain.ports import Row
from clew.domain.projection import Recorded
from clew.infrastructure.envelope import RecordedRows, recorded
from clew.infrastructure.event_log import ConversationLog


@pytest.fixture
def rows() -> Iterator[list[Row]]:
    with Conversations.open("memory:", embedded=False) as conversations:
        conversations.start_thread(messages=[Message.user(f"word {number}") for number in range(9)])
        log = conversations._core.log
        assert isinstance(log, ConversationLog)
        yield log.rows_after(0, 100, "")


def test_rows_decode_to_the_same_events_one_by_one_and_together(rows: list[Row]) -> None:
    decoded, events = RecordedRows(rows), [recorded(row) for row in rows]
    assert len(decoded) == len(events) == 10
    assert [*decoded] == events
    assert [decoded[number] for number in range(10)] == events
    assert (decoded[-1], [*decoded[3:7]]) == (events[-1], events[3:7])
    assert [*decoded[8:20]] == events[8:]
    with pytest.raises(IndexError):
        decoded[10]


def test_a_damaged_row_is_unreadable_and_the_others_are_not(rows: list[Row]) -> None:
    rows[4] = rows[4]._replace(state=b"\0" * 17 + b"{")
    decoded = RecordedRows(rows)
    assert [type(each).__name__ for each in decoded] == ["Recorded"] * 4 + ["Unreadable"] + ["Recorded"] * 5


def test_an_event_with_an_unknown_type_or_a_newer_schema_has_no_data(rows: list[Row]) -> None:
    newer = rows[4]._replace(state=rows[4].state.replace(b',"u":', b',"v":2,"u":').replace(b',"x":', b',"v":2,"x":'))
    unknown = rows[4]._replace(type="song-sung")
    known, later, other = RecordedRows([rows[4], newer, unknown])
    assert isinstance(known, Recorded)
    assert known.data is not None
    assert [each.data for each in (later, other) if isinstance(each, Recorded)] == [None, None]
