"""Copies of threads: a new thread with the messages of another, without a common past."""

from __future__ import annotations

from clew.domain.context.events import ContextStateRecorded
from clew.domain.context.state import HISTORY_STORE
from clew.domain.decider import Intent, Record, Say, Start
from clew.domain.decider_state import Control, advance
from clew.domain.events import Event
from clew.domain.formats.lineage import Lineage
from clew.domain.history import HistoryBuilder
from clew.domain.json_values import JsonObject
from clew.domain.models.client import ThreadKind
from clew.domain.runs.events import ServiceThreadBound
from clew.domain.runs.service_state import service_side
from clew.service.core import CommitOptions, Core, commit
from clew.service.operations import Operation

RESTORED_FROM = "restored_from"
"""The metadata key of a copy: tenant, thread, version and head of the original."""


def begin_again(core: Core, lineage: Lineage, actor: str | None) -> Operation[tuple[str, ThreadKind]]:
    """Begin a thread with the messages, provider states and service id on the path of another thread.

    Redacted messages are left out. The state of a history store is not copied: it belongs to the other thread only.
    """
    control = Control()
    for event in lineage.events:
        control = advance(control, event)
    thread_id = core.thread_id()
    intents = [_start(lineage, control), *_said_again(lineage)]
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


def _said_again(lineage: Lineage) -> list[Intent]:
    """The intents after the start: messages, the service's id after the messages that it has, and provider states."""
    builder = HistoryBuilder("")
    builder.add(lineage.events)
    history = builder.history()
    bound, had = _service(lineage)
    intents: list[Intent] = []
    at: dict[int, int] = {}
    for said in history:
        if bound is not None and said.version > had:
            intents.append(bound)
            bound = None
        if said.message is not None:
            intents.append(Say((said.message,)))
        at[said.version] = len(intents) + 1
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
