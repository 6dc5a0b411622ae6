from __future__ import annotations

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st
from tests.domain.history_stores.store_histories import anything, rounds

from clew.domain.history_stores import kept_from
from clew.domain.messages import FunctionCall, Message

limits = st.integers(1, 12)

CALL = Message.assistant(calls=[FunctionCall(call_id="a", name="look", arguments="{}")])
SAME_CALL_TWICE = Message.assistant(calls=[*CALL.calls, *CALL.calls])
ANSWER = Message.tool("a", "found")


def pairs(messages: list[Message]) -> list[tuple[int, int]]:
    """Return the places of each call and its result; a result belongs to the newest open call with its id."""
    places: list[tuple[int, int]] = []
    waiting: list[tuple[int, str]] = []
    for place, message in enumerate(messages):
        waiting += [(place, call.call_id) for call in message.calls]
        for result in message.results:
            callers = [at for at, id_ in waiting if id_ == result.call_id]
            if callers:
                waiting.remove((max(callers), result.call_id))
                places.append((max(callers), place))
    return places


@given(anything, limits, st.data())
def test_trimming_is_independent_of_batch_sizes(messages: list[Message], most: int, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(messages)), max_size=6)))
    trimmed: list[Message] = []
    for start, end in pairwise([0, *cuts, len(messages)]):
        trimmed += messages[start:end]
        trimmed = trimmed[kept_from(trimmed, most) :]
    assert trimmed == messages[kept_from(messages, most) :]


@given(anything, limits)
def test_keeps_at_most_the_limit_and_never_starts_with_a_result(messages: list[Message], most: int) -> None:
    kept_messages = messages[kept_from(messages, most) :]
    assert len(kept_messages) <= most
    assert not kept_messages or not kept_messages[0].results


@given(anything, limits)
@example([CALL, Message.user("Wait."), ANSWER, Message.user("Now?")], 3)
@example([SAME_CALL_TWICE, ANSWER, Message.user("Wait."), ANSWER, Message.user("Now?")], 3)
def test_a_call_is_removed_with_its_result(messages: list[Message], most: int) -> None:
    first = kept_from(messages, most)
    for call, result in pairs(messages):
        if call < first <= result:
            assert kept_from(messages[:result], most) > call


@given(rounds, limits)
def test_keeps_as_many_of_the_newest_rounds_as_fit(groups: list[list[Message]], most: int) -> None:
    messages = [message for group in groups for message in group]
    kept_messages: list[list[Message]] = []
    for group in reversed(groups):
        if sum(map(len, kept_messages)) + len(group) > most:
            break
        kept_messages.insert(0, group)
    first = kept_from(messages, most)
    assert messages[first:] == [message for group in kept_messages for message in group]


@given(anything)
def test_keeps_all_messages_without_a_limit(messages: list[Message]) -> None:
    assert kept_from(messages, None) == 0


def test_a_group_larger_than_the_limit_is_removed_completely() -> None:
    assert kept_from([Message.user("Look."), CALL, ANSWER], 1) == 3
    assert kept_from([Message.user("Look."), CALL, ANSWER, Message.assistant("Found.")], 1) == 3


def test_a_result_without_a_call_stays_with_the_previous_message() -> None:
    messages = [Message.user("One."), ANSWER, Message.user("Two."), Message.user("Three.")]
    assert [kept_from(messages, most) for most in (4, 3, 2)] == [0, 2, 2]
    assert kept_from([ANSWER, Message.user("One.")], 5) == 1
