"""Reducers one after the other, each on what the one before it left."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from inspect import isawaitable
from typing import Any

from clew.domain.reducers.configuration import checked_reducer, checked_trigger, counts_own
from clew.domain.reducers.cutting import cut
from clew.domain.reducers.reducer import Reducer, Reducible, Reduction, Trigger
from clew.domain.reducers.reduction import checked, summary_at, with_summary
from clew.domain.runs.errors import AgentConfigurationError

NEW = 0
"""The version of a summary that is on no log yet."""


class Composable:
    """A reducer that ``|`` puts before or after another."""

    __slots__ = ()

    def __or__(self, other: Reducer) -> Reducers:
        return Reducers(self, other)

    def __ror__(self, other: Reducer) -> Reducers:
        return Reducers(other, self)


@dataclass(frozen=True, init=False)
class Reducers(Composable):
    """Several reducers, each on what the one before it left: ``Reducers(a, b)``, or ``a | b``.

    They are asked at one moment: say ``when`` if theirs differ. Put a budget last: what comes after it may add to what
    it measured. ``over_budget`` is said when any of them says it.
    """

    reducers: tuple[Reducer, ...]
    when: Trigger

    def __init__(self, *reducers: Any, when: Trigger | None = None) -> None:
        if not reducers:
            raise AgentConfigurationError("Reducers() has none. Give at least one, such as KeepLast(20).")
        flat: list[Reducer] = []
        for each in reducers:
            flat += each.reducers if isinstance(each, Reducers) else [checked_reducer(each)]
        moments = {each.when for each in reducers} if when is None else {when}
        if len(moments) > 1:
            names = ", ".join(f"{each.name}: {each.when}" for each in flat)
            raise AgentConfigurationError(f"These reducers are asked at different moments ({names}). Say when=.")
        moment = moments.pop()
        checked_trigger(self, moment)
        object.__setattr__(self, "reducers", tuple(flat))
        object.__setattr__(self, "when", moment)

    @property
    def name(self) -> str:
        """What the log calls it."""
        return " | ".join(each.name for each in self.reducers)

    @property
    def counts_own(self) -> bool:
        """Whether the run's own messages count for one of them."""
        return any(map(counts_own, self.reducers))

    def reduce(self, given: Reducible) -> Reduction | Awaitable[Reduction]:
        """What the last of them leaves; to be awaited when one of them is."""
        return _through(self.reducers, given)


def _through(reducers: Sequence[Reducer], given: Reducible) -> Reduction | Awaitable[Reduction]:
    done = reducers[0].reduce(given)
    return _awaited(done, reducers, given) if isawaitable(done) else _then(done, reducers, given)


async def _awaited(done: Awaitable[Reduction], reducers: Sequence[Reducer], given: Reducible) -> Reduction:
    last = _then(await done, reducers, given)
    return await last if isawaitable(last) else last


def _then(done: Reduction, reducers: Sequence[Reducer], given: Reducible) -> Reduction | Awaitable[Reduction]:
    """What the reducers after the first make of what it left."""
    first = checked(done, given, reducers[0].name)
    if len(reducers) == 1:
        return first
    last = _through(reducers[1:], _left(given, first))
    return _both_awaited(first, last) if isawaitable(last) else _both(first, last)


async def _both_awaited(first: Reduction, last: Awaitable[Reduction]) -> Reduction:
    return _both(first, await last)


def _left(given: Reducible, done: Reduction) -> Reducible:
    """What a reducer left, as the next one is given it."""
    kept = set(done.kept)
    history = [
        cut(each, done.trimmed[each.version]) if each.version in done.trimmed else each
        for each in given.history
        if each.version in kept
    ]
    if done.summary is not None:
        return replace(given, history=with_summary(history, summary_at(NEW, done.summary)), summary=NEW)
    return replace(given, history=history, summary=given.summary if given.summary in kept else None)


def _both(first: Reduction, last: Reduction) -> Reduction:
    kept = [version for version in last.kept if version != NEW or first.summary is None]
    summary = first.summary if last.summary is None and NEW in last.kept else last.summary
    there = set(kept)
    trimmed = {version: most for version, most in first.trimmed.items() if version in there}
    for version, most in last.trimmed.items():
        trimmed[version] = min(most, trimmed.get(version, most))
    return Reduction(kept, summary, trimmed, first.over_budget or last.over_budget)
