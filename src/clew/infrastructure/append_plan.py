"""The rules of an append, which every store applies in its writer: which event may follow, and how it is linked.

The plan is complete before anything is written, so a refused append leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from operator import itemgetter
from typing import NamedTuple, Protocol
from uuid import UUID

from clew.domain.errors import IdempotencyKeyReusedError, InvalidNameError
from clew.domain.ports import Appended, Blob, Claim, Fork, Key, Lease, Shred
from clew.domain.runs.errors import RunInProgressError, RunTakenOverError
from clew.domain.streams import ROOT, digest, link
from clew.infrastructure.recorder_ports import HIGHEST, Append, RecordedConflictError

# Plain tuples: the writer has a few microseconds for an append.
PlannedRow = tuple[str, int, str, bytes, bytes]
"""Stream, version, type, state and hash of a new row."""

KnownHead = tuple[int, bytes]
"""Version and hash of a stream's last own event."""


class StoredState(NamedTuple):
    """The stored bytes of a row, and its digest if it is shredded."""

    state: bytes
    digest: bytes | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of the first append with an idempotency key; ``digest`` is None if one of its rows is shredded."""

    salt: bytes
    digest: bytes | None
    appended: Appended

    def repeat(self, key: Key) -> Appended:
        """The outcome for a second append with the key. Raises IdempotencyKeyReusedError when the content differs.

        An empty content is not compared: it asks for any append with the key.
        """
        if key.content and self.digest is not None and content_digest(self.salt, key.content) != self.digest:
            raise IdempotencyKeyReusedError(key.stream, key.key)
        return self.appended._replace(repeated=True)


class Known(Protocol):
    """What a plan reads from the store. Earlier appends of the batch count as stored."""

    def head(self, stream: str) -> KnownHead | None:
        """Version and hash of a stream's last own event."""
        ...

    def hash_at(self, stream: str, version: int) -> bytes | None:
        """The hash of one of a stream's own rows, None if it does not exist."""
        ...

    def state_at(self, stream: str, version: int) -> StoredState | None:
        """The stored bytes of one of a stream's own rows, None if it does not exist."""
        ...

    def outcome(self, key: Key) -> Outcome | None:
        """The outcome of the key, None when it is new."""
        ...

    def lease(self, stream: str) -> Lease | None:
        """The lease of a stream, None when it was never taken or was released."""
        ...

    def has_fork(self, stream: str, cut: int) -> bool:
        """Whether a stream has a fork at this version or a later one."""
        ...


@dataclass(slots=True)
class Plan:
    """Everything that an append will write, checked."""

    append: Append
    rows: list[PlannedRow]
    """In the order of the append's events."""
    heads: dict[str, KnownHead]
    """The heads of its streams after the append."""
    began: dict[str, Fork | None]
    """The new streams of the append, in order, with the fork of each."""
    has_side_tables: bool = False
    """Whether the append has blobs, bytes of records, claims, drafts or states of folds."""
    leases: tuple[tuple[str, Lease | None], ...] = ()
    """The result of its claims: a lease that is taken or extended, None for a released one."""


def stream_name(originator_id: UUID | str) -> str:
    """The stream name of one of the library's ids: text as it is, a UUID as 32 hex digits."""
    return originator_id.hex if isinstance(originator_id, UUID) else originator_id


def content_digest(salt: bytes, content: bytes) -> bytes:
    """The SHA-256 of the content of an idempotency key. Without salt, a short content could be guessed from it."""
    return sha256(salt + content).digest()


def make_plan(append: Append, known: Known) -> Plan | Appended:
    """Check an append against what the store knows. Returns the first outcome instead when its key was used before.

    Raises RecordedConflictError, RunInProgressError, RunTakenOverError, IdempotencyKeyReusedError or InvalidNameError;
    ValueError for an append that no store could write (a key without events, a fork without its first event, links
    without the hash that they are linked to, another number of links or digests than of events, a blob with another
    digest than its own).
    """
    try:
        # The key is checked first: a caller that did not receive the outcome repeats the append with the same versions.
        if append.key is not None and (first := _first_outcome(append.key, known)) is not None:
            return first
        plan = Plan(append, [], {}, {})
        if append.claims:
            # Claims come before versions, so that the second caller gets RunInProgressError, not a version conflict.
            plan.leases = tuple(_decide_claims(append.claims, known).items())
        _plan_events(plan, known)
        if append.key is not None or append.snapshots or append.shreds:
            _check_key_snapshots_and_shreds(plan, known)
        for forget in append.forgets:
            if forget.unforked_from is not None and known.has_fork(forget.stream, forget.unforked_from):
                version = _version(known.head(forget.stream))
                raise RecordedConflictError(forget.stream, version, version)
        if append.claims or append.drafts or append.blobs or append.folds or append.record_blobs:
            _check_side_tables(plan, known)
    except UnicodeEncodeError as error:
        raise InvalidNameError(
            f"Names, types and keys must be valid Unicode; found {error.object!r}. Choose another."
        ) from None
    return plan


def _first_outcome(key: Key, known: Known) -> Appended | None:
    key.key.encode()  # raises for a lone surrogate, which not every store refuses
    first = known.outcome(key)
    return None if first is None else first.repeat(key)


def _plan_events(plan: Plan, known: Known) -> None:  # noqa: C901 - further functions would take as long as the rest
    append, count = plan.append, len(plan.append.events)
    links, digests = append.links, append.digests
    if (links and len(links) != count) or (digests and len(digests) != count):
        raise ValueError(f"An append of {count} events has {len(links)} links and {len(digests)} digests.")
    for number, event in enumerate(append.events):
        name = event.originator_id
        if not isinstance(name, str):
            name = name.hex
        version = event.originator_version
        head = plan.heads.get(name)
        if head is None:  # the first event of the stream in this append
            head = known.head(name)
            if head is None or name in append.forks:
                head = _begin(plan, name, version, head, known)
            if head[1] != append.previous.get(name, head[1]):
                # The append was decided on an event that was never stored, although the version fits.
                raise RecordedConflictError(name, version - 1, head[0])
        last, previous = head
        if version != last + 1:
            raise RecordedConflictError(name, version - 1, last)
        if links:
            if name not in append.previous:
                raise ValueError(f"The append has links for {name!r}, but not the hash that they are linked to.")
            hashed = links[number]
        else:
            shredded = digests[number] if digests else None
            hashed = link(previous, name, version, event.topic, shredded or digest(event.state))
        plan.heads[name] = version, hashed
        plan.rows.append((name, version, event.topic, event.state, hashed))
    for name in append.forks:
        if name not in plan.heads:
            raise ValueError(f"The fork {name!r} has no first event in its append.")


def _begin(plan: Plan, name: str, version: int, head: KnownHead | None, known: Known) -> KnownHead:
    """The head that the first event of a new stream follows. Raises RecordedConflictError if the stream exists."""
    if head is not None:
        raise RecordedConflictError(name, 0, head[0])
    fork = plan.began[name] = plan.append.forks.get(name)
    return version - 1, _first_link(plan, name, version, fork, known)


def _first_link(plan: Plan, name: str, version: int, fork: Fork | None, known: Known) -> bytes:
    if fork is None:
        if version not in (0, 1):
            raise RecordedConflictError(name, version - 1, 0)
        return ROOT
    if version != fork.cut + 1:
        raise RecordedConflictError(name, version - 1, fork.cut)
    for row in plan.rows:
        if row[:2] == (fork.parent, fork.cut):
            return row[4]
    parent_hash = known.hash_at(fork.parent, fork.cut)
    if parent_hash is None:
        raise RecordedConflictError(fork.parent, fork.cut, _version(known.head(fork.parent)))
    return parent_hash


def _check_key_snapshots_and_shreds(plan: Plan, known: Known) -> None:
    append = plan.append
    if append.key is not None:
        if not append.events:
            raise ValueError(f"The idempotency key {append.key.key!r} belongs to an append without events.")
        _check_stream(plan, append.key.stream, 0, known)
    for snapshot in append.snapshots:
        _check_stream(plan, snapshot.stream, snapshot.version, known)
    shredded_rows: set[tuple[str, int]] = set()
    for shred in append.shreds:
        stored = known.state_at(shred.stream, shred.version)
        address = shred.stream, shred.version
        if (
            stored is None
            or stored.digest is not None
            or address in shredded_rows
            or digest(stored.state) != shred.digest
        ):
            raise RecordedConflictError(shred.stream, shred.version, _version(known.head(shred.stream)))
        shredded_rows.add(address)


def _decide_claims(claims: Sequence[Claim], known: Known) -> dict[str, Lease | None]:
    """The results of claims, one after the other.

    Raises RunInProgressError when another holder has the lease, RunTakenOverError when the holder that renews lost it.
    """
    leases: dict[str, Lease | None] = {}
    for claim in claims:
        (claim.stream + claim.holder).encode()  # raises for a lone surrogate
        if not 0 <= claim.until <= HIGHEST:
            raise ValueError(f"The lease of {claim.stream!r} cannot last until {claim.until}: that is not a time.")
        held = leases[claim.stream] if claim.stream in leases else known.lease(claim.stream)
        mine = held is None or held.holder == claim.holder
        is_live = held is not None and held.until > claim.now
        if claim.renews and (held is None or not mine):
            raise RunTakenOverError(claim.stream, claim.holder)
        if not claim.until:
            if mine and held is not None:
                leases[claim.stream] = None
        elif is_live and claim.until <= claim.now and not claim.renews:
            pass
        elif held is None or mine or not is_live:
            leases[claim.stream] = Lease(claim.stream, claim.holder, claim.until)
        else:
            raise RunInProgressError(claim.stream, held.holder)
    return leases


def _check_side_tables(plan: Plan, known: Known) -> None:
    plan.has_side_tables = True
    append = plan.append
    required = [name for name, lease in plan.leases if lease is not None]
    for draft in append.drafts:
        (draft.stream + draft.run_id).encode()  # raises for a lone surrogate
        if draft.data is not None:
            required.append(draft.stream)
    for name in required:
        if name not in plan.heads and known.head(name) is None:
            raise RecordedConflictError(name, 1, 0)
    for blob in (*append.blobs, *append.record_blobs):
        _check_blob(blob)
    for fold in append.folds:
        fold.name.encode()  # raises for a lone surrogate
        _check_stream(plan, fold.stream, fold.version, known)


def _check_blob(blob: Blob) -> None:
    if digest(blob.data) != blob.digest:
        raise ValueError(f"The blob {blob.digest.hex()} has bytes with another SHA-256: {digest(blob.data).hex()}.")


def _check_stream(plan: Plan, name: str, version: int, known: Known) -> None:
    head = plan.heads.get(name) or known.head(name)
    if head is None or version > head[0]:
        raise RecordedConflictError(name, version, _version(head))


def _version(head: KnownHead | None) -> int:
    return 0 if head is None else head[0]


def lowest_shredded(shreds: Sequence[Shred]) -> dict[str, int]:
    """By stream, the lowest version that is shredded. States of folds from there on may hold its text."""
    lowest: dict[str, int] = {}
    for shred in shreds:
        lowest[shred.stream] = min(shred.version, lowest.get(shred.stream, shred.version))
    return lowest


def outcome(rows: Sequence[PlannedRow], first: int) -> Appended:
    """The outcome of an append whose first row is at position ``first``."""
    if len(rows) == 1:
        return Appended((first,), (rows[0][4],), (rows[0][1],))
    return Appended(tuple(range(first, first + len(rows))), tuple(map(_HASH, rows)), tuple(map(_VERSION, rows)))


_HASH, _VERSION = itemgetter(4), itemgetter(1)
