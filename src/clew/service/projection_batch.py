"""Batches of events: read ahead of time, and applied to projections, without the events that a projection fails on."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import PurePath
from typing import NamedTuple, TypeAlias

from clew.domain.errors import InvalidProjectionError, StoreError
from clew.domain.events import MESSAGE_APPENDED
from clew.domain.ports import EventLog
from clew.domain.projection import (
    ALL_VERSIONS,
    Delete,
    ForgetText,
    Generation,
    Indexed,
    IndexText,
    Parked,
    Projection,
    Recorded,
    Recount,
    Span,
    Unreadable,
    Upsert,
)
from clew.domain.projection_store import ProjectionSession
from clew.domain.streams import stream_name

Events: TypeAlias = Sequence[Recorded | Unreadable]

LONGEST_SECONDS = 0.25
"""How long a batch may take before it ends early: a redaction, or another writer, waits for its transaction."""

AT_ONCE = 50
"""Events that one projection applies before the next one does: few, so that decoded events stay in memory."""

_REMOVING = frozenset({"message-redacted", "thread-purged"})
"""The types of events after which texts are gone from rows."""

PAGE = 1_000
"""Events that are read together, of a thread that is recounted or a part of an index that is built again."""


class _Reading:
    """The events after a position, as a thread reads them; none where it fails: then they are read again."""

    def __init__(self, log: EventLog, position: int, limit: int, upto: int, shredded: int) -> None:
        self.request = position, limit, shredded
        self._log = log
        self._upto = upto
        self._batch: Events = ()
        self.thread = threading.Thread(target=self._read, name="clew-reading-ahead", daemon=True)
        self.thread.start()

    def batch(self) -> Events:
        """The events, when they are read."""
        self.thread.join()
        return self._batch

    def _read(self) -> None:
        position, limit, _ = self.request
        try:
            self._batch = self._log.recorded_after(position, limit, self._upto)
        except Exception:  # noqa: BLE001 - the caller that needs the batch reads it again, and gets the error
            self._batch = ()


class ReadAhead:
    """The batches of a log. If a server executes the reads, the next batch is read while one is applied.

    A batch is dropped once something was shredded: it may contain the text that was.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._rest: tuple[tuple[int, int, int], Events] | None = None
        self._next: _Reading | None = None

    def after(self, position: int, limit: int, upto: int, *, few: bool = False) -> tuple[Events, int | None]:
        """The events after a position, up to another, and how many rows were shredded before they were read.

        With ``few``, all remaining events fit into one batch, so nothing is read ahead; the number is then None.
        """
        if few and self._rest is None:
            return [*self._log.recorded_after(position, AT_ONCE, upto)], None
        shredded = self._log.shredded()
        request = position, limit, shredded
        rest, self._rest = self._rest, None
        if rest is not None and rest[0] == request:
            return rest[1], shredded
        ahead, self._next = self._next, None
        batch = ahead.batch() if ahead is not None and ahead.request == request else ()
        batch = batch or self._log.recorded_after(position, limit, upto)
        # A short batch is the last one.
        if len(batch) == limit and self._log.is_served():
            self._next = _Reading(self._log, batch[-1].position, limit, upto, shredded)
        return batch, shredded

    def keep(self, position: int, limit: int, rest: Events, shredded: int | None) -> None:
        """Keep the rest of a batch, after a position, for the next call; ``shredded`` was returned with the batch."""
        self._rest = ((position, limit, shredded), rest) if shredded is not None and len(rest) else None


class Target(NamedTuple):
    """A generation that this process maintains, and the projection that it belongs to."""

    generation: Generation
    projection: Projection


class Batch:
    """Applies events to several generations, in one transaction.

    With ``alone`` each event is applied by itself, and is parked if a projection raises an error. Otherwise the batch
    raises the error.
    """

    def __init__(self, log: EventLog, session: ProjectionSession, targets: Sequence[Target], *, alone: bool) -> None:
        self._log = log
        self._session = session
        self._targets = targets
        self._alone = alone
        self._recounts: dict[tuple[int, Recount], Target] = {}
        self.parked: list[tuple[str, int]] = []
        """The projections that parked an event, each with its position."""
        self.forgot = False
        """Whether text was removed from an index."""

    def apply(self, events: Events) -> int:
        """Apply at least one event; returns how many. It stops early if they take long."""
        until = time.monotonic() + LONGEST_SECONDS
        applied, removes = 0, False
        while applied < len(events) and (not applied or time.monotonic() < until):
            part = [*events[applied : applied + AT_ONCE]]  # decodes them, once for all targets
            for target in self._targets:
                self._apply(target, part)
            applied += len(part)
            removes = removes or any(event.type in _REMOVING for event in part)
        # Once a batch: each redaction of a thread requests a recount of the whole thread.
        for (_, recount), target in self._recounts.items():
            self._recount(target, recount, events[applied - 1].position)
        if removes:
            for generation, _ in self._targets:
                self._session.clean(generation)
        return applied

    def _apply(self, target: Target, events: Events) -> None:
        generation, projection = target
        types = projection.types
        rows = self._session.rows(generation, projection)
        project, apply = projection.project, rows.apply  # looked up once for all events
        for event in events:
            if types is not None and event.type not in types:
                continue
            if isinstance(event, Unreadable):
                self._park(target, event, event.stream, event.error)
            elif self._alone:
                self._try(target, event)
            else:
                from_log = apply(event.position, event.tenant, project(event, rows))
                if from_log:
                    self._forget(target, event, from_log)
                    for each in from_log:
                        if isinstance(each, Recount):
                            self._recounts[generation.id, each] = target

    def _try(self, target: Target, event: Recorded) -> None:
        """Apply one event, or park it."""
        generation, projection = target
        try:
            with self._session.attempt():
                rows = self._session.rows(generation, projection)
                from_log = rows.apply(event.position, event.tenant, projection.project(event, rows))
                self._forget(target, event, from_log)
                for each in from_log:
                    if isinstance(each, Recount):
                        self._recount(target, each, event.position)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - the other projections and the next events continue
            stream = stream_name(event.tenant, event.kind, event.thread_id)
            self._park(target, event, stream, _kind_and_place(error, projection))
            self.parked.append((projection.name, event.position))

    def _park(self, target: Target, event: Recorded | Unreadable, stream: str, error: str) -> None:
        self._session.park(target.generation, Parked(event.position, stream, event.version, event.type, error))

    def _forget(self, target: Target, event: Recorded, from_log: Sequence[ForgetText | Recount]) -> None:
        """Remove the texts that an event has shredded, wherever the log has them."""
        for each in from_log:
            if isinstance(each, ForgetText):
                stream = stream_name(each.tenant, each.kind, each.thread_id)
                for position in self._positions(stream, each.version, event.position):
                    self._session.forget(target.generation, each.text_index, position, event.position)
                    self.forgot = True

    def _positions(self, stream: str, version: int, before: int) -> Iterator[int]:
        """The position of a version; of all messages of the stream before a position for ``ALL_VERSIONS``."""
        if version != ALL_VERSIONS:
            position = self._log.position_of(stream, version)
            if position is not None:
                yield position
            return
        after = 0
        while rows := self._log.own_rows(stream, after=after, limit=PAGE):
            yield from (row.position for row in rows if row.type == MESSAGE_APPENDED and row.position < before)
            after = rows[-1].version

    def _recount(self, target: Target, what: Recount, upto: int) -> None:
        """Delete a thread's rows and project its events again, up to a position."""
        session, (generation, projection) = self._session, target
        stream = stream_name(what.tenant, what.kind, what.thread_id)
        thread = Delete(what.table, (what.tenant, what.thread_id))
        session.rows(generation, projection).apply(upto, what.tenant, [thread])
        after = 0
        while events := self._log.recorded_of(stream, after, PAGE):
            for event in events:
                if event.position > upto:
                    return
                if isinstance(event, Unreadable) or not _wants(projection, event):
                    continue
                try:
                    with session.attempt() if self._alone else nullcontext():
                        rows = session.rows(generation, projection)
                        changes = projection.project(event, rows)
                        counted = [each for each in changes if isinstance(each, Upsert) and each.table == what.table]
                        rows.apply(event.position, event.tenant, counted)
                except StoreError:
                    raise
                except Exception:
                    if not self._alone:
                        raise  # otherwise it is already parked, or will be at its own position
            after = events[-1].version
            self._session.flush()


def reindex(log: EventLog, session: ProjectionSession, target: Target) -> bool:
    """Build the stale parts of the indexes of a generation again; False if none is stale."""
    stale = session.stale(target.generation)
    for span in stale:
        session.reindex(target.generation, span, _texts(log, session, target, span))
    return bool(stale)


def _texts(log: EventLog, session: ProjectionSession, target: Target, span: Span) -> Iterator[Indexed]:
    """The texts that the events of a span are found by, as the log has them now."""
    generation, projection = target
    rows = session.rows(generation, projection)
    last = min(span.last, generation.position)
    after = span.first - 1
    while after < last and (events := log.recorded_after(after, PAGE, last)):
        for event in events:
            if isinstance(event, Unreadable) or not _wants(projection, event):
                continue
            try:
                changes = list(projection.project(event, rows))
            except Exception:  # noqa: BLE001, S112 - the event is parked already
                continue
            for change in changes:
                if type(change) is IndexText and change.text_index == span.text_index:
                    yield Indexed(event.position, event.tenant, change.text, change.scopes)
        after = events[-1].position


def _wants(projection: Projection, event: Recorded) -> bool:
    return projection.types is None or event.type in projection.types


def _kind_and_place(error: Exception, projection: Projection) -> str:
    """The class of an error and its place, without its message, which may quote text that is redacted later."""
    if isinstance(error, InvalidProjectionError):
        return f"InvalidProjectionError: {error}"
    module = sys.modules.get(type(projection).__module__)
    file = getattr(module, "__file__", None)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if file is not None and frame.filename == file:
            return f"{type(error).__name__} in {PurePath(file).name}, line {frame.lineno}"
    return f"{type(error).__name__}: the store cannot store the projected values"
