"""Filling projections in a process that does nothing else, or once and be done."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence

from clew.service.core import Core


class Runner:
    """Fills these projections of a store, by default all that it was opened with; ``told`` is called after each batch.

    ``told`` is given the position that all of them have reached, and the last one.
    """

    def __init__(self, core: Core, names: Sequence[str], told: Callable[[int, int], None]) -> None:
        self._projector = core.models.projector
        self._names = list(names) or list(self._projector.projections)
        for name in self._names:
            self._projector.projection(name)
        self._log = core.log
        self._told = told
        # Not an Event, whose lock a handler of signals may find held by the very code that it interrupts.
        self._woken: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._stopped = False

    def stop(self) -> None:
        """Let ``run`` or ``follow`` return after the batch that it is at; may be called by a handler of signals."""
        self._stopped = True
        self._woken.put(None)

    def _wake(self) -> None:
        if self._woken.empty():
            self._woken.put(None)

    def run(self) -> None:
        """Fill until there is nothing more to do."""
        self._tell()
        while not self._stopped and self._projector.advance(self._names):
            self._tell()

    def follow(self) -> None:
        """Fill, and go on as events are appended, by this process or another, until ``stop``."""
        unlisten = self._log.listen(self._wake)
        try:
            while not self._stopped:
                self.run()
                self._woken.get()
        finally:
            unlisten()

    def _tell(self) -> None:
        there = self._projector.store.built()
        reached = [built.position for built in there if built.name in self._names]
        self._told(min(reached, default=0), self._log.last_position())
