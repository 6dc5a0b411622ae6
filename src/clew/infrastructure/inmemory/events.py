"""The data of an in-memory store: rows in position order, streams, idempotency keys and side tables."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, repeat
from uuid import UUID

from clew.domain.event_index import BLOBS, number_of_blob
from clew.domain.ports import (
    Appended,
    Blob,
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
from clew.infrastructure import clock
from clew.infrastructure.append_plan import (
    KnownHead,
    Outcome,
    Plan,
    StoredState,
    content_digest,
    lowest_shredded,
    outcome,
)
from clew.infrastructure.recorder_ports import Snapshot, StoredKey


@dataclass(slots=True)
class _Stream:
    info: StreamInfo
    first: int
    """The version of its first own event; the others follow without a gap."""
    originator_id: UUID | str
    positions: list[int] = field(default_factory=list)
    snapshots: dict[int, Snapshot] = field(default_factory=dict)
    entries: dict[int, list[int]] = field(default_factory=dict)
    """The versions under each number of the index, in order."""
    folds: dict[tuple[str, int], FoldState] = field(default_factory=dict)
    """The states of folds, by name and slot."""


class InMemoryEvents:
    """Plain objects without a lock: the caller holds one."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        """In position order, from 1, without gaps."""
        self.streams: list[StreamInfo] = []
        """In the order of their creation. The key of a stream is its number, from 1."""
        self.blobs: dict[bytes, Blob] = {}
        self.record_blobs: dict[bytes, bytes] = {}
        self.leases: dict[str, Lease] = {}
        self.drafts: dict[str, Draft] = {}
        self.shredded = 0
        self._uses: Counter[int] = Counter()
        """How many records have the same bytes, by their number in the index."""
        self._streams: dict[str, _Stream] = {}
        self._forks: dict[str, list[StreamInfo]] = {}
        self._keys: dict[tuple[str, bytes], Outcome] = {}
        """By stream and SHA-256 of the key."""

    # Appending

    def put(self, plan: Plan) -> Appended:
        """Store an append."""
        append = plan.append
        first, before = len(self.rows) + 1, self.shredded
        digests = append.digests or repeat(None)
        for row, event, shredded in zip(plan.rows, append.events, digests, strict=False):  # digests may have no end
            stream = self._streams.get(row[0])
            if stream is None:
                stream = self._begin(row[0], plan.began[row[0]], row[1], event.originator_id)
            self.rows.append(Row(len(self.rows) + 1, *row, digest=shredded))
            self.shredded += shredded is not None
            stream.positions.append(len(self.rows))
        appended = outcome(plan.rows, first)
        self._put_snapshots([each for each in append.snapshots if each.shredded in {None, before}])
        for shred in append.shreds:
            self._shred(shred)
        for name, version in lowest_shredded(append.shreds).items():
            self._drop_folds(name, version)
        for entry in append.entries:
            self._streams[entry.stream].entries.setdefault(entry.number, []).append(entry.version)
            self._uses[entry.number] += entry.number >= BLOBS
        for forget in append.forgets:
            self._forget(forget)
        if append.key is not None:
            salt = clock.salt()
            outcome_of_key = Outcome(salt, content_digest(salt, append.key.content), appended)
            self._keys[append.key.stream, append.key.digest] = outcome_of_key
        if plan.has_side_tables:
            self._put_side_tables(plan)
        self._drop_unused([blob for shred in append.shreds for blob in shred.blobs])
        return appended

    def _put_snapshots(self, snapshots: Sequence[Snapshot]) -> None:
        for each in snapshots:
            self._streams[each.stream].snapshots[each.version] = replace(each, shredded=None)

    def _put_side_tables(self, plan: Plan) -> None:
        for blob in plan.append.blobs:
            self.blobs.setdefault(blob.digest, blob)
        for blob in plan.append.record_blobs:
            self.record_blobs.setdefault(blob.digest, blob.data)
        for name, lease in plan.leases:
            if lease is None:
                self.leases.pop(name, None)
            else:
                self.leases[name] = lease
        for draft in plan.append.drafts:
            if draft.data is None:
                self.drafts.pop(draft.stream, None)
            else:
                self.drafts[draft.stream] = draft
        for fold in plan.append.folds:
            folds, place = self._streams[fold.stream].folds, (fold.name, fold.slot)
            if fold.shredded == self.shredded and (place not in folds or folds[place].version <= fold.version):
                folds[place] = fold

    def _begin(self, name: str, fork: Fork | None, first: int, originator_id: UUID | str) -> _Stream:
        parent, cut = (None, None) if fork is None else (fork.parent, fork.cut)
        info = StreamInfo(len(self.streams) + 1, name, parent, cut)
        self.streams.append(info)
        if parent is not None:
            self._forks.setdefault(parent, []).append(info)
        stream = self._streams[name] = _Stream(info, first, originator_id)
        return stream

    def _shred(self, shred: Shred) -> None:
        row = self._own(shred.stream, shred.version)
        if row is None:
            return
        self.rows[row.position - 1] = row._replace(state=shred.stub, digest=shred.digest)
        self.shredded += 1
        for number in shred.numbers:
            self._streams[shred.stream].entries[number].remove(shred.version)
            self._uses[number] -= number >= BLOBS
        for name, first in self._keys.items():
            if row.position in first.appended.positions:
                self._keys[name] = Outcome(first.salt, None, first.appended)

    def _drop_unused(self, digests: Sequence[bytes]) -> None:
        """Destroy the bytes next to shredded events that no other event has."""
        for digest in digests:
            if not self._uses[number_of_blob(digest)]:
                self.record_blobs.pop(digest, None)

    def _forget(self, forget: Forget) -> None:
        if forget.keys:
            self._keys = {key: first for key, first in self._keys.items() if key[0] != forget.stream}
        names = [forget.stream]
        while names:
            name = names.pop()
            self._streams[name].snapshots.clear()
            names += [fork.name for fork in self._forks.get(name, ())]

    def _drop_folds(self, stream: str, version: int) -> None:
        """Drop the states of folds from a version on, of a stream and of the forks that have the version."""
        names = [stream]
        for name in names:
            folds = self._streams[name].folds
            for key in [key for key, fold in folds.items() if fold.version >= version]:
                del folds[key]
            names += [fork.name for fork in self.forks(name) if fork.cut is not None and fork.cut >= version]

    # Reads for the plan of the next append

    def head(self, stream: str) -> KnownHead | None:
        """The last version and hash of a stream's own events."""
        line = self._streams.get(stream)
        if line is None:
            return None
        row = self.rows[line.positions[-1] - 1]
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
        """The outcome of an idempotency key."""
        return self._keys.get((key.stream, key.digest))

    def lease(self, stream: str) -> Lease | None:
        """The lease of a stream."""
        return self.leases.get(stream)

    def has_fork(self, stream: str, cut: int) -> bool:
        """Whether a stream has a fork at this version or a later one."""
        return any(fork.cut is not None and fork.cut >= cut for fork in self._forks.get(stream, ()))

    def keys(self, stream: str) -> list[StoredKey]:
        """The idempotency keys of a stream."""
        of_stream = [(key, first) for (name, key), first in self._keys.items() if name == stream]
        return [
            StoredKey(first.appended.positions[0], first.appended.positions[-1], key, first.digest is None)
            for key, first in of_stream
        ]

    # Reading

    def stream(self, name: str) -> StreamInfo | None:
        """The stream of that name, None if there is none."""
        line = self._streams.get(name)
        return None if line is None else line.info

    def originator_id(self, stream: str) -> UUID | str:
        """The library's id of an existing stream."""
        return self._streams[stream].originator_id

    def forks(self, stream: str, *, cut: int = 0, limit: int | None = None) -> list[StreamInfo]:
        """The streams whose parent is this one, in the order of their creation: the first ``limit`` from a cut on."""
        found = (fork for fork in self._forks.get(stream, ()) if fork.cut is not None and fork.cut >= cut)
        return list(islice(found, limit))

    def own(self, stream: str, after: int, upto: int | None) -> list[Row]:
        """The rows of the stream itself, in version order."""
        line = self._streams.get(stream)
        return [] if line is None else self._slice(line, after, upto)

    def first(self, stream: str, after: int, limit: int) -> list[Row]:
        """The first rows of the stream itself after a version, at most ``limit``."""
        line = self._streams.get(stream)
        return [] if line is None else self._slice(line, after, max(after, line.first - 1) + limit)

    def lineage(self, stream: str, after: int, upto: int | None) -> list[Row]:
        """The rows of a stream and of its ancestors up to each cut, in version order."""
        parts = [self._slice(line, after, end) for line, end in self._line(stream, after, upto)]
        return [row for part in reversed(parts) for row in part]

    def indexed(self, stream: str, number: int, after: int, upto: int, limit: int) -> list[Row]:
        """The newest rows of the lineage under a number of the index, newest first."""
        found: list[Row] = []
        for line, end in self._line(stream, after, upto):
            versions = line.entries.get(number, [])
            last = bisect_right(versions, upto if end is None else end)
            first = max(bisect_right(versions, after), last - (limit - len(found)))
            found += [self.rows[line.positions[each - line.first] - 1] for each in versions[first:last][::-1]]
        return found

    def unused_record_blobs(self) -> list[bytes]:
        """The digests of bytes that no record has."""
        return [digest for digest in self.record_blobs if not self._uses[number_of_blob(digest)]]

    def entries(self, stream: str) -> set[tuple[int, int]]:
        """The number and the version of each entry of a stream in the index."""
        line = self._streams.get(stream)
        indexed = {} if line is None else line.entries
        return {(number, version) for number, versions in indexed.items() for version in versions}

    def snapshot(self, stream: str, upto: int | None) -> Snapshot | None:
        """The newest snapshot along the lineage at a version ≤ ``upto``."""
        for line, end in self._line(stream, -1, upto):
            versions = [version for version in line.snapshots if end is None or version <= end]
            if versions:
                return line.snapshots[max(versions)]
        return None

    def fold_state(self, stream: str, name: str, upto: int) -> tuple[int, bytes] | None:
        """The newest state of a fold along the lineage at a version ≤ ``upto``."""
        for line, end in self._line(stream, -1, upto):
            known = {fold.version: fold.state for (of, _), fold in line.folds.items() if of == name}
            versions = [version for version in known if end is None or version <= end]
            if versions:
                return max(versions), known[max(versions)]
        return None

    def _own(self, stream: str, version: int) -> Row | None:
        line = self._streams.get(stream)
        if line is None or not 0 <= version - line.first < len(line.positions):
            return None
        return self.rows[line.positions[version - line.first] - 1]

    def _slice(self, stream: _Stream, after: int, upto: int | None) -> list[Row]:
        start = max(after + 1 - stream.first, 0)
        stop = len(stream.positions) if upto is None else max(upto + 1 - stream.first, 0)
        return [self.rows[position - 1] for position in stream.positions[start:stop]]

    def _line(self, stream: str, after: int, upto: int | None) -> Iterator[tuple[_Stream, int | None]]:
        line = self._streams.get(stream)
        while line is not None:
            yield line, upto
            cut = line.info.cut
            if cut is None or cut <= after:
                return
            upto = cut if upto is None else min(upto, cut)
            line = self._streams.get(line.info.parent or "")
