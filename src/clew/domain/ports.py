"""The port through which the service reads and writes the log, and what passes through it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol

from clew.domain.control import Control
from clew.domain.events import Event
from clew.domain.projection import Recorded, Unreadable

NOTHING: Mapping[str, Any] = MappingProxyType({})
"""No entries, whatever of."""


class StreamInfo(NamedTuple):
    """A stream as the store knows it; ``key`` grows in the order in which streams were made."""

    key: int
    name: str
    parent: str | None
    cut: int | None


class Row(NamedTuple):
    """One stored event as it lies in the store."""

    position: int
    stream: str
    version: int
    type: str
    state: bytes
    """The stored bytes; of a shredded row, the stub."""
    hash: bytes
    digest: bytes | None
    """None, or of a shredded row the SHA-256 of the bytes that were there."""


@dataclass(frozen=True, slots=True)
class Fork:
    """Where a stream that an append begins leaves its parent."""

    parent: str
    cut: int


@dataclass(frozen=True, slots=True)
class Shred:
    """Replace the stored bytes of one row by their digest and a stub, in the transaction of an append."""

    stream: str
    version: int
    digest: bytes
    """The SHA-256 of the bytes that are to go: another digest there is a conflict."""
    stub: bytes


@dataclass(frozen=True, slots=True)
class Key:
    """An idempotency key: ``content`` is what the key stands for; the store keeps a salted digest of it."""

    stream: str
    key: str
    content: bytes


class Blob(NamedTuple):
    """Bytes that events name by digest: ``definition`` marks what an agent is made of, ``content`` user content."""

    digest: bytes
    """The SHA-256 of ``data``."""
    kind: Literal["definition", "content"]
    data: bytes


class Lease(NamedTuple):
    """Who runs on a stream, and until when unless it is renewed (microseconds since 1970)."""

    stream: str
    holder: str
    until: int


class Claim(NamedTuple):
    """Take a stream's lease, or keep it, or with ``until`` 0 let go of it.

    It is refused with RunInProgressError when somebody else's has not run out ``now``. To let go of what one does not
    hold does nothing. One that only ``renews`` is refused with RunTakenOverError when the lease is not the holder's any
    more, though nobody else may have it.
    """

    stream: str
    holder: str
    now: int
    until: int
    renews: bool = False


class Draft(NamedTuple):
    """The part of an answer that has arrived so far; None takes it away. A stream has one at most."""

    stream: str
    run_id: str
    data: bytes | None


class Appended(NamedTuple):
    """The outcome of an append: a position and a hash for each event, in the order in which they were given."""

    positions: tuple[int, ...]
    hashes: tuple[bytes, ...]
    versions: tuple[int, ...]
    repeated: bool = False
    """True when the idempotency key was there: these are then the positions, hashes and versions of the first time."""


class Write(NamedTuple):
    """Everything that one append writes, all of it or nothing.

    ``previous`` is, by stream, the hash of the event that the append was decided on: if another one stands there, or
    none, it is a conflict, though the versions may fit. For a stream that the append begins it is what its first event
    will be linked to. ``controls`` are snapshots with their streams, as many as the append passes, without heads.
    ``blobs`` that are there already stay as they are. ``claims`` and ``drafts`` lie beside the chain, and may come
    without events.
    """

    events: Sequence[Event]
    previous: Mapping[str, bytes]
    forks: Mapping[str, Fork] = NOTHING
    shreds: Sequence[Shred] = ()
    controls: Sequence[tuple[str, Control]] = ()
    key: Key | None = None
    blobs: Sequence[Blob] = ()
    claims: Sequence[Claim] = ()
    drafts: Sequence[Draft] = ()


class Restore(NamedTuple):
    """Rows of another store that one append writes as they are, all of them or none; their positions are new.

    Every hash was checked against the row before it: ``previous`` is, by stream, the hash that the first of its rows
    here is linked to. ``controls`` are snapshots with their streams, of what was there before.
    """

    rows: Sequence[Row]
    previous: Mapping[str, bytes]
    forks: Mapping[str, Fork] = NOTHING
    shreds: Sequence[Shred] = ()
    controls: Sequence[tuple[str, Control]] = ()


class Submitted(NamedTuple):
    """An append on its way: its outcome, and the hash that each stream's head will have if it is written."""

    outcome: Future[Appended]
    heads: Mapping[str, bytes]


class Redactable(NamedTuple):
    """What it takes to shred a row: the digest of its bytes, and the stub that will stand in their place."""

    digest: bytes
    stub: bytes


class Verdict(NamedTuple):
    """What verification found: how much was looked at, and the first thing that is wrong."""

    threads: int
    events: int
    first_bad: Fault | None


class Fault(NamedTuple):
    """An event that is not as it was written."""

    thread_id: str
    version: int
    reason: str


class EventLog(Protocol):
    """An append-only log of events in streams that fork."""

    def submit(self, write: Write) -> Submitted:
        """Hand an append to the writer; the outcome can be cancelled until the writer has taken it.

        It fails with ConflictError, IdempotencyKeyReusedError, ClosedError or StoreUnavailableError; then nothing of it
        is stored. Raises InvalidContentError at once for an event of more than 16 MiB.
        """
        ...

    def restore(self, restore: Restore) -> Future[Appended]:
        """Hand rows of another store to the writer; fails as an append does."""
        ...

    def rows_after(self, position: int, limit: int, prefix: str) -> list[Row]:
        """Rows as they lie in the store, in position order, of streams whose name begins with ``prefix``."""
        ...

    def own_rows(self, stream: str, *, after: int, limit: int) -> list[Row]:
        """Rows of the stream's own as they lie in the store, in version order, ``after`` < version."""
        ...

    def stream(self, name: str) -> StreamInfo | None:
        """One stream, None when there is none of that name."""
        ...

    def repeated(self, key: Key) -> Appended | None:
        """The first outcome of an append with this key, None if there was none; IdempotencyKeyReusedError."""
        ...

    def lineage(self, stream: str, *, after: int = 0, upto: int | None = None) -> list[Event]:
        """A stream's events and its ancestors' up to each cut, in version order, ``after`` < version ≤ ``upto``."""
        ...

    def events_after(self, position: int, limit: int, prefix: str) -> list[Event]:
        """Events in position order, ``after`` < position, of streams whose name begins with ``prefix``."""
        ...

    def recorded_after(self, position: int, limit: int) -> Sequence[Recorded | Unreadable]:
        """Events of all tenants as projections see them, in position order, ``after`` < position."""
        ...

    def recorded_of(self, stream: str, after: int, limit: int) -> list[Recorded | Unreadable]:
        """Events of one stream's own as projections see them, in version order, ``after`` < version."""
        ...

    def recorded_at(self, positions: Sequence[int]) -> list[Recorded | Unreadable]:
        """The events at these positions as projections see them, in position order; without those not there."""
        ...

    def position_of(self, stream: str, version: int) -> int | None:
        """The position of a row of the stream's own, None if it is not there."""
        ...

    def last_position(self) -> int:
        """The highest position that readers may see, 0 for an empty log."""
        ...

    def newest_position(self) -> int:
        """The highest position that readers may see or that this process has appended, whichever is higher."""
        ...

    def may_fill(self) -> bool:
        """Whether tables can be filled from this log by who has it open.

        Not so on a standby, which only reads, and where one tenant's events alone can be seen.
        """
        ...

    def is_bound(self) -> bool:
        """Whether one tenant's events alone can be seen by who has it open: then nothing is filled from it either."""
        ...

    def is_served(self) -> bool:
        """Whether a server reads it, which does so while something else is done here."""
        ...

    def count_after(self, position: int, limit: int) -> int:
        """How many events come after a position of those that readers may see, ``limit`` at the most."""
        ...

    def streams(self, *, prefix: str, after: int = 0, limit: int) -> list[StreamInfo]:
        """Streams in the order in which they were made, ``after`` < key."""
        ...

    def forks(self, stream: str) -> list[StreamInfo]:
        """The streams whose parent is this one, in the order in which they were made."""
        ...

    def control(self, stream: str, upto: int | None = None) -> Control:
        """The control of a thread at a version, from the newest snapshot and what came after it."""
        ...

    def redactable(self, stream: str, version: int) -> Redactable | None:
        """What it takes to shred a row of the stream's own, None when it is shredded already."""
        ...

    def blob(self, digest: bytes) -> Blob | None:
        """The blob of that digest, None when it is not there. Raises CorruptEventError when its bytes are others."""
        ...

    def lease(self, stream: str) -> Lease | None:
        """The lease of a stream as it was last taken, also when it has run out; None when it was let go of."""
        ...

    def draft(self, stream: str) -> Draft | None:
        """The part of an answer that a run on the stream had received when it last wrote it down."""
        ...

    def shredded(self) -> int:
        """How many rows were ever shredded: a cache of decoded events holds only while it stands still."""
        ...

    def verify(self, stream: str | None = None) -> Verdict:
        """Recompute the chain of one stream and its ancestors, or of the whole store."""
        ...

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call ``wake`` after every commit, of this process or another; returns the function that ends it."""
        ...

    def close(self) -> None:
        """Write what was submitted, then let go of everything; later calls raise ClosedError."""
        ...
