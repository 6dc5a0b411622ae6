from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.domain.history_stores.store_histories import anything, path_of, stored

from clew.domain.errors import HistoryStoreError
from clew.domain.history import HistoryMessage
from clew.domain.history_stores import StoredMessage, as_reduction, as_stored, counted, ids_of, is_key, to_feed
from clew.domain.json_values import Json
from clew.domain.messages import Message

paths = st.lists(st.none() | st.builds(Message.user, st.just("Hello.")), max_size=12).map(path_of)


def ids(messages: list[StoredMessage]) -> list[str]:
    return [each.id for each in messages]


@given(paths, st.data())
def test_one_feed_restores_the_end_of_the_path_after_losses_at_both_ends(
    path: list[HistoryMessage], data: st.DataObject
) -> None:
    whole = as_stored(path)
    first = data.draw(st.integers(0, len(whole)))
    last = data.draw(st.integers(first, len(whole)))
    stored_now = [*whole[first:last]]
    stored_now += to_feed(path, ids(stored_now))
    assert stored_now == (whole[first:] if last > first else whole)
    assert to_feed(path, ids(stored_now)) == []


@given(paths, st.data())
def test_feeds_all_messages_newer_than_the_newest_stored_one(path: list[HistoryMessage], data: st.DataObject) -> None:
    whole = as_stored(path)
    stored_now = [each for each in whole if data.draw(st.booleans())]
    fed = to_feed(path, data.draw(st.permutations([*ids(stored_now), "unknown"])))
    after = 1 + max((whole.index(each) for each in stored_now), default=-1)
    assert fed == whole[after:]


@given(paths, st.data())
def test_counts_listed_messages_of_the_path_once_and_in_order(path: list[HistoryMessage], data: st.DataObject) -> None:
    stored_now = [each.event_id for each in path if data.draw(st.booleans())]
    listed = data.draw(st.permutations([*stored_now, *stored_now[:2], "unknown", "elsewhere"]))
    assert list(counted(path, listed)) == stored_now


@given(anything, st.data())
def test_unlisted_messages_are_omitted_in_the_fewest_spans(messages: list[Message], data: st.DataObject) -> None:
    path = path_of(messages)
    stored_now = {each.event_id for each in path if data.draw(st.booleans())}
    reduced = as_reduction(path, stored_now, "joker", 40)
    assert (reduced.agent, reduced.reducer, reduced.upto) == ("joker", "history-store", 40)
    omitted = [any(first <= each.version <= last for first, last in reduced.left_out) for each in path]
    assert omitted == [each.event_id not in stored_now for each in path]
    changes = sum(now and not before for before, now in zip([False, *omitted], omitted, strict=False))
    assert len(reduced.left_out) == changes


def test_an_unreadable_store_omits_nothing() -> None:
    path = path_of([Message.user("Hello.")])
    assert as_reduction(path, None, "joker", 2).left_out == ()
    assert as_reduction(path, (), "joker", 2).left_out == ((2, 2),)


@pytest.mark.parametrize("listing", [None, 5, "ids", b"bytes", [None], ["id"], [("id", "message")], [{"id": "a"}], {}])
def test_accepts_only_a_list_of_stored_messages(listing: Any) -> None:
    with pytest.raises(HistoryStoreError, match="Return a list of StoredMessage"):
        ids_of(listing)


def test_accepts_any_sequence_of_stored_messages() -> None:
    messages = stored([Message.user("One."), Message.user("Two.")])
    assert ids_of(messages) == ids_of(tuple(messages)) == ["id-0", "id-1"]
    assert ids_of([]) == []


@pytest.mark.parametrize(
    ("state", "key"), [(None, False), ("", False), ({}, False), ([], False), ("a", True), (0, True)]
)
def test_an_empty_state_is_not_a_key(state: Json, *, key: bool) -> None:
    assert is_key(state) is key
