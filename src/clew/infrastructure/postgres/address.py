"""The address of a PostgreSQL database: how to connect to it, and how to show it without its password."""

from __future__ import annotations

import os
import re
from itertools import zip_longest
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from clew.domain.errors import StoreUrlError
from clew.infrastructure.postgres.errors import PostgresUnavailableError, unavailable

CONNECT_TIMEOUT = 10
"""Seconds to wait for a server, unless the URL sets another limit."""

OLDEST_SERVER = 140_000

_PREPARE = re.compile(r"(?<=[?&])prepare=([^&]*)&?")

_CUT = "closed the connection unexpectedly"


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
