"""The writer of a SQLite store: a batch of appends in one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from eventsourcing.persistence import IntegrityError

from clew.domain.errors import ClewError
from clew.infrastructure.append_plan import (
    KnownHead,
    Outcome,
    Plan,
    StoredState,
    content_digest,
    new_salt,
    outcome,
    plan,
)
from clew.infrastructure.recorder import Append, Appended, Key, Lease, RecordedConflictError, Shred
from clew.infrastructure.sqlite.checkpoints import COMMIT_BYTES, Checkpoints
from clew.infrastructure.sqlite.errors import SQLiteUnavailableError, unavailable
from clew.infrastructure.sqlite.reads import BLOB, DRAFT, HIGHEST, LEASE, find_outcome

if TYPE_CHECKING:
    from eventsourcing.persistence import Tracking
    from eventsourcing.sqlite import SQLiteTrackingRecorder

    from clew.infrastructure.recorder import Draft
    from clew.infrastructure.sqlite.datastore import ClewSQLiteDatastore

MOST_HEADS = 65_536
# With a longer stub the cell of a row with overflow pages could grow. The limit is for pages of 4096 bytes.
MOST_IN_PLACE = 340
DIGEST_BYTES = 32

_HEAD = (
    "SELECT s.id, e.version, e.hash FROM stream s CROSS JOIN event e ON e.stream = s.id "
    "WHERE s.name = ? ORDER BY e.version DESC LIMIT 1"
)
_AT = (
    "SELECT e.position, e.type, e.state, e.hash, e.digest FROM stream s CROSS JOIN event e ON e.stream = s.id "
    "WHERE s.name = ? AND e.version = ?"
)
_INSERT = "INSERT INTO event (position, stream, version, type, state, hash) VALUES (?, ?, ?, ?, ?, ?)"
_INSERT_DIGEST = "INSERT INTO event (position, stream, version, type, state, hash, digest) VALUES (?, ?, ?, ?, ?, ?, ?)"
_STORED = (
    "SELECT s.name, e.version, e.type, e.state, e.hash FROM event e CROSS JOIN stream s ON s.id = e.stream "
    "WHERE e.position = ?"
)

_STREAM = "(SELECT id FROM stream WHERE name = ?)"
_PUT_BLOB = "INSERT OR IGNORE INTO blob (digest, kind, data) VALUES (?, ?, ?)"
_TAKE_LEASE = f"INSERT OR REPLACE INTO lease (stream, holder, until) VALUES ({_STREAM}, ?, ?)"  # noqa: S608 - of constants
_DROP_LEASE = f"DELETE FROM lease WHERE stream = {_STREAM}"  # noqa: S608 - of constants
_PUT_DRAFT = (
    "INSERT OR REPLACE INTO draft (stream, run, margin, data) "  # noqa: S608 - of constants
    f"VALUES ({_STREAM}, ?, zeroblob((SELECT page_size FROM pragma_page_size)), ?)"
)
_DROP_DRAFT = f"DELETE FROM draft WHERE stream = {_STREAM}"  # noqa: S608 - of constants

Outcomes = Sequence[Appended | Exception]


class SQLiteWriter:
    """The one writer of events. Only the writer thread calls it, and ``close`` when that thread has ended.

    ``tracking`` is the library's recorder for the same store.
    """

    def __init__(self, store: ClewSQLiteDatastore, tracking: SQLiteTrackingRecorder) -> None:
        self._store = store
        self._tracking = tracking
        self._checkpoints = Checkpoints(store)
        self._committed = False
        self._shredded: int | None = None
        self.forget()

    def forget(self) -> None:
        """Empty the caches: after a rollback, another process's commit, or a fork."""
        self._seen: int | None = None
        self._heads: dict[str, KnownHead] = {}
        self._ids: dict[str, int] = {}
        self._last = 0
        self._pending: list[tuple[int, int, int, str, bytes, bytes]] = []
        self._plans: list[tuple[Plan, int]] = []
        self.commits = 0

    # Writing

    def write(self, appends: Sequence[Append]) -> Outcomes:
        """Write a batch in one transaction. An append that is refused does not affect the others."""
        try:
            with self._store.lock:
                outcomes = self._transaction(appends)
        except ClewError as error:
            return [error] * len(appends)
        except (sqlite3.Error, OSError) as error:
            return [unavailable(self._store.path, error)] * len(appends)
        if self._checkpoints.purge_due:
            # Shredded bytes are gone when the redaction is confirmed, unless a reader holds them.
            self._checkpoints.keep()
        return outcomes

    def _transaction(self, appends: Sequence[Append]) -> Outcomes:
        connection = self._store.connection or self._store.writing()
        if connection.in_transaction:
            # The previous user of the connection was interrupted inside a transaction.
            self._roll_back(connection)
        connection.execute("BEGIN IMMEDIATE")
        try:
            seen = connection.execute("PRAGMA data_version").fetchone()[0]
            if seen != self._seen or len(self._heads) > MOST_HEADS:
                self._refresh_caches(connection, seen)
            self._plans.clear()
            outcomes = list(map(partial(self._insert, connection), appends))
            self._flush(connection)
        except Exception as error:  # noqa: BLE001 - whatever the error, only one append caused it
            self._roll_back(connection)
            if len(appends) > 1:
                # Written one by one, they show which one it was.
                return [self._write_alone(append) for append in appends]
            if isinstance(error, sqlite3.Error):
                return [unavailable(self._store.path, error)]
            return [error]
        if not self._plans:
            connection.execute("ROLLBACK")
            return outcomes
        try:
            self.commit(connection)
        except sqlite3.Error as error:
            return self._resolve_commit(outcomes, error)
        self._note_commit()
        return outcomes

    def commit(self, connection: sqlite3.Connection) -> None:
        """Commit the transaction of the writing connection."""
        connection.execute("COMMIT")

    def _write_alone(self, append: Append) -> Appended | Exception:
        try:
            return self._transaction([append])[0]
        except ClewError as error:
            return error
        except (sqlite3.Error, OSError) as error:
            return unavailable(self._store.path, error)

    def _refresh_caches(self, connection: sqlite3.Connection, seen: int) -> None:
        """Another process has committed, or the caches are full; ``seen`` is the number of the last commit."""
        self._heads.clear()
        self._ids.clear()
        row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'event'").fetchone()
        self._last = row[0] if row else 0
        self._note_shredding(connection)
        self._seen = seen

    def _note_shredding(self, connection: sqlite3.Connection) -> None:
        """Bytes that another process shredded may still be in the log: that process can end while another one reads."""
        (shredded,) = connection.execute("SELECT value FROM counter WHERE name = 'shredded'").fetchone()
        if shredded != self._shredded:
            if self._shredded is not None:
                self._checkpoints.purge_due = True
            self._shredded = shredded

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        self._forget_transaction()

    def _forget_transaction(self) -> None:
        self._seen = None
        self._heads.clear()
        self._ids.clear()
        self._pending.clear()
        self._plans.clear()

    def _insert(self, connection: sqlite3.Connection, append: Append) -> Appended | Exception:
        try:
            made = plan(append, self)
            if isinstance(made, Appended):
                return made
            if append.tracking is not None:
                # Written first: if it is refused, nothing else of the append is there yet.
                self._track(connection, append.tracking)
        except (ClewError, ValueError, TypeError) as error:
            return error
        if made.began:
            self._insert_streams(connection, made)
        first = self._last + 1
        for at, row in enumerate(made.rows, first):
            self._pending.append((at, self._ids.get(row[0]) or self._id(connection, row[0]), *row[1:]))
        if append.digests:
            self._insert_digests(connection, append.digests)
        self._last += len(made.rows)
        self._heads.update(made.heads)
        if append.shreds or append.snapshots or append.key is not None:
            self._insert_rest(connection, append, first)
        if made.has_side_tables:
            _put_side_tables(connection, made)
        self._plans.append((made, first))
        return outcome(made.rows, first)

    def _insert_digests(self, connection: sqlite3.Connection, digests: Sequence[bytes | None]) -> None:
        """Write the pending rows, the last ones with these digests from the start: no row may grow later."""
        restored, self._pending = self._pending[-len(digests) :], self._pending[: -len(digests)]
        self._flush(connection)
        rows = [(*row, gone) for row, gone in zip(restored, digests, strict=True)]
        connection.executemany(_INSERT_DIGEST, rows)
        shredded = sum(gone is not None for gone in digests)
        connection.execute("UPDATE counter SET value = value + ? WHERE name = 'shredded'", (shredded,))

    def _track(self, connection: sqlite3.Connection, tracking: Tracking) -> None:
        cursor = connection.cursor()
        cursor.row_factory = sqlite3.Row
        try:
            self._tracking._insert_tracking(cursor, tracking)  # type: ignore[arg-type]  # noqa: SLF001 - see below
            # Within a transaction, the library has its statement only under this name. A cursor of sqlite3 has all
            # methods that it needs.
        except (sqlite3.IntegrityError, IntegrityError) as error:
            cursor.execute(
                "SELECT max(notification_id) FROM tracking WHERE application_name = ?", (tracking.application_name,)
            )
            name = f"tracking of {tracking.application_name}"
            raise RecordedConflictError(name, tracking.notification_id - 1, cursor.fetchone()[0] or 0) from error

    def _insert_streams(self, connection: sqlite3.Connection, made: Plan) -> None:
        for name, fork in made.began.items():
            parent = None if fork is None else self._id(connection, fork.parent)
            cut = None if fork is None else fork.cut
            cursor = connection.execute("INSERT INTO stream (name, parent, cut) VALUES (?, ?, ?)", (name, parent, cut))
            if cursor.lastrowid is not None:
                self._ids[name] = cursor.lastrowid

    def _insert_rest(self, connection: sqlite3.Connection, append: Append, first: int) -> None:
        for shred in append.shreds:
            self._shred(connection, shred)
        if append.snapshots:
            connection.executemany(
                "INSERT OR REPLACE INTO snapshot (stream, version, state) VALUES (?, ?, ?)",
                [(self._id(connection, s.stream), s.version, s.state) for s in append.snapshots],
            )
        if append.key is not None:
            salt = new_salt()
            stream = self._id(connection, append.key.stream)
            connection.execute(
                "INSERT INTO append_key (first, last, stream, key, salt, digest) VALUES (?, ?, ?, ?, ?, ?)",
                (first, self._last, stream, append.key.key, salt, content_digest(salt, append.key.content)),
            )

    def _id(self, connection: sqlite3.Connection, name: str) -> int:
        found = self._ids.get(name)
        if found is None:
            row = connection.execute("SELECT id FROM stream WHERE name = ?", (name,)).fetchone()
            found = self._ids[name] = row[0]
        return found

    def _flush(self, connection: sqlite3.Connection) -> None:
        if self._pending:
            connection.executemany(_INSERT, self._pending)
            self._pending.clear()

    def _shred(self, connection: sqlite3.Connection, shred: Shred) -> None:
        self._flush(connection)
        row = connection.execute(_AT, (shred.stream, shred.version)).fetchone()
        position, type_, state = row[:3]
        fits = len(shred.stub) + DIGEST_BYTES <= len(state) and len(shred.stub) + len(type_) <= MOST_IN_PLACE
        # A row that grows can move its neighbours to another page. Copies of them would stay behind, and no later
        # shredding would find these. So a stub that does not fit into the space of the row is stored elsewhere.
        if not fits:
            connection.execute(
                "INSERT OR REPLACE INTO remains (position, state, digest) VALUES (?, ?, ?)",
                (position, shred.stub, shred.digest),
            )
        connection.execute(
            "UPDATE event SET state = ?, digest = ? WHERE position = ?",
            (shred.stub if fits else b"", shred.digest if fits else b"", position),
        )
        connection.execute("UPDATE counter SET value = value + 1 WHERE name = 'shredded'")
        connection.execute(
            "UPDATE append_key SET digest = NULL WHERE last >= ? AND first = "
            "(SELECT first FROM append_key WHERE first <= ? ORDER BY first DESC LIMIT 1)",
            (position, position),
        )

    def _note_commit(self) -> None:
        self.commits += 1
        self._committed = True
        written = COMMIT_BYTES
        for made, _ in self._plans:
            if made.append.shreds:
                self._checkpoints.purge_due = True
            for row in made.rows:
                written += len(row[3])
            if made.has_side_tables:
                for blob in made.append.blobs:
                    written += len(blob.data)
                for draft in made.append.drafts:
                    written += len(draft.data or b"")
                    self._checkpoints.wipe_due = True
        self._checkpoints.written += written
        self._plans.clear()

    def rest(self) -> float | None:
        """Notify the listeners and keep the log short. Returns the seconds after which it must be called again."""
        if self._committed:
            self._committed = False
            if self._store.listeners.callbacks:
                self._store.listeners.notify()
        checkpoints = self._checkpoints
        is_due = checkpoints.purge_due or checkpoints.written >= checkpoints.check_at
        return checkpoints.keep() if is_due else None

    def take_over(self) -> None:
        """Empty a log that existed when the store was opened. The caller holds the lock."""
        self._checkpoints.take_over()

    def finish(self) -> None:
        """Clean the log when the store is closed. The caller holds the lock."""
        self._checkpoints.finish()

    # A commit that failed

    def _resolve_commit(self, outcomes: Outcomes, error: sqlite3.Error) -> Outcomes:
        """Find out on a new connection whether a commit that raised was stored. The lock is still held."""
        plans, self._plans = self._plans, []
        self._forget_transaction()
        try:
            self._store.drop_writing()
            connection = self._store.writing()
            if all(self._is_stored(connection, made, first) for made, first in plans) and _has_side_tables(
                connection, [made for made, _ in plans]
            ):
                self._plans = plans
                self._note_commit()
                return outcomes
            # This overwrites or drops what is in the log without a commit.
            self._checkpoints.truncate()
        except sqlite3.Error as second:
            msg = (
                f"{self._store.path}: the disk failed during a commit ({error}) and cannot be read now ({second}): "
                "it is not known whether the append was stored. Check the disk, then read the thread."
            )
            return [SQLiteUnavailableError(msg)] * len(outcomes)
        return [unavailable(self._store.path, error)] * len(outcomes)

    def _is_stored(self, connection: sqlite3.Connection, made: Plan, first: int) -> bool:
        for at, row in enumerate(made.rows, first):
            if connection.execute(_STORED, (at,)).fetchone() != row:
                return False
        for shred in made.append.shreds:
            row = connection.execute(_AT, (shred.stream, shred.version)).fetchone()
            if row is None or row[4] is None:
                return False
        tracking = made.append.tracking
        return tracking is None or (
            connection.execute(
                "SELECT max(notification_id) FROM tracking WHERE application_name = ?", (tracking.application_name,)
            ).fetchone()[0]
            == tracking.notification_id
        )

    # The answers for the plan of the next append: from the cache of heads, else from the transaction so far

    def head(self, stream: str) -> KnownHead | None:
        """The last version and hash of a stream's own events."""
        found = self._heads.get(stream)
        if found is None:
            # The head of a pending row is in the cache.
            row = (self._store.connection or self._store.writing()).execute(_HEAD, (stream,)).fetchone()
            if row is None:
                return None
            self._ids[stream] = row[0]
            found = self._heads[stream] = row[1:]
        return found

    def hash_at(self, stream: str, version: int) -> bytes | None:
        """The hash of a stream's own row."""
        row = self._at(stream, version)
        return None if row is None else row[3]

    def state_at(self, stream: str, version: int) -> StoredState | None:
        """The stored bytes of a stream's own row."""
        row = self._at(stream, version)
        return None if row is None else StoredState(row[2], row[4])

    def outcome(self, key: Key) -> Outcome | None:
        """The outcome of an idempotency key."""
        connection = self._store.connection or self._store.writing()
        self._flush(connection)
        return find_outcome(lambda sql, parameters: connection.execute(sql, parameters).fetchall(), key)

    def lease(self, stream: str) -> Lease | None:
        """The lease of a stream."""
        row = (self._store.connection or self._store.writing()).execute(LEASE, (stream,)).fetchone()
        return None if row is None else Lease(stream, *row)

    def _at(self, stream: str, version: int) -> tuple[int, str, bytes, bytes, bytes | None] | None:
        if abs(version) > HIGHEST:
            return None
        connection = self._store.connection or self._store.writing()
        self._flush(connection)
        row: tuple[int, str, bytes, bytes, bytes | None] | None = connection.execute(_AT, (stream, version)).fetchone()
        return row


def _put_side_tables(connection: sqlite3.Connection, made: Plan) -> None:
    """Write the side tables of an append in its transaction, after its streams."""
    for blob in made.append.blobs:
        connection.execute(_PUT_BLOB, blob)
    for name, lease in made.leases:
        if lease is None:
            connection.execute(_DROP_LEASE, (name,))
        else:
            connection.execute(_TAKE_LEASE, lease)
    for draft in made.append.drafts:
        if draft.data is None:
            connection.execute(_DROP_DRAFT, (draft.stream,))
        else:
            connection.execute(_PUT_DRAFT, draft)


def _has_side_tables(connection: sqlite3.Connection, plans: Sequence[Plan]) -> bool:
    """Whether the tables hold what a transaction of these plans writes: for a lease or a draft the last value."""
    leases: dict[str, Lease | None] = {}
    drafts: dict[str, Draft] = {}
    for made in plans:
        leases.update(made.leases)
        drafts.update((draft.stream, draft) for draft in made.append.drafts)
    return (
        all(connection.execute(BLOB, (blob.digest,)).fetchone() for made in plans for blob in made.append.blobs)
        and all(
            connection.execute(LEASE, (name,)).fetchone() == (None if lease is None else lease[1:])
            for name, lease in leases.items()
        )
        and all(
            connection.execute(DRAFT, (name,)).fetchone() == (None if draft.data is None else draft[1:])
            for name, draft in drafts.items()
        )
    )
