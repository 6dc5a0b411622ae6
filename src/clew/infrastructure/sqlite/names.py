"""Names out of a SQLite store at a glance, for tab completion: nothing is opened as a store, made or locked."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from typing import Any
from urllib.parse import quote

from clew.domain.names import Kind, parse_stream_name, stream_prefix

_TIMEOUT = 0.2
"""Seconds to wait for a lock: somebody has pressed a key and waits for the answer."""

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
_LAST = "\x7f"
"""Above every character of a stream's name, which is ASCII."""


def thread_ids(path: str, tenant: str, prefix: str, limit: int) -> list[str]:
    """Ids of threads that begin so, those that can be typed. Raises what SQLite raises."""
    return _printable((id_ for _, id_ in _streams(path, tenant, "thread", prefix, limit)), limit)


def scope_names(path: str, tenant: str, prefix: str, limit: int) -> list[str]:
    """Names of memory scopes that begin so, those that can be typed."""
    return _printable((id_ for _, id_ in _streams(path, tenant, "memory", prefix, limit)), limit)


def checkpoint_names(path: str, tenant: str, thread: str, prefix: str, limit: int) -> list[str]:
    """Names of checkpoints that begin so, the newest first, of the one thread whose id begins so."""
    from clew.domain.events import CheckpointMade
    from clew.infrastructure.envelope import decode

    rows = _events(path, tenant, thread, "checkpoint-made")
    made = (decode(thread, version, type_, state).data for version, type_, state in rows)
    names = (each.name for each in made if isinstance(each, CheckpointMade))
    return _printable((name for name in names if name.startswith(prefix)), limit)


def model_calls(path: str, tenant: str, thread: str, prefix: str, limit: int) -> list[str]:
    """Versions of model calls that begin so, the newest first, of the one thread whose id begins so."""
    versions = (str(version) for version, _, _ in _events(path, tenant, thread, "model-called"))
    return [version for version in versions if version.startswith(prefix)][:limit]


def _events(path: str, tenant: str, thread: str, type_: str) -> list[tuple[Any, ...]]:
    """Version, type and state of the events of a type in the lineage of the one thread whose id begins so."""
    found = _streams(path, tenant, "thread", thread, 2)
    keys = [key for key, id_ in found if id_ == thread] or [key for key, _ in found]
    return _rows(path, _OF_A_THREAD, (_HIGHEST, keys[0], type_)) if len(keys) == 1 else []


def _streams(path: str, tenant: str, kind: Kind, prefix: str, limit: int) -> list[tuple[int, str]]:
    """Keys and ids of the streams of a kind by the beginning of their ids, in the order of their names."""
    begun = stream_prefix(tenant, kind, prefix)
    sql = "SELECT id, name FROM stream WHERE name >= ? AND name < ? ORDER BY name LIMIT ?"
    names = ((key, parse_stream_name(name)) for key, name in _rows(path, sql, (begun, begun + _LAST, limit)))
    return [(key, name.id) for key, name in names if name is not None]


def _printable(names: Iterable[str], limit: int) -> list[str]:
    return [name for name in names if name.isprintable()][:limit]


def _rows(path: str, sql: str, parameters: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Where nobody has the store open, SQLite is told that nobody changes it: else it would make files beside it."""
    how = "mode=ro" if os.path.exists(f"{path}-shm") else "mode=ro&immutable=1"  # noqa: PTH110 - paths stay as given
    with closing(sqlite3.connect(f"file:{quote(path)}?{how}", uri=True, timeout=_TIMEOUT)) as connection:
        return connection.execute(sql, parameters).fetchall()
