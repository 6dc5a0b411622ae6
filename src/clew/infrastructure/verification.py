"""Verification: recompute every hash, and compare the store's tables with the events."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from clew.domain.blobs import named, unmatched
from clew.domain.decider_state import Control, advance, unnamed_checkpoints, with_checkpoints, without_checkpoints
from clew.domain.errors import CorruptEventError
from clew.domain.event_index import BLOBS, INDEXED_TYPES, may_have_numbers, numbers_of
from clew.domain.event_validation import ScopeSequence, is_next_message, thread_problem
from clew.domain.events import (
    CHECKPOINT_MADE,
    MESSAGE_APPENDED,
    NEVER_SHREDDED,
    Event,
    MessageRedacted,
    Shredded,
    ThreadForked,
    ThreadPurged,
)
from clew.domain.ports import Blob, IntegrityFault, Row, StreamInfo, Verdict
from clew.domain.purge_digest import purged_rows
from clew.domain.streams import ROOT, digest, is_thread, parse_stream_name
from clew.infrastructure.envelope import decode, decode_row, mark_in, peek
from clew.infrastructure.recorder_ports import read_control

if TYPE_CHECKING:
    from clew.infrastructure.recorder_ports import Recorder, StoredKey

PAGE = 1_000
"""Rows, or streams, in one read."""

LOWEST = -(2**63)
"""Below every key and every version, even in a file that was changed by hand."""


def verify_store(recorder: Recorder) -> Verdict:
    """Verify every stream of the store, of every kind and tenant."""
    threads = events = 0
    senseless: IntegrityFault | None = None
    after = LOWEST
    while page := recorder.streams(after=after, limit=PAGE):
        for stream in page:
            checked = _verify_stream(recorder, stream)
            threads, events = threads + is_thread(stream.name), events + checked.events
            if checked.changed is not None:
                return Verdict(threads, events, checked.changed)
            senseless = senseless or checked.senseless
        after = page[-1].key
    for key, version in recorder.orphans(1):
        return Verdict(
            threads, events, IntegrityFault(_owner(recorder, key), version, "it was not written by an append")
        )
    return Verdict(threads, events, _check_side_tables(recorder) or _check_blobs(recorder) or senseless)


def verify_lineages(recorder: Recorder, names: Iterable[str]) -> Verdict:
    """Verify streams and all their ancestors, each once.

    An ancestor is also verified after the cut, because the event of a redaction before the cut can be there.
    """
    verified: set[str] = set()
    events = 0
    senseless: IntegrityFault | None = None
    for name in names:
        stream = recorder.stream(name)
        while stream is not None and stream.name not in verified:
            checked = _verify_stream(recorder, stream)
            verified.add(stream.name)
            events += checked.events
            if checked.changed is not None:
                return Verdict(len(verified), events, checked.changed)
            senseless = senseless or checked.senseless
            stream = None if stream.parent is None else recorder.stream(stream.parent)
    return Verdict(len(verified), events, senseless)


def _check_side_tables(recorder: Recorder) -> IntegrityFault | None:
    """The first lease or draft of a run that its thread does not have, or the first part that is not Clew's."""
    for name in recorder.foreign():
        reasons = {"index": "it is missing", "counter": "its value is not a number"}
        reason = reasons.get(name.partition(":")[0], "it acts on Clew's tables, and Clew did not make it")
        return IntegrityFault(f"#{_printable(name)}", 0, reason)
    for kind, name, run in recorder.runs():
        run_id = run.rpartition("/")[0] if kind == "lease" else run
        events = (decode_row(row) for row in _rows(recorder, name) if row.type == "run-started")
        if all(event.run_id != run_id for event in events):
            return IntegrityFault(_display_name(name), 0, f"it has a {kind} of a run that it does not have")
    return None


def _check_blobs(recorder: Recorder) -> IntegrityFault | None:
    """The first blob whose bytes do not match its digest. It belongs to no thread and has no version."""
    after = LOWEST
    while page := recorder.blobs(after=after, limit=PAGE):
        for key, name in page:
            blob = recorder.blob(name, key)
            if blob is None or not is_whole(blob):
                digest_text = name.hex() if isinstance(name, bytes) else repr(name)
                return IntegrityFault(f"#blob:{digest_text}", 0, "its bytes do not match its digest")
        after = page[-1][0]
    for name in recorder.unused_record_blobs(1):
        return IntegrityFault(f"#blob:{name.hex()}", 0, "no event has these bytes")
    return None


def is_whole(blob: Blob) -> bool:
    """Whether the bytes of a blob match its digest. Bytes of a wrong type do not."""
    return isinstance(blob.data, bytes) and digest(blob.data) == blob.digest


def _owner(recorder: Recorder, key: int) -> str:
    """The name of the stream with a key, or the key if the stream does not exist."""
    for stream in recorder.streams(after=key - 1, limit=1):
        if stream.key == key:
            return _display_name(stream.name)
    return f"#{key}"


class _Checked(NamedTuple):
    """The number of events that were checked, and the first fault of each kind."""

    events: int
    changed: IntegrityFault | None = None
    senseless: IntegrityFault | None = None


def _verify_stream(recorder: Recorder, stream: StreamInfo) -> _Checked:
    """Verify the stream's own events and its snapshots."""
    checked = _verify_rows(recorder, stream, trusted=True)
    if stream.parent is not None and (checked.changed or checked.senseless):
        # The fault may be in the parent's snapshot, from which the state at the cut was derived.
        return _verify_rows(recorder, stream, trusted=False)
    return checked


def _verify_rows(recorder: Recorder, stream: StreamInfo, *, trusted: bool) -> _Checked:
    """Verify the rows one by one. The parent's snapshots are used if they are ``trusted``."""
    of_thread = is_thread(stream.name)
    thread_id = _display_name(stream.name)
    rows = _rows(recorder, stream.name)
    first = next(rows, None)
    expected = _first_version(stream)
    if first is None:
        return _Checked(0, IntegrityFault(thread_id, expected, "it is missing"))
    if not of_thread and stream.cut is None and first.version == 0:  # other applications of the library can begin at 0
        expected = 0
    previous = _root(recorder, stream)
    reason = _check_origin(first, stream) if of_thread else None
    if reason is None and previous is None:
        reason = "the version that it was forked from is missing"
    if reason is not None or previous is None:
        return _Checked(1, IntegrityFault(thread_id, first.version, reason or ""))
    shreds, keys, index = _Shreds({}, {}, []), _Keys(recorder), _Index(recorder)
    sequence = _sequence_of(recorder, stream, trusted=trusted)
    for count, row in enumerate(chain((first,), rows), start=1):
        if row.version != expected:
            if isinstance(row.version, int) and row.version < expected:
                return _Checked(count, IntegrityFault(thread_id, row.version, "it is before the first version"))
            return _Checked(count, IntegrityFault(thread_id, expected, "it is missing"))
        if not _is_linked(previous, row):
            reason = "its hash does not match its content and the event before it"
            return _Checked(count, IntegrityFault(thread_id, row.version, reason))
        reason = shreds.note(row, of_thread=of_thread) or (None if sequence is None else sequence.add(row))
        if reason is not None:
            return _Checked(count, IntegrityFault(thread_id, row.version, reason))
        keys.note(row)
        index.note(row)
        previous = row.hash
        expected += 1
    fault = shreds.compare(thread_id, lambda version: _row(recorder, stream.name, version))
    checked = _Checked(expected - first.version, fault or keys.compare(stream.name, thread_id))
    checked = checked if sequence is None else sequence.complete(thread_id, checked)
    return index.complete(stream.name, thread_id, checked)


class _Sequence:
    """The check of a stream's events against those before them, and of its snapshots against its events.

    ``fault`` is the first event that makes no sense: its version, and the reason. ``snapshots`` are the states, by
    version, that were not compared yet. They are outside the chain, but decisions use them.
    """

    def __init__(self) -> None:
        self.fault: tuple[int, str] | None = None
        self.snapshots: dict[int, bytes] = {}

    def add(self, row: Row) -> str | None:
        """Add the next row. Returns what is wrong with the snapshot at its version, or None."""
        try:
            event = decode_row(row)
        except CorruptEventError:
            self._note(row, "its bytes are not an event of its type")
            event = peek(row.stream, row.version, row.type, row.state, hash_=row.hash)
        return self.follow(row, event)

    def follow(self, row: Row, event: Event) -> str | None:
        """Check the event, and add it to the state."""
        raise NotImplementedError

    def complete(self, thread_id: str, checked: _Checked) -> _Checked:
        """The result after the last row, with a snapshot without an event, or the event that makes no sense."""
        if checked.changed is None and self.snapshots:
            reason = "there is a snapshot of this version, but no event"
            return checked._replace(changed=IntegrityFault(thread_id, max(self.snapshots), reason))
        return checked._replace(senseless=self.fault and IntegrityFault(thread_id, *self.fault, "senseless"))

    def _note(self, row: Row, problem: str | None) -> None:
        if problem is not None and self.fault is None:
            self.fault = row.version, problem


class _ThreadSequence(_Sequence):
    def __init__(self, recorder: Recorder, name: str, control: Control) -> None:
        super().__init__()
        self._recorder, self._name, self._control, self._begins = recorder, name, control, True
        self._message: Event | None = None
        """The newest of the messages since the control, which only changes with another event."""
        snapshot = recorder.snapshot(name)
        while snapshot is not None and snapshot.stream == name:
            self.snapshots[snapshot.version] = snapshot.state
            snapshot = recorder.snapshot(name, snapshot.version - 1)

    def follow(self, row: Row, event: Event) -> str | None:
        last = self._control if self._message is None else self._message
        recorded_at = self._control.updated_at if self._message is None else self._message.recorded_at
        if (
            self._control.status == "active"
            and is_next_message(event, last.messages, recorded_at)
            and not self._begins
            and row.version not in self.snapshots
        ):
            self._message = event
            return None
        if self._message is not None:
            self._control, self._message = advance(self._control, self._message), None
        self._note(row, thread_problem(self._control, event, self._count, begins=self._begins))
        self._control, self._begins = advance(self._control, event), False
        state = self.snapshots.pop(row.version, None)
        if state is None or _agrees(state, self._control):
            return None
        return "the snapshot at this version does not match the events"

    def _count(self, version: int) -> int:
        rows = self._recorder.lineage(self._name, after=version - 1, upto=version)
        try:
            return decode_row(rows[0]).messages if rows else -1
        except (CorruptEventError, TypeError):  # the check of that event reports it
            return -1


class _ScopeSequence(_Sequence):
    def __init__(self) -> None:
        super().__init__()
        self._scope = ScopeSequence()

    def follow(self, row: Row, event: Event) -> str | None:
        self._note(row, self._scope.problem(event))
        self._scope.add(event)
        return None


def _sequence_of(recorder: Recorder, stream: StreamInfo, *, trusted: bool) -> _Sequence | None:
    """The check of a stream's events from its first one on, None for a stream that has no rules."""
    name = parse_stream_name(stream.name)
    if name is not None and name.kind == "memory":
        return _ScopeSequence()
    if name is None or name.kind != "thread":
        return None
    if stream.parent is None or stream.cut is None:
        return _ThreadSequence(recorder, stream.name, Control())
    try:
        return _ThreadSequence(recorder, stream.name, _control_at(recorder, stream.parent, stream.cut, trusted=trusted))
    except (CorruptEventError, TypeError):  # an ancestor is damaged; its own check reports it
        return None


def _control_at(recorder: Recorder, name: str, cut: int, *, trusted: bool) -> Control:
    """The control of a thread at a version, from the snapshot before it if that is ``trusted``."""
    snapshot = recorder.snapshot(name, cut) if trusted else None
    control = (None if snapshot is None else read_control(snapshot.state)) or Control()
    if (lacks := unnamed_checkpoints(control)) is not None:
        first, last = lacks
        made = recorder.lineage(name, after=first - 1, upto=last, types=(CHECKPOINT_MADE,))
        control = with_checkpoints(control, map(decode_row, made))
    while control.version < cut:
        page = recorder.lineage(name, after=control.version, upto=min(control.version + PAGE, cut))
        for row in page:
            control = advance(control, decode_row(row))
        if not page:
            break
    return control


def _agrees(state: bytes, control: Control) -> bool:
    """Whether a snapshot matches this control. A snapshot in another format is not used, so it does no harm."""
    if not isinstance(state, bytes):
        return False
    stored = read_control(state)
    return stored is None or stored == without_checkpoints(control)


class _Keys:
    """The marks of idempotency keys in a stream's events: they are in the chain, and the keys are not."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder, self._tag = recorder, recorder.tag()
        self._marks: list[tuple[Row, str]] = []
        self._last = 0

    def note(self, row: Row) -> None:
        """Add the next row. The keys of another store are there, and did not come with the events."""
        self._last = row.position
        if row.type == "thread-purged":
            self._marks.clear()  # a purge removes the keys, and some of the rows with marks stay
        mark = mark_in(row.state) if row.digest is None else None
        if mark is not None and self._tag and mark.startswith(self._tag):
            self._marks.append((row._replace(state=b""), mark[len(self._tag) :]))

    def compare(self, name: str, thread_id: str) -> IntegrityFault | None:
        """The first key that is missing, belongs to other events, or has lost its content without a redaction.

        Also the first one after them that no event is marked with. Before, an older Clew can have stored keys without
        marks.
        """
        keys = self._recorder.keys(name) if self._marks else []
        unmarked = {each.first for each in keys}
        if any(type(position) is not int for each in keys for position in each[:2]):
            return IntegrityFault(thread_id, 0, "the events of one of its idempotency keys are not two positions")
        keys.sort()
        for row, mark in self._marks:
            digest_start, _, events = mark.partition("-")
            # The last key that begins at or before the row: an append of several streams can begin in another one.
            place = bisect_right(keys, row.position, key=attrgetter("first"))
            key = keys[place - 1] if place and row.position <= keys[place - 1].last else None
            if key is None or not key.digest.hex().startswith(digest_start):
                return IntegrityFault(thread_id, row.version, "the idempotency key of its append is missing")
            if events and key.last - key.first + 1 != int(events):
                reason = f"the idempotency key of its append, which has {events} events, names others"
                return IntegrityFault(thread_id, row.version, reason)
            if key.is_blank and not self._has_shredded(key):
                return IntegrityFault(thread_id, row.version, "the idempotency key of its append has no content")
            unmarked.discard(key.first)
        marked_from = self._marks[0][0].position if self._marks else self._last
        for key in keys:  # a key after the last row was added meanwhile
            if key.first in unmarked and marked_from < key.first <= self._last and not self._has_shredded(key):
                reason = f"it has an idempotency key for position {key.first}, but no append with one"
                return IntegrityFault(thread_id, 0, reason)
        return None

    def _has_shredded(self, key: StoredKey) -> bool:
        """Whether a row of the append of a key was shredded. Then the mark may be gone, and so is the content."""
        rows = self._recorder.rows_at(range(key.first, min(key.last, key.first + PAGE) + 1))
        return any(each.digest is not None for each in rows)


class _Index:
    """The entries of a stream in the index, without which a read would miss records, and the bytes next to events."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._expected: set[tuple[int, int]] = set()
        self._faults: dict[int, str] = {}
        self._redacted: set[int] = set()
        self._last = 0

    def note(self, row: Row) -> None:
        """Add the next row."""
        self._last = row.version
        if row.digest is not None and (row.type in INDEXED_TYPES or row.type == MESSAGE_APPENDED):
            self._redacted.add(row.version)
        if may_have_numbers(row.type, row.state):
            with suppress(CorruptEventError):  # the check of the event reports it
                event = decode_row(row)
                self._expected |= {(number, row.version) for number in numbers_of(event)}
                names = named(event)
                digests = [name.digest for name in names]
                if names and unmatched(names, self._recorder.record_blobs(row.stream, digests)) is not None:
                    self._faults[row.version] = "its bytes are missing or do not match their digest"

    def complete(self, name: str, thread_id: str, checked: _Checked) -> _Checked:
        """The result after the last row, with the first event that lacks its entry or its bytes, or has more entries.

        If another fault was found, that one.
        """
        if not (self._expected or self._redacted) or checked.changed or checked.senseless:
            return checked
        found = self._recorder.entries(name)
        if any(type(part) is not int for entry in found for part in entry):
            fault = IntegrityFault(thread_id, 0, "an entry of it in the index does not consist of numbers")
            return checked._replace(changed=fault)
        faults = self._faults | {version: "the index lacks it" for _, version in self._expected - found}
        for number, version in found - self._expected:
            if number >= BLOBS and version <= self._last:
                faults[version] = "the index has bytes that it does not have"
        for version in sorted(faults):
            row = _row(self._recorder, name, version)
            if row is None or row.digest is None or version in self._redacted:  # else it was redacted meanwhile
                return checked._replace(changed=IntegrityFault(thread_id, version, faults[version]))
        return checked


class _Shreds(NamedTuple):
    """The shredded rows, and the redactions that events record: digest and stub by version."""

    shredded: dict[int, tuple[str, str]]
    redacted: dict[int, tuple[str, str]]
    purges: list[tuple[int, ThreadPurged]]

    def note(self, row: Row, *, of_thread: bool) -> str | None:
        """Add the next row. Returns what is wrong with the row itself, or None."""
        redacts = of_thread and row.type in {"message-redacted", "thread-purged"}
        data: object = None
        if redacts or (row.digest is not None and row.type in NEVER_SHREDDED):
            try:
                data = decode(row.stream, row.version, row.type, row.state).data
            except CorruptEventError:
                return "its bytes are not an event of its type"
        if row.digest is not None:
            if row.type in NEVER_SHREDDED and isinstance(data, Shredded):
                return "its bytes were shredded, but events of its type must not be"
            self.shredded[row.version] = (row.digest.hex(), row.state.decode("latin-1"))
        if isinstance(data, MessageRedacted):
            self.redacted[data.version] = (data.digest, data.stub)
        elif isinstance(data, ThreadPurged):
            self.purges.append((row.version, data))
        return None

    def compare(self, thread_id: str, read_again: Callable[[int], Row | None]) -> IntegrityFault | None:
        """The first row that is shredded without an event, or the reverse.

        ``read_again`` reads a row again, because it may have been redacted after it was checked.
        """
        for version in self.redacted.keys() - self.shredded.keys():
            row = read_again(version)
            if row is not None:
                self.note(row, of_thread=True)
        purged: set[int] = set()
        for at, purge in self.purges:
            found = self._purged(purged | self.redacted.keys(), at, purge, read_again)
            if found is None:
                return IntegrityFault(thread_id, at, "it does not fit the rows before it that were shredded")
            purged |= found
        for version in sorted((self.shredded.keys() - purged) | self.redacted.keys()):
            if version not in self.redacted:
                return IntegrityFault(thread_id, version, "its bytes were shredded, but no event records that")
            if version not in self.shredded:
                return IntegrityFault(thread_id, version, "it was redacted, but its bytes are present")
            if self.shredded[version] != self.redacted[version]:
                return IntegrityFault(thread_id, version, "its stub does not match the event that redacted it")
        return None

    def _purged(
        self, explained: set[int], at: int, purge: ThreadPurged, read_again: Callable[[int], Row | None]
    ) -> set[int] | None:
        """The rows of a purge. They are read again if they do not fit: they may have been purged after their check."""
        found = purged_rows(self.shredded, explained, at, purge)
        if found is not None:
            return found
        for version in range(1, at):
            row = read_again(version)
            if row is not None and row.digest is not None:
                self.shredded[version] = (row.digest.hex(), row.state.decode("latin-1"))
        return purged_rows(self.shredded, explained, at, purge)


def _row(recorder: Recorder, name: str, version: int) -> Row | None:
    rows = recorder.own_rows(name, after=version - 1, limit=1)
    return rows[0] if rows and rows[0].version == version else None


def _display_name(stream: str) -> str:
    """The name of a stream in a fault: a thread's id, ``memory/`` and a scope's name, else the stream's name."""
    name = parse_stream_name(stream)
    if name is None:
        return _printable(stream)
    return _printable(f"memory/{name.id}" if name.kind == "memory" else name.id)


def _printable(name: str) -> str:
    """A name as it can be printed: damaged names can hold lone surrogates."""
    return name.encode(errors="replace").decode()


def _check_origin(row: Row, stream: StreamInfo) -> str | None:
    """The difference between a thread's origin in its first event and in the store, None if they agree."""
    if row.type == "thread-forked":
        try:
            data = decode(row.stream, row.version, row.type, row.state).data
        except (CorruptEventError, TypeError):  # the check of the chain reports it
            return None
        parent = None if stream.parent is None else parse_stream_name(stream.parent)
        forked_from = None if parent is None else (parent.id, stream.cut)
        if isinstance(data, ThreadForked) and forked_from != (data.parent_id, data.parent_version):
            return "the store names another parent or cut than this event"
    elif (stream.parent is not None or stream.cut is not None) and row.version in range(1, _first_version(stream) + 1):
        return "it begins a new thread, but the store lists the thread as a fork"
    return None


def _first_version(stream: StreamInfo) -> int:
    """The version of a thread's first event. In a damaged file a cut can have any type."""
    return stream.cut + 1 if isinstance(stream.cut, int) else 1


def _root(recorder: Recorder, stream: StreamInfo) -> bytes | None:
    """The hash that a stream's first event is linked to, None if it is missing."""
    if stream.parent is None and stream.cut is None:
        return ROOT
    if stream.parent is not None and isinstance(stream.cut, int) and stream.cut >= 0:
        cut = _row(recorder, stream.parent, stream.cut)
        return None if cut is None else cut.hash
    return None


_DIGEST_TYPES = (type(None), bytes)


def _is_linked(previous: bytes, row: Row) -> bool:
    """Whether the hash of a row is correct after ``previous``. False if its parts have wrong types (a damaged file)."""
    if type(row.state) is not bytes or type(row.hash) is not bytes or type(row.digest) not in _DIGEST_TYPES:
        return False
    try:
        return row.follows(previous)
    except (UnicodeEncodeError, AttributeError):
        return False


def _rows(recorder: Recorder, name: str) -> Iterator[Row]:
    after = LOWEST
    while page := recorder.own_rows(name, after=after, limit=PAGE):
        yield from page
        after = page[-1].version
