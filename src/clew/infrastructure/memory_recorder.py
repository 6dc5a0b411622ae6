"""The event store in plain Python objects, for tests and notebooks: the same rules, nothing outlives the process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import islice, repeat
from threading import RLock
from typing import Any
from uuid import UUID

from eventsourcing.persistence import (
    ApplicationRecorder,
    IntegrityError,
    Notification,
    StoredEvent,
    Subscription,
    Tracking,
)
from eventsourcing.popo import POPOProcessRecorder

from clew.domain.errors import ClewError, ClosedError
from clew.infrastructure import forking
from clew.infrastructure.append_plan import (
    KnownHead,
    Outcome,
    Plan,
    StoredState,
    content_digest,
    new_salt,
    outcome,
    plan,
    stream_name,
)
from clew.infrastructure.append_queue import AppendQueue
from clew.infrastructure.memory_beside import Beside
from clew.infrastructure.recorder import (
    Append,
    Appended,
    Blob,
    Draft,
    Key,
    Lease,
    RecordedConflictError,
    Row,
    Shred,
    Snapshot,
    StreamInfo,
)
from clew.infrastructure.subscription import StoredSubscription
from clew.infrastructure.wakeups import Wakeups


@dataclass(slots=True)
class _Stream:
    info: StreamInfo
    first: int
    """The version of its first own event: the others follow without a gap."""
    originator_id: UUID | str
    positions: list[int] = field(default_factory=list)
    snapshots: dict[int, Snapshot] = field(default_factory=dict)


class MemoryRecorder(POPOProcessRecorder):
    """Events of chained, contiguous streams in memory, behind the same writer thread as the other stores have."""

    def __init__(self) -> None:
        super().__init__()
        self._rows: list[Row] = []
        self._streams: dict[str, _Stream] = {}
        self._infos: list[StreamInfo] = []
        self._forks: dict[str, list[StreamInfo]] = {}
        self._keys: dict[tuple[str, str], Outcome] = {}
        self._beside = Beside()
        self._shredded = 0
        self._committed = False
        self._shut = False
        self._wakeups = Wakeups()
        self._queue = AppendQueue(self._write, self._rest)
        forking.watch(self)

    # Appending

    def submit(self, append: Append) -> Future[Appended]:
        """Hand an append to the writer thread."""
        return self._queue.submit(append)

    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> Sequence[int]:
        """Append and wait: the positions, in the order of the events. ``tracking`` is recorded with them."""
        tracking = kwargs.get("tracking")
        if not stored_events and tracking is None:
            return []
        return list(self.submit(Append(stored_events, tracking=tracking)).result().positions)

    def _write(self, appends: Sequence[Append]) -> Sequence[Appended | Exception]:
        with self._database_lock:
            return [self._one(append) for append in appends]

    def _one(self, append: Append) -> Appended | Exception:
        try:
            made = plan(append, self)
            if isinstance(made, Appended):
                return made
            if append.tracking is not None:
                self._check_tracking(append.tracking)
        except (ClewError, ValueError, TypeError) as error:
            return error
        return self._apply(made)

    def _check_tracking(self, tracking: Tracking) -> None:
        try:
            self._assert_tracking_uniqueness(tracking)
        except IntegrityError as error:
            found = self._max_tracking_ids[tracking.application_name] or 0
            name = f"tracking of {tracking.application_name}"
            raise RecordedConflictError(name, tracking.notification_id - 1, found) from error

    def _apply(self, made: Plan) -> Appended:
        append = made.append
        first = len(self._rows) + 1
        digests = append.digests or repeat(None)
        for row, event, gone in zip(made.rows, append.events, digests, strict=False):  # digests may have no end
            stream = self._streams.get(row[0])
            if stream is None:
                fork = made.began[row[0]]
                parent, cut = (None, None) if fork is None else (fork.parent, fork.cut)
                info = StreamInfo(len(self._streams) + 1, row[0], parent, cut)
                stream = self._streams[row[0]] = _Stream(info, row[1], event.originator_id)
                self._infos.append(info)
                if parent is not None:
                    self._forks.setdefault(parent, []).append(info)
            self._rows.append(Row(len(self._rows) + 1, *row, digest=gone))
            self._shredded += gone is not None
            stream.positions.append(len(self._rows))
        appended = outcome(made.rows, first)
        for shred in append.shreds:
            self._shred(shred)
        for snapshot in append.snapshots:
            self._streams[snapshot.stream].snapshots[snapshot.version] = snapshot
        if append.key is not None:
            salt = new_salt()
            found = Outcome(salt, content_digest(salt, append.key.content), appended)
            self._keys[append.key.stream, append.key.key] = found
        if append.tracking is not None:
            self._insert_tracking(append.tracking)
        if made.beside:
            self._beside.put(made)
        self._committed = True
        return appended

    def _shred(self, shred: Shred) -> None:
        row = self._own(shred.stream, shred.version)
        if row is None:
            return
        self._rows[row.position - 1] = row._replace(state=shred.stub, digest=shred.digest)
        self._shredded += 1
        for name, found in self._keys.items():
            if row.position in found.appended.positions:
                self._keys[name] = Outcome(found.salt, None, found.appended)

    def _rest(self) -> float | None:
        if self._committed:
            self._committed = False
            self._wakeups.wake()
        return None

    # Reading: Clew's port

    def repeated(self, key: Key) -> Appended | None:
        """The first outcome of an append with this key."""
        with self._open_lock():
            found = self.outcome(key)
        return None if found is None else found.repeat(key)

    def lineage(self, stream: str, *, after: int = -1, upto: int | None = None) -> list[Row]:
        """The rows of a stream and of its ancestors up to each cut, in version order."""
        with self._open_lock():
            parts = [self._slice(line, after, end) for line, end in self._line(stream, after, upto)]
        return [row for part in reversed(parts) for row in part]

    def own_rows(self, stream: str, *, after: int = -1, limit: int) -> list[Row]:
        """The rows that lie under the stream itself, in version order."""
        with self._open_lock():
            found = self._streams.get(stream)
            return [] if found is None else self._slice(found, after, max(after, found.first - 1) + limit)

    def rows(self, *, after: int, limit: int, prefix: str = "") -> list[Row]:
        """Rows in position order of streams whose name begins with ``prefix``."""
        with self._open_lock():
            if not prefix:
                return self._rows[max(after, 0) : max(after, 0) + limit]
            found = (row for row in self._rows[max(after, 0) :] if row.stream.startswith(prefix))
            return list(islice(found, min(limit, sys.maxsize)))

    def rows_at(self, positions: Sequence[int]) -> list[Row]:
        """The rows at these positions, in position order."""
        with self._open_lock():
            return [self._rows[position - 1] for position in sorted(set(positions)) if 0 < position <= len(self._rows)]

    def last_position(self) -> int:
        """The highest position that readers may see, 0 for an empty store."""
        with self._open_lock():
            return len(self._rows)

    def newest_position(self) -> int:
        """The highest position: what was appended is seen at once."""
        return self.last_position()

    def may_fill(self) -> bool:
        """Yes."""
        return True

    def is_bound(self) -> bool:
        """No."""
        return False

    def count_after(self, position: int, limit: int) -> int:
        """How many rows come after a position, ``limit`` at the most."""
        with self._open_lock():
            return min(max(0, len(self._rows) - max(position, 0)), limit)

    def streams(self, *, prefix: str = "", after: int = 0, limit: int) -> list[StreamInfo]:
        """Streams in the order in which they were made, ``after`` < key."""
        with self._open_lock():
            # The key of a stream is its place in the list, from one.
            infos = (info for info in self._infos[max(after, 0) :] if info.name.startswith(prefix))
        return list(islice(infos, min(limit, sys.maxsize)))

    def stream(self, name: str) -> StreamInfo | None:
        """One stream, None when there is none of that name."""
        with self._open_lock():
            found = self._streams.get(name)
        return None if found is None else found.info

    def forks(self, stream: str) -> list[StreamInfo]:
        """The streams whose parent is this one, in the order in which they were made."""
        with self._open_lock():
            return list(self._forks.get(stream, ()))

    def orphans(self, limit: int) -> list[tuple[int, int]]:  # noqa: ARG002 - the port's
        """Always empty: nobody tampers with the memory of the process."""
        with self._open_lock():
            return []

    def snapshot(self, stream: str, upto: int | None = None) -> Snapshot | None:
        """The newest snapshot along the lineage at a version ≤ ``upto``."""
        with self._open_lock():
            for line, end in self._line(stream, -1, upto):
                versions = [version for version in line.snapshots if end is None or version <= end]
                if versions:
                    return line.snapshots[max(versions)]
            return None

    def blob(self, digest: bytes, key: int | None = None) -> Blob | None:
        """The blob of that digest, of which there is one."""
        del key
        with self._open_lock():
            return self._beside.blobs.get(digest)

    def blobs(self, *, after: int = 0, limit: int) -> list[tuple[int, bytes]]:
        """Key and digest of each blob in the order in which they came: the key is its place in it, from one."""
        with self._open_lock():
            return list(enumerate(self._beside.blobs, start=1))[max(after, 0) :][:limit]

    def draft(self, stream: str) -> Draft | None:
        """The part of an answer that was last written down for the stream."""
        with self._open_lock():
            return self._beside.drafts.get(stream)

    def lease(self, stream: str) -> Lease | None:
        """The lease of a stream as it was last taken: what the plan of the next append is told as well."""
        with self._open_lock():
            return self._beside.leases.get(stream)

    def shredded(self) -> int:
        """How many rows were ever shredded."""
        with self._open_lock():
            return self._shredded

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:  # type: ignore[override] # Clew's port names it
        """Call ``wake`` after every commit."""
        return self._wakeups.listen(wake)

    def close(self) -> None:
        """Write what was submitted; later calls raise ClosedError."""
        self._queue.close()
        self._shut = True
        self._wakeups.close()
        forking.unwatch(self)

    # Reading: the library's

    def select_events(
        self,
        originator_id: UUID | str,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
    ) -> Sequence[StoredEvent]:
        """A stream's own events in the library's form."""
        with self._open_lock():
            found = self._streams.get(stream_name(originator_id))
            rows = [] if found is None else self._slice(found, -1 if gt is None else gt, lte)
        if desc:
            rows.reverse()
        return [StoredEvent(originator_id, row.version, row.type, row.state) for row in rows[:limit]]

    def select_notifications(
        self,
        start: int | None,
        limit: int,
        stop: int | None = None,
        topics: Sequence[str] = (),
        *,
        inclusive_of_start: bool = True,
    ) -> Sequence[Notification]:
        """Events in position order in the library's form."""
        after = 0 if start is None else max(start - inclusive_of_start, 0)
        found: list[Notification] = []
        with self._open_lock():
            for row in self._rows[after : None if stop is None else max(stop, 0)]:
                if len(found) == limit:
                    break
                if not topics or row.type in topics:
                    originator_id = self._streams[row.stream].originator_id
                    found.append(Notification(originator_id, row.version, row.type, row.state, id=row.position))
        return found

    def max_notification_id(self) -> int | None:
        """The highest position, None for an empty store."""
        return self.last_position() or None

    def subscribe(self, gt: int | None = None, topics: Sequence[str] = ()) -> Subscription[ApplicationRecorder]:
        """Events above a position, those to come included."""
        return StoredSubscription(self, self, gt, topics)

    # What the plan of the next append is told

    def head(self, stream: str) -> KnownHead | None:
        """The last version and hash of a stream's own events."""
        found = self._streams.get(stream)
        if found is None:
            return None
        row = self._rows[found.positions[-1] - 1]
        return row.version, row.hash

    def hash_at(self, stream: str, version: int) -> bytes | None:
        """The hash of a stream's own row."""
        row = self._own(stream, version)
        return None if row is None else row.hash

    def state_at(self, stream: str, version: int) -> StoredState | None:
        """The stored bytes of a stream's own row."""
        row = self._own(stream, version)
        return None if row is None else StoredState(row.state, row.digest)

    def outcome(self, key: Key) -> Outcome | None:
        """What an idempotency key came to."""
        return self._keys.get((key.stream, key.key))

    # Inside the lock

    def _open_lock(self) -> AbstractContextManager[object]:
        if self._shut:
            msg = "The store is closed: nothing can be read. Open it again."
            raise ClosedError(msg)
        return self._database_lock

    def _own(self, stream: str, version: int) -> Row | None:
        found = self._streams.get(stream)
        if found is None or not 0 <= version - found.first < len(found.positions):
            return None
        return self._rows[found.positions[version - found.first] - 1]

    def _slice(self, stream: _Stream, after: int, upto: int | None) -> list[Row]:
        start = max(after + 1 - stream.first, 0)
        stop = len(stream.positions) if upto is None else max(upto + 1 - stream.first, 0)
        return [self._rows[position - 1] for position in stream.positions[start:stop]]

    def _line(self, stream: str, after: int, upto: int | None) -> Iterator[tuple[_Stream, int | None]]:
        found = self._streams.get(stream)
        while found is not None:
            yield found, upto
            cut = found.info.cut
            if cut is None or cut <= after:
                return
            upto = cut if upto is None else min(upto, cut)
            found = self._streams.get(found.info.parent or "")

    # Forking of the process

    def before_fork(self) -> None:
        """Wait until no thread is in the middle of a change."""
        self._rested = self._database_lock.acquire(timeout=forking.WAIT_SECONDS)

    def after_fork_in_parent(self) -> None:
        """Go on."""
        if self._rested:
            self._database_lock.release()

    def after_fork_in_child(self) -> None:
        """Start afresh with a writer thread of the child's own, on a copy of the events."""
        self._database_lock = RLock()
        self._wakeups.restart()
        self._queue.restart()
