"""Stored events, read and written as they are: what export, import and thread documents share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import chain

from clew.domain.decider_state import SNAPSHOT_EVERY, Control
from clew.domain.errors import (
    CorruptEventError,
)
from clew.domain.event_validation import ScopeSequence
from clew.domain.formats.event_import import (
    Batch,
    named_blobs,
)
from clew.domain.ports import EventLog, Restore, Row
from clew.infrastructure.envelope import decode_row
from clew.service.core import BoundedCache, CacheBudget, Core, lasting
from clew.service.effects import Operation, read, wait, withdraw
from clew.service.redactions import forget

PAGE = 100
"""Rows that are read at once. A row may have the size of the largest event."""

MOST_STREAMS = 1_000
MOST_IDS = 1_000_000
"""The most threads, or scopes with their facts and documents, whose states an import holds in memory."""

UNKNOWN = -1
"""A number of shredded rows that no store has."""


class States:
    """The states of the streams at their newest versions, as an import checks events against them.

    ``shredded`` is the number of shredded rows that the store had before, and that the import has added. If the store
    has another number, another writer has shredded rows, and these states may have what was in them.
    """

    def __init__(self, shredded: int) -> None:
        self.shredded = shredded
        self.controls: BoundedCache[Control] = BoundedCache(CacheBudget(MOST_STREAMS))
        self.scopes: BoundedCache[ScopeSequence] = BoundedCache(CacheBudget(MOST_IDS))


class StoredRows:
    """The rows of the store, read ahead in small pages, because a file usually has a thread's events in sequence."""

    def __init__(self, log: EventLog, states: States) -> None:
        self._log = log
        self._states = states
        self._rows: dict[str, dict[int, Row]] = {}
        self._heads: dict[str, int] = {}
        self._limits: dict[str, int] = {}

    def row(self, stream: str, version: int) -> Row | None:
        """A row of the stream itself."""
        known = self._rows.setdefault(stream, {})
        if version not in known and version <= self._heads.get(stream, version):
            limit = self._limits[stream] = min(2 * self._limits.get(stream, 1), PAGE)
            page = self._log.own_rows(stream, after=version - 1, limit=limit)
            known.update((row.version, row) for row in page)
            if not page:
                self._heads[stream] = version - 1
        return known.get(version)

    def first(self, stream: str) -> Row | None:
        """The first row of the stream itself."""
        return next(iter(self._log.own_rows(stream, after=-1, limit=1)), None)

    def control(self, stream: str, version: int) -> Control:
        """The state of a thread at a version, or 0, with all checkpoints."""
        if not version:
            return Control(shredded=self._states.shredded)
        known = self._states.controls.get(stream)
        if known is not None and known.version == version:
            return known
        control = self._log.control(stream, version)._replace(shredded=self._states.shredded)
        return self._log.with_checkpoints(stream, control)

    def count(self, stream: str, version: int) -> int:
        """The number of messages that the event of a thread at a version counts, -1 if it has none."""
        return self._log.lineage(stream, after=version - 1, upto=version)[0].messages

    def scope(self, stream: str, version: int) -> ScopeSequence:
        """The state of a memory scope at its newest version, or 0. The caller adds the next events to it."""
        known = self._states.scopes.get(stream)
        if known is None or known.version != version:
            known = ScopeSequence()
            for row in own_rows(self._log, stream, PAGE) if version else ():
                known.add(decode_row(row))
        return known


def own_rows(log: EventLog, stream: str, limit: int) -> Iterator[Row]:
    """All rows of the stream itself, ``limit`` at a time."""
    after = -1
    while page := log.own_rows(stream, after=after, limit=limit):
        yield from page
        after = page[-1].version


def write_batch(core: Core, batch: Batch, meanwhile: Callable[[], None] | None = None) -> Operation[None]:
    """Commit rows, their redactions and snapshots, and invalidate the caches of their streams. Raises ConflictError.

    ``meanwhile`` is called while another thread writes.
    """
    outcome = core.log.restore(restore_of(batch))
    try:
        if meanwhile is not None:
            yield from read(meanwhile)
        yield from wait(outcome)
    except (KeyboardInterrupt, asyncio.CancelledError):
        yield from withdraw(outcome)
        raise
    yield from note_written(core, batch)


def restore_of(batch: Batch) -> Restore:
    """What a commit of the batch writes. The snapshots are at the versions where appends make them."""
    controls = [
        (stream, control) for (stream, version), control in batch.controls.items() if not version % SNAPSHOT_EVERY
    ]
    shreds, forgets = tuple(batch.shreds.values()), tuple(batch.forgets.values())
    controls = lasting(controls, shreds, forgets)
    record_blobs = tuple(chain.from_iterable(batch.record_blobs.values()))
    return Restore(batch.rows, batch.previous, batch.forks, shreds, controls, forgets, record_blobs)


def note_written(core: Core, batch: Batch) -> Operation[None]:
    """Invalidate the caches of the streams of a batch that was written."""
    for name in batch.previous:
        core.caches.submitted.drop(name)
    for forget_ in batch.forgets.values():
        core.caches.forget_control(forget_.stream)
    gone: dict[tuple[str, int], list[int]] = {}
    for (name, version), redacted_by in batch.redacted_by.items():
        gone.setdefault((name, redacted_by), []).append(version)
    for (name, redacted_by), versions in gone.items():
        yield from forget(core, name, versions, redacted_by)


def blobs_named_by(row: Row) -> list[bytes]:
    """The digests of the blobs that a row names; none for a damaged event."""
    try:
        return named_blobs(decode_row(row))
    except CorruptEventError:
        return []
