"""The SQLite store passes the library's own test cases, and works with its applications."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import tests.infrastructure.library_contract as library
from eventsourcing.persistence import IntegrityError, Tracking
from eventsourcing.sqlite import SQLiteAggregateRecorder, SQLiteTrackingRecorder
from eventsourcing.utils import Environment

from clew.infrastructure.sqlite.factory import SQLiteFactory
from clew.infrastructure.sqlite.recorder import SQLiteRecorder

MODULE = "clew.infrastructure.sqlite.factory"


class SQLite:
    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.factory = SQLiteFactory({"SQLITE_DBNAME": f"{self.folder.name}/clew.db"})

    def tearDown(self) -> None:
        self.factory.close()
        self.folder.cleanup()


class TestSQLiteAggregates(SQLite, library.Aggregates): ...


class TestSQLiteSnapshots(SQLite, library.Snapshots): ...


class TestSQLiteApplication(SQLite, library.Applications): ...


class TestSQLiteProcess(SQLite, library.Processes): ...


class TestSQLiteTracking(SQLite, library.Trackings): ...


class TestSQLiteProcessTracking(SQLite, library.ProcessTrackings): ...


class TestSQLiteInterleaving(SQLite, library.Interleavings): ...


class OwnTracking(SQLiteTrackingRecorder): ...


class TestSQLiteFactory(library.Factories):
    classes = SQLiteFactory, SQLiteRecorder, SQLiteAggregateRecorder, SQLiteTrackingRecorder
    tracking_subclass = OwnTracking

    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.env = Environment(env={"PERSISTENCE_MODULE": MODULE, "SQLITE_DBNAME": f"{self.folder.name}/clew.db"})
        super().setUp()

    def tearDown(self) -> None:
        super().tearDown()
        self.folder.cleanup()


class TestSQLiteApplications(library.ApplicationContract):
    module = MODULE
    factory_class = SQLiteFactory

    @pytest.fixture
    def env(self, tmp_path: Path) -> dict[str, str]:
        return {"PERSISTENCE_MODULE": MODULE, "SQLITE_DBNAME": str(tmp_path / "clew.db")}

    def test_can_store_several_tracking_rows(self, env: dict[str, str]) -> None:
        factory = SQLiteFactory({**env, "SINGLE_ROW_TRACKING": "no"})
        recorder = factory.process_recorder()
        recorder.insert_events([], tracking=Tracking("up", 2))
        recorder.insert_events([], tracking=Tracking("up", 1))
        with pytest.raises(IntegrityError):
            recorder.insert_events([], tracking=Tracking("up", 2))
        assert recorder.max_tracking_id("up") == 2
        factory.close()
