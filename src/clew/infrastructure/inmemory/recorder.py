"""The event store in plain Python objects, for tests and notebooks. It has the same rules and ends with the process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from threading import RLock
from uuid import UUID

from eventsourcing.persistence import IntegrityError, Tracking
from eventsourcing.popo import POPOProcessRecorder

from clew.domain.errors import ClewError, ClosedError
from clew.domain.ports import Appended, Blob, Draft, Key, Lease, Row, StreamInfo
from clew.infrastructure import clock, process_forks
from clew.infrastructure.append_plan import make_plan
from clew.infrastructure.append_queue import AppendQueue
from clew.infrastructure.commit_listeners import CommitListeners
from clew.infrastructure.inmemory.events import InMemoryEvents
from clew.infrastructure.library_recorder import LibraryRecorder
from clew.infrastructure.recorder_ports import Append, RecordedConflictError, Snapshot, StoredKey, page


class InMemoryRecorder(LibraryRecorder, POPOProcessRecorder, process_forks.ForkAware):
    """Events of chained, contiguous streams in memory, with the same queue of appends as a SQLite store."""

    def __init__(self) -> None:
        super().__init__()
        self._events = InMemoryEvents()
        self._written: set[str] = set()
        """The streams of new events whose listeners were not notified yet."""
        self._closed = False
        self._tag = clock.salt().hex()[:8]
        self._commit_listeners = CommitListeners()
        self._queue = AppendQueue(self._write, self._after_batch, interruptible=False)
        self.submit = self._queue.submit
        self.enqueue = self._queue.enqueue
        process_forks.watch(self)

    # Appending

    def _write(self, appends: Sequence[Append]) -> Sequence[Appended | Exception]:
        with self._database_lock:
            return [self._append(append) for append in appends]

    def _append(self, append: Append) -> Appended | Exception:
        try:
            plan = make_plan(append, self._events)
            if isinstance(plan, Appended):
                return plan
            if append.tracking is not None:
                self._check_tracking(append.tracking)
        except (ClewError, ValueError, TypeError) as error:
            return error
        appended = self._events.put(plan)
        if append.tracking is not None:
            self._insert_tracking(append.tracking)
        self._written.update(plan.heads)
        return appended

    def _check_tracking(self, tracking: Tracking) -> None:
        try:
            self._assert_tracking_uniqueness(tracking)
        except IntegrityError as error:
            last = self._max_tracking_ids[tracking.application_name] or 0
            name = f"tracking of {tracking.application_name}"
            raise RecordedConflictError(name, tracking.notification_id - 1, last) from error

    def _after_batch(self) -> float | None:
        if self._written:
            written, self._written = self._written, set()
            self._commit_listeners.notify(written)
        return None

    # Reading: Clew's ports

    def repeated(self, key: Key) -> Appended | None:
        """The first outcome of an append with this key."""
        with self._open_lock():
            outcome = self._events.outcome(key)
        return None if outcome is None else outcome.repeat(key)

    def lineage(
        self, stream: str, *, after: int = -1, upto: int | None = None, types: Collection[str] | None = None
    ) -> list[Row]:
        """The rows of a stream and of its ancestors up to each cut, in version order."""
        with self._open_lock():
            rows = self._events.lineage(stream, after, upto)
        return rows if types is None else [row for row in rows if row.type in types]

    def indexed(self, stream: str, number: int, *, after: int, upto: int, limit: int) -> list[Row]:
        """The newest rows of the lineage under a number of the index, newest first."""
        with self._open_lock():
            return self._events.indexed(stream, number, after, upto, limit)

    def own_rows(self, stream: str, *, after: int = -1, limit: int) -> list[Row]:
        """The rows of the stream itself, in version order."""
        with self._open_lock():
            return page(self._events.first(stream, after, limit))

    def rows(self, *, after: int, limit: int, prefix: str = "", upto: int | None = None) -> list[Row]:
        """Rows in position order of streams whose name begins with ``prefix``."""
        with self._open_lock():
            after, last = max(after, 0), len(self._events.rows) if upto is None else max(upto, 0)
            if not prefix:
                return page(self._events.rows[after : min(after + limit, last)])
            rows = (row for row in self._events.rows[after:last] if row.stream.startswith(prefix))
            return page(islice(rows, min(limit, sys.maxsize)))

    def rows_at(self, positions: Sequence[int]) -> list[Row]:
        """The rows at these positions, in position order."""
        with self._open_lock():
            rows = self._events.rows
            return [rows[position - 1] for position in sorted(set(positions)) if 0 < position <= len(rows)]

    def last_position(self) -> int:
        """The highest position, 0 for an empty store."""
        with self._open_lock():
            return len(self._events.rows)

    def count_after(self, position: int, limit: int) -> int:
        """How many rows come after a position, counted up to ``limit``."""
        with self._open_lock():
            return min(max(0, len(self._events.rows) - max(position, 0)), limit)

    def streams(self, *, prefix: str = "", after: int = 0, limit: int) -> list[StreamInfo]:
        """Streams in the order of their creation, ``after`` < key."""
        with self._open_lock():
            infos = (info for info in self._events.streams[max(after, 0) :] if info.name.startswith(prefix))
        return list(islice(infos, min(limit, sys.maxsize)))

    def stream(self, name: str) -> StreamInfo | None:
        """The stream of that name, None if there is none."""
        with self._open_lock():
            return self._events.stream(name)

    def existing(self, names: Sequence[str]) -> set[str]:
        """Those of the names that a stream has."""
        with self._open_lock():
            return {name for name in names if self._events.stream(name) is not None}

    def forks(self, stream: str, *, cut: int = 0, limit: int | None = None) -> list[StreamInfo]:
        """The streams whose parent is this one, in the order of their creation: the first ``limit`` from a cut on."""
        with self._open_lock():
            return self._events.forks(stream, cut=cut, limit=limit)

    def orphans(self, limit: int) -> list[tuple[int, int]]:
        """Always empty: the memory of the process cannot be tampered with."""
        del limit
        with self._open_lock():
            return []

    def snapshot(self, stream: str, upto: int | None = None) -> Snapshot | None:
        """The newest snapshot along the lineage at a version ≤ ``upto``."""
        with self._open_lock():
            return self._events.snapshot(stream, upto)

    def fold_state(self, stream: str, name: str, upto: int) -> tuple[int, bytes] | None:
        """The newest state of a fold along the lineage at a version ≤ ``upto``."""
        with self._open_lock():
            return self._events.fold_state(stream, name, upto)

    def blob(self, digest: bytes, key: int | None = None) -> Blob | None:
        """The blob with that digest."""
        del key
        with self._open_lock():
            return self._events.blobs.get(digest)

    def blobs(self, *, after: int = 0, limit: int) -> list[tuple[int, bytes]]:
        """Key and digest of each blob in the order of their creation. The key is its number, from 1."""
        with self._open_lock():
            return list(enumerate(self._events.blobs, start=1))[max(after, 0) :][:limit]

    def record_blobs(self, stream: str, digests: Collection[bytes]) -> dict[bytes, bytes]:
        """The bytes of records with these digests."""
        del stream
        with self._open_lock():
            stored = self._events.record_blobs
            return {digest: stored[digest] for digest in digests if digest in stored}

    def unused_record_blobs(self, limit: int) -> list[bytes]:
        """The digests of bytes that no record has."""
        with self._open_lock():
            return self._events.unused_record_blobs()[:limit]

    def draft(self, stream: str) -> Draft | None:
        """The part of an answer that was stored last for the stream."""
        with self._open_lock():
            return self._events.drafts.get(stream)

    def lease(self, stream: str) -> Lease | None:
        """The lease of a stream."""
        with self._open_lock():
            return self._events.lease(stream)

    def shredded(self) -> int:
        """How many rows were ever shredded."""
        with self._open_lock():
            return self._events.shredded

    def entries(self, stream: str) -> set[tuple[int, int]]:
        """The number and the version of each entry of a stream in the index."""
        with self._open_lock():
            return self._events.entries(stream)

    def keys(self, stream: str) -> list[StoredKey]:
        """The idempotency keys of a stream."""
        with self._open_lock():
            return self._events.keys(stream)

    def tag(self) -> str:
        """A random tag: the store ends with the process."""
        return self._tag

    def runs(self) -> list[tuple[str, str, str]]:
        """The leases and drafts."""
        with self._open_lock():
            leases = [("lease", lease.stream, lease.holder) for lease in self._events.leases.values()]
            return leases + [("draft", draft.stream, draft.run_id) for draft in self._events.drafts.values()]

    def foreign(self) -> list[str]:
        """Always empty: the memory of the process cannot be tampered with."""
        return []

    def erase(self) -> int | None:
        """Nothing: a shredded row leaves nothing behind."""
        with self._open_lock():
            return None

    def listen(  # type: ignore[override] # the name of Clew's port
        self, wake: Callable[[], None], of: str = ""
    ) -> Callable[[], None]:
        """Call ``wake`` after commits of events."""
        return self._commit_listeners.listen(wake, of)

    def close(self) -> None:
        """Write what was submitted; later calls raise ClosedError."""
        self._queue.close()
        self._closed = True
        self._commit_listeners.close()
        process_forks.unwatch(self)

    # Reading: the library's

    def own_events(
        self, stream: str, after: int, upto: int, limit: int, *, backwards: bool
    ) -> Iterable[tuple[int, str, bytes]]:
        """A stream's own events in version order."""
        with self._open_lock():
            rows = self._events.own(stream, after, upto)
        if backwards:
            rows.reverse()
        return [(row.version, row.type, row.state) for row in rows[:limit]]

    def events_in_order(
        self, after: int, upto: int, limit: int, types: Sequence[str]
    ) -> Iterable[tuple[int, str, int, str, bytes]]:
        """Events in position order."""
        with self._open_lock():
            rows = self._events.rows[max(after, 0) : max(upto, 0)]
        events = (row[:5] for row in rows if not types or row.type in types)
        return islice(events, min(limit, sys.maxsize))

    def originator_id(self, stream: str) -> UUID | str:
        """The library's id of an existing stream."""
        return self._events.originator_id(stream)

    def _open_lock(self) -> AbstractContextManager[object]:
        if self._closed:
            raise ClosedError("The store is closed: nothing can be read. Open it again.")
        return self._database_lock

    # Forking of the process

    def before_fork(self) -> None:
        """Wait until no thread changes the data."""
        self._locked_for_fork = self._database_lock.acquire(timeout=process_forks.WAIT_SECONDS)

    def after_fork_in_parent(self) -> None:
        """Continue."""
        if self._locked_for_fork:
            self._database_lock.release()

    def after_fork_in_child(self) -> None:
        """Start a new queue, on a copy of the events."""
        self._database_lock = RLock()
        self._commit_listeners.restart()
        self._queue.restart()
