"""What PostgreSQL answers, said as Clew's errors: what failed, where, and what to do, and never a password."""

from __future__ import annotations

import psycopg
from eventsourcing.persistence import OperationalError

from clew.domain.errors import StoreError, StoreSchemaError, StoreUnavailableError, StoreUrlError

_ADVICE = {
    "23": "it refused a row. Verify says whether the store is damaged.",
    "25006": "it is read-only, as a standby is. Name the server that is written to.",
    "25P03": "it ended a transaction that stood still for too long. Try again.",
    "25P04": "it ended a transaction that took too long. Try again, or raise transaction_timeout.",
    "28": "it did not let this user in. Check the user and the password, and what pg_hba.conf says of both.",
    "3D000": "there is no such database. Make it with createdb, or name another.",
    "3F000": "this user has no schema to make tables in. Grant it the rights on one in its search_path.",
    "42501": "this user may not do that. Grant it the rights on the database and its tables, or name another user.",
    "42P01": "a table of Clew's is not there, though others are. Restore the database from a copy, or name another.",
    "shape": "it has tables of these names that are not as Clew's are. Name another database, or another schema "
    "(?options=-csearch_path%3Dclew).",
    "40001": "it ended the statement for the sake of another transaction. Try again; where that is frequent, let "
    "default_transaction_isolation be 'read committed' for Clew's user.",
    "40P01": "another transaction and this one waited for each other, and it ended this one. Try again.",
    "53100": "the disk of the server is full. Free some space, then try again.",
    "53200": "the server has no memory left. Try again later.",
    "53300": "it takes no more connections. Let it take more (max_connections), or open fewer stores.",
    "54": "what was asked is too long or too large for it. Ask for less, or take shorter names.",
    "55P03": "somebody else keeps locked what is to be changed. Wait, or see who it is in pg_stat_activity.",
    "57014": "it ended the statement for taking too long. Try again, or raise statement_timeout.",
    "57": "the server is shutting down or starting. Try again in a moment.",
    "58": "the server cannot read or write its files. Look at its disk and its log.",
    "host": "there is no host of that name. Check the name, and the network.",
    "tls": "no TLS connection that can be trusted can be made. Look at sslmode and sslrootcert, and whether the server "
    "has TLS (ssl = on).",
    "url": "a setting of its URL cannot be used. Correct it.",
}

_SHAPE = ("42703", "42704", "42710", "42723", "42804", "42809", "42883", "42P07")
"""A column, a function or a table that is not as it should be, or is there already."""

# Of a connection that could not be made the driver has the words only.
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
    """The store cannot be reached, read or written: Clew's error, and the library's for the library's applications."""


class TooManyConnectionsError(PostgresUnavailableError):
    """The server, or the role, has as many connections as it may have."""


def unavailable(where: str, error: psycopg.Error) -> StoreError:
    """The error of Clew's for one of the driver's; ``where`` names the database without its password."""
    said = " ".join(str(error).split())
    code = _code(error, said)
    why = _ADVICE.get(code) or _ADVICE.get(code[:2])
    if code == "42P01":
        return StoreSchemaError(f"{where}: {why}")
    if why is None:
        lost = isinstance(error, psycopg.OperationalError) and is_cut(error)
        why = (
            "the server cannot be reached. Check that it runs, its address and the network, then try again."
            if lost
            else "PostgreSQL cannot do what was asked. Check that the database is of this Clew."
        )
    kind = {"url": StoreUrlError, "shape": StoreSchemaError, "53300": TooManyConnectionsError}.get(
        code, PostgresUnavailableError
    )
    return kind(f"{where}: {why} (PostgreSQL says: {said})")


def _code(error: psycopg.Error, said: str) -> str:
    """The SQLSTATE, or a name where that says too little."""
    if error.sqlstate is None:
        return next((code for words, code in _WORDS.items() if words in said), "")
    if "Check free disk space" in said:
        return "53100"  # a quota, and not the disk, may be what is full
    return "shape" if error.sqlstate in _SHAPE else error.sqlstate


def is_cut(error: psycopg.Error) -> bool:
    """Whether the connection is gone, rather than the statement refused."""
    return error.sqlstate is None or error.sqlstate.startswith(("08", "57P"))
