"""Reads and writes of the streams of memory scopes. A fold of each stream is cached and updated with new events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from clew.domain.decider import Actor
from clew.domain.errors import ClewError, ConflictError, ScopeError
from clew.domain.events import LAST_MICROSECOND, TYPE_NAMES, Event
from clew.domain.memory.events import MemoryEvent
from clew.domain.ports import Appended, Key, Write
from clew.domain.streams import ROOT, check_id, check_idempotency_key, stream_name
from clew.service.core import ATTEMPTS, FACT_BYTES, CachedFold, Core
from clew.service.effects import Operation, read, wait

PAGE = 500
"""Events that are read at once."""


class Fold(Protocol):
    """The state of a stream. ``recorded_at`` is the time of its newest event, in microseconds since 1970.

    Only one caller at a time may add events; others may read meanwhile.
    """

    version: int
    head: bytes
    recorded_at: int

    def add(self, event: Event) -> None:
        """Add the next event."""
        ...

    def __len__(self) -> int: ...


F = TypeVar("F", bound=Fold)


@dataclass(frozen=True, slots=True)
class Written(Generic[F]):
    """The result of a write: the fold after it and the new versions. For a repeated key, those of the first write."""

    fold: F
    versions: tuple[int, ...]


def check_scope_name(name: object, what: str = "memory") -> str:
    """The name of a scope. Raises ScopeError for a missing or empty name, and InvalidNameError as for ids."""
    if not isinstance(name, str) or not name.strip():
        problem = "an empty name" if isinstance(name, str) else f"{type(name).__name__}"
        raise ScopeError(
            f"{what}: {problem} is not the name of a scope. Give a name such as 'user/42': without one, everybody "
            "would share the memory."
        )
    check_id(name, f"{what}, scope")
    return name


def scope_stream(core: Core, name: str) -> str:
    """The name of the stream of a scope."""
    return stream_name(core.tenant, "memory", name)


def idempotency_key(core: Core, name: str, key: str | None, content: bytes) -> Key | None:
    """An idempotency key on the stream of a scope. Raises InvalidNameError."""
    if key is None:
        return None
    check_idempotency_key(key)
    return Key(scope_stream(core, name), key, content)


def load(core: Core, name: str, new: Callable[[], F]) -> Operation[F]:
    """The state of a scope; ``new`` creates an empty state."""
    fold: F = (yield from load_cached(core, name, new)).fold
    return fold


def load_cached(core: Core, name: str, new: Callable[[], F]) -> Operation[CachedFold]:
    """The state of a scope with what was derived from it."""
    return (yield from read(partial(_catch_up, core, scope_stream(core, name), new)))


def commit(
    core: Core,
    name: str,
    new: Callable[[], F],
    decide: Callable[[F, int], list[MemoryEvent]],
    *,
    actor: str | None = None,
    on_behalf_of: str | None = None,
    run_id: str | None = None,
    key: Key | None = None,
) -> Operation[Written[F]]:
    """Write the events that ``decide`` returns for the state and the time in microseconds. Decide again on a conflict.

    With a repeated ``key`` nothing is written. Raises the errors of ``decide``.
    """
    if actor is not None:
        check_id(actor, "actor")
    stream = scope_stream(core, name)
    conflict = ConflictError(stream, 0, 0)
    for _ in range(ATTEMPTS):
        fold = yield from load(core, name, new)
        version, head, now = fold.version, fold.head or ROOT, time_after(core, fold)
        try:
            decided = decide(fold, now)
        except ClewError:
            first = yield from _first_outcome(core, key)
            if first is None:
                raise
            return Written(fold, first.versions)
        if not decided:
            first = yield from _first_outcome(core, key)
            return Written(fold, () if first is None else first.versions)
        events = new_events(core, stream, version, now, decided, Actor(actor, on_behalf_of), run_id)
        try:
            done = yield from wait(core.log.submit(Write(events, {stream: head}, key=key)).outcome)
        except ConflictError as error:
            conflict = ConflictError(stream, error.expected, error.actual)
        else:
            if not done.repeated:
                core.models.notify()
            return Written((yield from load(core, name, new)), done.versions)
    raise conflict


def new_events(  # every field of the events has its own parameter
    core: Core,
    stream: str,
    version: int,
    now: int,
    decided: Sequence[MemoryEvent],
    by: Actor,
    run_id: str | None,
) -> list[Event]:
    """The events that follow a version of a stream. None as the name of the actor is that of the service."""
    actor, behalf = core.actor if by.name is None else by.name, by.on_behalf_of
    return [
        Event(
            stream,
            version + number,
            TYPE_NAMES[type(data)],
            core.event_id(),
            now,
            0,
            data,
            actor,
            run_id,
            on_behalf_of=behalf,
        )
        for number, data in enumerate(decided, 1)
    ]


def time_after(core: Core, fold: Fold) -> int:
    """The time of the next event of a stream, in microseconds since 1970: it never decreases."""
    return max(core.now(), min(fold.recorded_at, LAST_MICROSECOND))


def _first_outcome(core: Core, key: Key | None) -> Operation[Appended | None]:
    """The outcome of the first write with this key. It counts even if the scope would refuse the write today."""
    if key is None:
        return None
    return (yield from read(lambda: core.log.repeated(key)))


def _catch_up(core: Core, stream: str, new: Callable[[], F]) -> CachedFold:
    """The fold of a stream at its head. After a shredding it is built again."""
    shredded = core.log.shredded()
    fold: Any = new()
    name = f"{type(fold).__name__} {stream}"
    cached = core.caches.scopes.get(name)
    if cached is None or cached.shredded != shredded:
        cached = CachedFold(fold, shredded)
    fold, page = cached.fold, None
    while page is None or len(page) == PAGE:
        after = fold.version
        page = core.log.lineage(stream, after=after, upto=after + PAGE)
        with core.caches.lock(stream):  # another reader may have updated the same fold meanwhile
            for event in page[fold.version - after :]:
                fold.add(event)
    if fold.version:
        core.caches.scopes.put(name, cached, (len(fold) + 1) * FACT_BYTES)
    return cached
