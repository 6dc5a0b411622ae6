"""Clew's PostgreSQL store passes the library's own cases, and serves an application that knows nothing of it."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, cast
from uuid import UUID

import eventsourcing.tests.persistence as cases
import pytest
from eventsourcing.application import AggregateNotFoundError, Application
from eventsourcing.domain import Aggregate, event
from eventsourcing.persistence import (
    AggregateRecorder,
    InfrastructureFactory,
    IntegrityError,
    Notification,
    ProcessRecorder,
    StoredEvent,
    Tracking,
    TrackingRecorder,
)
from eventsourcing.postgres import PostgresAggregateRecorder, PostgresTrackingRecorder
from eventsourcing.system import ProcessApplication
from eventsourcing.utils import Environment

from clew.infrastructure.postgres.factory import PostgresFactory
from clew.infrastructure.postgres.recorder import PostgresRecorder

POSTGRES = "clew.infrastructure.postgres.factory"


class Postgres:
    url: ClassVar[str]

    @pytest.fixture(autouse=True)
    def _database(self, postgres: str) -> Iterator[None]:
        type(self).url = postgres
        self.factory = PostgresFactory({"POSTGRES_URL": postgres})
        yield
        self.factory.close()


class Ranked(PostgresRecorder):
    """Positions as the library's cases count them: one, two, three."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._lock = threading.Lock()
        self._known: list[int] = []

    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> Sequence[int]:
        return [self._rank(position) for position in super().insert_events(stored_events, **kwargs)]

    def select_notifications(
        self,
        start: int | None,
        limit: int,
        stop: int | None = None,
        topics: Sequence[str] = (),
        *,
        inclusive_of_start: bool = True,
    ) -> Sequence[Notification]:
        known = [0, *self._positions()]
        first = None if start is None else known[start] if start < len(known) else known[-1] + 1
        last = None if stop is None else known[min(stop, len(known) - 1)]
        found = super().select_notifications(first, limit, last, topics, inclusive_of_start=inclusive_of_start)
        return [
            Notification(each.originator_id, each.originator_version, each.topic, each.state, id=self._rank(each.id))
            for each in found
        ]

    def max_notification_id(self) -> int | None:
        return len(self._positions()) or None

    def last_position(self) -> int:
        return len(self._positions())

    def _positions(self) -> list[int]:
        with self._lock:
            after = self._known[-1] if self._known else 0
            self._known.extend(row.position for row in self.rows(after=after, limit=100_000))
            return self._known

    def _rank(self, position: int) -> int:
        known = self._known if self._known and self._known[-1] >= position else self._positions()
        return bisect_left(known, position) + 1


class TestPostgresAggregates(Postgres, cases.AggregateRecorderTestCase):
    def create_recorder(self) -> AggregateRecorder:
        return self.factory.aggregate_recorder()


class TestPostgresSnapshots(Postgres, cases.AggregateRecorderTestCase):
    def create_recorder(self) -> AggregateRecorder:
        return self.factory.aggregate_recorder("snapshots")


class TestPostgresApplication(Postgres, cases.ApplicationRecorderTestCase[Any]):
    def create_recorder(self) -> Any:
        return Ranked(cast("PostgresRecorder", self.factory.application_recorder()).datastore)

    def test_insert_subscribe(self) -> None:
        self.optional_test_insert_subscribe()


class TestPostgresProcess(Postgres, cases.ProcessRecorderTestCase):
    def create_recorder(self) -> ProcessRecorder:
        return self.factory.process_recorder()


class TestPostgresTracking(Postgres, cases.TrackingRecorderTestCase):
    def create_recorder(self) -> TrackingRecorder:
        return self.factory.tracking_recorder()


class TestPostgresProcessTracking(Postgres, cases.TrackingRecorderTestCase):
    def create_recorder(self) -> TrackingRecorder:
        return self.factory.process_recorder()


class TestPostgresInterleaving(Postgres, cases.NonInterleavingNotificationIDsBaseCase):
    def create_recorder(self) -> Any:
        return self.factory.application_recorder()


class OwnTracking(PostgresTrackingRecorder):
    pass


class TestPostgresFactory(cases.InfrastructureFactoryTestCase[Any]):
    @pytest.fixture(autouse=True)
    def _database(self, postgres: str) -> None:
        self.env = Environment(env={"PERSISTENCE_MODULE": POSTGRES, "POSTGRES_URL": postgres})
        cases.InfrastructureFactoryTestCase.setUp(self)

    def setUp(self) -> None:
        """The fixture has done it."""

    def expected_factory_class(self) -> type[Any]:
        return PostgresFactory

    def expected_aggregate_recorder_class(self) -> type[AggregateRecorder]:
        return PostgresAggregateRecorder

    def expected_application_recorder_class(self) -> type[Any]:
        return PostgresRecorder

    def expected_tracking_recorder_class(self) -> type[TrackingRecorder]:
        return PostgresTrackingRecorder

    def tracking_recorder_subclass(self) -> type[TrackingRecorder]:
        return OwnTracking

    def expected_process_recorder_class(self) -> type[Any]:
        return PostgresRecorder


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


def test_serves_an_application_of_the_library_with_its_snapshots(postgres: str) -> None:
    env = {"PERSISTENCE_MODULE": POSTGRES, "POSTGRES_URL": postgres}
    with Kennels(env) as kennels:
        kennel = Kennel("home")
        for dog in ("Rex", "Bello", "Laika", "Fido"):
            kennel.add(dog)
            kennels.save(kennel)
        assert kennels.repository.get(kennel.id).dogs == ["Rex", "Bello", "Laika", "Fido"]
        assert kennels.repository.get(kennel.id, version=3).dogs == ["Rex", "Bello"]
        assert kennels.snapshots is not None
        assert len(list(kennels.snapshots.get(kennel.id))) == 1
        stale: Kennel = kennels.repository.get(kennel.id)
        kennel.add("Lassie")
        kennels.save(kennel)
        stale.add("Toto")
        with pytest.raises(IntegrityError):
            kennels.save(stale)
        with pytest.raises(AggregateNotFoundError):
            kennels.repository.get(Kennel("nobody").id)
    with Kennels(env) as kennels:
        assert kennels.repository.get(kennel.id).dogs == ["Rex", "Bello", "Laika", "Fido", "Lassie"]
        with kennels.recorder.subscribe(gt=0) as subscription:
            assert next(subscription).originator_id == kennel.id


def test_tracks_what_a_process_application_has_seen(postgres: str) -> None:
    with Counting({"PERSISTENCE_MODULE": POSTGRES, "POSTGRES_URL": postgres}) as counting:
        recorder = counting.recorder
        recorder.insert_events([], tracking=Tracking("kennels", 7))
        assert recorder.max_tracking_id("kennels") == 7
        with pytest.raises(IntegrityError):
            recorder.insert_events([], tracking=Tracking("kennels", 7))


def test_is_found_by_the_module_or_by_the_class(postgres: str) -> None:
    for topic in (POSTGRES, f"{POSTGRES}:PostgresFactory"):
        factory: Any = InfrastructureFactory.construct(
            Environment(env={"PERSISTENCE_MODULE": topic, "POSTGRES_URL": postgres})
        )
        assert isinstance(factory, PostgresFactory)
        assert factory.application_recorder().max_notification_id() is None
        factory.close()
