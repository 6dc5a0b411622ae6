"""Context providers outside a running run: thread events, context for direct model calls, and orphaned runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from clew.agents.provider_hooks import ProviderHooks
from clew.agents.run_setup import Providers
from clew.domain.context.events import Hook
from clew.domain.context.provider import Context, ContextProvider
from clew.domain.decider import Append, Checkpoint, Intent, RecordEvents, check_allowed, decide
from clew.domain.history import History, HistoryMessage, NotSeen, new_messages
from clew.domain.messages import Message
from clew.domain.runs.errors import RunAbandonedError
from clew.domain.runs.events import AgentIdentity
from clew.domain.runs.ports import ThreadPort
from clew.domain.runs.state import RunState, fold


class ThreadHooks:
    """The providers of a thread in one call outside a run: those of the agent it is bound to, and its own."""

    def __init__(
        self, thread: ThreadPort, own: Sequence[ContextProvider], agent: AgentIdentity | None, actor: str | None
    ) -> None:
        self._thread = thread
        self._actor = actor
        providers = Providers(tuple(own), thread.context_providers.attached).all
        self._hooks = ProviderHooks(thread, providers, agent=agent, actor=actor)

    async def notify(self, hook: Hook, *arguments: object, before: Intent | None = None) -> None:
        """Call a hook. If ``before``, the intent that follows, is not allowed, its error is raised first."""
        if not self._hooks:
            return
        if before is not None:
            name = before.name if isinstance(before, Checkpoint) else None
            decide(self._thread.id, await self._thread.runs.control(fresh=True, checkpoint=name), before)
        try:
            await self._load(show=hook != "on_thread_created")  # that comes before the first message
            await self._hooks.call_all(hook, *arguments)
        finally:
            await self._record()

    async def context(self, messages: Sequence[Message]) -> Context:
        """The context from all providers, for an application that sends ``messages`` to a model itself."""
        check_allowed(self._thread.id, await self._thread.runs.control(fresh=True), Append(tuple(messages)))
        new = [HistoryMessage(0, message.role, message, "", 0) for message in messages]
        try:
            await self._load()
            await self._hooks.invoke(new, 0, (), first=True)
        finally:
            await self._record()
        return self._hooks.combined()

    async def _load(self, *, show: bool = True) -> None:
        history = await self._thread.runs.history(NotSeen(self._hooks.watching if show else ()))
        await self._hooks.load(history.context)
        if show:
            open_runs = history.context.open_runs
            run = (await self._thread.runs.control(fresh=True)).run if open_runs else None
            # An open run shows its providers the messages itself.
            await self._hooks.show(history.messages, but=() if run is None else open_runs.get(run.id, ()))

    async def _record(self) -> None:
        """Record the outcomes of the hooks, also if one of them failed."""
        steps, messages = self._hooks.steps, [step for step in self._hooks.steps if isinstance(step, Message)]
        notes = [
            *(step for step in steps if not isinstance(step, Message)),
            *self._hooks.unrecorded_states(with_seen=True),
        ]
        intents: list[Intent] = [RecordEvents(tuple(notes))] if notes else []
        intents += [Append(tuple(messages))] if messages else []
        if intents:
            await self._thread.runs.record(intents, actor=self._actor, blobs=self._hooks.blobs)


class OrphanedRun(NamedTuple):
    """An open run that no process executes: it crashed, or waits for approvals. ``history`` is the thread's."""

    state: RunState
    history: History


async def orphaned_run(thread: ThreadPort) -> OrphanedRun | None:
    """The orphaned run of a thread, if any. A process that executes a run notifies its providers itself."""
    log = thread.runs
    run = (await log.control(fresh=True)).run
    if run is None or await log.lease() is not None:
        return None
    return OrphanedRun(fold(run.id, await log.events(run.began - 1)), await log.history())


async def notify_abandoned(
    orphan: OrphanedRun,
    thread: ThreadPort,
    providers: Sequence[ContextProvider],
    agent: AgentIdentity | None,
    *,
    reason: str,
    actor: str | None = None,
) -> ProviderHooks:
    """Call ``invoked`` of the given providers that took part in the run; the caller records their outcomes."""
    state, recorded = orphan.state, orphan.history.context
    served_by = recorded.open_runs.get(state.run_id, ())
    hooks = ProviderHooks(
        thread,
        [provider for provider in providers if provider.id in served_by],
        agent=agent,
        actor=actor,
        run_id=state.run_id,
        by=state.by,
    )
    hooks.raises = False
    if hooks:
        messages = orphan.history.messages
        first = state.added[0].version if state.added else orphan.history.version + 1
        request = new_messages([message for message in messages if message.version < first])
        await hooks.load(recorded)
        await hooks.show(messages)
        await hooks.invoked(request, state.added or None, RunAbandonedError(thread.id, state.run_id, reason))
    return hooks
