"""Thread documents: serialized from stored rows, and restored in another store, completely or not at all."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import partial, reduce
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple, get_args

from clew.domain.context.events import ContextStateRecorded
from clew.domain.context.state import HISTORY_STORE
from clew.domain.credentials import check_no_credentials
from clew.domain.decider import Intent, Record, Say, Start
from clew.domain.decider_state import SNAPSHOT_EVERY, Control, advance
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
from clew.domain.events import Event
from clew.domain.formats.clew_jsonl import Entry
from clew.domain.formats.event_import import Batch
from clew.domain.formats.lineage import Lineage, OwnRows, needed, verified
from clew.domain.formats.thread_document import read_document, write_document
from clew.domain.history import HistoryBuilder
from clew.domain.json_values import JsonObject
from clew.domain.models.client import ThreadKind
from clew.domain.ports import EventLog, Fork, Restore, Row
from clew.domain.runs.events import ServiceThreadBound
from clew.domain.runs.ports import OnExisting
from clew.domain.runs.remote_threads import service_side
from clew.domain.streams import parse_stream_name
from clew.infrastructure.envelope import decode_row
from clew.service import thread_commands
from clew.service.authorization import check_there
from clew.service.core import ATTEMPTS, CommitOptions, Core, commit, load
from clew.service.event_transfer import PAGE, StoredRows, own_rows, write_batch
from clew.service.operations import Operation, read, wait
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

    Raises UnknownThreadError, ThreadDeletedError, CredentialError for a state or a service's id that looks
    like a credential, and CorruptEventError for a thread that does not verify.
    """
    yield from readable(core, thread_id, "serialize", "export")
    lineage = yield from read(partial(_lineage, core.log, thread_id, core.stream(thread_id)))
    return (yield from read(partial(_document, lineage)))


def restore(
    core: Core, document: object, *, on_existing: OnExisting, as_new: bool, actor: str | None
) -> Operation[Restored]:
    """Check a whole document, then write the part of it that the store does not have.

    Raises ThreadDocumentError, ThreadAheadError or ThreadDivergedError, and NotAuthorizedError if the caller may not
    read the existing thread, or an ancestor of a new one. After an error, nothing is stored.
    """
    if on_existing not in get_args(OnExisting):
        raise InvalidContentError(f"on_existing={on_existing!r} is neither 'raise' nor 'fork'.")
    lineage = yield from read(partial(read_document, document, decode_row))
    thread_id = lineage.name.id
    if as_new:
        return Restored(*(yield from begin_again(core, lineage, actor)))
    if lineage.name.tenant != core.tenant:
        raise ThreadDocumentError(
            f"thread.tenant: the document is of tenant {lineage.name.tenant!r}, but the store is open for "
            f"{core.tenant!r}. Names are part of the hashes and cannot change: open it for that tenant. {_AS_NEW}"
        )
    yield from read(partial(_check_there, core, lineage))
    ahead = yield from _add_missing(core, lineage)
    if ahead:
        if on_existing == "raise":
            raise ThreadAheadError(thread_id, ahead, lineage.head.version)
        at = lineage.head.version
        thread_id = yield from thread_commands.fork(
            core, thread_id, thread_commands.Begun(), at=at, at_message=None, new_id=None, actor=actor
        )
    return Restored(thread_id, (yield from load(core, thread_id)).kind)


def _check_there(core: Core, lineage: Lineage) -> None:
    """Raise NotAuthorizedError unless the caller may read the existing thread, or the ancestors of a new one."""
    there = core.log.stream(lineage.stream) is not None
    for name in (lineage.stream,) if there else (own.name for own in lineage.streams):
        check_there(core, name)


def _add_missing(core: Core, lineage: Lineage) -> Operation[int]:
    """Write the missing rows; returns the version of the thread in the store if it has newer events, else 0.

    If another writer changes one of the threads meanwhile, look again for missing rows.
    """
    conflict = ConflictError(lineage.stream, 0, 0)
    for _ in range(ATTEMPTS):
        missing, ahead = yield from read(partial(_missing, core.log, lineage))
        if not missing:
            return ahead
        batch = yield from read(partial(_batch, core.log, missing))
        try:
            yield from write_batch(core, batch)
        except ConflictError as found:
            conflict = found
            continue
        for _, rows in groupby(batch.rows, attrgetter("stream")):  # a fork's snapshots derive from its parent's
            controls = yield from read(partial(_due, core.log, list(rows)))
            if controls:
                yield from wait(core.log.restore(Restore((), {}, controls=controls)))
        return 0
    raise conflict


def _due(log: EventLog, rows: Sequence[Row]) -> list[tuple[str, Control]]:
    """The snapshots of a stream at the versions where appends make them, each from the one before."""
    found: list[tuple[str, Control]] = []
    for row in rows:
        if row.version % SNAPSHOT_EVERY == 0:
            control = found[-1][1] if found else log.control(row.stream, row.version)
            since = log.lineage(row.stream, after=control.version, upto=row.version)
            found.append((row.stream, reduce(advance, since, control)))
    return found


def _missing(log: EventLog, lineage: Lineage) -> tuple[list[Entry], int]:
    """The missing rows of a lineage, and the version of the thread in the store if it has newer events, else 0.

    Raises ThreadDivergedError. Rows after a cut may differ in the store: they are not part of the thread.
    """
    found: list[Entry] = []
    for own, end in zip(lineage.streams, lineage.ends, strict=True):
        rows = own.rows
        there = _there(log, own)
        if there >= rows[-1].version and own.name == lineage.stream:
            _check_same(log, own, end)
            ahead = there > rows[-1].version
            return ([], there) if ahead else (found, 0)  # a redaction in an ancestor leaves no event here
        if there:
            _check_same(log, own, min(there, end))
        last = min(there, rows[-1].version)
        same = not there or _row(log, own.name, last) == _hash(own, last)
        entries = (Entry(row, own.fork if row is rows[0] else None) for row in rows if row.version > there)
        found += entries if same else ()
    return found, 0


def _there(log: EventLog, own: OwnRows) -> int:
    """The newest version of a stream in the store, 0 if it does not exist."""
    stream = log.stream(own.name)
    if stream is None:
        return 0
    if (stream.parent, stream.cut) != ((None, None) if own.fork is None else (own.fork.parent, own.fork.cut)):
        raise _diverged(own, own.rows[0], None)
    return log.control(own.name).version


def _check_same(log: EventLog, own: OwnRows, upto: int) -> None:
    """Raise ThreadDivergedError, which names the first version that differs, unless a stream has the same rows.

    A hash covers all earlier rows, so a binary search finds the version.
    """
    if _row(log, own.name, upto) == _hash(own, upto):
        return
    versions = [row.version for row in own.rows if row.version <= upto]
    at = bisect_left(versions, 1, key=lambda version: int(_row(log, own.name, version) != _hash(own, version)))
    raise _diverged(own, own.rows[at], _row(log, own.name, versions[at]))


def _diverged(own: OwnRows, row: Row, there: bytes | None) -> ThreadDivergedError:
    name = parse_stream_name(own.name)
    thread_id = own.name if name is None else name.id
    return ThreadDivergedError(thread_id, row.version, None if there is None else there.hex(), row.hash.hex(), _AS_NEW)


def _row(log: EventLog, stream: str, version: int) -> bytes | None:
    """The hash of a version of the stream itself."""
    rows = log.own_rows(stream, after=version - 1, limit=1)
    return rows[0].hash if rows and rows[0].version == version else None


def _hash(own: OwnRows, version: int) -> bytes | None:
    at = version - own.rows[0].version
    return own.rows[at].hash if 0 <= at < len(own.rows) else None


def _batch(log: EventLog, missing: Sequence[Entry]) -> Batch:
    """The rows to write, checked against the store, with the redactions of stored rows."""
    batch = Batch(StoredRows(log), decode_row, {})
    try:
        for number, entry in enumerate(missing):
            batch.add(number, entry)
    except ImportFormatError as error:
        raise ThreadDocumentError(f"It does not continue the rows of the store: {error}") from None
    if batch.failed:  # another writer has just started or extended a thread with that id
        raise batch.failed[0].error
    return batch


def _lineage(log: EventLog, thread_id: str, name: str) -> Lineage:
    """A verified thread with its ancestors. If a redaction happens meanwhile, it is read again."""
    wrong: ThreadDocumentError | None = None
    for _ in range(ATTEMPTS):
        shredded = log.shredded()
        try:
            return verified(_streams(log, thread_id, name), decode_row)
        except ThreadDocumentError as error:
            wrong = error
        if log.shredded() == shredded:
            break
    raise CorruptEventError(
        f"Thread {thread_id!r} cannot be serialized: it does not verify, and verify() shows where. {wrong}"
    ) from None


def _streams(log: EventLog, thread_id: str, name: str | None) -> list[OwnRows]:
    """The streams of a thread, the oldest ancestor first."""
    found: list[OwnRows] = []
    cut: int | None = None
    while name is not None:
        stream = log.stream(name)
        if stream is None:
            raise UnknownThreadError(thread_id)
        fork = None if stream.parent is None or stream.cut is None else Fork(stream.parent, stream.cut)
        rows = (row._replace(position=0) for row in own_rows(log, name, PAGE))
        found.append(OwnRows(name, fork, tuple(needed(rows, cut, decode_row))))
        name, cut = stream.parent, stream.cut
    return found[::-1]


def _document(lineage: Lineage) -> JsonObject:
    for event in (*lineage.events, *lineage.beyond):
        data: Any = event.data
        if isinstance(data, ContextStateRecorded):
            check_no_credentials(data.state, f"state of {data.provider!r} at version {event.version}")
        elif isinstance(data, ServiceThreadBound):
            check_no_credentials(data.id, f"the service's id of the thread at version {event.version}")
    return write_document(lineage)


def begin_again(core: Core, lineage: Lineage, actor: str | None) -> Operation[tuple[str, ThreadKind]]:
    """Begin a thread with the messages, provider states and service id on the path of another thread.

    Redacted messages are left out. The state of a history store is not copied: it belongs to the other thread only.
    """
    control = Control()
    for event in lineage.events:
        control = advance(control, event)
    thread_id = core.thread_id()
    intents = [_start(lineage, control), *_copied_intents(lineage)]
    yield from commit(core, thread_id, intents, CommitOptions(actor=actor, base=Control()))
    return thread_id, control.kind


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
    """The intents after the start: messages, the service's id after the messages that it has, and provider states."""
    builder = HistoryBuilder("")
    builder.add(lineage.events)
    history = builder.history()
    bound, had = _service(lineage)
    intents: list[Intent] = []
    at: dict[int, int] = {}
    for item in history:
        if bound is not None and item.version > had:
            intents.append(bound)
            bound = None
        if item.message is not None:
            intents.append(Say((item.message,)))
        at[item.version] = len(intents) + 1
    if bound is not None:
        intents.append(bound)
    states = tuple(
        ContextStateRecorded(
            provider=id_,
            state=kept.state,
            seen=max((then for version, then in at.items() if version <= kept.seen), default=0),
        )
        for id_, kept in history.context.states.items()
        if id_ != HISTORY_STORE
    )
    return [*intents, Record(states)] if states else intents


def _service(lineage: Lineage) -> tuple[Record | None, int]:
    """The service's id of the thread, and the version up to which the service has the messages.

    None if another thread continues to write to it. Then the service gets all messages again.
    """
    side = service_side("", lineage.events, _after_cuts(lineage))
    call = side.call
    if call.reference is None or side.left:
        return None, 0
    return Record((ServiceThreadBound(id=call.reference.id, kind=call.reference.kind),)), max(call.sent, call.answer)


def _after_cuts(lineage: Lineage) -> list[Event]:
    cuts = {(own.name, end + 1) for own, end in zip(lineage.streams, lineage.ends, strict=True)}
    return [event for event in lineage.beyond if (event.stream, event.version) in cuts]
