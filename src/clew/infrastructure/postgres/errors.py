"""What PostgreSQL answers, said as Clew's errors: what failed, where, and what to do, and never a password."""

from __future__ import annotations

import psycopg
from eventsourcing.persistence import OperationalError

from clew.domain.errors import StoreError, StoreSchemaError, StoreUnavailableError

_ADVICE = {
    "23": "it refused a row. Verify says whether the store is damaged.",
    "25006": "it is read-only, as a standby is. Name the server that is written to.",
    "28": "it did not let this user in. Check the user and the password.",
    "3D000": "there is no such database. Make it with createdb, or name another.",
    "3F000": "this user has no schema to make tables in. Grant it the rights on one in its search_path.",
    "42501": "this user may not do that. Grant it the rights on the database and its tables, or name another user.",
    "42P01": "a table of Clew's is not there. Make the tables with `clew migrate`.",
    "53100": "the disk of the server is full. Free some space, then try again.",
    "53200": "the server has no memory left. Try again later.",
    "53300": "it takes no more connections. Let it take more (max_connections), or open fewer stores.",
    "57014": "it ended the statement for taking too long. Try again, or raise statement_timeout.",
    "57": "the server is shutting down or starting. Try again in a moment.",
}

# Of a connection that could not be made the driver has the words only.
_WORDS = {
    "password authentication failed": "28",
    "no password supplied": "28",
    "no pg_hba.conf entry": "28",
    'FATAL: role "': "28",
    '" does not exist': "3D000",
    "permission denied for database": "42501",
    "too many clients": "53300",
    "too many connections": "53300",
    "remaining connection slots": "53300",
    "the database system is": "57",
}


class PostgresUnavailableError(StoreUnavailableError, OperationalError):
    """The store cannot be reached, read or written: Clew's error, and the library's for the library's applications."""


def unavailable(where: str, error: psycopg.Error) -> StoreError:
    """The error of Clew's for one of the driver's; ``where`` names the database without its password."""
    said = " ".join(str(error).split())
    code = error.sqlstate or next((code for words, code in _WORDS.items() if words in said), "")
    why = _ADVICE.get(code) or _ADVICE.get(code[:2])
    if code == "42P01":
        return StoreSchemaError(f"{where}: {why}")
    if why is None:
        lost = isinstance(error, psycopg.OperationalError)
        why = (
            "the server cannot be reached. Check that it runs, its address and the network, then try again."
            if lost
            else "PostgreSQL cannot do what was asked. Check that the database is of this Clew."
        )
    return PostgresUnavailableError(f"{where}: {why} (PostgreSQL says: {said})")


def is_cut(error: psycopg.Error) -> bool:
    """Whether the connection is gone, rather than the statement refused."""
    return error.sqlstate is None or error.sqlstate.startswith(("08", "57P"))
