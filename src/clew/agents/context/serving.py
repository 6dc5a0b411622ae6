"""The context providers that serve a run, or a call outside one: their hooks, and what these leave to be recorded."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeAlias

from clew.agents.context.hook_context import HookContext
from clew.agents.context.slot import Slot, persisted
from clew.agents.failing import failure
from clew.agents.tools import Tool
from clew.domain.context.events import ContextFailed, ContextProvided, ContextStateRecorded, Hook
from clew.domain.context.kept import Kept, KeptState
from clew.domain.context.provider import Context, ContextProvider
from clew.domain.errors import ClewError
from clew.domain.history import HistoryMessage
from clew.domain.json_values import JsonObject
from clew.domain.messages import Message
from clew.domain.models.answer_parts import joined
from clew.domain.models.client import ToolSchema
from clew.domain.ports import Blob
from clew.domain.runs.definitions import blobs
from clew.domain.runs.errors import ContextProviderError
from clew.domain.runs.events import AgentIdentity
from clew.domain.runs.ports import ThreadPort

Given: TypeAlias = ContextProvided | ContextFailed | Message
"""What providers leave to be recorded beside their states."""


class Serving:
    """The providers of one run, in their order. What they leave is in ``steps`` and ``blobs`` until it is taken."""

    def __init__(
        self,
        thread: ThreadPort,
        providers: Sequence[ContextProvider],
        *,
        agent: AgentIdentity | None = None,
        actor: str | None = None,
        run_id: str | None = None,
    ) -> None:
        self.steps: list[Given] = []
        self.blobs: list[Blob] = []
        self._outside = run_id is None
        self._slots = [
            Slot(provider, HookContext(thread, provider, agent=agent, actor=actor, run_id=run_id))
            for provider in providers
        ]

    def __bool__(self) -> bool:
        return bool(self._slots)

    @property
    def watches(self) -> bool:
        """Whether anybody wants to be shown every message."""
        return any(slot.watches for slot in self._slots)

    @property
    def asked_again(self) -> bool:
        """Whether anybody gives context to each model call."""
        return any(slot.provider.every_model_call for slot in self._slots)

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools that providers gave, in their order."""
        return tuple(tool for slot in self._slots for tool in slot.tools)

    @property
    def citations(self) -> list[JsonObject]:
        """What the answer rests on, as providers said."""
        return [citation for slot in self._slots for citation in slot.context.citations]

    def schemas(self, provided: Sequence[ContextProvided]) -> tuple[ToolSchema, ...]:
        """The schemas of the tools that were given, in the order of what was."""
        of = {slot.provider.id: slot.definitions.tools for slot in self._slots}
        return tuple(schema for each in provided if each.tools for schema in of.get(each.provider, ()))

    def combined(self) -> Context:
        """All that was given, as one: instructions with a blank line between, the rest one after the other."""
        given = [slot.given for slot in self._slots if slot.given is not None]
        return Context(
            instructions="\n\n".join(each.instructions for each in given if each.instructions) or None,
            messages=[message for each in given for message in each.messages],
            tools=self.tools,
            facts=[fact for each in given for fact in each.facts],
            citations=self.citations,
        )

    # Hooks

    async def load(self, kept: Kept) -> None:
        """Take up what the providers keep of the thread; one that keeps nothing begins."""
        for slot in self._slots:
            found = kept.states.get(slot.provider.id)
            await self._call(slot, "initial_state", partial(_begin, slot, found, kept.served.get(slot.provider.id, 0)))

    async def created(self, given: Sequence[Message]) -> None:
        """The thread begins, with this input."""
        await self.tell("on_thread_created", list(given))

    async def shown(self, history: Sequence[HistoryMessage]) -> None:
        """Show the messages that were not shown yet, each once and in their order."""
        for message in history:
            for slot in self._slots:
                if slot.watches and message.version > slot.seen:
                    slot.seen = message.version
                    await self._hook(slot, "on_message", message)

    async def invoke(
        self, messages: Sequence[HistoryMessage], before: int, tools: Sequence[Tool], *, first: bool
    ) -> None:
        """Have what is to be given recorded.

        ``before`` is the version that messages of theirs go before; ``tools`` are the agent's. After the ``first`` time
        only those are asked who give context to each model call.
        """
        for slot in self._slots:
            if not first and not slot.provider.every_model_call:
                continue

            async def give(slot: Slot = slot) -> None:
                found = await _outcome(slot.provider.invoking(slot.context, list(messages)))
                provided = slot.give(found, before, self._others(slot, tools))
                if provided is not None:
                    self.steps.append(provided)
                    self.blobs += blobs(slot.definitions)
                self.steps += persisted(found)

            await self._call(slot, "invoking", give)

    async def invoke_again(
        self, messages: Sequence[HistoryMessage], provided: Sequence[ContextProvided], tools: Sequence[Tool]
    ) -> None:
        """For a run that is gone on with: what was given is on the log, but for the functions of tools."""
        for slot in self._slots:
            given = next((each for each in provided if each.provider == slot.provider.id), None)
            if given is None:
                continue
            for citation in given.citations:
                slot.context.cite(citation)
            if given.tools:

                async def give(slot: Slot = slot) -> None:
                    found = await _outcome(slot.provider.invoking(slot.context, list(messages)))
                    slot.give_tools(found, self._others(slot, tools))
                    slot.restore()  # what it keeps of this was recorded the first time

                await self._call(slot, "invoking", give)

    async def invoked(
        self,
        request: Sequence[HistoryMessage],
        response: Sequence[HistoryMessage] | None,
        exception: BaseException | None = None,
    ) -> None:
        """The run is over. After one that failed, no failure of a provider's is raised."""
        for slot in self._slots:
            try:
                given = (list(request), None if response is None else list(response), exception)
                await self._hook(slot, "invoked", *given)
            except ContextProviderError:
                if exception is None:
                    raise

    async def tell(self, hook: Hook, *given: object) -> None:
        """Call a hook of the thread's life."""
        for slot in self._slots:
            await self._hook(slot, hook, *given)

    def states(self) -> list[ContextStateRecorded]:
        """The states that changed since they were last asked for; outside a run also what was shown."""
        found = (slot.state(shown=self._outside) for slot in self._slots)
        return [state for state in found if state is not None]

    def _others(self, slot: Slot, tools: Sequence[Tool]) -> list[Tool]:
        return [*tools, *(tool for other in self._slots if other is not slot for tool in other.tools)]

    async def _hook(self, slot: Slot, hook: Hook, *given: object) -> None:
        await self._call(slot, hook, lambda: _outcome(getattr(slot.provider, hook)(slot.context, *given)))

    async def _call(self, slot: Slot, hook: Hook, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Call a hook. One that fails changes no state, and is recorded; where it must not fail, that is raised.

        Raises ContextProviderError.
        """
        provider = slot.provider
        if slot.broken:
            return
        scope = asyncio.timeout(provider.timeout)
        try:
            async with scope:
                await work()
            slot.look()
        except (Exception, SystemExit) as error:
            if hook == "initial_state":
                slot.broken = True
            else:
                slot.restore()
            self.steps.append(ContextFailed(provider=provider.id, hook=hook, error=failure(error)))
            if provider.on_failure == "fail":
                late = isinstance(error, TimeoutError) and scope.expired()
                why = f"it took longer than {provider.timeout:g} s." if late else _why(error)
                raise ContextProviderError(provider.id, hook, why) from error


async def _begin(slot: Slot, kept: KeptState | None, seen: int) -> None:
    slot.load(kept, seen)
    if kept is None:
        slot.context.state = await _outcome(slot.provider.initial_state(slot.context))


async def _outcome(found: Any) -> Any:
    """What a hook gave, whether or not it is a coroutine."""
    return await found if inspect.isawaitable(found) else found


def _why(error: BaseException) -> str:
    """What went wrong, as it is recorded: of an error that is not Clew's own only its class, as it may tell secrets."""
    name = type(error).__name__
    return f"{name}: {joined([str(error)])}" if isinstance(error, ClewError) else f"{name}, which is its cause."
