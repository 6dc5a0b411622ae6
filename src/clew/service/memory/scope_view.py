"""A memory scope for a caller: its name, the thread that uses it, and how that thread reads it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from clew.domain.errors import (
    EmbeddingMismatchError,
    InvalidContentError,
    ScopeError,
    UnknownFactError,
)
from clew.domain.memory.facts import Fact
from clew.domain.memory.ports import Screen
from clew.domain.memory.scope import AsOf, Inherited, ReadPoint, ScopeFold
from clew.domain.ports import EventLog
from clew.domain.streams import stream_id
from clew.service.authorization import check
from clew.service.core import Core
from clew.service.core import load as load_thread
from clew.service.effects import Operation, read
from clew.service.memory.streams import check_scope_name, load, scope_stream


@dataclass(frozen=True, slots=True, eq=False)
class ThreadAccess:
    """The thread on whose behalf a scope is read and written. It is the provenance of new facts.

    ``run_id`` and ``provider`` identify repeated writes. ``actor`` writes, for ``on_behalf_of``. ``reads_only`` is true
    if a provider reads a scope that is not its own. ``reads`` are the versions of scopes that were read, in order.
    """

    thread_id: str
    run_id: str | None = None
    actor: str | None = None
    provider: str | None = None
    reads_only: bool = False
    on_behalf_of: str | None = None
    reads: dict[tuple[str, int], None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Scope:
    """A memory scope for a caller. Raises ScopeError or InvalidNameError for an invalid name.

    ``model`` and ``dimensions`` are those of its embedder, None for search by words. ``screen`` decides what may be
    promoted into it. ``learner`` is the thread that uses it.
    """

    core: Core
    name: str
    model: str | None = None
    dimensions: int | None = None
    screen: Screen | None = None
    learner: ThreadAccess | None = None

    def __post_init__(self) -> None:
        check_scope_name(self.name)
        if self.screen is not None and not callable(self.screen):
            raise ScopeError(f"memory: the screen of {self.name!r} is {type(self.screen).__name__}, not a function.")


def check_access(scope: Scope) -> Operation[None]:
    """Raise NotAuthorizedError if the caller may not use memory. Runs of a thread may use the memory of their agent."""
    if scope.learner is None:
        yield from check(scope.core, "memory")


def load_facts(scope: Scope) -> Operation[ScopeFold]:
    """The facts of a scope. Raises NotAuthorizedError, or ScopeError or EmbeddingMismatchError as check_kind does."""
    yield from check_access(scope)
    fold = yield from load(scope.core, scope.name, ScopeFold)
    check_kind(scope, fold)
    return fold


def check_kind(scope: Scope, fold: ScopeFold) -> None:
    """Raise ScopeError for a document store, and EmbeddingMismatchError for the vectors of another embedder."""
    opened = fold.opened
    if opened is None:
        return
    if opened.holds != "facts":
        raise ScopeError(f"memory: scope {scope.name!r} holds documents, not facts. Choose another name.")
    current = scope.model, scope.dimensions
    if None not in (opened.embedder, scope.model) and (opened.embedder, opened.dimensions) != current:
        raise EmbeddingMismatchError(
            f"Scope {scope.name!r} is searched with the vectors of {opened.embedder!r}, of {opened.dimensions} numbers;"
            f" the given embedder is {scope.model!r}, of {scope.dimensions}. Give the same embedder, or none."
        )


def view_of_thread(core: Core, thread_id: str) -> Operation[AsOf | None]:
    """How a thread reads memory scopes: None means their current state."""
    control = yield from load_thread(core, thread_id)
    if control.as_of is None:
        return None
    return (yield from read(partial(_view_as_of, core, thread_id, control.as_of)))


def visible_version(core: Core, thread_id: str, name: str) -> Operation[int | None]:
    """The version of a scope or document store that a thread reads: None is the newest, 0 is before it began."""
    as_of = yield from view_of_thread(core, thread_id)
    if as_of is None:
        return None
    return (yield from read(partial(_version_at, core.log, scope_stream(core, name), as_of.first)))


def view_of_scope(scope: Scope) -> Operation[AsOf | None]:
    """How the thread that uses the scope reads it; None means its current state."""
    if scope.learner is None:
        return None
    return (yield from view_of_thread(scope.core, scope.learner.thread_id))


def fact_id(scope: Scope, fact: Fact | str) -> str:
    """The id of a fact. Raises UnknownFactError for one of another scope, and InvalidContentError for other types."""
    if isinstance(fact, Fact):
        if fact.scope != scope.name:
            raise UnknownFactError(scope.name, fact.id)
        return fact.id
    if not isinstance(fact, str):
        raise InvalidContentError(f"{type(fact).__name__} is neither a fact nor the id of a fact.")
    return fact


def load_fact(scope: Scope, fact: Fact | str) -> Operation[Fact]:
    """A fact of the scope, live or not, as the caller reads the scope. Raises UnknownFactError."""
    id_ = fact_id(scope, fact)
    fold = yield from load_facts(scope)
    known = fold.fact(scope.name, id_, ReadPoint(fold.version, as_of=(yield from view_of_scope(scope))))
    if known is None:
        raise UnknownFactError(scope.name, id_)
    return known


def _view_as_of(core: Core, thread_id: str, cut: tuple[str, int]) -> AsOf:
    """How a thread reads as of a cut. Its ancestors up to the fork at this cut belong to its past."""
    log, parent = core.log, core.stream(cut[0])
    inherited: dict[str, Inherited] = {}
    stream = log.stream(core.stream(thread_id))
    while stream is not None and stream.parent is not None and (stream.parent, stream.cut) != (parent, cut[1]):
        version = stream.cut or 0
        inherited[stream_id(stream.parent)] = Inherited(version, _position(log, stream.parent, version))
        stream = log.stream(stream.parent)
    earlier = log.control(parent, cut[1]).as_of
    before = None if earlier is None else _view_as_of(core, cut[0], earlier)
    return AsOf(thread_id, cut[1], _position(log, parent, cut[1]), inherited, before)


def _version_at(log: EventLog, stream: str, position: int) -> int:
    """The last version at or before a position, 0 if there is none. Later versions have later positions."""
    low, high = 0, 1

    def is_later(version: int) -> bool:
        found = log.position_of(stream, version)
        return found is None or found > position

    while not is_later(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_later(middle) else (middle, high)
    return low


def _position(log: EventLog, stream: str, version: int) -> int:
    return log.position_of(stream, version) or 0
