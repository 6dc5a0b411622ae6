"""Clew's stores pass the library's own cases, and serve an application of the library's that knows nothing of them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any, cast
from uuid import UUID

import eventsourcing.tests.persistence as cases
import pytest
from eventsourcing.application import AggregateNotFoundError, Application
from eventsourcing.domain import Aggregate, event
from eventsourcing.persistence import (
    AggregateRecorder,
    InfrastructureFactory,
    IntegrityError,
    ProcessRecorder,
    Tracking,
    TrackingRecorder,
)
from eventsourcing.popo import POPOAggregateRecorder, POPOTrackingRecorder
from eventsourcing.sqlite import SQLiteAggregateRecorder, SQLiteTrackingRecorder
from eventsourcing.system import ProcessApplication
from eventsourcing.utils import Environment

from clew.infrastructure.memory_factory import MemoryFactory
from clew.infrastructure.memory_recorder import MemoryRecorder
from clew.infrastructure.sqlite.factory import SQLiteFactory
from clew.infrastructure.sqlite.recorder import SQLiteRecorder

MEMORY = "clew.infrastructure.memory_factory:MemoryFactory"
SQLITE = "clew.infrastructure.sqlite.factory:SQLiteFactory"


class Memory:
    def setUp(self) -> None:
        self.factory = MemoryFactory({})

    def tearDown(self) -> None:
        self.factory.close()


class SQLite:
    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.factory = SQLiteFactory({"SQLITE_DBNAME": f"{self.folder.name}/clew.db"})

    def tearDown(self) -> None:
        self.factory.close()
        self.folder.cleanup()


class Subscribing:
    def test_insert_subscribe(self) -> None:
        cast("cases.ApplicationRecorderTestCase[Any]", self).optional_test_insert_subscribe()


class TestMemoryAggregates(Memory, cases.AggregateRecorderTestCase):
    def create_recorder(self) -> AggregateRecorder:
        return self.factory.aggregate_recorder()


class TestMemorySnapshots(Memory, cases.AggregateRecorderTestCase):
    def create_recorder(self) -> AggregateRecorder:
        return self.factory.aggregate_recorder("snapshots")


class TestMemoryApplication(Memory, Subscribing, cases.ApplicationRecorderTestCase[Any]):
    def create_recorder(self) -> Any:
        return self.factory.application_recorder()


class TestMemoryProcess(Memory, cases.ProcessRecorderTestCase):
    def create_recorder(self) -> ProcessRecorder:
        return self.factory.process_recorder()


class TestMemoryTracking(Memory, cases.TrackingRecorderTestCase):
    def create_recorder(self) -> TrackingRecorder:
        return self.factory.tracking_recorder()


class TestMemoryProcessTracking(Memory, cases.TrackingRecorderTestCase):
    def create_recorder(self) -> TrackingRecorder:
        return self.factory.process_recorder()


class TestMemoryInterleaving(Memory, cases.NonInterleavingNotificationIDsBaseCase):
    def create_recorder(self) -> Any:
        return self.factory.application_recorder()


class TestSQLiteAggregates(SQLite, cases.AggregateRecorderTestCase):
    def create_recorder(self) -> AggregateRecorder:
        return self.factory.aggregate_recorder()


class TestSQLiteSnapshots(SQLite, cases.AggregateRecorderTestCase):
    def create_recorder(self) -> AggregateRecorder:
        return self.factory.aggregate_recorder("snapshots")


class TestSQLiteApplication(SQLite, Subscribing, cases.ApplicationRecorderTestCase[Any]):
    def create_recorder(self) -> Any:
        return self.factory.application_recorder()


class TestSQLiteProcess(SQLite, cases.ProcessRecorderTestCase):
    def create_recorder(self) -> ProcessRecorder:
        return self.factory.process_recorder()


class TestSQLiteTracking(SQLite, cases.TrackingRecorderTestCase):
    def create_recorder(self) -> TrackingRecorder:
        return self.factory.tracking_recorder()


class TestSQLiteProcessTracking(SQLite, cases.TrackingRecorderTestCase):
    def create_recorder(self) -> TrackingRecorder:
        return self.factory.process_recorder()


class TestSQLiteInterleaving(SQLite, cases.NonInterleavingNotificationIDsBaseCase):
    def create_recorder(self) -> Any:
        return self.factory.application_recorder()


class OwnMemoryTracking(POPOTrackingRecorder):
    pass


class OwnSQLiteTracking(SQLiteTrackingRecorder):
    pass


class TestMemoryFactory(cases.InfrastructureFactoryTestCase[Any]):
    def setUp(self) -> None:
        self.env = Environment(env={"PERSISTENCE_MODULE": "clew.infrastructure.memory_factory"})
        super().setUp()

    def expected_factory_class(self) -> type[Any]:
        return MemoryFactory

    def expected_aggregate_recorder_class(self) -> type[AggregateRecorder]:
        return POPOAggregateRecorder

    def expected_application_recorder_class(self) -> type[Any]:
        return MemoryRecorder

    def expected_tracking_recorder_class(self) -> type[TrackingRecorder]:
        return POPOTrackingRecorder

    def tracking_recorder_subclass(self) -> type[TrackingRecorder]:
        return OwnMemoryTracking

    def expected_process_recorder_class(self) -> type[Any]:
        return MemoryRecorder


class TestSQLiteFactory(cases.InfrastructureFactoryTestCase[Any]):
    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.env = Environment(
            env={
                "PERSISTENCE_MODULE": "clew.infrastructure.sqlite.factory",
                "SQLITE_DBNAME": f"{self.folder.name}/clew.db",
            }
        )
        super().setUp()

    def tearDown(self) -> None:
        super().tearDown()
        self.folder.cleanup()

    def expected_factory_class(self) -> type[Any]:
        return SQLiteFactory

    def expected_aggregate_recorder_class(self) -> type[AggregateRecorder]:
        return SQLiteAggregateRecorder

    def expected_application_recorder_class(self) -> type[Any]:
        return SQLiteRecorder

    def expected_tracking_recorder_class(self) -> type[TrackingRecorder]:
        return SQLiteTrackingRecorder

    def tracking_recorder_subclass(self) -> type[TrackingRecorder]:
        return OwnSQLiteTracking

    def expected_process_recorder_class(self) -> type[Any]:
        return SQLiteRecorder


class Kennel(Aggregate):
    def __init__(self, name: str) -> None:
        self.name = name
        self.dogs: list[str] = []

    @event("Added")
    def add(self, dog: str) -> None:
        self.dogs.append(dog)


class Kennels(Application[UUID]):
    snapshotting_intervals = {Kennel: 3}  # noqa: RUF012 - the library's way to say it


class Counting(ProcessApplication[UUID]):
    def policy(self, domain_event: Any, processing_event: Any) -> None:
        """Only the tracking of it is recorded."""


@pytest.fixture(params=["memory", "sqlite"])
def env(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[dict[str, str]]:
    if request.param == "memory":
        yield {"PERSISTENCE_MODULE": MEMORY}
    else:
        yield {"PERSISTENCE_MODULE": SQLITE, "SQLITE_DBNAME": str(tmp_path / "clew.db")}


def test_serves_an_application_of_the_library_with_its_snapshots(env: dict[str, str]) -> None:
    with Kennels(env) as kennels:
        kennel = Kennel("home")
        for dog in ("Rex", "Bello", "Laika", "Fido"):
            kennel.add(dog)
            kennels.save(kennel)
        assert kennels.repository.get(kennel.id).dogs == ["Rex", "Bello", "Laika", "Fido"]
        assert kennels.repository.get(kennel.id, version=3).dogs == ["Rex", "Bello"]
        assert kennels.snapshots is not None
        assert len(list(kennels.snapshots.get(kennel.id))) == 1
        assert [item.id for item in kennels.notification_log.select(1, 10)] == [1, 2, 3, 4, 5]
        stale: Kennel = kennels.repository.get(kennel.id)
        kennel.add("Lassie")
        kennels.save(kennel)
        stale.add("Toto")
        with pytest.raises(IntegrityError):
            kennels.save(stale)
        with pytest.raises(AggregateNotFoundError):
            kennels.repository.get(Kennel("nobody").id)
        with kennels.recorder.subscribe(gt=3) as subscription:
            assert next(subscription).id == 4


def test_finds_what_an_application_stored_when_it_is_opened_again(tmp_path: Any) -> None:
    env = {"PERSISTENCE_MODULE": SQLITE, "SQLITE_DBNAME": str(tmp_path / "clew.db")}
    with Kennels(env) as kennels:
        kennel = Kennel("home")
        kennel.add("Rex")
        kennels.save(kennel)
    with Kennels(env) as kennels:
        assert kennels.repository.get(kennel.id).dogs == ["Rex"]


def test_tracks_what_a_process_application_has_seen(env: dict[str, str]) -> None:
    with Counting(env) as counting:
        recorder = counting.recorder
        recorder.insert_events([], tracking=Tracking("kennels", 7))
        assert recorder.max_tracking_id("kennels") == 7
        with pytest.raises(IntegrityError):
            recorder.insert_events([], tracking=Tracking("kennels", 7))


def test_keeps_many_rows_of_tracking_when_it_is_told_to(tmp_path: Any) -> None:
    env = {"SQLITE_DBNAME": str(tmp_path / "clew.db"), "SINGLE_ROW_TRACKING": "no"}
    factory = SQLiteFactory(env)
    recorder = factory.process_recorder()
    recorder.insert_events([], tracking=Tracking("up", 2))
    recorder.insert_events([], tracking=Tracking("up", 1))
    with pytest.raises(IntegrityError):
        recorder.insert_events([], tracking=Tracking("up", 2))
    assert recorder.max_tracking_id("up") == 2
    factory.close()


@pytest.mark.parametrize("topic", [MEMORY, SQLITE, MEMORY.partition(":")[0], SQLITE.partition(":")[0]])
def test_is_found_by_the_module_or_by_the_class(topic: str, tmp_path: Any) -> None:
    env = {"PERSISTENCE_MODULE": topic, "SQLITE_DBNAME": str(tmp_path / "clew.db")}
    factory = InfrastructureFactory.construct(Environment(env=env))
    assert isinstance(factory, MemoryFactory | SQLiteFactory)
    factory.close()
