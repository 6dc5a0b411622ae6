"""A session with a PostgreSQL database: a connection, what was found when it was opened, and how statements use it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from clew.domain.errors import StoreSchemaError, StoreUrlError, TenantRequiredError
from clew.infrastructure.postgres.errors import PostgresUnavailableError, unavailable
from clew.infrastructure.postgres.pipeline import (
    BYTEA_TYPE,
    BoundStatement,
    Statement,
    bind,
    execute,
    load_rows,
    read_numbers,
    read_rows,
)
from clew.infrastructure.postgres.sql_files import statements

CONNECT_TIMEOUT = 10
"""Seconds to wait for a server, unless the URL sets another limit."""

OLDEST_SERVER = 140_000

_PREPARE = re.compile(r"(?<=[?&])prepare=([^&]*)&?")

_CUT = "closed the connection unexpectedly"

ORDINAL_BITS = 20
"""The lowest bits of a position: which event of its transaction it is. The others are the transaction."""

_SQL = {name: sql.encode() for name, sql in statements("bootstrap.sql").items()}
_SECURITY = statements("row_level_security.sql")
_OWN_ROWS_PLACE, _OWN_ROWS = "/* own rows */", _SECURITY["own rows"]
_SET_TENANT = Statement(_SECURITY["set tenant"].encode(), [BYTEA_TYPE])

# A transaction must see what it has waited for, whatever the database's default isolation. Readers stop below an open
# transaction: that of a process that hangs must end.
_BEGIN: Sequence[BoundStatement] = (
    (Statement(b"BEGIN ISOLATION LEVEL READ COMMITTED"), ()),
    (Statement(b"SET LOCAL idle_in_transaction_session_timeout = '30s'"), ()),
)
_COMMIT: BoundStatement = Statement(b"COMMIT"), ()
_ROLL_BACK: BoundStatement = Statement(b"ROLLBACK"), ()

Rows = list[tuple[Any, ...]]


class Address:
    """The address of a database with its password; ``shown`` is the same without it, ``server`` its hosts and ports.

    ``?prepare=no`` disables prepared statements, for poolers that assign another session to each transaction and do not
    support prepared statements across sessions. Raises StoreUrlError.
    """

    def __init__(self, conninfo: str) -> None:
        prepare = _PREPARE.search(conninfo)
        if prepare is not None and prepare[1] not in ("yes", "no"):
            msg = "prepare must be yes or no: whether statements are prepared on the server."
            raise StoreUrlError(msg)
        self._prepares = prepare is None or prepare[1] == "yes"
        try:
            settings: dict[str, Any] = dict(
                conninfo_to_dict(conninfo if prepare is None else _PREPARE.sub("", conninfo).rstrip("?&"))
            )
        except (psycopg.Error, UnicodeError):
            # The driver's message repeats what it could not parse, which may contain a password.
            msg = (
                "This is not the address of a PostgreSQL database, or it has a setting that PostgreSQL does not know. "
                "Use postgresql://user:password@host:5432/database."
            )
            raise StoreUrlError(msg) from None
        if any("@" in str(settings.get(name, "")) for name in ("host", "port", "dbname")):
            # The message does not repeat the URL: this is a part of the password.
            msg = "There is an @ in the wrong place. In a user name or a password write it as %40, and a / as %2F."
            raise StoreUrlError(msg)
        if "replication" in settings:
            msg = "replication opens a connection that cannot read or write tables. Remove it from the URL."
            raise StoreUrlError(msg)
        if "PGCONNECT_TIMEOUT" not in os.environ:
            settings.setdefault("connect_timeout", CONNECT_TIMEOUT)
        settings.setdefault("fallback_application_name", "clew")
        settings["client_encoding"] = "UTF8"  # whatever the role or the environment sets
        self.conninfo = make_conninfo(**settings)
        # The client library reads the environment itself; here it matters only for what is shown.
        hosts, ports = (
            str(settings.get(name) or os.environ.get(f"PG{name.upper()}") or "").split(",") for name in ("host", "port")
        )
        pairs = zip_longest(hosts, ports[: len(hosts)], fillvalue=ports[0])
        self.server = ",".join(f"{host or 'localhost'}:{port or 5432}" for host, port in pairs)
        self.shown = f"postgresql://{self.server}/{settings.get('dbname') or settings.get('user') or ''}"

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        """A connection in autocommit mode. Raises StoreUnavailableError."""
        try:
            connection = self._connect()
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED  # as pipelined transactions have it
            if not self._prepares:
                connection.prepare_threshold = None
        except psycopg.Error as error:
            raise unavailable(self.shown, error) from None  # its frames contain the password
        if connection.info.server_version < OLDEST_SERVER:
            version = connection.info.server_version // 10_000
            connection.close()
            msg = f"{self.shown}: this is PostgreSQL {version}, and Clew needs {OLDEST_SERVER // 10_000} or newer."
            raise PostgresUnavailableError(msg)
        encoding = connection.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            connection.close()
            msg = (
                f"{self.shown}: this database has the encoding {encoding}, which cannot store every text. "
                "Create one with createdb --encoding=UTF8 --template=template0."
            )
            raise PostgresUnavailableError(msg)
        return connection

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        try:
            return psycopg.connect(self.conninfo, autocommit=True)
        except psycopg.OperationalError as error:
            if _CUT not in str(error):
                raise
        return psycopg.connect(self.conninfo, autocommit=True)  # the server closed it during startup: try once more


class Session(NamedTuple):
    """A connection, and what was found when it was opened."""

    connection: psycopg.Connection[tuple[Any, ...]]
    cursor: psycopg.Cursor[tuple[Any, ...]]
    """For statements whose rows are fetched at once."""
    base: int
    """Is added to transaction ids."""
    standby: bool
    """Whether the server only follows a primary, and cannot be written to."""
    secured: bool
    """Whether row-level security is in force; COPY FROM is then refused."""
    tenant: str | None
    """The only tenant whose rows are visible; None if the user sees all."""
    prepared: dict[Statement, bytes]
    """The names of the statements that were prepared without the cursor."""

    def query(
        self, sql: str, parameters: Mapping[str, Any] | Sequence[Any] | None = None, *, setting: bytes | None = None
    ) -> Rows:
        """The rows of a prepared statement, in binary. ``setting`` is a statement that changes a setting for it."""
        before: list[BoundStatement] = []
        if self.tenant is not None:
            sql = sql.replace(_OWN_ROWS_PLACE, _OWN_ROWS)
            if self.connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
                before += self._set_tenant()
        if setting is not None:
            before.append((Statement(setting), ()))
        if before:  # sent together they are one transaction and one round trip
            bound = bind(self.connection, sql, parameters)
            results = execute(self.connection, self.prepared, *before, bound, is_transaction=True)
            return load_rows(self.connection, results[-1])
        self.cursor.execute(sql.encode(), parameters, prepare=True)
        return [] if self.cursor.rownumber is None else self.cursor.fetchall()

    def query_numbers(self, statement: Statement, values: Sequence[bytes | None]) -> list[int]:
        """The numbers that a statement returns. It is a transaction by itself."""
        bound = [(statement, values)] if self.tenant is None else [*self._set_tenant(), (statement, values)]
        return read_numbers(execute(self.connection, self.prepared, *bound, is_transaction=True)[-1])

    def execute_together(self, *bound: BoundStatement) -> list[Rows]:
        """The rows, of numbers and bytes, of statements that are sent in one round trip.

        Statements after a failed one are not executed.
        """
        return list(map(read_rows, execute(self.connection, self.prepared, *bound)))

    def begin(self, *bound: BoundStatement) -> list[Rows]:
        """Begin a transaction for the tenant, and return the rows of these statements. The server ends idle ones."""
        first = [*_BEGIN, *self._set_tenant()]
        return self.execute_together(*first, *bound)[len(first) :]

    def commit(self, *bound: BoundStatement) -> None:
        """Commit the transaction after these statements. If one fails, nothing is committed."""
        self.execute_together(*bound, _COMMIT)

    def roll_back(self) -> None:
        """Roll the transaction back. Unlike the driver's rollback, this keeps the prepared statements."""
        self.execute_together(_ROLL_BACK)

    def _set_tenant(self) -> Sequence[BoundStatement]:
        return () if self.tenant is None else ((_SET_TENANT, (self.tenant.encode(),)),)


def open_session(address: Address, tenant: str | None) -> Session:
    """Connect, and make sure that new positions are above the stored ones: a restored dump restarts transaction ids.

    Raises StoreUnavailableError, or TenantRequiredError on a connection that needs a tenant and gets none.
    """
    connection = address.connect()
    try:
        return _inspect(connection, address.shown, tenant)
    except BaseException:
        connection.close()
        raise


def _inspect(connection: psycopg.Connection[tuple[Any, ...]], label: str, tenant: str | None) -> Session:
    secured, bound = connection.execute(_SECURITY["is bound"].encode()).fetchall()[0]
    if bound:
        if not tenant:
            msg = f"{label}: this database separates tenants, and no tenant was named. "
            raise TenantRequiredError(msg + "Open it with a tenant, or as a user that is a member of clew_operator.")
        # The rows of other tenants are not visible here: a function of the operators looks at them.
        base, standby = connection.execute(_SECURITY["base"].encode()).fetchall()[0]
    else:
        row = connection.execute(_SQL["base"]).fetchone()
        if row is None:
            msg = f"{label}: clew_meta is empty, as in an incomplete copy. Restore or copy the database again."
            raise StoreSchemaError(msg)
        base, last, transaction, standby = row
        if last is not None and last >= base + transaction:
            if standby:
                msg = (
                    f"{label}: this is a standby of a server to which a dump was restored, and the primary has not "
                    "adjusted the positions yet. Open the primary first."
                )
                raise PostgresUnavailableError(msg)
            (base,) = connection.execute(_SQL["raise base"], {"base": last + 1}).fetchall()[0]
    return Session(connection, connection.cursor(binary=True), base, standby, secured, tenant if bound else None, {})
