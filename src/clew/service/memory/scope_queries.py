"""Reading memory scopes: what is known, at any version and of any time, and which scopes there are."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from operator import itemgetter
from typing import Literal, NamedTuple

from clew.domain.context.events import ContextProvided
from clew.domain.control import Control
from clew.domain.errors import UnknownVersionError
from clew.domain.events import to_time
from clew.domain.history import HistoryMessage, as_message
from clew.domain.memory.events import FactReference, Provenance
from clew.domain.memory.facts import Fact, Use, Why
from clew.domain.memory.ports import MemoryAt
from clew.domain.memory.scope import Point, ScopeFold
from clew.domain.names import parse_stream_name
from clew.domain.projection import Query, Where
from clew.domain.runs.events import ModelCalled
from clew.service import thread_queries
from clew.service.authorization import check, permitted
from clew.service.caches import Kept
from clew.service.core import Core
from clew.service.core import load as load_thread
from clew.service.memory.scopes import Scope, admit, as_read, check_kind, known, moment, opened
from clew.service.memory.streams import load, look, prefix_of, stream_of
from clew.service.memory.text_search import Searchable, Texts
from clew.service.operations import Operation, read
from clew.service.pages import Page, Pages


class ScopeSummary(NamedTuple):
    """A memory scope in a list: what it holds, its newest version, and how many facts are live in it now."""

    name: str
    holds: Literal["facts", "documents"]
    version: int
    facts: int
    embedder: str | None
    dimensions: int | None
    opened_at: datetime
    updated_at: datetime


class Selection(NamedTuple):
    """The facts that a search is among, by their numbers, and what it searches in."""

    scope: str
    point: Point
    numbers: set[int]
    texts: Texts
    kept: Kept
    collection: str

    def fact(self, number: int) -> Fact:
        """The fact of a number."""
        fold: ScopeFold = self.kept.fold
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
    """What is known, in the order in which it was remembered."""
    fold = yield from opened(scope)
    point = yield from _point(scope, fold, at, valid_at, history=history)
    return (yield from read(lambda: fold.facts(scope.name, point, key=key, kind=kind, history=history)))


def selected(
    scope: Scope, *, kind: str | None = None, at: MemoryAt = None, valid_at: datetime | None = None
) -> Operation[Selection]:
    """The facts that a search is among."""
    yield from admit(scope)
    kept = yield from look(scope.core, scope.name, ScopeFold)
    check_kind(scope, kept.fold)
    point = yield from _point(scope, kept.fold, at, valid_at)
    return (yield from read(partial(_select, scope, kept, point, kind)))


def searchable(selection: Selection) -> Searchable:
    """What finds facts by their words. It is kept, and gone on with when there are more."""
    found: Searchable = selection.kept.made.setdefault("words", Searchable(selection.collection))
    return found


def scopes(core: Core) -> Pages[ScopeSummary]:
    """The scopes of the tenant, in the order in which they were opened, a page at a time."""
    return Pages(partial(_scopes, core))


def _point(
    scope: Scope, fold: ScopeFold, at: MemoryAt, valid_at: datetime | None, *, history: bool = False
) -> Operation[Point]:
    """Where a scope is read; it is noted for the thread that it is read for."""
    head = fold.version
    version, time = _version(scope, fold, head, at)
    if time is None:
        time = max(scope.core.now(), fold.time_of(head))
    asked = moment(valid_at, "valid_at")
    as_of = yield from as_read(scope)
    if scope.learner is not None:
        scope.learner.reads[scope.name, version] = None
    return Point(version, (None if history else time) if asked is None else asked, as_of)


def _version(scope: Scope, fold: ScopeFold, head: int, at: MemoryAt) -> tuple[int, int | None]:
    """The version that ``at`` means, and the time that it is of, None for now."""
    if at is None:
        return head, None
    if isinstance(at, datetime):
        time = moment(at, "at")
        return min(head, fold.version_at(time or 0)), time
    if type(at) is not int:
        raise UnknownVersionError(f"at: {type(at).__name__} is no version of a scope. Give a number or an aware time.")
    if not 1 <= at <= head:
        there = f"its versions are 1 to {head}" if head else "nothing was remembered there"
        raise UnknownVersionError(f"Scope {scope.name!r} has no version {at}: {there}.")
    return at, fold.time_of(at)


def _select(scope: Scope, kept: Kept, point: Point, kind: str | None) -> Selection:
    fold: ScopeFold = kept.fold
    numbers = fold.numbers(point, kind=kind)
    texts: Texts | None = kept.made.get("texts")
    if texts is None or texts.stamp < len(fold):
        said = fold.texts()
        texts = Texts(len(said), dict(enumerate(said)))
        kept.made["texts"] = texts
    # After a shredding the same numbers may be of other facts.
    collection = f"{stream_of(scope.core, scope.name)}#{kept.shredded}"
    return Selection(scope.name, point, numbers, texts, kept, collection)


def _scopes(core: Core, after: int | None, limit: int) -> Operation[Page[ScopeSummary, int]]:
    yield from check(core, "memory")
    page = yield from read(lambda: core.log.streams(prefix=prefix_of(core), after=after or 0, limit=limit))
    found: list[ScopeSummary] = []
    for stream in page:
        name = parse_stream_name(stream.name)
        if name is None:
            continue
        fold = yield from load(core, name.id, ScopeFold)
        if fold.version:
            found.append((yield from read(partial(_summary, core, name.id, fold))))
    return found, page[-1].key if len(page) == limit else None


def _summary(core: Core, name: str, fold: ScopeFold) -> ScopeSummary:
    version, there = fold.version, fold.opened
    point = Point(version, max(core.now(), fold.time_of(version)))
    return ScopeSummary(
        name=name,
        holds="facts" if there is None else there.holds,
        version=version,
        facts=len(fold.numbers(point)),
        embedder=None if there is None else there.embedder,
        dimensions=None if there is None else there.dimensions,
        opened_at=to_time(fold.time_of(1)),
        updated_at=to_time(fold.time_of(version)),
    )


MEMORY = "memory"
"""The projection that knows which facts were passed on."""

EVENTS = 100
"""Events that are read at once to find the model calls that came next."""


def why(scope: Scope, fact: Fact | str) -> Operation[Why]:
    """Where a fact came from, as far as that can still be told."""
    return (yield from _why(scope.core, (yield from known(scope, fact)), frozenset()))


def used_by(scope: Scope, fact: Fact | str) -> Operation[list[Use]]:
    """The model calls that were given a fact, in the order of the store, of threads that may be read."""
    core, found = scope.core, (yield from known(scope, fact))
    where = (Where("tenant", "=", core.tenant), Where("scope", "=", scope.name), Where("fact", "=", found.id))
    uses: list[Use] = []
    rows = yield from core.models.select(MEMORY, Query("used", where, ["position"]))
    for row in (yield from permitted(core, "read", rows, itemgetter("thread_id"))):
        calls = yield from read(partial(_calls, core, row["thread_id"], row["version"], row["run_id"]))
        uses += (Use(row["thread_id"], call, row["version"], row["run_id"]) for call in calls)
    return uses


def _why(core: Core, fact: Fact, seen: frozenset[FactReference]) -> Operation[Why]:
    from_ = fact.promoted
    earlier: Why | None = None
    if from_ is not None and from_ not in seen:  # only what was imported could go round in a circle
        fold = yield from load(core, from_.scope, ScopeFold)
        source = fold.fact(from_.scope, from_.fact, Point(fold.version))
        if source is not None:
            earlier = yield from _why(core, source, seen | {from_})
    learned = fact.learned
    if learned is None:
        return Why(fact, actor=fact.actor, promoted_from=earlier)
    message = yield from _message(core, learned)
    redacted = message is not None and message.redacted
    return Why(
        fact,
        thread_id=learned.thread,
        version=learned.version if message is None else message.version,
        message=None if redacted else message,
        redacted=redacted,
        actor=fact.actor,
        promoted_from=earlier,
    )


def _message(core: Core, learned: Provenance) -> Operation[HistoryMessage | None]:
    """The message at a version of a thread; None when the thread is not there, or is not to be read.

    What a tool or a hook remembers has a step of its run as its provenance: it is from what the user last said there.
    """
    thread_id, version = learned.thread, learned.version
    control: Control = yield from load_thread(core, thread_id)
    if not version <= control.version or control.status == "deleted":
        return None
    if not (yield from permitted(core, "read", [thread_id], lambda id_: id_)):
        return None
    message = as_message((yield from thread_queries.event(core, thread_id, version)))
    if message is not None:
        return message
    then = yield from thread_queries.history(core, thread_id, version)
    return next((each for each in reversed(then.messages) if each.role == "user"), None)


def _calls(core: Core, thread_id: str, provided: int, run_id: str | None) -> list[int]:
    """The versions at which the run asked the model with what was provided: until it ended, or that was replaced."""
    stream, after, calls = core.stream(thread_id), provided - 1, list[int]()
    provider: str | None = None
    while page := core.log.lineage(stream, after=after, upto=after + EVENTS):
        for event in page:
            if event.version == provided:
                provider = event.data.provider if isinstance(event.data, ContextProvided) else None
            elif event.run_id != run_id:
                continue
            elif isinstance(event.data, ModelCalled):
                calls.append(event.version)
            elif event.type in _LAST or (isinstance(event.data, ContextProvided) and event.data.provider == provider):
                return calls
        after = page[-1].version
    return calls


_LAST = frozenset({"run-completed", "run-failed", "run-abandoned"})
"""Events after which a run asks nothing more."""
