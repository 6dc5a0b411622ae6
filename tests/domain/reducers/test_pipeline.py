from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from tests.domain.reducers.reduced_histories import A1, A2, SYSTEM, U1, U2, U3, kept, of, reduction
from tests.domain.test_call_pairing import answers, asks

from clew.domain.errors import ReducerError
from clew.domain.messages import Message
from clew.domain.reducers.reducer import Reducible, Reduction, ReductionTrigger
from clew.domain.reducers.strategies import KeepLast, Reducers, SlidingWindow, TokenBudget, TrimToolResults
from clew.domain.runs.errors import AgentConfigurationError

LONG = "word " * 100


@dataclass(frozen=True)
class Summarises:
    """A custom reducer that replaces all but the newest ``n`` groups with a summary."""

    n: int
    summary: str | None
    name: str = "summarises"
    when: ReductionTrigger = "before_retrieval"

    def reduce(self, history: Reducible) -> Reduction:
        groups = history.groups()
        if self.summary is None:
            return Reduction(groups.newest(self.n))
        return Reduction(groups.newest(self.n, summary=False), Message.user(self.summary))


@dataclass(frozen=True)
class AsyncReducer:
    """An asynchronous reducer."""

    n: int
    name: str = "awaited"
    when: ReductionTrigger = "before_retrieval"

    async def reduce(self, history: Reducible) -> Reduction:
        await asyncio.sleep(0)
        return Reduction(history.groups().newest(self.n))


@dataclass(frozen=True)
class ReturnsFixed:
    """A reducer that returns a fixed result."""

    result: Any
    name: str = "gives"
    when: ReductionTrigger = "before_retrieval"

    def reduce(self, _: Reducible) -> Any:
        return self.result


def each_word(text: str) -> int:
    return len(text.split())


def test_each_reducer_gets_the_result_of_the_previous_one() -> None:
    input_history = of(SYSTEM, U1, A1, U2, A2, U1, A1, input=[U3])
    assert kept(KeepLast(3) | SlidingWindow(1), input_history) == [2, 7, 8]
    assert kept(SlidingWindow(2) | KeepLast(3), input_history) == [2, 6, 7, 8]


def test_a_budget_counts_trimmed_results() -> None:
    input_history = of(asks("a"), answers("a", LONG), A1, input=[U1])
    assert kept(TokenBudget(20, each_word), input_history) == [4]
    both = TrimToolResults(50) | TokenBudget(20, each_word)
    result = reduction(both, input_history)
    assert (list(result.kept), dict(result.trimmed)) == ([2, 3, 4], {3: 50})


def test_messages_omitted_later_are_not_trimmed() -> None:
    input_history = of(asks("a"), answers("a", LONG), A1, U1)
    result = reduction(TrimToolResults(50) | KeepLast(1), input_history)
    assert (list(result.kept), dict(result.trimmed)) == ([5], {})


def test_the_shorter_of_two_lengths_applies() -> None:
    input_history = of(asks("a"), answers("a", LONG), A1)
    for both in (TrimToolResults(50) | TrimToolResults(80), TrimToolResults(80) | TrimToolResults(50)):
        assert dict(reduction(both, input_history).trimmed) == {3: 50}


def test_the_next_reducer_gets_a_new_summary_and_limits_keep_it() -> None:
    input_history = of(SYSTEM, U1, A1, U2, A2, input=[U3])
    result = reduction(Reducers(Summarises(3, "They met."), KeepLast(1)), input_history)
    assert result == Reduction([2, 6], Message.user("They met."))


def test_the_next_reducer_can_omit_a_new_summary() -> None:
    input_history = of(U1, A1, U2)
    result = reduction(Reducers(Summarises(2, "long " * 50), TokenBudget(10, each_word)), input_history)
    assert result == Reduction([3, 4])


def test_the_last_of_two_summaries_applies() -> None:
    input_history = of(U1, A1, U2, A2)
    result = reduction(Reducers(Summarises(3, "First."), Summarises(2, "Second.")), input_history)
    assert result == Reduction([4, 5], Message.user("Second."))
    three = Reducers(Summarises(3, "First."), Summarises(2, "Second."), KeepLast(1), Summarises(1, None))
    assert reduction(three, input_history) == Reduction([5], Message.user("Second."))


def test_an_earlier_summary_is_kept() -> None:
    history = of(U1, A1, U2).history
    input_history = Reducible(history, summary=2)
    assert kept(KeepLast(2) | KeepLast(1), input_history) == [2, 4]
    assert reduction(Reducers(KeepLast(1), Summarises(1, "Newer.")), input_history) == Reduction(
        [4], Message.user("Newer.")
    )
    assert kept(Reducers(Summarises(1, None), TokenBudget(2, each_word), KeepLast(5)), input_history) == [4]


def test_is_over_budget_if_any_reducer_is() -> None:
    input_history = of(U1, A1)
    assert reduction(TokenBudget(1, each_word) | KeepLast(1), input_history).over_budget
    assert not reduction(TokenBudget(9, each_word) | KeepLast(1), input_history).over_budget


def test_awaits_async_reducers_at_any_place() -> None:
    input_history = of(U1, A1, U2, A2)
    chains: list[Sequence[Any]] = [
        [AsyncReducer(3), KeepLast(2)],
        [KeepLast(3), AsyncReducer(2)],
        [AsyncReducer(3), AsyncReducer(2)],
        [KeepLast(4), AsyncReducer(3), Summarises(2, None), AsyncReducer(2)],
        [AsyncReducer(2)],
    ]

    async def reduce_with(chain: Sequence[Any]) -> Reduction:
        result = Reducers(*chain).reduce(input_history)
        assert not isinstance(result, Reduction)
        return await result

    for chain in chains:
        assert asyncio.run(reduce_with(chain)) == Reduction([4, 5])


def test_refuses_an_invalid_result_under_the_reducers_name() -> None:
    input_history = of(SYSTEM, U1)
    with pytest.raises(ReducerError, match="The reducer gives returned None instead of a Reduction"):
        Reducers(ReturnsFixed(None), KeepLast(1)).reduce(input_history)
    with pytest.raises(ReducerError, match="The reducer gives keeps version 3, which is not a version"):
        Reducers(Summarises(1, "x"), KeepLast(1), ReturnsFixed(Reduction([2, 3, 0])), KeepLast(1)).reduce(of(SYSTEM))


def test_the_name_joins_the_names_of_all_reducers() -> None:
    whole = KeepLast(9) | SlidingWindow(3) | TrimToolResults(100, 2)
    assert whole.name == "keep-last(9) | sliding-window(3) | trim-tool-results(100, 2)"
    assert whole == Reducers(KeepLast(9), SlidingWindow(3), TrimToolResults(100, 2))
    assert (Summarises(1, None) | KeepLast(2)).name == "summarises | keep-last(2)"


def test_all_reducers_need_the_same_moment() -> None:
    later = KeepLast(1, when="after_message_added")
    assert (later | later).when == "after_message_added"
    with pytest.raises(AgentConfigurationError, match="different moments"):
        _ = later | KeepLast(2)
    assert Reducers(later, KeepLast(2), when="before_retrieval").when == "before_retrieval"
    with pytest.raises(AgentConfigurationError, match="is not a moment"):
        Reducers(later, when="never")  # type: ignore[arg-type]  # the test passes a wrong value


@pytest.mark.parametrize("other", [None, 5, "keep-last(2)", KeepLast], ids=repr)
def test_accepts_only_a_reducer(other: Any) -> None:
    with pytest.raises(AgentConfigurationError, match="is not a reducer: it has no name"):
        _ = KeepLast(1) | other
    with pytest.raises(AgentConfigurationError, match="is not a reducer: it has no name"):
        _ = other | KeepLast(1)


def test_refuses_an_empty_pipeline() -> None:
    with pytest.raises(AgentConfigurationError, match="Reducers"):
        Reducers()
