"""A SQLite store that is only read: its log, and its read models without their file being written."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from clew.domain.errors import ReadOnlyStoreError, StoreError, StoreSchemaError, UnknownProjectionError
from clew.infrastructure import process_forks
from clew.infrastructure.sqlite import immutable_reads, schema
from clew.infrastructure.sqlite.datastore import ClewSQLiteDatastore
from clew.infrastructure.sqlite.errors import unavailable
from clew.infrastructure.sqlite.file_lock import ThreadLock
from clew.infrastructure.sqlite.projection_store import SQLiteProjections

T = TypeVar("T")


class ReadOnlyDatastore(ClewSQLiteDatastore):
    """The datastore of a file that is never written, and next to which nothing is made.

    Raises StoreUrlError, StoreUnavailableError or StoreSchemaError.
    """

    read_only = True

    def _start(self) -> None:
        super()._start()
        self.lock = ThreadLock()
        self.readers = immutable_reads.SnapshotReaders(self.path)

    def _open(self, *, create: bool) -> None:
        del create
        try:
            exists = immutable_reads.read(self.path, lambda connection: schema.is_prepared(connection, self.path))
        except (sqlite3.Error, OSError) as error:
            raise unavailable(self.path, error) from error
        if not exists:
            raise StoreSchemaError(f"{self.path}: the tables do not exist. Open it once for writing.")

    def writing(self) -> sqlite3.Connection:
        """Always an error."""
        raise ReadOnlyStoreError(self.path)

    def close(self) -> None:
        """Release everything. Does nothing the second time."""
        self._closed = True
        process_forks.unwatch(self)
        self.queue.close()
        self.listeners.close()
        self.readers.close()


class ReadOnlyProjections(SQLiteProjections):
    """The read models in a file that is never written.

    They are read there as long as they are up to date. Once they are not, or if the file cannot be read, this process
    has its own in memory: a copy of the file, which is then kept up to date from the log.
    """

    def __init__(self, path: str) -> None:
        super().__init__(None)
        self._file = os.path.abspath(path)  # noqa: PTH100 - paths stay as given but for that

    def _connect(self, mode: str) -> sqlite3.Connection:
        connection = super()._connect(mode)
        with suppress(sqlite3.Error, OSError, StoreError):
            immutable_reads.read(self._file, lambda file: file.backup(connection))
            if self._is_prepared(connection):
                return connection
        connection.close()
        return super()._connect(mode)

    def _read(self, name: str, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._writing is not None or self._closed:
            return super()._read(name, work)
        try:
            return immutable_reads.read(self._file, work)
        except (sqlite3.Error, OSError, StoreError) as error:
            raise UnknownProjectionError(name, []) from error

    @contextmanager
    def _lease_transaction(self) -> Iterator[sqlite3.Connection]:
        raise ReadOnlyStoreError(self._file)
        yield
