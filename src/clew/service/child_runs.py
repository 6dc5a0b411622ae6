"""The threads of agents that runs asked, and of participants of chats: found by the links on the log."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import partial

from clew.domain.chats.events import CHANNEL_OF, TurnFinished, TurnSelected, TurnStarted
from clew.domain.decider import Advance
from clew.domain.decider_state import OpenRun, holder_of
from clew.domain.errors import ThreadStatusError
from clew.domain.events import ThreadLabelled, ThreadStarted
from clew.domain.json_values import Json
from clew.domain.ports import Claim, Draft, IntegrityFault
from clew.domain.runs.errors import RunInProgressError, RunTakenOverError
from clew.domain.runs.events import Caller, ChildThread, RunAbandoned, RunStarted, ToolFinished
from clew.domain.runs.state import fold, interrupted
from clew.service.core import ATTEMPTS, CommitOptions, Core, commit, load
from clew.service.effects import Operation, read


def waiting_children(
    core: Core, thread_id: str, run: OpenRun | None, *, in_progress: bool = False
) -> Operation[list[str]]:
    """The threads on which calls of an open run wait for agents. None, unless ``in_progress``, while it is executed."""
    stream = core.stream(thread_id)
    if run is None:
        return []
    if not in_progress:
        lease = yield from read(lambda: core.log.lease(stream))
        if lease is not None and lease.until > core.now():
            return []  # what executes the run ends its children itself
    events = yield from read(lambda: core.log.lineage(stream, after=run.began - 1))
    links = [
        ChildThread(message=call.place.message, index=call.place.content, thread_id=call.child)
        for call in fold(run.id, events).calls
        if call.child is not None and call.status != "done"
    ]
    return (yield from read(lambda: [each.thread_id for each in links if are_linked(core, thread_id, each)]))


def abandon_children(core: Core, children: list[str], actor: str | None) -> Operation[None]:
    """Abandon the open runs on these threads, and before them those of their own children.

    The run of the caller ends afterwards: if the process dies in between, it is found, and its call has an outcome. The
    other order could leave children that wait, and that nobody looks for.
    """
    for child in children:
        stream = core.stream(child)
        for _ in range(ATTEMPTS):
            run = (yield from load(core, child)).run
            if run is None:
                break
            below = yield from waiting_children(core, child, run, in_progress=True)
            yield from abandon_children(core, below, actor)
            draft = yield from read(partial(core.log.draft, stream))
            steps = (*interrupted(run, draft, "stopped"), RunAbandoned(reason="superseded"))
            release = Claim(stream, holder_of(run), core.now(), 0)
            options = CommitOptions(actor=actor, claims=(release,), drafts=(Draft(stream, run.id, None),))
            with suppress(
                RunTakenOverError, RunInProgressError, ThreadStatusError
            ):  # it has ended, or another process continues it
                yield from commit(core, child, Advance(run.id, run.attempt, steps), options)
                break


def own_children(core: Core, thread_id: str) -> list[str]:
    """The threads on which a thread's own calls ran agents, and not those of calls that it has inherited.

    Each of them names the call, so that nobody can name a thread of others.
    """
    stream = core.stream(thread_id)
    info = core.log.stream(stream)
    own = core.log.lineage(stream, after=(info and info.cut) or 0, types=["child-thread"])
    links = (event.data for event in own if isinstance(event.data, ChildThread))
    return [link.thread_id for link in links if any(_is_of(each, link, thread_id) for each in _callers(core, link))]


def own_channels(core: Core, chat_id: str) -> list[str]:
    """The threads on which a chat's own turns and decisions ran agents. Each has a label that names the chat."""
    stream = core.stream(chat_id)
    info = core.log.stream(stream)
    own = core.log.lineage(stream, after=(info and info.cut) or 0, types=["turn-started", "turn-selected"])
    named = {event.data.thread_id for event in own if isinstance(event.data, TurnStarted | TurnSelected)}
    return [each for each in sorted(filter(None, named)) if _label(core, each) == chat_id]


def _label(core: Core, thread_id: str) -> Json:
    """The chat that the label of a thread names."""
    stream, label = core.stream(thread_id), None
    types = ["thread-started", "thread-labelled"]
    for event in [] if core.log.stream(stream) is None else core.log.lineage(stream, types=types):
        if isinstance(event.data, ThreadStarted | ThreadLabelled):
            label = event.data.labels.get(CHANNEL_OF, label)
    return label


def are_linked(core: Core, thread_id: str, link: ChildThread) -> bool:
    """Whether a thread has this link, and the thread of the call a run that names the call.

    Only then who may use one of the threads may use the other for this: an imported thread can name any thread.
    """
    if not any(_is_of(each, link, thread_id) for each in _callers(core, link)):
        return False
    stream = core.stream(thread_id)
    if core.log.stream(stream) is None:
        return False
    return any(each.data == link for each in core.log.lineage(stream, after=link.message, types=["child-thread"]))


def with_children(core: Core, thread_ids: Iterable[str]) -> tuple[list[str], IntegrityFault | None]:
    """The threads, those on which their calls ran agents, and those of their turns, each once; and the first cut link.

    A link is cut if the thread of a call that has finished does not exist, or has no run that names the call; or if the
    thread of a turn does not exist, and the turn has finished there.
    """
    found: dict[str, None] = dict.fromkeys(thread_ids)
    cut: IntegrityFault | None = None
    waiting = [*found]
    for thread_id in waiting:  # grows
        events = core.log.lineage(core.stream(thread_id), types=_LINKS)
        done = {(each.data.message, each.data.index) for each in events if isinstance(each.data, ToolFinished)}
        taken = {each.data.turn for each in events if isinstance(each.data, TurnFinished) and each.data.thread_version}
        for event in events:
            link = event.data
            if isinstance(link, TurnStarted) and link.thread_id not in found:
                if core.log.stream(core.stream(link.thread_id)) is not None:
                    found[link.thread_id] = None
                    waiting.append(link.thread_id)
                elif event.version in taken:
                    reason = f"a turn was taken on the thread {link.thread_id!r}, which does not exist"
                    cut = cut or IntegrityFault(thread_id, event.version, reason)
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
    """Whether the thread of a call has a run that the call began."""
    return any(_is_of(each, link) for each in _callers(core, link))


def _callers(core: Core, link: ChildThread) -> list[Caller]:
    """The calls that began the runs on the thread of a call. A purge does not remove them."""
    stream = core.stream(link.thread_id)
    starts = [] if core.log.stream(stream) is None else core.log.lineage(stream, types=["run-started"])
    return [each.data.caller for each in starts if isinstance(each.data, RunStarted) and each.data.caller is not None]


def _is_of(caller: Caller, link: ChildThread, thread_id: str | None = None) -> bool:
    return (caller.message, caller.index) == (link.message, link.index) and thread_id in {None, caller.thread_id}


_LINKS = ("child-thread", "tool-finished", "turn-started", "turn-finished")
