"""Short helpers to build histories, reduce them and check the results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tests.domain.test_call_pairing import asks, placed

from clew.domain.call_pairing import model_view
from clew.domain.context.events import HistoryReduced
from clew.domain.history import HistoryMessage
from clew.domain.messages import Message
from clew.domain.reducers.history_reduction import reduce_history, reduced
from clew.domain.reducers.reducer import Reducer, Reducible, Reduction

SYSTEM = Message.system("Be brief.")
U1, U2, U3 = (Message.user(f"question {number}") for number in (1, 2, 3))
A1, A2, A3 = (Message.assistant(f"answer {number}") for number in (1, 2, 3))
ROUND = (asks("a", "b"), Message.tool("a", "first"), Message.tool("b", "second"))
"""A message with two calls, and their results: one group of three messages."""


def of(*messages: Message | None, input: Sequence[Message] = (), instructions: str | None = None) -> Reducible:
    """Return the input of a reducer: messages at versions 2, 3, 4…, then the messages of the run."""
    every = placed(*messages, *input)
    return Reducible(every[: len(messages)], every[len(messages) :], instructions)


def reduction(reducer: Reducer, history: Reducible) -> Reduction:
    """Return the reduction of a synchronous reducer."""
    done = reducer.reduce(history)
    assert isinstance(done, Reduction)
    return done


def kept(reducer: Reducer, history: Reducible) -> list[int]:
    """Return the versions that a reducer keeps."""
    return list(reduction(reducer, history).kept)


def recorded(
    result: object, history: Reducible, previous: HistoryReduced | None = None, *, name: str = "test"
) -> HistoryReduced | None:
    """Return the recorded event for a result."""
    upto = max((each.version for each in history.history), default=1)
    return reduce_history(result, history, agent="agent", reducer=name, previous=previous, upto=upto)


def event_of(reducer: Reducer, history: Reducible, previous: HistoryReduced | None = None) -> HistoryReduced:
    """Return the recorded event for the reduction of a reducer."""
    event = recorded(reduction(reducer, history), history, previous, name=reducer.name)
    assert event is not None
    return event


def with_summary(history: Reducible, *omitted: int, summary: Message) -> HistoryReduced:
    """Return a reduction that replaces these versions with a summary."""
    kept = [each.version for each in history.history if each.version not in omitted]
    event = recorded(Reduction(kept, summary), history)
    assert event is not None
    return event


def sent(history: Iterable[HistoryMessage], event: HistoryReduced, version: int = 100) -> list[Message]:
    """Return the messages that are sent to a model."""
    return list(model_view(reduced(history, event, version)).messages)
