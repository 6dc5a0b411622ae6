"""Import of stored events, byte for byte, from Clew's own JSONL."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

from clew.domain.errors import (
    ConflictError,
    CorruptEventError,
    ImportFormatError,
)
from clew.domain.formats.clew_jsonl import End, Entry, Header, read_line
from clew.domain.formats.event_import import (
    AGAIN,
    Batch,
    EventsReport,
    RefusedLine,
    add_batch,
    check_stream,
)
from clew.domain.ports import Blob, EventLog, Row, Write
from clew.domain.streams import is_thread
from clew.infrastructure.envelope import decode_row
from clew.infrastructure.event_files import EventFile, FileLine, Redactions
from clew.service.authorization import check_existing_stream
from clew.service.core import ATTEMPTS, Core
from clew.service.effects import Operation, read, wait
from clew.service.stored_rows import (
    MOST_IDS,
    MOST_STREAMS,
    UNKNOWN,
    States,
    StoredRows,
    blobs_named_by,
    write_batch,
)

MOST_EVENTS = 500
MOST_BYTES = 1 << 20
"""The most events and stored bytes of a commit."""

MOST_WAITING_BYTES = 32 << 20
"""The most stored bytes of a commit that waits for the redactions of its shredded rows, so that the copy verifies."""


def import_events(
    core: Core, source: str | Path | BinaryIO, progress: Callable[[EventsReport], None] | None = None
) -> Operation[EventsReport]:
    """Import the events of a file in Clew's own JSONL, commit by commit. The next lines are read during a commit.

    Raises ImportFormatError for another format, NotAuthorizedError for an existing thread that the caller may not read
    and for a fork of such a thread, and StoreError. Commits that were made before the error stay.
    """
    file = yield from read(lambda: EventFile.open(source))
    with file:
        since = yield from read(core.log.last_position)
        report = EventsReport(0, 0, 0, 0, torn=False, line=1, failed=[])
        reader = _Reader(core, file)
        try:
            while not reader.ended:
                batch = yield from _write(core, reader, (yield from read(reader.next_batch)))
                report = add_batch(report, batch, since=since, line=reader.line)
                report = report._replace(
                    torn=reader.torn, failed=report.failed + reader.failed, definitions=reader.definitions
                )
                if progress is not None:
                    progress(report)
        finally:
            if report.events:
                core.models.notify()  # at the end: until then, projecting the events would only slow the import down
    return report


def _write(core: Core, reader: _Reader, batch: Batch) -> Operation[Batch]:
    """Commit a batch. If another writer changed one of its threads meanwhile, check the batch again."""
    conflict = ConflictError("import", 0, 0)
    missing = yield from read(reader.missing)
    if missing:
        # Blobs are written before the events that name them, so that readers find them. They never conflict.
        yield from wait(core.log.submit(Write((), {}, blobs=missing)).outcome)
        reader.definitions += len(missing)
    for _ in range(ATTEMPTS):
        try:
            if batch.rows:
                yield from write_batch(core, batch, reader.read_ahead)
            return reader.written(batch)
        except ConflictError as error:
            conflict = error
            batch = yield from read(reader.check_again)
    raise conflict


class _Pending(NamedTuple):
    """An event of the batch: its line in the file, and the blobs before it, which it names."""

    line: int
    entry: Entry
    blobs: tuple[Blob, ...]


class _Line(NamedTuple):
    """A line of the file: parsed, None at the end of the file and for a line that is cut off, or why it is refused."""

    number: int
    parsed: Entry | Blob | End | ImportFormatError | None

    @property
    def size(self) -> int:
        """Its stored bytes."""
        match self.parsed:
            case Entry(row=row):
                return len(row.state)
            case Blob(data=data):
                return len(data)
            case _:
                return 0


class _Reader:
    """Reads a file batch by batch and remembers refused streams.

    It holds the events of one batch in memory, and about as many lines that were read ahead and are not checked yet.
    """

    def __init__(self, core: Core, file: EventFile) -> None:
        self._core = core
        self._file = file
        self._pending: list[_Pending] = []
        self._refused: dict[str, int] = {}
        self._checked: set[str] = set()
        self._states = States(UNKNOWN)
        self._ahead: deque[_Line] = deque()
        """The next lines of the file. A batch takes all of them before it reads more."""
        self._redactions: Redactions | None = None
        self._unexplained: dict[str, dict[int, Row]] = {}
        """By stream and version."""
        self._blobs: list[Blob] = []
        self._threads = self._events = self._blobs_read = 0
        self.line = 1
        self.definitions = 0
        self.ended = self.torn = False
        self.failed: list[RefusedLine] = []

    def next_batch(self) -> Batch:
        """The next batch, at most up to the end of the file or its first error."""
        self._pending.clear()
        shredded = self._core.log.shredded()
        if shredded != self._states.shredded:
            self._states = States(shredded)
        batch, size = self._empty_batch({}), 0
        while not self.ended and not (self._is_full(size) and not self._must_wait(batch, size)):
            size += self._read_into(batch)
        while self.ended and batch.open:
            # Shredded rows do not verify without their redactions, so the batch ends before them. This may also remove
            # redactions of earlier rows, so the check is repeated.
            del self._pending[min(batch.open.values()) :]
            batch = self.check_again()
        return self.check_again() if batch.found else batch

    def check_again(self) -> Batch:
        """The same events, checked against the current store, without the streams of which an event makes no sense."""
        senseless: dict[str, RefusedLine] = {}
        while True:
            self._states = States(self._core.log.shredded())
            batch = self._empty_batch(senseless)
            for pending in self._pending:
                batch.add(pending.line, pending.entry, pending.blobs)
            if not batch.found:
                return batch
            senseless = {**senseless, **batch.found}

    def _empty_batch(self, senseless: Mapping[str, RefusedLine]) -> Batch:
        stored = StoredRows(self._core.log, self._states)
        return Batch(stored, decode_row, self._refused, senseless, earlier=self._unexplained)

    def missing(self) -> list[Blob]:
        """The definitions of these events that the store does not have."""
        blobs = (blob for pending in self._pending for blob in pending.blobs)
        by_digest = {blob.digest: blob for blob in blobs if blob.kind != "record"}
        return [blob for blob in by_digest.values() if not _has(self._core.log, blob)]

    def written(self, batch: Batch) -> Batch:
        """Note that a batch is written."""
        self._refused.update(batch.diverged)
        for (stream, version), row in batch.unexplained.items():
            rows = self._unexplained.setdefault(stream, {})
            if row is None:
                rows.pop(version, None)
            else:
                rows[version] = row
        if batch.forgets:
            self._states.shredded = UNKNOWN  # the states of forks may have what was shredded
        else:
            self._states.shredded += len(batch.shreds) + sum(row.digest is not None for row in batch.rows)
            for name, control in {stream: control for (stream, _), control in batch.controls.items()}.items():
                self._states.controls.put(name, control._replace(shredded=self._states.shredded), 1)
        for name, scope in batch.scopes.items():
            self._states.scopes.put(name, scope, len(scope) + MOST_IDS // MOST_STREAMS)
        if self._pending:
            self.line = self._pending[-1].line
        return batch

    def _is_full(self, size: int) -> bool:
        return len(self._pending) >= MOST_EVENTS or size >= MOST_BYTES

    def _must_wait(self, batch: Batch, size: int) -> bool:
        """Whether the batch must wait for redactions. A large batch only waits if the file contains them."""
        if not batch.open or size < MOST_WAITING_BYTES:
            return bool(batch.open)
        try:
            self._redactions = self._redactions or self._file.redactions()
        except ImportFormatError as error:
            self._fail(self._file.number, error)
            return False
        missing = self._redactions.missing(batch.open)
        if missing:
            self._stop(batch, torn=not self._redactions.ended)
        return missing

    def read_ahead(self) -> None:
        """Read and parse lines of the next batch, once: it must take all of them before it looks for redactions."""
        size, last = 0, self.ended or bool(self._ahead)
        while not last and len(self._ahead) < MOST_EVENTS and size < MOST_BYTES:
            line = self._next_line()
            self._ahead.append(line)
            size += line.size
            last = not isinstance(line.parsed, Entry | Blob)

    def _read_into(self, batch: Batch) -> int:
        """Read one line into the batch. Returns the number of its stored bytes."""
        line = self._ahead.popleft() if self._ahead else self._next_line()
        try:
            match line.parsed:
                case Entry() as entry:
                    self._add(batch, line.number, entry)
                case Blob() as blob:
                    self._add_blob(blob)
                case End() as end:
                    self._finish(batch, end)
                case None:
                    self._stop(batch, torn=True)
                case error:
                    raise error
        except ImportFormatError as error:
            self._fail(self._file.number if isinstance(line.parsed, End) else line.number, error)
            return 0
        return line.size

    def _next_line(self) -> _Line:
        parsed: Entry | Blob | End | ImportFormatError | None
        try:
            line = self._file.next()
            parsed = None if line is None else self._parse(line)
        except ImportFormatError as error:
            parsed = error
        return _Line(self._file.number, parsed)

    def _parse(self, line: FileLine) -> Entry | Blob | End | None:
        """The parsed line, None for a line that is cut off."""
        try:
            parsed = read_line(line.text)
        except ImportFormatError:
            if line.whole:
                raise
            return None
        if isinstance(parsed, Header):
            raise ImportFormatError(f"A second file begins here. Import each on its own. {AGAIN}")
        return parsed

    def _add(self, batch: Batch, line: int, entry: Entry) -> None:
        if entry.fork is not None or entry.row.stream not in self._checked:
            check_stream(entry, self._core.tenant)
            self._check_readable(entry)
        blobs, self._blobs = tuple(self._blobs), []
        if blobs:
            _check_named(entry.row, blobs)
        batch.add(line, entry, blobs)
        self._pending.append(_Pending(line, entry, blobs))
        self._events += 1
        self._threads += entry.begins and is_thread(entry.row.stream)

    def _check_readable(self, entry: Entry) -> None:
        """Raise NotAuthorizedError for existing streams, and parents of forks, that the caller may not read."""
        names = (entry.row.stream,) if entry.fork is None else (entry.row.stream, entry.fork.parent)
        for name in names:
            if name not in self._checked:
                check_existing_stream(self._core, name)
            self._checked.add(name)

    def _add_blob(self, blob: Blob) -> None:
        """Keep a blob until the next event, which names it."""
        self._blobs.append(blob)
        self._blobs_read += 1
        if sum(len(each.data) for each in self._blobs) > MOST_WAITING_BYTES:
            raise ImportFormatError(f"There are more definitions or bytes before one event than it can name. {AGAIN}")

    def _finish(self, batch: Batch, end: End) -> None:
        self._stop(batch, torn=False)
        if (end.threads, end.events) != (self._threads, self._events):
            raise ImportFormatError(
                f"The file should hold {end.events} events of {end.threads} threads, but {self._events} of "
                f"{self._threads} were found. Lines are missing. {AGAIN}"
            )
        if end.blobs != self._blobs_read or self._blobs:
            raise ImportFormatError(
                f"The file should hold {end.blobs} definitions and bytes next to events, but {self._blobs_read} were "
                f"found, the last {len(self._blobs)} without the event that names them. Lines are missing. {AGAIN}"
            )
        if self._file.next() is not None:
            raise ImportFormatError("The file continues after its end. Import each file on its own.")

    def _stop(self, batch: Batch, *, torn: bool) -> None:
        """End the import. Shredded rows without their redaction are left out."""
        self.ended, self.torn = True, torn
        if batch.open and not torn:
            line, entry, _ = self._pending[min(batch.open.values())]
            error = ImportFormatError(
                f"Version {entry.row.version} of {entry.row.stream!r} was redacted, but the file does not hold "
                f"the redaction. {AGAIN}"
            )
            self._fail(line, error)

    def _fail(self, line: int, error: ImportFormatError) -> None:
        self.ended = True
        self.failed = [RefusedLine(line, error)]


def _check_named(row: Row, blobs: tuple[Blob, ...]) -> None:
    """Raise ImportFormatError unless an event names all blobs before it."""
    named = blobs_named_by(row)
    for blob in blobs:
        if blob.digest not in named:
            raise ImportFormatError(f"The blob {blob.digest.hex()} is not named by the event after it. {AGAIN}")


def _has(log: EventLog, blob: Blob) -> bool:
    try:
        return log.blob(blob.digest) is not None
    except CorruptEventError:  # a damaged blob of the store is not replaced
        return True
