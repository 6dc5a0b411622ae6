"""What the library asks of every store: its own cases, and applications of it that know nothing of Clew."""

from __future__ import annotations

from typing import Any
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
from eventsourcing.system import ProcessApplication
from eventsourcing.utils import Environment


class Made:
    """The library's cases ask for a recorder, which the store's factory makes."""

    factory: Any


class Aggregates(Made, cases.AggregateRecorderTestCase):
    def create_recorder(self) -> AggregateRecorder:
        recorder: AggregateRecorder = self.factory.aggregate_recorder()
        return recorder


class Snapshots(Made, cases.AggregateRecorderTestCase):
    def create_recorder(self) -> AggregateRecorder:
        recorder: AggregateRecorder = self.factory.aggregate_recorder("snapshots")
        return recorder


class Applications(Made, cases.ApplicationRecorderTestCase[Any]):
    def create_recorder(self) -> Any:
        return self.factory.application_recorder()

    def test_insert_subscribe(self) -> None:
        self.optional_test_insert_subscribe()


class Processes(Made, cases.ProcessRecorderTestCase):
    def create_recorder(self) -> ProcessRecorder:
        recorder: ProcessRecorder = self.factory.process_recorder()
        return recorder


class Trackings(Made, cases.TrackingRecorderTestCase):
    def create_recorder(self) -> TrackingRecorder:
        recorder: TrackingRecorder = self.factory.tracking_recorder()
        return recorder


class ProcessTrackings(Made, cases.TrackingRecorderTestCase):
    def create_recorder(self) -> TrackingRecorder:
        recorder: TrackingRecorder = self.factory.process_recorder()
        return recorder


class Interleavings(Made, cases.NonInterleavingNotificationIDsBaseCase):
    def create_recorder(self) -> Any:
        return self.factory.application_recorder()


class Factories(cases.InfrastructureFactoryTestCase[Any]):
    """``makes`` is the factory and what it makes: of events, and the library's own of aggregates and of tracking.

    ``own`` is a class that an application may name instead of the last.
    """

    makes: tuple[type[Any], type[Any], type[AggregateRecorder], type[TrackingRecorder]]
    own: type[TrackingRecorder]

    def expected_factory_class(self) -> type[Any]:
        return self.makes[0]

    def expected_application_recorder_class(self) -> type[Any]:
        return self.makes[1]

    def expected_process_recorder_class(self) -> type[Any]:
        return self.makes[1]

    def expected_aggregate_recorder_class(self) -> type[AggregateRecorder]:
        return self.makes[2]

    def expected_tracking_recorder_class(self) -> type[TrackingRecorder]:
        return self.makes[3]

    def tracking_recorder_subclass(self) -> type[TrackingRecorder]:
        return self.own


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


class ApplicationContract:
    """``env`` names an empty store, and ``module`` what it is in; ``outlives`` says whether it outlives a close."""

    module: str
    factory_class: type[Any]
    outlives = True

    def test_serves_an_application_of_the_library_with_its_snapshots(self, env: dict[str, str]) -> None:
        with Kennels(env) as kennels:
            kennel = Kennel("home")
            for dog in ("Rex", "Bello", "Laika", "Fido"):
                kennel.add(dog)
                kennels.save(kennel)
            assert kennels.repository.get(kennel.id).dogs == ["Rex", "Bello", "Laika", "Fido"]
            assert kennels.repository.get(kennel.id, version=3).dogs == ["Rex", "Bello"]
            assert kennels.snapshots is not None
            assert len(list(kennels.snapshots.get(kennel.id))) == 1
            *_, before, last = kennels.notification_log.select(1, 10)
            stale: Kennel = kennels.repository.get(kennel.id)
            kennel.add("Lassie")
            kennels.save(kennel)
            stale.add("Toto")
            with pytest.raises(IntegrityError):
                kennels.save(stale)
            with pytest.raises(AggregateNotFoundError):
                kennels.repository.get(Kennel("nobody").id)
            with kennels.recorder.subscribe(gt=before.id) as subscription:
                assert next(subscription).id == last.id
                assert next(subscription).originator_version == kennel.version

    def test_finds_what_an_application_stored_when_it_is_opened_again(self, env: dict[str, str]) -> None:
        with Kennels(env) as kennels:
            kennel = Kennel("home")
            kennel.add("Rex")
            kennels.save(kennel)
        with Kennels(env) as kennels:
            if self.outlives:
                assert kennels.repository.get(kennel.id).dogs == ["Rex"]
            else:
                assert kennels.recorder.max_notification_id() is None

    def test_tracks_what_a_process_application_has_seen(self, env: dict[str, str]) -> None:
        with Counting(env) as counting:
            recorder = counting.recorder
            recorder.insert_events([], tracking=Tracking("kennels", 7))
            assert recorder.max_tracking_id("kennels") == 7
            with pytest.raises(IntegrityError):
                recorder.insert_events([], tracking=Tracking("kennels", 7))

    def test_is_found_by_the_module_or_by_the_class(self, env: dict[str, str]) -> None:
        for topic in (self.module, f"{self.module}:{self.factory_class.__name__}"):
            factory: Any = InfrastructureFactory.construct(Environment(env={**env, "PERSISTENCE_MODULE": topic}))
            assert isinstance(factory, self.factory_class)
            assert factory.application_recorder().max_notification_id() is None
            factory.close()
