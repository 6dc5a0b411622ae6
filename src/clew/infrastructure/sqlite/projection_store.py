"""The tables of projections in a separate SQLite file next to the log. It can be deleted at any time.

The file is separate so that projections never delay appends. It can be rebuilt from the log, so it need not be as
durable as the log: a power loss may lose the newest batches, but never a part of one.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote

from clew.domain.errors import ClosedError, StoreError, StoreSchemaError, UnknownProjectionError
from clew.domain.projection import Generation, Parked, Projection, Query, RowValues, Words
from clew.domain.projection_leases import Share, claimed
from clew.infrastructure import process_forks
from clew.infrastructure.sqlite import text_index
from clew.infrastructure.sqlite.checkpoints import log_size
from clew.infrastructure.sqlite.errors import SQLiteUnavailableError, is_of_the_store, unavailable
from clew.infrastructure.sqlite.file_lock import FileLock
from clew.infrastructure.sqlite.projection_session import TABLES, SQLiteSession, fetch, generations, live, shape
from clew.infrastructure.sqlite.reads import Readers

_log = logging.getLogger(__name__)

_Identity: TypeAlias = tuple[int, int] | None
"""The device and the number of a file."""

_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}

APPLICATION_ID = 0x436C6550
"""``CleP`` in ASCII, in the header of the file."""

SCHEMA_VERSION = 1
LOCK_TIMEOUT = 60.0
TRUNCATE_BYTES = 8 * 1024 * 1024

BUSY_MS = 20
PURGE_MS = 200
PATIENT_MS = 2_000
"""How long a checkpoint waits for readers, in milliseconds: longer right after text was removed, and longest when the
store is closed, because there is no later try."""

_WORKERS = """CREATE TABLE IF NOT EXISTS worker (
    worker TEXT NOT NULL,
    projection TEXT NOT NULL,
    until REAL NOT NULL,
    held INTEGER NOT NULL,
    PRIMARY KEY (worker, projection)
) WITHOUT ROWID"""

_SHARES = "SELECT worker, projection, held FROM worker WHERE until > ? ORDER BY worker, projection"


class SQLiteProjections:
    """The projections of one log, in the file at ``path``; without a path they are in memory, for this process only.

    Raises StoreUnavailableError, or StoreSchemaError for another program's file.
    """

    def __init__(self, path: str | None) -> None:
        # Connections are opened later, when the process may have changed its folder.
        self.path = None if path is None else os.path.abspath(path)  # noqa: PTH100 - paths stay as given but for that
        self._where = ":memory:" if path is None else path
        self._closed = False
        self._begin()
        process_forks.watch(self)

    def _begin(self) -> None:
        self._mutex = threading.RLock()
        self._writing: sqlite3.Connection | None = None
        self._purge_due = False
        self._remade: float | None = None
        self._written: _Identity = None
        self._reading_lock = threading.Lock()
        self._read_last: _Identity = None
        self._readers = Readers(lambda: self._connect("ro"))
        self._lock = None if self.path is None else FileLock(self.path + ".lock", LOCK_TIMEOUT)

    @contextmanager
    def session(self, seen: int, names: Iterable[str] | None = None) -> Iterator[SQLiteSession]:
        """A transaction. One writer at a time has the file, whatever it changes."""
        del names
        with self._exclusive() as connection:
            connection.execute("BEGIN IMMEDIATE")
            self._notice_removed_text(connection)
            session = SQLiteSession(connection, self._where, seen)
            try:
                yield session
                session.flush()
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            self._keep(connection, clean=session.forgot)

    def _notice_removed_text(self, connection: sqlite3.Connection) -> None:
        """Text that another process removed may still be in the write-ahead log, if a reader kept it there."""
        (remade,) = connection.execute("SELECT total(made) FROM stretch").fetchone()
        self._purge_due = self._purge_due or self._remade not in {None, remade}
        self._remade = remade

    @contextmanager
    def _exclusive(self) -> Iterator[sqlite3.Connection]:
        with self._mutex:
            if self._closed:
                raise ClosedError("The store is closed: no projection can be written. Open it again.")
            if self._lock is not None:
                self._lock.acquire()
            try:
                yield self._prepared()
            except sqlite3.DatabaseError as error:
                if is_of_the_store(error):
                    raise self._unavailable(error) from error
                raise
            finally:
                if self._lock is not None:
                    self._lock.release()

    def _prepared(self) -> sqlite3.Connection:
        if self._writing is not None and self._written != self._identity():
            self._writing.close()  # the file was deleted: this connection still has it open
            self._writing = None
        if self._writing is None:
            connection = self._connect("rwc")
            try:
                if not self._is_prepared(connection):
                    connection.close()
                    self._remove()
                    connection = self._connect("rwc")
                self._set_up(connection)
            except BaseException:
                connection.close()
                raise
            self._writing, self._written = connection, self._identity()
            # The write-ahead log may contain text that a killed process had removed.
            self._purge_due = self.path is not None and log_size(self.path) > 0
        return self._writing

    def _identity(self) -> _Identity:
        """The file that exists now; None if there is none."""
        if self.path is None:
            return None
        try:
            found = os.stat(self.path)  # noqa: PTH116 - paths stay as they were given
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def _is_prepared(self, connection: sqlite3.Connection) -> bool:
        """Whether the file is empty or ours; False if it is damaged or has another schema: then it is rebuilt."""
        try:
            application_id = connection.execute("PRAGMA application_id").fetchone()[0]
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError:
            return False
        if application_id not in {0, APPLICATION_ID} or (application_id == 0 and tables):
            raise StoreSchemaError(f"{self._where}: this is another program's SQLite database. Move it elsewhere.")
        if application_id and version > SCHEMA_VERSION:
            raise StoreSchemaError(
                f"{self._where}: a newer Clew made it. Use that one, or delete the file: it is rebuilt."
            )
        return bool(application_id == 0 or version == SCHEMA_VERSION)

    def _remove(self) -> None:
        if self.path is not None:
            for ending in ("", "-wal", "-shm"):
                Path(self.path + ending).unlink(missing_ok=True)

    def _set_up(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("PRAGMA temp_store = MEMORY")  # no text in temporary files
        connection.execute("PRAGMA wal_autocheckpoint = 0")  # checkpoints only under the lock
        if connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID:
            connection.execute(_WORKERS)  # for files from before workers existed
            return
        connection.execute("BEGIN IMMEDIATE")
        for statement in (*TABLES, *text_index.TABLES, _WORKERS):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")

    def _keep(self, connection: sqlite3.Connection, *, clean: bool) -> None:
        """Empty the write-ahead log when it is long, or contains removed text."""
        self._purge_due = self.path is not None and (self._purge_due or clean)
        if self.path is None or not (self._purge_due or log_size(self.path) >= TRUNCATE_BYTES):
            return
        self._checkpoint(connection, PURGE_MS if clean else BUSY_MS)

    def _checkpoint(self, connection: sqlite3.Connection, busy_ms: int) -> None:
        connection.execute(f"PRAGMA busy_timeout = {busy_ms}")
        try:
            (busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            self._purge_due = self._purge_due and bool(busy)  # while a reader keeps it: try again later
        except sqlite3.OperationalError as error:
            _log.warning("%s: the write-ahead log could not be emptied: %s", self.path, error)
        finally:
            connection.execute(f"PRAGMA busy_timeout = {int(LOCK_TIMEOUT * 1_000)}")

    def purge(self) -> bool:
        """Try again to empty the write-ahead log of removed text; True while another connection still reads it."""
        if self._purge_due:
            with self._exclusive() as connection:
                self._keep(connection, clean=False)
        return self._purge_due

    def _unavailable(self, error: sqlite3.Error) -> StoreError:
        if self.path is None or getattr(error, "sqlite_errorcode", 0) & 0xFF not in _DAMAGED:
            return unavailable(self._where, error)
        return SQLiteUnavailableError(
            f"{self.path}: the file is damaged. Delete it and the files next to it (-wal, -shm): "
            f"it is rebuilt from the log. (SQLite says: {error})"
        )

    def _connect(self, mode: str) -> sqlite3.Connection:
        if self.path is None:
            connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            # An agent's own in-memory store is never closed. At the end of the process a thread may still write to it.
            weakref.finalize(self, connection.close).atexit = False
            return connection
        return sqlite3.connect(
            f"file:{quote(self.path)}?mode={mode}",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=LOCK_TIMEOUT,
        )

    # Reading

    def shape(self, projection: Projection) -> str:
        """The digest of a projection's tables and indexes, as this version of Clew creates them."""
        return shape(projection)

    def generations(self) -> list[Generation]:
        """The generations, oldest first."""
        try:
            with self._reading() as connection:
                return generations(connection)
        except UnknownProjectionError:
            return []

    def select(self, name: str, query: Query) -> list[RowValues]:
        """Rows of the live tables of a projection."""
        with self._reading(name) as connection:
            return fetch(connection, live(connection, name)[1], query)

    def find(self, name: str, index: str, words: Words, *, before: int | None, limit: int) -> list[int]:
        """The positions of texts with these words, newest first."""
        with self._reading(name) as connection:
            generation, _ = live(connection, name)
            return text_index.find(connection, generation, index, words, before=before, limit=limit)

    def parked(self, name: str, limit: int) -> tuple[int, list[Parked]]:
        """The number of events that the live generation has parked, and the first of them."""
        with self._reading(name) as connection:
            generation, _ = live(connection, name)
            (count,) = connection.execute("SELECT count(*) FROM parked WHERE generation = ?", (generation,)).fetchone()
            sql = "SELECT position, stream, version, type, error FROM parked WHERE generation = ? ORDER BY position"
            return count, [Parked(*row) for row in connection.execute(f"{sql} LIMIT ?", (generation, limit))]

    @contextmanager
    def _reading(self, name: str = "") -> Iterator[sqlite3.Connection]:
        """A transaction that reads, so that no table is dropped between two queries.

        Raises UnknownProjectionError, with the name, if its tables do not exist yet.
        """
        if self.path is None:
            if self._writing is None and not self._closed:
                raise UnknownProjectionError(name, [])
            with self._exclusive() as connection:
                yield connection
            return
        file = self._identity()
        if file is None and not self._closed:  # reading creates no file
            raise UnknownProjectionError(name, [])
        readers = self._readers if file == self._read_last else self._new_readers(file)
        reader: sqlite3.Connection | None = None
        try:
            reader = readers.acquire()
            reader.execute("BEGIN")
            try:
                if not reader.execute("SELECT 1 FROM sqlite_master WHERE name = 'generation'").fetchone():
                    raise UnknownProjectionError(name, [])  # another process is creating the file
                yield reader
            finally:
                reader.execute("ROLLBACK")
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_NOTADB:
                raise UnknownProjectionError(name, []) from error  # the next process that writes creates it again
            raise self._unavailable(error) from error
        finally:
            if reader is not None:
                readers.release(reader)

    def _new_readers(self, file: _Identity) -> Readers:
        """The readers of a file that was created since the last read."""
        with self._reading_lock:
            if self._read_last not in {None, file} and not self._closed:
                self._readers.close()
                self._readers = Readers(lambda: self._connect("ro"))
            self._read_last = file
            return self._readers

    # Leases

    def claim(self, worker: str, names: Sequence[str], seconds: float) -> list[str]:
        """The projections that a worker holds the leases of from now on."""
        with self._exclusive() as connection, _transaction(connection):
            now = time.time()
            found = claimed([Share(*row) for row in connection.execute(_SHARES, (now,))], worker, names)
            connection.execute("DELETE FROM worker WHERE worker = ? OR until <= ?", (worker, now))
            connection.executemany(
                "INSERT INTO worker (worker, projection, until, held) VALUES (?, ?, ?, ?)",
                [(worker, name, now + seconds, name in found) for name in names],
            )
            return found

    def release(self, worker: str) -> None:
        """End the leases of a worker at once."""
        with self._exclusive() as connection, _transaction(connection):
            connection.execute("DELETE FROM worker WHERE worker = ?", (worker,))

    def holders(self) -> dict[str, str]:
        """By projection, the worker that holds its lease."""
        try:
            with self._reading() as connection:
                if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'worker'").fetchone():
                    return {}  # of a file from before workers existed
                return {name: worker for worker, name, held in connection.execute(_SHARES, (time.time(),)) if held}
        except UnknownProjectionError:
            return {}

    def close(self) -> None:
        """Close the file. Does nothing the second time."""
        with self._mutex:
            if self._closed:
                return
            self._closed = True
            process_forks.unwatch(self)
            self._readers.close()
            if self._lock is not None and self._writing is not None:
                with suppress(StoreError):  # the last connection makes a checkpoint when it closes
                    self._lock.acquire()
            if self._writing is not None:
                if self._purge_due:
                    with suppress(sqlite3.Error):
                        self._checkpoint(self._writing, PATIENT_MS)
                self._writing.close()
            if self._lock is not None:
                self._lock.close()

    # Forking

    def before_fork(self) -> None:
        """Wait until no thread is inside SQLite or a lock."""
        self._rested = self._mutex.acquire(timeout=process_forks.WAIT_SECONDS)
        self._reading_lock.acquire()
        self._readers.pause()

    def after_fork_in_parent(self) -> None:
        """Continue."""
        self._readers.resume()
        self._reading_lock.release()
        if self._rested:
            self._mutex.release()

    def after_fork_in_child(self) -> None:
        """Start again in the child with new connections and a new lock.

        The parent's connections are closed first: while SQLite believes that this process has the file open, it takes
        no locks for new connections, and the parent's last close deletes the write-ahead log that the child uses.
        """
        writing, readers = self._writing, self._readers
        if self._lock is not None:
            self._lock.forget()
        self._begin()
        if self.path is None:
            self._writing = writing
            return
        readers.close()
        if writing is not None and self._rested and not writing.in_transaction:
            writing.close()
        elif writing is not None:
            _inherited.append(writing)


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


_inherited: list[sqlite3.Connection] = []
"""Connections that were in use while the process forked: neither used nor closed."""
