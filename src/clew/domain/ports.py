"""The ports through which the service reads and writes the event log, and the values that they exchange."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol

from clew.domain.decider_state import Control
from clew.domain.events import Event
from clew.domain.history import HistoryMessage
from clew.domain.projection import Recorded, Unreadable
from clew.domain.streams import digest, link

NOTHING: Mapping[str, Any] = MappingProxyType({})
"""An empty mapping of any type."""


class StreamInfo(NamedTuple):
    """A stream in the store; ``key`` grows in the order of creation."""

    key: int
    name: str
    parent: str | None
    cut: int | None

    @property
    def fork(self) -> Fork | None:
        """The fork point, None for a stream that is not a fork."""
        return None if self.parent is None or self.cut is None else Fork(self.parent, self.cut)


class Row(NamedTuple):
    """One event as it is stored."""

    position: int
    stream: str
    version: int
    type: str
    state: bytes
    """The stored bytes; of a shredded row, the stub."""
    hash: bytes
    digest: bytes | None
    """The SHA-256 of the original bytes if the row is shredded; None for any other row."""

    @property
    def content_digest(self) -> bytes:
        """The SHA-256 of the original bytes, whether they were shredded or not."""
        return digest(self.state) if self.digest is None else self.digest

    def follows(self, previous: bytes) -> bool:
        """Whether the hash of the row is correct for its content and the hash before it."""
        return self.hash == link(previous, self.stream, self.version, self.type, self.content_digest)


@dataclass(frozen=True, slots=True)
class Fork:
    """The fork point of a new stream: its parent, and the last version that it shares with it."""

    parent: str
    cut: int


@dataclass(frozen=True, slots=True)
class Shred:
    """Replace the stored bytes of one row by their digest and a stub, in the transaction of an append."""

    stream: str
    version: int
    digest: bytes
    """The SHA-256 of the bytes to shred. Another digest in the store is a conflict."""
    stub: bytes
    numbers: tuple[int, ...] = ()
    """The numbers in the index that the row loses."""
    blobs: tuple[bytes, ...] = ()
    """The digests of the bytes next to the row. They are destroyed, too, unless another event has them."""


@dataclass(frozen=True, slots=True)
class Forget:
    """Drop the snapshots of a stream and of its forks, and if ``keys`` its idempotency keys.

    With ``unforked_from``, a fork of the stream at this version or a later one is a conflict.
    """

    stream: str
    keys: bool = False
    unforked_from: int | None = None


@dataclass(frozen=True, slots=True)
class Key:
    """An idempotency key. The store keeps a salted digest of ``content``, the content of the append with the key.

    With an empty content, a key asks for the append with any content.
    """

    stream: str
    key: str
    content: bytes

    @property
    def digest(self) -> bytes:
        """The SHA-256 of the key, which stores hold in its place: a key can contain words of a user."""
        return digest(self.key.encode())


class Blob(NamedTuple):
    """Bytes that events refer to by digest.

    ``definition`` for parts of an agent, ``content`` for user content, ``record`` for the bytes next to an event, of a
    record or of media in a message, which are stored apart from the others, because they can be destroyed.
    """

    digest: bytes
    """The SHA-256 of ``data``."""
    kind: Literal["definition", "content", "record"]
    data: bytes


class Lease(NamedTuple):
    """The holder that executes a run on a stream, and when the lease expires (microseconds since 1970)."""

    stream: str
    holder: str
    until: int


class Claim(NamedTuple):
    """Take a stream's lease, extend it, or with ``until`` 0 release it.

    Fails with RunInProgressError when another holder's lease has not expired at ``now``. Releasing a lease that the
    holder does not have does nothing. A claim that only ``renews`` fails with RunTakenOverError when the holder no
    longer has the lease, even if no other holder has it. A claim that has expired when it is made (``until`` is not
    after ``now``), and does not renew, changes nothing while anybody's lease has not expired.
    """

    stream: str
    holder: str
    now: int
    until: int
    renews: bool = False


class Draft(NamedTuple):
    """The part of an answer that has arrived so far; None removes it. A stream has at most one."""

    stream: str
    run_id: str
    data: bytes | None


class FoldState(NamedTuple):
    """The state of an application's fold at a version of a stream, as bytes. It is outside the chain.

    It can be dropped at any time.
    A store keeps it only if ``shredded`` is still the number of shredded rows: otherwise it may hold what was redacted
    after its events were read. It keeps the newest state of a fold for each ``slot``, and drops the states from a
    shredded row on, also those of forks.
    """

    stream: str
    name: str
    """The name of the fold."""
    version: int
    slot: int
    state: bytes
    shredded: int


class Appended(NamedTuple):
    """The outcome of an append: a position, a hash and a version for each event, in the order of the events."""

    positions: tuple[int, ...]
    hashes: tuple[bytes, ...]
    versions: tuple[int, ...]
    repeated: bool = False
    """True when the idempotency key was used before. The outcome is then that of the first append."""


class Restore(NamedTuple):
    """Rows of another store that one append writes unchanged, all of them or none. They get new positions.

    The caller has checked every hash against the row before it. ``previous`` maps a stream to the hash to which the
    first of these rows is linked. ``controls`` are snapshots with their streams. ``record_blobs`` are the bytes
    next to the rows that are not shredded.
    """

    rows: Sequence[Row]
    previous: Mapping[str, bytes]
    forks: Mapping[str, Fork] = NOTHING
    shreds: Sequence[Shred] = ()
    controls: Sequence[tuple[str, Control]] = ()
    forgets: Sequence[Forget] = ()
    record_blobs: Sequence[Blob] = ()


class Write(NamedTuple):
    """The content of one append, which is written as a whole or not at all.

    ``previous`` maps a stream to the hash of the event that the append was decided on. Another hash in the store, or no
    event, is a conflict, even if the versions fit. For a new stream it is the hash to which its first event is linked.
    ``controls`` are snapshots with their streams, one for each snapshot version among the events; the log sets their
    heads. ``blobs`` that exist are not changed. ``claims``, ``drafts`` and ``folds`` are outside the chain and need no
    events. ``restored`` are rows of other streams, which are written before the events.
    """

    events: Sequence[Event]
    previous: Mapping[str, bytes]
    forks: Mapping[str, Fork] = NOTHING
    shreds: Sequence[Shred] = ()
    controls: Sequence[tuple[str, Control]] = ()
    forgets: Sequence[Forget] = ()
    key: Key | None = None
    blobs: Sequence[Blob] = ()
    claims: Sequence[Claim] = ()
    drafts: Sequence[Draft] = ()
    folds: Sequence[FoldState] = ()
    restored: Restore | None = None


class Submitted(NamedTuple):
    """A submitted append: its outcome, and the hash that each stream's head has once it is written."""

    outcome: Future[Appended]
    heads: Mapping[str, bytes]


class Cut(NamedTuple):
    """A thread at a version: the stream that holds the version (its own, or an ancestor's), and the control."""

    stream: str
    control: Control


class Redactable(NamedTuple):
    """The data to shred a row: see Shred."""

    digest: bytes
    stub: bytes
    numbers: tuple[int, ...] = ()
    blobs: tuple[bytes, ...] = ()


class Verdict(NamedTuple):
    """The result of a verification: how much was checked, and the first fault.

    A changed event comes before one that makes no sense, because the check of an event needs those before it.
    """

    threads: int
    events: int
    first_bad: IntegrityFault | None


class IntegrityFault(NamedTuple):
    """An event that is not as it was written, or that Clew would not have written.

    ``kind`` is ``changed`` if the event, or what the store derives from it, is not as it was written. It is
    ``senseless`` if the event has a correct hash, but cannot be read or makes no sense after the events before it.
    """

    thread_id: str
    version: int
    reason: str
    kind: Literal["changed", "senseless"] = "changed"


class LogWriter(Protocol):
    """Write events. An append is stored as a whole or not at all. Once its future has a result, it survives a crash."""

    def submit(self, write: Write) -> Submitted:
        """Queue an append for a caller that next waits for the outcome: ``result()`` writes it, if no thread does.

        With a callback, as asyncio uses it, another thread writes it. The outcome can be cancelled until it is begun.

        If the outcome fails with ConflictError, IdempotencyKeyReusedError, ClosedError or StoreUnavailableError,
        nothing is stored. Raises InvalidContentError at once for an event of more than 16 MiB.
        """
        ...

    def restore(self, restore: Restore) -> Future[Appended]:
        """Pass rows of another store to the writer. It can fail in the same ways as an append."""
        ...

    def repeated(self, key: Key) -> Appended | None:
        """The first outcome of an append with this key, None if there is none. Raises IdempotencyKeyReusedError."""
        ...


class ThreadReader(Protocol):
    """Read one stream. A read sees all appends whose outcomes were known when it began."""

    def control(self, stream: str, upto: int | None = None) -> Control:
        """The control of a thread at a version, from the newest snapshot and the events after it."""
        ...

    def cut(self, stream: str, upto: int | None = None) -> Cut:
        """The control of a thread at a version, and the stream that holds the version."""
        ...

    def with_checkpoints(self, stream: str, control: Control) -> Control:
        """The control of a thread with the names of all its checkpoints. One that is read may lack older names."""
        ...

    def with_checkpoint(self, stream: str, control: Control, name: str) -> Control:
        """The control of a thread with the checkpoint of a name, if the thread has one. No other names are read."""
        ...

    def lineage(
        self, stream: str, *, after: int = 0, upto: int | None = None, types: Collection[str] | None = None
    ) -> list[Event]:
        """A stream's events and its ancestors' up to each cut, in version order, ``after`` < version ≤ ``upto``.

        With ``types`` only events of these types.
        """
        ...

    def history(self, stream: str, *, after: int = 0) -> list[HistoryMessage | Event]:
        """What a history is built from: the lineage, ``after`` < version, with messages in place of their events.

        A redacted message is an event. Raises CorruptEventError, as ``lineage`` does.
        """
        ...

    def indexed(self, stream: str, number: int, *, after: int, upto: int, limit: int) -> list[Event]:
        """The newest events with a number of the index (see ``domain.record_index``), newest first, in the lineage.

        ``after`` < version ≤ ``upto``, and at most ``limit``. Other events are not read.
        """
        ...

    def with_blobs(self, events: list[Event]) -> list[Event]:
        """Events with the bytes that the store has next to them. No query for events without such bytes.

        An event that was redacted meanwhile is returned as redacted. Raises CorruptEventError for bytes that are
        missing or damaged.
        """
        ...

    def blobs_of(self, events: Sequence[Event]) -> list[tuple[Event, tuple[Blob, ...]]]:
        """Events as they are stored, each with the bytes next to it. Redactions and errors as in ``with_blobs``."""
        ...

    def whole_messages(self, stream: str, messages: Sequence[HistoryMessage]) -> tuple[HistoryMessage, ...]:
        """Messages of a stream's lineage with the bytes next to their events, as in ``with_blobs``."""
        ...

    def own_rows(self, stream: str, *, after: int, limit: int) -> list[Row]:
        """The stream's own rows as they are stored, in version order, ``after`` < version."""
        ...

    def stream(self, name: str) -> StreamInfo | None:
        """The stream of that name, None if there is none."""
        ...

    def existing(self, names: Sequence[str]) -> set[str]:
        """Those of the names that a stream has. A query for hundreds of names."""
        ...

    def streams(self, *, prefix: str, after: int = 0, limit: int) -> list[StreamInfo]:
        """Streams in the order of their creation, ``after`` < key."""
        ...

    def forks(self, stream: str, *, cut: int = 0, limit: int | None = None) -> list[StreamInfo]:
        """The streams whose parent is this one, in the order of their creation.

        With ``cut`` only those that were cut at this version or later; the first ``limit`` of them.
        """
        ...

    def position_of(self, stream: str, version: int) -> int | None:
        """The position of one of the stream's own rows, None if it does not exist."""
        ...

    def redactable(self, stream: str, version: int) -> Redactable | None:
        """The data to shred one of the stream's own rows, None if it is already shredded."""
        ...

    def redactable_rows(self, rows: Sequence[Row]) -> list[Redactable | None]:
        """The data to shred each of these rows; None for one that is shredded, or holds no text."""
        ...

    def verify(self, *streams: str) -> Verdict:
        """Recompute the chains of streams and their ancestors, each once. Without names, of the whole store."""
        ...


class EventOrder(Protocol):
    """Read all streams in one order. Positions are unique, and new events always have higher positions."""

    def events_after(self, position: int, limit: int, prefix: str) -> list[Event]:
        """Events after ``position``, in position order, of streams whose name begins with ``prefix``."""
        ...

    def rows_after(self, position: int, limit: int, prefix: str) -> list[Row]:
        """The stored rows of the same events."""
        ...

    def recorded_after(self, position: int, limit: int, upto: int | None = None) -> Sequence[Recorded | Unreadable]:
        """Events of all tenants after ``position``, up to ``upto``, as projections see them, in position order.

        A transaction of a projection store reads only up to a position that readers saw before it began: some logs
        show later events only when it has ended.
        """
        ...

    def recorded_of(self, stream: str, after: int, limit: int) -> list[Recorded | Unreadable]:
        """A stream's own events as projections see them, in version order, ``after`` < version."""
        ...

    def recorded_at(self, positions: Sequence[int]) -> list[Recorded | Unreadable]:
        """The existing events at these positions as projections see them, in position order."""
        ...

    def last_position(self) -> int:
        """The highest position that readers see, 0 for an empty log."""
        ...

    def newest_position(self) -> int:
        """The highest position that readers see or that this process has appended, whichever is higher."""
        ...

    def count_after(self, position: int, limit: int) -> int:
        """How many visible events come after a position, counted up to ``limit``."""
        ...

    def listen(self, wake: Callable[[], None], of: str = "") -> Callable[[], None]:
        """Call ``wake`` after commits of events by any process. Returns the function that stops it.

        ``of`` is the name of a stream, or the start of names up to a slash, as of all threads of a tenant; "" is every
        stream. A reader that reads after this call, and again after each call of ``wake``, misses nothing.
        """
        ...

    def may_fill(self) -> bool:
        """Whether projections can be built from this log.

        It is false on a standby, which only reads, and where only one tenant's events are visible.
        """
        ...

    def is_bound(self) -> bool:
        """Whether only one tenant's events are visible. Then no projection is built from this log."""
        ...

    def is_served(self) -> bool:
        """Whether a server executes the reads, so that this process can work on something else meanwhile."""
        ...


class SideReader(Protocol):
    """Read blobs, leases, drafts and the number of shredded rows, which are outside the hash chain."""

    def blob(self, digest: bytes) -> Blob | None:
        """The blob with that digest, None if there is none. Raises CorruptEventError when its bytes do not match."""
        ...

    def lease(self, stream: str) -> Lease | None:
        """The lease of a stream, even if it has expired; None if it was released."""
        ...

    def leased(self) -> list[str]:
        """The names of the streams with a lease, even if it has expired."""
        ...

    def draft(self, stream: str) -> Draft | None:
        """The part of an answer that a run on the stream stored last."""
        ...

    def fold_state(self, stream: str, name: str, upto: int) -> tuple[int, bytes] | None:
        """The newest stored state of a fold along the lineage at a version ≤ ``upto``: its version, and its bytes."""
        ...

    def shredded(self) -> int:
        """How many rows have been shredded so far. Caches of decoded events are valid until this number changes."""
        ...

    def erase(self) -> int | None:
        """Remove what redactions have left in the files. None when nothing is left.

        Otherwise another program still reads an older state of the store, and the result is a position: what was
        redacted before it is gone.
        """
        ...


class EventLog(LogWriter, ThreadReader, EventOrder, SideReader, Protocol):
    """An append-only log of events in streams that fork."""

    def close(self) -> None:
        """Write all submitted appends, then release all resources. Later calls raise ClosedError."""
        ...
