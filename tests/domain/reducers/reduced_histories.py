"""Histories to reduce, and what comes of them: short to write, and checked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tests.domain.test_model_view import asks, placed

from clew.domain.context.events import HistoryReduced
from clew.domain.history import HistoryMessage
from clew.domain.messages import Message
from clew.domain.model_view import model_view
from clew.domain.reducers.history_reduction import reduce_history, reduced
from clew.domain.reducers.reducer import Reducer, Reducible, Reduction

SYSTEM = Message.system("Be brief.")
U1, U2, U3 = (Message.user(f"question {number}") for number in (1, 2, 3))
A1, A2, A3 = (Message.assistant(f"answer {number}") for number in (1, 2, 3))
ROUND = (asks("a", "b"), Message.tool("a", "first"), Message.tool("b", "second"))
"""A message with two calls, and their results: one group of three messages."""


def of(*messages: Message | None, input: Sequence[Message] = (), instructions: str | None = None) -> Reducible:
    """What a reducer is given: messages at versions 2, 3, 4…, and then the run's own."""
    every = placed(*messages, *input)
    return Reducible(every[: len(messages)], every[len(messages) :], instructions)


def reduction(reducer: Reducer, given: Reducible) -> Reduction:
    """What a reducer that asks nobody leaves."""
    done = reducer.reduce(given)
    assert isinstance(done, Reduction)
    return done


def kept(reducer: Reducer, given: Reducible) -> list[int]:
    """The versions that a reducer keeps."""
    return list(reduction(reducer, given).kept)


def recorded(
    result: object, given: Reducible, previous: HistoryReduced | None = None, *, name: str = "test"
) -> HistoryReduced | None:
    """What is recorded of a result."""
    upto = max((each.version for each in given.history), default=1)
    return reduce_history(result, given, agent="agent", reducer=name, previous=previous, upto=upto)


def event_of(reducer: Reducer, given: Reducible, previous: HistoryReduced | None = None) -> HistoryReduced:
    """What is recorded of what a reducer leaves, when it is something."""
    found = recorded(reduction(reducer, given), given, previous, name=reducer.name)
    assert found is not None
    return found


def summed_up(given: Reducible, *left: int, summary: Message) -> HistoryReduced:
    """A reduction that left these versions out in favour of a summary."""
    kept = [each.version for each in given.history if each.version not in left]
    found = recorded(Reduction(kept, summary), given)
    assert found is not None
    return found


def sent(history: Iterable[HistoryMessage], event: HistoryReduced, version: int = 100) -> list[Message]:
    """The messages that a model is sent."""
    return list(model_view(reduced(history, event, version)).messages)
