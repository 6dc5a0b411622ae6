"""The directory of threads: listing them, drawing the tree of their forks, and finding one by the start of its id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, get_args

from clew.domain.authorization import Action, ThreadFilter
from clew.domain.errors import (
    AmbiguousThreadError,
    InvalidContentError,
    InvalidProjectionError,
    ProjectionBehindError,
    UnknownThreadError,
)
from clew.domain.event_types import Status
from clew.domain.events import to_microseconds, to_time
from clew.domain.fork_tree import Branch, BranchCheckpoint, ThreadInTree, branches, containing
from clew.domain.json_values import JsonObject, check_flags, check_json, comparable
from clew.domain.models.client import ThreadKind
from clew.domain.projection import Query, RowValues, SaidWithin, Where
from clew.domain.streams import MAX_LENGTH, parse_stream_name
from clew.service.authorization import check, filter_of, permitted
from clew.service.core import Core, load
from clew.service.effects import Operation, Page, Pages, read
from clew.service.history_reads import PAGE
from clew.service.read_models import DIRECTORY
from clew.service.thread_queries import ThreadSummary, existing, logged_forks

Order: TypeAlias = Literal["begun", "updated"]

ROWS = 500
"""Rows that are read at once to draw trees, and threads that one query names."""

CANDIDATES = 5
"""Most threads that the error for an ambiguous prefix names."""

FEW = 2_000
"""Most threads that are looked up and sorted: no index has threads of a label or parent in the order of change."""

SEPARATELY = 50
"""Most threads whose messages or audit entries are read one thread after the other."""

FIRST = -(2**63)
"""Less than every position and time."""

LAST = 2**63 - 1
"""Greater than every position and time."""


class _Place(NamedTuple):
    """The place of a thread in both orders: the time of its last change, and the position where it began."""

    updated_at: int | None
    begun: int


class _Row(NamedTuple):
    """The row of a thread. Tables of an older version lack some of its values, which are None then.

    Lists, which may be long, have plain tuples of these values: garbage collection looks at named ones again and again.
    """

    thread_id: str
    title: str | None
    status: Status
    version: int
    messages: int | None
    parent_id: str | None
    forked_at: int | None
    head: str
    created_at: int
    updated_at: int | None
    metadata: JsonObject | None
    labels: JsonObject
    imported: int
    source_id: Any
    kind: ThreadKind | None
    first_said: int | None
    last_said: int | None
    begun: int
    tree: int
    marked: int | None


Values: TypeAlias = tuple[Any, ...]
"""The values of a _Row, or of a _Place."""

V = TypeVar("V", bound=Values)

_thread_id, _version, _begun, _marked = (
    itemgetter(_Row._fields.index(name)) for name in ("thread_id", "version", "begun", "marked")
)


class _Filter(NamedTuple):
    """The filter and the order of a list of threads. ``labels`` have the texts that allowed values are compared by."""

    where: tuple[Where, ...]
    labels: tuple[tuple[str, tuple[str, ...]], ...]
    has_parent: bool
    order: Order
    newest_first: bool
    in_range: tuple[Where, ...] = ()
    """The conditions on ids, which ``where`` has, too."""

    def narrowed(self, permitted: ThreadFilter) -> _Filter:
        """The filter for the threads that the actor may see."""
        in_range = _of_prefix(permitted.id_prefix)
        labels = (*self.labels, *permitted.labels)
        return self._replace(where=(*self.where, *in_range), labels=labels, in_range=in_range)

    def ordered(self, *columns: str) -> list[str]:
        """The order by these columns."""
        return [f"-{column}" for column in columns] if self.newest_first else list(columns)

    def beyond(self, column: str, value: int | None) -> Where:
        """The condition that a row comes after a value of a column; all rows come after None."""
        if self.newest_first:
            return Where(column, "<", LAST if value is None else value)
        return Where(column, ">", FIRST if value is None else value)

    @property
    def of_one_label(self) -> bool:
        """Whether the index of labels has exactly these threads, in this order."""
        one_value = len(self.labels) == 1 and len(self.labels[0][1]) == 1
        return one_value and len(self.where) == 1 and self.order == "begun"


def threads(  # noqa: PLR0913 - every filter has its own parameter
    core: Core,
    *,
    status: Status | None = None,
    labels: Mapping[str, Any] | None = None,
    parent: str | None = None,
    order: Order = "begun",
    newest_first: bool = False,
    said: SaidWithin | None = None,
    limit: int | None = None,
    after: ThreadSummary | str | None = None,
) -> Pages[ThreadSummary]:
    """The threads that match, a page at a time. Raises InvalidContentError for a filter that no thread can match.

    A page with ``said`` raises ProjectionBehindError while tables of an older version are read.
    """
    if status is not None and status not in get_args(Status):
        raise InvalidContentError(f"status: {status!r} is not a status. Use one of: {', '.join(get_args(Status))}.")
    if order not in get_args(Order):
        raise InvalidContentError(f"order: {order!r} is not an order. Use one of: {', '.join(get_args(Order))}.")
    if newest_first is not False:  # it is the default, and a list makes no call that it does not need
        check_flags(newest_first=newest_first)
    where = [Where("tenant", "=", core.tenant)]
    if parent is not None:
        where.append(Where("parent_id", "=", parent))
    if status is not None:
        where.append(Where("status", "=", status))
    named = () if labels is None else _named_labels(labels)
    if said is not None:
        where.append(Where("last_said", ">=", FIRST if said.since is None else said.since))
        where.append(Where("first_said", "<", LAST if said.until is None else said.until))
    wanted = _Filter(tuple(where), named, parent is not None, order, newest_first)
    if said is None:
        return Pages[ThreadSummary](partial(_threads, core, wanted), after, limit)
    return Pages[ThreadSummary](partial(_said_threads, core, wanted), after, limit)


def _named_labels(labels: Mapping[str, Any]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The labels that threads must have, with the texts that their values are compared by."""
    if not isinstance(labels, Mapping):
        raise InvalidContentError(f"labels: {type(labels).__name__} is not a mapping. Give the values by their names.")
    for name, value in labels.items():
        if value is None:
            raise InvalidContentError(f"labels: {name!r} is None. No label is None; name the labels that a thread has.")
    check_json(dict(labels), "labels")
    return tuple([(name, (comparable(value),)) for name, value in labels.items()])


def _said_threads(core: Core, wanted: _Filter, after: object, limit: int) -> Operation[Page[ThreadSummary, _Place]]:
    """Threads by when they were said. Raises ProjectionBehindError if tables of an older version are read."""
    try:
        return (yield from _threads(core, wanted, after, limit))
    except InvalidProjectionError:
        raise ProjectionBehindError(
            "said_since, said_until: the directory of an older Clew does not say when threads were said. Wait until it "
            "is rebuilt: `clew project status` shows its version, and `clew rebuild directory` does it at once."
        ) from None


def _threads(core: Core, wanted: _Filter, after: object, limit: int) -> Operation[Page[ThreadSummary, _Place]]:
    core = core.read_barrier()
    if core.authorize is not None and (permitted_threads := (yield from filter_of(core, "list"))) is not None:
        wanted = wanted.narrowed(permitted_threads)
    place = None if after is None else (yield from _place(core, after))
    few: Where | None = None
    of_one_label = bool(wanted.labels) and wanted.of_one_label
    if (wanted.labels or wanted.has_parent or wanted.in_range) and not of_one_label:
        few, wanted = yield from _few(core, wanted)
    # To sort more threads than the page has, the database needs their places only.
    by_place = of_one_label or (few is not None and len(few.value) > limit)
    rows: Sequence[Values]
    if by_place:
        if of_one_label:
            where = (*_label_where(core, *wanted.labels[0]), wanted.beyond("begun", place and place.begun))
            found = yield from _rows(core, Query("label", where, wanted.ordered("begun"), limit, ["begun"]))
            places = [_Place(None, row["begun"]) for row in found]
        else:
            places = list(map(_Place._make, (yield from _page(core, wanted, few, place, limit, _Place))))
        rows = yield from _at(core, wanted, places)
        last = places[-1] if len(places) == limit else None
    else:
        rows = yield from _page(core, wanted, few, place, limit, _Row)
        end = _Row._make(rows[-1]) if len(rows) == limit else None
        last = None if end is None else _Place(end.updated_at, end.begun)
    # If the actor may not see all of these threads, the caller reads on until the page is full.
    return (yield from _summaries(core, (yield from _permitted(core, rows)))), last


def _page(
    core: Core, wanted: _Filter, few: Where | None, place: _Place | None, limit: int, of: type[_Place | _Row]
) -> Operation[Sequence[Values]]:
    """The places or rows of threads after a place, in order; ``few`` names all that match, if they are few."""
    where = wanted.where
    if wanted.labels:
        where += tuple([_with_label(core, *label) for label in wanted.labels])
    if few is not None:
        where += (few,)
    if wanted.order == "updated":
        return _by_change(core, wanted, where, place, limit, of)
    where += (wanted.beyond("begun", place and place.begun),)
    return _values(core, of, Query("thread", where, wanted.ordered("begun"), limit))


def _few(core: Core, wanted: _Filter, column: str = "begun") -> Operation[tuple[Where | None, _Filter]]:
    """The condition on a column that names the threads with one of the labels, or with the parent or prefix.

    It is None if they are too many to be sorted: then reading all threads in order is faster. The filter has what is
    still to be checked of these threads. ``column`` is ``begun``, which is shorter than an id, or ``thread_id``.
    """
    for label in wanted.labels:
        rows = yield from _rows(core, Query("label", _label_where(core, *label), (), FEW + 1, [column]))
        if len(rows) <= FEW:
            others = tuple([each for each in wanted.labels if each != label])
            return Where(column, "in", [row[column] for row in rows]), wanted._replace(labels=others)
    queries: list[Query] = []
    if wanted.has_parent:
        # In the order of an index that begins with the parent.
        queries.append(Query("thread", wanted.where, ["begun"], FEW + 1, [column]))
    if wanted.in_range:
        column = "thread_id"  # which the key has
        queries.append(Query("thread", (wanted.where[0], *wanted.in_range), (), FEW + 1, [column]))
    for query in queries:
        rows = yield from _rows(core, query)
        if len(rows) <= FEW:
            (column,) = query.columns
            return Where(column, "in", [row[column] for row in rows]), wanted
    return None, wanted


def few_permitted(core: Core, action: Action) -> Operation[list[str] | None]:
    """The ids of all threads that the actor's filter permits, if they are few enough; else None.

    Results of other threads need not be read. Those of these threads are checked as usual.
    """
    if core.authorize is None or not core.models.sees_all(DIRECTORY):
        return None
    permitted_threads = yield from filter_of(core, action)
    if permitted_threads is None:
        return None
    everything = _Filter((Where("tenant", "=", core.tenant),), (), has_parent=False, order="begun", newest_first=False)
    few, _ = yield from _few(core, everything.narrowed(permitted_threads), "thread_id")
    return None if few is None else few.value


def of_threads(ids: Sequence[str] | None, column: str = "thread_id") -> tuple[Where, ...]:
    """The condition that a row is of one of these threads; none for None."""
    return () if ids is None else (Where(column, "in", ids),)


def _by_change(
    core: Core, wanted: _Filter, where: tuple[Where, ...], place: _Place | None, limit: int, of: type[_Place | _Row]
) -> Operation[Sequence[Values]]:
    """Rows in the order of their last change; rows of the same moment in the order in which they began."""
    rows: list[Values] = []
    if place is not None:
        same = (*where, Where("updated_at", "=", place.updated_at or 0), wanted.beyond("begun", place.begun))
        rows += yield from _values(core, of, Query("thread", same, wanted.ordered("begun"), limit))
    if len(rows) < limit:
        where = (*where, wanted.beyond("updated_at", place and (place.updated_at or 0)))
        order = wanted.ordered("updated_at", "begun")
        rows += yield from _values(core, of, Query("thread", where, order, limit - len(rows)))
    return rows


def forks(core: Core, thread_id: str) -> Operation[list[ThreadSummary]]:
    """The threads that were forked from this one, in the order of their creation.

    Forks of a purged thread that had the id before are left out. The forks are read from the log if this process cannot
    bring the directory up to date, which other reads do not need.
    """
    control = yield from existing(core, thread_id)
    core = core.read_barrier()
    if not core.models.maintains(DIRECTORY):
        return (yield from logged_forks(core, thread_id, control))
    where: tuple[Where, ...] = (Where("tenant", "=", core.tenant), Where("parent_id", "=", thread_id))
    where += (Where("forked_at", ">=", control.began),)
    where += of_threads((yield from few_permitted(core, "list")))
    rows = yield from _values(core, _Row, Query("thread", where, ["begun"]))
    return (yield from _summaries(core, (yield from _permitted(core, rows))))


def _at(core: Core, wanted: _Filter, places: Sequence[_Place]) -> Operation[list[Values]]:
    """The threads at these places, in this order, except those that a condition excludes since."""
    where = (*wanted.where, Where("begun", "in", [place.begun for place in places]))
    rows = {_begun(row): row for row in (yield from _values(core, _Row, Query("thread", where)))}
    return [rows[place.begun] for place in places if place.begun in rows]


def _place(core: Core, after: object) -> Operation[_Place | None]:
    """The place after which a page begins; a thread can name it. Raises UnknownThreadError.

    Raises NotAuthorizedError for a thread that the actor may not see.
    """
    if isinstance(after, _Place):
        return after
    id_ = after.id if isinstance(after, ThreadSummary) else str(after)
    yield from check(core, "list", id_)
    row = yield from _row(core, id_)
    updated_at = row.updated_at or 0
    if isinstance(after, ThreadSummary) and after.updated_at != to_time(updated_at):
        updated_at = to_microseconds(after.updated_at)  # the thread has changed since that page
    return _Place(updated_at, row.begun)


def _label_where(core: Core, name: str, values: tuple[str, ...]) -> tuple[Where, ...]:
    same = Where("same", "=", values[0]) if len(values) == 1 else Where("same", "in", values)
    return Where("tenant", "=", core.tenant), Where("name", "=", name), same, Where("newest", "=", 1)


def _with_label(core: Core, name: str, values: tuple[str, ...]) -> Where:
    return Where("begun", "in", Query("label", _label_where(core, name, values), columns=["begun"]))


def _of_prefix(prefix: str) -> tuple[Where, ...]:
    """The condition that an id begins with a prefix; no id has its next character beyond the last one of Unicode."""
    if not prefix:
        return ()
    return Where("thread_id", ">=", prefix), Where("thread_id", "<=", prefix + "\U0010ffff" * MAX_LENGTH)


def _rows(core: Core, query: Query) -> Operation[list[RowValues]]:
    return core.models.select(DIRECTORY, query)


def _values(core: Core, of: type[_Place | _Row], query: Query) -> Operation[Sequence[Values]]:
    """The values of places or rows of threads."""
    return core.models.values(DIRECTORY, query._replace(columns=of._fields))


def _rows_of(core: Core, query: Query) -> Operation[list[_Row]]:
    """The rows of threads, with names."""
    return list(map(_Row._make, (yield from _values(core, _Row, query))))


def _row(core: Core, thread_id: str) -> Operation[_Row]:
    """The row of a thread. Raises UnknownThreadError."""
    core.stream(thread_id)  # raises InvalidNameError
    where = (Where("tenant", "=", core.tenant), Where("thread_id", "=", thread_id))
    rows = yield from _rows_of(core, Query("thread", where))
    if not rows or rows[0].begun is None:
        raise UnknownThreadError(thread_id)
    return rows[0]


def _permitted(core: Core, rows: Sequence[V]) -> Operation[Sequence[V]]:
    """The rows of threads that the actor may see in a list."""
    return permitted(core, "list", rows, _thread_id)


def _summaries(core: Core, rows: Sequence[Values]) -> Operation[list[ThreadSummary]]:
    marks = yield from _marks(core, rows)
    return [_summary(row, marks.get(_thread_id(row), ())) for row in rows]


def _marks(core: Core, rows: Sequence[Values]) -> Operation[dict[str, list[RowValues]]]:
    """The checkpoints of those threads that have some, inherited ones too, in the order in which they were made."""
    heads = {_thread_id(row): _version(row) for row in rows if _marked(row) != 0}
    marks: dict[str, list[RowValues]] = {}
    ids = list(heads)
    for start in range(0, len(ids), ROWS):
        where = (Where("tenant", "=", core.tenant), Where("thread_id", "in", ids[start : start + ROWS]))
        for mark in (yield from _rows(core, Query("checkpoint", where, ["version"]))):
            if mark["version"] <= heads[mark["thread_id"]]:  # later ones were made after the thread was read
                marks.setdefault(mark["thread_id"], []).append(mark)
    return marks


def _summary(row: Values, marks: Sequence[RowValues]) -> ThreadSummary:
    # By position: a list may have many.
    id_, title, status, version, messages, parent, cut, head, created, updated, metadata, labels = row[:12]
    imported, source_id, kind, first, last = row[12:17]
    metadata = metadata or {}
    if source_id is not None:
        metadata = {**metadata, "source_id": source_id}
    said = first is not None and last is not None and first < created
    return ThreadSummary(
        id_,
        title,
        status,
        version,
        messages or 0,
        parent,
        cut,
        head,
        to_time(created),
        to_time(updated or 0),
        metadata,
        labels,
        {mark["name"]: mark["at"] for mark in marks} if marks else {},
        bool(imported),
        kind or "local",
        to_time(first) if said else None,
        to_time(last) if said else None,
    )


# Trees


def tree(core: Core, thread_id: str | None, *, newest_first: bool = False) -> Pages[Branch[ThreadSummary]]:
    """The tree that a thread belongs to, or all trees one after another; each depth first."""
    check_flags(newest_first=newest_first)
    if thread_id is not None:
        return Pages(partial(_one_tree, core, thread_id))
    return Pages(partial(_trees, core, newest_first=newest_first))


def _one_tree(
    core: Core, thread_id: str, _after: object, _limit: int
) -> Operation[Page[Branch[ThreadSummary], object]]:
    core = core.read_barrier()
    yield from check(core, "list", thread_id)
    row = yield from _row(core, thread_id)
    of_tree = (*_in_tree(core, row.tree), *of_threads((yield from few_permitted(core, "list"))))
    rows = yield from _rows_of(core, Query("thread", of_tree, ["begun"]))
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
    narrow = of_threads((yield from few_permitted(core, "list")))
    where = (Where("tenant", "=", core.tenant), place, *narrow)
    rows = yield from _rows_of(core, Query("thread", where, [f"{sign}tree", f"{sign}begun"], ROWS))
    if not rows:
        return [], None
    last = rows[-1].tree
    if len(rows) == ROWS:  # the last tree may continue on the next page
        one_tree = Query("thread", (*_in_tree(core, last), *narrow), [f"{sign}begun"])
        rows = [row for row in rows if row.tree != last] or (yield from _rows_of(core, one_tree))
        last = rows[-1].tree
    trees: list[Branch[ThreadSummary]] = []
    for _, rows_of_tree in groupby((yield from _permitted(core, rows)), key=attrgetter("tree")):
        trees += yield from _branches(core, sorted(rows_of_tree, key=attrgetter("begun")))
    return trees, last


def sharing(core: Core, thread_id: str, owner: str, version: int) -> Operation[list[str]]:
    """The threads of a thread's tree whose past has a version of ``owner``, that thread first.

    Without deleted threads, and those that the actor may not read.
    """
    core = core.read_barrier()
    row = yield from _row(core, thread_id)
    columns = ["thread_id", "parent_id", "forked_at", "status"]
    rows = yield from _rows(core, Query("thread", _in_tree(core, row.tree), ["begun"], columns=columns))
    readable = yield from permitted(core, "read", rows, itemgetter("thread_id"))
    shown = {each["thread_id"] for each in readable if each["status"] != "deleted"}
    tree = [
        ThreadInTree(each["thread_id"], each["parent_id"], each["forked_at"], hidden=each["thread_id"] not in shown)
        for each in rows
    ]
    holders = [each for each in tree if each.id == owner] + containing(tree, owner, version)
    return [each.id for each in holders if not each.hidden]


def _in_tree(core: Core, begun: int) -> tuple[Where, ...]:
    return Where("tenant", "=", core.tenant), Where("tree", "=", begun)


def _branches(core: Core, rows: Sequence[_Row]) -> Operation[list[Branch[ThreadSummary]]]:
    """The branches of one tree, from its rows in the order in which the threads began."""
    marks = yield from _marks(core, rows)
    own = {
        row.thread_id: [
            BranchCheckpoint(mark["name"], mark["at"])
            for mark in marks.get(row.thread_id, ())
            if mark["version"] > (row.forked_at or 0)
        ]
        for row in rows
    }
    return list(branches([_summary(row, marks.get(row.thread_id, ())) for row in rows], own))


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
