"""One append inside a transaction of PostgreSQL's: what its plan is told, and how the plan is written."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from hashlib import sha256
from struct import Struct

import psycopg
from psycopg.types.numeric import Int8

from clew.domain.errors import StoreError
from clew.infrastructure.append_plan import (
    KnownHead,
    Outcome,
    Plan,
    PlannedRow,
    StoredState,
    content_digest,
    new_salt,
)
from clew.infrastructure.append_streams import streams_of
from clew.infrastructure.postgres.connection import ORDINAL_BITS, Rows, Session
from clew.infrastructure.postgres.identifiers import HIGHEST, stream_id, tenant_id, tenant_of, text
from clew.infrastructure.postgres.pipeline import Asked, Statement, byteas, int8, int8s, numbered
from clew.infrastructure.postgres.reads import find_outcome
from clew.infrastructure.postgres.sql_files import statements
from clew.infrastructure.recorder import Append, Draft, Key, Lease, RecordedConflictError, Shred, Snapshot

LEAST_ROWS = 50
"""As many rows are copied sooner than inserted, by measurement: COPY takes round trips of its own."""

ROWS_AT_A_TIME = 500

_SQL = statements("appends.sql")
_NUMBERED = {name: (Statement(numbered(sql).command), numbered(sql).keys) for name, sql in _SQL.items()}

# The format is in PostgreSQL's manual, under COPY: a signature, flags and the length of nothing more; then each row as
# the number of its fields and each field after its length, all big-endian; then -1 for a number of fields.
_BEGINNING = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
_END = b"\xff\xff"
_NUMBERS = Struct(">hiqiqiqiqi")
_LENGTH = Struct(">i")
_NOTHING = _LENGTH.pack(-1)
_FIELDS = 8


class Transaction:
    """What an append needs to know, as its transaction sees it, and what it writes.

    All that it may ask is sent with the beginning, and what it writes with the commit: two round trips, and more only
    for what is looked at in between, or copied. What another transaction changes meanwhile meets a unique index or a
    lock, so that one of the two begins again.
    """

    def __init__(self, session: Session, append: Append, tenant: str | None) -> None:
        self._session = session
        self._append = append
        # Definitions come without events, so it is no stream that says whose they are.
        self._of = next(iter(streams_of(append)), "") if tenant is None else f"{tenant}/"
        try:
            asked = _questions(append)
        except UnicodeEncodeError:
            asked = {}  # the plan will refuse it
        asked["first"] = _said("first", base=int8(session.base))
        self._found: dict[Hashable, Rows] = dict(zip(asked, session.begin(*asked.values()), strict=True))
        self.first = int(self._found["first"][0][0])
        """The position of its first row, if it has one."""
        self._heads: dict[str, KnownHead] = {}
        heads = {
            id_: (text(stored), (version, hashed)) for id_, stored, version, hashed in self._found.get("heads", ())
        }
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

    # What the plan is told

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
        """What an idempotency key came to."""
        return None if self._found.get("key") == [] else find_outcome(self._session.ask, key)

    def lease(self, stream: str) -> Lease | None:
        """The lease of a stream, whose row this transaction has locked."""
        found = self._found.get(("lease", stream))
        return Lease(stream, text(found[0][0]), found[0][1]) if found else None

    def _row(self, stream: str, version: int) -> tuple[bytes, bytes | None, bytes] | None:
        found = self._found.get((stream, version))
        return found[0] if found else None

    # What it writes

    def put(self, made: Plan) -> Sequence[Asked]:
        """Write what is looked at or copied; what is left to be said with the commit.

        Raises RecordedConflictError for tracking that is there already, and what the driver raises.
        """
        append, session = made.append, self._session
        tracking = append.tracking
        if tracking is not None:
            track(session, tracking.application_name, tracking.notification_id)
        left = [_begin_streams(made, self.first)] if made.began else []
        # Where policies on rows are in force the server refuses COPY.
        if len(made.rows) >= LEAST_ROWS and not session.secured:
            session.together(*left)
            copy_rows(session, made.rows, append.digests, self.first)
            left = []
        elif made.rows:
            digests = byteas(append.digests or [None] * len(made.rows))
            left.append(_said("insert", first=int8(self.first), digests=digests, **columns(made.rows)))
        if append.shreds:
            self._shred([*left, *(_shred(shred, session.tenant) for shred in append.shreds)])
            left = []
        gone = len(append.shreds) + sum(digest is not None for digest in append.digests)
        if gone:
            left.append(_said("count shredded", count=int8(gone)))
        left += map(_put_snapshot, sorted(append.snapshots, key=lambda each: (stream_id(each.stream), each.version)))
        if append.key is not None:
            left.append(_put_key(append.key, self.first, self.first + len(made.rows) - 1))
        if append.blobs:
            left.append(self._put_blobs())
        left += [_put_lease(name, lease) for name, lease in sorted(made.leases)]
        left += map(_put_draft, append.drafts)
        return left

    def _shred(self, asked: Sequence[Asked]) -> None:
        found = self._session.together(*asked)
        if any(each[0][0] is None for each in found[-len(self._append.shreds) :]):
            # Another transaction has done so since the plan was made: the next plan will see it.
            raise psycopg.errors.SerializationFailure("the row was shredded meanwhile")

    def _put_blobs(self) -> Asked:
        blobs = self._append.blobs
        return _said(
            "put blobs",
            first=int8(self.first),
            tenant=int8(tenant_id(self._of)),
            digests=byteas(blob.digest for blob in blobs),
            kinds=byteas(blob.kind.encode() for blob in blobs),
            datas=byteas(blob.data for blob in blobs),
        )


def _questions(append: Append) -> dict[Hashable, Asked]:
    """What a plan of the append may want to know."""
    asked: dict[Hashable, Asked] = {}
    names = set(streams_of(append))
    claimed = sorted({claim.stream for claim in append.claims})
    if claimed:
        asked["lock"] = _said("lock streams", ids=int8s(sorted(map(stream_id, claimed))))
        asked |= {("lease", name): _said("lease", stream=int8(stream_id(name))) for name in claimed}
    if names:
        asked["heads"] = _said("heads", ids=int8s(map(stream_id, names)))
    places = [(fork.parent, fork.cut) for fork in append.forks.values()]
    places += [(shred.stream, shred.version) for shred in append.shreds]
    for stream, version in places:
        if abs(version) <= HIGHEST:
            asked[stream, version] = _said("row", stream=int8(stream_id(stream)), version=int8(version))
    if append.key is not None:
        key = sha256(append.key.key.encode()).digest()
        asked["key"] = _said("key", stream=int8(stream_id(append.key.stream)), key=key)
    return asked


def _said(statement: str, **values: bytes | None) -> Asked:
    asked, names = _NUMBERED[statement]
    return asked, [values[name] for name in names]


def _begin_streams(made: Plan, first: int) -> Asked:
    ordinals: dict[str, int] = {}
    for number, row in enumerate(made.rows):
        ordinals.setdefault(row[0], number)
    return _said(
        "begin streams",
        first=int8(first),
        ids=int8s(map(stream_id, made.began)),
        tenants=int8s(map(tenant_id, made.began)),
        names=byteas(name.encode() for name in made.began),
        parents=int8s(None if fork is None else stream_id(fork.parent) for fork in made.began.values()),
        cuts=int8s(None if fork is None else fork.cut for fork in made.began.values()),
        ordinals=int8s(ordinals[name] for name in made.began),
    )


def _shred(shred: Shred, tenant: str | None) -> Asked:
    return _said(
        "shred",
        tenant=(tenant or tenant_of(shred.stream)).encode(),
        stream=int8(stream_id(shred.stream)),
        version=int8(shred.version),
        stub=shred.stub,
        digest=shred.digest,
    )


def _put_snapshot(snapshot: Snapshot) -> Asked:
    return _said("put snapshot", **_whose(snapshot.stream), version=int8(snapshot.version), state=snapshot.state)


def _put_key(key: Key, first: int, last: int) -> Asked:
    salt = new_salt()
    return _said(
        "put key",
        **_whose(key.stream),
        key=sha256(key.key.encode()).digest(),
        salt=salt,
        digest=content_digest(salt, key.content),
        first=int8(first),
        last=int8(last),
    )


def _put_lease(name: str, lease: Lease | None) -> Asked:
    if lease is None:
        return _said("drop lease", stream=int8(stream_id(name)))
    return _said("take lease", **_whose(name), holder=lease.holder.encode(), until=int8(lease.until))


def _put_draft(draft: Draft) -> Asked:
    if draft.data is None:
        return _said("drop draft", stream=int8(stream_id(draft.stream)))
    return _said("put draft", **_whose(draft.stream), run=draft.run_id.encode(), data=draft.data)


def track(session: Session, application: str, notification: int) -> None:
    """Record how far an application has come. Raises RecordedConflictError if it is there already."""
    name = application.encode()
    if not session.ask(_SQL["track"], {"application": name, "notification": Int8(notification)}):
        raise RecordedConflictError(f"tracking of {application}", notification - 1, tracked(session, application) or 0)


def tracked(session: Session, application: str) -> int | None:
    """How far an application has come; None for one that nobody has heard of."""
    found = session.ask(_SQL["tracked"], {"application": application.encode()})
    return found[0][0] if found else None


def columns(rows: Sequence[PlannedRow]) -> dict[str, bytes]:
    """Planned rows as the arrays of a statement."""
    return {
        "tenants": int8s(tenant_id(row[0]) for row in rows),
        "streams": int8s(stream_id(row[0]) for row in rows),
        "versions": int8s(row[1] for row in rows),
        "types": byteas(row[2].encode() for row in rows),
        "states": byteas(row[3] for row in rows),
        "hashes": byteas(row[4] for row in rows),
    }


def _whose(stream: str) -> dict[str, bytes]:
    """The numbers of a stream and its tenant."""
    return {"tenant": int8(tenant_id(stream)), "stream": int8(stream_id(stream))}


def copy_rows(session: Session, rows: Sequence[PlannedRow], digests: Sequence[bytes | None], first: int) -> None:
    """Write rows from the position ``first`` of a transaction on. Raises what an INSERT of them would."""
    with session.connection.cursor() as cursor, cursor.copy(_SQL["copy"].encode()) as copy:
        for part in _parts(rows, digests, first):
            copy.write(part)


def _parts(rows: Sequence[PlannedRow], digests: Sequence[bytes | None], first: int) -> Iterator[bytes]:
    """The rows as COPY takes them, in the order in which all writers write: of streams and versions."""
    ids = {name: (tenant_id(name), stream_id(name)) for name in {row[0] for row in rows}}
    ordered = sorted(range(len(rows)), key=lambda number: (ids[rows[number][0]][1], rows[number][1]))
    yield _BEGINNING
    for begin in range(0, len(ordered), ROWS_AT_A_TIME):
        part: list[bytes] = []
        for number in ordered[begin : begin + ROWS_AT_A_TIME]:
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
                _NOTHING if digest is None else _LENGTH.pack(len(digest)) + digest,
            )
        yield b"".join(part)
    yield _END
