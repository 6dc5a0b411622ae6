"""Migrations of a database of an older Clew: under the lock, in one transaction, after a copy."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from clew.domain.errors import CorruptEventError, StoreUnavailableError
from clew.domain.event_index import numbers_of
from clew.domain.events import CHECKPOINT_MADE, HISTORY_REWOUND, RECORD_APPENDED
from clew.infrastructure.envelope import decode
from clew.infrastructure.sqlite import immutable_reads, schema
from clew.infrastructure.sqlite.errors import unavailable
from clew.infrastructure.sqlite.file_lock import FileLock
from clew.infrastructure.sqlite.reads import OF_TYPE
from clew.infrastructure.sqlite.writer import PUT_ENTRY
from clew.infrastructure.stores import Schemas

UNINDEXED: dict[int, tuple[str, ...]] = {2: (RECORD_APPENDED, HISTORY_REWOUND), 4: (CHECKPOINT_MADE,)}
"""The types of events that the index has since the schema after this one."""

LOCK_TIMEOUT = 30.0
"""Seconds to wait for the processes that write to the store."""


def schemas(path: str) -> Schemas:
    """The schema of the file and the schema that this Clew knows. Nothing is changed.

    Raises StoreUnavailableError, or StoreSchemaError if no migration exists.
    """
    _refuse_missing(path)
    try:
        return immutable_reads.read(path, lambda connection: _schemas(connection, path))
    except (sqlite3.Error, OSError) as error:
        raise unavailable(path, error) from error


def migrate(path: str, *, backup: str | None = None, lock_timeout: float = LOCK_TIMEOUT) -> Schemas:
    """Bring a database to the present schema, completely or not at all; returns the schema that it had.

    First copies it to ``backup``, which must not exist, unless there is nothing to do. Raises StoreUnavailableError,
    also when another process has the store open, or StoreSchemaError.
    """
    schemas(path)  # checked first, so that no lock file is left next to another program's file
    lock = FileLock(path + ".lock", lock_timeout, path)
    try:
        with _connected(path) as connection, lock.held():
            schemas_found = _schemas(connection, path)
            if schemas_found.found != schemas_found.known:
                _leave_wal_mode(connection, path)
                if backup is not None:
                    _copy(connection, backup)
                _apply(connection, schemas_found.found)
            return schemas_found
    finally:
        lock.close()


def _schemas(connection: sqlite3.Connection, path: str) -> Schemas:
    version = schema.schema_version(connection, path)
    if version is None:
        raise StoreUnavailableError(
            f"{path}: the file is empty: it is not a database. Fill it with `clew import FILE`, or name another."
        )
    if schema.migrations_from(version) is None:
        schema.is_prepared(connection, path)  # says what is wrong
    return Schemas(version, schema.SCHEMA_VERSION)


def _leave_wal_mode(connection: sqlite3.Connection, path: str) -> None:
    """Leave the write-ahead log mode, which SQLite allows only if this is the only connection.

    A process that continues with the old schema would write rows that do not fit.
    """
    try:
        connection.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.OperationalError as error:
        raise StoreUnavailableError(
            f"{path}: another program has it open. End that program, then try again. (SQLite says: {error})"
        ) from error


def _apply(connection: sqlite3.Connection, version: int) -> None:
    schema.flush_the_disk(connection)
    connection.execute("PRAGMA secure_delete = ON")  # shredded bytes must not stay behind in a dropped table
    connection.execute("BEGIN EXCLUSIVE")
    try:
        for step in schema.migrations_from(version) or ():
            for statement in schema.MIGRATIONS[step]:
                connection.execute(statement)
            for type_ in UNINDEXED.get(step, ()):
                _fill_index(connection, type_)
        connection.execute(f"PRAGMA user_version = {schema.SCHEMA_VERSION}")
    except BaseException:
        if connection.in_transaction:  # a full disk has already ended it
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _fill_index(connection: sqlite3.Connection, type_: str) -> None:
    """Index the stored events of a type."""
    for name, stream, version, state in connection.execute(OF_TYPE, (type_,)).fetchall():
        with suppress(CorruptEventError):  # `verify` names it
            numbers = numbers_of(decode(name, version, type_, state))
            connection.executemany(PUT_ENTRY, [(stream, number, version) for number in numbers])


def _copy(connection: sqlite3.Connection, backup: str) -> None:
    """Copy the database to a new file. An incomplete copy is deleted."""
    try:
        os.close(os.open(backup, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        raise StoreUnavailableError(f"{backup}: there is a file already. Name another for the copy.") from None
    except OSError as error:
        raise unavailable(backup, error) from error
    try:
        with _connected(backup) as copy:
            connection.backup(copy)
    except BaseException:
        with suppress(OSError):
            Path(backup).unlink()
        raise


def _refuse_missing(path: str) -> None:
    """Raise StoreUnavailableError for a missing database, and StoreSchemaError for a file of another kind."""
    try:
        Path(path).stat()
        schema.refuse_other_files(path)
    except (FileNotFoundError, NotADirectoryError):
        raise StoreUnavailableError(f"{path}: the database does not exist. Name an existing one.") from None
    except OSError as error:
        raise unavailable(path, error) from error


@contextmanager
def _connected(path: str) -> Iterator[sqlite3.Connection]:
    """A connection inside ``with``. SQLite's errors become Clew's."""
    try:
        with closing(sqlite3.connect(schema.file_uri(path, "mode=rw"), uri=True, isolation_level=None)) as connection:
            yield connection
    except sqlite3.Error as error:
        raise unavailable(path, error) from error
