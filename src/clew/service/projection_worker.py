"""Processes that only maintain projections: once, or as one of several workers.

A worker survives an outage of the store: it opens the store again, because an older copy may be there then.
"""

from __future__ import annotations

import os
import queue
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING

from clew.domain.errors import StoreUnavailableError
from clew.infrastructure.projection_metrics import Measured, ProjectionMetrics
from clew.service.core import Core
from clew.service.projection_status import read_statuses

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clew.domain.projection import Generation

LEASE_SECONDS = 10.0
"""How long a lease lasts that is not renewed; then another worker takes it."""

RENEW_SECONDS = 2.0

RETRY_SECONDS = 1.0
"""How long to wait for a store that is away; twice as long after each failed attempt."""

LONGEST_SECONDS = 30.0


def worker_name() -> str:
    """A unique name for a worker of this process."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"


class Runner:
    """Maintains projections of a store, by default all that it was opened with; calls ``report`` after each batch.

    ``report`` gets the position of the projection that is furthest behind, and that of the end of the log, both
    counted from the first event. ``worker`` is the name under which it holds leases. Raises UnknownProjectionError, or
    StoreUnavailableError if only one tenant's events are visible.
    """

    def __init__(
        self, core: Core, names: Sequence[str], report: Callable[[int, int], None], *, worker: str | None = None
    ) -> None:
        self._projector = core.models.projector
        self._names = list(names) or list(self._projector.projections)
        for name in self._names:
            self._projector.projection(name)
        self._projector.check_sees_all()
        self._log = core.log
        self._on_progress = report
        self.worker = worker or worker_name()
        self._held: list[str] = []
        self._renewed = float("-inf")
        self._finished: tuple[int, list[Generation]] | None = None
        # Not an Event: a signal handler may interrupt code that holds its lock.
        self._woken: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._stopped = False
        self.has_claimed = False
        """Whether it has claimed leases."""

    def stop(self) -> None:
        """Let ``run`` or ``follow`` return after the current batch; a signal handler may call it."""
        self._stopped = True
        self._woken.put(None)

    def _wake(self) -> None:
        if self._woken.empty():
            self._woken.put(None)

    def run(self) -> None:
        """Apply batches until nothing is left to do, with or without leases."""
        self._held = self._names
        with self._measured():
            self.report_progress()
            while not self._stopped:
                if self._projector.advance(self._names):
                    self.report_progress()
                elif self._projector.is_held_up(self._names):
                    self._wait(RENEW_SECONDS)
                else:
                    break
            self._projector.store.purge()

    def follow(self) -> None:
        """Maintain the projections that no other worker holds, as events are appended, until ``stop``.

        Raises StoreUnavailableError when the store is away.
        """
        unlisten = self._log.listen(self._wake)
        try:
            with self._releasing(), self._measured():
                while not self._stopped:
                    self._renew()
                    self._catch_up()
                    self._projector.store.purge()  # repeated after each rest, until done
                    self._rest()
        finally:
            unlisten()

    @contextmanager
    def _releasing(self) -> Iterator[None]:
        """Release the leases at the end; they expire by themselves if the store is away."""
        try:
            yield
        except StoreUnavailableError:
            raise
        except BaseException:
            with suppress(StoreUnavailableError):
                self._projector.store.release(self.worker)
            raise
        self._projector.store.release(self.worker)

    def _renew(self) -> None:
        """Renew the leases, or claim others, when it is time to."""
        if time.monotonic() < self._renewed + RENEW_SECONDS:
            return
        names = [name for name in self._names if self._projector.may_maintain(name)]
        self._held = self._projector.store.claim(self.worker, names, LEASE_SECONDS)
        self._renewed = time.monotonic()
        self.has_claimed = True
        # Always try: neither log nor position shows that another process has removed text.
        self._finished = None

    def _catch_up(self) -> None:
        while not self._stopped and self._held:
            seen = self._seen()
            # Without changes, not even a transaction: its end would wake every process that waits for events.
            if seen == self._finished:
                return
            self._report(seen)
            if not self._projector.advance(self._held):
                self._finished = seen
                return
            self._renew()

    def _rest(self) -> None:
        seconds = self._renewed + RENEW_SECONDS - time.monotonic()
        if seconds > 0 and not self._stopped:
            self._wait(seconds)

    def _wait(self, seconds: float) -> None:
        with suppress(queue.Empty):
            self._woken.get(timeout=seconds)

    def _seen(self) -> tuple[int, list[Generation]]:
        return self._log.last_position(), self._projector.store.generations()

    def report_progress(self) -> None:
        """Report the progress of the projections."""
        self._report(self._seen())

    def _report(self, seen: tuple[int, list[Generation]]) -> None:
        last, generations = seen
        reached = [generation.position for generation in generations if generation.name in self._names]
        self._on_progress(*self._projector.progress(min(reached, default=0), last))

    @contextmanager
    def _measured(self) -> Iterator[None]:
        """Report the lag of the projections that this process maintains to OpenTelemetry."""
        metrics = ProjectionMetrics(self._measure)
        self._projector.counted = metrics.counted
        try:
            yield
        finally:
            self._projector.counted = None
            metrics.close()

    def _measure(self) -> list[Measured]:
        statuses = read_statuses(self._projector, self._held)
        return [Measured(each.name, each.lag, each.lag_seconds, each.parked) for each in statuses]


class LastingRunner:
    """Runs a runner that follows a store, and a new one each time the store comes back after an outage.

    ``open_core`` opens the store, and ``make_runner`` makes its runner. It calls ``warn`` with each failure. If it is
    ``patient``, it also waits for a store that it has never reached.
    """

    def __init__(
        self,
        open_core: Callable[[], Core],
        make_runner: Callable[[Core], Runner],
        warn: Callable[[str], None],
        *,
        patient: bool = False,
    ) -> None:
        self._open_core = open_core
        self._make_runner = make_runner
        self._warn = warn
        self._patient = patient
        self._runner: Runner | None = None
        self._woken: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._stopped = False

    def stop(self) -> None:
        """Let ``follow`` return after the current batch; a signal handler may call it."""
        self._stopped = True
        self._woken.put(None)
        if self._runner is not None:
            self._runner.stop()

    def follow(self) -> StoreUnavailableError | None:
        """Maintain projections until ``stop``; returns the error if the store is away by then.

        Raises StoreUnavailableError for a store that it has never reached.
        """
        was_reached, wait = self._patient, RETRY_SECONDS
        while not self._stopped:
            self._runner = None
            try:
                self._follow_one()
            except StoreUnavailableError as error:
                if self._stopped:  # no reason to wait any longer
                    return error
                if self._runner is not None and self._runner.has_claimed:
                    was_reached, wait = True, RETRY_SECONDS
                if not was_reached:
                    raise
                self._warn(f"{error} Trying again in {wait:g} s.")
                self._rest(wait)
                wait = min(2 * wait, LONGEST_SECONDS)
        return None

    def _follow_one(self) -> None:
        with closing(self._open_core()) as core:
            self._runner = self._make_runner(core)
            if not self._stopped:
                self._runner.follow()

    def _rest(self, seconds: float) -> None:
        with suppress(queue.Empty):
            self._woken.get(timeout=seconds)
