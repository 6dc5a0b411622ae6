"""The in-memory store passes the library's own test cases, and works with its applications."""

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
    classes = InMemoryFactory, InMemoryRecorder, POPOAggregateRecorder, POPOTrackingRecorder
    tracking_subclass = OwnTracking

    def setUp(self) -> None:
        self.env = Environment(env={"PERSISTENCE_MODULE": MODULE})
        super().setUp()


class TestMemoryApplications(library.ApplicationContract):
    module = MODULE
    factory_class = InMemoryFactory
    is_persistent = False

    @pytest.fixture
    def env(self) -> dict[str, str]:
        return {"PERSISTENCE_MODULE": MODULE}
