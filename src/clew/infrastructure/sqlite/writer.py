"""The writer of a SQLite store: a batch of appends in one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from eventsourcing.persistence import IntegrityError

from clew.domain.errors import ClewError
from clew.domain.event_index import number_of_blob
from clew.domain.ports import Appended, Key, Lease, Shred
from clew.domain.streams import DIGEST_BYTES
from clew.infrastructure import clock
from clew.infrastructure.append_plan import (
    KnownHead,
    Outcome,
    Plan,
    StoredState,
    content_digest,
    lowest_shredded,
    make_plan,
    outcome,
)
from clew.infrastructure.recorder_ports import HIGHEST, Append, RecordedConflictError
from clew.infrastructure.sqlite.errors import SQLiteUnavailableError, unavailable
from clew.infrastructure.sqlite.reads import BLOB, DRAFT, IS_USED, LEASE, find_outcome
from clew.infrastructure.sqlite.wal_checkpoints import COMMIT_BYTES, MARK, Checkpoints

if TYPE_CHECKING:
    from eventsourcing.persistence import Tracking
    from eventsourcing.sqlite import SQLiteTrackingRecorder

    from clew.domain.ports import Draft
    from clew.infrastructure.sqlite.datastore import ClewSQLiteDatastore

MOST_HEADS = 65_536
"""Heads in the cache."""

MOST_IN_PLACE = 340
"""The most bytes of a stub and its type that fit into any row, with pages of 4096 bytes. More could make a row with
overflow pages grow."""

_HEAD = (
    "SELECT s.id, e.version, e.hash FROM stream s CROSS JOIN event e ON e.stream = s.id "
    "WHERE s.name = ? ORDER BY e.version DESC LIMIT 1"
)
_ROW = (
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
_PUT_RECORD_BLOB = "INSERT OR IGNORE INTO record_blob (digest, number, data) VALUES (?, ?, ?)"
# The row stays, almost empty: SQLite moves the neighbours of a row that is deleted, and leaves copies of them behind.
_DROP_RECORD_BLOB = (
    f"UPDATE record_blob AS b SET digest = NULL, number = 0, data = x'' WHERE digest = ? AND NOT {IS_USED}"  # noqa: S608 - of constants
)
_TAKE_LEASE = f"INSERT OR REPLACE INTO lease (stream, holder, until) VALUES ({_STREAM}, ?, ?)"  # noqa: S608 - of constants
PUT_ENTRY = "INSERT OR IGNORE INTO entry (stream, number, version) VALUES (?, ?, ?)"
_DROP_ENTRY = f"DELETE FROM entry WHERE stream = {_STREAM} AND number = ? AND version = ?"  # noqa: S608 - of constants
_DROP_LEASE = f"DELETE FROM lease WHERE stream = {_STREAM}"  # noqa: S608 - of constants
_PUT_DRAFT = (
    "INSERT OR REPLACE INTO draft (stream, run, margin, data) "  # noqa: S608 - of constants
    f"VALUES ({_STREAM}, ?, zeroblob((SELECT page_size FROM pragma_page_size)), ?)"
)
_PUT_SNAPSHOT = (
    "INSERT OR REPLACE INTO snapshot (stream, version, state) SELECT ?, ?, ? "
    "WHERE coalesce(?, -1) IN (-1, (SELECT value FROM counter WHERE name = 'shredded'))"
)
_DROP_SNAPSHOTS = """WITH RECURSIVE line (id) AS (
    SELECT id FROM stream WHERE name = ?
    UNION SELECT fork.id FROM line JOIN stream fork ON fork.parent = line.id
)
DELETE FROM snapshot WHERE stream IN (SELECT id FROM line)"""
_DROP_KEYS = f"DELETE FROM append_key WHERE stream = {_STREAM}"  # noqa: S608 - of constants
_HAS_FORK = f"SELECT 1 FROM stream WHERE parent = {_STREAM} AND cut >= ? LIMIT 1"  # noqa: S608 - of constants
_PUT_FOLD = """INSERT OR REPLACE INTO fold_state (stream, name, slot, version, margin, state)
SELECT id, :name, :slot, :version, zeroblob((SELECT page_size FROM pragma_page_size)), :state
FROM stream WHERE stream.name = :stream AND (SELECT value FROM counter WHERE name = 'shredded') = :shredded
    AND NOT EXISTS (SELECT 1 FROM fold_state AS newer WHERE newer.stream = stream.id
        AND newer.name = :name AND newer.slot = :slot AND newer.version > :version)"""
_DROP_FOLDS = """DELETE FROM fold_state WHERE version >= :version AND stream IN (
    WITH RECURSIVE holder (id) AS (
        SELECT id FROM stream WHERE name = :stream
        UNION SELECT s.id FROM holder CROSS JOIN stream s ON s.parent = holder.id WHERE s.cut >= :version
    )
    SELECT id FROM holder
)"""
_DROP_DRAFT = f"DELETE FROM draft WHERE stream = {_STREAM}"  # noqa: S608 - of constants

Outcomes = Sequence[Appended | Exception]


class SQLiteWriter:
    """Writes all events of a process. One thread at a time calls it. It may be interrupted at any point.

    ``tracking`` is the library's recorder for the same store.
    """

    def __init__(self, store: ClewSQLiteDatastore, tracking: SQLiteTrackingRecorder) -> None:
        self._store = store
        self._tracking = tracking
        self.checkpoints = Checkpoints(store)
        self._shredded: int | None = None
        self.commits = self._counted = 0
        self._written: set[str] = set()
        """The streams of new events, whose listeners were not notified yet."""
        self._is_writing = False
        self.drop_caches()

    def drop_caches(self) -> None:
        """Forget what was read and planned: after a rollback, or in the child of a fork."""
        self._data_version: int | None = None
        """SQLite's number for the last commit of any other connection."""
        self._heads: dict[str, KnownHead] = {}
        self._ids: dict[str, int] = {}
        self._last = 0
        self._pending: list[tuple[int, int, int, str, bytes, bytes]] = []
        self._plans: list[tuple[Plan, int]] = []

    # Writing

    def write(self, appends: Sequence[Append]) -> Outcomes:
        """Write a batch in one transaction. An append that is refused does not affect the others."""
        try:
            outcomes = self._store.lock.hold(partial(self._write, appends))
        except ClewError as error:
            return [error] * len(appends)
        except (sqlite3.Error, OSError) as error:
            return [unavailable(self._store.path, error)] * len(appends)
        if self.checkpoints.purge_due:
            # The redaction is confirmed only after its bytes are removed, unless a reader still uses them.
            self.checkpoints.make()
        return outcomes

    def _write(self, appends: Sequence[Append]) -> Outcomes:
        if self._is_writing:  # the last thread was interrupted, even while it recovered from an interruption
            self.drop_caches()
        self._is_writing = True
        try:
            outcomes = self._transaction(appends)
        except BaseException:
            self._recover()
            raise
        self._is_writing = False
        return outcomes

    def _transaction(self, appends: Sequence[Append]) -> Outcomes:
        connection = self._store.connection or self._store.writing()
        if connection.in_transaction:
            # The previous user of the connection was interrupted inside a transaction.
            self._roll_back(connection)
        connection.execute("BEGIN IMMEDIATE")
        try:
            data_version = connection.execute("PRAGMA data_version").fetchone()[0]
            if data_version != self._data_version or len(self._heads) > MOST_HEADS:
                self._refresh_caches(connection, data_version)
            if self.checkpoints.unmark_due:
                self.checkpoints.unmark(connection)
            outcomes = list(map(partial(self._insert, connection), appends))
            connection.executemany(_INSERT, self._pending)
            self._pending.clear()
        except Exception as error:  # noqa: BLE001 - one append caused it, and the others must not fail with it
            self._roll_back(connection)
            if len(appends) > 1:
                return [self._write_alone(append) for append in appends]
            if isinstance(error, sqlite3.Error):
                return [unavailable(self._store.path, error)]
            return [error]
        if not self._plans:
            connection.execute("ROLLBACK")
            return outcomes
        if self._store.listeners.callbacks:
            # Before the commit: the poller may see it before this thread continues.
            self._store.listeners.own(self._plans[0][1], self._last)
        try:
            self.commit(connection)
        except sqlite3.Error as error:
            return self._resolve_commit(outcomes, error)
        self.commits += 1
        self._plans.clear()
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

    def _refresh_caches(self, connection: sqlite3.Connection, data_version: int) -> None:
        """Start new caches: another process has committed, or they are full."""
        self._heads.clear()
        self._ids.clear()
        row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'event'").fetchone()
        self._last = row[0] if row else 0
        self._note_shredding(connection)
        self._data_version = data_version

    def _note_shredding(self, connection: sqlite3.Connection) -> None:
        """Empty the write-ahead log soon if another process has shredded rows: it may have ended before that."""
        (shredded,) = connection.execute("SELECT value FROM counter WHERE name = 'shredded'").fetchone()
        if shredded != self._shredded:
            if self._shredded is not None:
                self.checkpoints.purge_due = True
            self._shredded = shredded

    def _recover(self) -> None:
        """End the transaction of a thread that was interrupted, or whose disk failed. The caller holds the lock."""
        # Another process may use these positions next.
        self._store.listeners.disown(self._last)
        connection = self._store.connection
        if connection is not None:
            with suppress(sqlite3.Error):
                self._roll_back(connection)
        self.drop_caches()

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        self.drop_caches()

    def _insert(self, connection: sqlite3.Connection, append: Append) -> Appended | Exception:
        try:
            plan = make_plan(append, self)
            if isinstance(plan, Appended):
                return plan
            if append.tracking is not None:
                # The tracking is written first: if it is refused, nothing of the append is written.
                self._track(connection, append.tracking)
        except (ClewError, ValueError, TypeError) as error:
            return error
        if plan.began:
            self._insert_streams(connection, plan)
        first = self._last + 1
        written = 0
        for position, row in enumerate(plan.rows, first):
            stream = self._ids.get(row[0]) or self._id(connection, row[0])
            self._pending.append((position, stream, *row[1:]))
            written += len(row[3])
        self.checkpoints.written += written
        if append.snapshots or append.digests:
            self._insert_snapshots_and_digests(connection, append)
        self._last += len(plan.rows)
        self._heads.update(plan.heads)
        self._written.update(plan.heads)
        if append.shreds or append.forgets or append.key is not None:
            self._insert_shreds_and_key(connection, append, first)
        if append.entries:
            entries = [(self._id(connection, each.stream), each.number, each.version) for each in append.entries]
            connection.executemany(PUT_ENTRY, entries)
        if plan.has_side_tables or append.shreds:
            self._put_side_tables(connection, plan)
        self._plans.append((plan, first))
        return outcome(plan.rows, first)

    def _insert_snapshots_and_digests(self, connection: sqlite3.Connection, append: Append) -> None:
        """Write snapshots, and the pending rows with their digests: a digest that is added later makes a row grow."""
        snapshots = [(self._id(connection, s.stream), s.version, s.state, s.shredded) for s in append.snapshots]
        connection.executemany(_PUT_SNAPSHOT, snapshots)
        digests = append.digests
        if not digests:
            return
        restored, self._pending = self._pending[-len(digests) :], self._pending[: -len(digests)]
        self._flush(connection)
        rows = [(*row, digest) for row, digest in zip(restored, digests, strict=True)]
        connection.executemany(_INSERT_DIGEST, rows)
        shredded = sum(digest is not None for digest in digests)
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

    def _insert_streams(self, connection: sqlite3.Connection, plan: Plan) -> None:
        for name, fork in plan.began.items():
            parent = None if fork is None else self._id(connection, fork.parent)
            cut = None if fork is None else fork.cut
            cursor = connection.execute("INSERT INTO stream (name, parent, cut) VALUES (?, ?, ?)", (name, parent, cut))
            if cursor.lastrowid is not None:
                self._ids[name] = cursor.lastrowid

    def _insert_shreds_and_key(self, connection: sqlite3.Connection, append: Append, first: int) -> None:
        for shred in append.shreds:
            self._shred(connection, shred)
        for forget in append.forgets:
            connection.execute(_DROP_SNAPSHOTS, (forget.stream,))
            if forget.keys:
                connection.execute(_DROP_KEYS, (forget.stream,))
        if append.shreds:
            for name, lowest in lowest_shredded(append.shreds).items():
                connection.execute(_DROP_FOLDS, {"stream": name, "version": lowest})
            connection.execute(MARK, (first,))
        if append.key is not None:
            salt = clock.salt()
            stream = self._id(connection, append.key.stream)
            connection.execute(
                "INSERT INTO append_key (first, last, stream, key, salt, digest) VALUES (?, ?, ?, ?, ?, ?)",
                (first, self._last, stream, append.key.digest, salt, content_digest(salt, append.key.content)),
            )

    def _id(self, connection: sqlite3.Connection, name: str) -> int:
        """The id of a stream that exists."""
        id_ = self._ids.get(name)
        if id_ is None:
            id_ = self._ids[name] = connection.execute("SELECT id FROM stream WHERE name = ?", (name,)).fetchone()[0]
        return id_

    def _flush(self, connection: sqlite3.Connection) -> None:
        if self._pending:
            connection.executemany(_INSERT, self._pending)
            self._pending.clear()

    def _shred(self, connection: sqlite3.Connection, shred: Shred) -> None:
        self._flush(connection)
        row = connection.execute(_ROW, (shred.stream, shred.version)).fetchone()
        position, type_, state = row[:3]
        # A row that grows can move its neighbours to another page and leave copies of them behind, which no later
        # shredding finds. So a stub that does not fit into the space of the row is stored in another table.
        fits = len(shred.stub) + DIGEST_BYTES <= len(state) and len(shred.stub) + len(type_) <= MOST_IN_PLACE
        if not fits:
            connection.execute(
                "INSERT OR REPLACE INTO remains (position, state, digest) VALUES (?, ?, ?)",
                (position, shred.stub, shred.digest),
            )
        connection.execute(
            "UPDATE event SET state = ?, digest = ? WHERE position = ?",
            (shred.stub if fits else b"", shred.digest if fits else b"", position),
        )
        connection.executemany(_DROP_ENTRY, [(shred.stream, number, shred.version) for number in shred.numbers])
        connection.execute("UPDATE counter SET value = value + 1 WHERE name = 'shredded'")
        self.checkpoints.purge_due = True
        connection.execute(
            "UPDATE append_key SET digest = NULL WHERE last >= ? AND first = "
            "(SELECT first FROM append_key WHERE first <= ? ORDER BY first DESC LIMIT 1)",
            (position, position),
        )

    def _put_side_tables(self, connection: sqlite3.Connection, plan: Plan) -> None:
        """Write blobs, leases, drafts and states of folds of an append, whose streams exist.

        Drop the bytes next to shredded events.
        """
        for blob in plan.append.blobs:
            connection.execute(_PUT_BLOB, blob)
            self.checkpoints.written += len(blob.data)
        for blob in plan.append.record_blobs:
            connection.execute(_PUT_RECORD_BLOB, (blob.digest, number_of_blob(blob.digest), blob.data))
            self.checkpoints.written += len(blob.data)
        for name, lease in plan.leases:
            if lease is None:
                connection.execute(_DROP_LEASE, (name,))
            else:
                connection.execute(_TAKE_LEASE, lease)
        for draft in plan.append.drafts:
            if draft.data is None:
                connection.execute(_DROP_DRAFT, (draft.stream,))
            else:
                connection.execute(_PUT_DRAFT, draft)
                self.checkpoints.written += len(draft.data)
            self.checkpoints.wipe_due = True
        for fold in plan.append.folds:
            connection.execute(_PUT_FOLD, fold._asdict())
            self.checkpoints.written += len(fold.state)
        for shred in plan.append.shreds:  # last: another event of the append can have the same bytes
            connection.executemany(_DROP_RECORD_BLOB, [(name,) for name in shred.blobs])

    def after_batch(self) -> float | None:
        """Notify the listeners and make a checkpoint if one is due. Returns the seconds until the next call."""
        if self._counted != self.commits:
            self._counted = self.commits
            self.checkpoints.written += COMMIT_BYTES
        if self._written:
            if self._store.listeners.callbacks:
                self._store.listeners.notify(self._written)
            self._written = set()  # later: if this thread is interrupted, the next one notifies them again
        checkpoints = self.checkpoints
        is_due = checkpoints.purge_due or checkpoints.written >= checkpoints.check_at
        return checkpoints.make() if is_due else None

    # A commit that failed

    def _resolve_commit(self, outcomes: Outcomes, error: sqlite3.Error) -> Outcomes:
        """Find out on a new connection whether a commit that failed was stored. The caller holds the lock."""
        plans, self._plans = self._plans, []
        # Another process may use these positions next.
        self._store.listeners.disown(self._last)
        self.drop_caches()
        try:
            self._store.drop_writing()
            connection = self._store.writing()
            if all(_is_stored(connection, plan, first) for plan, first in plans) and _side_data_is_stored(
                connection, [plan for plan, _ in plans]
            ):
                self.commits += 1
                return outcomes
            # This removes pages of the failed commit from the log.
            self.checkpoints.truncate()
        except sqlite3.Error as read_error:
            msg = (
                f"{self._store.path}: the disk failed during a commit ({error}) and cannot be read now ({read_error}): "
                "it is not known whether the append was stored. Check the disk, then read the thread."
            )
            return [SQLiteUnavailableError(msg)] * len(outcomes)
        return [unavailable(self._store.path, error)] * len(outcomes)

    # Reads for the plan of the next append: from the cache of heads, or else in the transaction

    def head(self, stream: str) -> KnownHead | None:
        """The last version and hash of a stream's own events."""
        head = self._heads.get(stream)
        if head is None:  # then the stream has no pending row either
            row = (self._store.connection or self._store.writing()).execute(_HEAD, (stream,)).fetchone()
            if row is None:
                return None
            self._ids[stream] = row[0]
            head = self._heads[stream] = row[1:]
        return head

    def hash_at(self, stream: str, version: int) -> bytes | None:
        """The hash of a stream's own row."""
        row = self._row(stream, version)
        return None if row is None else row[3]

    def state_at(self, stream: str, version: int) -> StoredState | None:
        """The stored bytes of a stream's own row."""
        row = self._row(stream, version)
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

    def has_fork(self, stream: str, cut: int) -> bool:
        """Whether a stream has a fork at this version or a later one."""
        connection = self._store.connection or self._store.writing()
        return connection.execute(_HAS_FORK, (stream, cut)).fetchone() is not None

    def _row(self, stream: str, version: int) -> tuple[int, str, bytes, bytes, bytes | None] | None:
        if abs(version) > HIGHEST:
            return None
        connection = self._store.connection or self._store.writing()
        self._flush(connection)
        row: tuple[int, str, bytes, bytes, bytes | None] | None = connection.execute(_ROW, (stream, version)).fetchone()
        return row


def _is_stored(connection: sqlite3.Connection, plan: Plan, first: int) -> bool:
    for position, row in enumerate(plan.rows, first):
        if connection.execute(_STORED, (position,)).fetchone() != row:
            return False
    for shred in plan.append.shreds:
        row = connection.execute(_ROW, (shred.stream, shred.version)).fetchone()
        if row is None or row[4] is None:
            return False
    tracking = plan.append.tracking
    return tracking is None or (
        connection.execute(
            "SELECT max(notification_id) FROM tracking WHERE application_name = ?", (tracking.application_name,)
        ).fetchone()[0]
        == tracking.notification_id
    )


def _side_data_is_stored(connection: sqlite3.Connection, plans: Sequence[Plan]) -> bool:
    """Whether the tables hold what a transaction of these plans writes: for a lease or a draft the last value."""
    leases: dict[str, Lease | None] = {}
    drafts: dict[str, Draft] = {}
    for plan in plans:
        leases.update(plan.leases)
        drafts.update((draft.stream, draft) for draft in plan.append.drafts)
    return (
        all(connection.execute(BLOB, (blob.digest,)).fetchone() for plan in plans for blob in plan.append.blobs)
        and all(
            connection.execute(LEASE, (name,)).fetchone() == (None if lease is None else lease[1:])
            for name, lease in leases.items()
        )
        and all(
            connection.execute(DRAFT, (name,)).fetchone() == (None if draft.data is None else draft[1:])
            for name, draft in drafts.items()
        )
    )
