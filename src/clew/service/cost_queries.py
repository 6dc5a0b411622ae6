"""Costs: what agents used of models, and what it cost; in total or by day, agent, actor, model, thread, run, label."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from decimal import Decimal
from functools import partial
from heapq import merge
from operator import attrgetter, itemgetter
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from clew.domain.errors import InvalidContentError
from clew.domain.events import to_time
from clew.domain.json_values import JsonObject
from clew.domain.models.client import TokenUsage
from clew.domain.models.prices import TRILLION, Prices, cost_of
from clew.domain.projection import Query, Recorded, RowValues, Unreadable, Where
from clew.projections.usage import COST_EVENTS, COUNTED, cost_changes
from clew.service.authorization import permitted
from clew.service.core import Core
from clew.service.effects import Operation, read
from clew.service.read_models import DIRECTORY
from clew.service.thread_directory import few_permitted, of_threads
from clew.service.thread_queries import existing
from clew.service.usage_queries import USAGE, day_text

CostsBy: TypeAlias = Literal["total", "day", "agent", "actor", "model", "thread", "run", "label"]

_AT_ONCE = 1_000
"""Rows of the log that are read together."""


class Costs(NamedTuple):
    """What model calls of runs used, and what they cost.

    ``of`` is the day, the id of the agent, the actor for whom the agents acted, the model, the id of the thread or of
    the run, or the value of the label; None for the total, and for what is not known. ``cost`` is in US dollars, of the
    calls that have a price: None if there are calls, and none has. ``unpriced_calls`` have no price, or were
    interrupted.
    """

    of: Any
    calls: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int
    audio_tokens: int
    cost: Decimal | None
    unpriced_calls: int


def costs(  # every filter has its own parameter
    core: Core,
    *,
    by: CostsBy,
    label: str | None,
    thread: str | None,
    since: date | None,
    until: date | None,
    prices: Prices | None,
) -> Operation[list[Costs]]:
    """What model calls used and cost on the days (UTC) from ``since`` to ``until``, both included.

    By day, in order; else the most expensive first. What an inner agent used is of the thread and the run of its
    outermost caller, and only threads that the actor may audit are counted. With ``prices`` the calls are priced again,
    from the log. Raises UnknownThreadError, InvalidContentError, InvalidTimeError or NotAuthorizedError.
    """
    if by not in get_args(CostsBy):
        raise InvalidContentError(f"by: {by!r} is not a grouping. Use one of: {', '.join(get_args(CostsBy))}.")
    if (by == "label") != (label is not None):
        raise InvalidContentError("by='label' needs the name of the label, as label=…, and nothing else does.")
    days = [] if since is None else [Where("day", ">=", day_text(since, "since"))]
    if until is not None:
        days.append(Where("day", "<=", day_text(until, "until")))
    if thread is not None:
        yield from existing(core, thread, "audit")
    core = core.read_barrier()
    if thread is None and prices is None and core.authorize is None and by not in {"thread", "run", "label"}:
        # One row for each day and group, for any number of threads.
        group = "total" if by == "day" else by
        where = (Where("tenant", "=", core.tenant), Where("by", "=", group), *days)
        rows = yield from core.models.select(USAGE, Query("cost", where))
        return _grouped(rows, by, "day" if by == "day" else "value")
    if thread is not None:
        rows = yield from _rows_for_thread(core, thread, days)
        if prices is not None:
            streams = [core.stream(each) for each in dict.fromkeys([thread, *(row["thread_id"] for row in rows)])]
            again = yield from read(partial(_priced_again, core, streams, days, prices))
            rows = [row for row in again if thread in {row["for_thread"], row["thread_id"]}]
    else:
        if prices is not None:
            rows = yield from read(partial(_priced_again, core, None, days, prices))
        else:
            of_permitted = of_threads((yield from few_permitted(core, "audit")), "for_thread")
            where = (Where("tenant", "=", core.tenant), *days, *of_permitted)
            rows = yield from core.models.select(USAGE, Query("run_cost", where))
        rows = [*(yield from permitted(core, "audit", rows, itemgetter("for_thread")))]
    if by == "label":
        values = yield from _labels(core, label or "", {row["for_thread"] for row in rows})
        rows = [{**row, "label": values.get(row["for_thread"])} for row in rows]
    return _grouped(rows, by, {"thread": "for_thread", "run": "for_run"}.get(by, by))


def _rows_for_thread(core: Core, thread: str, days: list[Where]) -> Operation[list[RowValues]]:
    """The rows of a thread, with those of the inner agents that its runs asked."""
    of_tenant = (Where("tenant", "=", core.tenant), *days)
    rows = yield from core.models.select(USAGE, Query("run_cost", (*of_tenant, Where("for_thread", "=", thread))))
    own = yield from core.models.select(USAGE, Query("run_cost", (*of_tenant, Where("thread_id", "=", thread))))
    return [*rows, *(row for row in own if row["for_thread"] != thread)]  # it may be of an inner agent itself


def _labels(core: Core, name: str, threads: set[str]) -> Operation[dict[str, Any]]:
    """The value of a label of each thread that has it now."""
    where = (Where("tenant", "=", core.tenant), Where("name", "=", name), Where("newest", "=", 1))
    rows = yield from core.models.select(DIRECTORY, Query("label", where, columns=("thread_id", "value")))
    return {row["thread_id"]: row["value"] for row in rows if row["thread_id"] in threads}


def _grouped(rows: Iterable[RowValues], by: CostsBy, column: str) -> list[Costs]:
    groups: dict[Any, dict[str, int]] = defaultdict(lambda: dict.fromkeys(COUNTED, 0))
    of: dict[Any, Any] = {}
    for row in rows:
        value = None if by == "total" else row[column]
        key = str(value) if isinstance(value, dict | list) else value
        of[key] = value if value != "" else None
        for name in COUNTED:
            groups[key][name] += row[name]
    if by == "total":
        groups[None], of[None] = groups[None], None  # also without any call
    found = [_costs(of[key], sums) for key, sums in groups.items()]
    if by == "day":
        return sorted((each._replace(of=date.fromisoformat(each.of)) for each in found), key=lambda each: each.of)
    return sorted(found, key=lambda each: (-(each.cost or 0), -each.calls, str(each.of)))


def _costs(of: Any, sums: Mapping[str, int]) -> Costs:
    tokens = {name: sums[name] for name in Costs._fields if name.endswith("_tokens")}
    is_known = not sums["calls"] or sums["unpriced"] < sums["calls"]
    cost = Decimal(sums["cost"]) / TRILLION if is_known else None
    return Costs(of=of, calls=sums["calls"], cost=cost, unpriced_calls=sums["unpriced"], **tokens)


# From the log, with other prices


def _priced_again(core: Core, streams: Sequence[str] | None, days: list[Where], prices: Prices) -> list[RowValues]:
    """The rows of the calls in the log, or in these streams, each priced by the list at the time of the call."""
    pricing = _Pricing(core.tenant, prices)
    if streams is None:
        pricing.add(_pages(core.log.recorded_after, attrgetter("position")))
    else:
        logs = (_pages(partial(core.log.recorded_of, each), attrgetter("version")) for each in streams)
        pricing.add(merge(*logs, key=attrgetter("position")))  # callers before those that they asked
    first = next((each.value for each in days if each.is_ == ">="), "")
    last = next((each.value for each in days if each.is_ == "<="), "9")
    return [row for row in pricing.rows if first <= row["day"] <= last]


def _pages(
    read_page: Callable[[int, int], Sequence[Recorded | Unreadable]], place: Callable[[Recorded | Unreadable], int]
) -> Iterator[Recorded | Unreadable]:
    """All events that a function reads page by page."""
    after = 0
    while page := read_page(after, _AT_ONCE):
        yield from page
        after = place(page[-1])


class _Pricing:
    """The rows of the projection for the calls of a tenant, with the costs of a price list."""

    def __init__(self, tenant: str, prices: Prices) -> None:
        self.rows: list[RowValues] = []
        self._tenant = tenant
        self._prices = prices
        self._runs: dict[Any, RowValues] = {}
        self._links: dict[tuple[Any, ...], RowValues] = {}
        self._providers: dict[str, Any] = {}

    def get(self, table: str, *key: Any) -> RowValues | None:
        """The row of the newest run of a thread, or of a link between two threads."""
        return self._runs.get(key[-1]) if table == "run" else self._links.get(key)

    def select(self, query: Query) -> list[RowValues]:
        """There are no other rows."""
        del query
        return []

    def add(self, events: Iterable[Recorded | Unreadable]) -> None:
        """Price the calls among these events, which come in the order of the log."""
        for event in events:
            if isinstance(event, Unreadable) or event.kind != "thread" or event.tenant != self._tenant:
                continue
            if event.type in COST_EVENTS and event.data is not None:
                self._add(event, event.data)

    def _add(self, event: Recorded, data: dict[str, Any]) -> None:
        if event.type == "model-called":
            self._providers[event.thread_id] = data.get("provider")
        priced = event._replace(data={**data, "cost": self._cost(event, data)})
        for change in cost_changes(priced, self):
            if change.table == "run":
                self._runs[event.thread_id] = {**self._runs.get(event.thread_id, {}), **change.values}
            elif change.table == "link":
                self._links[tuple(change.values.values())] = {**change.values}
            elif change.table == "run_cost":
                self.rows.append({**dict.fromkeys(COUNTED, 0), **change.values})

    def _cost(self, event: Recorded, data: dict[str, Any]) -> JsonObject | None:
        if event.type != "model-answered" or data.get("usage") is None:
            return None
        model = data.get("model") or self._runs.get(event.thread_id, {}).get("model") or ""
        cost = cost_of(
            self._prices,
            TokenUsage.model_validate(data["usage"]),
            model=model,
            provider=self._providers.get(event.thread_id),
            at=to_time(event.recorded_at),
        )
        return None if cost is None else cost.model_dump()
