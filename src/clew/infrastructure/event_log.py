"""The event log of a store: Clew's events on top of a recorder of stored bytes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, cast

from eventsourcing.application import Application
from eventsourcing.persistence import JSONTranscoder, Mapper, StoredEvent
from eventsourcing.utils import Environment

from clew.domain.blobs import Named, named, named_in, stored, unmatched, whole, whole_message
from clew.domain.decider_state import (
    SNAPSHOT_EVERY,
    Control,
    advance,
    unnamed_checkpoints,
    with_checkpoint,
    with_checkpoints,
)
from clew.domain.errors import CorruptEventError, ReadOnlyStoreError
from clew.domain.event_index import (
    CHECKPOINTS,
    INDEXED_TYPES,
    may_have_numbers,
    number_of_checkpoint,
    numbers_of,
    numbers_of_key,
)
from clew.domain.events import (
    APPENDED_TYPES,
    EVENT_TYPES,
    RECORD_APPENDED,
    Event,
    MessageAppended,
    Opaque,
    holds_text,
)
from clew.domain.history import HistoryMessage, as_message
from clew.domain.messages import FunctionResult, Media
from clew.domain.ports import (
    Appended,
    Blob,
    Cut,
    Redactable,
    Restore,
    Row,
    Shred,
    Submitted,
    Verdict,
    Write,
)
from clew.domain.projection import Recorded, Unreadable
from clew.domain.streams import digest, link
from clew.infrastructure.envelope import (
    RecordedRows,
    decode,
    decode_message,
    decode_row,
    encode,
    key_mark,
    peek,
    recorded,
    stub,
)
from clew.infrastructure.recorder_ports import (
    Append,
    IndexEntry,
    NewEvent,
    Recorder,
    Snapshot,
    read_control,
    snapshot_of,
)
from clew.infrastructure.verification import is_whole, verify_lineages, verify_store

_BLOBS_IN_QUERY = 500


class EnvelopeMapper(Mapper[str]):
    """The mapper between Clew's events and the library's four-field stored events. Uses Clew's closed registry.

    The library's own mapper imports what a stored row names, and its transcoder changes user data that looks like its
    tags. Neither is used.
    """

    def __init__(self) -> None:
        super().__init__(transcoder=JSONTranscoder())

    def to_stored_event(self, domain_event: Any) -> StoredEvent:
        """The stored form of an Event. Raises InvalidContentError for one that is too large."""
        event: Event = domain_event
        return StoredEvent(event.stream, event.version, event.type, encode(event))

    def to_domain_event(self, stored_event: StoredEvent) -> Any:
        """The Event in a stored event; unknown types are opaque. Raises CorruptEventError."""
        return decode(
            str(stored_event.originator_id),
            stored_event.originator_version,
            stored_event.topic,
            stored_event.state,
        )


class ConversationLog(Application[str]):
    """Clew's event log. All settings are arguments: the environment of the process is not read."""

    name = "clew"

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        super().__init__(env)
        recorder = self._recorder = cast("Recorder", self.recorder)
        # These methods of the recorder are used as they are, because their results need no decoding.
        self.repeated = recorder.repeated
        self.stream = recorder.stream
        self.existing = recorder.existing
        self.streams = recorder.streams
        self.forks = recorder.forks
        self.last_position = recorder.last_position
        self.newest_position = recorder.newest_position
        self.count_after = recorder.count_after
        self.listen = recorder.listen
        self.may_fill = recorder.may_fill
        self.is_bound = recorder.is_bound
        self.is_served = recorder.is_served
        self.lease = recorder.lease
        self.draft = recorder.draft
        self.fold_state = recorder.fold_state
        self.shredded = recorder.shredded
        self._read_only: str | None = None

    def leased(self) -> list[str]:
        """The names of the streams with a lease, even if it has expired."""
        return [name for kind, name, _ in self._recorder.runs() if kind == "lease"]

    def refuse_writes(self, store: str) -> None:
        """From now on, raise ReadOnlyStoreError for every append. ``store`` is its name in the error."""
        self._read_only = store

    def _check_writable(self) -> None:
        if self._read_only is not None:
            raise ReadOnlyStoreError(self._read_only)

    def construct_env(self, name: str, env: Mapping[str, str] | None = None) -> Environment:
        """Use only the arguments: the environment has the settings of the host's own applications."""
        return Environment(name, dict(env or {}))

    def construct_mapper(self) -> Mapper[str]:
        """Clew's mapper. It is not set in the factory, so other applications keep theirs."""
        return EnvelopeMapper()

    def submit(self, write: Write) -> Submitted:
        """Pass an append to the writer: see the port."""
        if self._read_only is not None:
            raise ReadOnlyStoreError(self._read_only)
        heads = dict(write.previous)
        rows: list[NewEvent] = []
        links: list[bytes] = []
        hashes: dict[tuple[str, int], bytes] = {}
        mark = None if write.key is None else key_mark(self._recorder.tag(), write.key, len(write.events))
        marked = None if write.key is None else write.key.stream
        entries: list[IndexEntry] = []
        record_blobs: list[Blob] = []
        for event in write.events:
            name, version, type_ = event[:3]
            blobs: tuple[Blob, ...] = ()
            contents = event.data.message.contents if isinstance(event.data, MessageAppended) else ()
            # Not in a function: each append would call it, and most messages are one text.
            only = contents[0] if len(contents) == 1 else None
            has_media = type(only) is Media or (type(only) is FunctionResult and bool(only.contents))
            if type_ == RECORD_APPENDED or len(contents) > 1 or has_media:
                event, blobs = stored(event)  # noqa: PLW2901 - without the bytes next to it
            state = encode(event, mark if name == marked else None)
            if name == marked:
                marked = None
            rows.append(NewEvent(name, version, type_, state))
            heads[name] = head = link(heads[name], name, version, type_, digest(state))
            links.append(head)
            if write.controls:
                hashes[name, version] = head
            if blobs or type_ in INDEXED_TYPES:
                entries += [IndexEntry(name, number, version) for number in numbers_of(event)]
                record_blobs += blobs
        snapshots: list[Snapshot] = []
        for stream, control in write.controls:
            snapshots.append(snapshot_of(stream, control._replace(head=hashes[stream, control.version])))
        append = Append(
            rows,
            forks=write.forks,
            shreds=write.shreds,
            forgets=write.forgets,
            snapshots=snapshots,
            key=write.key,
            previous=write.previous,
            links=links,
            blobs=write.blobs,
            claims=write.claims,
            drafts=write.drafts,
            entries=entries,
            folds=write.folds,
            record_blobs=record_blobs,
        )
        if write.restored is not None:
            append = _after(self._restoring(write.restored), append)
        return Submitted(self._recorder.enqueue(append), heads)

    def restore(self, restore: Restore) -> Future[Appended]:
        """Pass rows of another store to the writer."""
        self._check_writable()
        return self._recorder.submit(self._restoring(restore))

    def _restoring(self, restore: Restore) -> Append:
        digests = [row.digest for row in restore.rows]
        return Append(
            [NewEvent(row.stream, row.version, row.type, row.state) for row in restore.rows],
            forks=restore.forks,
            shreds=[self._with_index(shred) for shred in restore.shreds],
            forgets=restore.forgets,
            snapshots=[snapshot_of(*each) for each in restore.controls],
            previous=restore.previous,
            links=[row.hash for row in restore.rows],
            digests=digests if any(digests) else (),
            entries=[
                IndexEntry(row.stream, number, row.version)
                for row in restore.rows
                if may_have_numbers(row.type, row.state)
                for number in numbers_of(decode_row(row))
            ],
            record_blobs=restore.record_blobs,
        )

    def _with_index(self, shred: Shred) -> Shred:
        found = self.redactable(shred.stream, shred.version)
        return shred if found is None else replace(shred, numbers=found.numbers, blobs=found.blobs)

    def erase(self) -> int | None:
        """Remove what redactions have left in the files: see the port."""
        self._check_writable()
        return self._recorder.erase()

    def rows_after(self, position: int, limit: int, prefix: str) -> list[Row]:
        """Rows as they are stored, in position order."""
        return list(map(_checked, self._recorder.rows(after=position, limit=limit, prefix=prefix)))

    def own_rows(self, stream: str, *, after: int, limit: int) -> list[Row]:
        """A stream's own rows as they are stored."""
        return list(map(_checked, self._recorder.own_rows(stream, after=after, limit=limit)))

    def lineage(
        self, stream: str, *, after: int = 0, upto: int | None = None, types: Collection[str] | None = None
    ) -> list[Event]:
        """A stream's events and its ancestors', in one query."""
        return list(map(_event, self._recorder.lineage(stream, after=after, upto=upto, types=types)))

    def history(self, stream: str, *, after: int = 0) -> list[HistoryMessage | Event]:
        """What a history is built from: the messages of a lineage, and its other events."""
        return [decode_message(row) or _event(row) for row in self._recorder.lineage(stream, after=after)]

    def indexed(self, stream: str, number: int, *, after: int, upto: int, limit: int) -> list[Event]:
        """The newest events of the lineage under a number of the index, newest first."""
        return list(map(_event, self._recorder.indexed(stream, number, after=after, upto=upto, limit=limit)))

    def with_blobs(self, events: list[Event]) -> list[Event]:
        """Events with the bytes that the store has next to them."""
        return [
            whole(event, {blob.digest: blob.data for blob in blobs}) if blobs else event
            for event, blobs in self.blobs_of(events)
        ]

    def blobs_of(self, events: Sequence[Event]) -> list[tuple[Event, tuple[Blob, ...]]]:
        """Events as they are stored, each with the bytes next to it."""
        found = self._blobs((event.stream, name.digest) for event in events for name in named(event))
        return [self._with_blobs(event, found) for event in events]

    def _with_blobs(self, event: Event, found: Mapping[tuple[str, bytes], bytes]) -> tuple[Event, tuple[Blob, ...]]:
        names, tenant = named(event), _tenant(event.stream)
        blobs = {name.digest: found[tenant, name.digest] for name in names if (tenant, name.digest) in found}
        damaged = unmatched(names, blobs)
        if damaged is None:
            return event, tuple(Blob(name.digest, "record", blobs[name.digest]) for name in names)
        if damaged.digest not in blobs:
            for row in self._recorder.own_rows(event.stream, after=event.version - 1, limit=1):
                if row.version == event.version and row.digest is not None:
                    return _event(row), ()  # redacted after it was read
        damage = "do not match their digest" if damaged.digest in blobs else "are missing"
        what = "record" if event.type == RECORD_APPENDED else "media"
        raise _located(event, f"{event.stream} version {event.version}: the bytes of the {what} {damage}.")

    def _blobs(self, names: Iterable[tuple[str, bytes]]) -> dict[tuple[str, bytes], bytes]:
        """The stored bytes that streams name, by the tenant and the digest."""
        wanted: dict[str, dict[bytes, str]] = {}
        for stream, name in names:
            wanted.setdefault(_tenant(stream), {})[name] = stream
        return {
            (tenant, name): blob
            for tenant, streams in wanted.items()
            for start in range(0, len(streams), _BLOBS_IN_QUERY)
            for name, blob in self._recorder.record_blobs(
                next(iter(streams.values())), list(streams)[start : start + _BLOBS_IN_QUERY]
            ).items()
        }

    def whole_messages(self, stream: str, messages: Sequence[HistoryMessage]) -> tuple[HistoryMessage, ...]:
        """Messages of a stream's lineage with the bytes next to their events."""
        names = [() if each.message is None else named_in(each.message) for each in messages]
        found = self._blobs((stream, name.digest) for each in names for name in each)
        blobs = {name: blob for (_, name), blob in found.items()}
        return tuple(
            [
                self._whole_message(stream, each, its, blobs) if its else each
                for each, its in zip(messages, names, strict=True)
            ]
        )

    def _whole_message(
        self, stream: str, item: HistoryMessage, names: Sequence[Named], blobs: Mapping[bytes, bytes]
    ) -> HistoryMessage:
        if item.message is not None and unmatched(names, blobs) is None:
            return item._replace(message=whole_message(item.message, blobs))
        # It was redacted after it was read, or its bytes are damaged: then this raises.
        (event,) = self.with_blobs(self.lineage(stream, after=item.version - 1, upto=item.version))
        return as_message(event) or item

    def events_after(self, position: int, limit: int, prefix: str) -> list[Event]:
        """Events of many streams in position order."""
        return list(map(_event, self._recorder.rows(after=position, limit=limit, prefix=prefix)))

    def recorded_after(self, position: int, limit: int, upto: int | None = None) -> Sequence[Recorded | Unreadable]:
        """Events of all tenants as projections see them."""
        return RecordedRows(self._recorder.rows(after=position, limit=limit, upto=upto))

    def recorded_of(self, stream: str, after: int, limit: int) -> list[Recorded | Unreadable]:
        """A stream's own events as projections see them."""
        return list(map(recorded, self._recorder.own_rows(stream, after=after, limit=limit)))

    def recorded_at(self, positions: Sequence[int]) -> list[Recorded | Unreadable]:
        """The events at these positions as projections see them."""
        return list(map(recorded, self._recorder.rows_at(positions)))

    def position_of(self, stream: str, version: int) -> int | None:
        """The position of one of the stream's own rows."""
        rows = self._recorder.own_rows(stream, after=version - 1, limit=1)
        return rows[0].position if rows and rows[0].version == version else None

    def control(self, stream: str, upto: int | None = None) -> Control:
        """The control of a thread, ``Control()`` if the thread does not exist."""
        return self.cut(stream, upto).control

    def cut(self, stream: str, upto: int | None = None) -> Cut:
        """The control of a thread at a version, and the stream that holds the version."""
        owner, control, snapshot, redacted = stream, None, None, False
        if upto is None or upto >= SNAPSHOT_EVERY:
            snapshot = self._recorder.snapshot(stream, upto)
            if snapshot is not None:
                owner, control = snapshot.stream, read_control(snapshot.state)
        if control is None:
            control = Control()
        rows = self._recorder.lineage(stream, after=control.version or -1, upto=upto)
        appended: list[Row] = []
        for row in rows:
            if row.type in APPENDED_TYPES:
                appended.append(row)
                continue
            if appended:
                control = _after_appended(control, appended)
                appended = []
            redacted |= row.type == "message-redacted"
            control = advance(control, _event(row))
        if appended:
            control = _after_appended(control, appended)
        if redacted and snapshot is not None and self._recorder.snapshot(stream, upto) != snapshot:
            return self.cut(stream, upto)  # the snapshot has a text that was redacted before the rows were read
        return Cut(rows[-1].stream if rows else owner, control)

    def with_checkpoints(self, stream: str, control: Control) -> Control:
        """The control with the names of all its checkpoints, in one query."""
        lacks = unnamed_checkpoints(control)
        return control if lacks is None else with_checkpoints(control, self._made(stream, CHECKPOINTS, *lacks))

    def with_checkpoint(self, stream: str, control: Control, name: str) -> Control:
        """The control with the checkpoint of a name, if the thread has one. One query, which reads no other name."""
        lacks = unnamed_checkpoints(control)
        if lacks is None or name in control.checkpoints:
            return control
        return with_checkpoint(control, name, self._made(stream, number_of_checkpoint(name), *lacks))

    def _made(self, stream: str, number: int, first: int, last: int) -> list[Event]:
        return self.indexed(stream, number, after=first - 1, upto=last, limit=last)[::-1]

    def redactable(self, stream: str, version: int) -> Redactable | None:
        """What is needed to shred a row."""
        for row in self._recorder.own_rows(stream, after=version - 1, limit=1):
            if row.version == version and row.digest is None:
                return _to_shred(row, _event(row))
        return None

    def redactable_rows(self, rows: Sequence[Row]) -> list[Redactable | None]:
        """What is needed to shred each of these rows; None for one that is shredded, or holds no text."""
        return [_redactable(row) for row in rows]

    def blob(self, digest: bytes) -> Blob | None:
        """The blob with that digest. Raises CorruptEventError when its bytes do not match it."""
        blob = self._recorder.blob(digest)
        if blob is not None and not is_whole(blob):
            raise CorruptEventError(f"The blob {digest.hex()} is damaged. Restore it from a copy of the store.")
        return blob

    def verify(self, *streams: str) -> Verdict:
        """Recompute the chains of streams and their ancestors, each once; of the whole store if none is named."""
        return verify_lineages(self._recorder, streams) if streams else verify_store(self._recorder)

    def close(self) -> None:
        """Write all submitted appends, then release everything."""
        self._recorder.close()
        super().close()


def _tenant(stream: str) -> str:
    return stream.partition("/")[0]


def _redactable(row: Row) -> Redactable | None:
    if row.digest is not None:
        return None
    event = _event(row)
    unknown = row.type not in EVENT_TYPES and isinstance(event.data, Opaque)
    if row.type not in APPENDED_TYPES and not unknown and not holds_text(event):
        return None
    return _to_shred(row, event)


def _after(first: Append, second: Append) -> Append:
    """One append of both. The first is of restored rows, and so has nothing outside the chain."""
    digests = [*(first.digests or [None] * len(first.events)), *[None] * len(second.events)]
    return second._replace(
        events=[*first.events, *second.events],
        forks={**first.forks, **second.forks},
        shreds=[*first.shreds, *second.shreds],
        forgets=[*first.forgets, *second.forgets],
        snapshots=[*first.snapshots, *second.snapshots],
        previous={**first.previous, **second.previous},
        links=[*first.links, *second.links],
        digests=digests if first.digests else (),
        entries=[*first.entries, *second.entries],
        record_blobs=[*first.record_blobs, *second.record_blobs],
    )


def _to_shred(row: Row, event: Event) -> Redactable:
    return Redactable(
        digest(row.state), stub(event), numbers_of_key(event), tuple(name.digest for name in named(event))
    )


def _event(row: Row) -> Event:
    try:
        _checked(row)
        return decode(row.stream, row.version, row.type, row.state, row.position, row.hash)
    except CorruptEventError as error:
        raise _located(row, str(error)) from None


def _located(at: Row | Event, problem: str) -> CorruptEventError:
    error = CorruptEventError(
        f"{problem} To continue after it, read the events after version {at.version}, "
        f"or of the whole store after position {at.position}."
    )
    error.stream, error.version, error.position = at.stream, at.version, at.position
    return error


def _checked(row: Row) -> Row:
    """The row. Raises CorruptEventError if its parts have the wrong types, as in a file that was changed."""
    if type(row.type) is not str or type(row.state) is not bytes or type(row.hash) is not bytes:
        raise CorruptEventError(f"{row.stream} version {row.version} is damaged. `clew verify` says what is wrong.")
    return row


def _after_appended(control: Control, appended: list[Row]) -> Control:
    """The control after messages and records that follow each other.

    The envelope of the last one has the number of messages, so only that envelope is read. If its codec is unknown, the
    one before it has the number.
    """
    for row in reversed(appended):
        _checked(row)
        event = peek(row.stream, row.version, row.type, row.state, row.position, row.hash)
        if event.messages >= 0:
            control = advance(control, event)
            break
    return control._replace(version=appended[-1].version, head=appended[-1].hash)
