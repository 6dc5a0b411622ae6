"""Export and import of stored events, byte for byte, in Clew's own JSONL."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import BinaryIO, NamedTuple

from clew.domain.decider_state import SNAPSHOT_EVERY, Control
from clew.domain.errors import (
    ConflictError,
    CorruptEventError,
    ImportFormatError,
    NotAuthorizedError,
    UnknownThreadError,
)
from clew.domain.formats.clew_jsonl import End, Entry, Header, read_line, write_line
from clew.domain.formats.event_import import (
    AGAIN,
    MOVED,
    NAMES_BLOBS,
    Batch,
    EventsReport,
    RefusedLine,
    check_stream,
    is_thread,
    named_blobs,
    with_batch,
)
from clew.domain.ports import Blob, EventLog, Fork, Restore, Row, Write
from clew.domain.streams import Kind, stream_prefix
from clew.infrastructure.envelope import decode_row
from clew.infrastructure.event_files import EventFile, FileLine, Redactions
from clew.service.authorization import allows, asked_of, check_there
from clew.service.core import ATTEMPTS, Core
from clew.service.operations import Operation, read, wait
from clew.service.thread_commands import forget

PAGE = 100
"""Rows that are read at once: each may be as large as an event can be."""

ROWS_IN_HAND = 5_000
"""The most rows that an export of several streams holds in total."""

MOST_EVENTS = 500
MOST_BYTES = 1 << 20
"""The most events and stored bytes of a commit."""

MOST_HELD = 32 << 20
"""The most stored bytes of a commit that waits for the redactions of its shredded rows, so that the copy verifies."""


def export_events(
    core: Core, thread_ids: Iterable[str] | None, *, definitions: bool = False
) -> Operation[Iterator[bytes]]:
    """The lines of threads with all their ancestors, or of the whole tenant with its memory, in position order.

    With ``definitions`` the stored definitions of their agents are included, each before the first event that names it.
    The lines read the log lazily: see next_lines(). A fork comes with its whole ancestors, so the caller must be
    allowed to export them, too. Raises UnknownThreadError or NotAuthorizedError.
    """
    if thread_ids is None:
        rows = _permitted_rows(
            core, heapq.merge(*(_all_rows(core, each) for each in MOVED), key=attrgetter("position"))
        )
    else:
        streams = yield from read(lambda: _with_ancestors(core, thread_ids))
        page = max(ROWS_IN_HAND // max(len(streams), 1), 1)
        rows = heapq.merge(*(own_rows(core.log, name, min(page, PAGE)) for name in streams), key=attrgetter("position"))
    return _lines(core.log, rows, definitions=definitions)


def next_lines(lines: Iterator[bytes]) -> Operation[list[bytes]]:
    """The next page of lines, empty at the end."""
    return (yield from read(lambda: list(islice(lines, PAGE))))


def _with_ancestors(core: Core, thread_ids: Iterable[str]) -> list[str]:
    """The streams of threads and of all their ancestors, each once. Raises NotAuthorizedError."""
    found: dict[str, None] = {}
    for thread_id in thread_ids:
        _check_export(core, core.stream(thread_id))
        stream = core.log.stream(core.stream(thread_id))
        if stream is None:
            raise UnknownThreadError(thread_id)
        while stream is not None and stream.name not in found:
            _check_export(core, stream.name)
            found[stream.name] = None
            stream = None if stream.parent is None else core.log.stream(stream.parent)
    return list(found)


def _check_export(core: Core, stream: str) -> None:
    _, thread_id = asked_of(stream, "export")
    if not allows(core, "export", thread_id):
        raise NotAuthorizedError(core.actor, "export", thread_id)


def _permitted_rows(core: Core, rows: Iterator[Row]) -> Iterator[Row]:
    """The rows of streams that the caller may export, if the same holds for their parents, whose rows come first."""
    if core.authorize is None:
        return rows
    known: dict[str, bool] = {}
    return (row for row in rows if _is_exported(core, row.stream, known))


def _is_exported(core: Core, name: str, known: dict[str, bool]) -> bool:
    if name not in known:
        stream = core.log.stream(name)
        parent = None if stream is None else stream.parent
        _, thread_id = asked_of(name, "export")
        known[name] = (parent is None or known.get(parent, False)) and allows(core, "export", thread_id)
    return known[name]


def _lines(log: EventLog, rows: Iterator[Row], *, definitions: bool) -> Iterator[bytes]:
    """The lines of a file: its header, the rows with the definitions that they name, and its end."""
    threads = events = 0
    written: set[bytes] = set()
    yield write_line(Header())
    for row in rows:
        if definitions and row.type in NAMES_BLOBS:
            for blob in _not_yet(log, row, written):
                yield write_line(blob)
        entry = Entry(row, _forked_from(log, row))
        threads += entry.begins and is_thread(row.stream)
        events += 1
        yield write_line(entry)
    yield write_line(End(threads, events, len(written)))


def _not_yet(log: EventLog, row: Row, written: set[bytes]) -> Iterator[Blob]:
    """The stored blobs that an event names and that were not written before."""
    try:
        named = named_blobs(decode_row(row))
    except CorruptEventError:  # a damaged event is exported unchanged
        return
    for name in named:
        blob = None if name in written else log.blob(name)
        if blob is not None:
            written.add(name)
            yield blob


def _forked_from(log: EventLog, row: Row) -> Fork | None:
    """The fork point of a fork's first event, from the store: the event itself may be damaged."""
    stream = log.stream(row.stream) if row.type == "thread-forked" else None
    if stream is None or stream.parent is None or stream.cut is None or row.version != stream.cut + 1:
        return None
    return Fork(stream.parent, stream.cut)


def _all_rows(core: Core, kind: Kind) -> Iterator[Row]:
    """Every row of the tenant's streams of a kind, up to an empty page.

    So every shredded row is followed by the event that redacted it.
    """
    position, prefix = 0, stream_prefix(core.tenant, kind)
    while page := core.log.rows_after(position, PAGE, prefix):
        yield from page
        position = page[-1].position


def own_rows(log: EventLog, stream: str, limit: int) -> Iterator[Row]:
    """Every row of the stream itself, ``limit`` at a time."""
    after = -1
    while page := log.own_rows(stream, after=after, limit=limit):
        yield from page
        after = page[-1].version


def import_events(
    core: Core, source: str | Path | BinaryIO, progress: Callable[[EventsReport], None] | None = None
) -> Operation[EventsReport]:
    """Import the events of a file in Clew's own JSONL, commit by commit.

    Raises ImportFormatError for another format, NotAuthorizedError for an existing thread that the caller may not read,
    or a fork of one, and StoreError. Commits that were made before the error stay.
    """
    file = yield from read(lambda: EventFile.open(source))
    with file:
        since = yield from read(core.log.last_position)
        report = EventsReport(0, 0, 0, 0, torn=False, line=1, failed=[])
        reader = _Reader(core, file)
        while not reader.ended:
            gathered = yield from read(reader.gather)
            batch = yield from _write(core, reader, gathered)
            report = with_batch(report, batch, since=since, line=reader.line)
            report = report._replace(
                torn=reader.torn, failed=report.failed + reader.failed, definitions=reader.definitions
            )
            if progress is not None:
                progress(report)
        yield from _write(core, reader, reader.empty())  # the snapshots of the last commit
    return report


def _write(core: Core, reader: _Reader, batch: Batch) -> Operation[Batch]:
    """Commit a batch. If another writer changed one of its threads meanwhile, check the batch again."""
    conflict = ConflictError("import", 0, 0)
    missing = yield from read(reader.missing)
    if missing:
        # Before the events that name them, so that readers find them. Blobs belong to no thread and never conflict.
        yield from wait(core.log.submit(Write((), {}, blobs=missing)).outcome)
        reader.definitions += len(missing)
    for _ in range(ATTEMPTS):
        controls = yield from read(reader.controls)
        if not batch.rows and not controls:
            return reader.written(batch)
        try:
            yield from write_batch(core, batch, controls)
            return reader.written(batch)
        except ConflictError as found:
            conflict = found
            batch = yield from read(reader.gather_again)
    raise conflict


class _Read(NamedTuple):
    """An event of the file, its line, and the blobs before it, which it names."""

    line: int
    entry: Entry
    blobs: tuple[Blob, ...]


class _Reader:
    """Reads a file batch by batch and remembers refused streams. It holds the events of one batch only."""

    def __init__(self, core: Core, file: EventFile) -> None:
        self._core = core
        self._file = file
        self._held: list[_Read] = []
        self._refused: dict[str, int] = {}
        self._checked: set[str] = set()
        self._due: list[tuple[str, int]] = []
        self._ahead: Redactions | None = None
        self._blobs: list[Blob] = []
        self._threads = self._events = self._blobs_read = 0
        self.line = 1
        self.definitions = 0
        self.ended = self.torn = False
        self.failed: list[RefusedLine] = []

    def empty(self) -> Batch:
        """An empty batch."""
        return Batch(StoredRows(self._core.log), decode_row, self._refused)

    def gather(self) -> Batch:
        """The next batch, at most up to the end of the file or its first error."""
        self._held.clear()
        batch, size = self.empty(), 0
        while not self.ended and not (self._is_full(size) and not self._must_wait(batch, size)):
            size += self._take(batch)
        while self.ended and batch.open:
            # Shredded rows without their redactions would not verify, so the batch ends before them. This may remove
            # redactions of earlier rows, too, so the check is repeated.
            del self._held[min(batch.open.values()) :]
            batch = self.gather_again()
        return batch

    def gather_again(self) -> Batch:
        """The same events, checked against the present store."""
        batch = self.empty()
        for held in self._held:
            batch.add(held.line, held.entry)
        return batch

    def missing(self) -> list[Blob]:
        """The blobs of these events that the store does not have."""
        named = {blob.digest: blob for held in self._held for blob in held.blobs}
        return [blob for blob in named.values() if not _has(self._core.log, blob)]

    def controls(self) -> list[tuple[str, Control]]:
        """The snapshots due for the last commit, at the versions where appends make them."""
        return [(name, self._core.log.control(name, version)) for name, version in self._due]

    def written(self, batch: Batch) -> Batch:
        """Note that a batch is written."""
        self._refused.update(batch.diverged)
        self._due = [(row.stream, row.version) for row in batch.rows if _is_due(row)]
        if self._held:
            self.line = self._held[-1].line
        return batch

    def _is_full(self, size: int) -> bool:
        return len(self._held) >= MOST_EVENTS or size >= MOST_BYTES

    def _must_wait(self, batch: Batch, size: int) -> bool:
        """Whether the batch must wait for redactions; a large batch only waits if they are in the file."""
        if not batch.open or size < MOST_HELD:
            return bool(batch.open)
        try:
            self._ahead = self._ahead or self._file.redactions()
        except ImportFormatError as error:
            self._fail(self._file.number, error)
            return False
        missing = batch.open.keys() - self._ahead.rows
        if missing:
            self._stop(batch, torn=not self._ahead.ended)
        return bool(missing)

    def _take(self, batch: Batch) -> int:
        """Read one line into the batch; returns its bytes."""
        try:
            line = self._file.next()
            parsed = None if line is None else self._parse(line)
            match parsed:
                case Entry() as entry:
                    self._add(batch, entry)
                    return len(entry.row.state)
                case Blob() as blob:
                    self._hold(blob)
                    return len(blob.data)
                case End() as end:
                    self._finish(batch, end)
                case None:
                    self._stop(batch, torn=True)
        except ImportFormatError as error:
            self._fail(self._file.number, error)
        return 0

    def _parse(self, line: FileLine) -> Entry | Blob | End | None:
        """The parsed line, None for a cut-off one."""
        try:
            parsed = read_line(line.text)
        except ImportFormatError:
            if line.whole:
                raise
            return None
        if isinstance(parsed, Header):
            raise ImportFormatError(f"A second file begins here. Import each on its own. {AGAIN}")
        return parsed

    def _add(self, batch: Batch, entry: Entry) -> None:
        line = self._file.number
        check_stream(entry, self._core.tenant)
        self._check(entry)
        blobs, self._blobs = tuple(self._blobs), []
        if blobs:
            _check_named(entry.row, blobs)
        batch.add(line, entry)
        self._held.append(_Read(line, entry, blobs))
        self._events += 1
        self._threads += entry.begins and is_thread(entry.row.stream)

    def _check(self, entry: Entry) -> None:
        """Raise NotAuthorizedError for existing streams, and parents of forks, that the caller may not read."""
        names = (entry.row.stream,) if entry.fork is None else (entry.row.stream, entry.fork.parent)
        for name in names:
            if name not in self._checked:
                check_there(self._core, name)
            self._checked.add(name)

    def _hold(self, blob: Blob) -> None:
        """Hold a blob until the next event, which names it."""
        self._blobs.append(blob)
        self._blobs_read += 1
        if sum(len(each.data) for each in self._blobs) > MOST_HELD:
            raise ImportFormatError(f"There are more definitions before one event than any agent has. {AGAIN}")

    def _finish(self, batch: Batch, end: End) -> None:
        self._stop(batch, torn=False)
        if (end.threads, end.events) != (self._threads, self._events):
            raise ImportFormatError(
                f"The file should hold {end.events} events of {end.threads} threads, but {self._events} of "
                f"{self._threads} were found. Lines are missing. {AGAIN}"
            )
        if end.blobs != self._blobs_read or self._blobs:
            raise ImportFormatError(
                f"The file should hold {end.blobs} definitions, but {self._blobs_read} were found, the last "
                f"{len(self._blobs)} without the event that names them. Lines are missing. {AGAIN}"
            )
        if self._file.next() is not None:
            raise ImportFormatError("The file continues after its end. Import each file on its own.")

    def _stop(self, batch: Batch, *, torn: bool) -> None:
        """End the import. Shredded rows without their redaction are left out."""
        self.ended, self.torn = True, torn
        if batch.open and not torn:
            line, entry, _ = self._held[min(batch.open.values())]
            error = ImportFormatError(
                f"Version {entry.row.version} of {entry.row.stream!r} was redacted, but the file does not hold "
                f"the redaction. {AGAIN}"
            )
            self._fail(line, error)

    def _fail(self, line: int, error: ImportFormatError) -> None:
        self.ended = True
        self.failed = [RefusedLine(line, error)]


class StoredRows:
    """The rows of the store, read ahead in small pages: events of a thread are usually next to each other in a file."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._rows: dict[str, dict[int, Row]] = {}
        self._heads: dict[str, int] = {}
        self._limits: dict[str, int] = {}

    def row(self, stream: str, version: int) -> Row | None:
        """A row of the stream itself."""
        known = self._rows.setdefault(stream, {})
        if version not in known and version <= self._heads.get(stream, version):
            limit = self._limits[stream] = min(2 * self._limits.get(stream, 1), PAGE)
            found = self._log.own_rows(stream, after=version - 1, limit=limit)
            known.update((row.version, row) for row in found)
            if not found:
                self._heads[stream] = version - 1
        return known.get(version)

    def first(self, stream: str) -> Row | None:
        """The first row of the stream itself."""
        found = self._log.own_rows(stream, after=-1, limit=1)
        return found[0] if found else None


def _is_due(row: Row) -> bool:
    return row.version % SNAPSHOT_EVERY == 0 and is_thread(row.stream)


def write_batch(core: Core, batch: Batch, controls: Sequence[tuple[str, Control]] = ()) -> Operation[None]:
    """Commit rows and their redactions, and invalidate the caches of their streams. Raises ConflictError."""
    restore = Restore(batch.rows, batch.previous, batch.forks, tuple(batch.shreds.values()), controls)
    yield from wait(core.log.restore(restore))
    for name in batch.previous:
        core.caches.submitted.drop(name)
    core.models.notify()
    for (name, version), redacted_by in batch.redacted_by.items():
        yield from forget(core, name, version, redacted_by)


def _check_named(row: Row, blobs: tuple[Blob, ...]) -> None:
    """Raise ImportFormatError unless an event names all blobs before it."""
    try:
        named = named_blobs(decode_row(row))
    except CorruptEventError:
        named = []
    for blob in blobs:
        if blob.digest not in named:
            raise ImportFormatError(f"The blob {blob.digest.hex()} is not named by the event after it. {AGAIN}")


def _has(log: EventLog, blob: Blob) -> bool:
    try:
        return log.blob(blob.digest) is not None
    except CorruptEventError:  # a damaged blob of the store is not replaced
        return True
