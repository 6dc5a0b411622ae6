"""The rules of an append, for every store that decides them in one writer: what may follow what, and what is linked.

A plan is made from what the store knows, before anything is written, so that an append that is refused leaves nothing.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple, Protocol
from uuid import UUID

from clew.domain.chain import ROOT, digest, link
from clew.domain.errors import IdempotencyKeyReusedError, InvalidNameError
from clew.domain.runs.errors import RunInProgressError, RunTakenOverError
from clew.infrastructure.recorder import (
    Append,
    Appended,
    Blob,
    Claim,
    Fork,
    Key,
    Lease,
    RecordedConflictError,
)

SALT_BYTES = 16

_BEFORE_SURROGATES = 0xD7FF
_AFTER_SURROGATES = "\ue000"

_LAST_MICROSECOND = 2**63 - 1


# Plain tuples, because a writer's budget is a few microseconds an append.
PlannedRow = tuple[str, int, str, bytes, bytes]
"""Stream, version, type, state and hash of a row that is to be written."""

KnownHead = tuple[int, bytes]
"""Version and hash of the last of a stream's own events."""


class StoredState(NamedTuple):
    """What a shred finds of a row."""

    state: bytes
    digest: bytes | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the first append under an idempotency key came to; ``digest`` is None once a row of it was shredded."""

    salt: bytes
    digest: bytes | None
    appended: Appended

    def repeat(self, key: Key) -> Appended:
        """Answer a second append under the key. Raises IdempotencyKeyReusedError when its content is other."""
        if self.digest is not None and content_digest(self.salt, key.content) != self.digest:
            raise IdempotencyKeyReusedError(key.stream, key.key)
        return self.appended._replace(repeated=True)


class Known(Protocol):
    """What a plan asks of the store, as it stands after the appends before this one."""

    def head(self, stream: str) -> KnownHead | None:
        """The last version and hash of a stream's own events."""
        ...

    def hash_at(self, stream: str, version: int) -> bytes | None:
        """The hash of a stream's own row, None when there is no such row."""
        ...

    def state_at(self, stream: str, version: int) -> StoredState | None:
        """The stored bytes of a stream's own row, None when there is no such row."""
        ...

    def outcome(self, key: Key) -> Outcome | None:
        """What the key stands for, None when it is new."""
        ...

    def lease(self, stream: str) -> Lease | None:
        """The lease of a stream, None when nobody has taken it or it was let go of."""
        ...


@dataclass(slots=True)
class Plan:
    """Everything that an append will write, checked."""

    append: Append
    rows: list[PlannedRow]
    """In the order of the append's events."""
    heads: dict[str, KnownHead]
    """Where the streams of the append stand after it."""
    began: dict[str, Fork | None]
    """The streams that the append begins, in order, and what they are forks of."""
    beside: bool = False
    """Whether the append has blobs, claims or drafts."""
    leases: tuple[tuple[str, Lease | None], ...] = ()
    """What its claims come to: a lease that is taken or kept, None for one that is let go of."""


def stream_name(originator_id: UUID | str) -> str:
    """The name of the stream of one of the library's ids: text as it is, a UUID in its 32 hex digits."""
    return originator_id.hex if isinstance(originator_id, UUID) else originator_id


def new_salt() -> bytes:
    """Random bytes without which a short content could be guessed from its digest."""
    return secrets.token_bytes(SALT_BYTES)


def content_digest(salt: bytes, content: bytes) -> bytes:
    """The salted SHA-256 of what an idempotency key stands for."""
    return sha256(salt + content).digest()


def plan(append: Append, known: Known) -> Plan | Appended:
    """Check an append against what the store knows; an outcome instead of a plan when its key was there.

    Raises RecordedConflictError, RunInProgressError, RunTakenOverError, IdempotencyKeyReusedError or InvalidNameError;
    ValueError for an append that no store could carry out (a key without events, a fork without its first event, links
    without what they are linked to, links or digests that are not as many as the events, a blob under another digest
    than its own).
    """
    try:
        # Before the versions: who lost the answer asks again with the versions of then.
        first = None if append.key is None else _repeated(append.key, known)
        return _plan(append, known) if first is None else first
    except UnicodeEncodeError as error:
        msg = f"Names, types and keys must be valid Unicode; found {error.object!r}. Take another."
        raise InvalidNameError(msg) from None


def _repeated(key: Key, known: Known) -> Appended | None:
    key.key.encode()  # checked here, because not every store finds out by itself
    first = known.outcome(key)
    return None if first is None else first.repeat(key)


def _plan(append: Append, known: Known) -> Plan:
    made = Plan(append, [], {}, {})
    if append.claims:
        # Before the versions: who comes second is told that somebody runs, and not only that somebody wrote.
        made.leases = tuple(_decide_claims(append.claims, known).items())
    if append.forks or append.digests:
        _check_origin(append, known)
    if append.links and len(append.links) != len(append.events):
        msg = f"An append of {len(append.events)} events has {len(append.links)} links."
        raise ValueError(msg)
    for number, event in enumerate(append.events):
        name = stream_name(event.originator_id)
        version = event.originator_version
        previous = _previous(made, name, version, known)
        if append.links:
            if name not in append.previous:
                msg = f"The append has links for {name!r} and does not say what they are linked to."
                raise ValueError(msg)
            hashed = append.links[number]
        else:
            gone = append.digests[number] if append.digests else None
            hashed = link(previous, name, version, event.topic, gone or digest(event.state))
        made.heads[name] = version, hashed
        made.rows.append((name, version, event.topic, event.state, hashed))
    if append.key is not None or append.snapshots or append.shreds:
        _check_rest(made, known)
    if append.claims or append.drafts or append.blobs:
        _check_beside(made, known)
    return made


def _previous(made: Plan, name: str, version: int, known: Known) -> bytes:
    """The hash that the next event of a stream is linked to, if it is the one that the append was decided on."""
    head = made.heads.get(name)
    if head is None:
        head = known.head(name)
        if head is None:
            fork = made.append.forks.get(name)
            head = version - 1, _first_link(made, name, version, fork, known)
            made.began[name] = fork
        if head[1] != made.append.previous.get(name, head[1]):
            # What was decided on an event that was not written in the end fits by its version all the same.
            raise RecordedConflictError(name, version - 1, head[0])
    last, previous = head
    if version != last + 1:
        raise RecordedConflictError(name, version - 1, last)
    return previous


def _first_link(made: Plan, name: str, version: int, fork: Fork | None, known: Known) -> bytes:
    if fork is None:
        if version not in (0, 1):
            raise RecordedConflictError(name, version - 1, 0)
        return ROOT
    if version != fork.cut + 1:
        raise RecordedConflictError(name, version - 1, fork.cut)
    for row in made.rows:
        if row[:2] == (fork.parent, fork.cut):
            return row[4]
    found = known.hash_at(fork.parent, fork.cut)
    if found is None:
        raise RecordedConflictError(fork.parent, fork.cut, _version(known.head(fork.parent)))
    return found


def _check_origin(append: Append, known: Known) -> None:
    if append.digests and len(append.digests) != len(append.events):
        msg = f"An append of {len(append.events)} events has {len(append.digests)} digests."
        raise ValueError(msg)
    for name in append.forks:
        head = known.head(name)
        if head is not None:
            raise RecordedConflictError(name, 0, head[0])
        if all(stream_name(event.originator_id) != name for event in append.events):
            msg = f"The fork {name!r} has no first event in its append."
            raise ValueError(msg)


def _check_rest(made: Plan, known: Known) -> None:
    append = made.append
    if append.key is not None:
        if not append.events:
            msg = f"The idempotency key {append.key.key!r} stands for an append without events."
            raise ValueError(msg)
        _check_stream(made, append.key.stream, 0, known)
    for snapshot in append.snapshots:
        _check_stream(made, snapshot.stream, snapshot.version, known)
    gone: set[tuple[str, int]] = set()
    for shred in append.shreds:
        found = known.state_at(shred.stream, shred.version)
        address = shred.stream, shred.version
        if found is None or found.digest is not None or address in gone or digest(found.state) != shred.digest:
            raise RecordedConflictError(shred.stream, shred.version, _version(known.head(shred.stream)))
        gone.add(address)


def _decide_claims(claims: Sequence[Claim], known: Known) -> dict[str, Lease | None]:
    """What claims come to, one after the other. Raises RunInProgressError for one that is somebody else's.

    And RunTakenOverError for one that is only to be renewed, and is not the holder's any more.
    """
    leases: dict[str, Lease | None] = {}
    for claim in claims:
        (claim.stream + claim.holder).encode()  # as above
        if not 0 <= claim.until <= _LAST_MICROSECOND:
            msg = f"The lease of {claim.stream!r} cannot last until {claim.until}: that is no time, in microseconds."
            raise ValueError(msg)
        held = leases[claim.stream] if claim.stream in leases else known.lease(claim.stream)
        mine = held is None or held.holder == claim.holder
        if claim.renews and (held is None or not mine):
            raise RunTakenOverError(claim.stream, claim.holder)
        if not claim.until:
            if mine and held is not None:
                leases[claim.stream] = None
        elif mine or held is None or held.until <= claim.now:
            leases[claim.stream] = Lease(claim.stream, claim.holder, claim.until)
        else:
            raise RunInProgressError(claim.stream, held.holder)
    return leases


def _check_beside(made: Plan, known: Known) -> None:
    made.beside = True
    append = made.append
    wanted = [name for name, lease in made.leases if lease is not None]
    wanted += [draft.stream for draft in append.drafts if draft.data is not None]
    for name in wanted:
        if name not in made.heads and known.head(name) is None:
            raise RecordedConflictError(name, 1, 0)
    for draft in append.drafts:
        (draft.stream + draft.run_id).encode()  # as above
    for blob in append.blobs:
        _check_blob(blob)


def _check_blob(blob: Blob) -> None:
    if digest(blob.data) != blob.digest:
        msg = f"The blob {blob.digest.hex()} has bytes with another SHA-256: {digest(blob.data).hex()}."
        raise ValueError(msg)


def _check_stream(made: Plan, name: str, version: int, known: Known) -> None:
    head = made.heads.get(name) or known.head(name)
    if head is None or version > head[0]:
        raise RecordedConflictError(name, version, _version(head))


def _version(head: KnownHead | None) -> int:
    return 0 if head is None else head[0]


def first_after(prefix: str) -> str | None:
    """The lowest text above every text with the prefix in code point order, None when there is none.

    The order is that of the UTF-8 bytes as well, so a store can seek in an index with it.
    """
    while prefix:
        last = ord(prefix[-1])
        if last == _BEFORE_SURROGATES:
            return prefix[:-1] + _AFTER_SURROGATES  # what lies between are surrogates, which no text holds
        if last < sys.maxunicode:
            return prefix[:-1] + chr(last + 1)
        prefix = prefix[:-1]
    return None


def outcome(rows: Sequence[PlannedRow], first: int) -> Appended:
    """The answer to an append whose rows lie from position ``first`` on."""
    if len(rows) == 1:
        return Appended((first,), (rows[0][4],), (rows[0][1],))
    return Appended(
        tuple(range(first, first + len(rows))), tuple([row[4] for row in rows]), tuple([row[1] for row in rows])
    )
