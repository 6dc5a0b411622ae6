"""The streams that an append touches, and how an append that only continues one stream follows its last event."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from clew.domain.streams import ROOT, digest, link
from clew.infrastructure.append_plan import KnownHead, PlannedRow, stream_name
from clew.infrastructure.recorder import Append


def streams_of(append: Append) -> Iterable[str]:
    """The names of all streams that an append writes to or reads."""
    for event in append.events:
        yield stream_name(event.originator_id)
    for fork in append.forks.values():
        yield fork.parent
    yield from (shred.stream for shred in append.shreds)
    yield from (snapshot.stream for snapshot in append.snapshots)
    yield from (claim.stream for claim in append.claims)
    yield from (draft.stream for draft in append.drafts)
    if append.key is not None:
        yield append.key.stream


def only_stream(append: Append) -> str | None:
    """The stream of an append that only has events of one stream; None for any other append."""
    events = append.events
    if not events or any(append[1:6]) or any(append[8:]):
        return None
    if len(events) > 1 and len({event.originator_id for event in events}) > 1:
        return None
    return stream_name(events[0].originator_id)


class Following(NamedTuple):
    """An append of events of one stream, and the head that it follows: the store only has to compare that head."""

    stream: str
    head: KnownHead
    rows: Sequence[PlannedRow]
    end: KnownHead
    """The head of the stream after it."""


def following(append: Append, name: str, seen: KnownHead | None) -> Following | None:
    """An append to one stream (see only_stream), linked to the hash that it names, or else to the head last ``seen``.

    None if neither is known, or for an append that a plan refuses.
    """
    events, links = append.events, append.links
    first = events[0].originator_version
    previous = append.previous.get(name, ROOT)
    if previous == ROOT:
        if seen is None or seen[0] != first - 1 or links:
            return None
        previous = seen[1]
    if links and len(links) != len(events):
        return None
    rows: list[PlannedRow] = []
    hashed, version = previous, first - 1
    try:
        for number, event in enumerate(events):
            version += 1
            if event.originator_version != version:
                return None
            hashed = links[number] if links else link(hashed, name, version, event.topic, digest(event.state))
            rows.append((name, version, event.topic, event.state, hashed))
    except UnicodeEncodeError:
        return None
    return Following(name, (first - 1, previous), rows, (version, hashed))
