"""The tables of projections in a separate SQLite file next to the log. It can be deleted at any time.

The file is separate so that projections never delay appends. It can be rebuilt from the log, so it need not be as
durable as the log: a power loss may lose the newest batches, but never a part of one.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from clew.domain.errors import (
    ClosedError,
    InvalidProjectionError,
    StoreError,
    UnknownProjectionError,
)
from clew.domain.projection import Column, Generation, Indexed, Projection, Query, RowValues, Span, Table
from clew.domain.projection_store import BusyError
from clew.infrastructure import code_digest, process_forks
from clew.infrastructure.projection_queries import compile_query, decode_json
from clew.infrastructure.projection_store import (
    DESCENDING,
    Dialect,
    Found,
    SqlProjections,
    SqlSession,
    SqlTable,
    SqlTables,
    quoted,
)
from clew.infrastructure.sqlite import file_access, text_index
from clew.infrastructure.sqlite.errors import SQLiteUnavailableError, is_damage, is_of_the_store, unavailable
from clew.infrastructure.sqlite.file_lock import FileLock, LockHeldError, ThreadLock
from clew.infrastructure.sqlite.reads import Readers, within_range
from clew.infrastructure.sqlite.schema import file_uri, rebuildable_version
from clew.infrastructure.sqlite.wal_checkpoints import log_size

T = TypeVar("T")

_log = logging.getLogger(__name__)

_Identity: TypeAlias = tuple[int, int] | None
"""The device and the number of a file."""

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

_TABLES = (
    # tables is their declaration, so that a process without the projection's code can read them.
    """CREATE TABLE generation (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        name TEXT NOT NULL,
        version INTEGER NOT NULL,
        code TEXT NOT NULL,
        shape TEXT NOT NULL,
        position INTEGER NOT NULL,
        hash BLOB NOT NULL,
        live INTEGER NOT NULL,
        tables TEXT NOT NULL
    )""",
    "CREATE UNIQUE INDEX generation_live ON generation (name) WHERE live",
    """CREATE TABLE parked (
        generation INTEGER NOT NULL,
        position INTEGER NOT NULL,
        stream TEXT NOT NULL,
        version INTEGER NOT NULL,
        type TEXT NOT NULL,
        error TEXT NOT NULL,
        PRIMARY KEY (generation, position)
    ) WITHOUT ROWID""",
)

_WORKERS = """CREATE TABLE IF NOT EXISTS worker (
    worker TEXT NOT NULL,
    projection TEXT NOT NULL,
    until REAL NOT NULL,
    held INTEGER NOT NULL,
    PRIMARY KEY (worker, projection)
) WITHOUT ROWID"""

UNERASED = "CREATE TABLE IF NOT EXISTS unerased (one INTEGER PRIMARY KEY CHECK (one), after INTEGER NOT NULL)"
"""The mark of removed text, which may still be in the write-ahead log: events after a position have removed it.

It is written with the first text that is removed, so that a crash does not lose it. It says nothing about an empty
log, and is removed with the first transaction after the log was emptied.
"""

_SQL = {
    "generations": "SELECT id, name, version, code, shape, position, hash, live, EXISTS "
    "(SELECT 1 FROM stretch WHERE stretch.generation = generation.id AND stale) FROM generation ORDER BY id",
    "live": "SELECT id, tables FROM generation WHERE name = :name AND live",
    "live names": "SELECT DISTINCT name FROM generation WHERE live ORDER BY name",
    "declared": "SELECT tables FROM generation WHERE id = :generation",
    "begin": "INSERT INTO generation (name, version, code, shape, position, hash, live, tables) "
    "VALUES (:name, :version, :code, :shape, 0, x'', :live, :tables)",
    "newest": "SELECT max(id) FROM generation WHERE name = :name",
    "move": "UPDATE generation SET position = :position, hash = :hash WHERE id = :generation",
    "switch": "UPDATE generation SET live = 1 WHERE id = :generation",
    "park": "INSERT OR REPLACE INTO parked (generation, position, stream, version, type, error) "
    "VALUES (:generation, :position, :stream, :version, :type, :error)",
    "parked": "SELECT count(*) OVER (), position, stream, version, type, error FROM parked "
    "WHERE generation = :generation ORDER BY position LIMIT :limit",
    "drop parked": "DELETE FROM parked WHERE generation = :generation",
    "drop stretches": "DELETE FROM stretch WHERE generation = :generation",
    "drop": "DELETE FROM generation WHERE id = :generation",
    "shares": "SELECT worker, projection, held FROM worker WHERE until > :now ORDER BY worker, projection",
    "put lease": "INSERT INTO worker (worker, projection, until, held) "
    "VALUES (:worker, :projection, :now + :seconds, :held)",
    "drop old leases": "DELETE FROM worker WHERE worker = :worker OR until <= :now",
    "drop leases": "DELETE FROM worker WHERE worker = :worker",
}

_MISSING = {"no such table: generation", "no such table: worker"}
"""In a file that another process is creating, or that is from before workers existed."""


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)


class _SQLite(Dialect[sqlite3.Connection]):
    lists_subqueries = True

    def __init__(self) -> None:
        super().__init__("?", {"json": _json}, {"json": decode_json})

    def table_name(self, generation: int, table: str) -> str:
        return f"g{generation}_{table}"

    @staticmethod
    @lru_cache(maxsize=256)
    def create_table(name: str, table: Table) -> tuple[str, ...]:
        kinds = {column.name: column.kind for column in table.columns}
        # A key of one integer is SQLite's own row number. A table without indexes is stored in the order of its key. If
        # it has some, it has row numbers, too: then they are small, and a list in the order in which rows were added
        # reads neighbours.
        numbered = bool(table.indexes) or (len(table.key) == 1 and kinds[table.key[0]] == "integer")
        columns = [_declaration(column, needed=numbered and column.name in table.key) for column in table.columns]
        order = "" if numbered else " WITHOUT ROWID"
        create = f"CREATE TABLE {name} ({', '.join(columns)}, PRIMARY KEY ({quoted(table.key)})){order}"
        indexes = [
            f"CREATE INDEX i{name}_{number} ON {name} ({quoted(index)})" for number, index in enumerate(table.indexes)
        ]
        return create, *indexes

    def shape(self, projection: Projection) -> str:
        layout = text_index.layout() if projection.texts else ()
        return code_digest.shape(projection, (*self.created(0, projection), *layout))

    def encode_list(self, kind: str, values: Sequence[Any]) -> Any:
        return json.dumps([_json(each) for each in values] if kind == "json" else list(values))

    encode_limit = staticmethod(int)

    def in_list(self, kind: str) -> str:
        del kind
        return "IN (SELECT value FROM json_each(?))"  # one parameter: SQLite takes a limited number of them

    def order(self, table: Table, query: Query) -> str:
        del table
        # Where all rows of a list are wanted, SQLite looks them up one by one and then sorts them: the sign keeps it
        # from reading the whole table in this order instead.
        values = [isinstance(where.value, Query) for where in query.where if where.is_ == "in"]
        sign = "+" if values and (query.limit is None or not all(values)) else ""
        return ", ".join(
            [f'{sign}"{each[1:]}" DESC' if each.startswith(DESCENDING) else f'{sign}"{each}"' for each in query.order]
        )

    def execute(self, connection: sqlite3.Connection, sql: str, parameters: Sequence[Any] = ()) -> None:
        connection.execute(sql, parameters)

    def run(self, connection: sqlite3.Connection, statement: str, **parameters: Any) -> None:
        connection.execute(_SQL[statement], parameters)

    def ask(self, connection: sqlite3.Connection, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
        return connection.execute(_SQL[statement], parameters).fetchall()

    def fetch(self, connection: sqlite3.Connection, tables: SqlTables, query: Query) -> Found:
        select, parameters = compile_query(tables, query)
        try:
            rows = connection.execute(select.sql, parameters).fetchall()
        except OverflowError:  # an integer beyond SQLite's range is compared as the nearest in it
            rows = connection.execute(select.sql, within_range(parameters)).fetchall()
        except UnicodeEncodeError:
            rows = []  # text that is not valid Unicode was never stored
        except (sqlite3.ProgrammingError, sqlite3.InterfaceError) as error:
            raise InvalidProjectionError(f"A query compares a column with a value of another kind: {error}") from error
        return select.read(rows)

    find = staticmethod(text_index.find)


DIALECT = _SQLite()


def _declaration(column: Column, *, needed: bool) -> str:
    """A column in SQL. SQLite would make a float of a sum that is too large: the check refuses it."""
    type_ = "INTEGER" if column.kind == "integer" else "TEXT"
    name = quoted((column.name,))
    if column.adds:
        return f"{name} {type_} NOT NULL DEFAULT 0 CHECK (typeof({name}) = 'integer')"
    return f"{name} {type_}{' NOT NULL' if needed else ''}"


class SQLiteSession(SqlSession[sqlite3.Connection]):
    """A transaction. The log that it reads from has reached position ``seen``."""

    def __init__(self, connection: sqlite3.Connection, where: str, seen: int) -> None:
        super().__init__(DIALECT, connection)
        self._where = where
        self._seen = seen

    def forget(self, generation: Generation, index: str | None, position: int, by: int) -> None:
        """Mark the stretch that holds a position as stale, in one index or in all."""
        self.flush()
        text_index.mark(self._connection, generation.id, index, position, by)

    def clean(self, generation: Generation) -> None:
        """Empty the write-ahead log after the transaction."""
        self.forgot.add(generation.id)

    def stale(self, generation: Generation) -> list[Span]:
        """The stretches that must be built again."""
        return text_index.stale(self._connection, generation.id)

    def reindex(self, generation: Generation, span: Span, texts: Iterable[Indexed]) -> None:
        """Build a stretch of an index again."""
        self.flush()  # the texts that wait belong to the old stretch
        text_index.rebuild(self._connection, generation.id, span, texts, self._seen)
        self.forgot.add(generation.id)

    def empty(self, generation: Generation) -> None:
        """Empty the stale stretches; they stay stale."""
        self.flush()
        for span in self.stale(generation):
            text_index.empty(self._connection, generation.id, span)
            self.forgot.add(generation.id)

    def upsert(self, table: SqlTable, columns: tuple[str, ...], rows: Sequence[RowValues]) -> None:
        """Write rows that name the same columns."""
        sql = table.upsert(columns, f"VALUES ({', '.join('?' * len(columns))})")
        for column in columns:
            if table.kinds[column] == "json":
                for row in rows:
                    row[column] = _json(row[column])
        self._connection.executemany(sql, [tuple(row.values()) for row in rows])

    def index(self, generation: int, name: str, texts: list[Indexed]) -> None:
        """Add texts to an index of words."""
        text_index.add(self._connection, generation, name, texts, self._seen)

    def index_tables(self, generation: int) -> list[str]:
        """The tables of a generation's indexes of words."""
        return text_index.tables(self._connection, generation)

    def drop_tables(self, names: Iterable[str]) -> None:
        """Drop tables."""
        for name in names:
            self._connection.execute(f"DROP TABLE {name}")

    def check_transaction(self, error: BaseException) -> None:
        """Raise StoreUnavailableError where the transaction itself has ended, as on a full disk."""
        if isinstance(error, Exception) and (is_of_the_store(error) or not self._connection.in_transaction):
            raise unavailable(self._where, error) from error


class SQLiteProjections(SqlProjections[sqlite3.Connection], process_forks.ForkAware):
    """The projections of one log, in the file at ``path``; without a path they are in memory, for this process only.

    The file has the mode of ``database``, the log's. Raises StoreUnavailableError, or StoreSchemaError for another
    program's file.
    """

    def __init__(self, path: str | None, database: str | None = None) -> None:
        super().__init__(DIALECT)
        # Connections are opened later, when the process may have changed its folder.
        self.path = None if path is None else os.path.abspath(path)  # noqa: PTH100 - paths stay as given but for that
        self._where = ":memory:" if path is None else path
        self._database = os.path.abspath(database or path or "")  # noqa: PTH100 - as above
        self._closed = self._released = False
        self._begin()
        process_forks.watch(self)

    def _begin(self) -> None:
        self._writing: sqlite3.Connection | None = None
        self._purge_due = False
        self._written: _Identity = None
        self._reading_lock = threading.Lock()
        self._read_last: _Identity = None
        self._readers = Readers(lambda: self._connect("ro"))
        self._lock = ThreadLock() if self.path is None else FileLock(self.path + ".lock", LOCK_TIMEOUT, self._database)

    @contextmanager
    def session(
        self, seen: int, names: Iterable[str] | None = None, *, unless: Callable[[], bool] | None = None
    ) -> Iterator[SQLiteSession]:
        """A transaction. One writer at a time has the file, whatever it changes."""
        del names
        with self._exclusive(unless, begin=True) as connection:
            (before,) = connection.execute("SELECT coalesce(min(position), 0) FROM generation").fetchone()
            self._purge_due = self._purge_due or _is_marked(connection)
            session = SQLiteSession(connection, self._where, seen)
            yield session
            session.flush()
            if session.forgot:
                connection.execute("INSERT OR IGNORE INTO unerased (one, after) VALUES (1, ?)", (before,))
            connection.execute("COMMIT")
            self._keep(connection, clean=bool(session.forgot))

    @contextmanager
    def _exclusive(
        self, unless: Callable[[], bool] | None = None, *, begin: bool = False
    ) -> Iterator[sqlite3.Connection]:
        """The writing connection, for one thread of one process. With ``begin``, what it does not commit is undone."""
        if self._closed:
            raise _closed()
        try:
            with self._lock.held(unless):
                if self._closed:
                    raise _closed()
                connection = self._prepared()
                try:
                    if begin:
                        connection.execute("BEGIN IMMEDIATE")
                        if self.path is not None and not log_size(self.path):
                            connection.execute("DELETE FROM unerased")
                    yield connection
                finally:
                    if begin and connection.in_transaction:
                        connection.execute("ROLLBACK")
        except LockHeldError:
            if unless is None or not unless():
                raise
            raise BusyError from None
        except sqlite3.DatabaseError as error:
            if is_of_the_store(error):
                raise self._unavailable(error) from error
            raise

    def _prepared(self) -> sqlite3.Connection:
        if self._writing is not None and self._written != self._identity():
            self._writing.close()  # the file was deleted: this connection still has it open
            self._writing = None
        if self._writing is None:
            connection = self._created()
            try:
                if not self._is_prepared(connection):
                    connection.close()
                    self._remove()
                    connection = self._created()
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
            status = os.stat(self.path)  # noqa: PTH116 - paths stay as they were given
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino

    def _is_prepared(self, connection: sqlite3.Connection) -> bool:
        """Whether the file is empty or ours; False if it is damaged or has another schema: then it is rebuilt."""
        try:
            version = rebuildable_version(connection, self._where, APPLICATION_ID, SCHEMA_VERSION)
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError:
            return False
        return version in {None, SCHEMA_VERSION}

    def _remove(self) -> None:
        if self.path is not None:
            for ending in ("", "-wal", "-shm", "-journal"):
                Path(self.path + ending).unlink(missing_ok=True)

    def _set_up(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("PRAGMA temp_store = MEMORY")  # no text in temporary files
        connection.execute("PRAGMA wal_autocheckpoint = 0")  # checkpoints only under the lock
        if connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID:
            connection.execute(_WORKERS)  # for files from before workers existed
            connection.execute(UNERASED)  # as above
            return
        connection.execute("BEGIN IMMEDIATE")
        for statement in (*_TABLES, *text_index.TABLES, _WORKERS, UNERASED):
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

    def purge(self, *, of_others: bool = False) -> bool:
        """Try again to empty the write-ahead log of removed text; True while another connection still reads it."""
        if self._purge_due or (of_others and self.path is not None and log_size(self.path)):
            with self._exclusive() as connection:
                self._purge_due = self._purge_due or _is_marked(connection)
                self._keep(connection, clean=False)
        return self._purge_due

    def _unavailable(self, error: sqlite3.Error) -> StoreError:
        if self.path is None or not is_damage(error):
            return unavailable(self._where, error)
        return SQLiteUnavailableError(
            f"{self.path}: the file is damaged. Delete it and the files next to it (-wal, -shm): "
            f"it is rebuilt from the log. (SQLite says: {error})"
        )

    def _created(self) -> sqlite3.Connection:
        """The writing connection, to a file that is created if it is missing. The caller holds the lock."""
        if self.path is not None:
            try:
                file_access.create_next_to(self._database, self.path)
            except OSError as error:
                raise unavailable(self._where, error) from error
        return self._connect("rw")

    def _connect(self, mode: str) -> sqlite3.Connection:
        if self.path is None:
            connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            # An agent's own in-memory store is never closed. At the end of the process a thread may still write to it.
            weakref.finalize(self, connection.close).atexit = False
            return connection
        return sqlite3.connect(
            file_uri(self.path, f"mode={mode}"),
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=LOCK_TIMEOUT,
        )

    # Reading

    def _read(self, name: str, work: Callable[[sqlite3.Connection], T]) -> T:
        """Read in a transaction, so that no table is dropped between two queries."""
        if self.path is None:
            if self._writing is None and not self._closed:
                raise UnknownProjectionError(name, [])
            with self._exclusive() as connection:
                return work(connection)
        file = self._identity()
        if file is None and not self._closed:  # reading creates no file
            raise UnknownProjectionError(name, [])
        readers = self._readers if file == self._read_last else self._new_readers(file)
        reader: sqlite3.Connection | None = None
        try:
            reader = readers.acquire()
            reader.execute("BEGIN")
            try:
                return work(reader)
            finally:
                reader.execute("ROLLBACK")
        except sqlite3.Error as error:
            # The next process that writes creates the tables, again if this is not a database any more.
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            # It is read-only for a reader while a crash has left a journal.
            if str(error) in _MISSING or code in {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_READONLY}:
                raise UnknownProjectionError(name, []) from error
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

    @contextmanager
    def _lease_transaction(self) -> Iterator[sqlite3.Connection]:
        with self._exclusive(begin=True) as connection:
            yield connection
            connection.execute("COMMIT")

    def close(self) -> None:
        """Close the file. If it is interrupted, call it again: it does the rest."""
        with self._lock.threads:
            if self._released:
                return
            self._closed = True
            process_forks.unwatch(self)
            self._readers.close()
            if self._writing is not None:
                with suppress(StoreError):  # the last connection makes a checkpoint when it closes
                    self._lock.hold(self._close_writing)
                self._close_writing()  # if another process keeps the lock
            elif self.path is not None and os.path.exists(self.path + "-wal"):  # noqa: PTH110 - paths stay as they were given
                with suppress(StoreError, sqlite3.Error, OSError):  # this user may not write, or the file is damaged
                    self._lock.hold(self._remove_log)
            self._lock.close()
            self._released = True

    def _remove_log(self) -> None:
        """Remove the write-ahead log and its index if no other connection uses them: readers make both, but leave them.

        The caller holds the lock, because this makes a checkpoint if a killed process has left something in the log.
        """
        with closing(self._connect("rw")) as connection:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()

    def _close_writing(self) -> None:
        connection, self._writing = self._writing, None
        if connection is not None:
            try:
                if self._purge_due:
                    self._checkpoint(connection, PATIENT_MS)
            except sqlite3.Error:
                pass
            finally:
                connection.close()

    # Forking

    def before_fork(self) -> None:
        """Wait until no thread is inside SQLite or a lock."""
        self._rested = self._lock.threads.acquire(timeout=process_forks.WAIT_SECONDS)
        self._reading_lock.acquire()
        self._readers.pause()

    def after_fork_in_parent(self) -> None:
        """Continue."""
        self._readers.resume()
        self._reading_lock.release()
        if self._rested:
            self._lock.threads.release()

    def after_fork_in_child(self) -> None:
        """Start again in the child with new connections and a new lock.

        The parent's connections are closed first: while SQLite believes that this process has the file open, it takes
        no locks for new connections, and the parent's last close deletes the write-ahead log that the child uses.
        """
        writing, readers = self._writing, self._readers
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


def _is_marked(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT after FROM unerased").fetchone() is not None


def _closed() -> ClosedError:
    return ClosedError("The store is closed: no projection can be written. Open it again.")


_inherited: list[sqlite3.Connection] = []
"""Connections that were in use while the process forked: neither used nor closed."""
