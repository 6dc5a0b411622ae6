"""The runs of agents that the calls of a run began on threads of their own."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from clew.domain.decider import Advance
from clew.domain.decider_state import OpenRun, holder_of
from clew.domain.errors import ThreadStatusError, UnknownThreadError
from clew.domain.ports import Claim, Draft
from clew.domain.runs.errors import RunInProgressError, RunTakenOverError
from clew.domain.runs.events import RunAbandoned
from clew.domain.runs.state import fold, interrupted
from clew.service.core import CommitOptions, Core, commit, load
from clew.service.effects import Operation, read


def waiting_children(core: Core, thread_id: str, run: OpenRun | None) -> Operation[list[str]]:
    """The threads on which calls of an open run, which nothing executes, wait for agents."""
    stream = core.stream(thread_id)
    if run is None or (yield from read(lambda: core.log.lease(stream))) is not None:
        return []  # what executes the run ends its children itself
    events = yield from read(lambda: core.log.lineage(stream, after=run.began - 1))
    calls = fold(run.id, events).calls
    return [call.child for call in calls if call.child is not None and call.status != "done"]


def abandon_children(core: Core, children: list[str], actor: str | None) -> Operation[None]:
    """Abandon the open runs on these threads, and those of their own children, which nobody will continue."""
    for child in children:
        stream = core.stream(child)
        with suppress(RunTakenOverError, RunInProgressError, UnknownThreadError, ThreadStatusError):
            run = (yield from load(core, child)).run
            if run is None:
                continue
            below = yield from waiting_children(core, child, run)
            draft = yield from read(partial(core.log.draft, stream))
            steps = (*interrupted(run, draft, "stopped"), RunAbandoned(reason="superseded"))
            holder, now = holder_of(run), core.now()
            options = CommitOptions(
                actor=actor,
                claims=(Claim(stream, holder, now, now + 1), Claim(stream, holder, now, 0)),
                drafts=(Draft(stream, run.id, None),),
            )
            yield from commit(core, child, Advance(run.id, run.attempt, steps), options)
            yield from abandon_children(core, below, actor)
