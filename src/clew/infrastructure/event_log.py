"""The event log on an eventsourcing application: Clew's events in, Clew's recorders beneath."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import cast

from eventsourcing.application import Application
from eventsourcing.persistence import Mapper
from eventsourcing.utils import Environment

from clew.domain.chain import digest, link
from clew.domain.control import Control, advance
from clew.domain.errors import CorruptEventError
from clew.domain.events import MESSAGE_APPENDED, Event
from clew.domain.ports import (
    Appended,
    Blob,
    Draft,
    Key,
    Lease,
    Redactable,
    Restore,
    Row,
    StreamInfo,
    Submitted,
    Verdict,
    Write,
)
from clew.domain.projection import Recorded, Unreadable
from clew.infrastructure.control_snapshots import read_control, write_control
from clew.infrastructure.envelope import decode, encode, peek, stub
from clew.infrastructure.mapper import EnvelopeMapper
from clew.infrastructure.recorded_rows import RecordedRows, recorded
from clew.infrastructure.recorder import Append, NewEvent, Recorder, Snapshot
from clew.infrastructure.verification import is_whole, verify_lineage, verify_store


class ConversationLog(Application[str]):
    """Clew's event log. Everything is given: nothing is read from the environment of the process."""

    name = "clew"

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        super().__init__(env)
        self._recorder = cast("Recorder", self.recorder)

    def construct_env(self, name: str, env: Mapping[str, str] | None = None) -> Environment:
        """Only what is given: a host's settings for the library are for the host's own applications."""
        return Environment(name, dict(env or {}))

    def construct_mapper(self) -> Mapper[str]:
        """Clew's mapper, here and not in the factory, so that other applications keep theirs."""
        return EnvelopeMapper()

    def submit(self, write: Write) -> Submitted:
        """Hand an append to the writer: see the port."""
        heads = dict(write.previous)
        passed: dict[tuple[str, int], bytes] = {}
        stored: list[NewEvent] = []
        links: list[bytes] = []
        for event in write.events:
            name, version, type_ = event[:3]
            state = encode(event)
            stored.append(NewEvent(name, version, type_, state))
            heads[name] = head = link(heads[name], name, version, type_, digest(state))
            links.append(head)
            if write.controls:
                passed[name, version] = head
        outcome = self._recorder.submit(
            Append(
                stored,
                forks=write.forks,
                shreds=write.shreds,
                snapshots=[
                    Snapshot(
                        stream, control.version, write_control(control._replace(head=passed[stream, control.version]))
                    )
                    for stream, control in write.controls
                ],
                key=write.key,
                previous=write.previous,
                links=links,
                blobs=write.blobs,
                claims=write.claims,
                drafts=write.drafts,
            )
        )
        return Submitted(outcome, heads)

    def restore(self, restore: Restore) -> Future[Appended]:
        """Hand rows of another store to the writer."""
        return self._recorder.submit(
            Append(
                [NewEvent(row.stream, row.version, row.type, row.state) for row in restore.rows],
                forks=restore.forks,
                shreds=restore.shreds,
                snapshots=[
                    Snapshot(stream, control.version, write_control(control)) for stream, control in restore.controls
                ],
                previous=restore.previous,
                links=[row.hash for row in restore.rows],
                digests=[row.digest for row in restore.rows],
            )
        )

    def rows_after(self, position: int, limit: int, prefix: str) -> list[Row]:
        """Rows as they lie in the store, in position order."""
        return [_checked(row) for row in self._recorder.rows(after=position, limit=limit, prefix=prefix)]

    def own_rows(self, stream: str, *, after: int, limit: int) -> list[Row]:
        """Rows of the stream's own as they lie in the store."""
        return [_checked(row) for row in self._recorder.own_rows(stream, after=after, limit=limit)]

    def stream(self, name: str) -> StreamInfo | None:
        """One stream, None when there is none of that name."""
        return self._recorder.stream(name)

    def repeated(self, key: Key) -> Appended | None:
        """The first outcome of an append with this key."""
        return self._recorder.repeated(key)

    def lineage(self, stream: str, *, after: int = 0, upto: int | None = None) -> list[Event]:
        """A stream's events and its ancestors', one query."""
        return [_event(row) for row in self._recorder.lineage(stream, after=after, upto=upto)]

    def events_after(self, position: int, limit: int, prefix: str) -> list[Event]:
        """Events of many streams in position order."""
        return [_event(row) for row in self._recorder.rows(after=position, limit=limit, prefix=prefix)]

    def recorded_after(self, position: int, limit: int) -> Sequence[Recorded | Unreadable]:
        """Events of all tenants as projections see them."""
        return RecordedRows(self._recorder.rows(after=position, limit=limit))

    def recorded_of(self, stream: str, after: int, limit: int) -> list[Recorded | Unreadable]:
        """Events of one stream's own as projections see them."""
        return list(map(recorded, self._recorder.own_rows(stream, after=after, limit=limit)))

    def recorded_at(self, positions: Sequence[int]) -> list[Recorded | Unreadable]:
        """The events at these positions as projections see them."""
        return list(map(recorded, self._recorder.rows_at(positions)))

    def position_of(self, stream: str, version: int) -> int | None:
        """The position of a row of the stream's own."""
        found = self._recorder.own_rows(stream, after=version - 1, limit=1)
        return found[0].position if found and found[0].version == version else None

    def last_position(self) -> int:
        """The highest position that readers may see."""
        return self._recorder.last_position()

    def newest_position(self) -> int:
        """The highest position that readers may see or that this process has appended."""
        return self._recorder.newest_position()

    def may_fill(self) -> bool:
        """Whether tables can be filled from this log."""
        return self._recorder.may_fill()

    def is_bound(self) -> bool:
        """Whether one tenant's events alone can be seen."""
        return self._recorder.is_bound()

    def is_served(self) -> bool:
        """Whether a server does the reading."""
        return self._recorder.is_served()

    def count_after(self, position: int, limit: int) -> int:
        """How many events come after a position, ``limit`` at the most."""
        return self._recorder.count_after(position, limit)

    def streams(self, *, prefix: str, after: int = 0, limit: int) -> list[StreamInfo]:
        """Streams in the order in which they were made."""
        return self._recorder.streams(prefix=prefix, after=after, limit=limit)

    def forks(self, stream: str) -> list[StreamInfo]:
        """The streams that were forked from this one."""
        return self._recorder.forks(stream)

    def control(self, stream: str, upto: int | None = None) -> Control:
        """The control of a thread, ``Control()`` if it is not there."""
        snapshot = self._recorder.snapshot(stream, upto)
        control = None if snapshot is None else read_control(snapshot.state)
        if control is None:
            control = Control()
        run: list[Row] = []
        for row in self._recorder.lineage(stream, after=control.version or -1, upto=upto):
            if row.type == MESSAGE_APPENDED:
                run.append(row)
            else:
                control = advance(_after_messages(control, run), _event(row))
                run = []
        return _after_messages(control, run)

    def redactable(self, stream: str, version: int) -> Redactable | None:
        """What it takes to shred a row."""
        for row in self._recorder.own_rows(stream, after=version - 1, limit=1):
            if row.version == version and row.digest is None:
                return Redactable(digest(row.state), stub(_event(row)))
        return None

    def blob(self, digest: bytes) -> Blob | None:
        """The blob of that digest; CorruptEventError when its bytes are others."""
        found = self._recorder.blob(digest)
        if found is not None and not is_whole(found):
            raise CorruptEventError(f"The blob {digest.hex()} is damaged. Restore it from a copy of the store.")
        return found

    def lease(self, stream: str) -> Lease | None:
        """The lease of a stream as it was last taken."""
        return self._recorder.lease(stream)

    def draft(self, stream: str) -> Draft | None:
        """The part of an answer that was last written down."""
        return self._recorder.draft(stream)

    def shredded(self) -> int:
        """How many rows were ever shredded."""
        return self._recorder.shredded()

    def verify(self, stream: str | None = None) -> Verdict:
        """Recompute the chain of one stream and its ancestors, or of the whole store."""
        return verify_store(self._recorder) if stream is None else verify_lineage(self._recorder, stream)

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call ``wake`` after every commit."""
        return self._recorder.listen(wake)

    def close(self) -> None:
        """Write what was submitted, then let go of everything."""
        self._recorder.close()
        super().close()


def _event(row: Row) -> Event:
    try:
        _checked(row)
        return decode(row.stream, row.version, row.type, row.state, row.position, row.hash)
    except CorruptEventError as error:
        found = CorruptEventError(
            f"{error} To read on behind it, ask for what comes after version {row.version}, "
            f"or of the whole store after position {row.position}."
        )
        found.stream, found.version, found.position = row.stream, row.version, row.position
        raise found from None


def _checked(row: Row) -> Row:
    """The row. Raises CorruptEventError if its parts are not even of the right kind, as in a file that was changed."""
    if type(row.type) is not str or type(row.state) is not bytes or type(row.hash) is not bytes:
        raise CorruptEventError(f"{row.stream} version {row.version} is damaged. Verify says what is wrong with it.")
    return row


def _after_messages(control: Control, run: list[Row]) -> Control:
    """The control after messages without anything else between them.

    Of such a run the last says how many there are then, and of that one only the envelope is asked; where it does not
    say (a codec that is not known), those before it do.
    """
    for row in reversed(run):
        _checked(row)
        event = peek(row.stream, row.version, row.type, row.state, row.position, row.hash)
        if event.messages >= 0:
            control = advance(control, event)
            break
    return control if not run else control._replace(version=run[-1].version, head=run[-1].hash)
