"""Asking a reducer what of a history the requests of an agent are to be made of."""

from __future__ import annotations

from inspect import isawaitable

from clew.domain.context.events import HistoryReduced
from clew.domain.reducers.reducer import Reducer, Reducible
from clew.domain.reducers.reduction import reduce_history


async def decided(
    reducer: Reducer, given: Reducible, *, agent: str, previous: tuple[int, HistoryReduced] | None, upto: int
) -> HistoryReduced | None:
    """What is to be recorded: None when what holds so far, ``previous`` with its version, says it already.

    ``upto`` is the version up to which the history was given. Raises what the reducer raises, and ReducerError when it
    gives what no request can be made of.
    """
    result = reducer.reduce(given)
    if isawaitable(result):
        result = await result
    before = None if previous is None else previous[1]
    return reduce_history(result, given, agent=agent, reducer=reducer.name, previous=before, upto=upto)
