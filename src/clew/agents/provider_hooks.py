"""The context providers that serve a run, or a call outside one: their hooks, and what these leave to be recorded."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeAlias

from clew.agents.failing import failure
from clew.agents.hook_context import HookContext
from clew.agents.provider_session import Slot, persisted
from clew.agents.tools import Tool
from clew.domain.context.events import ContextFailed, ContextProvided, ContextStateRecorded, Hook
from clew.domain.context.provider import Context, ContextProvider
from clew.domain.context.provider_state import Kept, KeptState
from clew.domain.errors import ClewError
from clew.domain.history import HistoryMessage
from clew.domain.json_values import JsonObject
from clew.domain.messages import Message
from clew.domain.models.answer_parts import joined
from clew.domain.models.client import ToolSchema
from clew.domain.ports import Blob
from clew.domain.runs.definitions import Definitions, blobs
from clew.domain.runs.errors import ContextProviderError
from clew.domain.runs.events import AgentIdentity
from clew.domain.runs.ports import ThreadPort

Given: TypeAlias = ContextProvided | ContextFailed | Message
"""What providers leave to be recorded beside their states."""


_HAPPENED: frozenset[Hook] = frozenset({"on_thread_created", "on_resume"})
"""The hooks that are called of what cannot be refused any more."""


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
        self.raises = True
        """Whether a failure is raised where the provider's policy says so: not of a run that is over anyway."""
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

    def cited(self, provided: Sequence[ContextProvided]) -> list[ContextProvided]:
        """What was given, where tools have cited more since: so that whoever goes on with the run knows of it."""
        cites = {slot.provider.id: tuple(slot.context.citations) for slot in self._slots}
        return [
            each.model_copy(update={"citations": cites[each.provider]})
            for each in provided
            if len(cites.get(each.provider, ())) > len(each.citations)
        ]

    # Hooks

    async def load(self, kept: Kept) -> None:
        """Take up what the providers keep of the thread; one that keeps nothing begins.

        One that fails is raised when all had their turn: what another keeps must not be written over for want of it.
        """
        failed: ContextProviderError | None = None
        for slot in self._slots:
            if slot.loaded:
                continue
            slot.loaded = True
            found, seen = kept.states.get(slot.provider.id), kept.served.get(slot.provider.id, 0)
            try:
                await self._call(slot, "initial_state", partial(_begin, slot, found, seen))
            except ContextProviderError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def adopt(self, kept: Kept) -> None:
        """Take up what others have recorded of the providers' states since they were loaded."""
        for slot in self._slots:
            slot.adopt(kept.states.get(slot.provider.id))

    async def created(self, given: Sequence[Message]) -> None:
        """The thread begins, with this input."""
        await self.tell("on_thread_created", list(given))

    async def shown(self, history: Sequence[HistoryMessage], *, but: Sequence[str] = ()) -> None:
        """Show the messages that were not shown yet, each once and in their order, ``but`` not to some providers."""
        watching = [slot for slot in self._slots if slot.watches and slot.provider.id not in but]
        first = min((slot.seen for slot in watching), default=0)
        for message in history if watching else ():
            for slot in watching if message.version > first else ():
                if message.version > slot.seen:
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
                slot.look()  # what it gives counts only with what it keeps
                provided = slot.give(found, before, self._others(slot, tools))
                if provided is not None:
                    self.steps.append(provided)
                    self.blobs += blobs(slot.definitions)
                self.steps += persisted(found)

            await self._call(slot, "invoking", give)

    async def invoke_again(
        self, messages: Sequence[HistoryMessage], provided: Sequence[ContextProvided], tools: Sequence[Tool]
    ) -> None:
        """For a run that is gone on with: what was given is on the log, but for the functions of tools.

        Of tools that are not there any more, or are others, this is recorded.
        """
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
        there = {slot.provider.id: slot.definitions for slot in self._slots}
        for each in provided:
            now = blobs(there.get(each.provider, Definitions(None)))
            digests = tuple(blob.digest.hex() for blob in now)
            if each.tools and digests != each.tools:
                self.steps.append(each.model_copy(update={"tools": digests}))
                self.blobs += now

    async def invoked(
        self,
        request: Sequence[HistoryMessage],
        response: Sequence[HistoryMessage] | None,
        exception: BaseException | None = None,
    ) -> None:
        """The run is over: tell those who were not told yet."""
        for slot in self._slots:
            if not slot.told:
                slot.told = True
                given = (list(request), None if response is None else list(response), exception)
                await self._hook(slot, "invoked", *given)

    async def tell(self, hook: Hook, *given: object) -> None:
        """Call a hook of the thread's life. Of what has happened already all are told, though one of them fails."""
        failed: ContextProviderError | None = None
        for slot in self._slots:
            try:
                await self._hook(slot, hook, *given)
            except ContextProviderError as error:
                if hook not in _HAPPENED:
                    raise
                failed = failed or error
        if failed is not None:
            raise failed

    def states(self, *, shown: bool = False) -> list[ContextStateRecorded]:
        """The states that changed since they were last asked for, or if ``shown`` counts, were shown anything since.

        It counts wherever the end of a run does not say up to where its providers were shown what was said.
        """
        found = (slot.state(shown=shown) for slot in self._slots)
        return [state for state in found if state is not None]

    def _others(self, slot: Slot, tools: Sequence[Tool]) -> list[Tool]:
        return [*tools, *(tool for other in self._slots if other is not slot for tool in other.tools)]

    async def _hook(self, slot: Slot, hook: Hook, *given: object) -> None:
        await self._call(slot, hook, lambda: _outcome(getattr(slot.provider, hook)(slot.context, *given)))

    async def _call(self, slot: Slot, hook: Hook, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Call a hook. One that fails changes no state, and is recorded; where it must not fail, that is raised.

        One that is cancelled with the run changes no state either. Raises ContextProviderError.
        """
        provider, before, cited = slot.provider, slot.now, len(slot.context.citations)
        if slot.broken:
            return
        scope, cancelled = asyncio.timeout(provider.timeout), _cancelled()
        try:
            async with scope:
                await work()
            slot.look()
        except BaseException as error:
            if hook == "initial_state":
                slot.broken = True
            else:
                slot.now = before
                slot.restore()
            del slot.context.citations[cited:]
            if not isinstance(error, Exception | SystemExit | asyncio.CancelledError):
                raise
            if _cancelled() > cancelled:  # whatever the hook made of that
                raise asyncio.CancelledError from error
            self.steps.append(ContextFailed(provider=provider.id, hook=hook, error=failure(error)))
            if provider.on_failure == "fail" and self.raises:
                late = isinstance(error, TimeoutError) and scope.expired()
                why = f"it took longer than {provider.timeout:g} s." if late else _why(error)
                raise ContextProviderError(provider.id, hook, why) from error


async def _begin(slot: Slot, kept: KeptState | None, seen: int) -> None:
    slot.load(kept, seen)
    if kept is None:
        slot.context.state = await _outcome(slot.provider.initial_state(slot.context))


def _cancelled() -> int:
    """How often the task at hand was asked to end: a hook may also fail by something else that was cancelled."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


async def _outcome(found: Any) -> Any:
    """What a hook gave, whether or not it is a coroutine."""
    return await found if inspect.isawaitable(found) else found


def _why(error: BaseException) -> str:
    """What went wrong, as it is recorded: of an error that is not Clew's own only its class, as it may tell secrets."""
    name = type(error).__name__
    return f"{name}: {joined([str(error)])}" if isinstance(error, ClewError) else f"{name}, which is its cause."
