"""Usage: how much each thread holds, by day."""

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
"""What each of these events counts as."""


class Usage:
    """A row for each thread and day (UTC): events, messages, bytes stored, the calls of runs, and tokens.

    Tokens are those that models told of in runs, and that other messages tell. Failed calls are those of models and
    tools that failed, were refused or were interrupted. A thread's own: what a fork inherited is counted where it was
    recorded.
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
        """Every event counts; after a redaction the thread is counted again, since a row of it is shorter now."""
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
        if event.type == "message-redacted":
            return (counted, Recount("usage", event.tenant, event.kind, event.thread_id))
        return (counted,)


def _imported(source: Any) -> Any:
    """The ``usage`` of an OpenAI message that was imported: one of the fields that Clew has no word for."""
    found = source
    for name in ("openai", "patch", "set", "usage"):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def tokens(usage: Any) -> dict[str, int]:
    """The tokens that a ``usage`` tells, under the names of either API of OpenAI's."""
    found: dict[str, int] = {}
    if isinstance(usage, dict):
        for name, other in (("input_tokens", "prompt_tokens"), ("output_tokens", "completion_tokens")):
            value = usage.get(name, usage.get(other))
            if type(value) is int and 0 <= value < 2**53:
                found[name] = value
    return found


_days: dict[int, str] = {}


def _day(number: int) -> str:
    """The date of a day since 1970, looked up: a run of events is of few days, and a date takes long to write."""
    found = _days.get(number)
    if found is None:
        found = _days[number] = to_time(number * _DAY).date().isoformat()
    return found
