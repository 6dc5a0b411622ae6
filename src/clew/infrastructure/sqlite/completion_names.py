"""Names in a SQLite store for tab completion, read without opening the store, making files or taking locks."""

from __future__ import annotations

from typing import Any

from clew.infrastructure.sqlite import immutable_reads

_TIMEOUT = 0.2
"""Seconds to wait for a lock: a user has pressed a key and waits."""

_STREAMS = "SELECT id, name FROM stream WHERE name >= ? AND name < ? ORDER BY name LIMIT ?"

_OF_A_THREAD = """WITH RECURSIVE line (id, parent, cut, upto) AS (
    SELECT id, parent, cut, ? FROM stream WHERE id = ?
    UNION ALL
    SELECT p.id, p.parent, p.cut, min(line.upto, line.cut)
    FROM line CROSS JOIN stream p ON p.id = line.parent
    WHERE p.cut IS NULL OR p.cut < line.cut
)
SELECT e.version, e.type, e.state FROM line CROSS JOIN event e ON e.stream = line.id AND e.version <= line.upto
WHERE e.type = ? ORDER BY e.version DESC"""

_HIGHEST = 2**63 - 1


class SQLiteNames:
    """The names in the file at a path. Raises what SQLite and ``open_snapshot`` raise."""

    def __init__(self, path: str) -> None:
        self._path = path

    def streams(self, first: str, end: str, limit: int) -> list[tuple[int, str]]:
        """Keys and names of streams, ``first`` ≤ name < ``end``, in the order of their names."""
        return self._rows(_STREAMS, (first, end, limit))

    def events(self, key: int, type_: str) -> list[tuple[int, str, bytes]]:
        """Version, type and state of the events of a type in the lineage of a stream, the newest first."""
        return self._rows(_OF_A_THREAD, (_HIGHEST, key, type_))

    def close(self) -> None:
        """Nothing to do: each query has its own connection."""

    def _rows(self, sql: str, parameters: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        return immutable_reads.read(self._path, lambda file: file.execute(sql, parameters).fetchall(), _TIMEOUT)
