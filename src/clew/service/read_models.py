"""The read models of a service: which there are, who fills them, and how they are read."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import TypeVar

from clew.domain.errors import ProjectionBehindError, StoreUnavailableError, UnknownProjectionError
from clew.domain.ports import EventLog
from clew.domain.projection import Projection, Query, RowValues, Table, Where, Words
from clew.domain.projection_store import ProjectionStore
from clew.infrastructure import code_digest
from clew.infrastructure.background_worker import BackgroundWorker
from clew.service.operations import Operation, pause, read
from clew.service.projector import Projector
from clew.service.rebuilding import rebuilding

_log = logging.getLogger(__name__)

T = TypeVar("T")

POLL_SECONDS = 0.02

STANDSTILL_SECONDS = 10.0
"""After so long in which nothing came nearer to what is waited for, the log of the process tells of it."""

SCRUB_SECONDS = 0.1
"""How long somebody else may go on reading before it is tried again to let go of text that was to be forgotten."""


class ReadModels:
    """The projections of one service. When it is ``embedded`` it fills them itself; who reads has what was written.

    ``awaited``: so has who reads what others alone may fill, once they have come there. ``on_standby``: it will be
    embedded once something was appended, which shows that the standby has been promoted.
    """

    def __init__(
        self,
        log: EventLog,
        store: ProjectionStore,
        projections: Sequence[Projection],
        *,
        embedded: bool,
        awaited: bool = False,
        on_standby: bool = False,
    ) -> None:
        self.projector = Projector(log, store, projections, code_digest.code)
        self.embedded = embedded
        self._awaited = awaited
        self._on_standby = on_standby
        self._store = store
        self._background = BackgroundWorker(self._work)
        self._come: set[str] | None = None

    def looking(self) -> ReadModels:
        """The same for one call of the service: a projection that has come as far as the log is not waited for again.

        So what was written before the first look at a projection is read, however often it is looked at.
        """
        found = copy(self)
        found._come = set()  # noqa: SLF001 - of the same class
        return found

    def _work(self) -> bool:
        """Do a part of what is to be done in the background; whether there is more."""
        try:
            return self._fill()
        except StoreUnavailableError as error:
            # It is gone on with when something is appended, or read, which is told of it itself.
            _log.warning("Projections are not filled for now: %s", error)
            return False

    def _fill(self) -> bool:
        if self.embedded and (names := self._unattended()) and self.projector.advance(names):
            return True
        if not self._store.purge():
            return False
        time.sleep(SCRUB_SECONDS)
        return True

    def _unattended(self) -> list[str]:
        """The projections that no worker fills; also one that a worker fills with other code than is to fill it."""
        held = self._store.holders()
        return [name for name in self.projector.projections if name not in held or self.projector.is_changed(name)]

    def nudge(self) -> None:
        """Something was appended."""
        self.embedded |= self._on_standby
        if self.embedded and self.projector.projections:
            self._background.notify()

    def forget(self, stream: str, version: int, by: int) -> None:
        """The text at a version was shredded by the event at version ``by``: its words leave the indexes now.

        Where another process alone may fill them, they leave when it comes to that event.
        """
        if self.projector.log.is_bound():
            return
        self.projector.forget(stream, version, by)
        if self._store.purge():
            self._background.notify()

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
            if name not in self.projector.projections:
                raise
            if not (self.embedded or self._awaited):
                raise UnknownProjectionError(name, [], unfilled=True) from None
            if self._come is not None:
                self._come.discard(name)
        return (yield from read(lambda: self._ready(name, do)))

    def _ready(self, name: str, do: Callable[[], T]) -> T:
        if self._come is None or name not in self._come:
            self._catch_up(name)
        if self._come is not None:
            self._come.add(name)
        return do()

    def _catch_up(self, name: str) -> None:
        if self.embedded:
            if self.projector.catch_up(name):
                self._background.notify()
        elif self._awaited:
            self.projector.await_filled(name)

    def wait(
        self,
        position: int | None,
        *,
        projection: str | None = None,
        timeout: float | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Operation[None]:
        """Wait until the log and a projection, or every one, have come to a position, by default the newest.

        ``timeout`` is in seconds. ``progress`` is told how far it is and how far there is to go, in positions from the
        first event. Raises ProjectionBehindError or UnknownProjectionError.
        """
        names = [*self.projector.projections] if projection is None else [self.projector.projection(projection).name]
        target: int = (yield from self.position()) if position is None else position
        until = None if timeout is None else time.monotonic() + timeout
        before: dict[str, int] = {}
        stands = 0.0
        while behind := (yield from read(lambda: self._behind(target, names))):
            if behind != before:
                before, stands = behind, time.monotonic() + STANDSTILL_SECONDS
            elif time.monotonic() >= stands:
                stands = float("inf")
                _warn_of_standstill(target, behind)
            if progress is not None:
                progress(*(yield from read(partial(self.projector.progress, min(behind.values()), target))))
            if until is not None and time.monotonic() >= until:
                raise ProjectionBehindError(
                    f"Position {target} was waited for, and after {timeout:g} s not reached by: {', '.join(behind)}. "
                    "Wait longer, or see `clew project status`."
                )
            if not (self.embedded and (yield from read(lambda: self.projector.advance(names)))):
                yield from pause(POLL_SECONDS)
            elif self.embedded:
                self._background.notify()  # to clean away the words of what was redacted elsewhere

    def _behind(self, target: int, names: Sequence[str]) -> dict[str, int]:
        """What has not come to a position, and where it is; of projections without tables -1.

        Beside the projections that may be the log: a standby's is behind its primary's. Who sees one tenant's events
        alone does not see how far the log is, but what fills the projections does.
        """
        last = self.projector.log.last_position()
        log = {"the log": last} if last < target and not self.projector.log.is_bound() else {}
        live = {built.name: built.position for built in self._store.built() if built.live}
        return log | {name: live.get(name, -1) for name in names if live.get(name, -1) < target}

    def position(self) -> Operation[int]:
        """The newest position of the log: what was appended here is not above it."""
        return (yield from read(self.projector.log.newest_position))

    def rebuild(self, name: str, progress: Callable[[int, int], None] | None) -> Operation[None]:
        """Build a projection anew beside what is read. Raises UnknownProjectionError."""
        steps = rebuilding(self.projector, name)
        while (reached := (yield from read(lambda: next(steps, None)))) is not None:
            if progress is not None:
                progress(*reached)


def _warn_of_standstill(target: int, behind: Iterable[str]) -> None:
    _log.warning(
        "Position %d is waited for, and in %g s nothing came nearer to it of what has not reached it: %s. "
        "Projections are filled by `clew project run`, or by a service that may write; see `clew project status`",
        target,
        STANDSTILL_SECONDS,
        ", ".join(behind),
    )


def _of_tenant(query: Query, tables: Mapping[str, Table], tenant: str) -> Query:
    where = [
        each._replace(value=_of_tenant(each.value, tables, tenant)) if isinstance(each.value, Query) else each
        for each in query.where
    ]
    table = tables.get(query.table)
    if table is not None and any(column.name == "tenant" for column in table.columns):
        where.append(Where("tenant", "=", tenant))
    return query._replace(where=where)
