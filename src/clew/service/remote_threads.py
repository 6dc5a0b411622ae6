"""Remote threads: their state at the service that holds them, and what can be forked, rewound and deleted there."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from http import HTTPStatus
from typing import Any

from clew.domain.decider_state import Control
from clew.domain.event_index import REWINDS
from clew.domain.events import MESSAGE_APPENDED, TYPE_NAMES, Event, HistoryRewound, ServiceDeletion
from clew.domain.models.client import ServiceReference, ServiceThreads, ThreadKind
from clew.domain.runs.errors import AgentConfigurationError, ModelError, ServiceCannotForkError, UnsupportedThreadError
from clew.domain.runs.events import ServiceThreadBound
from clew.domain.runs.remote_threads import ServiceState, service_state
from clew.service.core import Core, newest_control
from clew.service.effects import Operation, read
from clew.service.history_reads import FIRST_PAGE_BACK
from clew.service.thread_queries import At, readable, resolve


def service_state_at(core: Core, thread_id: str, at: At = None) -> Operation[ServiceState]:
    """The state of a thread at its service at a version, by default the newest."""
    control = yield from readable(core, thread_id, "service history")
    version = yield from resolve(core, thread_id, control, at)
    stream = core.stream(thread_id)
    return (yield from read_service_state(core, stream, stream, version))


def read_service_state(core: Core, stream: str, of: str, upto: int | None = None) -> Operation[ServiceState]:
    """The state at the service after a stream's lineage up to a version, for the thread whose stream is ``of``.

    The lineage is read backwards, until earlier events do not matter.
    """
    do = partial(newest_control, core, stream) if upto is None else partial(core.log.control, stream, upto)
    control = yield from read(do)
    if not control.bound:
        return ServiceState()
    indexed = partial(core.log.indexed, stream, REWINDS, after=0, upto=control.version, limit=1)
    newest: list[Event] = []
    if not (yield from read(indexed)):  # the newest id is on the path
        newest = yield from read(partial(core.log.lineage, stream, after=control.bound - 1, upto=control.bound))
    events: list[Event] = []
    start, size = control.version, FIRST_PAGE_BACK
    while True:
        after = max(0, start - size)
        events = [*(yield from read(partial(core.log.lineage, stream, after=after, upto=start))), *events]
        start, size = after, 2 * size
        after_cuts = yield from _after_cuts(core, events)
        state = service_state(of, [*newest, *events] if control.bound <= start else events, after_cuts)
        if not start or _is_settled(state, start, rewound=not newest):
            return state


def _is_settled(state: ServiceState, start: int, *, rewound: bool) -> bool:
    """Whether the events up to version ``start`` cannot change a state that was read from those after it.

    The last complete response says all. A conversation has diverged if any of its calls is not on the path: after a
    rewind, all of them count.
    """
    if state.call.reference is None or state.bound[-1].reference.kind == "response":
        return state.call.reference is not None
    return not rewound and state.call.answer > 0 and state.call.sent > start


def check_fork(core: Core, thread_id: str, version: int) -> Operation[None]:
    """Raise ServiceCannotForkError if a remote fork would continue from a version that the service cannot fork."""
    side = yield from read_service_state(core, core.stream(thread_id), "", version)
    _refuse(side, "fork", thread_id)


def check_rewind(core: Core, thread_id: str, to: int, control: Control) -> Operation[str | None]:
    """The service's id of a thread at a version to rewind to. Raises ServiceCannotForkError if it cannot go back."""
    if control.kind != "remote":
        return None
    stream = core.stream(thread_id)
    side = yield from read_service_state(core, stream, stream, to)
    if not side.bound:
        return None
    if side.bound[-1].reference.kind == "response":
        return side.bound[-1].reference.id
    events = yield from read(partial(core.log.lineage, stream))
    back = Event(stream, events[-1].version + 1, "history-rewound", "", 0, 0, HistoryRewound(to=to))
    after_cuts = yield from _after_cuts(core, events)
    side = service_state(stream, [*events, back], after_cuts)
    _refuse(side, "rewind", thread_id)
    return side.bound[-1].reference.id if side.bound else None


def kind_of_fork(kind: ThreadKind) -> ThreadKind:
    """The requested kind of a fork. Raises AgentConfigurationError for anything else."""
    if kind not in {"local", "remote"}:
        raise AgentConfigurationError(f"fork: kind={kind!r} is neither 'local' nor 'remote'.")
    return kind


def own_references(core: Core, thread_id: str) -> Operation[list[ServiceReference]]:
    """All ids that the service has given to this thread, newest first, without those that a fork inherited.

    Raises UnknownThreadError or ThreadDeletedError.
    """
    yield from readable(core, thread_id, "delete")
    stream = core.stream(thread_id)
    events = yield from read(partial(core.log.lineage, stream, types=(TYPE_NAMES[ServiceThreadBound],)))
    references = [
        ServiceReference(kind=event.data.kind, id=event.data.id)
        for event in reversed(events)
        if event.stream == stream and isinstance(event.data, ServiceThreadBound)
    ]
    return list(dict.fromkeys(references))


def _refuse(side: ServiceState, operation: str, thread_id: str) -> None:
    if side.diverged:
        raise ServiceCannotForkError(operation, thread_id, side.bound[-1].reference.id)


def _after_cuts(core: Core, events: Sequence[Event]) -> Operation[list[Event]]:
    """The events right after the cuts of a lineage: they show whether the messages at the cuts were whole answers."""
    nexts = (*(event.stream for event in events[1:]), "")
    cuts = [event for event, then in zip(events, nexts, strict=True) if then != event.stream]
    after_cuts: list[Event] = []
    for cut in cuts:
        if cut.type == MESSAGE_APPENDED:
            after_cuts += yield from read(
                partial(core.log.lineage, cut.stream, after=cut.version, upto=cut.version + 1)
            )
    return after_cuts


def service_threads(operation: str, thread_id: str, client: Any) -> ServiceThreads:
    """The client that asks the service about a thread.

    Raises AgentConfigurationError without a client, or for one that cannot ask, and UnsupportedThreadError for one
    whose service holds no threads.
    """
    if client is None:
        raise AgentConfigurationError(
            f"{operation}: thread {thread_id!r} is bound to no agent, so there is no client to ask the service with. "
            "Give client=, or get the thread from an agent: agent.thread(id)."
        )
    name, kinds = type(client).__name__, getattr(client, "thread_kinds", ())
    if "remote" not in kinds and not _asks(client):
        advice = f"{operation}: give client=, that of the service which holds thread {thread_id!r}."
        raise UnsupportedThreadError(name, "remote", kinds, advice)
    if not _asks(client):
        raise AgentConfigurationError(
            f"{operation}: {name} cannot ask its service for thread {thread_id!r}: it has no service_history() "
            "and no delete_service_thread(). Give client=, such as an OpenAIResponsesClient of that service."
        )
    asks: ServiceThreads = client
    return asks


def _asks(client: Any) -> bool:
    return hasattr(client, "service_history") and hasattr(client, "delete_service_thread")


async def delete_at_service(
    client: ServiceThreads, references: Sequence[ServiceReference]
) -> tuple[ServiceDeletion, ...]:
    """Delete threads at a service; missing ones count as deleted. Returns the outcome of each, and raises none."""
    deletions: list[ServiceDeletion] = []
    for reference in references:
        failed: str | None = None
        try:
            await client.delete_service_thread(reference)
        except ModelError as error:
            failed = None if error.status == HTTPStatus.NOT_FOUND else str(error)
        deletions.append(ServiceDeletion(id=reference.id, failed=failed))
    return tuple(deletions)
