from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from tests.domain.reducers.reduced_histories import A1, A2, SYSTEM, U1, U2, U3, kept, of, reduction
from tests.domain.test_model_view import answers, asks

from clew.domain.errors import ReducerError
from clew.domain.messages import Message
from clew.domain.reducers.reducer import Reducible, Reduction, ReductionTrigger
from clew.domain.reducers.strategies import KeepLast, Reducers, SlidingWindow, TokenBudget, TrimToolResults
from clew.domain.runs.errors import AgentConfigurationError

LONG = "word " * 100


@dataclass(frozen=True)
class Tells:
    """A reducer of somebody's own: it says something in place of all but the newest ``n`` groups."""

    n: int
    said: str | None
    name: str = "tells"
    when: ReductionTrigger = "before_retrieval"

    def reduce(self, given: Reducible) -> Reduction:
        groups = given.groups()
        if self.said is None:
            return Reduction(groups.newest(self.n))
        return Reduction(groups.newest(self.n, summary=False), Message.user(self.said))


@dataclass(frozen=True)
class Awaited:
    """A reducer that takes time."""

    n: int
    name: str = "awaited"
    when: ReductionTrigger = "before_retrieval"

    async def reduce(self, given: Reducible) -> Reduction:
        await asyncio.sleep(0)
        return Reduction(given.groups().newest(self.n))


@dataclass(frozen=True)
class Gives:
    """A reducer that gives what it was told to."""

    result: Any
    name: str = "gives"
    when: ReductionTrigger = "before_retrieval"

    def reduce(self, _: Reducible) -> Any:
        return self.result


def each_word(text: str) -> int:
    return len(text.split())


def test_each_works_on_what_the_former_left() -> None:
    given = of(SYSTEM, U1, A1, U2, A2, U1, A1, input=[U3])
    assert kept(KeepLast(3) | SlidingWindow(1), given) == [2, 7, 8]
    assert kept(SlidingWindow(2) | KeepLast(3), given) == [2, 6, 7, 8]


def test_a_budget_counts_what_was_cut_as_it_is_sent() -> None:
    given = of(asks("a"), answers("a", LONG), A1, input=[U1])
    assert kept(TokenBudget(20, each_word), given) == [4]
    both = TrimToolResults(50) | TokenBudget(20, each_word)
    found = reduction(both, given)
    assert (list(found.kept), dict(found.trimmed)) == ([2, 3, 4], {3: 50})


def test_what_is_left_out_later_is_not_cut() -> None:
    given = of(asks("a"), answers("a", LONG), A1, U1)
    found = reduction(TrimToolResults(50) | KeepLast(1), given)
    assert (list(found.kept), dict(found.trimmed)) == ([5], {})


def test_the_shorter_of_two_lengths_holds() -> None:
    given = of(asks("a"), answers("a", LONG), A1)
    for both in (TrimToolResults(50) | TrimToolResults(80), TrimToolResults(80) | TrimToolResults(50)):
        assert dict(reduction(both, given).trimmed) == {3: 50}


def test_a_new_summary_is_seen_by_the_next_one_and_kept_by_limits() -> None:
    given = of(SYSTEM, U1, A1, U2, A2, input=[U3])
    found = reduction(Reducers(Tells(3, "They met."), KeepLast(1)), given)
    assert found == Reduction([2, 6], Message.user("They met."))


def test_a_new_summary_that_the_next_one_leaves_out_is_gone() -> None:
    given = of(U1, A1, U2)
    found = reduction(Reducers(Tells(2, "long " * 50), TokenBudget(10, each_word)), given)
    assert found == Reduction([3, 4])


def test_of_two_summaries_the_last_holds() -> None:
    given = of(U1, A1, U2, A2)
    found = reduction(Reducers(Tells(3, "First."), Tells(2, "Second.")), given)
    assert found == Reduction([4, 5], Message.user("Second."))
    three = Reducers(Tells(3, "First."), Tells(2, "Second."), KeepLast(1), Tells(1, None))
    assert reduction(three, given) == Reduction([5], Message.user("Second."))


def test_an_earlier_summary_is_passed_on() -> None:
    history = of(U1, A1, U2).history
    given = Reducible(history, summary=2)
    assert kept(KeepLast(2) | KeepLast(1), given) == [2, 4]
    assert reduction(Reducers(KeepLast(1), Tells(1, "Newer.")), given) == Reduction([4], Message.user("Newer."))
    assert kept(Reducers(Tells(1, None), TokenBudget(2, each_word), KeepLast(5)), given) == [4]


def test_over_budget_is_said_when_any_says_it() -> None:
    given = of(U1, A1)
    assert reduction(TokenBudget(1, each_word) | KeepLast(1), given).over_budget
    assert not reduction(TokenBudget(9, each_word) | KeepLast(1), given).over_budget


def test_one_that_takes_time_is_awaited_wherever_it_stands() -> None:
    given = of(U1, A1, U2, A2)
    chains: list[Sequence[Any]] = [
        [Awaited(3), KeepLast(2)],
        [KeepLast(3), Awaited(2)],
        [Awaited(3), Awaited(2)],
        [KeepLast(4), Awaited(3), Tells(2, None), Awaited(2)],
        [Awaited(2)],
    ]

    async def left(chain: Sequence[Any]) -> Reduction:
        found = Reducers(*chain).reduce(given)
        assert not isinstance(found, Reduction)
        return await found

    for chain in chains:
        assert asyncio.run(left(chain)) == Reduction([4, 5])


def test_what_one_of_them_may_not_give_is_refused_under_its_name() -> None:
    given = of(SYSTEM, U1)
    with pytest.raises(ReducerError, match="The reducer gives returned None instead of a Reduction"):
        Reducers(Gives(None), KeepLast(1)).reduce(given)
    with pytest.raises(ReducerError, match="The reducer gives keeps version 3, which is not a version"):
        Reducers(Tells(1, "x"), KeepLast(1), Gives(Reduction([2, 3, 0])), KeepLast(1)).reduce(of(SYSTEM))


def test_their_name_is_that_of_each() -> None:
    whole = KeepLast(9) | SlidingWindow(3) | TrimToolResults(100, 2)
    assert whole.name == "keep-last(9) | sliding-window(3) | trim-tool-results(100, 2)"
    assert whole == Reducers(KeepLast(9), SlidingWindow(3), TrimToolResults(100, 2))
    assert (Tells(1, None) | KeepLast(2)).name == "tells | keep-last(2)"


def test_they_are_asked_at_one_moment() -> None:
    later = KeepLast(1, when="after_message_added")
    assert (later | later).when == "after_message_added"
    with pytest.raises(AgentConfigurationError, match="different moments"):
        _ = later | KeepLast(2)
    assert Reducers(later, KeepLast(2), when="before_retrieval").when == "before_retrieval"
    with pytest.raises(AgentConfigurationError, match="is not a moment"):
        Reducers(later, when="never")  # type: ignore[arg-type]  # on purpose


@pytest.mark.parametrize("other", [None, 5, "keep-last(2)", KeepLast], ids=repr)
def test_what_is_no_reducer_is_refused(other: Any) -> None:
    with pytest.raises(AgentConfigurationError, match="is not a reducer: it has no name"):
        _ = KeepLast(1) | other
    with pytest.raises(AgentConfigurationError, match="is not a reducer: it has no name"):
        _ = other | KeepLast(1)


def test_none_at_all_is_refused() -> None:
    with pytest.raises(AgentConfigurationError, match="Reducers"):
        Reducers()
