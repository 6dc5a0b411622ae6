"""The library's factory for Clew's SQLite stores: ``PERSISTENCE_MODULE=clew.infrastructure.sqlite.factory``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import cast

import eventsourcing.sqlite as library
from eventsourcing.persistence import AggregateRecorder, ApplicationRecorder, ProcessRecorder
from eventsourcing.utils import Environment, EnvType, strtobool

from clew.infrastructure.sqlite.datastore import ClewSQLiteDatastore, Synchronous, file_path
from clew.infrastructure.sqlite.errors import SQLiteUnavailableError, unavailable
from clew.infrastructure.sqlite.read_only import ReadOnlyDatastore
from clew.infrastructure.sqlite.recorder import SQLiteRecorder


class SQLiteFactory(library.SQLiteFactory):
    """Works for any application of the library, with the settings of the library's own factory.

    ``SQLITE_SYNCHRONOUS`` (FULL, NORMAL or OFF), ``SQLITE_CREATE`` and ``SQLITE_READ_ONLY`` are Clew's: without
    creation a missing database is a StoreUnavailableError, and a read-only one is never written. Snapshots and plain
    tracking stay in the library's tables.
    """

    SQLITE_SYNCHRONOUS = "SQLITE_SYNCHRONOUS"
    SQLITE_CREATE = "SQLITE_CREATE"
    SQLITE_READ_ONLY = "SQLITE_READ_ONLY"

    application_recorder_class: type[library.SQLiteApplicationRecorder] = SQLiteRecorder
    process_recorder_class: type[library.SQLiteProcessRecorder] = SQLiteRecorder

    def __init__(self, env: Environment | EnvType | None) -> None:
        super().__init__(env)
        settings = self.datastore
        timeout = (self.env.get(self.SQLITE_LOCK_TIMEOUT) or "").strip()
        synchronous = (self.env.get(self.SQLITE_SYNCHRONOUS) or "FULL").upper()
        if synchronous not in ("FULL", "NORMAL", "OFF"):
            msg = f"{self.SQLITE_SYNCHRONOUS} is {synchronous!r}. Set it to FULL, NORMAL or OFF."
            raise OSError(msg)
        read_only = strtobool(self.env.get(self.SQLITE_READ_ONLY) or "no")
        create = strtobool(self.env.get(self.SQLITE_CREATE) or "yes") and not read_only
        if not create:
            _refuse_missing(file_path(settings.pool.db_name))
        self.datastore: ClewSQLiteDatastore = (ReadOnlyDatastore if read_only else ClewSQLiteDatastore)(
            settings.pool.db_name,
            lock_timeout=int(timeout) if timeout else None,
            single_row_tracking=settings.single_row_tracking,
            originator_id_type=settings.originator_id_type,
            synchronous=cast("Synchronous", synchronous),
            create=create and self.env_create_table(),
        )

    def aggregate_recorder(self, purpose: str = "events") -> AggregateRecorder:
        """The library's own recorder and table, without chain or contiguity."""
        return self.datastore.lock.hold(partial(super().aggregate_recorder, purpose))

    def application_recorder(self) -> ApplicationRecorder:
        """Clew's recorder."""
        return self.datastore.lock.hold(super().application_recorder)

    def tracking_recorder(
        self, tracking_recorder_class: type[library.SQLiteTrackingRecorder] | None = None
    ) -> library.SQLiteTrackingRecorder:
        """The library's own recorder, or the class that is given."""
        return self.datastore.lock.hold(partial(super().tracking_recorder, tracking_recorder_class))

    def process_recorder(self) -> ProcessRecorder:
        """Clew's recorder."""
        return self.datastore.lock.hold(super().process_recorder)


def _refuse_missing(path: str) -> None:
    """Raise StoreUnavailableError for a missing database, before a lock file is made."""
    try:
        size = Path(path).stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        msg = f"{path}: the database does not exist. Create it with `clew import FILE`, or name another."
        raise SQLiteUnavailableError(msg) from None
    except OSError as error:
        raise unavailable(path, error) from error
    if not size:
        msg = f"{path}: the file is empty: it is not a database. Fill it with `clew import FILE`, or name another."
        raise SQLiteUnavailableError(msg)
