"""A SQLite store file: one writing connection in a process, under a lock between processes, and several readers."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from eventsourcing.persistence import PersistenceError
from eventsourcing.sqlite import SQLiteConnection, SQLiteCursor, SQLiteDatastore, SQLiteTrackingRecorder

from clew.domain.errors import ClosedError, StoreError, StoreSchemaError, StoreUrlError
from clew.infrastructure import process_forks
from clew.infrastructure.append_queue import AppendQueue
from clew.infrastructure.commit_listeners import CommitListeners
from clew.infrastructure.sqlite import file_access, schema
from clew.infrastructure.sqlite.errors import SQLiteUnavailableError, says_what_to_do, unavailable
from clew.infrastructure.sqlite.file_lock import FileLock
from clew.infrastructure.sqlite.reads import FileChangedError, Readers
from clew.infrastructure.sqlite.wal_checkpoints import log_size
from clew.infrastructure.sqlite.writer import SQLiteWriter

Synchronous = Literal["FULL", "NORMAL", "OFF"]

LOCK_TIMEOUT = 30.0

_WRITTEN = (
    "SELECT e.position, s.name FROM event e CROSS JOIN stream s ON s.id = e.stream "
    "WHERE e.position > ? AND e.position <= ? ORDER BY e.position LIMIT ?"
)


class ClewSQLiteDatastore(SQLiteDatastore, process_forks.ForkAware):
    """The library's datastore on one connection for all writes of the process, including the library's recorders.

    ``db_name`` is a path or a ``file:`` URI of one. ``synchronous`` is SQLite's setting: only with ``FULL`` every
    confirmed append survives a power loss. ``lock_timeout`` is in seconds. Raises StoreUrlError,
    StoreUnavailableError or StoreSchemaError.
    """

    read_only = False

    def __init__(
        self,
        db_name: str,
        *,
        lock_timeout: float | None = None,
        single_row_tracking: bool = True,
        originator_id_type: Literal["uuid", "text"] = "uuid",
        synchronous: Synchronous = "FULL",
        create: bool = True,
    ) -> None:
        self._closed = self._released = True
        # Absolute: later connections may be opened in another working directory.
        self.path = file_access.resolved(os.path.abspath(file_path(db_name)))  # noqa: PTH100 - without "..", unlike pathlib's
        super().__init__(db_name, single_row_tracking=single_row_tracking, originator_id_type=originator_id_type)
        self.synchronous = synchronous
        self.lock_timeout = LOCK_TIMEOUT if lock_timeout is None else lock_timeout
        self.connection: sqlite3.Connection | None = None
        """The open writing connection. Used with the lock held."""
        self._writer = SQLiteWriter(self, SQLiteTrackingRecorder(self))
        self.queue = AppendQueue(self._writer.write, self._writer.after_batch, interruptible=True)
        self._start()
        self._open(create=create)
        self._closed = self._released = False
        process_forks.watch(self)

    def _start(self) -> None:
        self.lock = FileLock(self.path + ".lock", self.lock_timeout, self.path)
        """Keeps out the other writers, of this process and of others."""
        self.readers = Readers(lambda: self._connect("ro"))
        self.listeners = CommitListeners(self)

    def _open(self, *, create: bool) -> None:
        if not os.path.isdir(os.path.dirname(self.path)):  # noqa: PTH112, PTH120 - False also if it cannot be looked up
            raise unavailable(self.path, FileNotFoundError(errno.ENOENT, "no such folder"))
        try:
            file_access.refuse_foreign(self.path)
            schema.refuse_other_files(self.path)
        except OSError as error:
            raise unavailable(self.path, error) from error
        if not schema.may_be_written(self.path):
            raise SQLiteUnavailableError(
                f"{self.path}: it is read-only. Make the file and its folder writable, or open it with read_only=True."
            )
        try:
            self._check_before_locking()
            self.lock.hold(partial(self._prepare_locked, create=create))
        except BaseException:
            self._release()
            raise

    def _prepare_locked(self, *, create: bool) -> None:
        left_log = log_size(self.path) > 0
        self._prepare(create=create)
        if left_log:
            self._writer.checkpoints.empty_left_log()
        else:
            self._writer.checkpoints.unmark_due = True

    def _check_before_locking(self) -> None:
        # No lock file is left next to another program's file.
        if os.path.exists(self.path) and not os.path.exists(self.path + ".lock"):  # noqa: PTH110 - as above
            try:
                connection = self._connect("ro")
                try:
                    schema.is_prepared(connection, self.path)
                finally:
                    connection.close()
            except sqlite3.Error as error:
                raise unavailable(self.path, error) from error

    def _prepare(self, *, create: bool) -> None:
        try:
            if create:
                file_access.create_database(self.path)
            connection = self._connect("rw")
        except (sqlite3.Error, OSError) as error:
            raise unavailable(self.path, error) from error
        try:
            self._make_ready(connection, create=create)
        except sqlite3.Error as error:
            connection.close()
            raise unavailable(self.path, error) from error
        except BaseException:
            connection.close()
            raise
        self.connection = connection

    def _make_ready(self, connection: sqlite3.Connection, *, create: bool) -> None:
        exists = schema.is_prepared(connection, self.path)
        if not exists and not create:
            raise StoreSchemaError(f"{self.path}: the tables do not exist. Open it once with create=True.")
        self._set_up(connection)
        if not exists:
            schema.prepare(connection)
        elif not connection.execute("SELECT 1 FROM counter WHERE name = 'store'").fetchone():
            connection.execute(schema.ADD_TAG)  # an older Clew made it

    def _set_up(self, connection: sqlite3.Connection) -> None:
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise SQLiteUnavailableError(
                f"{self.path}: SQLite cannot keep a write-ahead log there. Choose a path on a local disk."
            )
        connection.execute(f"PRAGMA synchronous = {self.synchronous}")
        schema.flush_the_disk(connection)
        connection.execute("PRAGMA secure_delete = ON")
        # Only the writer makes checkpoints, under the lock: SQLite < 3.51.3 can corrupt the file if both run at once.
        connection.execute("PRAGMA wal_autocheckpoint = 0")

    def _connect(self, mode: str) -> sqlite3.Connection:
        return sqlite3.connect(
            schema.file_uri(self.path, f"mode={mode}"),
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=self.lock_timeout,
        )

    # What the poller asks

    def database(self) -> Hashable:
        """The file, whatever its path is."""
        try:
            found = os.stat(self.path)  # noqa: PTH116 - as above
        except OSError as error:
            raise unavailable(self.path, error) from error
        return found.st_dev, found.st_ino

    def visible(self) -> int:
        """The highest position."""
        return int(self._read("SELECT coalesce(max(position), 0) FROM event", ())[0][0])

    def written(self, after: int, upto: int, limit: int) -> Sequence[tuple[int, str]]:
        """Position and stream of the events between two positions, in order."""
        return self._read(_WRITTEN, (after, upto, limit))

    def _read(self, sql: str, parameters: tuple[int, ...]) -> list[tuple[Any, ...]]:
        try:
            with self.readers.reading() as connection:
                return connection.execute(sql, parameters).fetchall()
        except FileChangedError:
            return self._read(sql, parameters)
        except sqlite3.Error as error:
            raise unavailable(self.path, error) from error

    def writing(self) -> sqlite3.Connection:
        """The one writing connection. The caller holds the lock."""
        if self.connection is None:
            connection = self._connect("rw")
            try:
                self._set_up(connection)
            except BaseException:
                connection.close()
                raise
            self.connection = connection
        return self.connection

    def erase(self) -> int | None:
        """Remove what shredded rows have left in the write-ahead log: see the port."""
        if self._closed:
            raise ClosedError("The store is closed: nothing can be erased. Open it again.")
        try:
            return self.lock.hold(self._writer.checkpoints.erase)
        except sqlite3.Error as error:
            raise unavailable(self.path, error) from error

    def drop_writing(self) -> None:
        """Close the writing connection, which failed during a commit. The next write opens another."""
        connection, self.connection = self.connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    @contextmanager
    def get_connection(self, *, commit: bool) -> Iterator[SQLiteConnection]:
        """A connection for the library: with ``commit`` the writing one, under the lock; otherwise one for reading."""
        try:
            if not commit:
                with self.readers.reading() as connection:
                    yield _LibraryConnection(connection)
                return
            if self._closed:
                raise ClosedError("The store is closed: nothing can be written. Open it again.")
            with self.lock.held():
                yield _LibraryConnection(self.writing())
        except sqlite3.Error as error:
            raise unavailable(self.path, error) from error
        except PersistenceError as error:
            # The library's recorders have wrapped SQLite's error.
            cause = error.__cause__
            if isinstance(cause, sqlite3.Error) and says_what_to_do(cause):
                raise unavailable(self.path, cause) from error
            raise

    def close(self) -> None:
        """Write what was submitted, then release everything. If it is interrupted, call it again: it does the rest."""
        if self._released:
            return
        self._closed = True
        process_forks.unwatch(self)
        self.queue.close()
        self.listeners.close()
        self.readers.close()
        # A disk error does not matter now: every confirmed append is stored.
        with suppress(sqlite3.Error, OSError, StoreError):
            self.lock.hold(self._finish)
        self._release()
        super().close()
        self._released = True

    def _finish(self) -> None:
        # The last connection that closes makes a checkpoint, which must not run while another process writes.
        self._writer.checkpoints.finish()
        self.drop_writing()

    def _release(self) -> None:
        self.drop_writing()
        self.lock.close()

    def before_fork(self) -> None:
        """Wait until no thread of the process is inside SQLite for this store."""
        self._locked_for_fork = self.lock.threads.acquire(timeout=process_forks.WAIT_SECONDS)
        self.readers.pause()

    def after_fork_in_parent(self) -> None:
        """Continue."""
        self.readers.resume()
        if self._locked_for_fork:
            self.lock.threads.release()

    def after_fork_in_child(self) -> None:
        """Start again in the child with new connections, threads and a new lock.

        The connections of the parent are closed first. This does not release the parent's locks. But while SQLite
        believes that this process has the file open, it takes no locks for new connections either, and the parent's
        last close would delete the log that the child uses.
        """
        self.lock.forget()
        connection, self.connection = self.connection, None
        if connection is not None:
            if self._locked_for_fork and not connection.in_transaction:
                connection.close()
            else:
                _inherited.append(connection)
        self.readers.close()
        self._writer.drop_caches()
        self.queue.restart()
        self._start()


_inherited: list[sqlite3.Connection] = []
"""Connections that were in use when the process forked. They are not used and not closed."""


class _LibraryConnection(SQLiteConnection):
    """A connection as the library's recorders expect it: columns by name."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__(connection, max_age=None)

    def cursor(self) -> SQLiteCursor:
        cursor = self._sqlite_conn.cursor()
        cursor.row_factory = sqlite3.Row
        return SQLiteCursor(cursor)


def file_path(db_name: str) -> str:
    """The path of a database name or ``file:`` URI. Raises StoreUrlError when it is not a file."""
    name = db_name
    options: dict[str, str] = {}
    if db_name.startswith("file:"):
        parts = urlsplit(db_name)
        name, options = unquote(parts.path, errors="surrogateescape"), dict(parse_qsl(parts.query))
    if not name or ":memory:" in name or options.get("mode") == "memory":
        raise StoreUrlError(f"{db_name!r} is not a file, and a SQLite store is a file. Use memory: instead.")
    if options.get("mode", "rwc") not in ("rw", "rwc"):
        raise StoreUrlError(
            f"{db_name!r} has mode={options['mode']}, but this must be a file to write. Leave the mode out."
        )
    return name
