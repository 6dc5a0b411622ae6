"""The tables of projections in the PostgreSQL database of their log.

A batch takes no lock that a reader or another writer waits for: writers of the same projection take turns by
advisory locks, which end with the transaction. If the server crashes, the rows of a batch and its position are lost
together or not at all, so a commit does not wait for the disk.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeVar

import psycopg
from psycopg.types.numeric import Int8

from clew.domain.errors import InvalidProjectionError, ReadOnlyStoreError, StoreError
from clew.domain.projection_store import BusyError
from clew.infrastructure import process_forks
from clew.infrastructure.postgres import text_index
from clew.infrastructure.postgres.connection import Address, Session
from clew.infrastructure.postgres.connection_pool import ConnectionPool
from clew.infrastructure.postgres.errors import unavailable
from clew.infrastructure.postgres.projection_transaction import (
    DIALECT,
    PATIENCE,
    SQL,
    PostgresSession,
    is_refused,
    locks,
)
from clew.infrastructure.projection_store import SqlProjections, SqlTables

T = TypeVar("T")

CONNECTIONS = 4
TRIES = 5
"""How often a read is tried when tables are dropped between two of its queries."""

PAUSE_FACTOR = 10
"""A table that was cleaned is cleaned again after a pause, this many times as long as the cleaning took."""

RETRY_SECONDS = 10.0
"""How long to wait after a table could not be cleaned, before the next attempt."""

_RETRYABLE = (psycopg.errors.UndefinedTable, psycopg.errors.SerializationFailure)

_log = logging.getLogger(__name__)

TURN = 0.1
"""Seconds to wait for another writer before the connection is released and requested again."""

_SETTINGS = ("SET LOCAL synchronous_commit = off", f"SET LOCAL lock_timeout = '{PATIENCE:.0f}s'")


class PostgresProjections(SqlProjections[Session], process_forks.ForkAware):
    """The projections of the log in a database, read on behalf of ``tenant`` if one is named.

    Raises StoreUrlError, and StoreUnavailableError when a server that cannot be reached is used.
    """

    def __init__(self, conninfo: str, *, tenant: str | None = None, read_only: bool = False) -> None:
        super().__init__(DIALECT)
        self.address = Address(conninfo)
        self._sessions = ConnectionPool(self.address, CONNECTIONS, tenant=tenant)
        self._closed = False
        self._read_only = read_only
        self._seen: dict[str, tuple[int, SqlTables]] = {}
        self._live = partial(_last_live, self._seen)
        self._restart()
        process_forks.watch(self)

    def _restart(self) -> None:
        self._cleaning = threading.Lock()
        self._uncleaned: dict[int, float] = {}
        self._uncleaned_known = False
        self._seen.clear()

    @contextmanager
    def session(
        self, seen: int, names: Iterable[str] | None = None, *, unless: Callable[[], bool] | None = None
    ) -> Iterator[PostgresSession]:
        """A transaction. No other one writes these projections at the same time, or any projection."""
        del seen  # text is removed whichever log it was read from
        self._refuse_writes()
        with self._using() as session:
            writing = PostgresSession(session, self.address.shown)
            try:
                if names is None:  # rare: it waits in line, or others would always come first
                    _begin(session, SQL["lock"])
                else:
                    _take_turn(session, locks(tuple(names)), once=unless is not None)
                yield writing
                writing.commit()
            except BaseException:
                with suppress(psycopg.Error):
                    writing.drain()
                _roll_back(session)
                raise
        self._uncleaned.update(dict.fromkeys(writing.forgot, 0.0))

    @contextmanager
    def _lease_transaction(self) -> Iterator[Session]:
        self._refuse_writes()
        with self._using() as session:
            try:
                _begin(session, SQL["lock leases"])
                with session.connection.pipeline():
                    yield session
                session.connection.execute("COMMIT")
            except BaseException:
                _roll_back(session)
                raise

    def _refuse_writes(self) -> None:
        if self._read_only:
            raise ReadOnlyStoreError(self.address.shown)

    @contextmanager
    def _using(self) -> Iterator[Session]:
        with self._sessions.use() as session:
            try:
                yield session
            except psycopg.Error as error:
                if is_refused(error):
                    raise InvalidProjectionError(_refused(error)) from None  # its message may quote a text
                raise unavailable(self.address.shown, error) from error

    # Reading

    def _read(self, name: str, work: Callable[[Session], T]) -> T:
        """Read; again if tables were dropped meanwhile.

        Each statement is a separate transaction: it reads one generation, whose tables exist or do not.
        """
        del name

        def attempt(session: Session) -> T:
            try:
                return work(session)
            except _RETRYABLE:
                self._seen.clear()
                raise

        return self._sessions.read(attempt, tries=TRIES, retryable=_RETRYABLE)

    # Removed text

    def purge(self, *, of_others: bool = False) -> bool:
        """Clean the tables that words were removed from; True while a reader may still see them.

        A table that was just cleaned is not cleaned again at once. The first call looks for words of other processes.
        """
        del of_others
        with self._cleaning:
            try:
                self._find_uncleaned()
                for generation, not_before in [*self._uncleaned.items()]:
                    if not_before <= time.monotonic():
                        self._clean(generation)
            except (psycopg.Error, StoreError) as error:
                _log.warning(
                    "%s: removed words could not be cleaned from the tables for now: %s", self.address.shown, error
                )
            return bool(self._uncleaned)

    def _find_uncleaned(self) -> None:
        """Find the tables that another process has removed words from, and did not clean before it ended."""
        if self._uncleaned_known or self._closed:
            return
        with self._sessions.use() as session:
            rows = session.connection.execute(SQL["not cleaned"].encode()).fetchall()
        self._uncleaned.update({generation: 0.0 for (generation,) in rows})
        self._uncleaned_known = True

    def _clean(self, generation: int) -> None:
        # First, so that text that is removed meanwhile is noted again.
        self._uncleaned.pop(generation)
        try:
            self._vacuum(generation)
        except (psycopg.Error, StoreError):
            self._uncleaned.setdefault(generation, time.monotonic() + RETRY_SECONDS)
            raise

    def _vacuum(self, generation: int) -> None:
        begin = time.monotonic()
        with self._sessions.use() as session:
            rows = session.connection.execute(SQL["forgot"].encode(), (Int8(generation),)).fetchall()
            if session.standby or not rows:  # the generation was dropped
                return
            texts, forgot = rows[0]
            tables = [table for each in texts for table in text_index.tables(generation, each)]
            for table in tables:
                before = self._statistic(session, "vacuum_count", table)
                session.connection.execute(f"VACUUM (INDEX_CLEANUP ON, TRUNCATE OFF) {table}".encode())
                if self._statistic(session, "vacuum_count", table) == before:
                    _log.warning("%s: only its owner can clean %s of words: VACUUM it", self.address.shown, table)
                    return
            if any(self._dead(session, table) for table in tables):
                end = time.monotonic()
                self._uncleaned[generation] = end + (end - begin) * PAUSE_FACTOR
            else:
                session.connection.execute(SQL["cleaned"].encode(), (forgot, Int8(generation)))

    def _dead(self, session: Session, table: str) -> bool:
        """Whether deleted rows are still in the table."""
        return bool(self._statistic(session, "dead_tuples", table))

    def _statistic(self, session: Session, name: str, table: str) -> int | None:
        """A statistic of the server for a table; None if the table does not exist."""
        sql = f"SELECT pg_stat_get_{name}(to_regclass(%s))"
        value: int | None = session.connection.execute(sql.encode(), (table,)).fetchall()[0][0]
        return value

    def close(self) -> None:
        """Close the connections. If it is interrupted, call it again: it does the rest."""
        if not self._closed:
            process_forks.unwatch(self)
            self._sessions.close()
            self._closed = True

    # Forking

    def after_fork_in_child(self) -> None:
        """Start with connections of the child's own."""
        self._restart()
        self._sessions.restart()


def _last_live(seen: dict[str, tuple[int, SqlTables]], session: Session, name: str) -> tuple[int, SqlTables]:
    """The live generation as it was last seen: if another one is live now, its tables no longer exist."""
    live = seen.get(name)
    if live is None:
        live = seen[name] = DIALECT.live(session, name)
    return live


def _take_turn(session: Session, locked: Sequence[str], *, once: bool) -> None:
    """Begin a transaction once no other writer has these locks.

    A pooler has few connections, and a writer needs a second one to read the log. So a connection that waits in a
    transaction is released after a moment, and requested again.
    """
    until = time.monotonic() + PATIENCE
    while True:
        try:
            _begin(session, f"SET LOCAL lock_timeout = {int(TURN * 1e3)}", *locked, _SETTINGS[-1])
        except psycopg.errors.LockNotAvailable:
            if once:  # whether the caller still needs it is known with another connection: this one is released first
                raise BusyError from None
            if time.monotonic() >= until:
                raise
            session.roll_back()
        else:
            return


def _refused(error: psycopg.Error) -> str:
    kind = f"{type(error).__name__} ({error.sqlstate or 'of the driver'})"
    return f"PostgreSQL refuses what a projection declares or writes: {kind}. Correct the projection."


def _begin(session: Session, *more: str) -> None:
    """Begin a transaction with these statements."""
    session.begin()
    # Several statements cannot be prepared together.
    session.connection.execute("; ".join((*_SETTINGS, *more)).encode(), prepare=False)


def _roll_back(session: Session) -> None:
    status = session.connection.info.transaction_status
    if status == psycopg.pq.TransactionStatus.ACTIVE:
        session.connection.close()  # interrupted: an answer is still to come
    elif status not in {psycopg.pq.TransactionStatus.IDLE, psycopg.pq.TransactionStatus.UNKNOWN}:
        session.roll_back()
