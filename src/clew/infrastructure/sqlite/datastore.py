"""One SQLite file as Clew keeps it: one writing connection a process under a lock between processes, many readers."""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, Literal, TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from eventsourcing.persistence import PersistenceError
from eventsourcing.sqlite import SQLiteConnection, SQLiteCursor, SQLiteDatastore, SQLiteTrackingRecorder

from clew.domain.errors import ClosedError, StoreError, StoreSchemaError, StoreUrlError
from clew.infrastructure import process_forks
from clew.infrastructure.append_queue import AppendQueue
from clew.infrastructure.commit_listeners import CommitListeners
from clew.infrastructure.sqlite import schema
from clew.infrastructure.sqlite.checkpoints import log_size
from clew.infrastructure.sqlite.errors import SQLiteUnavailableError, says_what_to_do, unavailable
from clew.infrastructure.sqlite.file_lock import FileLock
from clew.infrastructure.sqlite.queries import Take, within_range
from clew.infrastructure.sqlite.readers import Readers
from clew.infrastructure.sqlite.writer import SQLiteWriter

T = TypeVar("T")

Synchronous = Literal["FULL", "NORMAL", "OFF"]

LOCK_TIMEOUT = 30.0


class ClewSQLiteDatastore(SQLiteDatastore):
    """The library's datastore on one connection for all writing of the process, its own recorders' included.

    ``db_name`` is a path or a ``file:`` URI of one. ``synchronous`` is SQLite's: only ``FULL`` keeps every append
    that was answered through a loss of power. ``lock_timeout`` is in seconds. Raises StoreUrlError,
    StoreUnavailableError or StoreSchemaError.
    """

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
        self._closed = True
        # Connections are made later, too: then the process may work in another folder.
        self.path = os.path.abspath(file_path(db_name))  # noqa: PTH100 - paths stay as given but for that
        super().__init__(db_name, single_row_tracking=single_row_tracking, originator_id_type=originator_id_type)
        self.synchronous = synchronous
        self.lock_timeout = LOCK_TIMEOUT if lock_timeout is None else lock_timeout
        self._writing: sqlite3.Connection | None = None
        self._writer = SQLiteWriter(self, SQLiteTrackingRecorder(self))
        self._begin()
        self._open(create=create)
        self._closed = False
        process_forks.watch(self)

    def _begin(self) -> None:
        self._mutex = threading.RLock()
        self._depth = 0
        self._lock = FileLock(self.path + ".lock", self.lock_timeout)
        self.readers = Readers(self._connect_reader)
        self.listeners = CommitListeners(self.readers.changed)
        self.queue = AppendQueue(self._writer.write, self._writer.rest)

    def _open(self, *, create: bool) -> None:
        if not os.path.isdir(os.path.dirname(self.path) or "."):  # noqa: PTH112, PTH120 - paths stay as given
            raise unavailable(self.path, FileNotFoundError(errno.ENOENT, "no such folder"))
        try:
            schema.refuse_other_files(self.path)
        except OSError as error:
            raise unavailable(self.path, error) from error
        if not schema.may_be_written(self.path):
            raise SQLiteUnavailableError(
                f"{self.path}: it is read-only. Make the file and its folder writable, or work on a copy."
            )
        try:
            self._look_first()
            with self.exclusive():
                left = log_size(self.path)
                self._prepare(create=create)
                if left:
                    self._writer.take_over()
        except BaseException:
            self._let_go()
            raise

    def _look_first(self) -> None:
        # A lock file is not to be left beside a file that is another program's.
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
            connection = self._connect("rwc" if create else "rw")
        except sqlite3.Error as error:
            raise unavailable(self.path, error) from error
        try:
            self._make_ready(connection, create=create)
        except sqlite3.Error as error:
            connection.close()
            raise unavailable(self.path, error) from error
        except BaseException:
            connection.close()
            raise
        self._writing = connection

    def _make_ready(self, connection: sqlite3.Connection, *, create: bool) -> None:
        there = schema.is_prepared(connection, self.path)
        if not there and not create:
            msg = f"{self.path}: the tables are not there. Open it once with leave to make them."
            raise StoreSchemaError(msg)
        self._set_up(connection)
        if not there:
            schema.prepare(connection)

    def _set_up(self, connection: sqlite3.Connection) -> None:
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise SQLiteUnavailableError(
                f"{self.path}: SQLite can keep no write-ahead log there. Choose a path on a local disk."
            )
        connection.execute(f"PRAGMA synchronous = {self.synchronous}")
        connection.execute("PRAGMA secure_delete = ON")
        # Checkpoints are the writer's, under the lock: at once with a writer they can corrupt (SQLite < 3.51.3).
        connection.execute("PRAGMA wal_autocheckpoint = 0")

    def _connect(self, mode: str) -> sqlite3.Connection:
        return sqlite3.connect(
            f"file:{quote(self.path)}?mode={mode}",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=self.lock_timeout,
        )

    def _connect_reader(self) -> sqlite3.Connection:
        return self._connect("ro")

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep out the other writers, of this process and of others; may be taken again by the same thread."""
        with self._mutex:
            self._depth += 1
            try:
                if self._depth == 1:
                    self._lock.acquire()
                yield
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self._lock.release()

    def writing(self) -> sqlite3.Connection:
        """The one writing connection; the caller is inside ``exclusive``."""
        if self._writing is None:
            connection = self._connect("rw")
            try:
                self._set_up(connection)
            except BaseException:
                connection.close()
                raise
            self._writing = connection
        return self._writing

    def commit(self, connection: sqlite3.Connection) -> None:
        """Commit the transaction of the writing connection."""
        connection.execute("COMMIT")

    def drop_writing(self) -> None:
        """Let the next use of the writing connection be a new one: this one failed in the middle of a commit."""
        connection, self._writing = self._writing, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def query(self, sql: str, parameters: Sequence[Any] | dict[str, Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of one query. Raises ClosedError or StoreUnavailableError.

        An integer beyond SQLite's stands for the nearest that it has: no version, position or count lies between.
        """
        return self.taken(sql, parameters, list)

    def taken(self, sql: str, parameters: Sequence[Any] | dict[str, Any], take: Take[T]) -> list[T]:
        """What is taken of the rows of a query, of which no more are read than that."""
        try:
            return self._taken(sql, parameters, take)
        except OverflowError:
            return self._taken(sql, within_range(parameters), take)

    def _taken(self, sql: str, parameters: Sequence[Any] | dict[str, Any], take: Take[T]) -> list[T]:
        try:
            with self.readers.reading() as connection:
                try:
                    with closing(connection.execute(sql, parameters)) as found:
                        return take(found)
                except sqlite3.OperationalError as error:
                    if not str(error).startswith("Could not decode"):
                        raise
                    # Text that somebody damaged: verification is to name the row, so it must be read somehow.
                    connection.text_factory = lambda text: text.decode(errors="surrogateescape")
                    try:
                        with closing(connection.execute(sql, parameters)) as found:
                            return take(found)
                    finally:
                        connection.text_factory = str
        except sqlite3.Error as error:
            raise unavailable(self.path, error) from error
        except UnicodeEncodeError:
            return []  # a name that is no valid Unicode was never stored

    @contextmanager
    def get_connection(self, *, commit: bool) -> Iterator[SQLiteConnection]:
        """The library's way in: the writing connection, inside ``exclusive``, or one for reading."""
        try:
            if not commit:
                with self.readers.reading() as connection:
                    yield _LibraryConnection(connection)
                return
            if self._closed:
                msg = "The store is closed: nothing can be written. Open it again."
                raise ClosedError(msg)
            with self.exclusive():
                yield _LibraryConnection(self.writing())
        except sqlite3.Error as error:
            raise unavailable(self.path, error) from error
        except PersistenceError as error:
            # The library's own recorders have made SQLite's error one of the library's.
            cause = error.__cause__
            if isinstance(cause, sqlite3.Error) and says_what_to_do(cause):
                raise unavailable(self.path, cause) from error
            raise

    def close(self) -> None:
        """Write what was submitted, then let go of everything. Does nothing the second time."""
        if self._closed:
            return
        self._closed = True
        process_forks.unwatch(self)
        self.queue.close()
        self.listeners.close()
        self.readers.close()
        # A disk that fails now has had its say: everything that was answered is stored.
        with suppress(sqlite3.Error, OSError, StoreError), self.exclusive():
            # The last connection that closes also checkpoints: not while another process writes.
            self._writer.finish()
            self.drop_writing()
        self._let_go()
        super().close()

    def _let_go(self) -> None:
        self.drop_writing()
        self._lock.close()

    def before_fork(self) -> None:
        """Wait until no thread of the process is inside SQLite for this store."""
        self._rested = self._mutex.acquire(timeout=process_forks.WAIT_SECONDS)
        self.readers.rest()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        self.readers.go_on()
        if self._rested:
            self._mutex.release()

    def after_fork_in_child(self) -> None:
        """Start afresh with connections, threads and a lock of the child's own.

        What the parent had open is closed first. Its locks are the parent's alone and stay; but as long as SQLite
        believes that this process has the file open, it takes no locks for the new connections either, and the
        parent's last close would delete the log from under the child.
        """
        self._lock.forget()
        writing, self._writing = self._writing, None
        if writing is not None:
            if self._rested and not writing.in_transaction:
                writing.close()
            else:
                _inherited.append(writing)
        self.readers.close()
        self._writer.forget()
        self._begin()


_inherited: list[sqlite3.Connection] = []
"""Connections that were in use while the process forked: neither used nor closed."""


class _LibraryConnection(SQLiteConnection):
    """A connection as the library's recorders expect it: rows by name."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__(connection, max_age=None)

    def cursor(self) -> SQLiteCursor:
        cursor = self._sqlite_conn.cursor()
        cursor.row_factory = sqlite3.Row
        return SQLiteCursor(cursor)


def file_path(db_name: str) -> str:
    """The path that a database name or ``file:`` URI names. Raises StoreUrlError when it names no file."""
    name = db_name
    options: dict[str, str] = {}
    if db_name.startswith("file:"):
        parts = urlsplit(db_name)
        name, options = unquote(parts.path), dict(parse_qsl(parts.query))
    if not name or ":memory:" in name or options.get("mode") == "memory":
        msg = f"{db_name!r} names no file, and SQLite stores of Clew's are files. Use the memory store instead."
        raise StoreUrlError(msg)
    if options.get("mode", "rwc") not in ("rw", "rwc"):
        msg = f"{db_name!r} asks for mode={options['mode']}, and Clew needs to write. Leave the mode out."
        raise StoreUrlError(msg)
    return name
