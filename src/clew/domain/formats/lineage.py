"""Lineages as stored rows: the rows of each stream that a thread document needs, and their verification."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from clew.domain.errors import CorruptEventError, InvalidNameError, ThreadDocumentError
from clew.domain.events import (
    MESSAGE_APPENDED,
    NEVER_SHREDDED,
    Event,
    HistoryRewound,
    MessageRedacted,
    Opaque,
    Shredded,
    ThreadForked,
)
from clew.domain.ports import Fork, Row
from clew.domain.streams import ROOT, StreamName, check_id, digest, link, parse_stream_name, stream_name

AGAIN = "Take another copy of the document, or serialize the thread again."

_BEGINS = {"thread-started", "thread-forked"}


class OwnRows(NamedTuple):
    """The rows of one stream and its fork point; for an ancestor, the rows up to the cut and later rows that they need.

    There are two reasons for later rows: a shredded row verifies only with its redaction, and only the event after an
    answer at the cut shows that the answer is complete.
    """

    name: str
    fork: Fork | None
    rows: tuple[Row, ...]


class Lineage(NamedTuple):
    """A thread with its ancestors, oldest first: their rows, the events up to each cut, and the events after it."""

    streams: tuple[OwnRows, ...]
    events: tuple[Event, ...]
    beyond: tuple[Event, ...]

    @property
    def name(self) -> StreamName:
        """The parts of the name of the thread's stream."""
        return _parsed(self.streams[-1].name)

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
        return (*(own.fork.cut for own in self.streams if own.fork is not None), self.head.version)


def needed(rows: Iterable[Row], cut: int | None, decode: Callable[[Row], Event]) -> Iterator[Row]:
    """The rows of a stream that a thread forked at ``cut`` needs; None stands for the thread's own stream."""
    unmatched: set[int] = set()
    kind = ""
    for row in rows:
        if cut is not None and row.version > cut and not unmatched:
            answers = kind == MESSAGE_APPENDED and row.type == "model-answered"
            if row.version > cut + 1 or not answers:
                return
        if row.digest is not None:
            unmatched.add(row.version)
        elif unmatched and row.type == "message-redacted":
            data = decode(row).data
            unmatched.discard(data.version if isinstance(data, MessageRedacted) else 0)
        kind = row.type
        yield row


def verified(streams: Sequence[OwnRows], decode: Callable[[Row], Event]) -> Lineage:
    """The verified lineage of streams, oldest first. Raises ThreadDocumentError for rows that do not fit."""
    if not streams:
        raise ThreadDocumentError(f"streams: the list is empty. {AGAIN}")
    events: list[Event] = []
    beyond: list[Event] = []
    names: set[str] = set()
    tenant = _parsed(streams[-1].name).tenant
    for number, own in enumerate(streams):
        where = f"streams[{number}]"
        _check_name(own.name, tenant, where)
        if own.name in names:
            raise ThreadDocumentError(f"{where}: {_quoted(own.name)} occurs twice. {AGAIN}")
        names.add(own.name)
        previous = _hash_before(streams[number - 1] if number else None, own.fork, where)
        end = streams[number + 1].fork if number + 1 < len(streams) else None
        found = _verified_rows(own, previous, decode, where)
        _check_course([*events, *found], len(events), where)
        inherited = len(found) if end is None else end.cut - own.rows[0].version + 1
        events += found[:inherited]
        beyond += found[inherited:]
    return Lineage(tuple(streams), tuple(events), tuple(beyond))


def _verified_rows(own: OwnRows, previous: bytes, decode: Callable[[Row], Event], where: str) -> list[Event]:
    """The events of one stream, with verified hashes and redactions."""
    events: list[Event] = []
    first = 1 if own.fork is None else own.fork.cut + 1
    shredded: dict[int, tuple[str, str]] = {}
    redacted: dict[int, tuple[str, str]] = {}
    if not own.rows:
        raise ThreadDocumentError(f"{where}: it has no rows. {AGAIN}")
    for expected, row in enumerate(own.rows, start=first):
        here = f"{where}.rows[{expected - first}]"
        if row.version != expected:
            raise ThreadDocumentError(f"{here}: found version {row.version}, expected {expected}. {AGAIN}")
        if link(previous, row.stream, row.version, row.type, row.digest or digest(row.state)) != row.hash:
            raise ThreadDocumentError(f"{here}: its hash does not match its content and the row before it. {AGAIN}")
        event = _event(row, decode, here)
        _check_kind(row, event, own.fork, previous if expected == first else None, here)
        if row.digest is not None:
            shredded[row.version] = row.digest.hex(), row.state.decode("latin-1")
        elif isinstance(event.data, MessageRedacted):
            redacted[event.data.version] = event.data.digest, event.data.stub
        events.append(event)
        previous = row.hash
    for version in sorted(shredded.keys() | redacted.keys()):
        if shredded.get(version) != redacted.get(version):
            raise ThreadDocumentError(
                f"{where}: the stub of redacted version {version} does not match the event that redacted it. {AGAIN}"
            )
    return events


def _event(row: Row, decode: Callable[[Row], Event], where: str) -> Event:
    try:
        event = decode(row)
    except CorruptEventError:
        raise ThreadDocumentError(f"{where}: its bytes are not an event of its type. {AGAIN}") from None
    try:
        event.time  # noqa: B018  # a forged number may not be a time
    except OverflowError:
        raise ThreadDocumentError(f"{where}: its time is not valid. {AGAIN}") from None
    if isinstance(event.data, Shredded) != (row.digest is not None):
        raise ThreadDocumentError(f"{where}: it must have both a digest and a stub, or neither. {AGAIN}")
    if row.digest is not None and row.type in NEVER_SHREDDED:
        raise ThreadDocumentError(f"{where}: it is shredded, but events of its type are never shredded. {AGAIN}")
    return event


def _check_course(events: Sequence[Event], after: int, where: str) -> None:
    """Raise unless the events from index ``after`` on continue the message count and the time of those before.

    Forged rows can have valid hashes; the rest of Clew relies on these two.
    """
    for at, event in enumerate(events[after:], start=after):
        here = f"{where}.rows[{at - after}]"
        data = event.data
        previous = data.to if isinstance(data, HistoryRewound) else at
        if not 0 <= previous <= at:
            raise ThreadDocumentError(f"{here}: it rewinds to a version that is not before it. {AGAIN}")
        if isinstance(data, Opaque):  # it may have no count
            continue
        there = events[previous - 1].messages if previous else 0
        if there >= 0 and event.messages != there + (event.type == MESSAGE_APPENDED):
            raise ThreadDocumentError(f"{here}: its message count is wrong. {AGAIN}")
        if at and event.recorded_at < events[at - 1].recorded_at:
            raise ThreadDocumentError(f"{here}: it was recorded before the event that it follows. {AGAIN}")


def _check_kind(row: Row, event: Event, fork: Fork | None, cut: bytes | None, where: str) -> None:
    """Raise unless the first row, and no other, begins its stream, and a fork at the document's fork point.

    ``cut`` is the hash at the fork point, None for a row that is not the first.
    """
    begins = None if cut is None else "thread-started" if fork is None else "thread-forked"
    if (row.type if row.type in _BEGINS else None) != begins:
        raise ThreadDocumentError(f"{where}: {_quoted(row.type)} is not allowed here. {AGAIN}")
    data = event.data
    if fork is None or cut is None or not isinstance(data, ThreadForked):
        return
    named = data.parent_id, data.parent_version, data.parent_hash
    if named != (_parsed(fork.parent).id, fork.cut, cut.hex()):
        raise ThreadDocumentError(f"{where}: it names another fork point than the stream before it has. {AGAIN}")


def _hash_before(parent: OwnRows | None, fork: Fork | None, where: str) -> bytes:
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
    """Raise unless it is the name of a thread of the tenant, spelled as Clew spells it."""
    parts = _parsed(name)
    try:
        check_id(parts.id, "thread id")
        check_id(parts.tenant, "tenant")
        right = name == stream_name(parts.tenant, "thread", parts.id)
    except InvalidNameError:
        right = False
    if not right:
        raise ThreadDocumentError(f"{where}: {_quoted(name)} is not the name of a thread. {AGAIN}")
    if parts.tenant != tenant:
        raise ThreadDocumentError(f"{where}: {_quoted(name)} belongs to another tenant than the thread. {AGAIN}")


def _parsed(name: str) -> StreamName:
    return parse_stream_name(name) or StreamName("", "", "")


def _quoted(name: str) -> str:
    return ascii(name[:300])
