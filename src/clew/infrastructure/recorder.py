"""What every event store of Clew's does, on stored bytes: the port that one contract suite holds them to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from eventsourcing.persistence import IntegrityError, StoredEvent, Tracking

from clew.domain.errors import ConflictError
from clew.domain.ports import (
    NOTHING,
    Appended,
    Blob,
    Claim,
    Draft,
    Fork,
    Key,
    Lease,
    Row,
    Shred,
    StreamInfo,
)

__all__ = [
    "Append",
    "Appended",
    "Blob",
    "Claim",
    "Draft",
    "Fork",
    "Key",
    "Lease",
    "NewEvent",
    "RecordedConflictError",
    "Recorder",
    "Row",
    "Shred",
    "Snapshot",
    "StreamInfo",
]

PAGE_BYTES = 1 << 24
"""Of the states of what is read together: then a page ends, however few its events are."""


def page(rows: Iterable[Row]) -> list[Row]:
    """The first of these rows, as many as make up a page."""
    found: list[Row] = []
    size = 0
    for row in rows:
        found.append(row)
        size += _size(row)
        if size >= PAGE_BYTES:
            break
    return found


def is_full(rows: Iterable[Row]) -> bool:
    """Whether it is for their size that no more rows are in a page."""
    return sum(map(_size, rows)) >= PAGE_BYTES


def _size(row: Row) -> int:
    # In a file that somebody changed it may be anything.
    return len(row.state) if isinstance(row.state, bytes) else 0


class RecordedConflictError(ConflictError, IntegrityError):
    """The conflict that the recorders raise: Clew's own, and the library's for applications of the library's."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A droppable snapshot of the small state that decisions need, outside the chain."""

    stream: str
    version: int
    state: bytes


class NewEvent(NamedTuple):
    """What the library's StoredEvent is, by the same names: a tuple is made in half of the time."""

    originator_id: str
    originator_version: int
    topic: str
    state: bytes


class Append(NamedTuple):
    """Everything that one append writes, all of it or nothing.

    ``previous`` is, by stream, the hash that its head must have: versions alone would let an append follow another
    event than the one that it was decided on. A stream that is not named there is checked by its version only.
    ``links`` are the hashes of the events, linked to ``previous``, from those who have computed them: many threads can
    do that, and the writer is one.
    ``digests`` come with the events of another store: of one whose bytes were shredded there, so that its state is a
    stub, the digest of those bytes, else None. It is stored as a shredded row, and counts as one.

    ``blobs``, ``claims`` and ``drafts`` may come without events; then ``previous`` is not asked. Claims are decided in
    their order, after those of the appends before. A stream that is claimed, or has a draft, must be there or begin in
    this append; to let go of one that is not there, or to take away its draft, does nothing.
    """

    events: Sequence[StoredEvent | NewEvent]
    forks: Mapping[str, Fork] = NOTHING
    shreds: Sequence[Shred] = ()
    snapshots: Sequence[Snapshot] = ()
    key: Key | None = None
    tracking: Tracking | None = None
    previous: Mapping[str, bytes] = NOTHING
    links: Sequence[bytes] = ()
    digests: Sequence[bytes | None] = ()
    blobs: Sequence[Blob] = ()
    claims: Sequence[Claim] = ()
    drafts: Sequence[Draft] = ()


class Recorder(Protocol):
    """An event store on stored bytes."""

    def submit(self, append: Append) -> Future[Appended]:
        """Hand an append to the writer; the future can be cancelled until the writer has taken it.

        Fails with RecordedConflictError (a stream is not where the append says: an event's version must be its
        stream's head + 1; a stream without events may start at 0 or 1, a fork at its cut + 1; or its head has another
        hash), RunInProgressError (it claims what somebody else holds), RunTakenOverError (it renews what it does not
        hold), IdempotencyKeyReusedError, ClosedError or StoreUnavailableError; then nothing of it is stored.
        """
        ...

    def repeated(self, key: Key) -> Appended | None:
        """The first outcome of an append with this key, None if there was none; IdempotencyKeyReusedError."""
        ...

    def lineage(self, stream: str, *, after: int = -1, upto: int | None = None) -> list[Row]:
        """The rows of a stream and of its ancestors up to each cut, in version order, ``after`` < version ≤ ``upto``.

        One query, whatever the depth. Empty when there is no such stream.
        """
        ...

    def own_rows(self, stream: str, *, after: int = -1, limit: int) -> list[Row]:
        """The rows that lie under the stream itself, in version order: what verification walks.

        They are ``limit`` at the most, and fewer where they are large: there are no more when there are none.
        """
        ...

    def rows(self, *, after: int, limit: int, prefix: str = "") -> list[Row]:
        """Rows in position order, ``after`` < position, of streams whose name begins with ``prefix``.

        They are ``limit`` at the most, and fewer where they are large: there are no more when there are none.
        """
        ...

    def rows_at(self, positions: Sequence[int]) -> list[Row]:
        """The rows at these positions, in position order; one that is not there is left out."""
        ...

    def last_position(self) -> int:
        """The highest position that readers may see, 0 for an empty store."""
        ...

    def newest_position(self) -> int:
        """The highest position that readers may see or that this process has appended, whichever is higher."""
        ...

    def may_fill(self) -> bool:
        """Whether tables can be filled beside it: not so on a standby, nor where one tenant's rows alone are seen."""
        ...

    def is_bound(self) -> bool:
        """Whether one tenant's rows alone can be seen."""
        ...

    def is_served(self) -> bool:
        """Whether a server does the reading, beside what this process does meanwhile."""
        ...

    def count_after(self, position: int, limit: int) -> int:
        """How many rows come after a position of those that readers may see, ``limit`` at the most."""
        ...

    def streams(self, *, prefix: str = "", after: int = 0, limit: int) -> list[StreamInfo]:
        """Streams in the order in which they were made, ``after`` < key."""
        ...

    def stream(self, name: str) -> StreamInfo | None:
        """One stream, None when there is none of that name."""
        ...

    def forks(self, stream: str) -> list[StreamInfo]:
        """The streams whose parent is this one, in the order in which they were made."""
        ...

    def orphans(self, limit: int) -> list[tuple[int, int]]:
        """Stream key and version of rows whose stream is not in the table of streams, or whose version is below 0.

        Only tampering makes any.
        """
        ...

    def snapshot(self, stream: str, upto: int | None = None) -> Snapshot | None:
        """The newest snapshot along the lineage at a version ≤ ``upto``."""
        ...

    def blob(self, digest: bytes, key: int | None = None) -> Blob | None:
        """The blob of that digest as it lies in the store, None when it is not there.

        Of a store that keeps one for each tenant it is the tenant's that the store was opened for, or with a ``key``
        the one that came with it.
        """
        ...

    def blobs(self, *, after: int = 0, limit: int) -> list[tuple[int, bytes]]:
        """Key and digest of each blob in the order in which they came, ``after`` < key."""
        ...

    def lease(self, stream: str) -> Lease | None:
        """The lease of a stream as it was last taken, also when it has run out; None when it was let go of."""
        ...

    def draft(self, stream: str) -> Draft | None:
        """The part of an answer that was last written down for the stream, None when there is none."""
        ...

    def shredded(self) -> int:
        """How many rows were ever shredded, or came shredded.

        A cache of decoded events holds only while it stands still.
        """
        ...

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call ``wake`` after every commit, of this process or another; returns the function that ends it.

        ``wake`` is called from a thread that writes or polls, must return at once, and may be called without need.
        """
        ...

    def close(self) -> None:
        """Write what was submitted, then let go of everything; later calls raise ClosedError."""
        ...
