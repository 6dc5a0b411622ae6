"""The import of stored events: checks of a file's rows against the store and each other, and the report."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias

from clew.domain.blobs import named, unmatched
from clew.domain.context.events import ContextProvided
from clew.domain.decider_state import Control, advance
from clew.domain.errors import ClewError, ImportFormatError, InvalidNameError, ThreadDivergedError
from clew.domain.event_validation import ScopeSequence, thread_problem
from clew.domain.events import (
    MESSAGE_APPENDED,
    RECORD_APPENDED,
    STATE_TYPES,
    Event,
    MessageRedacted,
    ThreadForked,
    ThreadPurged,
)
from clew.domain.formats.clew_jsonl import Entry
from clew.domain.formats.lineage import names_fork, read_event
from clew.domain.ports import Blob, Forget, Fork, Row, Shred
from clew.domain.purge_digest import statement
from clew.domain.runs.events import RunResumed, RunStarted
from clew.domain.streams import ROOT, Kind, check_id, is_thread, parse_stream_name, stream_id, stream_name

Address: TypeAlias = tuple[str, int]
"""A row's stream and version."""

NAMES_BLOBS = frozenset({"run-started", "run-resumed", "context-provided"})
"""Event types that name blobs."""

_DIGEST = re.compile("[0-9a-f]{64}")

TRANSFERRED: tuple[Kind, ...] = ("thread", "memory")
"""The kinds of streams that are exported and imported."""

AGAIN = "Export it again, or take another copy of the file. Events that were already imported stay and are skipped."


class RefusedLine(NamedTuple):
    """An error in a file, and the line that was not completely imported, None for the whole file."""

    line: int | None
    error: ClewError


class EventsReport(NamedTuple):
    """The result of an import of events.

    ``threads`` counts the threads that were started or extended, ``events`` their new events, ``messages`` the messages
    among these, ``skipped`` the events that the store already had, and ``definitions`` the new definitions of agents.
    ``torn`` is true if the file is cut off. It was imported up to ``line``, the last line that was read and stored.
    """

    threads: int
    messages: int
    events: int
    skipped: int
    torn: bool
    line: int
    failed: list[RefusedLine]
    definitions: int = 0


class StoreRows(Protocol):
    """The rows of the store that an import is checked against."""

    def row(self, stream: str, version: int) -> Row | None:
        """A row of the stream itself, not of its parent."""
        ...

    def first(self, stream: str) -> Row | None:
        """The first row of the stream itself, None if the stream does not exist."""
        ...

    def control(self, stream: str, version: int) -> Control:
        """The state of a thread at a version, or 0."""
        ...

    def count(self, stream: str, version: int) -> int:
        """The number of messages that the event of a thread at a version counts, -1 if it has none."""
        ...

    def scope(self, stream: str, version: int) -> ScopeSequence:
        """The state of a memory scope at its newest version, or 0. The caller adds the next events to it."""
        ...


def named_blobs(event: Event) -> list[bytes]:
    """The digests of the blobs that an event names: definitions of an agent and its tools, or bytes next to it."""
    match event.data:
        case RunStarted(fingerprint=fingerprint) | RunResumed(fingerprint=fingerprint):
            names: tuple[str, ...] = fingerprint.digests
        case ContextProvided(tools=tools):
            names = tools
        case _:
            return [name.digest for name in named(event)]
    return [bytes.fromhex(name) for name in names if _DIGEST.fullmatch(name)]


def check_stream(entry: Entry, tenant: str) -> None:
    """Raise ImportFormatError unless an event and its parent belong to a thread or memory scope of the tenant.

    Names are part of the hashes and cannot change, so an event of another tenant would be invisible.
    """
    kinds = TRANSFERRED if entry.fork is None else ("thread",)
    names = (entry.row.stream,) if entry.fork is None else (entry.row.stream, entry.fork.parent)
    for name in names:
        parts = parse_stream_name(name)
        try:
            if parts is None or parts.kind not in kinds or name != stream_name(*parts):
                raise ImportFormatError(f"{name[:300]!r} is not the name of a thread. {AGAIN}")
            check_id(parts.id, "thread id")
        except InvalidNameError as error:
            raise ImportFormatError(f"{name[:300]!r} is not the name of a thread: {error}") from None
        if parts.tenant != tenant:
            raise ImportFormatError(
                f"The file has threads of tenant {parts.tenant!r}, but the store is open for {tenant!r}. "
                f"Names are part of the hashes and cannot change: open it for {parts.tenant!r} (clew --tenant)."
            )


@dataclass(slots=True)
class Batch:
    """Rows that continue the store's rows and each other, each checked before any is written.

    ``refused`` maps the streams that were refused before to the first refused version. ``open`` are shredded rows whose
    redaction has not come yet: the store would not verify with them. ``unexplained`` are these rows, and rows of which
    only the store has the content, until their redaction comes: then None. ``earlier`` are those of earlier batches, by
    stream, which a batch does not change: there may be many. ``senseless`` are the streams of which an event
    makes no sense after those before it. Nothing of such a stream may be written, so a batch that ``found`` one is
    replaced by a batch of the same events that knows it as ``senseless`` from the beginning.
    """

    stored: StoreRows
    decode: Callable[[Row], Event]
    refused: Mapping[str, int]
    senseless: Mapping[str, RefusedLine] = field(default_factory=dict)
    found: dict[str, RefusedLine] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    previous: dict[str, bytes] = field(default_factory=dict)
    forks: dict[str, Fork] = field(default_factory=dict)
    shreds: dict[Address, Shred] = field(default_factory=dict)
    redacted_by: dict[Address, int] = field(default_factory=dict)
    """The version of the redaction of each shred."""
    forgets: dict[str, Forget] = field(default_factory=dict)
    open: dict[Address, int] = field(default_factory=dict)
    earlier: Mapping[str, Mapping[int, Row]] = field(default_factory=dict)
    unexplained: dict[Address, Row | None] = field(default_factory=dict)
    failed: list[RefusedLine] = field(default_factory=list)
    diverged: dict[str, int] = field(default_factory=dict)
    extended: dict[str, int] = field(default_factory=dict)
    """The streams with new rows, with the position of the row before them, 0 for a new stream."""
    controls: dict[Address, Control] = field(default_factory=dict)
    """The state of each thread after each of its new rows."""
    record_blobs: dict[Address, tuple[Blob, ...]] = field(default_factory=dict)
    """The bytes next to its events."""
    scopes: dict[str, ScopeSequence] = field(default_factory=dict)
    """The state of each memory scope after its new rows."""
    entries: int = 0
    skipped: int = 0
    _hashes: dict[Address, bytes] = field(default_factory=dict)
    _places: dict[Address, int] = field(default_factory=dict)

    def add(self, line: int, entry: Entry, blobs: Sequence[Blob] = ()) -> None:
        """Add the next event of the file, with the blobs before it. Skip one that is stored; refuse other content.

        Raises ImportFormatError for an event that does not continue those before it.
        """
        row = entry.row
        number, self.entries = self.entries, self.entries + 1
        if self._is_refused(line, entry):
            return
        previous = self._previous(entry)
        if not row.follows(previous):
            raise ImportFormatError(
                f"{_named(row)}: its hash does not match its content and the event before it. {AGAIN}"
            )
        if (row.stream, row.version) in self._hashes:
            raise ImportFormatError(f"{_named(row)}: it occurs twice in the file. {AGAIN}")
        stored = self.stored.row(row.stream, row.version)
        if stored is None and entry.begins:
            stored = self.stored.first(row.stream)
        if stored is None and row.stream in self.senseless:
            self._refuse(row, self.senseless[row.stream])
            return
        if stored is None:
            if not self._write(line, number, entry, previous, blobs):
                return
        elif (stored.version, stored.hash) == (row.version, row.hash):
            self.skipped += 1
            if row.digest is not None and stored.digest is None:
                self.unexplained[row.stream, row.version] = row
        else:
            stored_hash = stored.hash.hex() if stored.version == row.version else None
            error = ThreadDivergedError(stream_id(row.stream), row.version, stored_hash, row.hash.hex())
            self._refuse(row, RefusedLine(line, error))
            return
        self._hashes[row.stream, row.version] = row.hash

    def _is_refused(self, line: int, entry: Entry) -> bool:
        """Whether the thread was refused, or is a fork of a refused part of another thread."""
        row, fork = entry.row, entry.fork
        if self._refused_from(row.stream) is not None:
            return True
        first_refused = None if fork is None else self._refused_from(fork.parent)
        if fork is None or first_refused is None or fork.cut < first_refused:
            return False
        self.diverged[row.stream] = row.version
        error = ImportFormatError(f"{_named(row)}: it is a fork of a thread that was refused, so it is refused, too.")
        self.failed.append(RefusedLine(line, error))
        return True

    def _refused_from(self, name: str) -> int | None:
        return self.diverged.get(name, self.refused.get(name))

    def _refuse(self, row: Row, refused: RefusedLine) -> None:
        self.failed.append(refused)
        self.diverged[row.stream] = row.version

    def _previous(self, entry: Entry) -> bytes:
        """The hash of the row before an event."""
        row, fork = entry.row, entry.fork
        if fork is None and row.version == 1:
            return ROOT
        if fork is not None and (row.version != fork.cut + 1 or not fork.cut):
            raise ImportFormatError(f"{_named(row)}: a fork must begin with the version after its cut. {AGAIN}")
        stream, version = _address_before(entry)
        known = self._hashes.get((stream, version))
        if known is not None:
            return known
        stored = self.stored.row(stream, version)
        if stored is None:
            raise ImportFormatError(
                f"{_named(row)}: it follows version {version} of {stream!r}, which is neither earlier in the file "
                f"nor in the store. Lines are missing. {AGAIN}"
            )
        return stored.hash

    def _write(self, line: int, number: int, entry: Entry, previous: bytes, blobs: Sequence[Blob]) -> bool:
        """Add a row that is not stored. False if its event makes no sense, so that its stream is refused."""
        row, fork = entry.row, entry.fork
        event = self._decode(row)
        forked = row.type == "thread-forked"
        if forked != (fork is not None) or (isinstance(event.data, ThreadForked) and not names_fork(event.data, fork)):
            raise ImportFormatError(f"{_named(row)}: the event and its line name different fork points. {AGAIN}")
        record_blobs = _record_blobs(row, event, blobs)
        problem = self._follow(entry, event)
        if problem is not None:
            error = ImportFormatError(f"{_named(row)}: {problem}. Nothing of it is imported from here on.")
            self.found[row.stream] = RefusedLine(line, error)
            self.diverged[row.stream] = row.version
            self.open = {address: at for address, at in self.open.items() if address[0] != row.stream}
            return False
        if row.digest is not None:
            self.open[row.stream, row.version] = number
            self.unexplained[row.stream, row.version] = row
        if isinstance(event.data, MessageRedacted):
            self._redact(row, event.data)
        elif isinstance(event.data, ThreadPurged):
            self._purge(row, event.data)
        if row.stream not in self.previous:
            self.previous[row.stream] = previous
            before = None if entry.begins else self.stored.row(row.stream, row.version - 1)
            self.extended[row.stream] = 0 if before is None else before.position
            if fork is not None:
                self.forks[row.stream] = fork
        if record_blobs:
            self.record_blobs[row.stream, row.version] = record_blobs
        self._places[row.stream, row.version] = len(self.rows)
        self.rows.append(row)
        return True

    def _follow(self, entry: Entry, event: Event) -> str | None:
        """Why an event makes no sense after those before it. If it does, it changes the state of its stream."""
        name, version = _address_before(entry)
        if not is_thread(event.stream):
            scope = self.scopes.get(name)
            if scope is None:
                scope = self.scopes[name] = self.stored.scope(name, version)
            problem = scope.problem(event)
            if problem is None:
                scope.add(event)
            return problem
        control = self.controls.get((name, version))
        if control is None:
            control = self.stored.control(name, version)
        problem = thread_problem(control, event, partial(self._count, name), begins=entry.begins)
        if problem is None:
            self.controls[event.stream, event.version] = advance(control, event)
        return problem

    def _count(self, stream: str, version: int) -> int:
        """The number of messages that the event at a version of a lineage counts, -1 if it has none."""
        while (fork := self.forks.get(stream)) is not None and version <= fork.cut:
            stream = fork.parent
        place = self._places.get((stream, version))
        return self.stored.count(stream, version) if place is None else self._decode(self.rows[place]).messages

    def _redact(self, row: Row, redaction: MessageRedacted) -> None:
        """Compare a redaction with its row, and shred the row if it is not shredded."""
        address = row.stream, redaction.version
        target = self._row_after(address)
        if target is None or target.content_digest.hex() != redaction.digest:
            raise ImportFormatError(f"{_named(row)}: the event that it redacts is missing. {AGAIN}")
        stub = redaction.stub.encode("latin-1", errors="replace")  # the event holds it as text, a character per byte
        shredded = target._replace(state=stub, digest=target.content_digest)
        if target.digest is None:
            self._decode(shredded)
            if target.type in STATE_TYPES:
                self.forgets.setdefault(row.stream, Forget(row.stream))
        if shredded.state.decode("latin-1") != redaction.stub or (target.digest is not None and target != shredded):
            raise ImportFormatError(f"{_named(row)}: the stub of the message does not match the event. {AGAIN}")
        if address in self._places:
            self.rows[self._places[address]] = shredded
            self.record_blobs.pop(address, None)
        elif target.digest is None:
            self.shreds[address] = Shred(*address, target.content_digest, stub)
            self.redacted_by[address] = row.version
        self.open.pop(address, None)
        self.unexplained[address] = None

    def _purge(self, row: Row, purged: ThreadPurged) -> None:
        """Compare a purge with the rows that it shredded, and shred those of which the store has the content."""
        rows: dict[int, Row | None] = {**self.earlier.get(row.stream, {})}
        rows |= {version: each for (stream, version), each in self.unexplained.items() if stream == row.stream}
        shredded = [each for _, each in sorted(rows.items()) if each is not None]
        stated = statement((each.version, each.content_digest.hex(), each.state.decode("latin-1")) for each in shredded)
        if stated != (purged.rows, purged.digest):
            raise ImportFormatError(f"{_named(row)}: it does not fit the events before it that were shredded. {AGAIN}")
        for each in shredded:
            address = row.stream, each.version
            self.unexplained[address] = None
            stored = None if self.open.pop(address, None) is not None else self.stored.row(*address)
            if stored is not None and stored.digest is None:
                self._decode(each)
                self.shreds[address] = Shred(*address, each.content_digest, each.state)
                self.redacted_by[address] = row.version
        self.forgets[row.stream] = Forget(row.stream, keys=True)

    def _row_after(self, address: Address) -> Row | None:
        """A row of the batch, or of the store after the batch's shreds."""
        if address in self._places:
            return self.rows[self._places[address]]
        row = self.stored.row(*address)
        shred = self.shreds.get(address)
        return row if row is None or shred is None else row._replace(state=shred.stub, digest=shred.digest)

    def _decode(self, row: Row) -> Event:
        return read_event(row, self.decode, ImportFormatError, _named(row), AGAIN)


def add_batch(report: EventsReport, batch: Batch, *, since: int, line: int) -> EventsReport:
    """The report after another batch; ``since`` is the store's last position when the import began."""
    return report._replace(
        threads=report.threads + sum(position <= since for name, position in batch.extended.items() if is_thread(name)),
        messages=report.messages + sum(row.type == MESSAGE_APPENDED for row in batch.rows),
        events=report.events + len(batch.rows),
        skipped=report.skipped + batch.skipped,
        line=line,
        failed=[*report.failed, *sorted(batch.failed, key=lambda refused: refused.line or 0)],
    )


def _record_blobs(row: Row, event: Event, blobs: Sequence[Blob]) -> tuple[Blob, ...]:
    """The bytes next to an event. Raises ImportFormatError if they are not among the blobs before it."""
    names = named(event)
    given = {blob.digest: blob for blob in blobs if blob.kind == "record"}
    lacks = unmatched(names, {name: blob.data for name, blob in given.items()})
    if lacks is not None:
        what = "record" if row.type == RECORD_APPENDED else "media"
        name = lacks.digest.hex()
        raise ImportFormatError(
            f"{_named(row)}: the bytes of the {what}, with the SHA-256 {name}, must come before it. {AGAIN}"
        )
    return tuple(given[name.digest] for name in names)


def _address_before(entry: Entry) -> Address:
    """The stream and the version that an event follows; version 0 before a new one."""
    row, fork = entry.row, entry.fork
    return (row.stream, row.version - 1) if fork is None else (fork.parent, fork.cut)


def _named(row: Row) -> str:
    kind = "Thread" if is_thread(row.stream) else "Scope"
    return f"{kind} {stream_id(row.stream)!r}, version {row.version}"
