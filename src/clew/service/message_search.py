"""Searching messages: found by the index of words, and shown from their events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import NamedTuple, TypeAlias

from clew.domain.messages import Role
from clew.domain.projection import Query, Recorded, RowValues, Where, Words
from clew.domain.views import search_text
from clew.domain.views.fork_tree import containing
from clew.domain.views.search_text import Snippet
from clew.projections.search import searchable, tenant_scope, thread_scope
from clew.service.authorization import permitted
from clew.service.core import Core
from clew.service.operations import Operation, read
from clew.service.thread_directory import DIRECTORY, LAST
from clew.service.thread_queries import readable

SEARCH = "search"
INDEX = "words"

POSITIONS = 50
"""Messages that are looked at together, at the least, where some of those before were not there to be shown."""

FORKS = 10
"""Forks that a hit names at the most."""

_Trees: TypeAlias = "dict[str, Sequence[_Fork]]"
"""By thread, the tree that it belongs to; each is read once in a search."""


class Hit(NamedTuple):
    """A message that was found.

    ``thread_id`` is the thread that it is recorded in or, when that one is deleted or may not be read, the thread that
    was searched, else the first of its forks that has the message. ``number`` counts the messages on the path up to it;
    ``position`` is its place in the store. ``forks`` are the first of the other threads that have the message, and
    ``fork_count`` says how many there are; those that are deleted or may not be read are not counted.
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


class _Scope(NamedTuple):
    """Where is searched: by the scopes of the index, below a position, up to a version."""

    words: Words
    before: int | None
    upto: int | None


class _Fork(NamedTuple):
    """A thread of a tree, as far as it matters who has which message."""

    thread_id: str
    parent_id: str | None
    forked_at: int | None
    hidden: bool


def search(core: Core, text: str, *, thread: str | None, before: int | None, limit: int) -> Operation[list[Hit]]:
    """The newest messages that have what the text asks for, all of a tenant or those of a thread's lineage.

    Raises InvalidSearchError, UnknownThreadError, ThreadDeletedError or NotAuthorizedError.
    """
    core = core.read_barrier()
    words = search_text.parse(text)
    scopes = yield from _scopes(core, words, thread, before)
    trees: _Trees = {}
    hits: list[Hit] = []
    for scope in scopes:
        below, wanted = scope.before, limit - len(hits)
        while len(hits) < limit:
            positions = yield from core.models.find(SEARCH, INDEX, scope.words, before=below, limit=wanted)
            events = yield from _events(core, positions, scope.upto)
            yield from _read_trees(core, {event.thread_id for event in events} - trees.keys(), trees)
            shown = [hit for event in events if (hit := _hit(event, words, trees, thread)) is not None]
            hits += shown[: limit - len(hits)]
            if len(positions) < wanted:
                break
            below, wanted = positions[-1], max(POSITIONS, limit - len(hits))
    return hits


def _scopes(core: Core, words: Words, thread: str | None, before: int | None) -> Operation[list[_Scope]]:
    """What is searched in turn, newest first: everything, or a thread's own messages, then its parent's up to the cut.

    What a thread has from its parent is older than all of its own.
    """
    tenant = tenant_scope(core.tenant)
    if thread is None:
        return [_Scope(words._replace(scopes=(tenant,)), before, None)]
    yield from readable(core, thread, "search", "search")
    found: list[_Scope] = []
    upto: int | None = None
    id_: str | None = thread
    while id_ is not None:
        found.append(_Scope(words._replace(scopes=(tenant, thread_scope(core.tenant, id_))), before, upto))
        rows = yield from _select(core, [Where("thread_id", "=", id_)], ["begun", "parent_id", "forked_at"])
        if not rows:
            break
        begun, id_, cut = rows[0]["begun"], rows[0]["parent_id"], rows[0]["forked_at"]
        upto = cut if upto is None or cut is None else min(upto, cut)
        before = begun if before is None or begun is None else min(before, begun)
    return found


def _events(core: Core, positions: Sequence[int], upto: int | None) -> Operation[list[Recorded]]:
    """The messages at these positions that can be read, newest first."""
    found = yield from read(partial(core.log.recorded_at, positions))
    return [
        event
        for event in reversed(found)
        if isinstance(event, Recorded)
        and event.tenant == core.tenant
        and event.type == "message-appended"
        and event.data is not None
        and (upto is None or event.version <= upto)
    ]


def _hit(event: Recorded, words: Words, trees: _Trees, asked: str | None) -> Hit | None:
    """The hit that a message is: none where nobody may read it any more."""
    tree = trees.get(event.thread_id, ())
    having = [each for each in tree if each.thread_id == event.thread_id]
    having += containing(tree, event.thread_id, event.version)
    readers = [each.thread_id for each in having if not each.hidden]
    if asked in readers and readers[0] != event.thread_id:  # hidden, but what was asked for has it
        readers = [asked, *(id_ for id_ in readers if id_ != asked)]
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
        time=event.time,
        actor=event.actor,
        snippet=search_text.snippet(searchable(message), words),
        forks=tuple(readers[1 : FORKS + 1]),
        fork_count=len(readers) - 1,
    )


def _read_trees(core: Core, thread_ids: Iterable[str], trees: _Trees) -> Operation[None]:
    """Add the trees that threads belong to, each thread after its parent; hidden are deleted ones and others'."""
    ids = list(thread_ids)
    if not ids:
        return
    begun = Query("thread", (Where("tenant", "=", core.tenant), Where("thread_id", "in", ids)), columns=["tree"])
    # In this order, and with a limit, SQLite looks up the trees; else it would go through all threads of the tenant.
    of_trees = (Where("tenant", "=", core.tenant), Where("tree", "in", begun))
    columns = ["thread_id", "parent_id", "forked_at", "status", "tree"]
    rows = yield from core.models.select(DIRECTORY, Query("thread", of_trees, ["tree", "begun"], LAST, columns))
    shown = yield from permitted(
        core, "search", [row["thread_id"] for row in rows if row["status"] != "deleted"], lambda id_: id_
    )
    there = frozenset(shown)
    found: dict[int, list[_Fork]] = {}
    for row in rows:
        fork = _Fork(row["thread_id"], row["parent_id"], row["forked_at"], hidden=row["thread_id"] not in there)
        tree = found.setdefault(row["tree"], [])
        tree.append(fork)
        trees[fork.thread_id] = tree


def _select(core: Core, where: Iterable[Where], columns: Sequence[str]) -> Operation[list[RowValues]]:
    query = Query("thread", [Where("tenant", "=", core.tenant), *where], columns=columns)
    return (yield from core.models.select(DIRECTORY, query))
