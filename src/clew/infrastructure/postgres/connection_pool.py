"""Connections to one PostgreSQL database: made when they are needed, kept for the next, never shared by two threads."""

from __future__ import annotations

import math
import select
import threading
import time
import weakref
from contextlib import suppress
from typing import Any

import psycopg

from clew.domain.errors import ClosedError
from clew.infrastructure.postgres.address import CONNECT_TIMEOUT, Address
from clew.infrastructure.postgres.connection import Session, begun
from clew.infrastructure.postgres.errors import PostgresUnavailableError, TooManyConnectionsError, is_cut, unavailable

PATIENCE = CONNECT_TIMEOUT * 3
"""Seconds to wait for a connection that another thread of this process has."""

RESTED = 1.0
"""Seconds after which a connection is asked whether it is there before it is used again, and a server that made no more
whether it does."""

LEAVING = 1.0
"""Seconds to wait for a connection that another pool closes: a server counts it for a while yet."""

_PAUSE = 0.02

_CLOSED = "The store is closed: nothing can be read. Open it again."


class _Use:
    """A connection for a block."""

    __slots__ = ("_sessions", "counted", "session")

    def __init__(self, sessions: ConnectionPool) -> None:
        self._sessions = sessions
        self.session: Session | None = None
        self.counted = False

    def __enter__(self) -> Session:
        try:
            return self._sessions.take(self)
        except BaseException:
            self._sessions.give_back(self)  # whatever it had when it was interrupted
            raise

    def __exit__(self, *_: object) -> None:
        try:
            self._sessions.give_back(self)
        except BaseException:
            self._sessions.give_back(self)  # what is left
            raise


class ConnectionPool:
    """At most ``most`` connections at a time; who wants another waits. A standby is refused by those that ``write``.

    Where the server makes no more, fewer have to do; and for a pool that has none others close what they do not need.
    """

    def __init__(self, address: Address, most: int, *, tenant: str | None = None, write: bool = False) -> None:
        self.address = address
        self._tenant = tenant
        self._most = most
        self._write = write
        self._made: weakref.WeakSet[psycopg.Connection[Any]] = weakref.WeakSet()
        self.restart()
        _pools[id(self)] = self

    def restart(self) -> None:
        """Begin without connections: those that the parent of a forked process had are the parent's."""
        _inherited.extend(self._made)
        self._lock = threading.Lock()
        self._queue: list[threading.Condition] = []
        """Of those who wait, each with a condition of its own: who came first is served first."""
        self._idle: list[tuple[Session, float]] = []
        self._made = weakref.WeakSet()
        self._used = 0
        self._room = self._most
        """How many there may be: fewer than ``most`` where the server makes no more."""
        self._refused = -math.inf
        """When the server last said so."""
        self._closed = False

    def use(self) -> _Use:
        """A connection for the block. Raises ClosedError or StoreUnavailableError."""
        return _Use(self)

    def fresh(self) -> Session:
        """A new connection, that the caller closes. Raises StoreUnavailableError."""
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

    def drop(self) -> None:
        """Close those that wait: the server has cut another."""
        with self._lock:
            idle, self._idle = self._idle, []
        for session, _ in idle:
            _close(session)

    def close(self) -> None:
        """Close those that wait, and each of the others when it is given back. Later calls raise ClosedError."""
        with self._lock:
            self._closed = True
            self._call()
        self.drop()

    def take(self, use: _Use) -> Session:
        """A connection, to be given back. Raises ClosedError or StoreUnavailableError.

        What is taken is put into ``use`` at once: no interruption comes where nothing is called.
        """
        now = since = time.monotonic()
        until = now + PATIENCE
        returns = False
        while True:
            with self._lock:
                if self._queue or self._used >= self._room or self._closed:
                    self._wait(until, first=returns)
                use.counted = True
                self._used += 1
                if self._idle:
                    use.session, since = self._idle[-1]
                    del self._idle[-1]
            session = use.session
            if session is None:
                session = self._add(use)
                if session is not None:
                    return session
                returns = True
            elif now - since < RESTED or not _is_cut(session):
                return session
            else:
                _close(session)
            self.give_back(use)

    def give_back(self, use: _Use) -> None:
        """Let others have it, if it can be used again. Does nothing the second time."""
        session = use.session
        fit = session is not None and session.connection.pgconn.transaction_status == psycopg.pq.TransactionStatus.IDLE
        now = time.monotonic()
        with self._lock:
            if use.counted:
                use.counted = False
                self._used -= 1
                if session is not None and fit and self._used < self._room and not self._closed:
                    use.session = None
                    self._idle.append((session, now))
                if self._queue:
                    self._call()
        if use.session is not None:
            _close(use.session)
            use.session = None

    # With the lock

    def _wait(self, until: float, *, first: bool) -> None:
        """Wait for one that is idle, or for the right to make one; ``first``: it was this one's turn before."""
        turn = threading.Condition(self._lock)
        try:
            self._queue.insert(0 if first else len(self._queue), turn)
            while True:
                if self._closed:
                    raise ClosedError(_CLOSED)
                if self._queue[0] is turn and self._is_room():
                    return
                left = until - time.monotonic()
                if left <= 0:
                    busy = f"all {self._used} connections of this process are busy"
                    more = ", and the server makes no more" if self._room < self._most else ""
                    msg = f"{self.address.shown}: {busy}{more}. Try again later."
                    raise PostgresUnavailableError(msg)
                turn.wait(min(left, RESTED))
        finally:
            with suppress(ValueError):
                self._queue.remove(turn)
            self._call()

    def _call(self) -> None:
        """Let the first of those who wait look."""
        if self._queue:
            self._queue[0].notify()

    def _is_room(self) -> bool:
        if not self._idle and self._room <= self._used < self._most and time.monotonic() - self._refused > RESTED:
            self._room = self._used + 1  # the server may make one now
        return bool(self._idle) or self._used < max(self._room, 1)

    # Without

    def _add(self, use: _Use) -> Session | None:
        """A new one; None where the server makes no more, and others of this pool will be given back."""
        try:
            use.session = self.fresh()
        except TooManyConnectionsError:
            with self._lock:
                others = self._used - 1 + len(self._idle)
                self._room = max(others, 1)
                self._refused = time.monotonic()
            if others:
                return None
            use.session = self._instead()
        with self._lock:
            self._made.add(use.session.connection)
            if self._room < self._most:
                self._room += 1  # there may be more
                self._call()
        return use.session

    def _instead(self) -> Session:
        """A new one, where the server makes none but in place of those that other pools have no use for."""
        until = time.monotonic() + LEAVING
        while True:
            for pool in [found() for found in _pools.valuerefs()]:  # a list at once: others open stores meanwhile
                if pool is not None and pool is not self and pool.address.server == self.address.server:
                    pool.drop()
            try:
                return self.fresh()
            except TooManyConnectionsError:
                if self._closed or time.monotonic() > until:
                    raise
            time.sleep(_PAUSE)

    def _begun(self) -> Session:
        connection = self.address.connect()
        try:
            return begun(connection, self.address.shown, self._tenant)
        except BaseException:
            connection.close()
            raise


_inherited: list[psycopg.Connection[Any]] = []
"""Connections of the parent of this process: neither used nor closed, as closing one would end it in the parent too."""

_pools: weakref.WeakValueDictionary[int, ConnectionPool] = weakref.WeakValueDictionary()


def _close(session: Session) -> None:
    with suppress(psycopg.Error):
        session.connection.close()


def _is_cut(session: Session) -> bool:
    """Whether the server has something to say that was not asked: that it ends the connection."""
    try:
        poll = select.poll()
        poll.register(session.connection.fileno(), select.POLLIN)
        return bool(poll.poll(0))
    except (psycopg.Error, OSError):
        return True
