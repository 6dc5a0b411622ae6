from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.domain.history_stores.made_paths import anything, path_of, stored

from clew.domain.errors import HistoryStoreError
from clew.domain.history import HistoryMessage
from clew.domain.history_stores import StoredMessage, as_reduction, as_stored, counted, ids_of, is_key, to_feed
from clew.domain.json_values import Json
from clew.domain.messages import Message

paths = st.lists(st.none() | st.builds(Message.user, st.just("Hello.")), max_size=12).map(path_of)


def ids(messages: list[StoredMessage]) -> list[str]:
    return [each.id for each in messages]


@given(paths, st.data())
def test_after_one_feed_a_store_that_lost_its_oldest_or_its_newest_ends_as_the_path_does(
    path: list[HistoryMessage], data: st.DataObject
) -> None:
    whole = as_stored(path)
    first = data.draw(st.integers(0, len(whole)))
    last = data.draw(st.integers(first, len(whole)))
    held = [*whole[first:last]]
    held += to_feed(path, ids(held))
    assert held == (whole[first:] if last > first else whole)
    assert to_feed(path, ids(held)) == []


@given(paths, st.data())
def test_whatever_a_store_lost_it_is_given_all_that_is_newer_than_its_newest_once_and_in_order(
    path: list[HistoryMessage], data: st.DataObject
) -> None:
    whole = as_stored(path)
    held = [each for each in whole if data.draw(st.booleans())]
    fed = to_feed(path, data.draw(st.permutations([*ids(held), "unknown"])))
    after = 1 + max((whole.index(each) for each in held), default=-1)
    assert fed == whole[after:]


@given(paths, st.data())
def test_of_a_list_only_what_is_on_the_path_counts_once_and_in_its_order(
    path: list[HistoryMessage], data: st.DataObject
) -> None:
    held = [each.event_id for each in path if data.draw(st.booleans())]
    listed = data.draw(st.permutations([*held, *held[:2], "unknown", "elsewhere"]))
    assert list(counted(path, listed)) == held


@given(anything, st.data())
def test_what_is_not_in_the_list_is_left_out_in_the_fewest_spans(messages: list[Message], data: st.DataObject) -> None:
    path = path_of(messages)
    held = {each.event_id for each in path if data.draw(st.booleans())}
    reduced = as_reduction(path, held, "joker", 40)
    assert (reduced.agent, reduced.reducer, reduced.upto) == ("joker", "history-store", 40)
    left = [any(first <= each.version <= last for first, last in reduced.left_out) for each in path]
    assert left == [each.event_id not in held for each in path]
    changes = sum(now and not before for before, now in zip([False, *left], left, strict=False))
    assert len(reduced.left_out) == changes


def test_of_a_store_that_cannot_be_read_nothing_is_left_out() -> None:
    path = path_of([Message.user("Hello.")])
    assert as_reduction(path, None, "joker", 2).left_out == ()
    assert as_reduction(path, (), "joker", 2).left_out == ((2, 2),)


@pytest.mark.parametrize("listing", [None, 5, "ids", b"bytes", [None], ["id"], [("id", "message")], [{"id": "a"}], {}])
def test_refuses_what_is_no_list_of_stored_messages(listing: Any) -> None:
    with pytest.raises(HistoryStoreError, match="Return a list of StoredMessage"):
        ids_of(listing)


def test_takes_any_sequence_of_stored_messages() -> None:
    messages = stored([Message.user("One."), Message.user("Two.")])
    assert ids_of(messages) == ids_of(tuple(messages)) == ["id-0", "id-1"]
    assert ids_of([]) == []


@pytest.mark.parametrize(
    ("state", "key"), [(None, False), ("", False), ({}, False), ([], False), ("a", True), (0, True)]
)
def test_a_state_that_says_nothing_is_no_key(state: Json, *, key: bool) -> None:
    assert is_key(state) is key
