"""Reading memory scopes: what is known, at any version and of any time, and which scopes there are."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Literal, NamedTuple

from clew.domain.errors import UnknownVersionError
from clew.domain.events import to_time
from clew.domain.memory.facts import Fact
from clew.domain.memory.ports import MemoryAt
from clew.domain.memory.scope import Point, ScopeFold
from clew.domain.names import parse_stream_name
from clew.service.authorization import check
from clew.service.caches import Kept
from clew.service.core import Core
from clew.service.memory.scopes import Scope, admit, as_read, check_kind, moment, opened
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
