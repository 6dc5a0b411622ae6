from __future__ import annotations

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st
from tests.domain.history_stores.made_paths import anything, rounds

from clew.domain.history_stores import kept_from
from clew.domain.messages import FunctionCall, Message

mosts = st.integers(1, 12)

ASKED = Message.assistant(calls=[FunctionCall(call_id="a", name="look", arguments="{}")])
ASKED_TWICE = Message.assistant(calls=[*ASKED.calls, *ASKED.calls])
ANSWER = Message.tool("a", "found")


def pairs(messages: list[Message]) -> list[tuple[int, int]]:
    """The places of each call and its result, found the slow way: the newest message with an open call of the id."""
    found: list[tuple[int, int]] = []
    waiting: list[tuple[int, str]] = []
    for place, message in enumerate(messages):
        waiting += [(place, call.call_id) for call in message.calls]
        for result in message.results:
            callers = [at for at, id_ in waiting if id_ == result.call_id]
            if callers:
                waiting.remove((max(callers), result.call_id))
                found.append((max(callers), place))
    return found


@given(anything, mosts, st.data())
def test_it_does_not_matter_how_many_messages_come_at_once(
    messages: list[Message], most: int, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(messages)), max_size=6)))
    held: list[Message] = []
    for start, end in pairwise([0, *cuts, len(messages)]):
        held += messages[start:end]
        held = held[kept_from(held, most) :]
    assert held == messages[kept_from(messages, most) :]


@given(anything, mosts)
def test_holds_at_most_so_many_and_never_begins_with_a_result(messages: list[Message], most: int) -> None:
    kept = messages[kept_from(messages, most) :]
    assert len(kept) <= most
    assert not kept or not kept[0].results


@given(anything, mosts)
@example([ASKED, Message.user("Wait."), ANSWER, Message.user("Now?")], 3)
@example([ASKED_TWICE, ANSWER, Message.user("Wait."), ANSWER, Message.user("Now?")], 3)
def test_a_call_goes_with_its_result_unless_it_had_gone_before_that_came(messages: list[Message], most: int) -> None:
    first = kept_from(messages, most)
    for call, result in pairs(messages):
        if call < first <= result:
            assert kept_from(messages[:result], most) > call


@given(rounds, mosts)
def test_what_is_kept_of_whole_rounds_are_as_many_of_the_newest_as_there_is_room_for(
    groups: list[list[Message]], most: int
) -> None:
    messages = [message for group in groups for message in group]
    kept: list[list[Message]] = []
    for group in reversed(groups):
        if sum(map(len, kept)) + len(group) > most:
            break
        kept.insert(0, group)
    first = kept_from(messages, most)
    assert messages[first:] == [message for group in kept for message in group]


@given(anything)
def test_keeps_all_when_nothing_bounds_it(messages: list[Message]) -> None:
    assert kept_from(messages, None) == 0


def test_a_group_that_is_larger_than_the_limit_goes_whole() -> None:
    assert kept_from([Message.user("Look."), ASKED, ANSWER], 1) == 3
    assert kept_from([Message.user("Look."), ASKED, ANSWER, Message.assistant("Found.")], 1) == 3


def test_a_result_without_a_call_stays_with_what_is_before_it() -> None:
    messages = [Message.user("One."), ANSWER, Message.user("Two."), Message.user("Three.")]
    assert [kept_from(messages, most) for most in (4, 3, 2)] == [0, 2, 2]
    assert kept_from([ANSWER, Message.user("One.")], 5) == 1
