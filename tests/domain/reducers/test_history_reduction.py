from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given as given_
from hypothesis import strategies as st
from tests.domain.reducers.reduced_histories import (
    A1,
    A2,
    ROUND,
    SYSTEM,
    U1,
    U2,
    U3,
    event_of,
    of,
    recorded,
    sent,
    summed_up,
)
from tests.domain.test_model_view import answers, asks, check_paired, histories, placed

from clew.domain.context.events import HistoryReduced
from clew.domain.errors import ReducerError
from clew.domain.messages import Message, Text
from clew.domain.model_view import model_view
from clew.domain.reducers.history_reduction import reduced, reducible
from clew.domain.reducers.reducer import Reduction
from clew.domain.reducers.strategies import KeepLast, TokenBudget

SUMMARY = Message.user("Summary: they greeted each other.")

# What is recorded


def test_says_who_left_out_what_up_to_where() -> None:
    given = of(SYSTEM, U1, A1, U2, A2, input=[U3])
    event = event_of(KeepLast(2), given)
    assert event == HistoryReduced(agent="agent", reducer="keep-last(2)", upto=6, left_out=((3, 4),))


def test_one_span_stands_for_all_that_is_left_out_between_two_that_are_kept() -> None:
    given = of(*[U1] * 9)
    found = recorded(Reduction([3, 6, 7, 10]), given)
    assert found is not None
    assert found.left_out == ((2, 2), (4, 5), (8, 9))


def test_spans_leap_over_versions_that_hold_no_messages() -> None:
    every = [each._replace(version=each.version * 10) for each in placed(U1, A1, U2, A2)]
    given = type(of())(every)
    found = recorded(Reduction([50]), given)
    assert found is not None
    assert found.left_out == ((20, 40),)


def test_nothing_is_recorded_when_nothing_is_left_out_and_nothing_was() -> None:
    assert recorded(Reduction([2, 3]), of(U1, A1)) is None
    assert recorded(Reduction([]), of()) is None


def test_nothing_is_recorded_when_what_holds_says_it_already() -> None:
    first = event_of(KeepLast(2), of(U1, A1, U2))
    again = of(U1, A1, U2, input=[A2])
    assert recorded(Reduction([3, 4]), again, first, name="other") is None
    assert recorded(Reduction([3, 4], over_budget=True), again, first) is not None
    assert recorded(Reduction([3, 4], trimmed={4: 50}), again, first) is not None
    assert recorded(Reduction([4]), again, first) is not None


def test_what_comes_back_is_recorded() -> None:
    first = event_of(KeepLast(1), of(U1, A1))
    back = recorded(Reduction([2, 3]), of(U1, A1), first)
    assert back is not None
    assert back.left_out == ()


# What a reducer is given


def test_without_a_summary_a_reducer_is_given_the_whole_history_again() -> None:
    given = of(U1, A1, U2, input=[U3], instructions="Be funny.")
    event = event_of(KeepLast(1), given)
    assert reducible(given.history, event, 9, given.input, "Be funny.") == given
    assert reducible(given.history, None, 0, given.input, "Be funny.") == given


def test_a_summary_stands_in_place_of_what_it_sums_up() -> None:
    given = of(SYSTEM, U1, A1, U2)
    event = summed_up(given, 3, 4, summary=SUMMARY)
    again = reducible(placed(SYSTEM, U1, A1, U2, A2), event, 9)
    assert [each.version for each in again.history] == [2, 9, 5, 6]
    assert again.history[1].message == SUMMARY
    assert again.summary == 9


def test_a_summary_comes_first_where_no_system_message_begins() -> None:
    event = summed_up(of(U1, A1, SYSTEM), 2, summary=SUMMARY)
    again = reducible(placed(U1, A1, SYSTEM), event, 9)
    assert [each.version for each in again.history] == [9, 3, 4]


def test_what_is_left_out_beside_a_summary_adds_to_what_it_sums_up() -> None:
    history = placed(SYSTEM, U1, A1, U2, A2, U3)
    event = summed_up(of(SYSTEM, U1, A1, U2), 3, 4, summary=SUMMARY)
    given = reducible(history, event, 90)
    found = recorded(Reduction([2, 90, 7]), given, event)
    assert found is not None
    assert (found.left_out, found.summary) == (((3, 6),), SUMMARY)


def test_a_newer_summary_takes_the_place_of_the_earlier_one() -> None:
    history = placed(U1, A1, U2, A2)
    event = summed_up(of(U1, A1), 2, summary=SUMMARY)
    newer = Message.user("Summary: they went on.")
    found = recorded(Reduction([5], newer), reducible(history, event, 90), event)
    assert found is not None
    assert (found.left_out, found.summary) == (((2, 4),), newer)


def test_a_summary_that_is_not_kept_is_gone_and_what_it_summed_up_is_seen_again() -> None:
    history = placed(U1, A1, U2)
    event = summed_up(of(U1, A1), 2, summary=SUMMARY)
    found = recorded(Reduction([4]), reducible(history, event, 90), event)
    assert found is not None
    assert (found.left_out, found.summary) == (((2, 3),), None)
    assert len(reducible(history, found, 91).history) == 3


def test_the_same_summary_again_is_nothing_new() -> None:
    history = placed(U1, A1, U2)
    event = summed_up(of(U1, A1), 2, summary=SUMMARY)
    assert recorded(Reduction([90, 3, 4]), reducible(history, event, 90), event) is None


# What a request is made of


def test_what_was_left_out_is_gone_and_what_was_said_since_is_there() -> None:
    history = placed(SYSTEM, U1, A1, U2, A2, U3)
    event = event_of(KeepLast(1), of(SYSTEM, U1, A1, U2))
    assert [each.version for each in reduced(history, event, 90)] == [2, 5, 6, 7]


def test_the_summary_is_said_before_what_is_kept_and_after_a_system_message_that_begins() -> None:
    event = summed_up(of(SYSTEM, U1, A1), 3, summary=SUMMARY)
    assert sent(placed(SYSTEM, U1, A1, U2), event) == [SYSTEM, SUMMARY, A1, U2]
    event = summed_up(of(U1, A1, SYSTEM), 2, summary=SUMMARY)
    assert sent(placed(U1, A1, SYSTEM, U2), event) == [SUMMARY, A1, SYSTEM, U2]


def test_a_call_that_was_left_out_comes_back_when_its_result_does() -> None:
    event = event_of(KeepLast(1), of(U1, asks("a", "b"), answers("a"), U2))
    assert sent(placed(U1, asks("a", "b"), answers("a"), U2, A2), event) == [U2, A2]
    history = placed(U1, asks("a", "b"), answers("a"), U2, answers("b"), A2)
    assert sent(history, event) == [asks("a", "b"), answers("a"), answers("b"), U2, A2]


def test_a_call_that_was_summed_up_comes_back_too_and_splits_the_span() -> None:
    event = summed_up(of(U1, asks("a"), A1, U2), 2, 3, 4, summary=SUMMARY)
    history = placed(U1, asks("a"), A1, U2, answers("a"))
    given = reducible(history[:4], event, 90, history[4:])
    assert [each.version for each in given.history] == [90, 3, 5]
    found = recorded(Reduction([90]), given, event)
    assert found is not None
    assert found.left_out == ((2, 2), (4, 5))
    assert sent(history, found) == [SUMMARY, asks("a"), answers("a")]


def test_the_runs_own_calls_stay_whatever_a_reducer_says() -> None:
    given = of(U1, asks("a"), A1, input=[answers("a")])
    found = recorded(Reduction([4]), given)
    assert found is not None
    assert found.left_out == ((2, 2),)


@given_(histories, st.integers(min_value=0, max_value=10), st.integers(min_value=1, max_value=4), st.data())
def test_any_history_that_was_reduced_has_a_valid_view_and_stays_as_it_is(
    history: list[Message | None], cut: int, limit: int, data: st.DataObject
) -> None:
    every = placed(*history)
    shown = repr(every)
    own = every[cut:] if data.draw(st.booleans()) else []
    given = reducible(every[:cut], None, 0, own)
    event = recorded(KeepLast(limit).reduce(given), given)
    view, whole = model_view(every if event is None else reduced(every, event, 90)), model_view(every)
    check_paired(view)
    there = set(view.versions)
    assert there.issuperset(set(whole.versions).intersection(each.version for each in every[cut:]))
    # What is sent is what would have been sent, but for whole messages.
    kept = [(at, said) for at, said in zip(whole.versions, whole.messages, strict=True) if at in there]
    assert list(zip(view.versions, view.messages, strict=True)) == kept
    assert repr(every) == shown


@given_(st.lists(st.tuples(histories, st.integers(min_value=1, max_value=60)), min_size=1, max_size=4))
def test_decision_after_decision_a_budget_is_kept_or_what_must_be_sent_is(
    parts: list[tuple[list[Message | None], int]],
) -> None:
    messages: list[Message | None] = []
    previous: HistoryReduced | None = None
    for part, tokens in parts:
        messages += part
        given = reducible(placed(*messages), previous, 90)
        found = recorded(TokenBudget(tokens, len).reduce(given), given, previous)
        previous = previous if found is None else found
        view = model_view(given.history if previous is None else reduced(given.history, previous, 90))
        check_paired(view)
        size = sum(len("\n".join(_words(message))) for message in view.messages)
        over = previous is not None and previous.over_budget
        assert over == (size > tokens)
        if over:
            assert view.messages == given.groups().groups[-1].messages


def _words(message: Message) -> list[str]:
    said = [content.text for content in message.contents if isinstance(content, Text)]
    calls = [f"{each.name} {each.arguments}" for each in message.calls]
    results = [each.result if isinstance(each.result, str) else str(each.result) for each in message.results]
    return [*said, *calls, *results]


# Nonsense

NO_REDUCTION: list[Any] = [None, [2, 3], "all", {"kept": [2]}]
KEPT: list[Any] = [None, "23", b"23", 5, ["2"], [2, True], [2, None], [2, False]]


@pytest.mark.parametrize("result", NO_REDUCTION, ids=range(len(NO_REDUCTION)))
def test_what_is_no_reduction_is_refused(result: Any) -> None:
    with pytest.raises(ReducerError, match=r"The reducer test returned .* instead of a Reduction"):
        recorded(result, of(U1, A1))


@pytest.mark.parametrize("kept", KEPT, ids=range(len(KEPT)))
def test_versions_that_are_none_are_refused(kept: Any) -> None:
    with pytest.raises(ReducerError, match="Return the versions of the messages that stay"):
        recorded(Reduction(kept), of(U1, A1))


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        (Reduction([2, 9]), "keeps version 9, which is not a version"),
        (Reduction([2, 7]), "keeps version 7, which is not a version"),
        (Reduction([3]), "leaves out the system message at version 2"),
        (Reduction([2, 4, 5]), "splits versions 4, 5, 6"),
        (Reduction([2, 5]), "splits versions"),
        (Reduction([2], "They met."), "returned an object of type str as its summary"),  # type: ignore[arg-type]
        (Reduction([2], Message.assistant(calls=ROUND[0].calls)), "a summary with a function call"),
        (Reduction([2], answers("a")), "only text"),
        (Reduction([2], Message.user("\ud800")), "a summary that cannot be stored"),
        (Reduction([2], Message.user("x" * 2**24)), "a summary of 16,777,2.. bytes"),
        (Reduction([2], trimmed=[(3, 50)]), "as trimmed, which must map"),  # type: ignore[arg-type]
        (Reduction([2], trimmed={3: 50}), "trims version 3, which it does not keep"),
        (Reduction([2, 3], trimmed={3: 5}), "trims version 3 to 5 characters"),
        (Reduction([2, 3], trimmed={3: True}), "trims version 3 to True characters"),
        (Reduction([2], over_budget=1), "as over_budget"),  # type: ignore[arg-type]
    ],
)
def test_other_nonsense_is_refused_by_name(result: Any, problem: str) -> None:
    given = of(SYSTEM, U1, *ROUND, input=[U2])
    with pytest.raises(ReducerError, match=problem) as caught:
        recorded(result, given)
    assert caught.value.reducer == "test"
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301  # its own bytes
    assert (str(again), again.problem) == (str(caught.value), caught.value.problem)


def test_a_new_summary_beside_the_earlier_one_is_refused() -> None:
    event = summed_up(of(U1, A1), 2, summary=SUMMARY)
    given = reducible(placed(U1, A1, U2), event, 90)
    with pytest.raises(ReducerError, match="keeps the earlier one at version 90"):
        recorded(Reduction([90, 4], SUMMARY), given, event)


def test_what_nothing_is_sent_of_may_stay_or_go() -> None:
    given = of(U1, None, answers("z"), A1)
    for kept in ([5], [3, 5], [4, 5], [2, 4, 5]):
        found = recorded(Reduction(kept), given)
        assert found is not None
        assert sent(given.history, found)[-1] == A1
