"""Thread documents: they are serialized from stored rows, and restored in another store as a whole or not at all."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial, reduce
from operator import attrgetter
from typing import Any, NamedTuple, get_args

from clew.domain.blobs import named, whole
from clew.domain.context.events import ContextStateRecorded
from clew.domain.context.state import OWN_IDS
from clew.domain.credential_detection import check_no_credentials
from clew.domain.decider import Append, Intent, RecordEvents, Start
from clew.domain.decider_state import Control, advance
from clew.domain.errors import (
    ConflictError,
    CorruptEventError,
    ImportFormatError,
    InvalidContentError,
    ThreadAheadError,
    ThreadDivergedError,
    ThreadDocumentError,
    UnknownThreadError,
)
from clew.domain.events import RECORD_APPENDED, Event, RecordAppended
from clew.domain.formats.clew_jsonl import Entry
from clew.domain.formats.event_import import Batch
from clew.domain.formats.lineage import Lineage, StreamRows, required_rows, verify_streams
from clew.domain.formats.thread_document import read_document, write_document
from clew.domain.history import HistoryBuilder, HistoryMessage, previous_version
from clew.domain.json_values import JsonObject, check_flags
from clew.domain.models.client import ThreadKind
from clew.domain.ports import EventLog, Row
from clew.domain.runs.events import ServiceThreadBound
from clew.domain.runs.ports import OnExisting
from clew.domain.runs.remote_threads import service_state
from clew.domain.streams import stream_id
from clew.infrastructure.envelope import decode_row
from clew.service import thread_commands
from clew.service.authorization import check_existing_stream
from clew.service.core import ATTEMPTS, CommitOptions, Core, commit, load
from clew.service.effects import Operation, read
from clew.service.stored_rows import PAGE, States, StoredRows, note_written, own_rows, restore_of, write_batch
from clew.service.thread_queries import readable

RESTORED_FROM = "restored_from"
"""The metadata key of a copy: tenant, thread, version and head of the original."""

_AS_NEW = "Give as_new=True to begin a new thread with the messages of the document."


class Restored(NamedTuple):
    """The thread that a document was restored as."""

    thread_id: str
    kind: ThreadKind


def serialize(core: Core, thread_id: str) -> Operation[JsonObject]:
    """A thread as one JSON object, in the format of domain/formats/thread_document.py.

    Raises UnknownThreadError and ThreadDeletedError, CredentialError if a state or a service's id looks like a
    credential, and CorruptEventError for a thread that does not verify.
    """
    lineage = yield from lineage_of(core, thread_id)
    return (yield from read(partial(write_document, lineage)))


def lineage_of(core: Core, thread_id: str, upto: int | None = None) -> Operation[Lineage]:
    """A verified thread with its ancestors: whole, or up to a version and what is needed to verify that.

    Raises the errors of ``serialize``.
    """
    yield from readable(core, thread_id, "serialize", "export")
    lineage: Lineage = yield from read(partial(_lineage, core.log, thread_id, core.stream(thread_id), upto))
    _check_no_credentials(lineage)
    return lineage


def restore(
    core: Core, document: object, *, on_existing: OnExisting, as_new: bool, actor: str | None
) -> Operation[Restored]:
    """Check a whole document, then write the part of it that the store does not have.

    Raises ThreadDocumentError, ThreadAheadError or ThreadDivergedError, and NotAuthorizedError if the caller may not
    read the existing thread, or an ancestor of a new one. After an error, nothing is stored.
    """
    if on_existing not in get_args(OnExisting):
        raise InvalidContentError(f"on_existing={on_existing!r} is neither 'raise' nor 'fork'.")
    check_flags(as_new=as_new)
    lineage = yield from read(partial(read_document, document, decode_row))
    thread_id = lineage.name.id
    if as_new:
        return (yield from _copy(core, lineage, actor))
    _check_tenant(core, lineage, _AS_NEW)
    yield from read(partial(_check_readable, core, lineage))
    ahead = yield from _add_missing(core, lineage)
    if ahead:
        if on_existing == "raise":
            raise ThreadAheadError(thread_id, ahead, lineage.head.version)
        at = lineage.head.version
        thread_id = yield from thread_commands.fork(
            core, thread_id, thread_commands.ForkStart(), at=at, at_message=None, new_id=None, actor=actor
        )
    return Restored(thread_id, (yield from load(core, thread_id)).kind)


def restore_with(
    core: Core, lineages: Sequence[Lineage], thread_id: str, intents: Sequence[Intent], options: CommitOptions
) -> Operation[None]:
    """Write what the store does not have of several threads, and the intents of another thread, in one commit.

    One of the threads may have newer events in the store. Raises ThreadDocumentError, ThreadDivergedError and
    NotAuthorizedError as ``restore``, and ConflictError if the other thread has not the expected version. After an
    error, nothing is stored.
    """
    for lineage in lineages:
        _check_tenant(core, lineage, "")
        yield from read(partial(_check_readable, core, lineage))
    conflict = ConflictError(thread_id, 0, 0)
    for _ in range(ATTEMPTS):
        batch = yield from read(partial(_batch_of_all, core.log, lineages))
        try:
            yield from commit(core, thread_id, intents, options._replace(restored=restore_of(batch), retry=False))
        except ConflictError as error:
            conflict = error
            if (yield from load(core, thread_id)).version != options.expected_version:
                break
        else:
            yield from note_written(core, batch)
            return
    raise conflict


def exists(core: Core, lineage: Lineage) -> Operation[bool]:
    """Whether the store has the thread, at whatever version."""
    return (yield from read(lambda: core.log.stream(lineage.stream) is not None))


def _batch_of_all(log: EventLog, lineages: Sequence[Lineage]) -> Batch:
    """The missing rows of several threads, which may have ancestors in common."""
    together = Lineage(
        tuple([stream for each in lineages for stream in each.streams]),
        tuple([event for each in lineages for event in each.events]),
        tuple([event for each in lineages for event in each.after_cuts]),
        tuple([blob for each in lineages for blob in each.blobs]),
    )
    missing = {(entry.row.stream, entry.row.version): entry for each in lineages for entry in _missing(log, each)[0]}
    return _batch(log, together, list(missing.values()), _decoder(together))


def _check_tenant(core: Core, lineage: Lineage, advice: str) -> None:
    if lineage.name.tenant != core.tenant:
        raise ThreadDocumentError(
            f"thread.tenant: the document is of tenant {lineage.name.tenant!r}, but the store is open for "
            f"{core.tenant!r}. Names are part of the hashes and cannot change: open it for that tenant. {advice}"
        )


def _check_readable(core: Core, lineage: Lineage) -> None:
    """Raise NotAuthorizedError unless the caller may read the existing thread, or the ancestors of a new one."""
    exists = core.log.stream(lineage.stream) is not None
    for name in (lineage.stream,) if exists else (stream.name for stream in lineage.streams):
        check_existing_stream(core, name)


def _add_missing(core: Core, lineage: Lineage) -> Operation[int]:
    """Write the missing rows. Returns the thread's version in the store if it has newer events there, else 0.

    If another writer changes one of the threads meanwhile, the missing rows are determined again.
    """
    conflict = ConflictError(lineage.stream, 0, 0)
    decode = _decoder(lineage)
    for _ in range(ATTEMPTS):
        missing, ahead = yield from read(partial(_missing, core.log, lineage))
        if not missing:
            return ahead
        batch = yield from read(partial(_batch, core.log, lineage, missing, decode))
        try:
            yield from write_batch(core, batch)
            core.models.notify()
        except ConflictError as error:
            conflict = error
        else:
            return 0
    raise conflict


def _missing(log: EventLog, lineage: Lineage) -> tuple[list[Entry], int]:
    """The missing rows of a lineage, and the version of the thread in the store if it has newer events, else 0.

    Raises ThreadDivergedError. Rows after a cut may differ in the store: they are not part of the thread.
    """
    missing: list[Entry] = []
    for stream, end in zip(lineage.streams, lineage.ends, strict=True):
        rows = stream.rows
        stored = _stored_version(log, stream)
        if stored >= rows[-1].version and stream.name == lineage.stream:
            _check_same(log, stream, end)
            ahead = stored > rows[-1].version
            return ([], stored) if ahead else (missing, 0)  # a redaction in an ancestor leaves no event here
        if stored:
            _check_same(log, stream, min(stored, end))
        last = min(stored, rows[-1].version)
        if not stored or _stored_hash(log, stream.name, last) == _hash(stream, last):
            # Shredded rows that are stored, too: a purge among the missing ones explains them.
            new = [row for row in rows if row.version > stored or row.digest is not None]
            if new and new[-1].version > stored:
                missing += (Entry(row, stream.fork if row is rows[0] else None) for row in new)
    return missing, 0


def _stored_version(log: EventLog, stream: StreamRows) -> int:
    """The newest version of a stream in the store, 0 if it does not exist."""
    stored = log.stream(stream.name)
    if stored is None:
        return 0
    if stored.fork != stream.fork:
        raise _diverged(stream.rows[0], None)
    return log.control(stream.name).version


def _check_same(log: EventLog, stream: StreamRows, upto: int) -> None:
    """Raise ThreadDivergedError, which names the first version that differs, unless a stream has the same rows.

    A hash covers all earlier rows, so a binary search finds the version.
    """
    if _stored_hash(log, stream.name, upto) == _hash(stream, upto):
        return
    rows = [row for row in stream.rows if row.version <= upto]
    differs = bisect_left(rows, 1, key=lambda row: int(_stored_hash(log, stream.name, row.version) != row.hash))
    raise _diverged(rows[differs], _stored_hash(log, stream.name, rows[differs].version))


def _diverged(row: Row, stored_hash: bytes | None) -> ThreadDivergedError:
    in_store = None if stored_hash is None else stored_hash.hex()
    return ThreadDivergedError(stream_id(row.stream), row.version, in_store, row.hash.hex(), _AS_NEW)


def _stored_hash(log: EventLog, stream: str, version: int) -> bytes | None:
    """The hash of a version of the stream itself in the store."""
    rows = log.own_rows(stream, after=version - 1, limit=1)
    return rows[0].hash if rows and rows[0].version == version else None


def _hash(stream: StreamRows, version: int) -> bytes | None:
    """The hash of a version in the document."""
    index = version - stream.rows[0].version
    return stream.rows[index].hash if 0 <= index < len(stream.rows) else None


def _decoder(lineage: Lineage) -> Callable[[Row], Event]:
    """Decodes rows like ``decode_row``, but those of the lineage were decoded when it was verified."""
    events = {(event.stream, event.version): event for event in (*lineage.events, *lineage.after_cuts)}

    def decode(row: Row) -> Event:
        event = events.get((row.stream, row.version))
        known = event is not None and event.hash == row.hash and event.redacted == (row.digest is not None)
        return event if event is not None and known else decode_row(row)

    return decode


def _batch(log: EventLog, lineage: Lineage, missing: Sequence[Entry], decode: Callable[[Row], Event]) -> Batch:
    """The rows to write, checked against the store, with the redactions of stored rows."""
    blobs = {blob.digest: blob for blob in lineage.blobs}
    batch = Batch(StoredRows(log, States(log.shredded())), decode, {})
    try:
        for number, entry in enumerate(missing):
            batch.add(number, entry, [blobs[name.digest] for name in named(decode(entry.row))])
        for refused in batch.found.values():
            raise refused.error
    except ImportFormatError as error:
        raise ThreadDocumentError(f"It does not continue the rows of the store: {error}") from None
    if batch.failed:  # another writer has just started or extended a thread with that id
        raise batch.failed[0].error
    return batch


def _lineage(log: EventLog, thread_id: str, name: str, upto: int | None) -> Lineage:
    """A verified thread with its ancestors. If a redaction happens meanwhile, the thread is read again."""
    fault: ThreadDocumentError | None = None
    for _ in range(ATTEMPTS):
        shredded = log.shredded()
        try:
            lineage = verify_streams(_streams(log, thread_id, name, upto), decode_row)
        except ThreadDocumentError as error:
            fault = error
        else:
            found = log.blobs_of(lineage.all_events)
            if [event for event, _ in found] == [*lineage.all_events]:
                return lineage.with_blobs(blob for _, blobs in found for blob in blobs)
            continue  # an event was redacted after it was read
        if log.shredded() == shredded:
            break
    raise CorruptEventError(
        f"Thread {thread_id!r} cannot be serialized: it does not verify, and verify() shows where. {fault}"
    )


def _streams(log: EventLog, thread_id: str, name: str | None, cut: int | None) -> list[StreamRows]:
    """The streams of a thread up to a version, or whole; the oldest ancestor first."""
    streams: list[StreamRows] = []
    while name is not None:
        stream = log.stream(name)
        if stream is None:
            raise UnknownThreadError(thread_id)
        rows = (row._replace(position=0) for row in own_rows(log, name, PAGE))
        streams.append(StreamRows(name, stream.fork, tuple(required_rows(rows, cut, decode_row))))
        name, cut = stream.parent, stream.cut
    return streams[::-1]


def _check_no_credentials(lineage: Lineage) -> None:
    for event in (*lineage.events, *lineage.after_cuts):
        data: Any = event.data
        if isinstance(data, ContextStateRecorded):
            check_no_credentials(data.state, f"state of {data.provider!r} at version {event.version}")
        elif isinstance(data, ServiceThreadBound):
            check_no_credentials(data.id, f"the service's id of the thread at version {event.version}")


def _copy(core: Core, lineage: Lineage, actor: str | None) -> Operation[Restored]:
    """Begin a thread with the messages, records, provider states and service id on the path of another thread.

    Redacted messages and records are left out. The state of a history store is not copied: it belongs to the other
    thread only.
    """
    control = reduce(advance, lineage.events, Control())
    thread_id = core.thread_id()
    intents = [_start(lineage, control), *_copied_intents(lineage)]
    yield from commit(core, thread_id, intents, CommitOptions(actor=actor, base=Control()))
    return Restored(thread_id, control.kind)


def _start(lineage: Lineage, control: Control) -> Start:
    name = lineage.name
    source: JsonObject = {
        "tenant": name.tenant,
        "thread": name.id,
        "version": lineage.head.version,
        "head": lineage.head.hash.hex(),
    }
    metadata = {**control.metadata, RESTORED_FROM: source}
    return Start(control.title, control.labels, metadata, kind=control.kind)


def _copied_intents(lineage: Lineage) -> list[Intent]:
    """The intents after the start.

    These are the messages and records, the service's id of the thread after the messages that the service has, and the
    states of providers.
    """
    blobs = {blob.digest: blob.data for blob in lineage.blobs}
    events = [whole(event, blobs) for event in lineage.events]
    builder = HistoryBuilder("")
    builder.add(events)
    history = builder.history()
    bound, sent = _service_thread(lineage)
    intents: list[Intent] = []
    new_versions: dict[int, int] = {}
    items: list[HistoryMessage | Event] = [*history, *_records(events)]
    for item in sorted(items, key=attrgetter("version")):
        if isinstance(item, Event):
            if isinstance(item.data, RecordAppended):
                intents.append(Append((item.data,)))
            continue
        if bound is not None and item.version > sent:
            intents.append(bound)
            bound = None
        if item.message is not None:
            intents.append(Append((item.message,)))
        new_versions[item.version] = len(intents) + 1
    if bound is not None:
        intents.append(bound)
    states = tuple(
        ContextStateRecorded(
            provider=id_,
            state=recorded.state,
            seen=max((new for old, new in new_versions.items() if old <= recorded.seen), default=0),
        )
        for id_, recorded in history.context.states.items()
        if id_ not in OWN_IDS
    )
    return [*intents, RecordEvents(states)] if states else intents


def _records(events: Sequence[Event]) -> list[Event]:
    """The events of records on the path, in order."""
    version, path = len(events), list[Event]()
    while version:
        path.append(events[version - 1])
        version = previous_version(version, path[-1])
    return [event for event in reversed(path) if event.type == RECORD_APPENDED]


def _service_thread(lineage: Lineage) -> tuple[RecordEvents | None, int]:
    """The intent that records the service's id of the thread, and the last version that the service has.

    None if another thread continues to write to the thread at the service. Then the service gets all messages again.
    """
    cuts = {(stream.name, end + 1) for stream, end in zip(lineage.streams, lineage.ends, strict=True)}
    side = service_state(
        "", lineage.events, [each for each in lineage.after_cuts if (each.stream, each.version) in cuts]
    )
    call = side.call
    if call.reference is None or side.diverged:
        return None, 0
    bound = RecordEvents((ServiceThreadBound(id=call.reference.id, kind=call.reference.kind),))
    return bound, max(call.sent, call.answer)
