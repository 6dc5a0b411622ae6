"""Lineages as stored rows: the rows of each stream that a thread document needs, and their verification."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from clew.domain.decider_state import Control, advance
from clew.domain.errors import ClewError, CorruptEventError, InvalidNameError, ThreadDocumentError
from clew.domain.event_validation import thread_problem
from clew.domain.events import (
    MESSAGE_APPENDED,
    NEVER_SHREDDED,
    Event,
    MessageRedacted,
    Shredded,
    ThreadForked,
    ThreadPurged,
)
from clew.domain.ports import Blob, Fork, Row
from clew.domain.purge_digest import purged_rows
from clew.domain.streams import ROOT, StreamName, check_id, parse_stream_name, stream_id, stream_name

AGAIN = "Take another copy of the document, or serialize the thread again."


class StreamRows(NamedTuple):
    """The rows of one stream and its fork point. For an ancestor: the rows up to the cut, and later rows if needed.

    Later rows are needed in two cases. A shredded row verifies only with its redaction. Only the event after an answer
    at the cut shows that the answer is complete.
    """

    name: str
    fork: Fork | None
    rows: tuple[Row, ...]


class Lineage(NamedTuple):
    """A thread with its ancestors, oldest first.

    ``events`` are the events up to each cut, ``after_cuts`` the ancestors' events after their cuts, all as they are
    stored. ``blobs`` are the bytes next to them, in the order of the events, equal ones once.
    """

    streams: tuple[StreamRows, ...]
    events: tuple[Event, ...]
    after_cuts: tuple[Event, ...]
    blobs: tuple[Blob, ...] = ()

    @property
    def name(self) -> StreamName:
        """The parts of the name of the thread's stream."""
        return _parse(self.streams[-1].name)

    @property
    def stream(self) -> str:
        """The name of the thread's stream."""
        return self.streams[-1].name

    @property
    def head(self) -> Row:
        """The newest row."""
        return self.streams[-1].rows[-1]

    @property
    def ends(self) -> tuple[int, ...]:
        """The last version of each stream in the lineage: the cut, or the head of the thread itself."""
        return (*(stream.fork.cut for stream in self.streams if stream.fork is not None), self.head.version)

    @property
    def all_events(self) -> tuple[Event, ...]:
        """All events, also those after the cuts."""
        return (*self.events, *self.after_cuts)

    def with_blobs(self, blobs: Iterable[Blob]) -> Lineage:
        """The same with the bytes next to its events, in the order of the events."""
        return self._replace(blobs=tuple({blob.digest: blob for blob in blobs}.values()))


def required_rows(rows: Iterable[Row], cut: int | None, decode: Callable[[Row], Event]) -> Iterator[Row]:
    """The rows of a stream that a thread forked at ``cut`` needs; None stands for the thread's own stream."""
    unmatched: set[int] = set()
    previous_type = ""
    for row in rows:
        if cut is not None and row.version > cut and not unmatched:
            answers = previous_type == MESSAGE_APPENDED and row.type == "model-answered"
            if row.version > cut + 1 or not answers:
                return
        if row.digest is not None:
            unmatched.add(row.version)
        if unmatched and row.type == "thread-purged":
            unmatched.clear()
        elif unmatched and row.type == "message-redacted":
            data = decode(row).data
            unmatched.discard(data.version if isinstance(data, MessageRedacted) else 0)
        previous_type = row.type
        yield row


def verify_streams(streams: Sequence[StreamRows], decode: Callable[[Row], Event]) -> Lineage:
    """The lineage of verified streams, oldest first. Raises ThreadDocumentError for rows that do not fit."""
    if not streams:
        raise ThreadDocumentError(f"streams: the list is empty. {AGAIN}")
    events: list[Event] = []
    after_cuts: list[Event] = []
    control = Control()
    names: set[str] = set()
    tenant = _parse(streams[-1].name).tenant
    for number, stream in enumerate(streams):
        where = f"streams[{number}]"
        _check_name(stream.name, tenant, where)
        if stream.name in names:
            raise ThreadDocumentError(f"{where}: {_quoted(stream.name)} occurs twice. {AGAIN}")
        names.add(stream.name)
        previous = _hash_before(streams[number - 1] if number else None, stream.fork, where)
        end = streams[number + 1].fork if number + 1 < len(streams) else None
        own = _verify_rows(stream, previous, decode, where)
        control = _follow(events, own, control, None if end is None else end.cut, where)
        inherited = len(own) if end is None else end.cut - stream.rows[0].version + 1
        events += own[:inherited]
        after_cuts += own[inherited:]
    return Lineage(tuple(streams), tuple(events), tuple(after_cuts))


def read_event(
    row: Row, decode: Callable[[Row], Event], error: Callable[[str], ClewError], where: str, advice: str
) -> Event:
    """The event of a row. Raises ``error`` unless its bytes are valid, and shredded only if that is allowed."""
    try:
        event = decode(row)
    except CorruptEventError:
        raise error(f"{where}: its bytes are not an event of its type. {advice}") from None
    if event.redacted != (row.digest is not None):
        raise error(f"{where}: it must have both a digest and a stub, or neither. {advice}")
    if isinstance(event.data, Shredded) and row.type in NEVER_SHREDDED:
        raise error(f"{where}: it is shredded, but events of its type are never shredded. {advice}")
    return event


def _verify_rows(stream: StreamRows, previous: bytes, decode: Callable[[Row], Event], where: str) -> list[Event]:
    """The events of one stream, with verified hashes and redactions."""
    events: list[Event] = []
    first = 1 if stream.fork is None else stream.fork.cut + 1
    shredded: dict[int, tuple[str, str]] = {}
    redacted: dict[int, tuple[str, str]] = {}
    purges: list[tuple[int, ThreadPurged]] = []
    if not stream.rows:
        raise ThreadDocumentError(f"{where}: it has no rows. {AGAIN}")
    for expected, row in enumerate(stream.rows, start=first):
        here = f"{where}.rows[{expected - first}]"
        if row.version != expected:
            raise ThreadDocumentError(f"{here}: found version {row.version}, expected {expected}. {AGAIN}")
        if not row.follows(previous):
            raise ThreadDocumentError(f"{here}: its hash does not match its content and the row before it. {AGAIN}")
        event = read_event(row, decode, ThreadDocumentError, here, AGAIN)
        if expected == first:
            _check_first(row, event, stream.fork, here)
        if row.digest is not None:
            shredded[row.version] = row.digest.hex(), row.state.decode("latin-1")
        if isinstance(event.data, MessageRedacted):
            redacted[event.data.version] = event.data.digest, event.data.stub
        elif isinstance(event.data, ThreadPurged):
            purges.append((row.version, event.data))
        events.append(event)
        previous = row.hash
    _check_shredded(shredded, redacted, purges, where)
    return events


def _check_shredded(
    shredded: Mapping[int, tuple[str, str]],
    redacted: Mapping[int, tuple[str, str]],
    purges: Iterable[tuple[int, ThreadPurged]],
    where: str,
) -> None:
    """Raise unless events explain every shredded row: a redaction, or the purge of the thread."""
    purged: set[int] = set()
    for at, purge in purges:
        found = purged_rows(shredded, purged | redacted.keys(), at, purge)
        if found is None:
            raise ThreadDocumentError(
                f"{where}: the purge at version {at} does not fit the rows that were shredded. {AGAIN}"
            )
        purged |= found
    for version in sorted((shredded.keys() - purged) | redacted.keys()):
        if shredded.get(version) != redacted.get(version):
            raise ThreadDocumentError(
                f"{where}: the stub of redacted version {version} does not match the event that redacted it. {AGAIN}"
            )


def _follow(before: Sequence[Event], own: Sequence[Event], control: Control, cut: int | None, where: str) -> Control:
    """The control at the cut, None for the newest version, from the one before a stream's own events.

    Raises ThreadDocumentError for an event that makes no sense after those before it.
    """
    at_cut = control

    def count(version: int) -> int:
        return (before[version - 1] if version <= len(before) else own[version - 1 - len(before)]).messages

    for index, event in enumerate(own):
        problem = thread_problem(control, event, count, begins=not index)
        if problem is not None:
            raise ThreadDocumentError(f"{where}.rows[{index}]: {problem}. {AGAIN}")
        control = advance(control, event)
        if event.version == cut:
            at_cut = control
    return control if cut is None else at_cut


def _check_first(row: Row, event: Event, fork: Fork | None, where: str) -> None:
    """Raise unless a fork, and no other thread, begins at the document's fork point."""
    forked = row.type == "thread-forked"
    if forked != (fork is not None) or (isinstance(event.data, ThreadForked) and not names_fork(event.data, fork)):
        raise ThreadDocumentError(f"{where}: it names another fork point than the stream before it has. {AGAIN}")


def names_fork(forked: ThreadForked, fork: Fork | None) -> bool:
    """Whether the first event of a fork names its fork point."""
    return fork is not None and (stream_id(fork.parent), fork.cut) == (forked.parent_id, forked.parent_version)


def _hash_before(parent: StreamRows | None, fork: Fork | None, where: str) -> bytes:
    """The hash before the first row of a stream."""
    if parent is None and fork is None:
        return ROOT
    if parent is None or fork is None or fork.parent != parent.name:
        raise ThreadDocumentError(f"{where}: it is not a fork of the stream before it. {AGAIN}")
    for row in parent.rows:
        if row.version == fork.cut:
            return row.hash
    raise ThreadDocumentError(
        f"{where}: its fork point, version {fork.cut}, is missing from the stream before it. {AGAIN}"
    )


def _check_name(name: str, tenant: str, where: str) -> None:
    """Raise unless it is the name of a thread of the tenant, in Clew's own spelling."""
    parts = _parse(name)
    try:
        check_id(parts.id, "thread id")
        check_id(parts.tenant, "tenant")
        valid = name == stream_name(parts.tenant, "thread", parts.id)
    except InvalidNameError:
        valid = False
    if not valid:
        raise ThreadDocumentError(f"{where}: {_quoted(name)} is not the name of a thread. {AGAIN}")
    if parts.tenant != tenant:
        raise ThreadDocumentError(f"{where}: {_quoted(name)} belongs to another tenant than the thread. {AGAIN}")


def _parse(name: str) -> StreamName:
    return parse_stream_name(name) or StreamName("", "", "")


def _quoted(name: str) -> str:
    return ascii(name[:300])
