"""The store in memory passes the library's own cases, and serves applications that know nothing of it."""

from __future__ import annotations

import pytest
import tests.infrastructure.library_contract as library
from eventsourcing.popo import POPOAggregateRecorder, POPOTrackingRecorder
from eventsourcing.utils import Environment

from clew.infrastructure.inmemory.factory import InMemoryFactory
from clew.infrastructure.inmemory.recorder import InMemoryRecorder

MODULE = "clew.infrastructure.inmemory.factory"


class Memory:
    def setUp(self) -> None:
        self.factory = InMemoryFactory({})

    def tearDown(self) -> None:
        self.factory.close()


class TestMemoryAggregates(Memory, library.Aggregates): ...


class TestMemorySnapshots(Memory, library.Snapshots): ...


class TestMemoryApplication(Memory, library.Applications): ...


class TestMemoryProcess(Memory, library.Processes): ...


class TestMemoryTracking(Memory, library.Trackings): ...


class TestMemoryProcessTracking(Memory, library.ProcessTrackings): ...


class TestMemoryInterleaving(Memory, library.Interleavings): ...


class OwnTracking(POPOTrackingRecorder): ...


class TestMemoryFactory(library.Factories):
    makes = InMemoryFactory, InMemoryRecorder, POPOAggregateRecorder, POPOTrackingRecorder
    own = OwnTracking

    def setUp(self) -> None:
        self.env = Environment(env={"PERSISTENCE_MODULE": MODULE})
        super().setUp()


class TestMemoryApplications(library.ApplicationContract):
    module = MODULE
    factory_class = InMemoryFactory
    outlives = False

    @pytest.fixture
    def env(self) -> dict[str, str]:
        return {"PERSISTENCE_MODULE": MODULE}
