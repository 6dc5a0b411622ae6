"""One append inside a transaction of PostgreSQL's: what its plan is told, and how the plan is written."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

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
from clew.infrastructure.postgres.copying import LEAST_ROWS, copy_rows
from clew.infrastructure.postgres.encoding import HIGHEST, stream_id, tenant_id, tenant_of, text
from clew.infrastructure.postgres.reads import find_outcome
from clew.infrastructure.postgres.session import ORDINAL_BITS, Rows, Session
from clew.infrastructure.postgres.sql_files import statements
from clew.infrastructure.recorder import Append, Key, Lease, RecordedConflictError, Shred

_SQL = statements("appends.sql")


class Transaction:
    """What an append needs to know, as its transaction sees it, and what it writes.

    What another transaction changes meanwhile meets a unique index or a lock, so that one of the two begins again.
    """

    def __init__(self, session: Session, append: Append, tenant: str | None) -> None:
        self._session = session
        self._append = append
        # Definitions come without events, so it is no stream that says whose they are.
        self._of = next(iter(streams_of(append)), "") if tenant is None else f"{tenant}/"
        try:
            ids = {stream_id(name): name for name in streams_of(append)}
        except UnicodeEncodeError:
            ids = {}  # the plan will refuse it
        if append.claims and ids:
            claimed = {stream_id(claim.stream) for claim in append.claims}
            self._ask("lock streams", ids=list(map(Int8, sorted(claimed))))
        self._heads: dict[str, KnownHead] = {}
        for id_, stored, version, hashed in self._ask("heads", ids=list(map(Int8, ids))) if ids else ():
            if text(stored) != ids[id_]:
                msg = f"The streams {text(stored)!r} and {ids[id_]!r} have the same number. Rename the second."
                raise StoreError(msg)
            self._heads[ids[id_]] = version, hashed

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
        return find_outcome(self._session.ask, key)

    def lease(self, stream: str) -> Lease | None:
        """The lease of a stream, whose row this transaction has locked."""
        found = self._ask("lease", stream=Int8(stream_id(stream)))
        return Lease(stream, text(found[0][0]), found[0][1]) if found else None

    def _row(self, stream: str, version: int) -> tuple[bytes, bytes | None, bytes] | None:
        if abs(version) > HIGHEST:
            return None
        found = self._ask("row", stream=Int8(stream_id(stream)), version=Int8(version))
        return found[0] if found else None

    # What it writes

    def put(self, made: Plan) -> int:
        """Write the plan; the position of its first row, 0 if it has none.

        Raises RecordedConflictError for tracking that is there already, and what the driver raises.
        """
        append = made.append
        if append.tracking is not None:
            self._track()
        if made.began:
            self._begin_streams(made)
        first = last = 0
        if made.rows:
            first = self._put_rows(made)
            last = first + len(made.rows) - 1
        for shred in append.shreds:
            self._shred(shred)
        gone = len(append.shreds) + sum(digest is not None for digest in append.digests)
        if gone:
            self._ask("count shredded", count=Int8(gone))
        for snapshot in sorted(append.snapshots, key=lambda each: (stream_id(each.stream), each.version)):
            self._ask(
                "put snapshot",
                **_whose(snapshot.stream),
                version=Int8(snapshot.version),
                state=snapshot.state,
            )
        if append.key is not None:
            self._put_key(append.key, first, last)
        if made.beside:
            self._put_beside(made)
        return first

    def _put_rows(self, made: Plan) -> int:
        digests = self._append.digests
        # Where policies on rows are in force the server refuses COPY.
        if len(made.rows) >= LEAST_ROWS and not self._session.secured:
            return copy_rows(self._session, made.rows, digests, self.id(0))
        rows = columns(made.rows, self._session.base)
        found = self._ask("insert", **rows, digests=list(digests) or [None] * len(made.rows))
        return int(min(found)[0])

    def id(self, first: int) -> int:
        """The id of the transaction, from the position of its first row if it has one."""
        if first:
            return (first >> ORDINAL_BITS) - self._session.base
        return int(self._ask("transaction")[0][0])

    def _begin_streams(self, made: Plan) -> None:
        first: dict[str, int] = {}
        for number, row in enumerate(made.rows):
            first.setdefault(row[0], number)
        self._ask(
            "begin streams",
            base=Int8(self._session.base),
            ids=[Int8(stream_id(name)) for name in made.began],
            tenants=[Int8(tenant_id(name)) for name in made.began],
            names=[name.encode() for name in made.began],
            parents=[None if fork is None else Int8(stream_id(fork.parent)) for fork in made.began.values()],
            cuts=[None if fork is None else Int8(fork.cut) for fork in made.began.values()],
            ordinals=[Int8(first[name]) for name in made.began],
        )

    def _track(self) -> None:
        tracking = self._append.tracking
        if tracking is None:
            return
        track(self._session, tracking.application_name, tracking.notification_id)

    def _shred(self, shred: Shred) -> None:
        found = self._ask(
            "shred",
            tenant=self._session.tenant or tenant_of(shred.stream),
            stream=Int8(stream_id(shred.stream)),
            version=Int8(shred.version),
            stub=shred.stub,
            digest=shred.digest,
        )
        if found[0][0] is None:
            # Another transaction has done so since the plan was made: the next plan will see it.
            raise psycopg.errors.SerializationFailure("the row was shredded meanwhile")

    def _put_key(self, key: Key, first: int, last: int) -> None:
        salt = new_salt()
        self._ask(
            "put key",
            **_whose(key.stream),
            key=sha256(key.key.encode()).digest(),
            salt=salt,
            digest=content_digest(salt, key.content),
            first=Int8(first),
            last=Int8(last),
        )

    def _put_beside(self, made: Plan) -> None:
        blobs = made.append.blobs
        if blobs:
            self._ask(
                "put blobs",
                base=Int8(self._session.base),
                tenant=Int8(tenant_id(self._of)),
                digests=[blob.digest for blob in blobs],
                kinds=[blob.kind.encode() for blob in blobs],
                datas=[blob.data for blob in blobs],
            )
        for name, lease in sorted(made.leases):
            if lease is None:
                self._ask("drop lease", stream=Int8(stream_id(name)))
            else:
                self._ask("take lease", **_whose(name), holder=lease.holder.encode(), until=Int8(lease.until))
        for draft in made.append.drafts:
            if draft.data is None:
                self._ask("drop draft", stream=Int8(stream_id(draft.stream)))
            else:
                self._ask("put draft", **_whose(draft.stream), run=draft.run_id.encode(), data=draft.data)

    def _ask(self, statement: str, **parameters: Any) -> Rows:
        return self._session.ask(_SQL[statement], parameters)


def track(session: Session, application: str, notification: int) -> None:
    """Record how far an application has come. Raises RecordedConflictError if it is there already."""
    name = application.encode()
    if not session.ask(_SQL["track"], {"application": name, "notification": Int8(notification)}):
        found = session.ask(_SQL["tracked"], {"application": name})
        raise RecordedConflictError(f"tracking of {application}", notification - 1, found[0][0])


def columns(rows: Sequence[PlannedRow], base: int) -> dict[str, Any]:
    """Planned rows as the arrays of a statement."""
    return {
        "base": Int8(base),
        "tenants": [Int8(tenant_id(row[0])) for row in rows],
        "streams": [Int8(stream_id(row[0])) for row in rows],
        "versions": [Int8(row[1]) for row in rows],
        "types": [row[2].encode() for row in rows],
        "states": [row[3] for row in rows],
        "hashes": [row[4] for row in rows],
    }


def _whose(stream: str) -> dict[str, Int8]:
    """The numbers of a stream and its tenant."""
    return {"tenant": Int8(tenant_id(stream)), "stream": Int8(stream_id(stream))}
