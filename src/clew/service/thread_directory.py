"""Listing threads and drawing their forks, from the directory of threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from clew.domain.errors import AmbiguousThreadError, InvalidContentError, UnknownThreadError
from clew.domain.event_types import Status
from clew.domain.events import to_microseconds, to_time
from clew.domain.json_values import JsonObject, check_json
from clew.domain.names import parse_stream_name
from clew.domain.projection import Query, RowValues, Where
from clew.domain.views.fork_tree import Branch, Mark, branches
from clew.projections.directory import comparable
from clew.service.authorization import check, permitted
from clew.service.core import Core, load
from clew.service.operations import Operation, read
from clew.service.pages import Page, Pages
from clew.service.thread_queries import PAGE, ThreadSummary

Order: TypeAlias = Literal["begun", "updated"]

DIRECTORY = "directory"

ROWS = 500
"""Rows that are read at once to draw trees, and threads that one query names."""

CANDIDATES = 5
"""Threads that an ambiguous prefix is answered with."""

FEW = 1_000
"""Threads that are sorted here: by label or by parent, their index has another order than that of their last change."""

FIRST = -1
"""Below every place and every time."""

LAST = 2**63 - 1
"""Above them."""


class _Place(NamedTuple):
    """Where a thread stands in either order: when it was changed last, and at which position it began."""

    updated_at: int
    begun: int


class _Wanted(NamedTuple):
    """Which threads are listed, and in which order."""

    where: tuple[Where, ...]
    labels: tuple[tuple[str, Any], ...]
    order: Order
    newest_first: bool


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
    """The threads that are asked for, a page at a time. Raises InvalidContentError for what no thread can have."""
    if status is not None and status not in get_args(Status):
        raise InvalidContentError(f"status: {status!r} is none. There are: {', '.join(get_args(Status))}.")
    if order not in get_args(Order):
        raise InvalidContentError(f"order: {order!r} is none. There are: {', '.join(get_args(Order))}.")
    where = [Where("tenant", "=", core.tenant)]
    if parent is not None:
        where.append(Where("parent_id", "=", parent))
    if status is not None:
        where.append(Where("status", "=", status))
    wanted = _Wanted(tuple(where), _labels(labels or {}), order, newest_first)
    return Pages[ThreadSummary](partial(_threads, core, wanted), after, limit)


def _labels(labels: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    for name, value in labels.items():
        if value is None:
            raise InvalidContentError(f"labels: {name!r} is None. No label is; threads are found by those they have.")
    check_json(dict(labels), "labels")
    return tuple(labels.items())


def _threads(core: Core, wanted: _Wanted, after: object, limit: int) -> Operation[Page[ThreadSummary, _Place]]:
    core = core.read_barrier()
    place = yield from _place(core, after)
    few = yield from _few(core, wanted)
    if few is not None:
        rows = yield from _sorted(core, wanted, few, place)
    elif wanted.order == "begun" and wanted.labels and len(wanted.where) == 1:
        return (yield from _by_label(core, wanted, place, limit))
    elif wanted.order == "begun":
        where = (*_where(core, wanted), _beyond(wanted, "begun", place and place.begun))
        rows = yield from _rows(core, Query("thread", where, [_sign(wanted) + "begun"], limit))
    else:
        rows = yield from _by_change(core, wanted, place, limit)
    rows = rows[:limit]
    found = yield from _summaries(core, (yield from _shown(core, rows)))
    return found, _place_of(rows[-1]) if len(rows) == limit else None


def _by_label(core: Core, wanted: _Wanted, place: _Place | None, limit: int) -> Operation[Page[ThreadSummary, _Place]]:
    """Threads in the order in which they began, by the index of a label, which has it however many there are."""
    (name, value), *others = wanted.labels
    beyond = _beyond(wanted, "begun", place and place.begun)
    where = (*_having(core, name, value), beyond, *(_with_label(core, *other) for other in others))
    query = Query("label", where, [_sign(wanted) + "begun"], limit, ["thread_id", "begun"])
    found = yield from _rows(core, query)
    rows = yield from _named(core, wanted.where, [row["thread_id"] for row in found])
    rows.sort(key=itemgetter("begun"), reverse=wanted.newest_first)
    summaries = yield from _summaries(core, (yield from _shown(core, rows)))
    return summaries, _Place(0, found[-1]["begun"]) if len(found) == limit else None


def _shown(core: Core, rows: Sequence[RowValues]) -> Operation[Sequence[RowValues]]:
    """The threads that who acts may see in a list. A page that is short of some is filled from the next ones."""
    return (yield from permitted(core, "list", rows, itemgetter("thread_id")))


def _few(core: Core, wanted: _Wanted) -> Operation[list[str] | None]:
    """The threads with a label that is asked for, or with the parent, if they are few: then they are soon sorted.

    Where they are many, to go through all threads in order is the shorter way.
    """
    queries = [Query("label", _having(core, *label), (), FEW + 1, ["thread_id"]) for label in wanted.labels]
    if any(where.column == "parent_id" for where in wanted.where):
        # In the order of an index that begins with the parent.
        queries.append(Query("thread", wanted.where, ["begun"], FEW + 1, ["thread_id"]))
    for query in queries:
        rows = yield from _rows(core, query)
        if len(rows) <= FEW:
            return [row["thread_id"] for row in rows]
    return None


def _sorted(core: Core, wanted: _Wanted, ids: Sequence[str], place: _Place | None) -> Operation[list[RowValues]]:
    """Those of some threads that are asked for, after a place, in order."""
    found = yield from _named(core, wanted.where, ids)
    rows = [row for row in found if all(_has(row, *label) for label in wanted.labels)]

    def key(row: RowValues) -> tuple[int, int]:
        return (0 if wanted.order == "begun" else row["updated_at"] or 0, row["begun"] or 0)

    rows.sort(key=key, reverse=wanted.newest_first)
    if place is None:
        return rows
    there = (0 if wanted.order == "begun" else place.updated_at, place.begun)
    return [row for row in rows if (key(row) < there if wanted.newest_first else key(row) > there)]


def _by_change(core: Core, wanted: _Wanted, place: _Place | None, limit: int) -> Operation[list[RowValues]]:
    """Rows in the order of their last change, and of those of one moment as they began."""
    where = _where(core, wanted)
    sign = _sign(wanted)
    rows: list[RowValues] = []
    if place is not None:
        same = (*where, Where("updated_at", "=", place.updated_at), _beyond(wanted, "begun", place.begun))
        rows = yield from _rows(core, Query("thread", same, [sign + "begun"], limit))
    if len(rows) < limit:
        beyond = _beyond(wanted, "updated_at", place and place.updated_at)
        order = [f"{sign}updated_at", f"{sign}begun"]
        rows += yield from _rows(core, Query("thread", (*where, beyond), order, limit - len(rows)))
    return rows


def _named(core: Core, where: Sequence[Where], ids: Sequence[str]) -> Operation[list[RowValues]]:
    """Of the threads with these ids those that are asked for. Asked to sort them, SQLite would go through all."""
    rows: list[RowValues] = []
    for start in range(0, len(ids), ROWS):
        query = Query("thread", (*where, Where("thread_id", "in", ids[start : start + ROWS])))
        rows += yield from _rows(core, query)
    return rows


def _where(core: Core, wanted: _Wanted) -> tuple[Where, ...]:
    return (*wanted.where, *(_with_label(core, *label) for label in wanted.labels))


def _place_of(row: RowValues) -> _Place:
    return _Place(row["updated_at"] or 0, row["begun"])


def _place(core: Core, after: object) -> Operation[_Place | None]:
    """The place after which a page begins, which may be said by a thread. Raises UnknownThreadError.

    NotAuthorizedError for one that may not be seen.
    """
    if after is None or isinstance(after, _Place):
        return after
    id_ = after.thread_id if isinstance(after, ThreadSummary) else str(after)
    yield from check(core, "list", id_)
    row = yield from _row(core, id_)
    changed = to_microseconds(after.updated_at) if isinstance(after, ThreadSummary) else row["updated_at"]
    return _Place(changed or 0, row["begun"])


def _sign(wanted: _Wanted) -> str:
    return "-" if wanted.newest_first else ""


def _beyond(wanted: _Wanted, column: str, value: int | None) -> Where:
    if wanted.newest_first:
        return Where(column, "<", LAST if value is None else value)
    return Where(column, ">", FIRST if value is None else value)


def _having(core: Core, name: str, value: Any) -> tuple[Where, ...]:
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
    return Where("thread_id", "in", Query("label", _having(core, name, value), columns=["thread_id"]))


def _rows(core: Core, query: Query) -> Operation[list[RowValues]]:
    return (yield from core.models.select(DIRECTORY, query))


def _row(core: Core, thread_id: str) -> Operation[RowValues]:
    """What the directory has of a thread. Raises UnknownThreadError."""
    core.stream(thread_id)  # refuses what can be no id
    where = (Where("tenant", "=", core.tenant), Where("thread_id", "=", thread_id))
    rows = yield from _rows(core, Query("thread", where))
    if not rows or rows[0]["begun"] is None:
        raise UnknownThreadError(thread_id)
    return rows[0]


def _summaries(core: Core, rows: Sequence[RowValues]) -> Operation[list[ThreadSummary]]:
    marks = yield from _marks(core, rows)
    return [_summary(row, marks[row["thread_id"]]) for row in rows]


def _marks(core: Core, rows: Sequence[RowValues]) -> Operation[dict[str, list[RowValues]]]:
    """The checkpoints of threads, inherited ones too, in the order in which they were made."""
    heads = {row["thread_id"]: row["version"] for row in rows}
    found: dict[str, list[RowValues]] = {id_: [] for id_ in heads}
    ids = list(heads)
    for start in range(0, len(ids), ROWS):
        where = (Where("tenant", "=", core.tenant), Where("thread_id", "in", ids[start : start + ROWS]))
        for mark in (yield from _rows(core, Query("checkpoint", where, ["version"]))):
            if mark["version"] <= heads[mark["thread_id"]]:  # and not made since the thread was read
                found[mark["thread_id"]].append(mark)
    return found


def _summary(row: RowValues, marks: Sequence[RowValues]) -> ThreadSummary:
    metadata: JsonObject = row["metadata"] or {}
    return ThreadSummary(
        thread_id=row["thread_id"],
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
    """The tree that a thread belongs to, or one tree after the other, each depth first."""
    if thread_id is not None:
        return Pages(partial(_one_tree, core, thread_id))
    return Pages(partial(_trees, core, newest_first))


def _one_tree(
    core: Core, thread_id: str, _after: object, _limit: int
) -> Operation[Page[Branch[ThreadSummary], object]]:
    core = core.read_barrier()
    yield from check(core, "list", thread_id)
    row = yield from _row(core, thread_id)
    rows = yield from _rows(core, Query("thread", _in_tree(core, row["tree"]), ["begun"]))
    return (yield from _branches(core, (yield from _shown(core, rows)))), None


def _trees(
    core: Core,
    newest_first: bool,  # noqa: FBT001 - bound above
    after: int | None,
    _limit: int,
) -> Operation[Page[Branch[ThreadSummary], int]]:
    """Whole trees: as many as there are in a page of rows, and at least one."""
    core = core.read_barrier()
    sign = "-" if newest_first else ""
    place = Where("tree", "<" if newest_first else ">", (LAST if newest_first else FIRST) if after is None else after)
    where = (Where("tenant", "=", core.tenant), place)
    rows = yield from _rows(core, Query("thread", where, [f"{sign}tree", f"{sign}begun"], ROWS))
    if not rows:
        return [], None
    last = rows[-1]["tree"]
    if len(rows) == ROWS:  # the last one may go on
        whole = [row for row in rows if row["tree"] != last]
        rows = whole or (yield from _rows(core, Query("thread", _in_tree(core, last), [f"{sign}begun"])))
        last = rows[-1]["tree"]
    found: list[Branch[ThreadSummary]] = []
    for _, those in groupby((yield from _shown(core, rows)), key=itemgetter("tree")):
        found += yield from _branches(core, sorted(those, key=itemgetter("begun")))
    return found, last


def _in_tree(core: Core, begun: int) -> tuple[Where, ...]:
    return Where("tenant", "=", core.tenant), Where("tree", "=", begun)


def _branches(core: Core, rows: Sequence[RowValues]) -> Operation[list[Branch[ThreadSummary]]]:
    """The branches of one tree, from its rows in the order in which the threads began."""
    marks = yield from _marks(core, rows)
    own = {
        row["thread_id"]: [
            Mark(mark["name"], mark["at"])
            for mark in marks[row["thread_id"]]
            if mark["version"] > (row["forked_at"] or 0)
        ]
        for row in rows
    }
    return list(branches([_summary(row, marks[row["thread_id"]]) for row in rows], own))


# By the beginning of an id


def find(core: Core, prefix: str) -> Operation[str]:
    """The id of the one thread that is named so, or else whose id begins so; others' are not looked at.

    Raises UnknownThreadError, AmbiguousThreadError or InvalidNameError.
    """
    control = yield from load(core, prefix)
    if control.version and (yield from permitted(core, "list", [prefix], lambda id_: id_)):
        return prefix
    begun = core.prefix(prefix)
    names: list[str] = []
    after, limit, more = 0, CANDIDATES + 1, True
    while more and len(names) <= CANDIDATES:
        streams = yield from read(partial(core.log.streams, prefix=begun, after=after, limit=limit))
        found = [name.id for stream in streams if (name := parse_stream_name(stream.name)) is not None]
        names += yield from permitted(core, "list", found, lambda id_: id_)
        more = len(streams) == limit
        after, limit = streams[-1].key if streams else after, min(2 * limit, PAGE)  # most may be others'
    if not names:
        raise UnknownThreadError(prefix)
    if len(names) > 1:
        raise AmbiguousThreadError(prefix, names[:CANDIDATES], more=len(names) > CANDIDATES)
    return names[0]
