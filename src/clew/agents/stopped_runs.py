"""Stopping a run from outside: in its own process, or by recording its end for another one."""

from __future__ import annotations

from collections.abc import Sequence

from clew.agents.followed_runs import read_runs
from clew.agents.run_loop import abandon_children, live_runs
from clew.agents.thread_provider_hooks import notify_abandoned, orphaned_run
from clew.domain.context.provider import ContextProvider
from clew.domain.decider import Advance
from clew.domain.decider_state import OpenRun, holder_of
from clew.domain.runs.errors import RunStoppedError, RunTakenOverError
from clew.domain.runs.events import AgentIdentity, RunAbandoned, RunStarted
from clew.domain.runs.ports import Holding, RunLog, ThreadPort
from clew.domain.runs.state import fold, interrupted


async def stop_run(
    thread: ThreadPort,
    run_id: str | None,
    providers: Sequence[ContextProvider],
    identity: AgentIdentity | None,
    actor: str | None,
) -> bool:
    """Stop the open run of a thread, or only the one with this id; returns whether it was open."""
    log = thread.runs
    while True:
        run = (await log.control(fresh=True)).run
        if run is None or (run_id not in {None, run.id} and run_id not in await _handed_from(log, run)):
            return False
        live = live_runs.get(holder_of(run))
        if live is not None and live.in_this_loop and not live.over.is_set():
            live.end_with(RunStoppedError())
            if not live.encloses_caller:
                await live.over.wait()
            return True
        orphan = await orphaned_run(thread) if providers else None
        state = fold(run.id, await log.events(run.began - 1))
        steps = (*interrupted(run, await log.draft(), "stopped"), RunAbandoned(reason="stopped"))
        stopping = Advance(run.id, run.attempt, steps, state.by)
        await abandon_children(log, state.calls)
        try:
            await log.record([stopping], actor=actor, holding=Holding(holder_of(run), 0), drop_draft=run.id)
        except RunTakenOverError:
            continue  # it ended, or another process continues it
        if orphan is not None:
            await notify_abandoned(orphan, thread, providers, identity, reason="stopped", actor=actor)
        return True


async def _handed_from(log: RunLog, run: OpenRun) -> list[str]:
    """The ids of the runs of other agents that handed the conversation to this one."""
    started = (await log.event(run.began)).data
    if not isinstance(started, RunStarted) or started.handed_from is None:
        return []
    return [state.run_id for state in await read_runs(log, started.handed_from.since)]
