from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given as hypothesis_given
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
    with_summary,
)
from tests.domain.test_call_pairing import answers, asks, check_paired, histories, placed

from clew.domain.call_pairing import model_view
from clew.domain.context.events import HistoryReduced
from clew.domain.errors import ReducerError
from clew.domain.messages import Message, Text
from clew.domain.reducers.history_reduction import reduced, reducible
from clew.domain.reducers.reducer import Reduction
from clew.domain.reducers.strategies import KeepLast, TokenBudget

SUMMARY = Message.user("Summary: they greeted each other.")

# Recorded reductions


def test_a_reduction_records_agent_reducer_and_omitted_versions() -> None:
    input_history = of(SYSTEM, U1, A1, U2, A2, input=[U3])
    event = event_of(KeepLast(2), input_history)
    assert event == HistoryReduced(agent="agent", reducer="keep-last(2)", upto=6, left_out=((3, 4),))


def test_one_span_covers_omitted_versions_between_kept_ones() -> None:
    input_history = of(*[U1] * 9)
    reduction_event = recorded(Reduction([3, 6, 7, 10]), input_history)
    assert reduction_event is not None
    assert reduction_event.left_out == ((2, 2), (4, 5), (8, 9))


def test_spans_include_versions_without_messages() -> None:
    every = [each._replace(version=each.version * 10) for each in placed(U1, A1, U2, A2)]
    input_history = type(of())(every)
    reduction_event = recorded(Reduction([50]), input_history)
    assert reduction_event is not None
    assert reduction_event.left_out == ((20, 40),)


def test_records_nothing_without_omitted_messages() -> None:
    assert recorded(Reduction([2, 3]), of(U1, A1)) is None
    assert recorded(Reduction([]), of()) is None


def test_records_nothing_if_the_reduction_is_unchanged() -> None:
    first = event_of(KeepLast(2), of(U1, A1, U2))
    again = of(U1, A1, U2, input=[A2])
    assert recorded(Reduction([3, 4]), again, first, name="other") is None
    assert recorded(Reduction([3, 4], over_budget=True), again, first) is not None
    assert recorded(Reduction([3, 4], trimmed={4: 50}), again, first) is not None
    assert recorded(Reduction([4]), again, first) is not None


def test_records_messages_that_return() -> None:
    first = event_of(KeepLast(1), of(U1, A1))
    back = recorded(Reduction([2, 3]), of(U1, A1), first)
    assert back is not None
    assert back.left_out == ()


# Input of a reducer


def test_without_a_summary_a_reducer_gets_the_whole_history_again() -> None:
    input_history = of(U1, A1, U2, input=[U3], instructions="Be funny.")
    event = event_of(KeepLast(1), input_history)
    assert reducible(input_history.history, event, 9, input_history.input, "Be funny.") == input_history
    assert reducible(input_history.history, None, 0, input_history.input, "Be funny.") == input_history


def test_a_summary_replaces_its_messages() -> None:
    input_history = of(SYSTEM, U1, A1, U2)
    event = with_summary(input_history, 3, 4, summary=SUMMARY)
    again = reducible(placed(SYSTEM, U1, A1, U2, A2), event, 9)
    assert [each.version for each in again.history] == [2, 9, 5, 6]
    assert again.history[1].message == SUMMARY
    assert again.summary == 9


def test_a_summary_comes_first_without_a_leading_system_message() -> None:
    event = with_summary(of(U1, A1, SYSTEM), 2, summary=SUMMARY)
    again = reducible(placed(U1, A1, SYSTEM), event, 9)
    assert [each.version for each in again.history] == [9, 3, 4]


def test_messages_omitted_next_to_a_summary_join_its_span() -> None:
    history = placed(SYSTEM, U1, A1, U2, A2, U3)
    event = with_summary(of(SYSTEM, U1, A1, U2), 3, 4, summary=SUMMARY)
    input_history = reducible(history, event, 90)
    reduction_event = recorded(Reduction([2, 90, 7]), input_history, event)
    assert reduction_event is not None
    assert (reduction_event.left_out, reduction_event.summary) == (((3, 6),), SUMMARY)


def test_a_newer_summary_replaces_the_earlier_one() -> None:
    history = placed(U1, A1, U2, A2)
    event = with_summary(of(U1, A1), 2, summary=SUMMARY)
    newer = Message.user("Summary: they continued.")
    reduction_event = recorded(Reduction([5], newer), reducible(history, event, 90), event)
    assert reduction_event is not None
    assert (reduction_event.left_out, reduction_event.summary) == (((2, 4),), newer)


def test_without_its_summary_the_summarised_messages_return() -> None:
    history = placed(U1, A1, U2)
    event = with_summary(of(U1, A1), 2, summary=SUMMARY)
    reduction_event = recorded(Reduction([4]), reducible(history, event, 90), event)
    assert reduction_event is not None
    assert (reduction_event.left_out, reduction_event.summary) == (((2, 3),), None)
    assert len(reducible(history, reduction_event, 91).history) == 3


def test_records_nothing_if_the_summary_is_unchanged() -> None:
    history = placed(U1, A1, U2)
    event = with_summary(of(U1, A1), 2, summary=SUMMARY)
    assert recorded(Reduction([90, 3, 4]), reducible(history, event, 90), event) is None


# Messages of a request


def test_a_request_omits_reduced_messages_and_includes_later_ones() -> None:
    history = placed(SYSTEM, U1, A1, U2, A2, U3)
    event = event_of(KeepLast(1), of(SYSTEM, U1, A1, U2))
    assert [each.version for each in reduced(history, event, 90)] == [2, 5, 6, 7]


def test_the_summary_comes_before_kept_messages_and_after_a_leading_system_message() -> None:
    event = with_summary(of(SYSTEM, U1, A1), 3, summary=SUMMARY)
    assert sent(placed(SYSTEM, U1, A1, U2), event) == [SYSTEM, SUMMARY, A1, U2]
    event = with_summary(of(U1, A1, SYSTEM), 2, summary=SUMMARY)
    assert sent(placed(U1, A1, SYSTEM, U2), event) == [SUMMARY, A1, SYSTEM, U2]


def test_an_omitted_call_returns_with_its_result() -> None:
    event = event_of(KeepLast(1), of(U1, asks("a", "b"), answers("a"), U2))
    assert sent(placed(U1, asks("a", "b"), answers("a"), U2, A2), event) == [U2, A2]
    history = placed(U1, asks("a", "b"), answers("a"), U2, answers("b"), A2)
    assert sent(history, event) == [asks("a", "b"), answers("a"), answers("b"), U2, A2]


def test_a_summarised_call_returns_and_splits_the_span() -> None:
    event = with_summary(of(U1, asks("a"), A1, U2), 2, 3, 4, summary=SUMMARY)
    history = placed(U1, asks("a"), A1, U2, answers("a"))
    input_history = reducible(history[:4], event, 90, history[4:])
    assert [each.version for each in input_history.history] == [90, 3, 5]
    reduction_event = recorded(Reduction([90]), input_history, event)
    assert reduction_event is not None
    assert reduction_event.left_out == ((2, 2), (4, 5))
    assert sent(history, reduction_event) == [SUMMARY, asks("a"), answers("a")]


def test_calls_of_the_run_are_always_kept() -> None:
    input_history = of(U1, asks("a"), A1, input=[answers("a")])
    reduction_event = recorded(Reduction([4]), input_history)
    assert reduction_event is not None
    assert reduction_event.left_out == ((2, 2),)


@hypothesis_given(histories, st.integers(min_value=0, max_value=10), st.integers(min_value=1, max_value=4), st.data())
def test_any_reduced_history_gives_a_valid_view_and_stays_unchanged(
    history: list[Message | None], cut: int, limit: int, data: st.DataObject
) -> None:
    every = placed(*history)
    shown = repr(every)
    own = every[cut:] if data.draw(st.booleans()) else []
    input_history = reducible(every[:cut], None, 0, own)
    event = recorded(KeepLast(limit).reduce(input_history), input_history)
    view, whole = model_view(every if event is None else reduced(every, event, 90)), model_view(every)
    check_paired(view)
    visible = set(view.versions)
    assert visible.issuperset(set(whole.versions).intersection(each.version for each in every[cut:]))
    # The reduced request lacks only whole messages.
    expected = [(at, message) for at, message in zip(whole.versions, whole.messages, strict=True) if at in visible]
    assert list(zip(view.versions, view.messages, strict=True)) == expected
    assert repr(every) == shown


@hypothesis_given(st.lists(st.tuples(histories, st.integers(min_value=1, max_value=60)), min_size=1, max_size=4))
def test_repeated_reductions_keep_the_budget_or_only_required_messages(
    parts: list[tuple[list[Message | None], int]],
) -> None:
    messages: list[Message | None] = []
    previous: HistoryReduced | None = None
    for part, tokens in parts:
        messages += part
        input_history = reducible(placed(*messages), previous, 90)
        reduction_event = recorded(TokenBudget(tokens, len).reduce(input_history), input_history, previous)
        previous = previous if reduction_event is None else reduction_event
        view = model_view(input_history.history if previous is None else reduced(input_history.history, previous, 90))
        check_paired(view)
        size = sum(len("\n".join(_words(message))) for message in view.messages)
        over = previous is not None and previous.over_budget
        assert over == (size > tokens)
        if over:
            assert view.messages == input_history.groups().groups[-1].messages


def _words(message: Message) -> list[str]:
    texts = [content.text for content in message.contents if isinstance(content, Text)]
    calls = [f"{each.name} {each.arguments}" for each in message.calls]
    results = [each.result if isinstance(each.result, str) else str(each.result) for each in message.results]
    return [*texts, *calls, *results]


# Invalid results

WRONG_RESULTS: list[Any] = [None, [2, 3], "all", {"kept": [2]}]
WRONG_VERSIONS: list[Any] = [None, "23", b"23", 5, ["2"], [2, True], [2, None], [2, False]]


@pytest.mark.parametrize("result", WRONG_RESULTS, ids=range(len(WRONG_RESULTS)))
def test_refuses_a_result_that_is_not_a_reduction(result: Any) -> None:
    with pytest.raises(ReducerError, match=r"The reducer test returned .* instead of a Reduction"):
        recorded(result, of(U1, A1))


@pytest.mark.parametrize("kept", WRONG_VERSIONS, ids=range(len(WRONG_VERSIONS)))
def test_refuses_invalid_versions(kept: Any) -> None:
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
def test_refuses_other_invalid_reductions_by_name(result: Any, problem: str) -> None:
    input_history = of(SYSTEM, U1, *ROUND, input=[U2])
    with pytest.raises(ReducerError, match=problem) as caught:
        recorded(result, input_history)
    assert caught.value.reducer == "test"
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301  # made here
    assert (str(again), again.problem) == (str(caught.value), caught.value.problem)


def test_refuses_a_new_summary_next_to_the_earlier_one() -> None:
    event = with_summary(of(U1, A1), 2, summary=SUMMARY)
    input_history = reducible(placed(U1, A1, U2), event, 90)
    with pytest.raises(ReducerError, match="keeps the earlier one at version 90"):
        recorded(Reduction([90, 4], SUMMARY), input_history, event)


def test_versions_without_sent_content_may_be_kept_or_omitted() -> None:
    input_history = of(U1, None, answers("z"), A1)
    for kept in ([5], [3, 5], [4, 5], [2, 4, 5]):
        reduction_event = recorded(Reduction(kept), input_history)
        assert reduction_event is not None
        assert sent(input_history.history, reduction_event)[-1] == A1
