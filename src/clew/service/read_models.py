"""The read models of a service: they catch up in the background, and reads see everything that was written before."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import TypeVar

from clew.domain.errors import ProjectionBehindError, StoreUnavailableError, UnknownProjectionError
from clew.domain.ports import EventLog
from clew.domain.projection import Generation, Projection, Query, RowValues, Table, Value, Where, Words
from clew.domain.projection_store import BusyError, ProjectionStore
from clew.infrastructure import code_digest, process_forks
from clew.service.effects import Operation, Pause, Read
from clew.service.projector import Projector

_log = logging.getLogger(__name__)

T = TypeVar("T")

DIRECTORY = "directory"

POLL_SECONDS = 0.02

STANDSTILL_SECONDS = 10.0
"""How long a wait lasts without progress before it is logged."""

QUIET_SECONDS = 0.1
"""The work in the background starts after this long without a new request …"""

PATIENCE_SECONDS = 2.0
"""… or this long after the first one, whichever comes first."""

PURGE_SECONDS = 0.1
"""The pause between attempts to remove deleted text while a reader still keeps it in the files."""


class _Barrier:
    """The position that the reads of one call must see, and the projections that have reached it."""

    def __init__(self, last: int, generations: Sequence[Generation]) -> None:
        self.last = last
        self.generations = generations
        self.reached: set[str] = set()


class ReadModels:
    """The projections of one service. When it is ``embedded`` the service maintains them itself.

    ``awaited``: other processes maintain them, and a read waits for those. ``on_standby``: the service becomes embedded
    after its first append, which shows that the standby was promoted.
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
        self.follows_appends = (embedded or on_standby) and bool(projections)
        """Whether an append gives this service something to project."""
        self._awaited = awaited
        self._on_standby = on_standby
        self._store = store
        self._background = BackgroundWorker(self._work)
        self._one_call = False
        self._barrier: _Barrier | None = None

    def read_barrier(self) -> ReadModels:
        """A copy for one call of the service: all of its reads see what was written before the first of them.

        So one call reads the position of the log only once, for all of its read models.
        """
        one_call = copy(self)
        one_call._one_call = True  # noqa: SLF001 - of the same class
        one_call._barrier = None  # noqa: SLF001 - of the same class
        return one_call

    # In the background

    def _work(self) -> bool:
        """Do a part of the work in the background; True if there is more."""
        try:
            names = self._unattended() if self.embedded else []
            if names and self.projector.advance(names, unless=lambda: True) and not self.projector.is_at_end:
                return True
            if not self._store.purge():
                return False
        except BusyError:
            # Another process does the same work. If all processes waited in line, a reader would wait for all of them.
            self._background.notify()
            return False
        except StoreUnavailableError as error:
            # The next append or read tries again, and reports the error itself.
            _log.warning("Projections are not maintained for now: %s", error)
            return False
        time.sleep(PURGE_SECONDS)
        return True

    def _unattended(self) -> list[str]:
        """The projections without a worker, and those whose worker has outdated code."""
        held = self._store.holders()
        if not held:
            return list(self.projector.projections)
        return [name for name in self.projector.projections if name not in held or self.projector.is_changed(name)]

    def notify(self) -> None:
        """Events were appended. Only needed if ``follows_appends``."""
        self.embedded |= self._on_standby
        if self.follows_appends:
            self._background.notify()

    def forget(self, stream: str, versions: Sequence[int], by: int) -> None:
        """Remove the words of texts from the indexes now; the event at version ``by`` shredded them.

        If only another process can maintain the indexes, that process removes the words when it reaches the event.
        """
        if not self.projector.log.is_bound():
            self.projector.forget(stream, versions, by)
            if self._store.purge():
                self._background.notify()

    def erase(self, position: int) -> bool:
        """Remove what was shredded up to a position from the tables and their files.

        False while another program still reads an older state of the files, and while tables have not reached the
        position that only another process can fill. A user that sees only one tenant's events cannot fill any, and
        leaves them to the processes that do.
        """
        projector = self.projector
        if not projector.log.is_bound() and not projector.reach(position, begin=self.embedded):
            return False
        if self._store.purge(of_others=True):
            self._background.notify()
            return False
        return True

    def stop(self) -> None:
        """End the work in the background."""
        self._background.close()

    def close(self) -> None:
        """Release the tables."""
        self._store.close()

    # Reading

    def maintains(self, name: str) -> bool:
        """Whether this service brings a projection up to date before it is read."""
        return self.embedded and name in self.projector.projections

    def sees_all(self, name: str) -> bool:
        """Whether the reads of this call see what was written before it; False outside of one call."""
        return self._one_call and (self.embedded or self._awaited) and name in self.projector.projections

    def rows(self, name: str, query: Query, tenant: str) -> Operation[list[RowValues]]:
        """Rows of a projection; of a table with a column ``tenant`` only those of one tenant."""
        projection = self.projector.projections.get(name)
        tables = {table.name: table for table in (() if projection is None else projection.tables)}
        return (yield from self.select(name, _of_tenant(query, tables, tenant)))

    def select(self, name: str, query: Query) -> Operation[list[RowValues]]:
        """Rows of a projection, with everything that was written before the call."""
        rows: list[RowValues] = yield Read(partial(self._read, name, partial(self._store.select, name, query)))
        return rows

    def values(self, name: str, query: Query) -> Operation[Sequence[tuple[Value, ...]]]:
        """The same rows as tuples of the query's columns; None for a column that tables of an older version lack."""
        values = partial(self._store.values, name, query)
        rows: Sequence[tuple[Value, ...]] = yield Read(partial(self._read, name, values))
        return rows

    def find(self, name: str, index: str, words: Words, *, before: int | None, limit: int) -> Operation[list[int]]:
        """The positions of texts with these words, newest first, with everything that was written before the call."""
        find = partial(self._store.find, name, index, words, before=before, limit=limit)
        positions: list[int] = yield Read(partial(self._read, name, find))
        return positions

    def _read(self, name: str, read: Callable[[], T]) -> T:
        """Read after the projection has caught up; again if its tables were deleted in between."""
        try:
            self._catch_up(name)
            return read()
        except UnknownProjectionError:
            if name not in self.projector.projections:
                raise
            if not (self.embedded or self._awaited):
                raise UnknownProjectionError(name, [], unfilled=True) from None
        self._barrier = None
        self._catch_up(name)
        return read()

    def _catch_up(self, name: str) -> None:
        """Let a projection reach the end of the log, once in a call."""
        barrier = self._barrier
        if barrier is not None and name in barrier.reached:
            return
        projector = self.projector
        if self._awaited and not self.embedded:
            projector.await_others(name)
            barrier = barrier or _Barrier(0, ())
        elif self.embedded:
            barrier = barrier or _Barrier(projector.log.last_position(), self._store.generations())
            if not projector.is_current(name, barrier.last, barrier.generations):
                projector.catch_up(name, barrier.last)
                barrier.generations = self._store.generations()
            if projector.is_changed(name, barrier.generations):
                self._background.notify()
        if self._one_call and barrier is not None:
            barrier.reached.add(name)
            self._barrier = barrier

    def wait(
        self,
        position: int | None,
        *,
        projection: str | None = None,
        timeout: float | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Operation[None]:
        """Wait until the log and a projection, or every one, have reached a position, by default the newest.

        ``timeout`` is in seconds. ``progress`` is called with their progress and the target, in positions from the
        first event. Raises ProjectionBehindError or UnknownProjectionError.
        """
        names = [*self.projector.projections] if projection is None else [self.projector.projection(projection).name]
        target: int = (yield from self.position()) if position is None else position
        until = None if timeout is None else time.monotonic() + timeout
        before: dict[str, int] = {}
        standstill = 0.0
        while behind := (yield Read(partial(self._behind, target, names))):
            if behind != before:
                before, standstill = behind, time.monotonic() + STANDSTILL_SECONDS
            elif time.monotonic() >= standstill:
                standstill = float("inf")
                _warn_of_standstill(target, behind)
            if progress is not None:
                progress(*(yield Read(partial(self.projector.progress, min(behind.values()), target))))
            if until is not None and time.monotonic() >= until:
                raise ProjectionBehindError(
                    f"Position {target} was not reached within {timeout:g} s by: {', '.join(behind)}. "
                    "Wait longer, or see `clew project status`."
                )
            if not (self.embedded and (yield Read(partial(self.projector.advance, names)))):
                yield Pause(POLL_SECONDS)
            else:
                self._background.notify()  # to remove words of texts that other processes redacted

    def _behind(self, target: int, names: Sequence[str]) -> dict[str, int]:
        """The projections, and the log, that have not reached a position, with theirs; -1 without tables.

        The log itself may be behind: a standby's is behind its primary's. A user that sees only one tenant's events
        cannot see the end of the log, but the processes that maintain the projections can.
        """
        last = self.projector.log.last_position()
        log = {"the log": last} if last < target and not self.projector.log.is_bound() else {}
        live = {built.name: built.position for built in self._store.generations() if built.live}
        return log | {name: live.get(name, -1) for name in names if live.get(name, -1) < target}

    def position(self) -> Operation[int]:
        """The newest position of the log; this process has appended nothing above it."""
        position: int = yield Read(self.projector.log.newest_position)
        return position

    def rebuild(self, name: str, progress: Callable[[int, int], None] | None) -> Operation[None]:
        """Rebuild a projection in new tables, next to those that are read. Raises UnknownProjectionError."""
        steps = self.projector.rebuild(name)
        while (reached := (yield Read(partial(next, steps, None)))) is not None:
            if progress is not None:
                progress(*reached)


class BackgroundWorker(process_forks.ForkAware):
    """After each ``notify``, calls ``work`` in a thread for as long as it returns True.

    The work starts a little later, so that many requests are handled together.
    """

    def __init__(self, work: Callable[[], bool]) -> None:
        self._work = work
        self._start()
        process_forks.watch(self)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._requested = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def notify(self) -> None:
        """Request the work. This is cheap."""
        self._last_request = time.monotonic()
        if self._requested.is_set():
            return
        with self._lock:
            # In this order: wherever Ctrl-C interrupts it, the next request is noted or has a thread.
            if self._thread is None and not self._stopped.is_set():
                thread = threading.Thread(target=self._run, name="clew-projector", daemon=True)
                thread.start()
                self._thread = thread
            self._requested.set()

    def close(self) -> None:
        """Wait for the current step of the work, then end the thread. Does nothing the second time."""
        process_forks.unwatch(self)
        with self._lock:
            self._stopped.set()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        # The thread ends when there is nothing to do: a waiting thread would keep an unclosed service alive.
        while not self._stopped.is_set():
            until = time.monotonic() + PATIENCE_SECONDS
            while (quiet := self._last_request + QUIET_SECONDS) > (now := time.monotonic()) and now < until:
                if self._stopped.wait(min(quiet, until) - now):
                    break
            self._requested.clear()
            try:
                while not self._stopped.is_set() and self._work():
                    pass
            except Exception:  # noqa: BLE001 - the next request tries again; readers meet the error themselves
                _log.exception("Work in the background failed")
            with self._lock:
                if not self._requested.is_set():
                    self._thread = None
                    return

    def after_fork_in_child(self) -> None:
        """Start without a thread: the parent keeps its own."""
        self._start()


def _warn_of_standstill(target: int, behind: Iterable[str]) -> None:
    _log.warning(
        "Still waiting for position %d: in %g s there was no progress of %s. "
        "`clew project run`, or a service that can write, maintains projections; see `clew project status`",
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
