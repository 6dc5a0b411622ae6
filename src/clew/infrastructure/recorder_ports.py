"""The ports of an event store on stored bytes. One contract suite tests every store against them.

A store implements `Recorder`. Callers take only the part that they use: `Appends` to write, `Streams` to read one
stream, `PositionOrder` to read all streams in order, `SideTables` for what is stored next to the chain.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, get_type_hints

from eventsourcing.persistence import IntegrityError, StoredEvent, Tracking
from pydantic import ConfigDict, TypeAdapter, ValidationError

from clew.domain.decider_state import Control, without_checkpoints
from clew.domain.errors import ConflictError
from clew.domain.ports import (
    NOTHING,
    Appended,
    Blob,
    Claim,
    Draft,
    FoldState,
    Forget,
    Fork,
    Key,
    Lease,
    Row,
    Shred,
    StreamInfo,
)

HIGHEST = 2**63 - 1
"""The highest version, position, time and limit: stores have integers of 64 bits."""

PAGE_BYTES = 1 << 24
"""A page ends when the states in it have this many bytes in total."""

SNAPSHOT_FORMAT = b"5"
"""The first byte of a stored control. A snapshot with another one has another shape and is not used."""

_CONTROL_SHAPE: Any = tuple[tuple(get_type_hints(Control).values())[:-1]]  # type: ignore[misc]  # an item for each field
_CONTROL: TypeAdapter[Any] = TypeAdapter(_CONTROL_SHAPE, config=ConfigDict(ser_json_bytes="hex", val_json_bytes="hex"))


def page(rows: Iterable[Row]) -> list[Row]:
    """The first of these rows, up to the size of a page."""
    first_rows: list[Row] = []
    size = 0
    for row in rows:
        first_rows.append(row)
        size += _size(row)
        if size >= PAGE_BYTES:
            break
    return first_rows


def is_full(rows: Iterable[Row]) -> bool:
    """Whether the size of the rows ends the page."""
    return sum(map(_size, rows)) >= PAGE_BYTES


def _size(row: Row) -> int:
    # In a file that was tampered with, the state can have any type.
    return len(row.state) if isinstance(row.state, bytes) else 0


class StoredKey(NamedTuple):
    """An idempotency key: the positions of its append, its SHA-256, and whether its content is no longer known."""

    first: int
    last: int
    digest: bytes
    is_blank: bool


class RecordedConflictError(ConflictError, IntegrityError):
    """The conflict that recorders raise: Clew's error, and the library's error for applications of the library."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The control of a stream at a version. It is outside the chain and can be dropped.

    With ``shredded``, it is stored only if this is still the number of shredded rows: the state of a fork may have what
    was shredded after it was read.
    """

    stream: str
    version: int
    state: bytes
    shredded: int | None = None


def snapshot_of(stream: str, control: Control) -> Snapshot:
    """The snapshot of a thread."""
    shredded = None if control.parent_id is None else control.shredded
    return Snapshot(stream, control.version, write_control(control), shredded)


def write_control(control: Control) -> bytes:
    """The state of a snapshot: the format, then the fields of the control without checkpoints, as a JSON list.

    Without the last field, ``shredded``, which is true only for the store and the moment.
    """
    return SNAPSHOT_FORMAT + _CONTROL.dump_json(without_checkpoints(control)[:-1])


def read_control(state: bytes) -> Control | None:
    """The control in a snapshot, None if it has another format. In a damaged file it can have any type."""
    if not isinstance(state, bytes) or not state.startswith(SNAPSHOT_FORMAT):
        return None
    try:
        return Control(*_CONTROL.validate_json(state[len(SNAPSHOT_FORMAT) :]))
    except ValidationError:
        return None


class IndexEntry(NamedTuple):
    """A row that is found under a number. The index is outside the chain."""

    stream: str
    number: int
    version: int


class NewEvent(NamedTuple):
    """The library's StoredEvent with the same field names, as a tuple, which takes half the time to make."""

    originator_id: str
    originator_version: int
    topic: str
    state: bytes


class Append(NamedTuple):
    """Everything that one append writes: all of it or nothing.

    ``previous`` maps a stream to the hash that its head must have. Versions alone would let an append follow another
    event than the one that it was decided on. A stream that is not in ``previous`` is checked by its version only.
    ``links`` are the hashes of the events, linked to ``previous``. Callers compute them in many threads, because the
    writer is one thread. ``digests`` come with the events of another store. An event that was shredded there has a stub
    as its state, and here the digest of its original bytes; other events have None. A shredded event is stored and
    counted as a shredded row.

    ``entries`` are those of its events in the index. A shredded row loses the numbers that its ``Shred`` names.

    ``record_blobs`` are the bytes next to its events, of records and of media in messages. Equal bytes are stored once.
    A ``Shred`` of the last event that has them destroys them.

    ``blobs``, ``claims``, ``drafts`` and ``folds`` may come without events; then ``previous`` is not checked. Claims
    are decided in their order, after those of earlier appends. A stream that is claimed, or has a draft, must exist or
    begin in this append. Releasing a stream that does not exist, or removing its draft, does nothing.
    """

    events: Sequence[StoredEvent | NewEvent]
    forks: Mapping[str, Fork] = NOTHING
    shreds: Sequence[Shred] = ()
    forgets: Sequence[Forget] = ()
    snapshots: Sequence[Snapshot] = ()
    key: Key | None = None
    tracking: Tracking | None = None
    previous: Mapping[str, bytes] = NOTHING
    links: Sequence[bytes] = ()
    digests: Sequence[bytes | None] = ()
    blobs: Sequence[Blob] = ()
    claims: Sequence[Claim] = ()
    drafts: Sequence[Draft] = ()
    entries: Sequence[IndexEntry] = ()
    folds: Sequence[FoldState] = ()
    record_blobs: Sequence[Blob] = ()


class Appends(Protocol):
    """Write. An append is stored as a whole or not at all; once its future has a result it survives a crash.

    Appends to one stream are serialized: an event's version must be its stream's head + 1. A stream without events
    starts at 0 or 1, a fork at its cut + 1.
    """

    def submit(self, append: Append) -> Future[Appended]:
        """Pass an append to the writer. The future can be cancelled until the writer has started with it.

        Fails with RecordedConflictError (a version or a hash is not the stream's next one), RunInProgressError (it
        claims a lease that another holder has), RunTakenOverError (it renews a lease that it does not hold),
        IdempotencyKeyReusedError, ClosedError or StoreUnavailableError. Then nothing of it is stored.
        """
        ...

    def enqueue(self, append: Append) -> Future[Appended]:
        """Like ``submit``, for a caller that next calls ``result()`` of the future, or adds a callback.

        ``result()`` without a timeout writes the append in the calling thread if it can. Without either of these calls,
        a later append or ``close`` writes it.
        """
        ...

    def repeated(self, key: Key) -> Appended | None:
        """The first outcome of an append with this key, None if there is none. Raises IdempotencyKeyReusedError."""
        ...


class Streams(Protocol):
    """Read one stream. A read sees every append whose future had a result when the read began."""

    def lineage(
        self, stream: str, *, after: int = -1, upto: int | None = None, types: Collection[str] | None = None
    ) -> list[Row]:
        """The rows of a stream and of its ancestors up to each cut, in version order, ``after`` < version ≤ ``upto``.

        With ``types`` only rows of these types. One query at any depth. Empty when the stream does not exist.
        """
        ...

    def indexed(self, stream: str, number: int, *, after: int, upto: int, limit: int) -> list[Row]:
        """The newest rows of the lineage under a number of the index, newest first, ``after`` < version ≤ ``upto``.

        At most ``limit``. One query, which reads no other rows.
        """
        ...

    def own_rows(self, stream: str, *, after: int = -1, limit: int) -> list[Row]:
        """The rows of the stream itself, in version order: what verification reads.

        At most ``limit``, and fewer when they are large. Only an empty page is the end.
        """
        ...

    def snapshot(self, stream: str, upto: int | None = None) -> Snapshot | None:
        """The newest snapshot along the lineage at a version ≤ ``upto``."""
        ...

    def stream(self, name: str) -> StreamInfo | None:
        """The stream of that name, None if there is none."""
        ...

    def existing(self, names: Sequence[str]) -> set[str]:
        """Those of the names that a stream has. A query for hundreds of names."""
        ...

    def streams(self, *, prefix: str = "", after: int = 0, limit: int) -> list[StreamInfo]:
        """Streams in the order of their creation, ``after`` < key."""
        ...

    def forks(self, stream: str, *, cut: int = 0, limit: int | None = None) -> list[StreamInfo]:
        """The streams whose parent is this one, in the order of their creation.

        With ``cut`` only those that were cut at this version or later; the first ``limit`` of them.
        """
        ...

    def orphans(self, limit: int) -> list[tuple[int, int]]:
        """Stream key and version of rows without a stream, or with a version below 0. Only tampering makes any."""
        ...


class PositionOrder(Protocol):
    """Read all streams in one order. A position is unique, and no event appears later below one that was read."""

    def rows(self, *, after: int, limit: int, prefix: str = "", upto: int | None = None) -> list[Row]:
        """Rows in position order, ``after`` < position ≤ ``upto``, of streams whose name begins with ``prefix``.

        At most ``limit``, and fewer when they are large. Only an empty page is the end.
        """
        ...

    def rows_at(self, positions: Sequence[int]) -> list[Row]:
        """The rows at these positions, in position order, without those that do not exist."""
        ...

    def last_position(self) -> int:
        """The highest position that readers see, 0 for an empty store."""
        ...

    def newest_position(self) -> int:
        """The highest position that readers see or that this process has appended, whichever is higher."""
        ...

    def count_after(self, position: int, limit: int) -> int:
        """How many visible rows come after a position, counted up to ``limit``."""
        ...

    def listen(self, wake: Callable[[], None], of: str = "") -> Callable[[], None]:
        """Call ``wake`` after commits of events, of this process or another. Returns the function that ends it.

        ``of`` is the name of a stream, the start of names up to a slash (``acme/`` or ``acme/thread/``), or "" for
        every stream. A thread that writes or polls calls ``wake``, sometimes without a new event, and once for several
        commits. ``wake`` must return at once. A caller that reads after the call of ``listen``, and again after each
        call of ``wake``, misses nothing.
        """
        ...

    def may_fill(self) -> bool:
        """Whether projections can be filled: not on a standby, and not if only one tenant's rows are visible."""
        ...

    def is_bound(self) -> bool:
        """Whether only one tenant's rows are visible."""
        ...

    def is_served(self) -> bool:
        """Whether a server executes the reads, so that this process can do something else meanwhile."""
        ...


class SideTables(Protocol):
    """Read what is stored next to the chain: written in the transaction of an append, and in no hash."""

    def blob(self, digest: bytes, key: int | None = None) -> Blob | None:
        """The blob with that digest as it is stored, None if there is none.

        In a store with a blob for each tenant: the blob of the tenant that the store was opened for, or with ``key``
        the blob of that key.
        """
        ...

    def blobs(self, *, after: int = 0, limit: int) -> list[tuple[int, bytes]]:
        """Key and digest of each blob in the order of their creation, ``after`` < key."""
        ...

    def record_blobs(self, stream: str, digests: Collection[bytes]) -> dict[bytes, bytes]:
        """The bytes next to events with these digests, as they are stored for the tenant of a stream; one query."""
        ...

    def unused_record_blobs(self, limit: int) -> list[bytes]:
        """The digests of bytes that no event has. Only tampering leaves any."""
        ...

    def lease(self, stream: str) -> Lease | None:
        """The lease of a stream, even if it has expired; None if it was released."""
        ...

    def draft(self, stream: str) -> Draft | None:
        """The part of an answer that was stored last for the stream, None if there is none."""
        ...

    def fold_state(self, stream: str, name: str, upto: int) -> tuple[int, bytes] | None:
        """The newest stored state of a fold along the lineage at a version ≤ ``upto``: its version, and its bytes."""
        ...

    def shredded(self) -> int:
        """How many rows were ever shredded, or imported as shredded. Caches of events are valid until it changes."""
        ...

    def entries(self, stream: str) -> set[tuple[int, int]]:
        """The number and the version of each of a stream's own entries in the index."""
        ...

    def keys(self, stream: str) -> list[StoredKey]:
        """The idempotency keys of a stream, in the order of their appends."""
        ...

    def tag(self) -> str:
        """Eight characters that tell this store from others. Copies of it have the same."""
        ...

    def runs(self) -> list[tuple[str, str, str]]:
        """The leases and drafts: ``lease`` or ``draft``, the stream, and the holder or the run."""
        ...

    def foreign(self) -> list[str]:
        """What acts on Clew's tables and was not made by Clew, such as triggers; and indexes that are missing."""
        ...

    def erase(self) -> int | None:
        """Remove what shredded rows have left in the files. None when nothing is left.

        Otherwise another program reads an older state of the store, and the result is a position: appends before it
        shredded nothing that is left.
        """
        ...


class Recorder(Appends, Streams, PositionOrder, SideTables, Protocol):
    """An event store on stored bytes. After ``os.fork`` a child starts with new threads and connections."""

    def close(self) -> None:
        """Write what was submitted, then release everything. Later calls raise ClosedError."""
        ...
