"""Names out of a PostgreSQL store at a glance, for tab completion: one connection, and a second for each answer."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import ClientCursor
from psycopg.conninfo import make_conninfo

from clew.infrastructure.postgres.address import Address
from clew.infrastructure.postgres.encoding import text
from clew.infrastructure.postgres.session import Rows

_BEGIN = "BEGIN READ ONLY; SET LOCAL statement_timeout = '1s'; SELECT set_config('clew.tenant', %s, true)"

_STREAMS = """SELECT id, name FROM clew_stream
WHERE substring(name FROM 1 FOR 256) >= substring(%(first)s FROM 1 FOR 256) AND name >= %(first)s
    AND substring(name FROM 1 FOR 256) <= %(end)s AND name < %(end)s
ORDER BY substring(name FROM 1 FOR 256), name LIMIT %(limit)s"""

_OF_A_THREAD = """WITH RECURSIVE line (id, tenant, parent, cut, upto) AS (
    SELECT id, tenant, parent, cut, 9223372036854775807 FROM clew_stream WHERE id = %(key)s
    UNION ALL
    SELECT p.id, p.tenant, p.parent, p.cut, least(line.upto, line.cut)
    FROM line JOIN clew_stream AS p ON p.id = line.parent AND p.tenant = line.tenant
    WHERE p.cut IS NULL OR p.cut < line.cut
)
SELECT e.version, e.type, e.state
FROM line CROSS JOIN LATERAL (
    SELECT version, type, state FROM clew_event WHERE stream = line.id AND version <= line.upto OFFSET 0
) AS e
WHERE e.type = %(type)s ORDER BY e.version DESC"""


class PostgresGlance:
    """A look into the database at an address, on behalf of a tenant (as it stands in the names of streams).

    Raises what the driver raises.
    """

    def __init__(self, address: Address, tenant: str) -> None:
        self._connection = psycopg.connect(
            make_conninfo(address.conninfo, connect_timeout=2), autocommit=True, cursor_factory=ClientCursor
        )
        try:
            self._connection.execute(_BEGIN, (tenant,))
        except BaseException:
            self._connection.close()
            raise

    def streams(self, first: str, end: str, limit: int) -> list[tuple[int, str]]:
        """Keys and names of streams, ``first`` ≤ name < ``end``, in the order of their names."""
        found = self._rows(_STREAMS, {"first": first.encode(), "end": end.encode(), "limit": limit})
        return [(key, text(name)) for key, name in found]

    def events(self, key: int, type_: str) -> list[tuple[int, str, bytes]]:
        """Version, type and state of the events of a type in the lineage of a stream, the newest first."""
        found = self._rows(_OF_A_THREAD, {"key": key, "type": type_.encode()})
        return [(version, text(kind), state) for version, kind, state in found]

    def close(self) -> None:
        """Let go of the connection."""
        self._connection.close()

    def _rows(self, sql: str, parameters: dict[str, Any]) -> Rows:
        return self._connection.execute(sql.encode(), parameters).fetchall()
