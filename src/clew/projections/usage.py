"""Usage: the events, messages, bytes, tokens and calls of each thread, and what models cost, by day."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from clew.domain.events import to_time
from clew.domain.models.prices import BROKEN_OFF, trillionths
from clew.domain.projection import (
    Change,
    Column,
    Delete,
    Query,
    Recorded,
    Recount,
    Rows,
    RowValues,
    Table,
    Upsert,
    Where,
)

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

_THREAD = (Column("tenant"), Column("thread_id"))
_ABOUT = ("agent", "actor", "model")
_FOR = ("for_thread", "for_run")
_CALL = ("message", "content")
COUNTED = (
    *("calls", "unpriced", "cost", "input_tokens", "output_tokens"),
    *("cached_tokens", "cache_write_tokens", "reasoning_tokens", "audio_tokens"),
)
"""The sums of model calls."""

_SUMS = tuple(Column(name, "integer", adds=True) for name in COUNTED)
COST_EVENTS = frozenset(
    {
        *("child-thread", "run-started", "run-resumed"),
        *("model-called", "model-answered", "model-failed", "answer-interrupted"),
    }
)
"""The events from which costs are computed."""

_LONGEST = 200
"""Characters of the name of a model in a key."""


class Usage:
    """Three tables of sums by day (UTC), and what they need.

    ``usage`` has one row for each thread and day: events, messages, bytes stored, the calls of runs, and tokens. Tokens
    are those that models reported in runs, and those in the metadata of other messages. Failed calls are calls of
    models and tools that failed, were refused or were interrupted.

    ``run_cost`` has one row for each thread, run, day, agent, caller and model: the model calls that may have cost
    something, what they used, and what they cost in trillionths of a dollar. ``unpriced`` are those whose cost is not
    known. ``for_run`` is the run that the application began, and ``for_thread`` its thread: those of an inner agent are
    those of the outermost caller, if this store has them, and a run after a handoff has those of the first run.
    A caller counts only if it names the thread, too: ``link`` has the calls that run agents, and their threads.
    ``cost`` has the same sums of the whole tenant, for each day: ``by`` says whether ``value`` is an agent, a caller or
    a model; where it is "total", the row is of all calls. An empty text stands for what is not known.

    Only a thread's own events count: inherited ones are counted where they were recorded. ``run`` has the open or
    newest run of each thread.
    """

    name = "usage"
    version = 5
    code_digest = "usage-5"  # of this version: change both where it makes other rows
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
        Table(
            "run",
            (*_THREAD, *map(Column, ("run_id", *_FOR, "agent", "asked_by", "actor", "model"))),
            key=("tenant", "thread_id"),
        ),
        Table(
            "link",
            (Column("tenant"), Column("outer"), Column("thread_id"), *(Column(name, "integer") for name in _CALL)),
            key=("tenant", "outer", "thread_id", *_CALL),
        ),
        Table(
            "run_cost",
            (*_THREAD, *map(Column, (*_FOR, "day", *_ABOUT)), *_SUMS),
            key=("tenant", "thread_id", "for_run", "day", *_ABOUT),
            indexes=(("tenant", "for_thread"),),
        ),
        Table(
            "cost",
            (Column("tenant"), Column("by"), Column("value"), Column("day"), *_SUMS),
            key=("tenant", "by", "value", "day"),
        ),
    )
    texts = ()
    types = None

    def project(self, event: Recorded, rows: Rows) -> Iterable[Change]:
        """Count every event; after a redaction count the thread again, because one of its events is shorter now."""
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
                if message.get("metadata") or message.get("source"):
                    values |= _tokens_of(message)
        elif event.type in _CALLS:
            values[_CALLS[event.type]] = 1
        elif event.type == "model-answered" and event.data is not None:
            values |= tokens(event.data.get("usage"))
        counted = Upsert("usage", values)
        if event.type in COST_EVENTS:
            return (counted, *cost_changes(event, rows))
        if event.type in {"message-redacted", "thread-purged"}:
            again = (counted, Recount("usage", event.tenant, event.kind, event.thread_id))
            return again if event.type == "message-redacted" else (*again, *_without_costs(event, rows))
        return (counted,)


def _tokens_of(message: Any) -> dict[str, int]:
    """The tokens in the metadata of a message; without metadata, those in the message that it was imported from."""
    metadata = message.get("metadata")
    return tokens(metadata.get("usage") if metadata else _imported(message["source"]))


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
            number = _number(usage.get(name, usage.get(other)))
            if number:
                found[name] = number
    return found


_days: dict[int, str] = {}


def _day(number: int) -> str:
    """The date of a day since 1970. It is cached: a batch of events has few days, and formatting a date is slow."""
    found = _days.get(number)
    if found is None:
        found = _days[number] = to_time(number * _DAY).date().isoformat()
    return found


def cost_changes(event: Recorded, rows: Rows) -> Iterator[Upsert]:
    """Remember what the run is, which model it calls and which agents, and count what each call cost."""
    data, place = event.data or {}, {"tenant": event.tenant, "thread_id": event.thread_id}
    match event.type:
        case "child-thread":
            link = {"tenant": event.tenant, "outer": event.thread_id, "thread_id": data["thread_id"]}
            yield Upsert("link", {**link, "message": data["message"], "content": data["index"]})
        case "run-started" | "run-resumed":
            run = {"agent": _text(data.get("agent", {}).get("id")), "asked_by": event.actor or ""}
            if event.type == "run-started":
                run |= {"actor": event.on_behalf_of or event.actor or "", "model": ""}
                run |= {"run_id": event.run_id or "", **_began_for(event, data, rows)}
            yield Upsert("run", {**place, **run})
        case "model-called":
            yield Upsert("run", {**place, "model": _text(data.get("model"))})
        case "model-failed" if data.get("error", {}).get("kind") != BROKEN_OFF:
            pass  # the service refused the call
        case _:
            run = rows.get("run", event.tenant, event.thread_id) or {}
            about = {
                "agent": _agent(event, run),
                "actor": run.get("actor") or "",
                "model": _text(data.get("model")) or run.get("model") or "",
            }
            own = {"for_thread": event.thread_id, "for_run": event.run_id or ""}
            for_ = {name: run.get(name) or value for name, value in own.items()}
            sums, day = call_sums(data), _day(event.recorded_at // _DAY)
            yield Upsert("run_cost", {**place, **for_, "day": day, **about, **sums})
            for by, value in (("total", ""), *about.items()):
                yield Upsert("cost", {"tenant": event.tenant, "by": by, "value": value, "day": day, **sums})


def _began_for(event: Recorded, data: dict[str, Any], rows: Rows) -> dict[str, str]:
    """The run that the application began, and its thread, for a run that begins: its own, or those of its caller."""
    caller = data.get("caller")
    if data.get("handed_from") is not None:
        thread_id, run_id = event.thread_id, data["handed_from"]["run_id"]
    elif caller is not None and _is_linked(event, caller, rows):
        thread_id, run_id = caller["thread_id"], caller["run_id"]
    else:
        return {"for_thread": event.thread_id, "for_run": event.run_id or ""}
    run = rows.get("run", event.tenant, thread_id)
    if run is None:  # the caller is in another store
        return {"for_thread": event.thread_id, "for_run": event.run_id or ""}
    if run["run_id"] != run_id:  # imported after other runs of the caller
        return {"for_thread": thread_id, "for_run": run_id}
    return {name: run[name] for name in _FOR}


def _is_linked(event: Recorded, caller: dict[str, Any], rows: Rows) -> bool:
    """Whether the caller names the thread, too: an imported thread can name any caller."""
    link = event.tenant, caller["thread_id"], event.thread_id, caller["message"], caller["index"]
    return rows.get("link", *link) is not None


def _agent(event: Recorded, run: RowValues) -> str:
    """The agent that called the model. In events of an earlier Clew, the actor is the caller of the run."""
    if event.actor is not None and event.actor != run.get("asked_by"):
        return event.actor
    return run.get("agent") or ""


def call_sums(data: dict[str, Any]) -> dict[str, int]:
    """The sums of one model call, from the data of its outcome."""
    usage, cost = data.get("usage"), trillionths(data.get("cost"))
    sums = {"calls": 1, "unpriced": int(cost is None), "cost": cost or 0, **tokens(usage)}
    if isinstance(usage, dict):
        for name in ("cached_tokens", "reasoning_tokens"):
            sums[name] = _number(usage.get(name))
        parts = usage.get("parts")
        if isinstance(parts, dict):
            sums["cache_write_tokens"] = _number(parts.get("cache_write"))
            sums["audio_tokens"] = _number(parts.get("input_audio")) + _number(parts.get("output_audio"))
    return sums


def _without_costs(event: Recorded, rows: Rows) -> Iterator[Change]:
    """Remove the costs of a purged thread, which the log does not have any more."""
    of_thread = (Where("tenant", "=", event.tenant), Where("thread_id", "=", event.thread_id))
    left: dict[tuple[str, str, str], dict[str, int]] = {}
    for row in rows.select(Query("run_cost", of_thread)):
        for by, value in (("total", ""), *((name, row[name]) for name in _ABOUT)):
            key = by, value, row["day"]
            known = left.setdefault(key, {})
            for name in COUNTED:
                known[name] = known.get(name, 0) - row[name]
    for key, minus in left.items():
        there = rows.get("cost", event.tenant, *key) or {}
        if there.get("calls", 0) + minus["calls"] <= 0:
            yield Delete("cost", (event.tenant, *key))
        else:
            by, value, day = key
            yield Upsert("cost", {"tenant": event.tenant, "by": by, "value": value, "day": day, **minus})
    yield Delete("run_cost", (event.tenant, event.thread_id))
    yield Delete("run", (event.tenant, event.thread_id))
    yield Delete("link", (event.tenant, event.thread_id))


def _text(value: Any) -> str:
    return value[:_LONGEST] if isinstance(value, str) else ""


def _number(value: Any) -> int:
    return value if type(value) is int and 0 <= value < 2**53 else 0
