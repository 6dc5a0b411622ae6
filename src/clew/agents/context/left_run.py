"""A run that nobody carries out any more, and that somebody ends by going back: its context providers are told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from clew.agents.context.serving import Serving
from clew.domain.context.contributions import new_messages
from clew.domain.context.kept import Kept
from clew.domain.context.provider import ContextProvider
from clew.domain.history import HistoryMessage
from clew.domain.runs.errors import RunAbandonedError
from clew.domain.runs.events import AgentIdentity
from clew.domain.runs.ports import ThreadPort
from clew.domain.runs.state import RunState, fold


class LeftRun(NamedTuple):
    """An open run that waits for somebody, or crashed, as the thread was then."""

    state: RunState
    kept: Kept
    asked: Sequence[HistoryMessage]


async def left_run(thread: ThreadPort) -> LeftRun | None:
    """The open run of a thread that nobody carries out; whoever does tells its providers of its end himself."""
    log = thread.runs
    run = (await log.control(fresh=True)).run
    if run is None or await log.lease() is not None:
        return None
    state, found = fold(run.id, await log.events(run.began - 1)), await log.history()
    first = state.added[0].version if state.added else found.version + 1
    return LeftRun(state, found.kept, new_messages([each for each in found.messages if each.version < first]))


async def tell_given_up(
    left: LeftRun, thread: ThreadPort, providers: Sequence[ContextProvider], agent: AgentIdentity | None
) -> None:
    """Tell those who served the run, of who is supplied. What they keep of it is no part of the thread any more."""
    state, kept = left.state, left.kept
    named = kept.serving.get(state.run_id, ())
    served = [provider for provider in providers if provider.id in named]
    serving = Serving(thread, served, agent=agent, run_id=state.run_id)
    serving.raises = False
    await serving.load(kept)
    await serving.invoked(left.asked, state.added or None, RunAbandonedError(thread.id, state.run_id, "asked"))
