"""Whose a component's state is: where it says what a thread is kept by elsewhere, no two threads may have the same."""

from __future__ import annotations

from clew.domain.chain import ROOT
from clew.domain.errors import ConflictError, HistoryStoreSharedError
from clew.domain.events import TYPE_NAMES, Event, StateClaimed
from clew.domain.history_stores import claim_stream
from clew.domain.json_values import Json
from clew.domain.ports import Write
from clew.service.core import Core
from clew.service.operations import Operation, read, wait


def claim_state(core: Core, thread_id: str, provider: str, state: Json) -> Operation[None]:
    """Say that a state is that of a thread, unless that is said already. Raises HistoryStoreSharedError.

    The first event of a stream that is named after the state says whose it is: of two at once, one is first.
    """
    stream = claim_stream(core.tenant, provider, state)
    while True:
        for event in (yield from read(lambda: core.log.lineage(stream, upto=1))):
            if isinstance(event.data, StateClaimed) and event.data.thread_id != thread_id:
                raise HistoryStoreSharedError(provider, thread_id, event.data.thread_id)
            return
        claimed = StateClaimed(provider=provider, thread_id=thread_id)
        type_ = TYPE_NAMES[StateClaimed]
        event = Event(stream, 1, type_, core.event_id(), core.now(), 0, claimed, core.actor)
        try:
            yield from wait(core.log.submit(Write([event], {stream: ROOT})).outcome)
        except ConflictError:
            continue  # somebody else was first: look who
        return
