"""Verification: recomputes every hash and compares what the store says of its streams with what the events say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from clew.domain.chain import ROOT, digest, link
from clew.domain.errors import CorruptEventError
from clew.domain.events import Event, MessageRedacted, ThreadForked
from clew.domain.names import parse_stream_name
from clew.domain.ports import Fault, StreamInfo, Verdict
from clew.infrastructure.envelope import decode

if TYPE_CHECKING:
    from clew.infrastructure.recorder import Recorder, Row

PAGE = 1_000
"""Rows, or streams, that are read at once."""


def verify_store(recorder: Recorder) -> Verdict:
    """Verify every stream of the store, of whatever kind and tenant."""
    streams = events = 0
    after = 0
    while page := recorder.streams(after=after, limit=PAGE):
        for stream in page:
            count, fault = _verify_stream(recorder, stream)
            streams, events = streams + 1, events + count
            if fault is not None:
                return Verdict(streams, events, fault)
        after = page[-1].key
    for key, version in recorder.orphans(1):
        return Verdict(streams, events, Fault(f"#{key}", version, "it belongs to no stream of the store"))
    return Verdict(streams, events, None)


def verify_lineage(recorder: Recorder, name: str) -> Verdict:
    """Verify one stream and all its ancestors, each of them whole: what was redacted after a cut is named after it."""
    streams = events = 0
    stream = recorder.stream(name)
    while stream is not None:
        count, fault = _verify_stream(recorder, stream)
        streams, events = streams + 1, events + count
        if fault is not None:
            return Verdict(streams, events, fault)
        stream = None if stream.parent is None else recorder.stream(stream.parent)
    return Verdict(streams, events, None)


def _verify_stream(recorder: Recorder, stream: StreamInfo) -> tuple[int, Fault | None]:
    """How many events were looked at, and the first fault of the stream's own events."""
    name = parse_stream_name(stream.name)
    thread_id = stream.name if name is None else name.id
    previous, expected, fault = _root(recorder, stream, thread_id)
    if fault is not None:
        return 0, fault
    shredded: dict[int, tuple[str, str]] = {}
    redacted: dict[int, tuple[str, str]] = {}
    count = 0
    for row in _rows(recorder, stream.name):
        count += 1
        if expected is None:
            expected = row.version if row.version in (0, 1) else 1
        if row.version != expected:
            return count, Fault(thread_id, expected, "it is missing")
        state_digest = digest(row.state) if row.digest is None else row.digest
        previous = link(previous, row.stream, row.version, row.type, state_digest)
        if previous != row.hash:
            return count, Fault(
                thread_id, row.version, "its hash does not follow from what it holds and what is before it"
            )
        if name is not None and name.kind == "thread":
            reason = _check_event(row, stream, shredded, redacted)
            if reason is not None:
                return count, Fault(thread_id, row.version, reason)
        elif row.digest is not None:
            shredded[row.version] = (row.digest.hex(), "")
        expected += 1
    if count == 0:
        return 0, Fault(thread_id, expected or 1, "it is missing")
    return count, _compare(thread_id, shredded, redacted)


def _root(recorder: Recorder, stream: StreamInfo, thread_id: str) -> tuple[bytes, int | None, Fault | None]:
    """The hash that a stream's first event is linked to, the version that it has, and what is wrong with either."""
    if stream.parent is None and stream.cut is None:
        return ROOT, None, None
    if stream.parent is None or stream.cut is None:
        return ROOT, None, Fault(thread_id, (stream.cut or 0) + 1, "the store names half of what it is forked from")
    found = recorder.lineage(stream.parent, after=stream.cut - 1, upto=stream.cut)
    if not found or found[0].stream != stream.parent:
        return ROOT, None, Fault(thread_id, stream.cut + 1, "the version that it is forked from is not there")
    return found[0].hash, stream.cut + 1, None


def _rows(recorder: Recorder, name: str) -> Iterator[Row]:
    after = -1
    while page := recorder.own_rows(name, after=after, limit=PAGE):
        yield from page
        after = page[-1].version


def _check_event(
    row: Row, stream: StreamInfo, shredded: dict[int, tuple[str, str]], redacted: dict[int, tuple[str, str]]
) -> str | None:
    """What the event itself says against the store, None if they agree; notes what was shredded and redacted."""
    if row.digest is not None:
        shredded[row.version] = (row.digest.hex(), row.state.decode("latin-1"))
        return None
    if row.type not in {"thread-forked", "message-redacted"}:
        return "it begins a stream that the store says is forked" if row.version == (stream.cut or -1) + 1 else None
    try:
        event = decode(row.stream, row.version, row.type, row.state)
    except CorruptEventError:
        return "its bytes are no event of its type"
    if isinstance(event.data, MessageRedacted):
        redacted[event.data.version] = (event.data.digest, event.data.stub)
    if isinstance(event.data, ThreadForked):
        return _check_fork(event, event.data, stream)
    return None


def _check_fork(event: Event, data: ThreadForked, stream: StreamInfo) -> str | None:
    parent = None if stream.parent is None else parse_stream_name(stream.parent)
    if parent is None or (parent.id, stream.cut) != (data.parent_id, data.parent_version):
        return "the store says that it is forked from elsewhere"
    return None if event.version == data.parent_version + 1 else "it is not the first event of its thread"


def _compare(
    thread_id: str, shredded: dict[int, tuple[str, str]], redacted: dict[int, tuple[str, str]]
) -> Fault | None:
    for version in sorted(shredded.keys() | redacted.keys()):
        if version not in redacted:
            return Fault(thread_id, version, "its bytes were shredded and no event says so")
        if version not in shredded:
            return Fault(thread_id, version, "it was redacted, and bytes are there again")
        if shredded[version] != redacted[version]:
            return Fault(thread_id, version, "its stub is not the one of the event that redacted it")
    return None
