"""The state of the projections of a store, and their rows."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

from clew.domain.ports import EventLog
from clew.domain.projection import Generation, Parked, Query, Recorded, RowValues
from clew.service.authorization import check
from clew.service.core import Core
from clew.service.effects import Operation, read
from clew.service.projector import Projector

PARKED_SHOWN = 100

MOST_COUNTED = 100_000
"""Missing events are counted up to here: counting more is slow, and not more useful."""


class ProjectionStatus(NamedTuple):
    """The state of a projection.

    ``state`` is ``live``; ``building`` during a rebuild (``built`` is its position, and ``position`` that of the tables
    that are read meanwhile); ``waiting`` before it is built for the first time; ``changed`` when other code has built
    it, ``newer`` when a newer version has, and ``other`` when it belongs to another program. ``lag`` is the number of
    missing events; more than 100,000 are not counted: then ``lag_exact`` is False. ``lag_seconds`` is the age of the
    first missing event. ``parked`` is the number of events that it skipped, and ``parked_events`` are the first of
    them. ``worker`` holds its lease; None if no worker does.
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
    """The state of every projection, or of those that are ``wanted``."""
    log = projector.log
    last = log.last_position()
    generations = projector.store.generations()
    holders = projector.store.holders()

    @cache  # most projections are at the same position
    def lag(position: int) -> tuple[int, float]:
        return (0, 0.0) if position >= last else (log.count_after(position, MOST_COUNTED), _waiting(log, position))

    names = dict.fromkeys(
        [*projector.projections, *(built.name for built in generations)] if wanted is None else wanted
    )
    statuses: list[ProjectionStatus] = []
    for name in names:
        own = [built for built in generations if built.name == name]
        status = _status(projector, name, own, holders)
        events, seconds = lag(status.position)
        statuses.append(
            status._replace(last_position=last, lag=events, lag_exact=events < MOST_COUNTED, lag_seconds=seconds)
        )
    return statuses


def _status(projector: Projector, name: str, own: Sequence[Generation], holders: Mapping[str, str]) -> ProjectionStatus:
    """The state that its tables show; the caller adds the end of the log."""
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
    """The age of the first event after a position, in seconds."""
    for event in log.recorded_after(position, 1):
        if isinstance(event, Recorded):
            return max(0.0, time.time() - event.recorded_at / 1e6)
    return 0.0


def rows(core: Core, projection: str, query: Query) -> Operation[list[RowValues]]:
    """Rows of a projection; of a table with a column ``tenant`` this tenant's. Raises NotAuthorizedError."""
    yield from check(core, "rows")
    return (yield from core.models.rows(projection, query, core.tenant))


def statuses(core: Core) -> Operation[list[ProjectionStatus]]:
    """The state of every projection, with its parked events. Raises NotAuthorizedError."""
    yield from check(core, "rows")
    return (yield from read(lambda: read_statuses(core.models.projector)))
