"""Reading a SQLite store: its connections and its queries. Each query is short, so that none delays a checkpoint."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, overload

from clew.domain.errors import ClosedError
from clew.domain.event_index import BLOBS
from clew.domain.ports import Appended, Blob, Draft, Key, Lease, Row, StreamInfo
from clew.domain.streams import first_after
from clew.infrastructure.append_plan import Outcome
from clew.infrastructure.recorder_ports import HIGHEST, Snapshot, StoredKey, is_full, page
from clew.infrastructure.sqlite.errors import unavailable
from clew.infrastructure.sqlite.schema import INDEXES

if TYPE_CHECKING:
    from clew.infrastructure.sqlite.datastore import ClewSQLiteDatastore

T = TypeVar("T")

Take: TypeAlias = Callable[[Iterable[tuple[Any, ...]]], list[T]]
"""Makes a list of the rows of a query, and may stop before the last row."""

Parameters: TypeAlias = Sequence[Any] | dict[str, Any]

WINDOW = 20_000
"""How many positions one query for a prefix examines at most."""

FEW_STREAMS = 1_000
"""Streams with a prefix that are found by their names: for more, the order of keys is faster."""

POSITIONS = 500
"""Positions, or names, in one query."""

MOST_READERS = 8
"""Reading connections that stay open."""

PAUSE_SECONDS = 1.0
"""How long ``Readers.pause`` waits for running reads."""

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
_INDEXED = f"""{_LINE}
SELECT {_columns("line.name")}
FROM line CROSS JOIN event e ON e.stream = line.id AND e.version IN (
    SELECT n.version FROM entry n
    WHERE n.stream = line.id AND n.number = :number AND n.version > :after AND n.version <= line.upto
    ORDER BY n.version DESC LIMIT :limit
)"""  # noqa: S608 - of constants
_LINEAGE_OF_TYPES = f"{_LINEAGE} AND e.type IN (SELECT value FROM json_each(:types))"  # noqa: S608 - of constants
_SNAPSHOT = f"""{_LINE}
SELECT line.name, s.version, s.state FROM line CROSS JOIN snapshot s ON s.stream = line.id AND s.version =
    (SELECT max(n.version) FROM snapshot n WHERE n.stream = line.id AND n.version <= line.upto)
LIMIT 1"""  # noqa: S608 - of constants
_FOLD_STATE = f"""{_LINE}
SELECT f.version, f.state FROM line CROSS JOIN fold_state f ON f.stream = line.id AND f.name = :fold
    AND f.version = (SELECT max(n.version) FROM fold_state n
        WHERE n.stream = line.id AND n.name = :fold AND n.version <= line.upto)
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

OF_TYPE = (
    f"SELECT s.name, e.stream, e.version, {_STATE} FROM event e "  # noqa: S608 - of constants
    "JOIN stream s ON s.id = e.stream "
    "WHERE e.type = ?"
)
KEY = (
    "SELECT k.first, k.last, k.salt, k.digest FROM stream s CROSS JOIN append_key k ON k.stream = s.id "
    "WHERE s.name = ? AND k.key IN (?, ?)"
)
LEASE = "SELECT l.holder, l.until FROM stream s CROSS JOIN lease l ON l.stream = s.id WHERE s.name = ?"
DRAFT = "SELECT d.run, d.data FROM stream s CROSS JOIN draft d ON d.stream = s.id WHERE s.name = ?"
IS_USED = f"EXISTS (SELECT 1 FROM entry e WHERE e.number = b.number AND e.number >= {BLOBS})"  # noqa: S608 - as above
"""Whether a record has the bytes of a row of record_blob. The last condition is that of the index."""

BLOB = "SELECT digest, kind, data FROM blob WHERE digest = ?"
_UNUSED_RECORD_BLOBS = f"SELECT digest FROM record_blob b WHERE length(data) AND NOT {IS_USED} LIMIT ?"  # noqa: S608 - of constants
_ENTRIES = "SELECT number, version FROM stream s CROSS JOIN entry n ON n.stream = s.id WHERE s.name = ?"
_KEYS = (
    "SELECT k.first, k.last, k.key, k.digest FROM stream s CROSS JOIN append_key k ON k.stream = s.id "
    "WHERE s.name = ? ORDER BY k.first"
)
_RUNS = (
    "SELECT 'lease', coalesce(name, '#' || stream), holder FROM lease LEFT JOIN stream ON id = stream "
    "UNION ALL SELECT 'draft', coalesce(name, '#' || stream), run FROM draft LEFT JOIN stream ON id = stream"
)
KEY_ROWS = "SELECT position, hash, version FROM event WHERE position BETWEEN ? AND ? ORDER BY position"

_version = itemgetter(2)
_Rows = list[tuple[Any, ...]]


class FileChangedError(Exception):
    """The file changed while it was read as one that never changes: the read must be repeated."""


class Readers:
    """Connections for reading, opened by ``connect`` when none is free."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._free: list[sqlite3.Connection] = []
        self._in_use = 0
        self._closed = False
        self._paused = False
        self._lock = threading.RLock()  # after a fork the child closes what pause() holds
        self._change = threading.Condition(self._lock)

    def acquire(self) -> sqlite3.Connection:
        """A connection for the caller alone, until ``release``. Raises ClosedError after ``close``."""
        with self._lock:
            if self._closed:
                raise _closed()
            self._in_use += 1
            if self._free:
                return self._free.pop()
        try:
            return self._connect()
        except BaseException:
            self.release(None)
            raise

    def release(self, connection: sqlite3.Connection | None) -> None:
        """Return a connection; None for one that could not be opened."""
        with self._lock:
            self._in_use -= 1
            if self._paused:
                self._change.notify_all()
            if connection is None:
                return
            if self._closed or len(self._free) >= MOST_READERS or connection.in_transaction:
                connection.close()
            else:
                self._free.append(connection)

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection inside ``with``."""
        connection = self.acquire()
        try:
            yield connection
        finally:
            self.release(connection)

    def close(self) -> None:
        """Close the free connections; those in use are closed when they are released."""
        with self._lock:
            self._closed = True
            for connection in self._free:
                connection.close()
            self._free.clear()

    def pause(self) -> None:
        """Let no read begin until ``resume``, and wait a while for running ones."""
        self._lock.acquire()
        self._paused = True
        until = time.monotonic() + PAUSE_SECONDS
        while self._in_use and (left := until - time.monotonic()) > 0:
            self._change.wait(left)

    def resume(self) -> None:
        """Allow reads again."""
        self._paused = False
        self._lock.release()


def _closed() -> ClosedError:
    return ClosedError("The store is closed: nothing can be read. Open it again.")


class SQLiteReads:
    """The reading ports, on a datastore."""

    datastore: ClewSQLiteDatastore
    _tag: str | None = None

    @overload
    def query(self, sql: str, parameters: Parameters = ()) -> list[tuple[Any, ...]]: ...
    @overload
    def query(self, sql: str, parameters: Parameters, take: Take[T], *, damaged: bool = False) -> list[T]: ...
    def query(
        self, sql: str, parameters: Parameters = (), take: Take[Any] = list, *, damaged: bool = False
    ) -> list[Any]:
        """The rows of a query, or what ``take`` makes of them. Raises ClosedError or StoreUnavailableError.

        An integer beyond 64 bits becomes the nearest one of 64 bits: no version, position or count is between them.
        With ``damaged`` text that is not UTF-8 is read, too.
        """
        try:
            readers = self.datastore.readers
            connection = readers.acquire()
            try:
                if damaged:
                    connection.text_factory = _decode_damaged
                rows = connection.execute(sql, parameters)
                try:
                    return take(rows)
                finally:
                    rows.close()
            finally:
                if damaged:
                    connection.text_factory = str
                readers.release(connection)
        except FileChangedError:
            return self.query(sql, parameters, take, damaged=damaged)
        except OverflowError:
            return self.query(sql, within_range(parameters), take, damaged=damaged)
        except UnicodeEncodeError:
            return []  # a name that is not valid Unicode was never stored
        except sqlite3.Error as error:
            if not damaged and str(error).startswith("Could not decode"):
                return self.query(sql, parameters, take, damaged=True)  # verification must be able to name the row
            raise unavailable(self.datastore.path, error) from error

    def repeated(self, key: Key) -> Appended | None:
        """The first outcome of an append with this key, None if there was none; IdempotencyKeyReusedError."""
        outcome = find_outcome(self.query, key)
        return None if outcome is None else outcome.repeat(key)

    def lineage(
        self, stream: str, *, after: int = -1, upto: int | None = None, types: Collection[str] | None = None
    ) -> list[Row]:
        """The rows of a stream and of its ancestors up to each cut, in version order."""
        sql, parameters = _LINEAGE, {"name": stream, "after": after, "upto": HIGHEST if upto is None else upto}
        if types is not None:
            sql, parameters["types"] = _LINEAGE_OF_TYPES, json.dumps(list(types))
        rows = self.query(sql, parameters)
        # The rows come stream by stream, each in order. Python sorts such runs faster than SQLite.
        rows.sort(key=_version)
        return list(map(Row._make, rows))

    def indexed(self, stream: str, number: int, *, after: int, upto: int, limit: int) -> list[Row]:
        """The newest rows of the lineage under a number of the index, newest first."""
        parameters = {"name": stream, "number": number, "after": after, "upto": upto, "limit": limit}
        rows = self.query(_INDEXED, parameters)
        rows.sort(key=_version, reverse=True)
        return list(map(Row._make, rows[:limit]))

    def own_rows(self, stream: str, *, after: int = -1, limit: int) -> list[Row]:
        """The rows of the stream itself, in version order."""
        return self._page(_OWN_ROWS, (stream, after, limit))

    def rows(self, *, after: int, limit: int, prefix: str = "", upto: int | None = None) -> list[Row]:
        """Rows in position order of streams whose name begins with ``prefix``."""
        last = HIGHEST if upto is None else upto
        if not prefix:
            sql = _ROWS + "WHERE e.position > ? AND e.position <= ? ORDER BY e.position LIMIT ?"
            return self._page(sql, (after, last, limit))
        names, bounds = _named(prefix)
        sql = _ROWS + f"WHERE e.position > ? AND e.position <= ? AND {names} ORDER BY e.position LIMIT ?"
        rows: list[Row] = []
        last = min(last, self.last_position())
        while after < last and len(rows) < limit and not is_full(rows):
            end = min(last, max(after, 0) + WINDOW)
            rows += self._page(sql, (after, end, *bounds, limit - len(rows)))
            after = end
        return rows

    def rows_at(self, positions: Sequence[int]) -> list[Row]:
        """The rows at these positions, in position order."""
        rows: list[Row] = []
        wanted = sorted(set(positions))
        for start in range(0, len(wanted), POSITIONS):
            part = wanted[start : start + POSITIONS]
            sql = _ROWS + f"WHERE e.position IN ({','.join('?' * len(part))}) ORDER BY e.position"
            rows.extend(map(Row._make, self.query(sql, part)))
        return rows

    def last_position(self) -> int:
        """The highest position that readers see, 0 for an empty store."""
        rows = self.query("SELECT max(position) FROM event")
        return rows[0][0] or 0

    def count_after(self, position: int, limit: int) -> int:
        """How many rows come after a position, counted up to ``limit``: positions have no gaps."""
        return min(max(0, self.last_position() - max(position, 0)), limit)

    def streams(self, *, prefix: str = "", after: int = 0, limit: int) -> list[StreamInfo]:
        """Streams in the order of their creation, ``after`` < key."""
        if not prefix:
            sql = _STREAMS + "WHERE s.id > ? ORDER BY s.id LIMIT ?"
            return list(map(_info, self.query(sql, (after, limit))))
        names, bounds = _named(prefix)
        # Few streams are found by their names; for many, the order of keys is faster.
        few = self.query(
            f"SELECT s.id FROM stream s WHERE {names} LIMIT ?",  # noqa: S608 - of constants
            (*bounds, FEW_STREAMS),
        )
        if len(few) < FEW_STREAMS:
            keys = sorted(key for (key,) in few if key > after)[:limit]
            marks = ",".join("?" * len(keys))
            sql = _STREAMS + f"WHERE s.id IN ({marks}) ORDER BY s.id"
            return list(map(_info, self.query(sql, keys)))
        names, bounds = _named(prefix, "+s.name")  # the sign keeps SQLite from seeking by it
        sql = _STREAMS + f"WHERE s.id > ? AND {names} ORDER BY s.id LIMIT ?"
        return list(map(_info, self.query(sql, (after, *bounds, limit))))

    def stream(self, name: str) -> StreamInfo | None:
        """The stream of that name, None if there is none."""
        rows = self.query(_STREAMS + "WHERE s.name = ?", (name,))
        return _info(rows[0]) if rows else None

    def existing(self, names: Sequence[str]) -> set[str]:
        """Those of the names that a stream has."""
        found: set[str] = set()
        for start in range(0, len(names), POSITIONS):
            part = names[start : start + POSITIONS]
            sql = f"SELECT name FROM stream WHERE name IN ({','.join('?' * len(part))})"  # noqa: S608 - of constants
            found.update(name for (name,) in self.query(sql, part))
        return found

    def forks(self, stream: str, *, cut: int = 0, limit: int | None = None) -> list[StreamInfo]:
        """The streams whose parent is this one, in the order of their creation: the first ``limit`` from a cut on."""
        where = "WHERE s.parent = (SELECT id FROM stream WHERE name = ?) AND s.cut >= ? ORDER BY s.id LIMIT ?"
        rows = self.query(_STREAMS + where, (stream, cut, HIGHEST if limit is None else limit))
        return list(map(_info, rows))

    def orphans(self, limit: int) -> list[tuple[int, int]]:
        """Stream key and version of rows without a stream, or with a version below 0."""
        return [(key, version) for key, version in self.query(_ORPHANS, (limit,))]

    def snapshot(self, stream: str, upto: int | None = None) -> Snapshot | None:
        """The newest snapshot along the lineage at a version ≤ ``upto``."""
        # The query goes from the stream to its ancestors and stops at the first that has one.
        rows = self.query(_SNAPSHOT, {"name": stream, "after": -1, "upto": HIGHEST if upto is None else upto})
        return Snapshot(*rows[0]) if rows else None

    def fold_state(self, stream: str, name: str, upto: int) -> tuple[int, bytes] | None:
        """The newest state of a fold along the lineage at a version ≤ ``upto``."""
        rows = self.query(_FOLD_STATE, {"name": stream, "fold": name, "after": -1, "upto": upto})
        return (rows[0][0], rows[0][1]) if rows else None

    def blob(self, digest: bytes, key: int | None = None) -> Blob | None:
        """The blob with that digest as it is stored."""
        del key
        rows = self.query(BLOB, (digest,))
        return Blob._make(rows[0]) if rows else None

    def blobs(self, *, after: int = 0, limit: int) -> list[tuple[int, bytes]]:
        """Key and digest of each blob in the order of their creation."""
        sql = "SELECT rowid, digest FROM blob WHERE rowid > ? ORDER BY rowid LIMIT ?"
        return [(key, digest) for key, digest in self.query(sql, (after, limit))]

    def record_blobs(self, stream: str, digests: Collection[bytes]) -> dict[bytes, bytes]:
        """The bytes of records with these digests. All tenants of the file share them."""
        del stream
        marks = ",".join("?" * len(digests))
        sql = f"SELECT digest, data FROM record_blob WHERE digest IN ({marks})"  # noqa: S608 - of constants
        return dict(self.query(sql, tuple(digests)))

    def unused_record_blobs(self, limit: int) -> list[bytes]:
        """The digests of bytes that no record has."""
        return [digest for (digest,) in self.query(_UNUSED_RECORD_BLOBS, (limit,))]

    def lease(self, stream: str) -> Lease | None:
        """The lease of a stream."""
        rows = self.query(LEASE, (stream,))
        return Lease(stream, *rows[0]) if rows else None

    def draft(self, stream: str) -> Draft | None:
        """The part of an answer that was stored last for the stream."""
        rows = self.query(DRAFT, (stream,))
        return Draft(stream, *rows[0]) if rows else None

    def entries(self, stream: str) -> set[tuple[int, int]]:
        """The number and the version of each entry of a stream in the index."""
        return {(number, version) for number, version in self.query(_ENTRIES, (stream,))}

    def keys(self, stream: str) -> list[StoredKey]:
        """The idempotency keys of a stream. An older Clew stored them as text."""
        return [
            StoredKey(
                first, last, key if isinstance(key, bytes) else sha256(str(key).encode()).digest(), digest is None
            )
            for first, last, key, digest in self.query(_KEYS, (stream,))
        ]

    def tag(self) -> str:
        """The tag of the file. A file of an older Clew has none until a new one opens it for writing."""
        if self._tag is None:
            rows = self.query("SELECT value FROM counter WHERE name = 'store' AND typeof(value) = 'integer'")
            self._tag = f"{rows[0][0]:08x}" if rows else ""
        return self._tag

    def runs(self) -> list[tuple[str, str, str]]:
        """The leases and drafts. One of a stream that does not exist has its number for a name."""
        return [(kind, name, str(run)) for kind, name, run in self.query(_RUNS)]

    def foreign(self) -> list[str]:
        """Triggers, indexes that are missing, and counters that are not numbers."""
        counters = self.query("SELECT name FROM counter WHERE typeof(value) <> 'integer' ORDER BY name")
        found = self.query("SELECT type, name FROM sqlite_master WHERE type IN ('trigger', 'index')")
        indexes = {name for kind, name in found if kind == "index"}
        return (
            [f"{kind}:{name}" for kind, name in found if kind == "trigger"]
            + [f"index:{name}" for name in INDEXES if name not in indexes]
            + [f"counter:{name}" for (name,) in counters]
        )

    def shredded(self) -> int:
        """How many rows were ever shredded."""
        rows = self.query("SELECT value FROM counter WHERE name = 'shredded'")
        return rows[0][0] if rows and isinstance(rows[0][0], int) else 0  # otherwise `verify` reports it

    def _page(self, sql: str, parameters: Sequence[Any]) -> list[Row]:
        return self.query(sql, parameters, lambda rows: page(map(Row._make, rows)))


def _info(row: tuple[Any, ...]) -> StreamInfo:
    """A stream. In a file that was tampered with, a name that is not text is shown as its repr."""
    key, name, parent, cut = row
    return StreamInfo(key, name if isinstance(name, str) else repr(name), parent, cut)


def find_outcome(query: Callable[[str, tuple[Any, ...]], _Rows], key: Key) -> Outcome | None:
    """The outcome of an idempotency key, for the readers and for the writer within its transaction."""
    # Stores have the SHA-256 of a key, so that no text of a user is in the file. Before that, they had the key itself.
    keys = query(KEY, (key.stream, key.digest, key.key))
    if not keys:
        return None
    first, last, salt, digest = keys[0]
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


def _decode_damaged(text: bytes) -> str:
    return text.decode(errors="surrogateescape")
