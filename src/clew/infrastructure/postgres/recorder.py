"""The event store on one PostgreSQL database: Clew's port and the library's process recorder."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future
from functools import cache
from typing import Any, Self
from uuid import UUID

from eventsourcing.persistence import Tracking
from psycopg.types.numeric import Int8

from clew.domain.ports import Appended, Blob, Draft, Key, Lease, Row, StreamInfo
from clew.domain.streams import first_after
from clew.infrastructure.library_recorder import LibraryRecorder
from clew.infrastructure.postgres.append_transaction import find_outcome
from clew.infrastructure.postgres.connection import Rows
from clew.infrastructure.postgres.datastore import READERS, WORKERS, PostgresDatastore
from clew.infrastructure.postgres.sql_files import statements
from clew.infrastructure.postgres.stream_ids import stream_id, tenant_id, text, within
from clew.infrastructure.recorder_ports import HIGHEST, PAGE_BYTES, Append, Snapshot, StoredKey, is_full

WINDOW = 50_000
"""How many positions one query for a prefix examines at most, so that no query takes long."""

FEW_STREAMS = 1_000
"""If fewer streams have a prefix, they are looked up by name, otherwise in the order of creation."""

_FOUND = statements("reads.sql")
SQL = {name: sql.replace("{horizon}", _FOUND["below"]) for name, sql in _FOUND.items() if name != "below"}
_APPENDS = statements("appends.sql")


class PostgresRecorder(LibraryRecorder):
    """Events of chained, contiguous streams in a PostgreSQL database. Recorders may share a datastore."""

    def __init__(self, datastore: PostgresDatastore) -> None:
        self.datastore = datastore
        self._tag: str | None = None

    @classmethod
    def open(cls, url: str, *, workers: int = WORKERS, readers: int = READERS, create: bool = True) -> Self:
        """Open the store in a database, or create one there. Stream ids are text, like the names of Clew's streams.

        Raises StoreUrlError, StoreUnavailableError or StoreSchemaError.
        """
        return cls(PostgresDatastore(url, workers=workers, readers=readers, originator_id_type="text", create=create))

    def submit(self, append: Append) -> Future[Appended]:
        """Queue an append. The future's ``result()`` writes it, unless another thread has started it."""
        return self.datastore.pool.submit(append)

    enqueue = submit

    def insert_tracking(self, tracking: Tracking) -> None:
        """Record how far an application has processed notifications."""
        self.submit(Append((), tracking=tracking)).result()

    def max_tracking_id(self, application_name: str) -> int | None:
        """How far an application has processed notifications, None before its first one."""
        rows = self.datastore.query(_APPENDS["tracked"], {"application": application_name.encode()})
        return rows[0][0] if rows else None

    def own_events(
        self, stream: str, after: int, upto: int, limit: int, *, backwards: bool
    ) -> Iterable[tuple[int, str, bytes]]:
        """A stream's own events in version order."""
        rows = self._of(
            stream,
            "stored events backwards" if backwards else "stored events",
            after=Int8(within(after)),
            upto=Int8(within(upto)),
            limit=Int8(within(limit)),
        )
        return ((version, text(type_), state) for version, type_, state in rows)

    def events_in_order(
        self, after: int, upto: int, limit: int, types: Sequence[str]
    ) -> Iterable[tuple[int, str, int, str, bytes]]:
        """Events in position order."""
        parameters: dict[str, Any] = {
            "after": Int8(within(after)),
            "upto": Int8(within(upto)),
            "limit": Int8(within(limit)),
            "most": Int8(HIGHEST),
        }
        if types:
            parameters["types"] = [each.encode() for each in types]
        rows = self._in_order("rows of types" if types else "rows", parameters, upto)
        return (
            (position, text(name), version, text(type_), state) for position, name, version, type_, state, *_ in rows
        )

    def originator_id(self, stream: str) -> UUID | str:
        """The library's id of an existing stream."""
        return UUID(stream) if self.datastore.originator_id_type == "uuid" else stream

    def listen(self, wake: Callable[[], None], of: str = "") -> Callable[[], None]:
        """Call ``wake`` after commits of events, of this process or another."""
        return self.datastore.listeners.listen(wake, of)

    def close(self) -> None:
        """Write what was submitted, then close the connections."""
        self.datastore.close()

    def repeated(self, key: Key) -> Appended | None:
        """The first outcome of an append with this key, None without one. Raises IdempotencyKeyReusedError."""
        if not _is_text(key.stream + key.key):
            return None
        found = find_outcome(self.datastore.query, key)
        return None if found is None else found.repeat(key)

    def lineage(
        self, stream: str, *, after: int = -1, upto: int | None = None, types: Collection[str] | None = None
    ) -> list[Row]:
        """The rows of a stream and of its ancestors up to each cut, in version order."""
        parameters: dict[str, Any] = {
            "after": Int8(within(after)),
            "upto": Int8(within(HIGHEST if upto is None else upto)),
        }
        if types is None:
            return list(map(_row, self._of(stream, "lineage", **parameters)))
        parameters["types"] = [each.encode() for each in types]
        return list(map(_row, self._of(stream, "lineage of types", **parameters)))

    def indexed(self, stream: str, number: int, *, after: int, upto: int, limit: int) -> list[Row]:
        """The newest rows of the lineage under a number of the index, newest first."""
        bounds = {"after": Int8(within(after)), "upto": Int8(within(upto)), "limit": Int8(within(limit))}
        return list(map(_row, self._of(stream, "indexed", number=Int8(number), **bounds)))

    def own_rows(self, stream: str, *, after: int = -1, limit: int) -> list[Row]:
        """The stream's own rows, in version order."""
        return list(map(_row, self._of(stream, "own rows", after=Int8(within(after)), **_page(limit))))

    def rows(self, *, after: int, limit: int, prefix: str = "", upto: int | None = None) -> list[Row]:
        """Rows of streams whose name starts with ``prefix``, in position order."""
        last = HIGHEST if upto is None else within(upto)
        if not prefix:
            parameters = {"after": Int8(within(after)), "upto": Int8(last), **_page(limit)}
            return list(map(_row, self._in_order("rows", parameters, last)))
        bounds = _bounds(prefix)
        return [] if bounds is None else self._rows_within(bounds, after, last, limit)

    def rows_at(self, positions: Sequence[int]) -> list[Row]:
        """The rows at these positions, in position order."""
        wanted = sorted({position for position in positions if 0 < position <= HIGHEST})
        if not wanted:
            return []
        return list(map(_row, self._in_order("rows at", {"positions": list(map(Int8, wanted))}, wanted[-1])))

    def last_position(self) -> int:
        """The highest position that readers may see, 0 for an empty store."""
        return self._in_order("last position", {})[0][0] or 0

    def newest_position(self) -> int:
        """The highest position that readers may see or that this process has appended."""
        return max(self.last_position(), self.datastore.horizon.newest)

    def may_fill(self) -> bool:
        """Whether this is a primary, and all tenants are visible."""
        return not self.is_bound() and not self.datastore.query(SQL["standby"])[0][0]

    def is_bound(self) -> bool:
        """Whether only the rows of one tenant are visible."""
        with self.datastore.reading.use() as session:
            return session.tenant is not None

    def is_served(self) -> bool:
        """Whether a server executes the reads: always."""
        return True

    def count_after(self, position: int, limit: int) -> int:
        """How many rows follow a position, at most ``limit``."""
        parameters = {"after": Int8(within(position)), "limit": Int8(within(limit))}
        return int(self._in_order("count after", parameters)[0][0])

    def streams(self, *, prefix: str = "", after: int = 0, limit: int) -> list[StreamInfo]:
        """Streams with a key above ``after``, in order. The key is the position of the first event."""
        parameters: dict[str, Any] = {"after": Int8(within(after)), "limit": Int8(within(limit))}
        if not prefix:
            return list(map(_info, self._in_order("streams", parameters)))
        bounds = _bounds(prefix)
        if bounds is None:
            return []
        few = self.datastore.query(SQL["few streams with a prefix"], _named(bounds) | {"few": Int8(FEW_STREAMS)})
        if len(few) < FEW_STREAMS:
            found = self._in_order("streams of ids", parameters | {"ids": [Int8(id_) for (id_,) in few]}) if few else []
        elif bounds["tenant"] is None:
            found = self._in_order("streams with a prefix", parameters | _named(bounds))
        else:
            found = self._in_order("streams of a tenant with a prefix", parameters | bounds)
        return list(map(_info, found))

    def stream(self, name: str) -> StreamInfo | None:
        """One stream by name, None if it does not exist."""
        found = self._of(name, "stream")
        return _info(found[0]) if found else None

    def existing(self, names: Sequence[str]) -> set[str]:
        """Those of the names that a stream has."""
        ids = [Int8(stream_id(name)) for name in names]
        found = self.datastore.query(SQL["names of ids"], {"ids": ids})
        return {text(name) for (name,) in found}.intersection(names)

    def forks(self, stream: str, *, cut: int = 0, limit: int | None = None) -> list[StreamInfo]:
        """The streams whose parent is this one, in the order of their creation: the first ``limit`` from a cut on."""
        most = HIGHEST if limit is None else limit
        return list(map(_info, self._of(stream, "forks", cut=Int8(within(cut)), limit=Int8(within(most)))))

    def orphans(self, limit: int) -> list[tuple[int, int]]:
        """Stream id and version of rows without an entry in the table of streams, or with an impossible version."""
        found = self.datastore.query(SQL["orphans"], {"limit": Int8(within(limit))})
        return [(stream, version) for stream, version in found]

    def snapshot(self, stream: str, upto: int | None = None) -> Snapshot | None:
        """The newest snapshot along the lineage at a version ≤ ``upto``."""
        found = self._of(stream, "snapshot", upto=Int8(within(HIGHEST if upto is None else upto)))
        return Snapshot(text(found[0][0]), *found[0][1:]) if found else None

    def fold_state(self, stream: str, name: str, upto: int) -> tuple[int, bytes] | None:
        """The newest state of a fold along the lineage at a version ≤ ``upto``."""
        found = self._of(stream, "fold state", fold=name.encode(), upto=Int8(within(upto)))
        return (found[0][0], found[0][1]) if found else None

    def blob(self, digest: bytes, key: int | None = None) -> Blob | None:
        """The stored blob with that digest: the tenant's own, or the one with a key."""
        tenant = self.datastore.tenant
        if key is not None:
            found = self.datastore.query(SQL["blob that came"], {"digest": digest, "came": Int8(within(key))})
        elif tenant is not None:
            found = self.datastore.query(SQL["blob of a tenant"], {"digest": digest, "tenant": Int8(stream_id(tenant))})
        else:
            found = self.datastore.query(SQL["blob"], {"digest": digest})
        if not found:
            return None
        stored, kind, data = found[0]
        return Blob._make((stored, text(kind), data))

    def blobs(self, *, after: int = 0, limit: int) -> list[tuple[int, bytes]]:
        """Key and digest of each blob, in the order of arrival."""
        found = self.datastore.query(SQL["blobs"], {"after": Int8(within(after)), "limit": Int8(within(limit))})
        return [(key, digest) for key, digest in found]

    def record_blobs(self, stream: str, digests: Collection[bytes]) -> dict[bytes, bytes]:
        """The bytes of records with these digests, of the tenant of a stream."""
        parameters = {"tenant": Int8(tenant_id(stream)), "digests": list(digests)}
        return dict(self.datastore.query(SQL["record blobs"], parameters))

    def unused_record_blobs(self, limit: int) -> list[bytes]:
        """The digests of bytes that no record has."""
        found = self.datastore.query(SQL["unused record blobs"], {"limit": Int8(within(limit))})
        return [digest for (digest,) in found]

    def lease(self, stream: str) -> Lease | None:
        """The lease of a stream as it was last taken."""
        found = self.datastore.query(_APPENDS["lease"], {"stream": Int8(stream_id(stream))}) if _is_text(stream) else []
        return Lease(stream, text(found[0][0]), found[0][1]) if found else None

    def draft(self, stream: str) -> Draft | None:
        """The partial answer that was stored last for the stream."""
        found = self.datastore.query(SQL["draft"], {"stream": Int8(stream_id(stream))}) if _is_text(stream) else []
        return Draft(stream, text(found[0][0]), found[0][1]) if found else None

    def shredded(self) -> int:
        """How many rows have been shredded."""
        return int(self.datastore.query(SQL["shredded"])[0][0])

    def entries(self, stream: str) -> set[tuple[int, int]]:
        """The number and the version of each entry of a stream in the index."""
        return {(number, version) for number, version in self._of(stream, "entries")}

    def keys(self, stream: str) -> list[StoredKey]:
        """The idempotency keys of a stream."""
        found = self._of(stream, "keys")
        return [StoredKey(first, last, bytes(key), is_blank) for first, last, key, is_blank in found]

    def tag(self) -> str:
        """The beginning of the store's identifier."""
        if self._tag is None:
            self._tag = str(self.datastore.query(SQL["tag"])[0][0])
        return self._tag

    def runs(self) -> list[tuple[str, str, str]]:
        """The leases and drafts."""
        found = self.datastore.query(SQL["runs"])
        return [(kind, text(name), text(run)) for kind, name, run in found]

    def foreign(self) -> list[str]:
        """Triggers and rules."""
        return [f"{kind}:{name}" for kind, name in self.datastore.query(SQL["foreign"])]

    def erase(self) -> int | None:
        """Nothing: the server removes old versions of rows when it vacuums the table."""
        self.datastore.query("SELECT 1")  # closed is closed
        return None

    def _rows_within(self, bounds: dict[str, Any], after: int, last: int, limit: int) -> list[Row]:
        """Rows of streams with names within bounds. Each query examines more positions, as long as few rows match."""
        rows: list[Row] = []
        size = min(limit * 2, WINDOW)
        while len(rows) < limit and after < last:
            window = {"after": Int8(within(after)), "size": Int8(size)}
            upto, looked = self._in_order("window", window, last)[0]
            if not looked:
                break
            more = {"upto": Int8(min(upto, last)), **_page(limit - len(rows))}
            rows += map(_row, self.datastore.query(SQL["rows with a prefix"], window | more | bounds))
            if looked < size or is_full(rows):
                break
            after, size = upto, min(size * 4, WINDOW)
        return rows

    def _of(self, stream: str, statement: str, **parameters: Any) -> Rows:
        """The rows of a statement about a stream; none for a name that is not valid Unicode, which is never stored."""
        if not _is_text(stream):
            self.datastore.query("SELECT 1")  # closed is closed
            return []
        return self.datastore.query(
            SQL[statement], {"id": Int8(stream_id(stream)), "name": stream.encode(), **parameters}
        )

    def _in_order(self, statement: str, parameters: dict[str, Any], upto: int = HIGHEST) -> Rows:
        """The rows of a statement that reads below the horizon, once this process's own appends up to ``upto`` are."""
        self.datastore.horizon.await_own(upto)
        return self.datastore.query(SQL[statement], parameters, based=True)


@cache
def _type(stored: bytes) -> str:
    return text(stored)


def _row(found: tuple[Any, ...]) -> Row:
    position, name, version, type_, state, hashed, digest = found
    return Row(position, text(name), version, _type(type_), state, hashed, digest)


def _page(limit: int) -> dict[str, Int8]:
    """The limits of a page: its rows, and the bytes of all but the last row."""
    return {"limit": Int8(within(limit)), "most": Int8(PAGE_BYTES)}


def _info(found: tuple[Any, ...]) -> StreamInfo:
    key, name, parent, cut = found
    return StreamInfo(key, text(name), None if parent is None else text(parent), cut)


def _bounds(prefix: str) -> dict[str, Any] | None:
    """The range of names that start with a prefix, None if no name can."""
    if not _is_text(prefix):
        return None
    end = first_after(prefix)
    tenant = Int8(tenant_id(prefix)) if "/" in prefix else None
    return {"prefix": prefix.encode(), "end": None if end is None else end.encode(), "tenant": tenant}


def _named(bounds: dict[str, Any]) -> dict[str, Any]:
    """The bounds of the names only."""
    return {name: bounds[name] for name in ("prefix", "end")}


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
