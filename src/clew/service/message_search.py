"""Message search: the index of words finds the messages, and hits are read from their events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from clew.domain.errors import InvalidProjectionError
from clew.domain.event_index import REWINDS
from clew.domain.events import HistoryRewound, to_time
from clew.domain.fork_tree import ThreadInTree, containing
from clew.domain.json_values import check_count
from clew.domain.messages import Role
from clew.domain.projection import Query, Recorded, RowValues, SaidWithin, Unreadable, Where, Words
from clew.domain.runs.events import GuardrailTripped
from clew.domain.search_terms import Snippet, parse, searchable, snippet, tenant_scope, thread_scope
from clew.projections.search import FROM_TRIP
from clew.service.authorization import permitted
from clew.service.core import Core
from clew.service.effects import Operation, Read, read
from clew.service.history_reads import PAGE
from clew.service.read_models import DIRECTORY
from clew.service.thread_directory import LAST, SEPARATELY, few_permitted, of_threads
from clew.service.thread_queries import readable

SEARCH = "search"
INDEX = "words"

POSITIONS = 50
"""Fewest messages that are read together after some of the first ones could not be shown."""

FORKS = 10
"""Most forks that a hit names."""

_thread_id = attrgetter("thread_id")

_Trees: TypeAlias = dict[str, Sequence[ThreadInTree]]
"""The tree of each thread; a search reads each tree once."""


class Hit(NamedTuple):
    """A message that was found.

    ``thread_id`` is the thread that the message is recorded in. If that is deleted or the actor may not read it, it is
    the searched thread, or else the first fork that has the message. ``number`` counts the messages on the
    path up to it; ``position`` is its place in the store. ``forks`` are the first of the other threads that have the
    message, and ``fork_count`` is the number of them; threads that are deleted or may not be read are not counted.
    ``said_at`` is when it was said, if that is not ``time``, when it was recorded.
    """

    thread_id: str
    version: int
    number: int
    position: int
    role: Role
    author: str | None
    time: datetime
    actor: str | None
    snippet: Snippet
    forks: tuple[str, ...]
    fork_count: int
    said_at: datetime | None = None


class _Scope(NamedTuple):
    """A range to search: what finds its messages, each in its own scopes; below a position, and up to a version."""

    words: tuple[Words, ...]
    before: int | None
    upto: int | None


def search(
    core: Core,
    text: str,
    *,
    thread: str | None,
    before: int | None,
    limit: int,
    said: SaidWithin | None = None,
) -> Operation[list[Hit]]:
    """The newest messages that match, of all threads of a tenant or of one thread's lineage.

    Raises InvalidSearchError, InvalidContentError, UnknownThreadError, ThreadDeletedError or NotAuthorizedError.
    """
    if type(limit) is not int or limit < 0 or before is not None:
        check_count(limit, "limit")
        check_count(before, "before")
    core = core.read_barrier()
    words = parse(text)
    if thread is None:
        searches: tuple[Words, ...] = (words._replace(scopes=(tenant_scope(core.tenant),)),)
        if core.authorize is not None:
            searches = yield from _permitted(core, *searches)
        scopes = [_Scope(searches, before, None)]
    else:
        scopes = yield from _lineage(core, words, thread, before)
    trees: _Trees = {}
    hits: list[Hit] = []
    for scope in scopes:
        below, wanted = scope.before, limit - len(hits)
        while len(hits) < limit:
            positions = yield from _find(core, scope.words, below, wanted)
            recorded: Sequence[Recorded | Unreadable] = yield Read(partial(core.log.recorded_at, positions))
            messages = _messages(core, reversed(recorded), scope.upto, said)
            events = yield from _not_stopped(core, messages)
            missing = {*map(_thread_id, events)} - trees.keys()
            if missing:
                yield from _read_trees(core, list(missing), trees)
            for event in events:
                hit = _hit(event, words, trees, thread) if len(hits) < limit else None
                if hit is not None:
                    hits.append(hit)
            if len(positions) < wanted:
                break
            below, wanted = positions[-1], max(POSITIONS, limit - len(hits))
    return hits


def _permitted(core: Core, words: Words) -> Operation[tuple[Words, ...]]:
    """A search in each thread that the actor may search and in its ancestors, if they are few; else in all threads."""
    ids = yield from few_permitted(core, "search")
    found = dict.fromkeys(ids or ())
    while ids and len(found) <= SEPARATELY:
        where = (Where("tenant", "=", core.tenant), *of_threads(ids))
        rows = yield from core.models.select(DIRECTORY, Query("thread", where, columns=["parent_id"]))
        ids = [row["parent_id"] for row in rows if row["parent_id"] is not None and row["parent_id"] not in found]
        found |= dict.fromkeys(ids)
    if ids is None or len(found) > SEPARATELY:
        return (words,)
    return tuple([words._replace(scopes=(*words.scopes, thread_scope(core.tenant, id_))) for id_ in found])


def _find(core: Core, searches: Sequence[Words], before: int | None, limit: int) -> Operation[list[int]]:
    """The positions of messages that one of the searches finds, newest first."""
    if len(searches) == 1:
        return core.models.find(SEARCH, INDEX, searches[0], before=before, limit=limit)
    return _merged(core, searches, before, limit)


def _merged(core: Core, searches: Sequence[Words], before: int | None, limit: int) -> Operation[list[int]]:
    positions: list[int] = []
    for words in searches:
        positions += yield from core.models.find(SEARCH, INDEX, words, before=before, limit=limit)
    return sorted(positions, reverse=True)[:limit]


def _lineage(core: Core, words: Words, thread: str, before: int | None) -> Operation[list[_Scope]]:
    """The ranges to search, newest first: a thread's own messages, then its parent's up to the cut, and so on.

    Inherited messages are always older than the thread's own.
    """
    yield from readable(core, thread, "search", "search")
    scopes: list[_Scope] = []
    upto: int | None = None
    id_: str | None = thread
    while id_ is not None:
        index_scopes = (tenant_scope(core.tenant), thread_scope(core.tenant, id_))
        scopes.append(_Scope((words._replace(scopes=index_scopes),), before, upto))
        where = [Where("tenant", "=", core.tenant), Where("thread_id", "=", id_)]
        query = Query("thread", where, columns=["begun", "parent_id", "forked_at"])
        rows = yield from core.models.select(DIRECTORY, query)
        if not rows:
            break
        begun, id_, cut = rows[0]["begun"], rows[0]["parent_id"], rows[0]["forked_at"]
        upto = cut if upto is None or cut is None else min(upto, cut)
        before = begun if before is None or begun is None else min(before, begun)
    return scopes


def _messages(
    core: Core, events: Iterable[Recorded | Unreadable], upto: int | None, said: SaidWithin | None
) -> list[Recorded]:
    """The events of messages that can be shown and were said in a range of times."""
    return [
        event
        for event in events
        if isinstance(event, Recorded)
        and event.tenant == core.tenant
        and event.type == "message-appended"
        and event.data is not None
        and (upto is None or event.version <= upto)
        and (said is None or said.has(event))
    ]


def _not_stopped(core: Core, messages: list[Recorded]) -> Operation[list[Recorded]]:
    """The messages without those that a guardrail stopped, which only the log shows."""
    first: dict[str, int] = {}
    for message in messages:
        if message.run_id is not None:
            first[message.thread_id] = min(message.version, first.get(message.thread_id, message.version))
    if not first:
        return messages
    where = (Where("tenant", "=", core.tenant), Where("thread_id", "in", [*first]))
    try:
        trips = yield from core.models.select(SEARCH, Query("stopped", where))
    except InvalidProjectionError:  # the tables of an older version are in use until those of this one are filled
        trips = yield from read(lambda: [trip for id_, version in first.items() for trip in _trips(core, id_, version)])
    return [
        message
        for message in messages
        if message.run_id is None
        or all(
            trip["thread_id"] != message.thread_id or not trip["after"] < message.version < trip["version"]
            for trip in trips
        )
    ]


def _trips(core: Core, thread_id: str, after: int) -> Iterator[RowValues]:
    """What the read model has of a thread after a version, from the log: only rewinds, and what came before them."""
    stream, upto = core.stream(thread_id), LAST
    while rewinds := core.log.indexed(stream, REWINDS, after=after, upto=upto, limit=PAGE):
        for rewind in rewinds:
            trip = rewind.version - FROM_TRIP
            before = core.log.lineage(stream, after=trip - 1, upto=trip)
            if before and isinstance(before[0].data, GuardrailTripped) and isinstance(rewind.data, HistoryRewound):
                yield {"thread_id": thread_id, "version": trip, "after": rewind.data.to}
        upto = rewinds[-1].version - 1


def _hit(event: Recorded, words: Words, trees: _Trees, searched: str | None) -> Hit | None:
    """The hit for a message; None if the actor may not read any thread that has it."""
    tree = trees.get(event.thread_id, ())
    holders = tree
    if len(tree) > 1:
        own = [each for each in tree if each.id == event.thread_id]
        holders = [*own, *containing(tree, event.thread_id, event.version)]
    readers = [each.id for each in holders if not each.hidden]
    if searched in readers and readers[0] != event.thread_id:  # hidden, but the searched thread has the message
        readers = [searched, *(id_ for id_ in readers if id_ != searched)]
    if event.data is None or not readers:
        return None
    message = event.data["message"]
    return Hit(
        thread_id=readers[0],
        version=event.version,
        number=event.messages,
        position=event.position,
        role=message["role"],
        author=message.get("author"),
        time=to_time(event.recorded_at),
        actor=event.actor,
        snippet=snippet(searchable(message), words),
        forks=tuple(readers[1 : FORKS + 1]),
        fork_count=len(readers) - 1,
        said_at=to_time(event.said) if isinstance(event.said, int) else None,
    )


def _read_trees(core: Core, ids: Sequence[str], trees: _Trees) -> Operation[None]:
    """Add the trees of threads, each thread after its parent; deleted and unauthorized threads are hidden."""
    begun = Query("thread", (Where("tenant", "=", core.tenant), Where("thread_id", "in", ids)), columns=["tree"])
    # In this order, and with a limit, SQLite looks up the trees; else it would read all threads of the tenant.
    of_trees = (Where("tenant", "=", core.tenant), Where("tree", "in", begun))
    columns = ["thread_id", "parent_id", "forked_at", "status", "tree"]
    rows = yield from core.models.select(DIRECTORY, Query("thread", of_trees, ["tree", "begun"], LAST, columns))
    visible: Sequence[str] = [row["thread_id"] for row in rows if row["status"] != "deleted"]
    if core.authorize is not None:
        visible = yield from permitted(core, "search", visible, lambda id_: id_)
    shown = frozenset(visible)
    forks: dict[int, list[ThreadInTree]] = {}
    for row in rows:
        fork = ThreadInTree(row["thread_id"], row["parent_id"], row["forked_at"], hidden=row["thread_id"] not in shown)
        tree = forks.setdefault(row["tree"], [])
        tree.append(fork)
        trees[fork.id] = tree
