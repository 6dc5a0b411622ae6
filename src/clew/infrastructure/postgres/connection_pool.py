"""A pool of sessions with one PostgreSQL database: opened when needed, reused, and never shared by two threads.

psycopg_pool is not used: decision 25 says why, with figures.
"""

from __future__ import annotations

import math
import select
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import psycopg

from clew.domain.errors import ClosedError
from clew.infrastructure.postgres.connection import CONNECT_TIMEOUT, Address, Session, open_session
from clew.infrastructure.postgres.errors import PostgresUnavailableError, TooManyConnectionsError, is_cut, unavailable

T = TypeVar("T")

WAIT_TIMEOUT = CONNECT_TIMEOUT * 3
"""Seconds to wait for a connection that another thread of this process uses."""

CHECK_AFTER = 1.0
"""Seconds of rest after which a connection is checked before its next use, and after which a server that refused
another connection is asked again."""

RELEASE_TIMEOUT = 1.0
"""Seconds to wait for a connection that another pool closes: the server counts it a little longer."""

_RETRY_DELAY = 0.02


class _Use:
    """What a block has of a pool."""

    __slots__ = ("counted", "session")

    def __init__(self) -> None:
        self.session: Session | None = None
        self.counted = False
        """Whether it counts as used in the pool."""


class ConnectionPool:
    """At most ``max_size`` sessions at a time; other threads wait, first come, first served.

    With ``write`` a standby is refused. If the server accepts no more connections, the pool works with fewer. A pool
    without any takes the place of idle connections of this process's other pools.
    """

    def __init__(self, address: Address, max_size: int, *, tenant: str | None = None, write: bool = False) -> None:
        self.address = address
        self._tenant = tenant
        self._max_size = max_size
        self._write = write
        self._opened: weakref.WeakSet[psycopg.Connection[Any]] = weakref.WeakSet()
        self.restart()
        _pools[id(self)] = self

    def restart(self) -> None:
        """Start without connections: in a forked child, the existing ones belong to the parent."""
        _inherited.extend(self._opened)
        self._lock = threading.RLock()  # Ctrl-C never interrupts a wait before it has this lock again
        self._queue: list[threading.Condition] = []
        """The waiting threads, each with its own condition."""
        self._idle: list[tuple[Session, float]] = []
        """Sessions, and when they were given back."""
        self._opened = weakref.WeakSet()
        self._used = 0
        self._limit = self._max_size
        """How many the server accepts, as far as is known."""
        self._refused = -math.inf
        """When the server last refused one."""
        self._closed = False

    @contextmanager
    def use(self) -> Iterator[Session]:
        """A session for the block. Raises ClosedError or StoreUnavailableError.

        If Ctrl-C interrupts ``with`` itself, the session is given back with the traceback.
        """
        use = _Use()
        try:
            yield self.take(use)
            self.give_back(use)
        except BaseException:
            self.give_back(use)  # what it had when it was interrupted
            raise

    def read(
        self,
        work: Callable[[Session], T],
        *,
        tries: int = 2,
        retryable: tuple[type[psycopg.Error], ...] = (psycopg.errors.SerializationFailure,),
    ) -> T:
        """What ``work`` reads, or stores when repeating it changes nothing more.

        It is repeated on another connection if the connection is lost, or if the server cannot execute it now: a
        standby ends a query when the primary has removed the rows that it reads. Raises ClosedError or
        StoreUnavailableError.
        """
        while True:
            tries -= 1
            try:
                with self.use() as session:
                    return work(session)
            except psycopg.Error as error:
                lost = isinstance(error, psycopg.OperationalError) and is_cut(error)
                if not tries or not (lost or isinstance(error, retryable)):
                    raise unavailable(self.address.shown, error) from error
            self.drop()

    def fresh(self) -> Session:
        """A new session, which the caller closes. Raises StoreUnavailableError."""
        try:
            session = open_session(self.address, self._tenant)
        except psycopg.Error as error:
            if not is_cut(error):
                raise unavailable(self.address.shown, error) from None
            try:
                session = open_session(self.address, self._tenant)
            except psycopg.Error as second:
                raise unavailable(self.address.shown, second) from None
        if session.standby and self._write:
            # Not kept until the server is promoted: a standby cannot adjust its positions.
            session.connection.close()
            msg = f"{self.address.shown}: this is a standby, which is read-only. Name the primary to write."
            raise PostgresUnavailableError(msg)
        return session

    def drop(self) -> None:
        """Close the idle sessions: the server has closed another one."""
        with self._lock:
            idle, self._idle = self._idle, []
        for session, _ in idle:
            _close(session)

    def close(self) -> None:
        """Close the idle sessions now, and each other one when it is given back. Later calls raise ClosedError."""
        with self._lock:
            self._closed = True
            self._notify_first()
        self.drop()

    def take(self, use: _Use) -> Session:
        """A session, to be given back. Raises ClosedError or StoreUnavailableError.

        ``use`` gets it at once, so that an interruption cannot lose it: none arrives where nothing is called.
        """
        now = since = time.monotonic()
        until = now + WAIT_TIMEOUT
        returns = False
        while True:
            with self._lock:
                if self._queue or self._used >= self._limit or self._closed:
                    self._wait(until, first=returns)
                use.counted = True
                self._used += 1
                if self._idle:
                    use.session, since = self._idle[-1]
                    del self._idle[-1]
            session = use.session
            if session is None:
                session = self._open(use)
                if session is not None:
                    return session
                returns = True
            elif now - since < CHECK_AFTER or not _is_cut(session):
                return session
            else:
                _close(session)
            self.give_back(use)

    def give_back(self, use: _Use) -> None:
        """Let other threads use the session, if it is intact. Does nothing the second time."""
        session = use.session
        intact = (
            session is not None and session.connection.pgconn.transaction_status == psycopg.pq.TransactionStatus.IDLE
        )
        now = time.monotonic()
        with self._lock:
            if use.counted:
                use.counted = False
                self._used -= 1
                if session is not None and intact and self._used < self._limit and not self._closed:
                    use.session = None
                    self._idle.append((session, now))
                if self._queue:
                    self._notify_first()
        if use.session is not None:
            _close(use.session)
            use.session = None

    # Called with the lock

    def _wait(self, until: float, *, first: bool) -> None:
        """Wait until a session is idle or may be opened. ``first``: this thread was the first in the queue before."""
        turn = threading.Condition(self._lock)
        try:
            self._queue.insert(0 if first else len(self._queue), turn)
            while True:
                if self._closed:
                    raise ClosedError("The store is closed: nothing can be read. Open it again.")
                if self._queue[0] is turn and self._is_available():
                    return
                left = until - time.monotonic()
                if left <= 0:
                    busy = f"all {self._used} connections of this process are busy"
                    more = ", and the server accepts no more" if self._limit < self._max_size else ""
                    msg = f"{self.address.shown}: {busy}{more}. Try again later."
                    raise PostgresUnavailableError(msg)
                turn.wait(min(left, CHECK_AFTER))
        finally:
            with suppress(ValueError):
                self._queue.remove(turn)
            self._notify_first()

    def _notify_first(self) -> None:
        if self._queue:
            self._queue[0].notify()

    def _is_available(self) -> bool:
        if (
            not self._idle
            and self._limit <= self._used < self._max_size
            and time.monotonic() - self._refused > CHECK_AFTER
        ):
            self._limit = self._used + 1  # the server may accept one now
        return bool(self._idle) or self._used < max(self._limit, 1)

    # Called without the lock

    def _open(self, use: _Use) -> Session | None:
        """A new session; None if the server accepts no more and the pool has others to wait for."""
        try:
            use.session = self.fresh()
        except TooManyConnectionsError:
            with self._lock:
                others = self._used - 1 + len(self._idle)
                self._limit = max(others, 1)
                self._refused = time.monotonic()
            if others:
                return None
            use.session = self._replace_idle()
        with self._lock:
            self._opened.add(use.session.connection)
            if self._limit < self._max_size:
                self._limit += 1  # the server may accept more
                self._notify_first()
        return use.session

    def _replace_idle(self) -> Session:
        """A new session in place of idle ones that this process's other pools have with the same server."""
        until = time.monotonic() + RELEASE_TIMEOUT
        while True:
            for pool in [reference() for reference in _pools.valuerefs()]:  # a copy: other threads open stores
                if pool is not None and pool is not self and pool.address.server == self.address.server:
                    pool.drop()
            try:
                return self.fresh()
            except TooManyConnectionsError:
                if self._closed or time.monotonic() > until:
                    raise
            time.sleep(_RETRY_DELAY)


_inherited: list[psycopg.Connection[Any]] = []
"""Connections of the parent process. They are neither used nor closed: closing one here would end it in the parent."""

_pools: weakref.WeakValueDictionary[int, ConnectionPool] = weakref.WeakValueDictionary()


def _close(session: Session) -> None:
    with suppress(psycopg.Error):
        session.connection.close()


def _is_cut(session: Session) -> bool:
    """Whether the server has sent something that was not requested: it ends the connection."""
    try:
        poll = select.poll()
        poll.register(session.connection.fileno(), select.POLLIN)
        return bool(poll.poll(0))
    except (psycopg.Error, OSError):
        return True
