"""What the service that holds a thread knows of it: what it calls it, and what it has been sent."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from clew.domain.events import Event, HistoryRewound
from clew.domain.model_client import ServiceReference
from clew.domain.path import spans
from clew.domain.run_events import ModelAnswered, ServiceCall, ServiceThreadBound


class Bound(NamedTuple):
    """A name that the service gave, where that was recorded, and in which stream.

    ``given`` is true of one that the thread was begun with: the service has what was said under it.
    """

    version: int
    stream: str
    reference: ServiceReference
    given: bool = False


class ServiceSide(NamedTuple):
    """The service's side of a thread at a version.

    ``bound`` are the names on the path, oldest first; ``call`` is what the next request goes on from: a chain of
    responses from the last one that was complete. ``left`` is true when a conversation that the service goes on
    writing into was named before a fork or a rewind: it can not be gone on with from here.
    """

    bound: tuple[Bound, ...] = ()
    call: ServiceCall = ServiceCall()
    left: bool = False

    @property
    def id(self) -> str | None:
        """What the service calls the thread now, None before it has named it."""
        return self.bound[-1].reference.id if self.bound else None


def service_side(stream: str, events: Iterable[Event]) -> ServiceSide:
    """The service's side of the thread whose stream is ``stream``, from the events of its lineage."""
    rewinds: dict[int, int] = {}
    bound: list[Bound] = []
    answers: list[tuple[int, ModelAnswered]] = []
    version = 0
    for event in events:
        version = event.version
        match event.data:
            case HistoryRewound(to=to):
                rewinds[version] = to
            case ServiceThreadBound(id=id_, kind=kind):
                bound.append(Bound(version, event.stream, ServiceReference(kind=kind, id=id_), event.run_id is None))
            case ModelAnswered():
                answers.append((version, event.data))
    path = spans(rewinds, version)
    starts = [first for first, _ in path]

    def on_path(at: int) -> bool:
        index = bisect_right(starts, at) - 1
        return index >= 0 and at <= path[index][1]

    here = [each for each in bound if on_path(each.version)]
    answered = [data for at, data in answers if on_path(at)]
    return _side(stream, here, answered, last_rewind=max(rewinds, default=0))


def _side(stream: str, bound: list[Bound], answers: list[ModelAnswered], last_rewind: int) -> ServiceSide:
    if not bound:
        return ServiceSide()
    last = bound[-1]
    if last.reference.kind == "conversation":
        sent = answers[-1] if answers else None
        call = ServiceCall(reference=last.reference, sent=sent.call if sent else 0, answer=sent.message if sent else 0)
        left = bool(answers) and (last.stream != stream or last_rewind > last.version)
        return ServiceSide(tuple(bound), call, left)
    complete = {data.response_id: data for data in answers if data.response_id is not None}
    for each in reversed(bound):
        data = complete.get(each.reference.id)
        if data is not None:
            call = ServiceCall(reference=each.reference, sent=data.call, answer=data.message)
            return ServiceSide(tuple(bound), call)
    for each in bound:
        if each.given:
            return ServiceSide(tuple(bound), ServiceCall(reference=each.reference, sent=each.version))
    return ServiceSide(tuple(bound))
