"""The read models of a service: which there are, who fills them, and how they are read."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from clew.domain.errors import ProjectionBehindError, UnknownProjectionError
from clew.domain.ports import EventLog
from clew.domain.projection import Built, Parked, Projection, Query, Recorded, RowValues, Table, Where, Words
from clew.domain.projection_store import ProjectionStore
from clew.infrastructure import code_digest
from clew.infrastructure.background import Background
from clew.service.operations import Operation, pause, read
from clew.service.projecting import Projector

T = TypeVar("T")

POLL_SECONDS = 0.02

SCRUB_SECONDS = 0.1
"""How long somebody else may go on reading before it is tried again to let go of text that was to be forgotten."""

PARKED_SHOWN = 100


class ProjectionStatus(NamedTuple):
    """How far a projection has come.

    ``state`` is ``live``; ``building`` while it is built anew (``built`` is how far that is, and ``position`` how far
    the tables are that are read meanwhile); ``waiting`` when nobody has begun it; ``changed`` when other code has built
    it, ``newer`` when a newer version of it has, and ``other`` when it is another program's. ``lag`` is in events, at
    the most: it counts positions; ``lag_seconds`` is how long the first event that is missing has been there.
    ``parked`` is how many events it went on without, and ``parked_events`` the first of them.
    """

    name: str
    version: int
    state: str
    position: int
    last_position: int
    lag: int
    lag_seconds: float
    built: int | None
    parked: int
    parked_events: tuple[Parked, ...]


class ReadModels:
    """The projections of one service. When it is ``embedded`` it fills them itself; who reads has what was written."""

    def __init__(
        self, log: EventLog, store: ProjectionStore, projections: Sequence[Projection], *, embedded: bool
    ) -> None:
        self.projector = Projector(log, store, projections, code_digest.code, code_digest.shape)
        self.embedded = embedded
        self._store = store
        self._background = Background(self._work)

    def _work(self) -> bool:
        if self.embedded and self.projector.advance():
            return True
        if not self._store.scrub():
            return False
        time.sleep(SCRUB_SECONDS)
        return True

    def nudge(self) -> None:
        """Something was appended."""
        if self.embedded:
            self._background.nudge()

    def forget(self, stream: str, version: int, by: int) -> None:
        """The text at a version was shredded by the event at version ``by``: its words leave the indexes now."""
        self.projector.forget(stream, version, by)
        if self._store.scrub():
            self._background.nudge()

    def stop(self) -> None:
        """Fill no more."""
        self._background.close()

    def close(self) -> None:
        """Let go of the tables."""
        self._store.close()

    def rows(self, name: str, query: Query, tenant: str) -> Operation[list[RowValues]]:
        """Rows of a projection; of a table with a column ``tenant`` only those of one tenant."""
        projection = self.projector.projections.get(name)
        tables = {table.name: table for table in (() if projection is None else projection.tables)}
        return (yield from self.select(name, _of_tenant(query, tables, tenant)))

    def select(self, name: str, query: Query) -> Operation[list[RowValues]]:
        """Rows of a projection, with everything that was written before the call."""
        return (yield from self._read(name, lambda: self._store.select(name, query)))

    def find(self, name: str, index: str, words: Words, *, before: int | None, limit: int) -> Operation[list[int]]:
        """The positions of texts with these words, newest first, with everything that was written before the call."""
        return (yield from self._read(name, lambda: self._store.find(name, index, words, before=before, limit=limit)))

    def _read(self, name: str, do: Callable[[], T]) -> Operation[T]:
        """Once more when the tables were deleted just then: who fills them makes them anew."""
        try:
            return (yield from read(lambda: self._ready(name, do)))
        except UnknownProjectionError:
            if not self.embedded or name not in self.projector.projections:
                raise
        return (yield from read(lambda: self._ready(name, do)))

    def _ready(self, name: str, do: Callable[[], T]) -> T:
        if self.embedded:
            self.projector.catch_up(name)
            if self.projector.is_changed(name):
                self._background.nudge()
        return do()

    def wait(
        self,
        position: int | None,
        *,
        projection: str | None = None,
        timeout: float | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Operation[None]:
        """Wait until a projection, or every one, has come to a position, by default the newest.

        ``timeout`` is in seconds. ``progress`` is told the position reached and the last one. Raises
        ProjectionBehindError or UnknownProjectionError.
        """
        names = [*self.projector.projections] if projection is None else [self.projector.projection(projection).name]
        target: int = (yield from read(self.projector.log.last_position)) if position is None else position
        until = None if timeout is None else time.monotonic() + timeout
        while behind := (yield from read(lambda: self._behind(target, names))):
            if progress is not None:
                progress(min(behind.values()), target)
            if until is not None and time.monotonic() >= until:
                raise ProjectionBehindError(
                    f"Position {target} was waited for, and after {timeout:g} s not reached by: {', '.join(behind)}. "
                    "Wait longer, or see `clew project status`."
                )
            if not (self.embedded and (yield from read(lambda: self.projector.advance(names)))):
                yield from pause(POLL_SECONDS)

    def _behind(self, target: int, names: Sequence[str]) -> dict[str, int]:
        """The projections whose tables have not come to a position, and where they are; -1 where there are none."""
        live = {built.name: built.position for built in self._store.built() if built.live}
        return {name: live.get(name, -1) for name in names if live.get(name, -1) < target}

    def rebuild(self, name: str, progress: Callable[[int, int], None] | None) -> Operation[None]:
        """Build a projection anew beside what is read. Raises UnknownProjectionError."""
        steps = self.projector.rebuilding(name)
        while (reached := (yield from read(lambda: next(steps, None)))) is not None:
            if progress is not None:
                progress(*reached)

    def statuses(self) -> Operation[list[ProjectionStatus]]:
        """How far each projection has come."""
        return (yield from read(self._statuses))

    def _statuses(self) -> list[ProjectionStatus]:
        last = self.projector.log.last_position()
        there = self._store.built()
        names = dict.fromkeys([*self.projector.projections, *(built.name for built in there)])
        return [self._status(name, [built for built in there if built.name == name], last) for name in names]

    def _status(self, name: str, own: Sequence[Built], last: int) -> ProjectionStatus:
        projection = self.projector.projections.get(name)
        live = next((built for built in own if built.live), None)
        code = None if projection is None else self.projector.code(projection)
        building = next((built for built in own if not built.live and built.code == code), None)
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
            state = "live" if live.code == code else "changed"
        position = 0 if live is None else live.position
        parked, first = (0, ()) if live is None else self._store.parked(name, PARKED_SHOWN)
        return ProjectionStatus(
            name,
            version if live is None else live.version,
            state,
            position,
            last,
            max(0, last - position),
            self._lag_seconds(position, last),
            None if building is None else building.position,
            parked,
            tuple(first),
        )

    def _lag_seconds(self, position: int, last: int) -> float:
        if position >= last:
            return 0.0
        for event in self.projector.log.recorded_after(position, 1):
            if isinstance(event, Recorded):
                return max(0.0, time.time() - event.recorded_at / 1e6)
        return 0.0


def _of_tenant(query: Query, tables: Mapping[str, Table], tenant: str) -> Query:
    where = [
        each._replace(value=_of_tenant(each.value, tables, tenant)) if isinstance(each.value, Query) else each
        for each in query.where
    ]
    table = tables.get(query.table)
    if table is not None and any(column.name == "tenant" for column in table.columns):
        where.append(Where("tenant", "=", tenant))
    return query._replace(where=where)
