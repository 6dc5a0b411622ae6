"""Connections to one PostgreSQL database: made when they are needed, kept for the next, never shared by two threads."""

from __future__ import annotations

import select
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from clew.domain.errors import ClosedError, StoreUrlError
from clew.infrastructure.postgres.errors import PostgresUnavailableError, unavailable
from clew.infrastructure.postgres.sql_files import statements

CONNECT_TIMEOUT = 10
"""Seconds to wait for a server, where the URL says nothing else."""

OLDEST_SERVER = 140_000

ORDINAL_BITS = 20
"""Of a position, below those of its transaction."""

_SESSION = statements("appends.sql")["session"]
_BASE = (
    "SELECT base, (SELECT max(position) FROM clew_event) >> 20, pg_snapshot_xmax(pg_current_snapshot())::text::int8 "
    "FROM clew_meta"
)
_RAISE_BASE = "UPDATE clew_meta SET base = greatest(base, %s)"

Rows = list[tuple[Any, ...]]


class Address:
    """Where a database is, with its password; ``shown`` is without it. Raises StoreUrlError."""

    def __init__(self, conninfo: str) -> None:
        try:
            given: dict[str, Any] = dict(conninfo_to_dict(conninfo))
        except psycopg.Error:
            # The driver's words repeat what they could not read, and a password with it.
            msg = "That is no address of a PostgreSQL database. Use postgresql://user:password@host:5432/database."
            raise StoreUrlError(msg) from None
        given.setdefault("connect_timeout", CONNECT_TIMEOUT)
        given.setdefault("application_name", "clew")
        self.conninfo = make_conninfo(**given)
        host, port = given.get("host") or "localhost", given.get("port") or 5432
        self.shown = f"postgresql://{host}:{port}/{given.get('dbname') or given.get('user') or ''}"

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        """A connection without a transaction. Raises StoreUnavailableError."""
        try:
            connection = psycopg.connect(self.conninfo, autocommit=True)
        except psycopg.Error as error:
            raise unavailable(self.shown, error) from None  # its frames hold the password
        if connection.info.server_version < OLDEST_SERVER:
            found = connection.info.server_version // 10_000
            connection.close()
            msg = f"{self.shown}: this is PostgreSQL {found}, and Clew needs {OLDEST_SERVER // 10_000} or newer."
            raise PostgresUnavailableError(msg)
        return connection


class Session(NamedTuple):
    """A connection, and what it found when it was made."""

    connection: psycopg.Connection[tuple[Any, ...]]
    base: int
    """What is added to transaction ids."""
    pid: int
    since: str

    def ask(self, sql: str, parameters: Mapping[str, Any] | None = None) -> Rows:
        """The rows of a prepared statement, in binary."""
        cursor = self.connection.execute(sql.encode(), parameters, prepare=True, binary=True)
        return cursor.fetchall() if cursor.description else []


class Sessions:
    """At most ``most`` connections at a time; who wants another waits."""

    def __init__(self, address: Address, most: int) -> None:
        self.address = address
        self._most = most
        self._made: list[Session] = []
        self.restart()

    def restart(self) -> None:
        """Begin without connections: those that the parent of a forked process had are the parent's."""
        _inherited.extend(self._made)
        self._lock = threading.Lock()
        self._free = threading.Semaphore(self._most)
        self._idle: list[Session] = []
        self._made = []
        self._closed = False

    @contextmanager
    def use(self) -> Iterator[Session]:
        """A connection for the block. Raises ClosedError or StoreUnavailableError."""
        if not self._free.acquire(timeout=CONNECT_TIMEOUT * 3):
            msg = f"{self.address.shown}: all {self._most} connections of this process are busy. Try again later."
            raise PostgresUnavailableError(msg)
        try:
            session = self._take()
            try:
                yield session
            finally:
                self._give_back(session)
        finally:
            self._free.release()

    def fresh(self) -> Session:
        """A new connection, that the caller closes."""
        connection = self.address.connect()
        try:
            return _begin(connection)
        except psycopg.Error as error:
            connection.close()
            raise unavailable(self.address.shown, error) from None

    def drop(self) -> None:
        """Close those that wait: the server has cut another."""
        with self._lock:
            idle, self._idle = self._idle, []
        for session in idle:
            self._close(session)

    def close(self) -> None:
        """Close those that wait, and each of the others when it is given back. Later calls raise ClosedError."""
        self._closed = True
        self.drop()

    def _take(self) -> Session:
        while True:
            with self._lock:
                if self._closed:
                    msg = "The store is closed: nothing can be read. Open it again."
                    raise ClosedError(msg)
                session = self._idle.pop() if self._idle else None
            if session is None:
                session = self.fresh()
                with self._lock:
                    self._made.append(session)
                return session
            if not _is_cut(session):
                return session
            self._close(session)

    def _give_back(self, session: Session) -> None:
        status = session.connection.info.transaction_status
        if status != psycopg.pq.TransactionStatus.IDLE or self._closed:
            self._close(session)
        else:
            with self._lock:
                self._idle.append(session)

    def _close(self, session: Session) -> None:
        with self._lock, suppress(ValueError):
            self._made.remove(session)
        with suppress(psycopg.Error):
            session.connection.close()


_inherited: list[Session] = []
"""Connections of the parent of this process: neither used nor closed, as closing one would end it in the parent too."""


def _begin(connection: psycopg.Connection[tuple[Any, ...]]) -> Session:
    """See where the positions are: a dump that was restored begins with lower transaction ids than it holds."""
    base, last, transaction = connection.execute(_BASE).fetchall()[0]
    if last is not None and last >= base + transaction:
        connection.execute(_RAISE_BASE, (last + 1,))
        (base,) = connection.execute("SELECT base FROM clew_meta").fetchall()[0]
    pid, since = connection.execute(_SESSION.encode()).fetchall()[0]
    return Session(connection, base, pid, since)


def _is_cut(session: Session) -> bool:
    """Whether the server has something to say that was not asked: that it ends the connection."""
    try:
        poll = select.poll()
        poll.register(session.connection.fileno(), select.POLLIN)
        return bool(poll.poll(0))
    except (psycopg.Error, OSError):
        return True
