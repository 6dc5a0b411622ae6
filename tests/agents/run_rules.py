"""What the log of a thread must say of its runs, in whatever order things happened: read from the events alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from clew.domain.events import Event
from clew.domain.runs.events import (
    AnswerInterrupted,
    ApprovalGiven,
    ApprovalRequested,
    ModelAnswered,
    ModelCalled,
    ModelFailed,
    RunAbandoned,
    RunCompleted,
    RunFailed,
    RunStarted,
    ToolFailed,
    ToolFinished,
    ToolStarted,
)

OVER = (RunCompleted, RunFailed, RunAbandoned)
ANSWERED = (ModelAnswered, ModelFailed, AnswerInterrupted)


def check_runs(events: Iterable[Event], tools: dict[str, str]) -> Counter[str]:
    """Nothing happens twice, and nothing without its cause; ``tools`` says how careful a run must be with each.

    That is ``idempotent``, ``once`` or ``approved``. Returns how often each call may have been carried out at most, by
    run and place.
    """
    said = {event.version: event for event in events}
    begun: Counter[str] = Counter()
    allowed: Counter[str] = Counter()
    outcomes: Counter[tuple[int, int]] = Counter()
    answers: Counter[int] = Counter()
    given: Counter[int] = Counter()
    ends: Counter[str | None] = Counter()
    under_way: set[str] = set()
    for event in said.values():
        data: Any = event.data
        if isinstance(data, OVER):
            ends[event.run_id] += 1
            own = [each for each in under_way if each.startswith(f"{event.run_id}:")]
            gone = isinstance(data, RunAbandoned) and data.reason not in {"cancelled", "stopped"}
            assert gone or not own, "a call was begun, and nobody says what became of it"
        elif isinstance(data, ANSWERED):
            answers[data.call] += 1
            assert isinstance(said[data.call].data, ModelCalled)
        elif isinstance(data, ToolFinished | ToolFailed):
            outcomes[data.message, data.index] += 1
            under_way.discard(_key(event, data))
        elif isinstance(data, ApprovalRequested):
            under_way.discard(_key(event, data))  # it says that nobody knows
        elif isinstance(data, ApprovalGiven):
            given[data.request] += 1
            request = said[data.request]
            assert isinstance(request.data, ApprovalRequested)
            assert request.run_id == event.run_id
            if data.approved:
                allowed[_key(request, request.data)] += 1
        elif isinstance(data, ToolStarted):
            begun[_key(event, data)] += 1
            under_way.add(_key(event, data))
            message: Any = said[data.message].data
            care = tools.get(message.message.contents[data.index].name, "idempotent")
            free = 0 if care == "approved" else 1
            assert care == "idempotent" or begun[_key(event, data)] <= free + allowed[_key(event, data)]
    assert set(outcomes.values()) <= {1}, "a call has two outcomes"
    assert set(answers.values()) <= {1}, "a model call was answered twice"
    assert set(given.values()) <= {1}, "an approval was decided twice"
    assert set(ends.values()) <= {1}, "a run ended twice"
    assert set(ends) <= {event.run_id for event in said.values() if isinstance(event.data, RunStarted)}
    return begun


def _key(event: Event, place: Any) -> str:
    """The idempotency key that a tool is given."""
    return f"{event.run_id}:{place.message}:{place.index}"
