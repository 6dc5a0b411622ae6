"""Usage: threads, events, messages, bytes, tokens and calls; in total, by thread or by day."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import date, datetime
from operator import itemgetter
from typing import Literal, NamedTuple, TypeAlias, get_args

from clew.domain.errors import InvalidContentError, InvalidTimeError
from clew.domain.projection import Query, RowValues, Where
from clew.service.authorization import permitted
from clew.service.core import Core
from clew.service.effects import Operation
from clew.service.read_models import DIRECTORY
from clew.service.thread_directory import few_permitted, of_threads
from clew.service.thread_queries import existing

By: TypeAlias = Literal["total", "thread", "day"]

USAGE = "usage"

_COUNTED = (
    *("events", "messages", "bytes", "input_tokens", "output_tokens"),
    *("model_calls", "tool_calls", "failed_calls"),
)


class UsageCounts(NamedTuple):
    """Usage of a thread, of a day, or in total; ``thread_id`` or ``day`` is None if it does not apply.

    ``forks`` is the number of those threads that have a parent. Inherited events are counted where they were recorded.
    ``bytes`` are those of the stored events; tokens are those that models reported in runs, and those in the metadata
    of other messages. ``tool_calls`` are the calls that were started, and ``failed_calls`` those of models and tools
    that failed, were refused or were interrupted.
    """

    thread_id: str | None
    day: date | None
    threads: int
    forks: int
    events: int
    messages: int
    bytes: int
    input_tokens: int
    output_tokens: int
    model_calls: int = 0
    tool_calls: int = 0
    failed_calls: int = 0


def usage(
    core: Core, *, thread: str | None, since: date | None, until: date | None, by: By
) -> Operation[list[UsageCounts]]:
    """The usage on the days (UTC) from ``since`` to ``until``, both included.

    By thread, the largest first; by day, in order; in total, one. Only threads that the actor may audit are counted.
    Raises UnknownThreadError, InvalidContentError, InvalidTimeError or NotAuthorizedError.
    """
    if by not in get_args(By):
        raise InvalidContentError(f"by: {by!r} is not a grouping. Use one of: {', '.join(get_args(By))}.")
    where = [Where("tenant", "=", core.tenant)]
    if thread is not None:
        yield from existing(core, thread, "audit")
        where.append(Where("thread_id", "=", thread))
    if since is not None:
        where.append(Where("day", ">=", day_text(since, "since")))
    if until is not None:
        where.append(Where("day", "<=", day_text(until, "until")))
    core = core.read_barrier()
    of_permitted = of_threads((yield from few_permitted(core, "audit")))
    all_rows = yield from core.models.select(USAGE, Query("usage", (*where, *of_permitted)))
    rows = yield from permitted(core, "audit", all_rows, itemgetter("thread_id"))
    forks = yield from _forks(core, of_permitted)
    groups: dict[str, list[RowValues]] = defaultdict(list)
    if by == "total":
        groups[""] = list(rows)
    else:
        for row in rows:
            groups[row["thread_id" if by == "thread" else "day"]].append(row)
    counts = [_usage(group, forks, by, key) for key, group in groups.items()]
    if by == "thread":
        return sorted(counts, key=lambda each: (-each.bytes, each.thread_id))
    return sorted(counts, key=lambda each: each.day or date.min)


def day_text(day: date, name: str) -> str:
    """A day as read models have it. Raises InvalidTimeError."""
    if not isinstance(day, date) or isinstance(day, datetime):  # a datetime is a date, but not a whole day
        raise InvalidTimeError(f"{name}: {type(day).__name__} is not a day. Give a datetime.date, the day in UTC.")
    return day.isoformat()


def _forks(core: Core, of_permitted: tuple[Where, ...]) -> Operation[frozenset[str]]:
    where = (Where("tenant", "=", core.tenant), Where("parent_id", ">=", ""), *of_permitted)
    rows = yield from core.models.select(DIRECTORY, Query("thread", where, columns=["thread_id"]))
    return frozenset(row["thread_id"] for row in rows)


def _usage(rows: Iterable[RowValues], forks: frozenset[str], by: By, key: str) -> UsageCounts:
    counted = dict.fromkeys(_COUNTED, 0)
    threads: set[str] = set()
    for row in rows:
        threads.add(row["thread_id"])
        for name in _COUNTED:
            counted[name] += row.get(name, 0)  # the tables of an older version may lack one
    return UsageCounts(
        thread_id=key if by == "thread" else None,
        day=date.fromisoformat(key) if by == "day" else None,
        threads=len(threads),
        forks=len(threads & forks),
        **counted,
    )
