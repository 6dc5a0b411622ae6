"""The queries of a SQLite store. Each is short, so that no reader holds back a checkpoint for long."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from clew.infrastructure.append_plan import Outcome, first_after
from clew.infrastructure.recorder import Appended, Blob, Draft, Key, Lease, Row, Snapshot, StreamInfo, is_full, page

if TYPE_CHECKING:
    from clew.infrastructure.sqlite.datastore import ClewSQLiteDatastore

T = TypeVar("T")

Take: TypeAlias = Callable[[Iterable[tuple[Any, ...]]], list[T]]
"""Makes a list of the rows of a query, and may stop before the last row."""

Parameters: TypeAlias = Sequence[Any] | dict[str, Any]

HIGHEST = 2**63 - 1
WINDOW = 20_000
"""How many positions one query of a prefix reads."""

FEW_STREAMS = 1_000

MANY = 500
"""Positions in one query."""

# If a stub did not fit into the space of its row, the row's digest is empty and both are in ``remains``.
_STATE = (
    "CASE WHEN e.digest IS NULL OR e.digest <> x'' THEN e.state "
    "ELSE coalesce((SELECT r.state FROM remains r WHERE r.position = e.position), x'') END"
)
_DIGEST = (
    "CASE WHEN e.digest IS NULL OR e.digest <> x'' THEN e.digest "
    "ELSE coalesce((SELECT r.digest FROM remains r WHERE r.position = e.position), x'') END"
)


def _columns(name: str) -> str:
    """The columns of a Row, with the stream's name from ``name``."""
    return f"e.position, {name}, e.version, e.type, {_STATE}, e.hash, {_DIGEST}"


# The cut grows from a parent to its forks; the writer ensures it. The condition ends the query even in a file
# that was tampered with so that the parents form a cycle.
_LINE = """WITH RECURSIVE line (id, name, parent, cut, upto) AS (
    SELECT id, name, parent, cut, :upto FROM stream WHERE name = :name
    UNION ALL
    SELECT p.id, p.name, p.parent, p.cut, min(line.upto, line.cut)
    FROM line CROSS JOIN stream p ON p.id = line.parent
    WHERE line.cut > :after AND (p.cut IS NULL OR p.cut < line.cut)
) """
_LINEAGE = f"""{_LINE}
SELECT {_columns("line.name")}
FROM line CROSS JOIN event e ON e.stream = line.id AND e.version > :after AND e.version <= line.upto"""  # noqa: S608 - of constants
_SNAPSHOT = f"""{_LINE}
SELECT line.name, s.version, s.state FROM line CROSS JOIN snapshot s ON s.stream = line.id AND s.version =
    (SELECT max(n.version) FROM snapshot n WHERE n.stream = line.id AND n.version <= line.upto)
LIMIT 1"""  # noqa: S608 - of constants
_ROWS = f"SELECT {_columns('s.name')} FROM event e CROSS JOIN stream s ON s.id = e.stream "  # noqa: S608 - of constants
_OWN_ROWS = (
    f"SELECT {_columns('s.name')} FROM stream s CROSS JOIN event e ON e.stream = s.id "  # noqa: S608 - of constants
    "WHERE s.name = ? AND e.version > ? ORDER BY e.version LIMIT ?"
)
# In a file that was tampered with, a parent that is not a stream is shown by its key and not as None.
_STREAMS = (
    "SELECT s.id, s.name, CASE WHEN s.parent IS NULL THEN NULL ELSE coalesce(p.name, '#' || s.parent) END, s.cut "
    "FROM stream s LEFT JOIN stream p ON p.id = s.parent "
)
_ORPHANS = """WITH RECURSIVE owner (id) AS (
    SELECT min(stream) FROM event
    UNION ALL
    SELECT (SELECT min(stream) FROM event WHERE stream > owner.id) FROM owner WHERE owner.id IS NOT NULL
)
SELECT e.stream, e.version FROM owner CROSS JOIN event e ON e.stream = owner.id
WHERE owner.id NOT IN (SELECT id FROM stream)
UNION SELECT e.stream, e.version FROM owner CROSS JOIN event e ON e.stream = owner.id AND e.version < 0
ORDER BY 1, 2 LIMIT ?"""

KEY = (
    "SELECT k.first, k.last, k.salt, k.digest FROM stream s CROSS JOIN append_key k ON k.stream = s.id "
    "WHERE s.name = ? AND k.key = ?"
)
LEASE = "SELECT l.holder, l.until FROM stream s CROSS JOIN lease l ON l.stream = s.id WHERE s.name = ?"
DRAFT = "SELECT d.run, d.data FROM stream s CROSS JOIN draft d ON d.stream = s.id WHERE s.name = ?"
BLOB = "SELECT digest, kind, data FROM blob WHERE digest = ?"
KEY_ROWS = "SELECT position, hash, version FROM event WHERE position BETWEEN ? AND ? ORDER BY position"

_version = itemgetter(2)
_Rows = list[tuple[Any, ...]]


class SQLiteReads:
    """The reading ports, on a datastore."""

    datastore: ClewSQLiteDatastore

    def repeated(self, key: Key) -> Appended | None:
        """The first outcome of an append with this key, None if there was none; IdempotencyKeyReusedError."""
        outcome = find_outcome(self.datastore.query, key)
        return None if outcome is None else outcome.repeat(key)

    def lineage(self, stream: str, *, after: int = -1, upto: int | None = None) -> list[Row]:
        """The rows of a stream and of its ancestors up to each cut, in version order."""
        found = self.datastore.query(
            _LINEAGE, {"name": stream, "after": after, "upto": HIGHEST if upto is None else upto}
        )
        # The rows come stream by stream, each in order. Python sorts such runs faster than SQLite.
        found.sort(key=_version)
        return list(map(Row._make, found))

    def own_rows(self, stream: str, *, after: int = -1, limit: int) -> list[Row]:
        """The rows of the stream itself, in version order."""
        return self._page(_OWN_ROWS, (stream, after, limit))

    def rows(self, *, after: int, limit: int, prefix: str = "") -> list[Row]:
        """Rows in position order of streams whose name begins with ``prefix``."""
        if not prefix:
            sql = _ROWS + "WHERE e.position > ? ORDER BY e.position LIMIT ?"
            return self._page(sql, (after, limit))
        names, bounds = _named(prefix)
        sql = _ROWS + f"WHERE e.position > ? AND e.position <= ? AND {names} ORDER BY e.position LIMIT ?"
        rows: list[Row] = []
        last = self.last_position()
        while after < last and len(rows) < limit and not is_full(rows):
            upto = min(last, max(after, 0) + WINDOW)
            rows += self._page(sql, (after, upto, *bounds, limit - len(rows)))
            after = upto
        return rows

    def rows_at(self, positions: Sequence[int]) -> list[Row]:
        """The rows at these positions, in position order."""
        rows: list[Row] = []
        wanted = sorted({position for position in positions if 0 < position <= HIGHEST})
        for part in (wanted[start : start + MANY] for start in range(0, len(wanted), MANY)):
            sql = _ROWS + f"WHERE e.position IN ({','.join('?' * len(part))}) ORDER BY e.position"
            rows.extend(map(Row._make, self.datastore.query(sql, part)))
        return rows

    def last_position(self) -> int:
        """The highest position that readers see, 0 for an empty store."""
        found = self.datastore.query("SELECT max(position) FROM event")
        return found[0][0] or 0

    def count_after(self, position: int, limit: int) -> int:
        """How many rows come after a position, counted up to ``limit``: positions have no gaps."""
        return min(max(0, self.last_position() - max(position, 0)), limit)

    def streams(self, *, prefix: str = "", after: int = 0, limit: int) -> list[StreamInfo]:
        """Streams in the order of their creation, ``after`` < key."""
        if not prefix:
            sql = _STREAMS + "WHERE s.id > ? ORDER BY s.id LIMIT ?"
            return list(map(_info, self.datastore.query(sql, (after, limit))))
        names, bounds = _named(prefix)
        # A prefix of few streams is found by its names; for many, the order of keys is faster.
        few = self.datastore.query(
            f"SELECT s.id FROM stream s WHERE {names} LIMIT ?",  # noqa: S608 - of constants
            (*bounds, FEW_STREAMS),
        )
        if len(few) < FEW_STREAMS:
            keys = sorted(key for (key,) in few if key > after)[:limit]
            marks = ",".join("?" * len(keys))
            sql = _STREAMS + f"WHERE s.id IN ({marks}) ORDER BY s.id"
            return list(map(_info, self.datastore.query(sql, keys)))
        names, bounds = _named(prefix, "+s.name")  # the sign keeps SQLite from seeking by it
        sql = _STREAMS + f"WHERE s.id > ? AND {names} ORDER BY s.id LIMIT ?"
        return list(map(_info, self.datastore.query(sql, (after, *bounds, limit))))

    def stream(self, name: str) -> StreamInfo | None:
        """The stream of that name, None if there is none."""
        found = self.datastore.query(_STREAMS + "WHERE s.name = ?", (name,))
        return _info(found[0]) if found else None

    def forks(self, stream: str) -> list[StreamInfo]:
        """The streams whose parent is this one, in the order of their creation."""
        sql = _STREAMS + "WHERE s.parent = (SELECT id FROM stream WHERE name = ?) ORDER BY s.id"  # noqa: S608 - of constants
        found = self.datastore.query(sql, (stream,))
        return list(map(_info, found))

    def orphans(self, limit: int) -> list[tuple[int, int]]:
        """Stream key and version of rows without a stream, or with a version below 0."""
        return [(key, version) for key, version in self.datastore.query(_ORPHANS, (limit,))]

    def snapshot(self, stream: str, upto: int | None = None) -> Snapshot | None:
        """The newest snapshot along the lineage at a version ≤ ``upto``."""
        # The query goes from the stream to its ancestors and stops at the first that has one.
        found = self.datastore.query(
            _SNAPSHOT, {"name": stream, "after": -1, "upto": HIGHEST if upto is None else upto}
        )
        return Snapshot(*found[0]) if found else None

    def blob(self, digest: bytes, key: int | None = None) -> Blob | None:
        """The blob with that digest as it is stored."""
        del key
        found = self.datastore.query(BLOB, (digest,))
        return Blob._make(found[0]) if found else None

    def blobs(self, *, after: int = 0, limit: int) -> list[tuple[int, bytes]]:
        """Key and digest of each blob in the order of their creation."""
        sql = "SELECT rowid, digest FROM blob WHERE rowid > ? ORDER BY rowid LIMIT ?"
        return [(key, digest) for key, digest in self.datastore.query(sql, (after, limit))]

    def lease(self, stream: str) -> Lease | None:
        """The lease of a stream."""
        found = self.datastore.query(LEASE, (stream,))
        return Lease(stream, *found[0]) if found else None

    def draft(self, stream: str) -> Draft | None:
        """The part of an answer that was stored last for the stream."""
        found = self.datastore.query(DRAFT, (stream,))
        return Draft(stream, *found[0]) if found else None

    def shredded(self) -> int:
        """How many rows were ever shredded."""
        found = self.datastore.query("SELECT value FROM counter WHERE name = 'shredded'")
        return int(found[0][0]) if found else 0

    def _page(self, sql: str, parameters: Sequence[Any]) -> list[Row]:
        return self.datastore.query(sql, parameters, lambda found: page(map(Row._make, found)))


def _info(row: tuple[Any, ...]) -> StreamInfo:
    """A stream. In a file that was tampered with, a name that is not text is shown as its repr."""
    key, name, parent, cut = row
    return StreamInfo(key, name if isinstance(name, str) else repr(name), parent, cut)


def find_outcome(query: Callable[[str, tuple[Any, ...]], _Rows], key: Key) -> Outcome | None:
    """The outcome of an idempotency key, for the readers and for the writer within its transaction."""
    found = query(KEY, (key.stream, key.key))
    if not found:
        return None
    first, last, salt, digest = found[0]
    rows = query(KEY_ROWS, (first, last))
    positions, hashes, versions = (tuple(row[column] for row in rows) for column in range(3))
    return Outcome(salt, digest, Appended(positions, hashes, versions))


def within_range(parameters: Parameters) -> Parameters:
    """The parameters of a query with every integer in the range of SQLite's, which have 64 bits."""
    if isinstance(parameters, dict):
        return dict(zip(parameters, within_range([*parameters.values()]), strict=True))
    return [max(-HIGHEST, min(value, HIGHEST)) if isinstance(value, int) else value for value in parameters]


def _named(prefix: str, column: str = "s.name") -> tuple[str, tuple[str, ...]]:
    """The condition that a stream's name begins with the prefix, as a range that the index of names can seek."""
    end = first_after(prefix)
    if end is None:
        return f"{column} >= ?", (prefix,)
    return f"{column} >= ? AND {column} < ?", (prefix, end)
