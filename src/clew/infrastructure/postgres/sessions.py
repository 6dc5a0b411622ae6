"""Connections to one PostgreSQL database: made when they are needed, kept for the next, never shared by two threads."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import psycopg

from clew.domain.errors import ClosedError
from clew.infrastructure.postgres.address import CONNECT_TIMEOUT, Address
from clew.infrastructure.postgres.errors import PostgresUnavailableError, TooManyConnectionsError, is_cut, unavailable
from clew.infrastructure.postgres.session import Session, begun

PATIENCE = CONNECT_TIMEOUT * 3
"""Seconds to wait for a connection that another thread of this process has."""

RESTED = 1.0
"""Seconds after which a connection is asked whether it is there before it is used again."""


class _Use:
    """A connection for a block."""

    __slots__ = ("_session", "_sessions")

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def __enter__(self) -> Session:
        self._session = self._sessions.take()
        return self._session

    def __exit__(self, *_: object) -> None:
        self._sessions.give_back(self._session)


class Sessions:
    """At most ``most`` connections at a time; who wants another waits. A standby is refused by those that ``write``."""

    def __init__(self, address: Address, most: int, *, tenant: str | None = None, write: bool = False) -> None:
        self.address = address
        self._tenant = tenant
        self._most = most
        self._write = write
        self._made: list[Session] = []
        self.restart()

    def restart(self) -> None:
        """Begin without connections: those that the parent of a forked process had are the parent's."""
        _inherited.extend(self._made)
        self._lock = lock = threading.Lock()
        self._freed = threading.Condition(lock)
        self._wanted = 0
        self._idle: list[tuple[Session, float]] = []
        self._made = []
        self._used = 0
        self._closed = False

    def use(self) -> _Use:
        """A connection for the block. Raises ClosedError or StoreUnavailableError."""
        return _Use(self)

    def fresh(self) -> Session:
        """A new connection, that the caller closes."""
        try:
            session = self._begun()
        except psycopg.Error as error:
            if not is_cut(error):
                raise unavailable(self.address.shown, error) from None
            try:
                session = self._begun()
            except psycopg.Error as second:
                raise unavailable(self.address.shown, second) from None
        if session.standby and self._write:
            # Not kept until it is promoted: where the positions are was not seen to on a server that only reads.
            session.connection.close()
            msg = f"{self.address.shown}: this is a standby, which is only read. Name the primary to write."
            raise PostgresUnavailableError(msg)
        return session

    def _begun(self) -> Session:
        connection = self.address.connect()
        try:
            return begun(connection, self.address.shown, self._tenant)
        except BaseException:
            connection.close()
            raise

    def drop(self) -> None:
        """Close those that wait: the server has cut another."""
        with self._lock:
            idle, self._idle = self._idle, []
        for session, _ in idle:
            self._close(session)

    def close(self) -> None:
        """Close those that wait, and each of the others when it is given back. Later calls raise ClosedError."""
        with self._lock:
            self._closed = True
        self.drop()

    def take(self) -> Session:
        """A connection, to be given back. Raises ClosedError or StoreUnavailableError."""
        now = time.monotonic()
        until = now + PATIENCE
        while True:
            session, since = self._idle_one(until)
            try:
                if session is None:
                    return self._add()
                if now - since < RESTED or not _is_cut(session):
                    return session
                self._close(session)
            except TooManyConnectionsError:
                self._free()
                if not self._comes_free(until):
                    raise
            except BaseException:
                self._free()
                raise
            else:
                self._free()

    def give_back(self, session: Session) -> None:
        """Let others have it, if it can be used again."""
        fit = session.connection.pgconn.transaction_status == psycopg.pq.TransactionStatus.IDLE
        now = time.monotonic()
        with self._lock:
            self._used -= 1
            kept = fit and not self._closed
            if kept:
                self._idle.append((session, now))
            if self._wanted:
                self._freed.notify_all()
        if not kept:
            self._close(session)

    def _idle_one(self, until: float) -> tuple[Session | None, float]:
        """One that is there, and since when it is idle, or the right to make one."""
        with self._lock:
            if self._used >= self._most and not self._wait(lambda: self._used < self._most, until):
                msg = f"{self.address.shown}: all {self._most} connections of this process are busy. Try again later."
                raise PostgresUnavailableError(msg)
            if self._closed:
                msg = "The store is closed: nothing can be read. Open it again."
                raise ClosedError(msg)
            found = self._idle.pop() if self._idle else (None, 0.0)
            self._used += 1
        return found

    def _add(self) -> Session:
        session = self.fresh()
        with self._lock:
            self._made.append(session)
        return session

    def _free(self) -> None:
        with self._lock:
            self._used -= 1
            if self._wanted:
                self._freed.notify_all()

    def _comes_free(self, until: float) -> bool:
        """Wait for one that another thread gives back, as the server makes no more; False if there is none."""
        with self._lock:
            self._wait(lambda: bool(self._idle) or not self._used, until)
            return bool(self._idle)

    def _wait(self, for_what: Callable[[], bool], until: float) -> bool:
        self._wanted += 1
        try:
            return self._freed.wait_for(for_what, until - time.monotonic())
        finally:
            self._wanted -= 1

    def _close(self, session: Session) -> None:
        with self._lock, suppress(ValueError):
            self._made.remove(session)
        with suppress(psycopg.Error):
            session.connection.close()


_inherited: list[Session] = []
"""Connections of the parent of this process: neither used nor closed, as closing one would end it in the parent too."""


def _is_cut(session: Session) -> bool:
    """Whether the server has something to say that was not asked: that it ends the connection."""
    try:
        poll = select.poll()
        poll.register(session.connection.fileno(), select.POLLIN)
        return bool(poll.poll(0))
    except (psycopg.Error, OSError):
        return True
