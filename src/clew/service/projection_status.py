"""How far the projections of a store have come."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

from clew.domain.ports import EventLog
from clew.domain.projection import Built, Parked, Query, Recorded, RowValues
from clew.service.authorization import check
from clew.service.core import Core
from clew.service.operations import Operation, read
from clew.service.projector import Projector

PARKED_SHOWN = 100

MOST_COUNTED = 100_000
"""Events that are missing are counted up to here: to count more takes long, and tells no more."""


class ProjectionStatus(NamedTuple):
    """How far a projection has come.

    ``state`` is ``live``; ``building`` while it is built anew (``built`` is how far that is, and ``position`` how far
    the tables are that are read meanwhile); ``waiting`` when nobody has begun it; ``changed`` when other code has built
    it, ``newer`` when a newer version of it has, and ``other`` when it is another program's. ``lag`` is how many
    events are missing, or the first 100,000 of them: then ``lag_exact`` is False. ``lag_seconds`` is how long the first
    of them has been there. ``parked`` is how many events it went on without, and ``parked_events`` the first of them.
    ``worker`` is the one that holds its lease, None without any.
    """

    name: str
    version: int
    state: str
    position: int
    last_position: int
    lag: int
    lag_exact: bool
    lag_seconds: float
    built: int | None
    parked: int
    parked_events: tuple[Parked, ...]
    worker: str | None


def read_statuses(projector: Projector, wanted: Sequence[str] | None = None) -> list[ProjectionStatus]:
    """How far each projection has come, or each of those that are ``wanted``."""
    log = projector.log
    last = log.last_position()
    there = projector.store.built()
    holders = projector.store.holders()

    @cache  # most of them are at the same position
    def lag(position: int) -> tuple[int, float]:
        return (0, 0.0) if position >= last else (log.count_after(position, MOST_COUNTED), _waiting(log, position))

    names = dict.fromkeys([*projector.projections, *(built.name for built in there)] if wanted is None else wanted)
    found: list[ProjectionStatus] = []
    for name in names:
        own = [built for built in there if built.name == name]
        status = _status(projector, name, own, holders)
        events, seconds = lag(status.position)
        found.append(
            status._replace(last_position=last, lag=events, lag_exact=events < MOST_COUNTED, lag_seconds=seconds)
        )
    return found


def _status(projector: Projector, name: str, own: Sequence[Built], holders: Mapping[str, str]) -> ProjectionStatus:
    """What its tables say; the end of the log is left open."""
    projection = projector.projections.get(name)
    live = next((built for built in own if built.live), None)
    building = next((built for built in own if not built.live and projector.is_own(built)), None)
    version = 1 if projection is None else projection.version
    if projection is None:
        state = "other"
    elif live is None:
        state = "waiting"
    elif live.version > version:
        state = "newer"
    elif building is not None:
        state = "building"
    else:
        state = "live" if projector.is_own(live) else "changed"
    parked, first = (0, ()) if live is None else projector.store.parked(name, PARKED_SHOWN)
    return ProjectionStatus(
        name=name,
        version=version if live is None else live.version,
        state=state,
        position=0 if live is None else live.position,
        last_position=0,
        lag=0,
        lag_exact=True,
        lag_seconds=0.0,
        built=None if building is None else building.position,
        parked=parked,
        parked_events=tuple(first),
        worker=holders.get(name),
    )


def _waiting(log: EventLog, position: int) -> float:
    """How long the first event after a position has been there, in seconds."""
    for event in log.recorded_after(position, 1):
        if isinstance(event, Recorded):
            return max(0.0, time.time() - event.recorded_at / 1e6)
    return 0.0


def rows(core: Core, projection: str, query: Query) -> Operation[list[RowValues]]:
    """Rows of a projection, of this tenant where they are somebody's. Raises NotAuthorizedError."""
    yield from check(core, "rows")
    return (yield from core.models.rows(projection, query, core.tenant))


def statuses(core: Core) -> Operation[list[ProjectionStatus]]:
    """How far each projection has come, and what it could not take in. Raises NotAuthorizedError."""
    yield from check(core, "rows")
    return (yield from read(lambda: read_statuses(core.models.projector)))
