"""The PostgreSQL store passes the library's own test cases, and works with its applications."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest
import tests.infrastructure.library_contract as library
from eventsourcing.persistence import Notification, StoredEvent
from eventsourcing.postgres import PostgresAggregateRecorder, PostgresTrackingRecorder
from eventsourcing.utils import Environment

from clew.infrastructure.postgres.factory import PostgresFactory
from clew.infrastructure.postgres.recorder import PostgresRecorder

MODULE = "clew.infrastructure.postgres.factory"


class Postgres:
    @pytest.fixture(autouse=True)
    def _database(self, postgres: str) -> Iterator[None]:
        self.factory = PostgresFactory({"POSTGRES_URL": postgres})
        yield
        self.factory.close()


class RankedPositions(PostgresRecorder):
    """Reports positions as ranks, because the library's test cases expect one, two, three."""

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
        notifications = super().select_notifications(first, limit, last, topics, inclusive_of_start=inclusive_of_start)
        return [
            Notification(each.originator_id, each.originator_version, each.topic, each.state, id=self._rank(each.id))
            for each in notifications
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


class TestPostgresAggregates(Postgres, library.Aggregates): ...


class TestPostgresSnapshots(Postgres, library.Snapshots): ...


class TestPostgresApplication(Postgres, library.Applications):
    def create_recorder(self) -> Any:
        return RankedPositions(cast("PostgresRecorder", self.factory.application_recorder()).datastore)


class TestPostgresProcess(Postgres, library.Processes): ...


class TestPostgresTracking(Postgres, library.Trackings): ...


class TestPostgresProcessTracking(Postgres, library.ProcessTrackings): ...


class TestPostgresInterleaving(Postgres, library.Interleavings): ...


class OwnTracking(PostgresTrackingRecorder): ...


class TestPostgresFactory(library.Factories):
    classes = PostgresFactory, PostgresRecorder, PostgresAggregateRecorder, PostgresTrackingRecorder
    tracking_subclass = OwnTracking

    @pytest.fixture(autouse=True)
    def _database(self, postgres: str) -> None:
        self.env = Environment(env={"PERSISTENCE_MODULE": MODULE, "POSTGRES_URL": postgres})
        library.Factories.setUp(self)

    def setUp(self) -> None:
        """Do nothing: the fixture calls the library's set-up."""


class TestPostgresApplications(library.ApplicationContract):
    module = MODULE
    factory_class = PostgresFactory

    @pytest.fixture
    def env(self, postgres: str) -> dict[str, str]:
        return {"PERSISTENCE_MODULE": MODULE, "POSTGRES_URL": postgres}
