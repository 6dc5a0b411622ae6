"""Verification: recomputes every hash and compares what the store says of its streams with what the events say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from clew.domain.chain import ROOT, digest, link
from clew.domain.errors import CorruptEventError
from clew.domain.events import MessageRedacted, ThreadForked
from clew.domain.names import parse_stream_name
from clew.domain.ports import Fault, StreamInfo, Verdict
from clew.infrastructure.envelope import decode

if TYPE_CHECKING:
    from clew.infrastructure.recorder import Recorder, Row

PAGE = 1_000
"""Rows, or streams, that are read at once."""

LOWEST = -(2**63)
"""Below every key and every version, also those that only tampering makes."""


def verify_store(recorder: Recorder) -> Verdict:
    """Verify every stream of the store, of whatever kind and tenant."""
    streams = events = 0
    after = LOWEST
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
    is_thread = name is not None and name.kind == "thread"
    thread_id = _shown(stream.name if name is None else name.id)
    expected = None if stream.cut is None and not is_thread else (stream.cut or 0) + 1
    previous = ROOT
    shredded: dict[int, tuple[str, str]] = {}
    redacted: dict[int, tuple[str, str]] = {}
    count = 0
    for row in _rows(recorder, stream.name):
        count += 1
        if count == 1:
            if expected is None:  # another application's stream may start at 0
                expected = row.version if row.version in (0, 1) else 1
            reason = _check_origin(row, stream) if is_thread else None
            if reason is not None:
                return count, Fault(thread_id, row.version, reason)
        if expected is None or row.version != expected:
            return count, Fault(thread_id, expected or 1, "it is missing")
        if count == 1 and (stream.parent is not None or stream.cut is not None):
            root = _root(recorder, stream)
            if root is None:
                return count, Fault(thread_id, row.version, "the version that it is forked from is not there")
            previous = root
        if not _is_linked(previous, row):
            reason = "its hash does not follow from what it holds and what is before it"
            return count, Fault(thread_id, row.version, reason)
        previous = row.hash
        if is_thread:
            reason = _check_event(row, shredded, redacted)
            if reason is not None:
                return count, Fault(thread_id, row.version, reason)
        elif row.digest is not None:
            shredded[row.version] = (row.digest.hex(), "")
        expected += 1
    if count == 0:
        return 0, Fault(thread_id, expected or 1, "it is missing")
    return count, _compare(thread_id, shredded, redacted)


def _shown(name: str) -> str:
    """A name as it can be printed: damaged ones hold what is no text."""
    return name.encode(errors="replace").decode()


def _check_origin(row: Row, stream: StreamInfo) -> str | None:
    """Whether a thread's first event says of its origin what the store says, None if so."""
    if row.type == "thread-forked" and row.digest is None:
        try:
            data = decode(row.stream, row.version, row.type, row.state).data
        except (CorruptEventError, TypeError):  # the chain will tell
            return None
        parent = None if stream.parent is None else parse_stream_name(stream.parent)
        if not isinstance(data, ThreadForked):
            return None
        if parent is None or (parent.id, stream.cut) != (data.parent_id, data.parent_version):
            return "the store says that it is forked from elsewhere"
    elif stream.parent is not None or stream.cut is not None:
        if row.version <= (stream.cut or 0) + 1:
            return "it begins a thread that the store says is forked"
    return None


def _root(recorder: Recorder, stream: StreamInfo) -> bytes | None:
    """The hash that a fork's first event is linked to, None if it is not there."""
    if stream.parent is None or stream.cut is None:
        return None
    for row in recorder.own_rows(stream.parent, after=stream.cut - 1, limit=1):
        if row.version == stream.cut:
            return row.hash
    return None


def _is_linked(previous: bytes, row: Row) -> bool:
    """Whether the hash of a row follows; what is not even of the right kind, in a damaged file, does not."""
    if not all(isinstance(part, bytes) for part in (row.state, row.hash, row.digest or b"")):
        return False
    try:
        state_digest = digest(row.state) if row.digest is None else row.digest
        return link(previous, row.stream, row.version, row.type, state_digest) == row.hash
    except (UnicodeEncodeError, AttributeError):
        return False


def _rows(recorder: Recorder, name: str) -> Iterator[Row]:
    after = LOWEST
    while page := recorder.own_rows(name, after=after, limit=PAGE):
        yield from page
        after = page[-1].version


def _check_event(
    row: Row, shredded: dict[int, tuple[str, str]], redacted: dict[int, tuple[str, str]]
) -> str | None:
    """What is wrong with the event itself, None if nothing; notes what was shredded and redacted."""
    if row.digest is not None:
        shredded[row.version] = (row.digest.hex(), row.state.decode("latin-1"))
    elif row.type == "message-redacted":
        try:
            data = decode(row.stream, row.version, row.type, row.state).data
        except CorruptEventError:
            return "its bytes are no event of its type"
        if isinstance(data, MessageRedacted):
            redacted[data.version] = (data.digest, data.stub)
    return None


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
