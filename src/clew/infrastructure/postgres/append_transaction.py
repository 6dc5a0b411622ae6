"""One append in a PostgreSQL transaction: what its plan needs to know, and how the plan is written."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from struct import Struct
from typing import Any

import psycopg
from psycopg.types.numeric import Int8

from clew.domain.errors import StoreError
from clew.domain.event_index import number_of_blob
from clew.domain.ports import Appended, Draft, FoldState, Key, Lease, Shred
from clew.infrastructure import clock
from clew.infrastructure.append_plan import (
    KnownHead,
    Outcome,
    Plan,
    PlannedRow,
    StoredState,
    content_digest,
    lowest_shredded,
)
from clew.infrastructure.postgres.connection import ORDINAL_BITS, Rows, Session
from clew.infrastructure.postgres.pipeline import (
    BoundStatement,
    Statement,
    byteas,
    int8,
    int8s,
    number_parameters,
)
from clew.infrastructure.postgres.sql_files import statements
from clew.infrastructure.postgres.stream_ids import stream_id, streams_of, tenant_id, tenant_of, text
from clew.infrastructure.recorder_ports import HIGHEST, Append, IndexEntry, RecordedConflictError, Snapshot

COPY_THRESHOLD = 50
"""From this number of rows on, COPY is faster than an INSERT, as measured: COPY needs extra round trips."""

ROWS_PER_CHUNK = 500

_SQL = statements("appends.sql")
_STATEMENTS = {
    name: (Statement(number_parameters(sql).command), number_parameters(sql).keys) for name, sql in _SQL.items()
}

# COPY's binary format, from PostgreSQL's manual: a signature, flags and the length of an empty extension; each row as
# the number of its fields and each field with its length, all big-endian; at the end -1 as the number of fields.
_COPY_HEADER = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
_COPY_END = b"\xff\xff"
_NUMBERS = Struct(">hiqiqiqiqi")
_LENGTH = Struct(">i")
_NULL = _LENGTH.pack(-1)
_FIELDS = 8


class Transaction:
    """What an append reads, as its transaction sees it, and what it writes.

    Everything that the plan may need is read in the round trip that begins the transaction, and everything that it
    writes is sent with the commit: two round trips, and more only for shreds, tracking and COPY. A concurrent change by
    another transaction meets a unique index or a lock, so that one of the two is repeated.
    """

    def __init__(self, session: Session, append: Append, tenant: str | None) -> None:
        self._session = session
        self._append = append
        # An append of definitions only has no stream that names its tenant.
        self._owner = next(iter(streams_of(append)), "") if tenant is None else f"{tenant}/"
        try:
            reads = _reads(append)
        except UnicodeEncodeError:
            reads = {}  # the plan will refuse it
        reads["first"] = _bind("first", base=int8(session.base))
        self._rows: dict[Hashable, Rows] = dict(zip(reads, session.begin(*reads.values()), strict=True))
        self.first = int(self._rows["first"][0][0])
        """The position of the first row, if the append writes one."""
        self._heads: dict[str, KnownHead] = {}
        heads = {id_: (text(name), (version, hashed)) for id_, name, version, hashed in self._rows.get("heads", ())}
        for name in set(streams_of(append)) if heads else ():
            stored, head = heads.get(stream_id(name), (name, None))
            if stored != name:
                msg = f"The streams {stored!r} and {name!r} have the same number. Rename the second."
                raise StoreError(msg)
            if head is not None:
                self._heads[name] = head

    @property
    def id(self) -> int:
        """The id of the transaction."""
        return (self.first >> ORDINAL_BITS) - self._session.base

    # What the plan reads

    def head(self, stream: str) -> KnownHead | None:
        """The last version and hash of a stream's own events."""
        return self._heads.get(stream)

    def hash_at(self, stream: str, version: int) -> bytes | None:
        """The hash of a stream's own row."""
        row = self._row(stream, version)
        return None if row is None else row[2]

    def state_at(self, stream: str, version: int) -> StoredState | None:
        """The stored bytes of a stream's own row."""
        row = self._row(stream, version)
        return None if row is None else StoredState(row[0], row[1])

    def outcome(self, key: Key) -> Outcome | None:
        """The outcome stored for an idempotency key."""
        return None if self._rows.get("key") == [] else find_outcome(self._session.query, key)

    def lease(self, stream: str) -> Lease | None:
        """The lease of a stream, whose row this transaction has locked."""
        rows = self._rows.get(("lease", stream))
        return Lease(stream, text(rows[0][0]), rows[0][1]) if rows else None

    def has_fork(self, stream: str, cut: int) -> bool:
        """Whether a stream has a fork at this version or a later one. None begins before this transaction ends."""
        return bool(self._rows.get(("fork", stream, cut)))

    def _row(self, stream: str, version: int) -> tuple[bytes, bytes | None, bytes] | None:
        rows = self._rows.get((stream, version))
        return rows[0] if rows else None

    # What the plan writes

    def write(self, made: Plan) -> Sequence[BoundStatement]:
        """Write what needs an answer, and rows to copy. Returns the other statements, to be sent with the commit.

        Raises RecordedConflictError if the tracking is already stored, and what the driver raises.
        """
        append, session = made.append, self._session
        tracking = append.tracking
        if tracking is not None:
            track(session, tracking.application_name, tracking.notification_id)
        unsent = [_begin_streams(made, self.first)] if made.began else []
        # With row-level security the server refuses COPY.
        if len(made.rows) >= COPY_THRESHOLD and not session.secured:
            session.execute_together(*unsent)
            copy_rows(session, made.rows, append.digests, self.first)
            unsent = []
        elif made.rows:
            digests = byteas(append.digests or [None] * len(made.rows))
            unsent.append(_bind("insert", first=int8(self.first), digests=digests, **columns(made.rows)))
        if any(each.shredded is not None for each in append.snapshots):
            unsent.append(_bind("deriving"))
        unsent += map(_put_snapshot, sorted(append.snapshots, key=lambda each: (stream_id(each.stream), each.version)))
        if append.shreds:
            self._shred([*unsent, *(_shred(shred, session.tenant) for shred in append.shreds)])
            # Before the rows are counted: a transaction with derived data takes the lock before it counts, too.
            unsent = [_bind("shredding")]
        shredded = len(append.shreds) + sum(digest is not None for digest in append.digests)
        if shredded:
            unsent += [_bind("count shredded", count=int8(shredded)), *_drop_derived(append.shreds)]
        unsent += [_bind("drop snapshots", stream=int8(stream_id(each.stream))) for each in append.forgets]
        unsent += [_drop_keys(each.stream, session) for each in append.forgets if each.keys]
        if append.entries:
            unsent.append(_put_entries(append.entries))
        if append.key is not None:
            unsent.append(_put_key(append.key, self.first, self.first + len(made.rows) - 1))
        if made.has_side_tables:
            unsent += self._side_tables(made)
        unsent += _drop_record_blobs(append.shreds)
        return unsent

    def _side_tables(self, made: Plan) -> list[BoundStatement]:
        """The statements that write blobs, leases, drafts and states of folds."""
        append = made.append
        bound = [self._put_blobs()] if append.blobs else []
        if append.record_blobs:
            bound += [_bind("deriving"), *self._put_record_blobs()]
        bound += [_put_lease(name, lease) for name, lease in sorted(made.leases)]
        bound += map(_put_draft, append.drafts)
        if append.folds:
            bound += [_bind("deriving"), *map(_put_fold, append.folds)]
        return bound

    def _shred(self, bound: Sequence[BoundStatement]) -> None:
        rows = self._session.execute_together(*bound)
        if any(each[0][0] is None for each in rows[-len(self._append.shreds) :]):
            # Another transaction has shredded the row since the plan was made: the next plan will see it.
            raise psycopg.errors.SerializationFailure("another transaction has shredded the row")

    def _put_blobs(self) -> BoundStatement:
        blobs = self._append.blobs
        return _bind(
            "put blobs",
            first=int8(self.first),
            tenant=int8(tenant_id(self._owner)),
            digests=byteas(blob.digest for blob in blobs),
            kinds=byteas(blob.kind.encode() for blob in blobs),
            datas=byteas(blob.data for blob in blobs),
        )

    def _put_record_blobs(self) -> Iterator[BoundStatement]:
        blobs = self._append.record_blobs
        yield _bind(
            "put record blobs",
            tenant=int8(tenant_id(self._owner)),
            digests=byteas(blob.digest for blob in blobs),
            numbers=int8s(number_of_blob(blob.digest) for blob in blobs),
            datas=byteas(blob.data for blob in blobs),
        )


def _reads(append: Append) -> dict[Hashable, BoundStatement]:
    """What a plan of the append may need to know."""
    reads: dict[Hashable, BoundStatement] = {}
    if append.forks:  # a purge that counts forks waits
        reads["forking"] = _bind("shredding" if append.shreds else "deriving")
    for each in append.forgets:
        if each.unforked_from is not None:
            reads["unforked"] = _bind("shredding")  # a fork that is being made ends first, and the next read sees it
            parent, cut = int8(stream_id(each.stream)), int8(each.unforked_from)
            reads["fork", each.stream, each.unforked_from] = _bind("fork", stream=parent, cut=cut)
    names = set(streams_of(append))
    claimed = sorted({claim.stream for claim in append.claims})
    if claimed:
        reads["lock"] = _bind("lock streams", ids=int8s(sorted(map(stream_id, claimed))))
        reads |= {("lease", name): _bind("lease", stream=int8(stream_id(name))) for name in claimed}
    if names:
        reads["heads"] = _bind("heads", ids=int8s(map(stream_id, names)))
    rows = [(fork.parent, fork.cut) for fork in append.forks.values()]
    rows += [(shred.stream, shred.version) for shred in append.shreds]
    for stream, version in rows:
        if abs(version) <= HIGHEST:
            reads[stream, version] = _bind("row", stream=int8(stream_id(stream)), version=int8(version))
    if append.key is not None:
        reads["key"] = _bind("key", stream=int8(stream_id(append.key.stream)), key=append.key.digest)
    return reads


def find_outcome(query: Callable[[str, dict[str, Any]], Rows], key: Key) -> Outcome | None:
    """The outcome stored for an idempotency key. A writer calls this within its transaction."""
    found = query(_SQL["key"], {"stream": Int8(stream_id(key.stream)), "key": key.digest})
    if not found:
        return None
    first, last, salt, digest = found[0]
    rows = query(_SQL["rows of a key"], {"first": Int8(first), "last": Int8(last)})
    positions, hashes, versions = (tuple(row[column] for row in rows) for column in range(3))
    return Outcome(salt, digest, Appended(positions, hashes, versions))


def _bind(name: str, **values: bytes | None) -> BoundStatement:
    """A statement of ``appends.sql`` with its values, which are in binary form."""
    statement, keys = _STATEMENTS[name]
    return statement, [values[key] for key in keys]


def _begin_streams(made: Plan, first: int) -> BoundStatement:
    ordinals: dict[str, int] = {}
    for number, row in enumerate(made.rows):
        ordinals.setdefault(row[0], number)
    return _bind(
        "begin streams",
        first=int8(first),
        ids=int8s(map(stream_id, made.began)),
        tenants=int8s(map(tenant_id, made.began)),
        names=byteas(name.encode() for name in made.began),
        parents=int8s(None if fork is None else stream_id(fork.parent) for fork in made.began.values()),
        cuts=int8s(None if fork is None else fork.cut for fork in made.began.values()),
        ordinals=int8s(ordinals[name] for name in made.began),
    )


def _shred(shred: Shred, tenant: str | None) -> BoundStatement:
    return _bind(
        "shred",
        tenant=(tenant or tenant_of(shred.stream)).encode(),
        stream=int8(stream_id(shred.stream)),
        version=int8(shred.version),
        stub=shred.stub,
        digest=shred.digest,
    )


def _drop_keys(stream: str, session: Session) -> BoundStatement:
    if not session.secured:
        return _bind("drop keys", stream=int8(stream_id(stream)))
    tenant = (session.tenant or tenant_of(stream)).encode()
    return _bind("drop keys of a tenant", tenant=tenant, stream=int8(stream_id(stream)))


def _put_key(key: Key, first: int, last: int) -> BoundStatement:
    salt = clock.salt()
    return _bind(
        "put key",
        **_ids(key.stream),
        key=key.digest,
        salt=salt,
        digest=content_digest(salt, key.content),
        first=int8(first),
        last=int8(last),
    )


def _put_entries(entries: Sequence[IndexEntry]) -> BoundStatement:
    return _bind(
        "put entries",
        tenants=int8s(tenant_id(each.stream) for each in entries),
        streams=int8s(stream_id(each.stream) for each in entries),
        numbers=int8s(each.number for each in entries),
        versions=int8s(each.version for each in entries),
    )


def _drop_entries(shred: Shred) -> BoundStatement:
    stream, version = int8(stream_id(shred.stream)), int8(shred.version)
    return _bind("drop entries", stream=stream, version=version, numbers=int8s(shred.numbers))


def _put_lease(name: str, lease: Lease | None) -> BoundStatement:
    if lease is None:
        return _bind("drop lease", stream=int8(stream_id(name)))
    return _bind("take lease", **_ids(name), holder=lease.holder.encode(), until=int8(lease.until))


def _put_draft(draft: Draft) -> BoundStatement:
    if draft.data is None:
        return _bind("drop draft", stream=int8(stream_id(draft.stream)))
    return _bind("put draft", **_ids(draft.stream), run=draft.run_id.encode(), data=draft.data)


def _put_snapshot(snapshot: Snapshot) -> BoundStatement:
    shredded = None if snapshot.shredded is None else int8(snapshot.shredded)
    version, state = int8(snapshot.version), snapshot.state
    return _bind("put snapshot", **_ids(snapshot.stream), version=version, state=state, shredded=shredded)


def _put_fold(fold: FoldState) -> BoundStatement:
    values = {"slot": int8(fold.slot), "version": int8(fold.version), "shredded": int8(fold.shredded)}
    return _bind("put fold state", **_ids(fold.stream), fold=fold.name.encode(), state=fold.state, **values)


def _drop_derived(shreds: Sequence[Shred]) -> Iterator[BoundStatement]:
    """Remove what was derived from shredded rows: their numbers in the index, and states of folds."""
    yield from (_drop_entries(shred) for shred in shreds if shred.numbers)
    for name, version in sorted(lowest_shredded(shreds).items()):
        yield _bind("drop fold states", stream=int8(stream_id(name)), version=int8(version))


def _drop_record_blobs(shreds: Sequence[Shred]) -> Iterator[BoundStatement]:
    """Destroy the bytes next to shredded events that no other event has."""
    gone: dict[int, list[bytes]] = {}
    for shred in shreds:
        if shred.blobs:
            gone.setdefault(tenant_id(shred.stream), []).extend(shred.blobs)
    for tenant, digests in gone.items():
        yield _bind("drop record blobs", tenant=int8(tenant), digests=byteas(digests))


def _ids(stream: str) -> dict[str, bytes]:
    return {"tenant": int8(tenant_id(stream)), "stream": int8(stream_id(stream))}


def track(session: Session, application: str, notification: int) -> None:
    """Record how far an application has processed notifications. Raises RecordedConflictError if it is stored."""
    name = application.encode()
    if not session.query(_SQL["track"], {"application": name, "notification": Int8(notification)}):
        raise RecordedConflictError(f"tracking of {application}", notification - 1, tracked(session, application) or 0)


def tracked(session: Session, application: str) -> int | None:
    """How far an application has processed notifications; None for an unknown one."""
    rows = session.query(_SQL["tracked"], {"application": application.encode()})
    return rows[0][0] if rows else None


def columns(rows: Sequence[PlannedRow]) -> dict[str, bytes]:
    """Planned rows as the array parameters of a statement."""
    return {
        "tenants": int8s(tenant_id(row[0]) for row in rows),
        "streams": int8s(stream_id(row[0]) for row in rows),
        "versions": int8s(row[1] for row in rows),
        "types": byteas(row[2].encode() for row in rows),
        "states": byteas(row[3] for row in rows),
        "hashes": byteas(row[4] for row in rows),
    }


def copy_rows(session: Session, rows: Sequence[PlannedRow], digests: Sequence[bytes | None], first: int) -> None:
    """Write rows with COPY, from the position ``first`` on. Raises what an INSERT of them would raise."""
    with session.connection.cursor() as cursor, cursor.copy(_SQL["copy"].encode()) as copy:
        for part in _chunks(rows, digests, first):
            copy.write(part)


def _chunks(rows: Sequence[PlannedRow], digests: Sequence[bytes | None], first: int) -> Iterator[bytes]:
    """The rows in COPY's format, in the order that all writers use: by stream and version."""
    ids = {name: (tenant_id(name), stream_id(name)) for name in {row[0] for row in rows}}
    ordered = sorted(range(len(rows)), key=lambda number: (ids[rows[number][0]][1], rows[number][1]))
    yield _COPY_HEADER
    for begin in range(0, len(ordered), ROWS_PER_CHUNK):
        part: list[bytes] = []
        for number in ordered[begin : begin + ROWS_PER_CHUNK]:
            name, version, type_, state, hashed = rows[number]
            named, digest = type_.encode(), digests[number] if digests else None
            tenant, stream = ids[name]
            part += (
                _NUMBERS.pack(_FIELDS, 8, first | number, 8, tenant, 8, stream, 8, version, len(named)),
                named,
                _LENGTH.pack(len(state)),
                state,
                _LENGTH.pack(len(hashed)),
                hashed,
                _NULL if digest is None else _LENGTH.pack(len(digest)) + digest,
            )
        yield b"".join(part)
    yield _COPY_END
