"""Names in a PostgreSQL store, for tab completion: one connection, and at most a second for each answer."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import ClientCursor
from psycopg.conninfo import make_conninfo

from clew.infrastructure.postgres.connection import Address, Rows
from clew.infrastructure.postgres.sql_files import statements
from clew.infrastructure.postgres.stream_ids import text

_SQL = statements("completion_names.sql")


class PostgresNames:
    """A look into the database at an address, on behalf of a tenant (as it stands in the names of streams).

    Raises what the driver raises.
    """

    def __init__(self, address: Address, tenant: str) -> None:
        self._connection = psycopg.connect(
            make_conninfo(address.conninfo, connect_timeout=2), autocommit=True, cursor_factory=ClientCursor
        )
        try:
            self._connection.execute(_SQL["begin"].encode(), {"tenant": tenant})
        except BaseException:
            self._connection.close()
            raise

    def streams(self, first: str, end: str, limit: int) -> list[tuple[int, str]]:
        """Keys and names of streams, ``first`` ≤ name < ``end``, in the order of their names."""
        found = self._rows("streams", {"first": first.encode(), "end": end.encode(), "limit": limit})
        return [(key, text(name)) for key, name in found]

    def events(self, key: int, type_: str) -> list[tuple[int, str, bytes]]:
        """Version, type and state of the events of a type in the lineage of a stream, the newest first."""
        found = self._rows("events of a stream", {"key": key, "type": type_.encode()})
        return [(version, text(kind), state) for version, kind, state in found]

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _rows(self, statement: str, parameters: dict[str, Any]) -> Rows:
        return self._connection.execute(_SQL[statement].encode(), parameters).fetchall()
