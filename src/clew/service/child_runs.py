"""The runs of agents that the calls of a run began on threads of their own."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import partial

from clew.domain.decider import Advance
from clew.domain.decider_state import OpenRun, holder_of
from clew.domain.errors import ThreadStatusError, UnknownThreadError
from clew.domain.ports import Claim, Draft, IntegrityFault
from clew.domain.runs.errors import RunInProgressError, RunTakenOverError
from clew.domain.runs.events import ChildThread, RunAbandoned, RunStarted, ToolFinished
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


def with_children(core: Core, thread_ids: Iterable[str]) -> tuple[list[str], IntegrityFault | None]:
    """The threads, and those on which their calls ran agents, each once; and the first link that is cut.

    A link is cut if the thread of a call that has finished does not exist, or has no run that names the call.
    """
    found: dict[str, None] = dict.fromkeys(thread_ids)
    cut: IntegrityFault | None = None
    waiting = [*found]
    for thread_id in waiting:  # grows
        events = core.log.lineage(core.stream(thread_id), types=_LINKS)
        done = {(each.data.message, each.data.index) for each in events if isinstance(each.data, ToolFinished)}
        for event in events:
            link = event.data
            if not isinstance(link, ChildThread) or link.thread_id in found:
                continue
            if _names_call(core, link):
                found[link.thread_id] = None
                waiting.append(link.thread_id)
            elif (link.message, link.index) in done:
                reason = f"a call ran an agent on the thread {link.thread_id!r}, which does not exist or name it"
                cut = cut or IntegrityFault(thread_id, event.version, reason)
    return [*found], cut


def _names_call(core: Core, link: ChildThread) -> bool:
    """Whether the thread of a call has a run that the call began, or texts that were purged."""
    stream = core.stream(link.thread_id)
    if core.log.stream(stream) is None:
        return False
    starts = core.log.lineage(stream, types=["run-started", "thread-purged"])
    callers = [each.data.caller for each in starts if isinstance(each.data, RunStarted)]
    named = any(each is not None and (each.message, each.index) == (link.message, link.index) for each in callers)
    return named or any(each.type == "thread-purged" for each in starts)


_LINKS = ("child-thread", "tool-finished")
