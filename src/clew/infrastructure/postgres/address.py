"""Where a PostgreSQL database is: how it is connected to, and shown without its password."""

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
"""Seconds to wait for a server, where the URL says nothing else."""

OLDEST_SERVER = 140_000

_PREPARE = re.compile(r"(?<=[?&])prepare=([^&]*)&?")

_CUT = "closed the connection unexpectedly"


class Address:
    """Where a database is, with its password; ``shown`` is without it, ``server`` its host. Raises StoreUrlError.

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
        if any("@" in str(given.get(name, "")) for name in ("host", "port", "dbname")):
            # Not with what was said: it is a part of the password.
            msg = "An @ stands where none can be. In a user's name or a password write it as %40, and a / as %2F."
            raise StoreUrlError(msg)
        if "replication" in given:
            msg = "replication asks for a connection on which nothing can be read or written. Leave it out of the URL."
            raise StoreUrlError(msg)
        if "PGCONNECT_TIMEOUT" not in os.environ:
            given.setdefault("connect_timeout", CONNECT_TIMEOUT)
        given.setdefault("fallback_application_name", "clew")
        given["client_encoding"] = "UTF8"  # whatever a role or an environment would have
        self.conninfo = make_conninfo(**given)
        # Those of the environment are the client library's own affair, but for what is shown.
        hosts, ports = (
            str(given.get(name) or os.environ.get(f"PG{name.upper()}") or "").split(",") for name in ("host", "port")
        )
        places = zip_longest(hosts, ports[: len(hosts)], fillvalue=ports[0])
        self.server = ",".join(f"{host or 'localhost'}:{port or 5432}" for host, port in places)
        self.shown = f"postgresql://{self.server}/{given.get('dbname') or given.get('user') or ''}"

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
