"""The library's requirements for every store: its own test cases, and applications that do not depend on Clew."""

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


class WithFactory:
    """The library's test cases need a recorder, which the store's factory creates."""

    factory: Any


class Aggregates(WithFactory, cases.AggregateRecorderTestCase):
    def create_recorder(self) -> AggregateRecorder:
        recorder: AggregateRecorder = self.factory.aggregate_recorder()
        return recorder


class Snapshots(WithFactory, cases.AggregateRecorderTestCase):
    def create_recorder(self) -> AggregateRecorder:
        recorder: AggregateRecorder = self.factory.aggregate_recorder("snapshots")
        return recorder


class Applications(WithFactory, cases.ApplicationRecorderTestCase[Any]):
    def create_recorder(self) -> Any:
        return self.factory.application_recorder()

    def test_insert_subscribe(self) -> None:
        self.optional_test_insert_subscribe()


class Processes(WithFactory, cases.ProcessRecorderTestCase):
    def create_recorder(self) -> ProcessRecorder:
        recorder: ProcessRecorder = self.factory.process_recorder()
        return recorder


class Trackings(WithFactory, cases.TrackingRecorderTestCase):
    def create_recorder(self) -> TrackingRecorder:
        recorder: TrackingRecorder = self.factory.tracking_recorder()
        return recorder


class ProcessTrackings(WithFactory, cases.TrackingRecorderTestCase):
    def create_recorder(self) -> TrackingRecorder:
        recorder: TrackingRecorder = self.factory.process_recorder()
        return recorder


class Interleavings(WithFactory, cases.NonInterleavingNotificationIDsBaseCase):
    def create_recorder(self) -> Any:
        return self.factory.application_recorder()


class Factories(cases.InfrastructureFactoryTestCase[Any]):
    """``classes`` are the factory, and its recorders of events, of aggregates and of tracking.

    ``tracking_subclass`` is a class that an application can configure instead of the last one.
    """

    classes: tuple[type[Any], type[Any], type[AggregateRecorder], type[TrackingRecorder]]
    tracking_subclass: type[TrackingRecorder]

    def expected_factory_class(self) -> type[Any]:
        return self.classes[0]

    def expected_application_recorder_class(self) -> type[Any]:
        return self.classes[1]

    def expected_process_recorder_class(self) -> type[Any]:
        return self.classes[1]

    def expected_aggregate_recorder_class(self) -> type[AggregateRecorder]:
        return self.classes[2]

    def expected_tracking_recorder_class(self) -> type[TrackingRecorder]:
        return self.classes[3]

    def tracking_recorder_subclass(self) -> type[TrackingRecorder]:
        return self.tracking_subclass


class Kennel(Aggregate):
    def __init__(self, name: str) -> None:
        self.name = name
        self.dogs: list[str] = []

    @event("Added")
    def add(self, dog: str) -> None:
        self.dogs.append(dog)


class Kennels(Application[UUID]):
    snapshotting_intervals = {Kennel: 3}  # noqa: RUF012 - as the library requires


class Counting(ProcessApplication[UUID]):
    def policy(self, domain_event: Any, processing_event: Any) -> None:
        """Do nothing: only the tracking is recorded."""


class ApplicationContract:
    """``env`` configures an empty store of ``module``. ``is_persistent``: the store keeps its data after a close."""

    module: str
    factory_class: type[Any]
    is_persistent = True

    def test_an_application_of_the_library_works_with_snapshots(self, env: dict[str, str]) -> None:
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
                kennels.repository.get(Kennel("missing").id)
            with kennels.recorder.subscribe(gt=before.id) as subscription:
                assert next(subscription).id == last.id
                assert next(subscription).originator_version == kennel.version

    def test_a_reopened_application_finds_its_data(self, env: dict[str, str]) -> None:
        with Kennels(env) as kennels:
            kennel = Kennel("home")
            kennel.add("Rex")
            kennels.save(kennel)
        with Kennels(env) as kennels:
            if self.is_persistent:
                assert kennels.repository.get(kennel.id).dogs == ["Rex"]
            else:
                assert kennels.recorder.max_notification_id() is None

    def test_tracks_the_position_of_a_process_application(self, env: dict[str, str]) -> None:
        with Counting(env) as counting:
            recorder = counting.recorder
            recorder.insert_events([], tracking=Tracking("kennels", 7))
            assert recorder.max_tracking_id("kennels") == 7
            with pytest.raises(IntegrityError):
                recorder.insert_events([], tracking=Tracking("kennels", 7))

    def test_the_library_constructs_the_factory_from_a_module_or_a_class(self, env: dict[str, str]) -> None:
        for topic in (self.module, f"{self.module}:{self.factory_class.__name__}"):
            factory: Any = InfrastructureFactory.construct(Environment(env={**env, "PERSISTENCE_MODULE": topic}))
            assert isinstance(factory, self.factory_class)
            assert factory.application_recorder().max_notification_id() is None
            factory.close()
