"""The library's factory for Clew's in-memory stores: ``PERSISTENCE_MODULE=clew.infrastructure.inmemory.factory``."""

from __future__ import annotations

import eventsourcing.popo as library
from eventsourcing.persistence import ApplicationRecorder, ProcessRecorder
from eventsourcing.utils import Environment, EnvType

from clew.infrastructure.inmemory.recorder import InMemoryRecorder


class InMemoryFactory(library.POPOFactory):
    """Works for any application of the library. Snapshots and plain tracking stay in the library's recorders.

    It is alone in its module, because the library looks for the only factory of a module.
    """

    def __init__(self, env: Environment | EnvType | None) -> None:
        super().__init__(env)
        self._recorders: list[InMemoryRecorder] = []

    def application_recorder(self) -> ApplicationRecorder:
        """A new, empty store."""
        return self._make()

    def process_recorder(self) -> ProcessRecorder:
        """A new, empty store."""
        return self._make()

    def close(self) -> None:
        """Close all its stores."""
        for recorder in self._recorders:
            recorder.close()

    def _make(self) -> InMemoryRecorder:
        recorder = InMemoryRecorder()
        self._recorders.append(recorder)
        return recorder
