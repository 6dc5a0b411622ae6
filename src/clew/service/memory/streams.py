"""Reading and writing the streams of memory scopes: each is folded once and gone on with, and written by decisions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from clew.domain.chain import ROOT
from clew.domain.errors import ClewError, ConflictError, InvalidNameError, ScopeError
from clew.domain.events import TYPE_NAMES, Event
from clew.domain.memory.events import MemoryEvent
from clew.domain.names import check_id, stream_name, stream_prefix
from clew.domain.ports import Appended, Key, Write
from clew.service.caches import Kept
from clew.service.core import ATTEMPTS, Core
from clew.service.operations import Operation, read, wait

PAGE = 500
"""Events of a stream that are read at once."""


class Fold(Protocol):
    """What is known of a stream. ``recorded_at`` is the time of its newest event, in microseconds since 1970.

    One at a time adds to it; others may read it meanwhile.
    """

    version: int
    head: bytes
    recorded_at: int

    def add(self, event: Event) -> None:
        """Go on with the next event."""
        ...

    def __len__(self) -> int: ...


F = TypeVar("F", bound=Fold)


@dataclass(frozen=True, slots=True)
class Written(Generic[F]):
    """What was written: the fold with it, and the versions; those of the first time when the key was there before."""

    fold: F
    versions: tuple[int, ...]
    repeated: bool = False


def check_scope_name(name: object, what: str = "memory") -> str:
    """The name of a scope. Raises ScopeError for one that is none, and InvalidNameError as for ids."""
    if not isinstance(name, str) or not name.strip():
        found = "an empty name" if isinstance(name, str) else f"{type(name).__name__}"
        raise ScopeError(
            f"{what}: a scope was asked for and {found} was given. Name one, such as 'user/42': what is of nobody in "
            "particular is not everybody's."
        )
    check_id(name, f"{what}, scope")
    return name


def stream_of(core: Core, name: str) -> str:
    """The name of the stream of a scope."""
    return stream_name(core.tenant, "memory", name)


def prefix_of(core: Core) -> str:
    """What the names of the streams of this tenant's scopes begin with."""
    return stream_prefix(core.tenant, "memory")


def key_of(core: Core, name: str, key: str | None, content: bytes) -> Key | None:
    """An idempotency key on the stream of a scope. Raises InvalidNameError."""
    if key is None:
        return None
    if not isinstance(key, str) or not 1 <= len(key) <= 200 or not key.isprintable():  # noqa: PLR2004  # as for ids
        raise InvalidNameError("idempotency key: it must be 1 to 200 printable characters.")
    return Key(stream_of(core, name), key, content)


def load(core: Core, name: str, new: Callable[[], F]) -> Operation[F]:
    """What is known of a scope; ``new`` makes the fold that it begins with."""
    kept = yield from look(core, name, new)
    fold: F = kept.fold
    return fold


def look(core: Core, name: str, new: Callable[[], F]) -> Operation[Kept]:
    """The same, with what was made of it."""
    return (yield from read(partial(_go_on, core, stream_of(core, name), new)))


def commit(
    core: Core,
    name: str,
    new: Callable[[], F],
    decide: Callable[[F, int], list[MemoryEvent]],
    *,
    actor: str | None = None,
    run_id: str | None = None,
    key: Key | None = None,
) -> Operation[Written[F]]:
    """Decide on what is known, at a time in microseconds, and write; a conflict is decided again.

    With a ``key`` that was there nothing is written. Raises what ``decide`` does.
    """
    if actor is not None:
        check_id(actor, "actor")
    stream = stream_of(core, name)
    conflict = ConflictError(stream, 0, 0)
    for _ in range(ATTEMPTS):
        fold = yield from load(core, name, new)
        version, head, now = fold.version, fold.head or ROOT, max(core.now(), fold.recorded_at)
        try:
            decided = decide(fold, now)
        except ClewError:
            first = yield from _repeated(core, key)
            if first is None:
                raise
            return Written(fold, first.versions, repeated=True)
        by = core.actor if actor is None else actor
        events = [
            Event(stream, version + place, TYPE_NAMES[type(data)], core.event_id(), now, 0, data, by, run_id)
            for place, data in enumerate(decided, 1)
        ]
        try:
            done = yield from wait(core.log.submit(Write(events, {stream: head}, key=key)).outcome)
        except ConflictError as found:
            conflict = ConflictError(stream, found.expected, found.actual)
        else:
            if not done.repeated:
                core.models.notify()
            return Written((yield from load(core, name, new)), done.versions, done.repeated)
    raise conflict


def _repeated(core: Core, key: Key | None) -> Operation[Appended | None]:
    """What a write with this key did the first time: it counts also when the scope would refuse it today."""
    if key is None:
        return None
    return (yield from read(lambda: core.log.repeated(key)))


def _go_on(core: Core, stream: str, new: Callable[[], F]) -> Kept:
    """The fold of a stream at its head; it is begun anew when something was shredded."""
    shredded = core.log.shredded()
    fold: Any = new()
    name = f"{type(fold).__name__} {stream}"
    kept = core.known.scopes.get(name)
    if kept is None or kept.shredded != shredded:
        kept = Kept(fold, shredded)
    fold, page = kept.fold, None
    while page is None or len(page) == PAGE:
        after = fold.version
        page = core.log.lineage(stream, after=after, upto=after + PAGE)
        with core.known.lock(stream):  # another reader may have gone on with the same fold meanwhile
            for event in page[fold.version - after :]:
                fold.add(event)
    if fold.version:
        core.known.scopes.put(name, kept, len(fold) + 1)
    return kept
