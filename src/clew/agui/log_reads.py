"""What the log has for a request of AG-UI: the place of its messages, the open run, and what that waits for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from ag_ui import core

from clew.agents.followed_runs import find_run, read_runs
from clew.agents.response import pending_approvals
from clew.agui.requests import Place, last_own, own_id
from clew.agui.waiting import WaitingCall, waiting_calls
from clew.domain.events import MESSAGE_APPENDED
from clew.domain.history import HistoryMessage
from clew.domain.runs.errors import UnknownRunError
from clew.domain.runs.events import RunStarted
from clew.domain.runs.state import joined_runs

_PAGE = 64
"""How many messages of a thread are compared with those of a client that has none that Clew has named."""


async def compared(thread: Any, messages: Sequence[core.Message]) -> tuple[Place | None, list[HistoryMessage]]:
    """The place of a client's newest message that Clew has named, and the end of the history from there on."""
    if thread is None:
        return None, []
    index = last_own(messages)
    place = None if index < 0 else await _place(thread, messages[index])
    tail = list((await thread.history(last=_PAGE)).messages)
    while place is not None and tail and tail[0].version > place.version:
        earlier = (await thread.history(last=_PAGE, before=tail[0])).messages
        if not earlier:
            break
        tail[:0] = earlier
    return place, tail


async def _place(thread: Any, message: core.Message) -> Place | None:
    """Where a message is that Clew has named; None if the thread has no such message."""
    own = own_id(message)
    if own is None:
        return None
    if own.run is None:
        is_there = 0 < own.number <= (await thread.runs.control(fresh=True)).version
        return Place(own.number, own.number) if is_there and await _is_message(thread, own.number) else None
    try:
        states = await read_runs(thread.runs, await find_run(thread.runs, own.run))
    except UnknownRunError:
        return None
    added = reduce(joined_runs, states).added
    return Place(added[own.number].version, added[-1].version) if own.number < len(added) else None


async def _is_message(thread: Any, version: int) -> bool:
    return bool((await thread.runs.event(version)).type == MESSAGE_APPENDED)


async def waiting(thread: Any) -> tuple[int, list[WaitingCall]]:
    """The version at which the open run began, 0 without one, and the calls for which it waits."""
    began = await open_run(thread)
    if began is None:
        return 0, []
    states = await read_runs(thread.runs, began)
    state = reduce(joined_runs, states)
    approvals = await pending_approvals(thread.runs, state)
    return began, waiting_calls(states[0].run_id, state, approvals, thread.id)


async def open_run(thread: Any) -> int | None:
    """The version at which the open run began, or the run whose conversation it continues; None without one."""
    run = (await thread.runs.control(fresh=True)).run
    if run is None:
        return None
    data = (await thread.runs.event(run.began)).data
    since = data.handed_from.since if isinstance(data, RunStarted) and data.handed_from is not None else run.began
    return int(since)


async def first_run(thread: Any, version: int) -> int:
    """The version at which a run began whose commit may begin with a rewind."""
    event = await thread.runs.event(version)
    return version if event.run_id is not None else version + 1


async def run_of_interrupt(thread: Any, interrupt_id: str) -> int | None:
    """The version at which the run of an interrupt began, None if there is none."""
    try:
        return await find_run(thread.runs, interrupt_id.partition(":")[0])
    except UnknownRunError:
        return None
