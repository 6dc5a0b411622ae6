"""Making parts of indexes of words anew: what was shredded since is not in them any more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from clew.domain.ports import EventLog
from clew.domain.projection import Built, Indexed, IndexText, Projection, Recorded, Span, Unreadable
from clew.domain.projection_store import ProjectionSession

PAGE = 1_000


class Filled(NamedTuple):
    """A generation that this process fills, and the projection that says how."""

    built: Built
    projection: Projection


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
