"""Queries on memory scopes: facts at any version and time, their origin and their use, and the list of scopes."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from operator import itemgetter
from typing import Literal, NamedTuple

from clew.domain.context.events import ContextProvided
from clew.domain.decider_state import Control
from clew.domain.errors import UnknownVersionError
from clew.domain.events import to_time, to_utc_microseconds
from clew.domain.history import HistoryMessage, as_message
from clew.domain.json_values import check_flags, check_text
from clew.domain.memory.events import FactReference, Provenance
from clew.domain.memory.facts import Fact, FactOrigin, FactUse
from clew.domain.memory.ports import MemoryAt
from clew.domain.memory.scope import ReadPoint, ScopeFold, check_key
from clew.domain.projection import Query, Where
from clew.domain.runs.events import ModelCalled
from clew.domain.streams import first_after
from clew.service import thread_queries
from clew.service.authorization import check, permitted
from clew.service.core import CachedFold, Core
from clew.service.core import load as load_thread
from clew.service.effects import Operation, Page, Pages, read
from clew.service.memory.scope_view import (
    Scope,
    check_access,
    check_kind,
    load_fact,
    load_facts,
    view_of_scope,
)
from clew.service.memory.streams import load, load_cached, scope_stream
from clew.service.memory.text_search import SearchIndex, Texts


class ScopeSummary(NamedTuple):
    """A memory scope in a list: its content, its newest version, and how many facts were not ended.

    ``opened`` and ``updated`` are the times of its first and its newest event, in microseconds since 1970.
    """

    name: str
    holds: Literal["facts", "documents"]
    version: int
    facts: int
    embedder: str | None
    dimensions: int | None
    opened: int
    updated: int

    @property
    def opened_at(self) -> datetime:
        """The time of its first event, in UTC."""
        return to_time(self.opened)

    @property
    def updated_at(self) -> datetime:
        """The time of its newest event, in UTC."""
        return to_time(self.updated)


class Selection(NamedTuple):
    """The facts that a search may find, by their numbers, and the texts to search."""

    scope: str
    point: ReadPoint
    numbers: set[int]
    texts: Texts
    cached: CachedFold
    collection: str

    def fact(self, number: int) -> Fact:
        """The fact with a number."""
        fold: ScopeFold = self.cached.fold
        return fold.numbered(self.scope, number, self.point)


def facts(
    scope: Scope,
    *,
    key: str | None = None,
    kind: str | None = None,
    at: MemoryAt = None,
    valid_at: datetime | None = None,
    history: bool = False,
) -> Operation[list[Fact]]:
    """The facts, in the order in which they were remembered."""
    check_flags(history=history)
    fold = yield from load_facts(scope)
    point = yield from _point(scope, fold, at, valid_at, history=history)
    return (yield from read(lambda: fold.facts(scope.name, point, key=key, kind=kind, history=history)))


def get(scope: Scope, key: str, at: MemoryAt = None) -> Operation[Fact | None]:
    """The newest live fact with a key, None if there is none."""
    check_key(key)
    fold = yield from load_facts(scope)
    point = yield from _point(scope, fold, at, None, history=True)
    return next(iter(fold.live(scope.name, key, point)), None)


def select_facts(
    scope: Scope, *, kind: str | None = None, at: MemoryAt = None, valid_at: datetime | None = None
) -> Operation[Selection]:
    """The facts that a search may find."""
    yield from check_access(scope)
    cached = yield from load_cached(scope.core, scope.name, ScopeFold)
    check_kind(scope, cached.fold)
    point = yield from _point(scope, cached.fold, at, valid_at)
    return (yield from read(partial(_select, scope, cached, point, kind)))


def word_index(selection: Selection) -> SearchIndex:
    """The cached index of the facts' words."""
    indexes = selection.cached.indexes
    index: SearchIndex = indexes.get("words") or indexes.setdefault("words", SearchIndex(selection.collection))
    return index


def scopes(core: Core, prefix: str = "") -> Pages[ScopeSummary]:
    """The scopes of the tenant whose names begin with a prefix, in the order of their names, a page at a time."""
    check_text(prefix, "prefix")
    return Pages(partial(_scopes, core, prefix), size=SCOPES)


def _point(
    scope: Scope, fold: ScopeFold, at: MemoryAt, valid_at: datetime | None, *, history: bool = False
) -> Operation[ReadPoint]:
    """The point at which a scope is read. The version is noted for the thread that reads it."""
    head = fold.version
    version, time = _version(scope, fold, head, at)
    if time is None:
        time = max(scope.core.now(), fold.time_of(head))
    valid_time = to_utc_microseconds(valid_at, "valid_at")
    as_of = yield from view_of_scope(scope)
    if scope.learner is not None:
        scope.learner.reads[scope.name, version] = None
    return ReadPoint(version, (None if history else time) if valid_time is None else valid_time, as_of)


def _version(scope: Scope, fold: ScopeFold, head: int, at: MemoryAt) -> tuple[int, int | None]:
    """The version that ``at`` stands for, and its time, None for now."""
    if at is None:
        return head, None
    if isinstance(at, datetime):
        time = to_utc_microseconds(at, "at")
        return min(head, fold.version_at(time or 0)), time
    if type(at) is not int:
        raise UnknownVersionError(
            f"at: {type(at).__name__} is not a version of a scope. Give a number or an aware time."
        )
    if not 1 <= at <= head:
        existing = f"its versions are 1 to {head}" if head else "nothing was remembered in it"
        raise UnknownVersionError(f"Scope {scope.name!r} has no version {at}: {existing}.")
    return at, fold.time_of(at)


def _select(scope: Scope, cached: CachedFold, point: ReadPoint, kind: str | None) -> Selection:
    fold: ScopeFold = cached.fold
    numbers = fold.numbers(point, kind=kind)
    texts: Texts | None = cached.indexes.get("texts")
    if texts is None or texts.stamp < len(fold):
        all_texts = fold.texts()
        texts = Texts(len(all_texts), dict(enumerate(all_texts)))
        cached.indexes["texts"] = texts
    # After a shredding the same numbers may stand for other facts.
    collection = f"{scope_stream(scope.core, scope.name)}#{cached.shredded}"
    return Selection(scope.name, point, numbers, texts, cached, collection)


def _scopes(core: Core, prefix: str, after: str | None, limit: int) -> Operation[Page[ScopeSummary, str]]:
    yield from check(core, "memory")
    where = [Where("tenant", "=", core.tenant), Where("name", ">=" if after is None else ">", after or prefix)]
    if (end := first_after(prefix)) is not None:
        where.append(Where("name", "<", end))
    query = Query("scope", where, ["name"], limit, ScopeSummary._fields)
    rows = yield from core.read_barrier().models.values(MEMORY, query)
    summaries = list(map(ScopeSummary._make, rows))
    return summaries, summaries[-1].name if len(rows) == limit else None


MEMORY = "memory"
"""The projection of the scopes, and of the facts that providers gave to models."""

SCOPES = 1_000
"""Scopes that are read at once."""

PAGE = 100
"""Events that are read at once to find the next model calls."""


def why(scope: Scope, fact: Fact | str) -> Operation[FactOrigin]:
    """The origin of a fact, as far as it is known."""
    return (yield from _why(scope.core, (yield from load_fact(scope, fact)), frozenset()))


def used_by(scope: Scope, fact: Fact | str) -> Operation[list[FactUse]]:
    """The model calls that received a fact, in the order of the store, in threads that the caller may read."""
    core, id_ = scope.core, (yield from load_fact(scope, fact)).id
    where = (Where("tenant", "=", core.tenant), Where("scope", "=", scope.name), Where("fact", "=", id_))
    uses: list[FactUse] = []
    rows = yield from core.models.select(MEMORY, Query("used", where, ["position"]))
    for row in (yield from permitted(core, "read", rows, itemgetter("thread_id"))):
        calls = yield from read(partial(_calls, core, row["thread_id"], row["version"], row["run_id"]))
        uses += (FactUse(row["thread_id"], call, row["version"], row["run_id"]) for call in calls)
    return uses


def _why(core: Core, fact: Fact, seen: frozenset[FactReference]) -> Operation[FactOrigin]:
    reference = fact.promoted
    earlier: FactOrigin | None = None
    if reference is not None and reference not in seen:  # imported facts could form a circle
        fold = yield from load(core, reference.scope, ScopeFold)
        source = fold.fact(reference.scope, reference.fact, ReadPoint(fold.version))
        if source is not None:
            earlier = yield from _why(core, source, seen | {reference})
    learned = fact.learned
    if learned is None:
        return FactOrigin(fact, actor=fact.actor, promoted_from=earlier)
    message = yield from _message(core, learned)
    redacted = message is not None and message.redacted
    return FactOrigin(
        fact,
        thread_id=learned.thread,
        version=learned.version if message is None else message.version,
        message=None if redacted else message,
        redacted=redacted,
        actor=fact.actor,
        promoted_from=earlier,
    )


def _message(core: Core, learned: Provenance) -> Operation[HistoryMessage | None]:
    """The message at a version of a thread; None if the thread does not exist or the caller may not read it.

    A fact of a tool or a hook names a step of its run. Then the message is the user's last one before that step.
    """
    thread_id, version = learned.thread, learned.version
    control: Control = yield from load_thread(core, thread_id)
    if not version <= control.version or control.status == "deleted":
        return None
    if not (yield from permitted(core, "read", [thread_id], lambda id_: id_)):
        return None
    message = as_message((yield from thread_queries.whole_event(core, thread_id, version)))
    if message is not None:
        return message
    history = yield from thread_queries.history(core, thread_id, version)
    return next((each for each in reversed(history.messages) if each.role == "user"), None)


def _calls(core: Core, thread_id: str, provided: int, run_id: str | None) -> list[int]:
    """The versions of the model calls that received a contribution, until its run ended or another replaced it."""
    stream, after, calls = core.stream(thread_id), provided - 1, list[int]()
    provider: str | None = None
    while page := core.log.lineage(stream, after=after, upto=after + PAGE):
        for event in page:
            if event.version == provided:
                provider = event.data.provider if isinstance(event.data, ContextProvided) else None
            elif event.run_id != run_id:
                continue
            elif isinstance(event.data, ModelCalled):
                calls.append(event.version)
            elif event.type in _RUN_ENDS or (
                isinstance(event.data, ContextProvided) and event.data.provider == provider
            ):
                return calls
        after = page[-1].version
    return calls


_RUN_ENDS = frozenset({"run-completed", "run-failed", "run-abandoned"})
"""Events that end a run."""
