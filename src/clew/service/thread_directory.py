"""The directory of threads: listing them, drawing the tree of their forks, and finding one by the start of its id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from clew.domain.errors import AmbiguousThreadError, InvalidContentError, UnknownThreadError
from clew.domain.event_types import Status
from clew.domain.events import to_microseconds, to_time
from clew.domain.fork_tree import Branch, BranchCheckpoint, branches
from clew.domain.json_values import JsonObject, check_json
from clew.domain.projection import Query, RowValues, Where
from clew.domain.streams import parse_stream_name
from clew.projections.directory import comparable
from clew.service.authorization import check, permitted
from clew.service.core import Core, load
from clew.service.effects import Operation, Page, Pages, read
from clew.service.thread_queries import PAGE, ThreadSummary, existing, logged_forks

Order: TypeAlias = Literal["begun", "updated"]

DIRECTORY = "directory"

ROWS = 500
"""Rows that are read at once to draw trees, and threads that one query names."""

CANDIDATES = 5
"""Most threads that the error for an ambiguous prefix names."""

FEW = 1_000
"""Most threads that are sorted in memory: no index has threads of a label or parent in the order of their change."""

FIRST = -(2**63)
"""Less than every position and time."""

LAST = 2**63 - 1
"""Greater than every position and time."""


class _Place(NamedTuple):
    """The place of a thread in both orders: the time of its last change, and the position where it began."""

    updated_at: int
    begun: int


class _Filter(NamedTuple):
    """The filter and the order of a list of threads."""

    where: tuple[Where, ...]
    labels: tuple[tuple[str, Any], ...]
    has_parent: bool
    order: Order
    newest_first: bool
    columns: Sequence[str]
    """The columns that are read in order, none for all.

    Many threads may be read to find those with a label. An index has their ids and places, so their rows are not read.
    """

    def ordered(self, *columns: str) -> list[str]:
        """The order by these columns."""
        return [f"-{column}" for column in columns] if self.newest_first else list(columns)

    def beyond(self, column: str, value: int | None) -> Where:
        """The condition that a row comes after a value of a column; all rows come after None."""
        if self.newest_first:
            return Where(column, "<", LAST if value is None else value)
        return Where(column, ">", FIRST if value is None else value)


def threads(
    core: Core,
    *,
    status: Status | None = None,
    labels: Mapping[str, Any] | None = None,
    parent: str | None = None,
    order: Order = "begun",
    newest_first: bool = False,
    limit: int | None = None,
    after: ThreadSummary | str | None = None,
) -> Pages[ThreadSummary]:
    """The threads that match, a page at a time. Raises InvalidContentError for a filter that no thread can match."""
    if status is not None and status not in get_args(Status):
        raise InvalidContentError(f"status: {status!r} is not a status. Use one of: {', '.join(get_args(Status))}.")
    if order not in get_args(Order):
        raise InvalidContentError(f"order: {order!r} is not an order. Use one of: {', '.join(get_args(Order))}.")
    where = [Where("tenant", "=", core.tenant)]
    if parent is not None:
        where.append(Where("parent_id", "=", parent))
    if status is not None:
        where.append(Where("status", "=", status))
    if labels is not None and not isinstance(labels, Mapping):
        raise InvalidContentError(f"labels: {type(labels).__name__} is not a mapping. Give the values by their names.")
    for name, value in labels.items() if labels else ():
        if value is None:
            raise InvalidContentError(f"labels: {name!r} is None. No label is None; name the labels that a thread has.")
    if labels:
        check_json(dict(labels), "labels")
    place = ("thread_id", "begun") if order == "begun" else ("thread_id", "updated_at", "begun")
    named = tuple((labels or {}).items())
    wanted = _Filter(tuple(where), named, parent is not None, order, newest_first, place if named else ())
    return Pages[ThreadSummary](partial(_threads, core, wanted), after, limit)


def _threads(core: Core, wanted: _Filter, after: object, limit: int) -> Operation[Page[ThreadSummary, _Place]]:
    core = core.read_barrier()
    place = None if after is None else (yield from _place(core, after))
    ids = (yield from _few_ids(core, wanted)) if wanted.labels or wanted.has_parent else None
    if ids is not None:
        rows = (yield from _sorted(core, wanted, ids, place))[:limit]
    elif wanted.order == "updated":
        rows = yield from _by_change(core, wanted, place, limit)
    else:
        beyond, order = wanted.beyond("begun", place and place.begun), wanted.ordered("begun")
        query = Query("thread", (*_where(core, wanted), beyond), order, limit, wanted.columns)
        rows = yield from _rows(core, _by_label(core, wanted, query) if wanted.labels else query)
    next_place = _Place(rows[-1].get("updated_at") or 0, rows[-1]["begun"]) if len(rows) == limit else None
    if ids is not None or wanted.labels:
        rows = yield from _named(core, wanted, [row["thread_id"] for row in rows])
    # If the actor may not see all of these threads, the caller reads on until the page is full.
    return (yield from _summaries(core, (yield from _permitted(core, rows)))), next_place


def _by_label(core: Core, wanted: _Filter, query: Query) -> Query:
    """The query, without other filters, by the index of labels: for each label it has the order of the threads."""
    if len(wanted.where) > 1:
        return query
    (name, value), *others = wanted.labels
    where = (*_label_where(core, name, value), query.where[-1], *[_with_label(core, *other) for other in others])
    return query._replace(table="label", where=where)


def _few_ids(core: Core, wanted: _Filter) -> Operation[list[str] | None]:
    """The ids of threads with one of the labels, or with the parent, if they are few enough to be sorted in memory.

    For many threads, reading all of them in order is faster.
    """
    queries = [Query("label", _label_where(core, *label), (), FEW + 1, ["thread_id"]) for label in wanted.labels]
    if wanted.has_parent:
        # In the order of an index that begins with the parent.
        queries.append(Query("thread", wanted.where, ["begun"], FEW + 1, ["thread_id"]))
    for query in queries:
        rows = yield from _rows(core, query)
        if len(rows) <= FEW:
            return [row["thread_id"] for row in rows]
    return None


def _sorted(core: Core, wanted: _Filter, ids: Sequence[str], place: _Place | None) -> Operation[list[RowValues]]:
    """The matching threads with these ids, after a place, in order."""
    columns = ["tenant", "thread_id", "updated_at", "begun", "status", "parent_id"]
    several = len(wanted.labels) + wanted.has_parent > 1  # otherwise all of them have the only label, or the parent
    rows = yield from _named(core, wanted, ids, [*columns, "labels"] if several else columns)
    if several:
        rows = [row for row in rows if all(_has(row, *label) for label in wanted.labels)]

    def key(row: RowValues) -> tuple[int, int]:
        return (0 if wanted.order == "begun" else row["updated_at"] or 0, row["begun"] or 0)

    rows.sort(key=key, reverse=wanted.newest_first)
    if place is None:
        return rows
    start = (0 if wanted.order == "begun" else place.updated_at, place.begun)
    return [row for row in rows if (key(row) < start if wanted.newest_first else key(row) > start)]


def _by_change(core: Core, wanted: _Filter, place: _Place | None, limit: int) -> Operation[list[RowValues]]:
    """Rows in the order of their last change; rows of the same moment in the order in which they began."""
    where = _where(core, wanted)
    rows: list[RowValues] = []
    if place is not None:
        same = (*where, Where("updated_at", "=", place.updated_at), wanted.beyond("begun", place.begun))
        rows = yield from _rows(core, Query("thread", same, wanted.ordered("begun"), limit, wanted.columns))
    if len(rows) < limit:
        where = (*where, wanted.beyond("updated_at", place and place.updated_at))
        order = wanted.ordered("updated_at", "begun")
        rows += yield from _rows(core, Query("thread", where, order, limit - len(rows), wanted.columns))
    return rows


def forks(core: Core, thread_id: str) -> Operation[list[ThreadSummary]]:
    """The threads that were forked from this one, in the order of their creation.

    They are read from the log if this process cannot bring the directory up to date, which other reads do not need.
    """
    yield from existing(core, thread_id)
    core = core.read_barrier()
    if not core.models.maintains(DIRECTORY):
        return (yield from logged_forks(core, thread_id))
    where = (Where("tenant", "=", core.tenant), Where("parent_id", "=", thread_id))
    rows = yield from _rows(core, Query("thread", where, ["begun"]))
    return (yield from _summaries(core, (yield from _permitted(core, rows))))


def _named(core: Core, wanted: _Filter, ids: Sequence[str], columns: Sequence[str] = ()) -> Operation[list[RowValues]]:
    """The threads with these ids, in this order, except those that a condition excludes.

    The database finds them by their ids only: with an order or another condition, SQLite may read all threads.
    """
    rows: dict[str, RowValues] = {}
    for start in range(0, len(ids), ROWS):
        where = (Where("tenant", "=", core.tenant), Where("thread_id", "in", ids[start : start + ROWS]))
        found = yield from _rows(core, Query("thread", where, columns=columns))
        rows |= {row["thread_id"]: row for row in found if all(row[each.column] == each.value for each in wanted.where)}
    return [rows[id_] for id_ in ids if id_ in rows]


def _where(core: Core, wanted: _Filter) -> tuple[Where, ...]:
    return (*wanted.where, *[_with_label(core, *label) for label in wanted.labels])


def _place(core: Core, after: object) -> Operation[_Place | None]:
    """The place after which a page begins; a thread can name it. Raises UnknownThreadError.

    Raises NotAuthorizedError for a thread that the actor may not see.
    """
    if isinstance(after, _Place):
        return after
    id_ = after.id if isinstance(after, ThreadSummary) else str(after)
    yield from check(core, "list", id_)
    row = yield from _row(core, id_)
    updated_at = row["updated_at"] or 0
    if isinstance(after, ThreadSummary) and after.updated_at != to_time(updated_at):
        updated_at = to_microseconds(after.updated_at)  # the thread has changed since that page
    return _Place(updated_at, row["begun"])


def _label_where(core: Core, name: str, value: Any) -> tuple[Where, ...]:
    return (
        Where("tenant", "=", core.tenant),
        Where("name", "=", name),
        Where("same", "=", comparable(value)),
        Where("newest", "=", 1),
    )


def _has(row: RowValues, name: str, value: Any) -> bool:
    """Whether a thread has a label; values are equal when their JSON is, as in the index."""
    labels = row["labels"]
    return name in labels and comparable(labels[name]) == comparable(value)


def _with_label(core: Core, name: str, value: Any) -> Where:
    return Where("thread_id", "in", Query("label", _label_where(core, name, value), columns=["thread_id"]))


def _rows(core: Core, query: Query) -> Operation[list[RowValues]]:
    return core.models.select(DIRECTORY, query)


def _row(core: Core, thread_id: str) -> Operation[RowValues]:
    """The row of a thread. Raises UnknownThreadError."""
    core.stream(thread_id)  # raises InvalidNameError
    where = (Where("tenant", "=", core.tenant), Where("thread_id", "=", thread_id))
    rows = yield from _rows(core, Query("thread", where))
    if not rows or rows[0]["begun"] is None:
        raise UnknownThreadError(thread_id)
    return rows[0]


def _permitted(core: Core, rows: Sequence[RowValues]) -> Operation[Sequence[RowValues]]:
    """The rows of threads that the actor may see in a list."""
    return permitted(core, "list", rows, itemgetter("thread_id"))


def _summaries(core: Core, rows: Sequence[RowValues]) -> Operation[list[ThreadSummary]]:
    marks = yield from _marks(core, rows)
    return [_summary(row, marks[row["thread_id"]]) for row in rows]


def _marks(core: Core, rows: Sequence[RowValues]) -> Operation[dict[str, list[RowValues]]]:
    """The checkpoints of threads, inherited ones too, in the order in which they were made."""
    heads = {row["thread_id"]: row["version"] for row in rows}
    marks: dict[str, list[RowValues]] = {id_: [] for id_ in heads}
    ids = list(heads)
    for start in range(0, len(ids), ROWS):
        where = (Where("tenant", "=", core.tenant), Where("thread_id", "in", ids[start : start + ROWS]))
        for mark in (yield from _rows(core, Query("checkpoint", where, ["version"]))):
            if mark["version"] <= heads[mark["thread_id"]]:  # later ones were made after the thread was read
                marks[mark["thread_id"]].append(mark)
    return marks


def _summary(row: RowValues, marks: Sequence[RowValues]) -> ThreadSummary:
    metadata: JsonObject = row["metadata"] or {}
    return ThreadSummary(
        id=row["thread_id"],
        title=row["title"],
        status=row["status"],
        version=row["version"],
        messages=row["messages"] or 0,
        parent_id=row["parent_id"],
        forked_at=row["forked_at"],
        head=row["head"],
        created_at=to_time(row["created_at"]),
        updated_at=to_time(row["updated_at"] or 0),
        metadata=metadata if row["source_id"] is None else {**metadata, "source_id": row["source_id"]},
        labels=row["labels"],
        checkpoints={mark["name"]: mark["at"] for mark in marks},
        imported=bool(row["imported"]),
        kind=row.get("kind") or "local",
    )


# Trees


def tree(core: Core, thread_id: str | None, *, newest_first: bool = False) -> Pages[Branch[ThreadSummary]]:
    """The tree that a thread belongs to, or all trees one after another; each depth first."""
    if thread_id is not None:
        return Pages(partial(_one_tree, core, thread_id))
    return Pages(partial(_trees, core, newest_first=newest_first))


def _one_tree(
    core: Core, thread_id: str, _after: object, _limit: int
) -> Operation[Page[Branch[ThreadSummary], object]]:
    core = core.read_barrier()
    yield from check(core, "list", thread_id)
    row = yield from _row(core, thread_id)
    rows = yield from _rows(core, Query("thread", _in_tree(core, row["tree"]), ["begun"]))
    return (yield from _branches(core, (yield from _permitted(core, rows)))), None


def _trees(
    core: Core,
    after: int | None,
    _limit: int,
    *,
    newest_first: bool,
) -> Operation[Page[Branch[ThreadSummary], int]]:
    """Whole trees: as many as fit into a page of rows, and at least one."""
    core = core.read_barrier()
    sign = "-" if newest_first else ""
    place = Where("tree", "<" if newest_first else ">", (LAST if newest_first else FIRST) if after is None else after)
    where = (Where("tenant", "=", core.tenant), place)
    rows = yield from _rows(core, Query("thread", where, [f"{sign}tree", f"{sign}begun"], ROWS))
    if not rows:
        return [], None
    last = rows[-1]["tree"]
    if len(rows) == ROWS:  # the last tree may continue on the next page
        whole = [row for row in rows if row["tree"] != last]
        rows = whole or (yield from _rows(core, Query("thread", _in_tree(core, last), [f"{sign}begun"])))
        last = rows[-1]["tree"]
    trees: list[Branch[ThreadSummary]] = []
    for _, rows_of_tree in groupby((yield from _permitted(core, rows)), key=itemgetter("tree")):
        trees += yield from _branches(core, sorted(rows_of_tree, key=itemgetter("begun")))
    return trees, last


def _in_tree(core: Core, begun: int) -> tuple[Where, ...]:
    return Where("tenant", "=", core.tenant), Where("tree", "=", begun)


def _branches(core: Core, rows: Sequence[RowValues]) -> Operation[list[Branch[ThreadSummary]]]:
    """The branches of one tree, from its rows in the order in which the threads began."""
    marks = yield from _marks(core, rows)
    own = {
        row["thread_id"]: [
            BranchCheckpoint(mark["name"], mark["at"])
            for mark in marks[row["thread_id"]]
            if mark["version"] > (row["forked_at"] or 0)
        ]
        for row in rows
    }
    return list(branches([_summary(row, marks[row["thread_id"]]) for row in rows], own))


# By the start of an id


def find(core: Core, prefix: str) -> Operation[str]:
    """The id of the thread with this id, or else of the only thread whose id has this prefix.

    Threads that the actor may not see do not count. Raises UnknownThreadError, AmbiguousThreadError or
    InvalidNameError.
    """
    control = yield from load(core, prefix)
    if control.version and (yield from permitted(core, "list", [prefix], lambda id_: id_)):
        return prefix
    stream_prefix = core.prefix(prefix)
    names: list[str] = []
    after, limit, more = 0, CANDIDATES + 1, True
    while more and len(names) <= CANDIDATES:
        streams = yield from read(partial(core.log.streams, prefix=stream_prefix, after=after, limit=limit))
        ids = [name.id for stream in streams if (name := parse_stream_name(stream.name)) is not None]
        names += yield from permitted(core, "list", ids, lambda id_: id_)
        more = len(streams) == limit
        # Larger pages each time: the actor may be allowed to see only a few of them.
        after, limit = streams[-1].key if streams else after, min(2 * limit, PAGE)
    if not names:
        raise UnknownThreadError(prefix)
    if len(names) > 1:
        raise AmbiguousThreadError(prefix, names[:CANDIDATES], more=len(names) > CANDIDATES)
    return names[0]
