"""How projections take in the events of a batch, and go on without one that they cannot take in."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import PurePath
from typing import NamedTuple

from clew.domain.errors import InvalidProjectionError, StoreError
from clew.domain.names import stream_name
from clew.domain.ports import EventLog
from clew.domain.projection import (
    Built,
    Delete,
    ForgetText,
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

LONGEST_SECONDS = 0.25
"""After so long a batch ends where it is: whoever redacts, or fills the same, waits for its transaction."""

AT_ONCE = 50
"""Events that each takes in before the next does: what was decoded is near at hand, and gone before there is more."""

PAGE = 1_000
"""Events of a thread that are read together when it is recounted."""


class Filled(NamedTuple):
    """A generation that this process fills, and the projection that says how."""

    built: Built
    projection: Projection


def take_in(
    log: EventLog,
    session: ProjectionSession,
    group: Sequence[Filled],
    events: Sequence[Recorded | Unreadable],
    *,
    careful: bool,
) -> tuple[int, list[tuple[str, int]]]:
    """Let all of a group take in the same events, at least one; returns how many, which are not all if it takes long.

    If that is done carefully each event is alone: one that a projection raises for is parked,
    and returned with that projection's name: it is said once the transaction has been committed.
    """
    taking = [_TakingIn(log, session, each, careful=careful) for each in group]
    until = time.monotonic() + LONGEST_SECONDS
    taken = 0
    while taken < len(events) and (not taken or time.monotonic() < until):
        part = [*events[taken : taken + AT_ONCE]]
        for each in taking:
            each.take(part)
        taken += len(part)
    for each in taking:
        each.finish(events[taken - 1].position)
    return taken, [(each.name, position) for each in taking for position in each.parked]


class _TakingIn:
    """One generation, while it takes in a batch."""

    def __init__(self, log: EventLog, session: ProjectionSession, filled: Filled, *, careful: bool) -> None:
        self._log = log
        self._session = session
        self._built, self._projection = filled
        self._careful = careful
        self.name = filled.projection.name
        self.parked: list[int] = []
        self._recounts: dict[Recount, None] = {}

    def take(self, events: Sequence[Recorded | Unreadable]) -> None:
        """Take in events."""
        built, projection, careful = self._built, self._projection, self._careful
        types = projection.types
        rows = self._session.rows(built, projection)
        project, apply = projection.project, rows.apply  # looked up once for all events
        for event in events:
            if types is not None and event.type not in types:
                continue
            if isinstance(event, Unreadable):
                self._park(event, event.stream, event.error)
            elif careful:
                self._try(event)
            else:
                left = apply(event.position, event.tenant, project(event, rows))
                if left:
                    self._forget(event, left)
                    self._recounts.update((each, None) for each in left if isinstance(each, Recount))

    def finish(self, upto: int) -> None:
        """Recount what is to be, once a batch: where much of a thread is redacted, each would read all of it."""
        for each in self._recounts:
            self._recount(each, upto)

    def _try(self, event: Recorded) -> None:
        """Take in one event, or park it."""
        session, built, projection = self._session, self._built, self._projection
        try:
            with session.attempt():
                rows = session.rows(built, projection)
                left = rows.apply(event.position, event.tenant, projection.project(event, rows))
                self._forget(event, left)
                for each in left:
                    if isinstance(each, Recount):
                        self._recount(each, event.position)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a projection raises, the others and the next events go on
            self.parked.append(event.position)
            stream = stream_name(event.tenant, event.kind, event.thread_id)
            self._park(event, stream, _kind_and_place(error, projection))

    def _park(self, event: Recorded | Unreadable, stream: str, error: str) -> None:
        self._session.park(self._built, Parked(event.position, stream, event.version, event.type, error))

    def _forget(self, event: Recorded, left: Sequence[ForgetText | Recount]) -> None:
        """Forget the texts that an event has shredded, wherever the log has them."""
        for each in left:
            if isinstance(each, ForgetText):
                position = self._log.position_of(stream_name(each.tenant, each.kind, each.thread_id), each.version)
                if position is not None:
                    self._session.forget(self._built, each.text_index, position, event.position)

    def _recount(self, what: Recount, upto: int) -> None:
        session, built, projection = self._session, self._built, self._projection
        stream = stream_name(what.tenant, what.kind, what.thread_id)
        thread = Delete(what.table, (what.tenant, what.thread_id))
        session.rows(built, projection).apply(upto, what.tenant, [thread])
        after = 0
        while events := self._log.recorded_of(stream, after, PAGE):
            for event in events:
                if event.position > upto:
                    return
                if isinstance(event, Unreadable) or not is_wanted(event, projection):
                    continue
                try:
                    with session.attempt() if self._careful else nullcontext():
                        rows = session.rows(built, projection)
                        changes = projection.project(event, rows)
                        counted = [each for each in changes if isinstance(each, Upsert) and each.table == what.table]
                        rows.apply(event.position, event.tenant, counted)
                except StoreError:
                    raise
                except Exception:
                    if not self._careful:
                        raise  # else it is parked already, or will be when it is met itself
            after = events[-1].version
            self._session.flush()


def _kind_and_place(error: Exception, projection: Projection) -> str:
    """The kind of error and its place; not what it says, which may quote a message that is redacted one day."""
    if isinstance(error, InvalidProjectionError):
        return f"InvalidProjectionError: {error}"
    module = sys.modules.get(type(projection).__module__)
    file = getattr(module, "__file__", None)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if file is not None and frame.filename == file:
            return f"{type(error).__name__} in {PurePath(file).name}, line {frame.lineno}"
    return f"{type(error).__name__}: the store cannot take what is projected of it"


def reindex(log: EventLog, session: ProjectionSession, filled: Filled) -> bool:
    """Make anew what is stale of the indexes of a generation; False when nothing is."""
    stale = session.stale(filled.built)
    for span in stale:
        session.reindex(filled.built, span, _texts(log, session, filled, span))
    return bool(stale)


def is_wanted(event: Recorded, projection: Projection) -> bool:
    """Whether a projection wants events of this type."""
    return projection.types is None or event.type in projection.types


def _texts(log: EventLog, session: ProjectionSession, filled: Filled, span: Span) -> Iterator[Indexed]:
    """What the events of a span are found by, as the log has them now."""
    built, projection = filled
    rows = session.rows(built, projection)
    last = min(span.last, built.position)
    after = span.first - 1
    while after < last and (events := log.recorded_after(after, PAGE)):
        for event in events:
            if event.position > last:
                return
            if isinstance(event, Unreadable) or not is_wanted(event, projection):
                continue
            try:
                changes = list(projection.project(event, rows))
            except Exception:  # noqa: BLE001, S112 - it was parked when it was met first
                continue
            for change in changes:
                if type(change) is IndexText and change.text_index == span.text_index:
                    yield Indexed(event.position, event.tenant, change.text, change.scopes)
        after = events[-1].position
