"""Usage: the events, messages, bytes, tokens and calls of each thread, by day."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from clew.domain.events import to_time
from clew.domain.projection import Change, Column, Recorded, Recount, Rows, Table, Upsert

_DAY = 86_400_000_000
"""Microseconds."""

_CALLS = {
    "model-called": "model_calls",
    "tool-started": "tool_calls",
    "model-failed": "failed_calls",
    "answer-interrupted": "failed_calls",
    "tool-failed": "failed_calls",
}
"""The column that each of these events is counted in."""


class Usage:
    """One row for each thread and day (UTC): events, messages, bytes stored, the calls of runs, and tokens.

    Tokens are those that models reported in runs, and those in the metadata of other messages. Failed calls are calls
    of models and tools that failed, were refused or were interrupted. Only a thread's own events count: inherited ones
    are counted where they were recorded.
    """

    name = "usage"
    version = 2
    code_digest = "db49d3be8c8891ee"  # of this version: change both where it makes other rows
    tables = (
        Table(
            "usage",
            (
                Column("tenant"),
                Column("thread_id"),
                Column("day"),
                Column("events", "integer", adds=True),
                Column("messages", "integer", adds=True),
                Column("bytes", "integer", adds=True),
                Column("input_tokens", "integer", adds=True),
                Column("output_tokens", "integer", adds=True),
                Column("model_calls", "integer", adds=True),
                Column("tool_calls", "integer", adds=True),
                Column("failed_calls", "integer", adds=True),
            ),
            key=("tenant", "thread_id", "day"),
            indexes=(("tenant", "day"),),
        ),
    )
    texts = ()
    types = None

    def project(self, event: Recorded, rows: Rows) -> Iterable[Change]:
        """Count every event; after a redaction count the thread again, because one of its events is shorter now."""
        del rows
        if event.kind != "thread":
            return ()
        values = {
            "tenant": event.tenant,
            "thread_id": event.thread_id,
            "day": _day(event.recorded_at // _DAY),
            "events": 1,
            "bytes": event.size,
        }
        if event.type == "message-appended":
            values["messages"] = 1
            if event.data is not None:
                message = event.data["message"]
                if message.get("metadata"):
                    values |= tokens(message["metadata"].get("usage"))
                elif message.get("source"):
                    values |= tokens(_imported(message["source"]))
        elif event.type in _CALLS:
            values[_CALLS[event.type]] = 1
        elif event.type == "model-answered" and event.data is not None:
            values |= tokens(event.data.get("usage"))
        counted = Upsert("usage", values)
        if event.type in {"message-redacted", "thread-purged"}:
            return (counted, Recount("usage", event.tenant, event.kind, event.thread_id))
        return (counted,)


def _imported(source: Any) -> Any:
    """The ``usage`` of an imported OpenAI message; Clew stores it with the fields that it does not interpret."""
    found = source
    for name in ("openai", "patch", "set", "usage"):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def tokens(usage: Any) -> dict[str, int]:
    """The tokens in a ``usage``, with the names of either of OpenAI's APIs."""
    found: dict[str, int] = {}
    if isinstance(usage, dict):
        for name, other in (("input_tokens", "prompt_tokens"), ("output_tokens", "completion_tokens")):
            value = usage.get(name, usage.get(other))
            if type(value) is int and 0 <= value < 2**53:
                found[name] = value
    return found


_days: dict[int, str] = {}


def _day(number: int) -> str:
    """The date of a day since 1970. It is cached: a batch of events has few days, and formatting a date is slow."""
    found = _days.get(number)
    if found is None:
        found = _days[number] = to_time(number * _DAY).date().isoformat()
    return found
