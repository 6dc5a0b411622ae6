"""A run that nobody carries out any more, and that somebody gives up: its context providers are told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from clew.agents.provider_hooks import Serving
from clew.domain.context.contributions import new_messages
from clew.domain.context.provider import ContextProvider
from clew.domain.history import History
from clew.domain.runs.errors import RunAbandonedError
from clew.domain.runs.events import AgentIdentity
from clew.domain.runs.ports import ThreadPort
from clew.domain.runs.state import RunState, fold


class LeftRun(NamedTuple):
    """An open run that waits for somebody, or crashed, and the thread as it was then."""

    state: RunState
    history: History


async def left_run(thread: ThreadPort) -> LeftRun | None:
    """The open run of a thread that nobody carries out; whoever does tells its providers of its end himself."""
    log = thread.runs
    run = (await log.control(fresh=True)).run
    if run is None or await log.lease() is not None:
        return None
    return LeftRun(fold(run.id, await log.events(run.began - 1)), await log.history())


async def tell_given_up(
    left: LeftRun,
    thread: ThreadPort,
    providers: Sequence[ContextProvider],
    agent: AgentIdentity | None,
    *,
    reason: str,
    actor: str | None = None,
) -> Serving:
    """Tell those who served the run, of who is supplied; what they leave is the caller's to record."""
    state, kept = left.state, left.history.kept
    named = kept.serving.get(state.run_id, ())
    served = [provider for provider in providers if provider.id in named]
    serving = Serving(thread, served, agent=agent, actor=actor, run_id=state.run_id)
    serving.raises = False
    if served:
        messages = left.history.messages
        first = state.added[0].version if state.added else left.history.version + 1
        asked = new_messages([message for message in messages if message.version < first])
        await serving.load(kept)
        await serving.shown(messages)
        await serving.invoked(asked, state.added or None, RunAbandonedError(thread.id, state.run_id, reason))
    return serving
