"""Connections to one PostgreSQL database: made when they are needed, kept for the next, never shared by two threads."""

from __future__ import annotations

import os
import re
import select
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from itertools import zip_longest
from typing import Any, NamedTuple

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.sql import Literal

from clew.domain.errors import ClosedError, StoreSchemaError, StoreUrlError, TenantRequiredError
from clew.infrastructure.postgres.errors import PostgresUnavailableError, is_cut, unavailable
from clew.infrastructure.postgres.round_trip import BYTEA_TYPE, Statement, numbers
from clew.infrastructure.postgres.sql_files import statements

CONNECT_TIMEOUT = 10
"""Seconds to wait for a server, where the URL says nothing else."""

OLDEST_SERVER = 140_000

RESTED = 1.0
"""Seconds after which a connection is asked whether it is there before it is used again."""

ORDINAL_BITS = 20
"""Of a position, below those of its transaction."""

_BASE = (
    "SELECT base, (SELECT max(position) FROM clew_event) >> 20, pg_snapshot_xmax(pg_current_snapshot())::text::int8, "
    "pg_is_in_recovery() FROM clew_meta"
)
_RAISE_BASE = "UPDATE clew_meta SET base = greatest(base, %s)"

_UNSETTLED = (
    "this is a standby of a server to which a dump was restored, and where its positions go on is not seen to yet. "
    "Open the primary first."
)

_TENANCY = statements("tenancy.sql")
_IS_BOUND, _BASE_OF_ALL, _SET_TENANT = (_TENANCY[name].encode() for name in ("is bound", "base", "set tenant"))

_ON_BEHALF = Statement(_TENANCY["on behalf"].encode(), [BYTEA_TYPE])

# What a transaction has waited for it must see, however the database would isolate it. Readers stop below a transaction
# that is open: that of a process that stands still must not stay so.
_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL idle_in_transaction_session_timeout = '30s'"

_PREPARE = re.compile(r"(?<=[?&])prepare=([^&]*)&?")

_CUT = "closed the connection unexpectedly"

Rows = list[tuple[Any, ...]]


class Address:
    """Where a database is, with its password; ``shown`` is without it. Raises StoreUrlError.

    With ``?prepare=no`` nothing is prepared, for poolers that give each transaction another session and do not prepare
    there what was prepared in the last.
    """

    def __init__(self, conninfo: str) -> None:
        said = _PREPARE.search(conninfo)
        if said is not None and said[1] not in ("yes", "no"):
            msg = "prepare says whether statements are prepared on the server: yes or no."
            raise StoreUrlError(msg)
        self._prepares = said is None or said[1] == "yes"
        try:
            given: dict[str, Any] = dict(
                conninfo_to_dict(conninfo if said is None else _PREPARE.sub("", conninfo).rstrip("?&"))
            )
        except (psycopg.Error, UnicodeError):
            # The driver's words repeat what they could not read, and a password with it.
            msg = (
                "That is no address of a PostgreSQL database, or has a setting that PostgreSQL does not know. "
                "Use postgresql://user:password@host:5432/database."
            )
            raise StoreUrlError(msg) from None
        if "PGCONNECT_TIMEOUT" not in os.environ:
            given.setdefault("connect_timeout", CONNECT_TIMEOUT)
        given.setdefault("fallback_application_name", "clew")
        self.conninfo = make_conninfo(**given)
        # Those of the environment are the client library's own affair, but for what is shown.
        hosts, ports = (
            str(given.get(name) or os.environ.get(f"PG{name.upper()}") or "").split(",") for name in ("host", "port")
        )
        places = zip_longest(hosts, ports[: len(hosts)], fillvalue=ports[0])
        shown = ",".join(f"{host or 'localhost'}:{port or 5432}" for host, port in places)
        self.shown = f"postgresql://{shown}/{given.get('dbname') or given.get('user') or ''}"

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        """A connection without a transaction. Raises StoreUnavailableError."""
        try:
            connection = self._connect()
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED  # as below
            if not self._prepares:
                connection.prepare_threshold = None
        except psycopg.Error as error:
            raise unavailable(self.shown, error) from None  # its frames hold the password
        if connection.info.server_version < OLDEST_SERVER:
            found = connection.info.server_version // 10_000
            connection.close()
            msg = f"{self.shown}: this is PostgreSQL {found}, and Clew needs {OLDEST_SERVER // 10_000} or newer."
            raise PostgresUnavailableError(msg)
        encoding = connection.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            connection.close()
            msg = (
                f"{self.shown}: this database is in {encoding}, which does not hold every text. Make one with "
                "createdb --encoding=UTF8 --template=template0."
            )
            raise PostgresUnavailableError(msg)
        return connection

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        try:
            return psycopg.connect(self.conninfo, autocommit=True)
        except psycopg.OperationalError as error:
            if _CUT not in str(error):
                raise
        return psycopg.connect(self.conninfo, autocommit=True)  # it was cut while it was made: once more


class Session(NamedTuple):
    """A connection, and what it found when it was made."""

    connection: psycopg.Connection[tuple[Any, ...]]
    cursor: psycopg.Cursor[tuple[Any, ...]]
    """For statements whose rows are fetched at once."""
    base: int
    """What is added to transaction ids."""
    standby: bool
    """Whether the server only follows another, and is written to by that one alone."""
    secured: bool
    """Whether policies on rows are in force; COPY FROM is refused then."""
    tenant: str | None
    """Whose rows alone can be seen and written; None where the user may see all."""
    prepared: dict[Statement, bytes]
    """Statements that were prepared past the cursor, and their names."""

    def ask(
        self, sql: str, parameters: Mapping[str, Any] | Sequence[Any] | None = None, *, setting: bytes | None = None
    ) -> Rows:
        """The rows of a prepared statement, in binary; ``setting`` is a statement that sets something for it alone."""
        before: list[tuple[bytes, Mapping[str, Any] | None]] = []
        if self.tenant is not None and self.connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            before.append((_SET_TENANT, {"tenant": self.tenant}))
        if setting is not None:
            before.append((setting, None))
        # Sent together they are one transaction, and one round trip.
        with self.connection.pipeline() if before else nullcontext():
            for each, values in before:
                self.connection.execute(each, values, prepare=True)
            self.cursor.execute(sql.encode(), parameters, prepare=True)
        return [] if self.cursor.rownumber is None else self.cursor.fetchall()

    def numbers(self, statement: Statement, values: Sequence[bytes | None]) -> list[int]:
        """What a statement answers that is a transaction by itself."""
        if self.tenant is None:
            return numbers(self.connection, self.prepared, (statement, values))
        return numbers(self.connection, self.prepared, (_ON_BEHALF, (self.tenant.encode(),)), (statement, values))

    def begin(self) -> None:
        """Begin a transaction, on behalf of the tenant; one that stands still is ended by the server."""
        on_behalf = "" if self.tenant is None else f"; SET LOCAL clew.tenant = {Literal(self.tenant).as_string(None)}"
        self.connection.execute((_BEGIN + on_behalf).encode())


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
        self._freed = threading.Condition(threading.Lock())
        self._idle: list[tuple[Session, float]] = []
        self._made = []
        self._used = 0
        self._closed = False

    @contextmanager
    def use(self) -> Iterator[Session]:
        """A connection for the block. Raises ClosedError or StoreUnavailableError."""
        session = self._take()
        try:
            yield session
        finally:
            self._give_back(session)

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
            return _begin(connection, self.address.shown, self._tenant)
        except BaseException:
            connection.close()
            raise

    def drop(self) -> None:
        """Close those that wait: the server has cut another."""
        with self._freed:
            idle, self._idle = self._idle, []
        for session, _ in idle:
            self._close(session)

    def close(self) -> None:
        """Close those that wait, and each of the others when it is given back. Later calls raise ClosedError."""
        with self._freed:
            self._closed = True
        self.drop()

    def _take(self) -> Session:
        with self._freed:
            if self._used >= self._most and not self._freed.wait_for(self._is_free, CONNECT_TIMEOUT * 3):
                msg = f"{self.address.shown}: all {self._most} connections of this process are busy. Try again later."
                raise PostgresUnavailableError(msg)
            self._used += 1
        try:
            return self._one()
        except BaseException:
            with self._freed:
                self._free()
            raise

    def _give_back(self, session: Session) -> None:
        fit = session.connection.pgconn.transaction_status == psycopg.pq.TransactionStatus.IDLE
        with self._freed:
            self._free()
            if fit and not self._closed:
                self._idle.append((session, time.monotonic()))
                return
        self._close(session)

    def _is_free(self) -> bool:
        return self._used < self._most

    def _free(self) -> None:
        self._used -= 1
        self._freed.notify()

    def _one(self) -> Session:
        while True:
            with self._freed:
                if self._closed:
                    msg = "The store is closed: nothing can be read. Open it again."
                    raise ClosedError(msg)
                session, since = self._idle.pop() if self._idle else (None, 0.0)
            if session is None:
                session = self.fresh()
                with self._freed:
                    self._made.append(session)
                return session
            if time.monotonic() - since < RESTED or not _is_cut(session):
                return session
            self._close(session)

    def _close(self, session: Session) -> None:
        with self._freed, suppress(ValueError):
            self._made.remove(session)
        with suppress(psycopg.Error):
            session.connection.close()


_inherited: list[Session] = []
"""Connections of the parent of this process: neither used nor closed, as closing one would end it in the parent too."""


def _begin(connection: psycopg.Connection[tuple[Any, ...]], shown: str, tenant: str | None) -> Session:
    """See where the positions are: a dump that was restored begins with lower transaction ids than it holds.

    Raises TenantRequiredError on a connection that is bound to a tenant and is given none.
    """
    secured, bound = connection.execute(_IS_BOUND).fetchall()[0]
    if bound:
        if not tenant:
            connection.close()
            msg = f"{shown}: this database keeps tenants apart, and none was named. "
            raise TenantRequiredError(msg + "Open it with a tenant, or as a user that is a member of clew_operator.")
        # Without the others' rows it cannot be seen from here.
        base, standby = connection.execute(_BASE_OF_ALL).fetchall()[0]
    else:
        found = connection.execute(_BASE).fetchone()
        if found is None:
            msg = f"{shown}: clew_meta is empty, as in a copy that was broken off. Restore or copy the database again."
            raise StoreSchemaError(msg)
        base, last, transaction, standby = found
        if last is not None and last >= base + transaction:
            if standby:
                connection.close()
                raise PostgresUnavailableError(f"{shown}: {_UNSETTLED}")
            connection.execute(_RAISE_BASE, (last + 1,))
            (base,) = connection.execute("SELECT base FROM clew_meta").fetchall()[0]
    return Session(connection, connection.cursor(binary=True), base, standby, secured, tenant if bound else None, {})


def _is_cut(session: Session) -> bool:
    """Whether the server has something to say that was not asked: that it ends the connection."""
    try:
        poll = select.poll()
        poll.register(session.connection.fileno(), select.POLLIN)
        return bool(poll.poll(0))
    except (psycopg.Error, OSError):
        return True
