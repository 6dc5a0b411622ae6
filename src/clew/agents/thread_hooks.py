"""Context providers outside a run: what happens to a thread, and context for who calls a model without an agent."""

from __future__ import annotations

from collections.abc import Sequence

from clew.agents.provider_config import Providers
from clew.agents.provider_hooks import Serving
from clew.domain.context.events import Hook
from clew.domain.context.provider import Context, ContextProvider
from clew.domain.decider import Intent, Note, Say, check_allowed, decide
from clew.domain.history import HistoryMessage
from clew.domain.messages import Message
from clew.domain.runs.events import AgentIdentity
from clew.domain.runs.ports import ThreadPort


class Outside:
    """The providers of a thread in one call that is no run: the agent's ``own``, if it is bound to one, and its own."""

    def __init__(
        self, thread: ThreadPort, own: Sequence[ContextProvider], agent: AgentIdentity | None, actor: str | None
    ) -> None:
        self._thread = thread
        self._actor = actor
        providers = Providers(tuple(own), tuple(thread.context_providers)).all
        self._serving = Serving(thread, providers, agent=agent, actor=actor)

    async def tell(self, hook: Hook, *given: object, before: Intent | None = None) -> None:
        """Tell of what happens to the thread; ``before`` is what is to be decided next, and must be allowed."""
        if not self._serving:
            return
        if before is not None:
            decide(self._thread.id, await self._thread.runs.control(fresh=True), before)
        try:
            await self._take_up(shown=hook != "on_thread_created")  # that comes before its first message
            await self._serving.tell(hook, *given)
        finally:
            await self._record()

    async def context(self, messages: Sequence[Message]) -> Context:
        """What all of them give to whoever is about to ask a model about new messages."""
        check_allowed(self._thread.id, await self._thread.runs.control(fresh=True), Say(tuple(messages)))
        new = [HistoryMessage(0, message.role, message, "", 0) for message in messages]
        try:
            await self._take_up()
            await self._serving.invoke(new, 0, (), first=True)
        finally:
            await self._record()
        return self._serving.combined()

    async def _take_up(self, *, shown: bool = True) -> None:
        found = await self._thread.runs.history()
        await self._serving.load(found.kept)
        if shown:
            serving = found.kept.serving
            run = (await self._thread.runs.control(fresh=True)).run if serving else None
            await self._serving.shown(found.messages, but=() if run is None else serving.get(run.id, ()))  # it does

    async def _record(self) -> None:
        """Have recorded what they leave, also when one of them failed."""
        steps, said = self._serving.steps, [step for step in self._serving.steps if isinstance(step, Message)]
        noted = [*(step for step in steps if not isinstance(step, Message)), *self._serving.states(shown=True)]
        intents: list[Intent] = [Note(tuple(noted))] if noted else []
        intents += [Say(tuple(said))] if said else []
        if intents:
            await self._thread.runs.record(intents, actor=self._actor, blobs=self._serving.blobs)
