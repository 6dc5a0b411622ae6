"""Filling projections in a process that does nothing else: once and be done, or as a worker among others.

A worker goes on after the store was away for a while: it opens it again, for what is there then may be older.
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

    from clew.domain.projection import Built

LEASE_SECONDS = 10.0
"""How long a worker keeps its leases when it does not renew them: then others go on with its projections."""

RENEW_SECONDS = 2.0

AGAIN_SECONDS = 1.0
"""How long after the store went away it is tried again; twice as long after each time that it was not there."""

LONGEST_SECONDS = 30.0


def worker_name() -> str:
    """A name for a worker of this process, that no other has."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"


class Runner:
    """Fills these projections of a store, by default all that it was opened with; ``told`` is called after each batch.

    ``told`` is given how far those have come that are furthest behind, and how far there is to go, in positions from
    the first event. ``worker`` is the name under which it holds leases. Raises UnknownProjectionError, or
    StoreUnavailableError where one tenant's events alone are seen.
    """

    def __init__(
        self, core: Core, names: Sequence[str], told: Callable[[int, int], None], *, worker: str | None = None
    ) -> None:
        self._projector = core.models.projector
        self._names = list(names) or list(self._projector.projections)
        for name in self._names:
            self._projector.projection(name)
        self._projector.check_sees_all()
        self._log = core.log
        self._told = told
        self.worker = worker or worker_name()
        self._held: list[str] = []
        self._renewed = float("-inf")
        self._settled: tuple[int, list[Built]] | None = None
        # Not an Event, whose lock a handler of signals may find held by the very code that it interrupts.
        self._woken: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._stopped = False
        self.begun = False
        """Whether it has come to its leases once."""

    def stop(self) -> None:
        """Let ``run`` or ``follow`` return after the batch that it is at; may be called by a handler of signals."""
        self._stopped = True
        self._woken.put(None)

    def _wake(self) -> None:
        if self._woken.empty():
            self._woken.put(None)

    def run(self) -> None:
        """Fill until there is nothing more to do, whoever else does so too."""
        self._held = self._names
        with self._measured():
            self.tell()
            while not self._stopped:
                if self._projector.advance(self._names):
                    self.tell()
                elif self._projector.is_held_up(self._names):
                    self._wait(RENEW_SECONDS)
                else:
                    break
            self._projector.store.purge()

    def follow(self) -> None:
        """Fill what no other worker does, and go on as events are appended, by anybody, until ``stop``.

        Raises StoreUnavailableError when the store is away.
        """
        unlisten = self._log.listen(self._wake)
        try:
            with self._letting_go(), self._measured():
                while not self._stopped:
                    self._renew()
                    self._fill()
                    self._projector.store.purge()  # again after each rest, until it is done
                    self._rest()
        finally:
            unlisten()

    @contextmanager
    def _letting_go(self) -> Iterator[None]:
        """Let others have the leases at the end; where the store is away they run out by themselves."""
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
        """Keep to the leases, or come to others, when it is time to."""
        if time.monotonic() < self._renewed + RENEW_SECONDS:
            return
        names = [name for name in self._names if self._projector.may_maintain(name)]
        self._held = self._projector.store.claim(self.worker, names, LEASE_SECONDS)
        self._renewed = time.monotonic()
        self.begun = True
        # Looked at again, too: of text that somebody else forgot meanwhile neither log nor position tells.
        self._settled = None

    def _fill(self) -> None:
        while not self._stopped and self._held:
            seen = self._seen()
            # Not even a transaction where nothing has happened: its end would wake everybody who waits for events.
            if seen == self._settled:
                return
            self._tell(seen)
            if not self._projector.advance(self._held):
                self._settled = seen
                return
            self._renew()

    def _rest(self) -> None:
        left = self._renewed + RENEW_SECONDS - time.monotonic()
        if left > 0 and not self._stopped:
            self._wait(left)

    def _wait(self, seconds: float) -> None:
        with suppress(queue.Empty):
            self._woken.get(timeout=seconds)

    def _seen(self) -> tuple[int, list[Built]]:
        return self._log.last_position(), self._projector.store.built()

    def tell(self) -> None:
        """Tell how far they are now, whoever fills them."""
        self._tell(self._seen())

    def _tell(self, seen: tuple[int, list[Built]]) -> None:
        last, there = seen
        reached = [built.position for built in there if built.name in self._names]
        self._told(*self._projector.progress(min(reached, default=0), last))

    @contextmanager
    def _measured(self) -> Iterator[None]:
        """Tell OpenTelemetry how far those are that are filled here."""
        metrics = ProjectionMetrics(self._measure)
        self._projector.counted = metrics.counted
        try:
            yield
        finally:
            self._projector.counted = None
            metrics.close()

    def _measure(self) -> list[Measured]:
        found = read_statuses(self._projector, self._held)
        return [Measured(each.name, each.lag, each.lag_seconds, each.parked) for each in found]


class LastingRunner:
    """Lets a runner follow a store, and another after it whenever the store went away and is there again.

    ``opened`` opens the store, and ``runner`` makes the runner of it. ``said`` is told what went wrong, and that it is
    tried again. A store that was never there is waited for only if that is ``patient``.
    """

    def __init__(
        self,
        opened: Callable[[], Core],
        runner: Callable[[Core], Runner],
        said: Callable[[str], None],
        *,
        patient: bool = False,
    ) -> None:
        self._opened = opened
        self._make = runner
        self._said = said
        self._patient = patient
        self._runner: Runner | None = None
        self._woken: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._stopped = False

    def stop(self) -> None:
        """Let ``follow`` return after the batch that it is at; may be called by a handler of signals."""
        self._stopped = True
        self._woken.put(None)
        if self._runner is not None:
            self._runner.stop()

    def follow(self) -> StoreUnavailableError | None:
        """Fill until ``stop``; returns what was said of a store that is away by then.

        Raises StoreUnavailableError for a store that was never there.
        """
        begun, wait = self._patient, AGAIN_SECONDS
        while not self._stopped:
            self._runner = None
            try:
                self._follow_one()
            except StoreUnavailableError as error:
                if self._stopped:  # whatever it was waiting for, it is not waited for any more
                    return error
                if self._runner is not None and self._runner.begun:
                    begun, wait = True, AGAIN_SECONDS
                if not begun:
                    raise
                self._said(f"{error} Tried again in {wait:g} s.")
                self._rest(wait)
                wait = min(2 * wait, LONGEST_SECONDS)
        return None

    def _follow_one(self) -> None:
        with closing(self._opened()) as core:
            self._runner = self._make(core)
            if not self._stopped:
                self._runner.follow()

    def _rest(self, seconds: float) -> None:
        with suppress(queue.Empty):
            self._woken.get(timeout=seconds)
