"""Streams of memory scopes built from events, for tests."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from clew.domain.events import TYPE_NAMES, Event, Opaque, Shredded
from clew.domain.memory.events import (
    FactRemembered,
    FactRetracted,
    FactSuperseded,
    MemoryEvent,
    Provenance,
    ScopeOpened,
    Statement,
)
from clew.domain.memory.scope import ScopeFold

SCOPE = "user/42"
START = 1_700_000_000_000_000
SECOND = 1_000_000
OPENED = ScopeOpened(holds="facts")


def at(seconds: int) -> datetime:
    """Return the time this many seconds after the first event."""
    return datetime.fromtimestamp(START // SECOND + seconds, UTC)


def micros(seconds: int) -> int:
    return START + seconds * SECOND


def remembered(fact: str, text: str = "", learned: Provenance | None = None, **more: object) -> FactRemembered:
    return FactRemembered(fact=fact, statement=Statement(text=text or fact, learned=learned, **more))  # type: ignore[arg-type]


def superseded(fact: str, by: str, learned: Provenance | None = None, **more: object) -> FactSuperseded:
    return FactSuperseded(fact=fact, by=by, statement=Statement(text=by, learned=learned, **more))  # type: ignore[arg-type]


def retracted(fact: str, learned: Provenance | None = None, valid_to: int | None = None) -> FactRetracted:
    return FactRetracted(fact=fact, learned=learned, valid_to=valid_to)


def recorded(events: Iterable[MemoryEvent | Opaque | Shredded], positions: list[int] | None = None) -> list[Event]:
    """Return a stream whose n-th event is recorded n - 1 seconds after the first, at position n by default."""
    return [
        Event(
            stream="default/memory/user%2F42",
            version=version,
            type=TYPE_NAMES.get(type(data), "fact-remembered"),  # type: ignore[arg-type]
            event_id=f"e{version}",
            recorded_at=micros(version - 1),
            messages=0,
            data=data,
            actor="user:42",
            position=version if positions is None else positions[version - 1],
            hash=bytes([version % 256]) * 32,
        )
        for version, data in enumerate(events, 1)
    ]


def folded(events: Iterable[Event]) -> ScopeFold:
    fold = ScopeFold()
    for event in events:
        fold.add(event)
    return fold
