"""PostgreSQL's errors as Clew's: what failed, where, and what to do, never with a password."""

from __future__ import annotations

import psycopg
from eventsourcing.persistence import OperationalError

from clew.domain.errors import StoreError, StoreSchemaError, StoreUnavailableError, StoreUrlError

_ADVICE = {
    "23": "it refused a row. `clew verify` shows whether the store is damaged.",
    "25006": "it is read-only, like a standby. Name the primary.",
    "25P03": "it ended a transaction that was idle for too long. Try again.",
    "25P04": "it ended a transaction that took too long. Try again, or raise transaction_timeout.",
    "28": "it refused this user. Check the user, the password, and the rules in pg_hba.conf.",
    "3D000": "this database does not exist. Create it with createdb, or name another.",
    "3F000": "this user has no schema for tables. Grant it the rights on a schema in its search_path.",
    "42501": "this user lacks a right. Grant it the rights on the database and its tables, or name another user.",
    "42P01": "one of Clew's tables is missing. Restore the database from a copy, or name another.",
    "shape": "it has tables with these names that are not Clew's. Name another database, or another schema "
    "(?options=-csearch_path%3Dclew).",
    "40001": "it ended the statement in favour of another transaction. Try again. If this is frequent, set "
    "default_transaction_isolation to 'read committed' for Clew's user.",
    "40P01": "it ended this transaction because of a deadlock with another one. Try again.",
    "53100": "the disk of the server is full. Free some space, then try again.",
    "53200": "the server has no memory left. Try again later.",
    "53300": "it accepts no more connections. Raise max_connections, or open fewer stores.",
    "54": "the request is too long or too large for it. Request less, or use shorter names.",
    "55P03": "another session holds a lock that is needed. Wait, or find the session in pg_stat_activity.",
    "57014": "it ended the statement because it took too long. Try again, or raise statement_timeout.",
    "57": "the server is shutting down or starting. Try again in a moment.",
    "58": "the server cannot read or write its files. Check its disk and its log.",
    "host": "this host does not exist. Check the name and the network.",
    "tls": "a trusted TLS connection is not possible. Check sslmode and sslrootcert, and whether the server "
    "has TLS enabled (ssl = on).",
    "url": "a setting in its URL is invalid. Correct it.",
}

_SHAPE = ("42703", "42704", "42710", "42723", "42804", "42809", "42883", "42P07")
"""A column, function or table that is missing, different, or exists already."""

# For a failed connection the driver gives only the message.
_WORDS = {
    "SSL was required": "tls",
    "SSL error": "tls",
    "certificate": "tls",
    "private key file": "tls",
    ' value: "': "url",
    "bad value for": "url",
    'weak sslmode "': "url",
    "invalid SSL protocol version range": "url",
    "invalid SCRAM": "url",
    "could not parse network address": "url",
    "invalid command-line argument": "url",
    "invalid port number": "url",
    "invalid integer value": "url",
    "Servname not supported": "url",
    "definition of service": "url",
    "unrecognized configuration parameter": "url",
    "invalid value for parameter": "url",
    "unsupported startup parameter": "url",
    "failed to resolve host": "host",
    "authentication failed": "28",
    "no password supplied": "28",
    "no pg_hba.conf entry": "28",
    "pg_hba.conf rejects": "28",
    'FATAL: role "': "28",
    '" does not exist': "3D000",
    "permission denied for database": "42501",
    "too many clients": "53300",
    "too many connections": "53300",
    "remaining connection slots": "53300",
    "no more connections allowed": "53300",
    "the database system is": "57",
}


class PostgresUnavailableError(StoreUnavailableError, OperationalError):
    """The store cannot be reached, read or written. The library's applications catch it as the library's error."""


class TooManyConnectionsError(PostgresUnavailableError):
    """The server or the role has reached its limit of connections."""


def unavailable(where: str, error: psycopg.Error) -> StoreError:
    """Clew's error for an error of the driver. ``where`` names the database without its password."""
    message = " ".join(str(error).split())
    code = _code(error, message)
    why = _ADVICE.get(code) or _ADVICE.get(code[:2])
    if code == "42P01":
        return StoreSchemaError(f"{where}: {why}")
    if why is None:
        lost = isinstance(error, psycopg.OperationalError) and is_cut(error)
        why = (
            "the server cannot be reached. Check that it runs, its address and the network, then try again."
            if lost
            else "PostgreSQL cannot execute the request. Check that the database belongs to this version of Clew."
        )
    kind = {"url": StoreUrlError, "shape": StoreSchemaError, "53300": TooManyConnectionsError}.get(
        code, PostgresUnavailableError
    )
    return kind(f"{where}: {why} (PostgreSQL says: {message})")


def _code(error: psycopg.Error, message: str) -> str:
    """The SQLSTATE, or a name of ours where that is not specific enough."""
    if error.sqlstate is None:
        return next((code for words, code in _WORDS.items() if words in message), "")
    if "Check free disk space" in message:
        return "53100"  # not only a full disk, but possibly a quota
    return "shape" if error.sqlstate in _SHAPE else error.sqlstate


def is_cut(error: psycopg.Error) -> bool:
    """Whether the connection is lost, rather than the statement refused."""
    return error.sqlstate is None or error.sqlstate.startswith(("08", "57P"))
