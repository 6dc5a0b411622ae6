"""Rules for the events of runs on a thread, checked from the log alone."""

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
    """Check that nothing happens twice or without its cause.

    ``tools`` maps each tool to the repetition that it allows: ``idempotent``, ``once`` or ``approved``. Returns how
    often each call may have been executed at most, by run and place.
    """
    by_version = {event.version: event for event in events}
    started: Counter[str] = Counter()
    allowed: Counter[str] = Counter()
    outcomes: Counter[tuple[int, int]] = Counter()
    answers: Counter[int] = Counter()
    decided: Counter[int] = Counter()
    ends: Counter[str | None] = Counter()
    running: set[str] = set()
    for event in by_version.values():
        data: Any = event.data
        if isinstance(data, OVER):
            ends[event.run_id] += 1
            own = [each for each in running if each.startswith(f"{event.run_id}:")]
            interrupted = isinstance(data, RunAbandoned) and data.reason not in {"cancelled", "stopped"}
            assert interrupted or not own, "a started call has no outcome"
        elif isinstance(data, ANSWERED):
            answers[data.call] += 1
            assert isinstance(by_version[data.call].data, ModelCalled)
        elif isinstance(data, ToolFinished | ToolFailed):
            outcomes[data.message, data.index] += 1
            running.discard(_key(event, data))
        elif isinstance(data, ApprovalRequested):
            running.discard(_key(event, data))  # its outcome is unknown
        elif isinstance(data, ApprovalGiven):
            decided[data.request] += 1
            request = by_version[data.request]
            assert isinstance(request.data, ApprovalRequested)
            assert request.run_id == event.run_id
            if data.approved:
                allowed[_key(request, request.data)] += 1
        elif isinstance(data, ToolStarted):
            started[_key(event, data)] += 1
            running.add(_key(event, data))
            message: Any = by_version[data.message].data
            care = tools.get(message.message.contents[data.index].name, "idempotent")
            free = 0 if care == "approved" else 1
            assert care == "idempotent" or started[_key(event, data)] <= free + allowed[_key(event, data)]
    assert set(outcomes.values()) <= {1}, "a call has two outcomes"
    assert set(answers.values()) <= {1}, "a model call was answered twice"
    assert set(decided.values()) <= {1}, "an approval was decided twice"
    assert set(ends.values()) <= {1}, "a run ended twice"
    assert set(ends) <= {event.run_id for event in by_version.values() if isinstance(event.data, RunStarted)}
    return started


def _key(event: Event, place: Any) -> str:
    """Return the idempotency key of a tool call."""
    return f"{event.run_id}:{place.message}:{place.index}"
