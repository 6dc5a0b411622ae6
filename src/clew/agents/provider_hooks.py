"""The hooks of context providers: they are called in order, and their contexts and states are queued to be recorded."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeAlias

from clew.agents.journal import failure
from clew.agents.provider_session import HookContext, ProviderSession, persisted_messages
from clew.agents.tools import Tool
from clew.domain.context.events import ContextFailed, ContextProvided, ContextStateRecorded, Hook
from clew.domain.context.provider import Context, ContextProvider
from clew.domain.context.state import ContextState, ProviderState
from clew.domain.decider import Actor
from clew.domain.errors import ClewError
from clew.domain.history import HistoryMessage
from clew.domain.json_values import JsonObject
from clew.domain.messages import Message
from clew.domain.models.client import ToolSchema, joined
from clew.domain.ports import Blob
from clew.domain.runs.errors import ContextProviderError, ToolNameTakenError
from clew.domain.runs.events import AgentIdentity
from clew.domain.runs.ports import ThreadPort
from clew.domain.runs.request_construction import Definitions

ProviderStep: TypeAlias = ContextProvided | ContextFailed | Message
"""The outcomes of hooks that wait to be recorded, except states."""

_AFTER_THE_FACT: frozenset[Hook] = frozenset({"on_thread_created", "on_resume"})
"""Hooks that report what has already happened. All providers get them, even if one fails."""


class ProviderHooks:
    """The providers of one run, in order. ``steps`` and ``blobs`` hold their outcomes until these are recorded.

    ``actor`` is the caller, and ``by`` is the agent of a run.
    """

    def __init__(
        self,
        thread: ThreadPort,
        providers: Sequence[ContextProvider],
        *,
        agent: AgentIdentity | None = None,
        actor: str | None = None,
        run_id: str | None = None,
        by: Actor | None = None,
    ) -> None:
        self.steps: list[ProviderStep] = []
        self.blobs: list[Blob] = []
        self.changed_tools: frozenset[str] = frozenset()
        """The tools of a run that continues whose definitions are not those that the model had when it called them."""
        self.raises = True
        """Whether a failure is raised if the provider's policy says so; False once the run is over."""
        self._sessions = [
            ProviderSession(provider, HookContext(thread, provider, agent=agent, actor=actor, run_id=run_id, by=by))
            for provider in providers
        ]

    def __bool__(self) -> bool:
        return bool(self._sessions)

    @property
    def watches(self) -> bool:
        """Whether a provider wants to be shown every message."""
        return any(session.watches for session in self._sessions)

    @property
    def watching(self) -> tuple[str, ...]:
        """The ids of the providers that want to be shown every message."""
        return tuple(session.provider.id for session in self._sessions if session.watches)

    @property
    def asks_again(self) -> bool:
        """Whether a provider is asked again before the next model call."""
        return any(session.asks_again for session in self._sessions)

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools that providers gave, in order."""
        return tuple(tool for session in self._sessions for tool in session.tools)

    @property
    def citations(self) -> list[JsonObject]:
        """The sources of the answer that providers named."""
        return [citation for session in self._sessions for citation in session.context.citations]

    def schemas(self, provided: Sequence[ContextProvided]) -> tuple[ToolSchema, ...]:
        """The schemas of the provided tools, in the order of ``provided``."""
        by_provider = {session.provider.id: session.definitions.tools for session in self._sessions}
        return tuple(schema for each in provided if each.tools for schema in by_provider.get(each.provider, ()))

    def combined(self) -> Context:
        """All contexts as one: instructions with a blank line between them, everything else in order."""
        contexts = [session.returned for session in self._sessions if session.returned is not None]
        return Context(
            instructions="\n\n".join(each.instructions for each in contexts if each.instructions) or None,
            messages=[message for each in contexts for message in each.messages],
            tools=self.tools,
            facts=[fact for each in contexts for fact in each.facts],
            citations=self.citations,
        )

    def newly_cited(self, provided: Sequence[ContextProvided]) -> list[ContextProvided]:
        """The contexts to which tools have added citations since: a process that continues the run needs them."""
        cites = {session.provider.id: tuple(session.context.citations) for session in self._sessions}
        return [
            each.model_copy(update={"citations": cites[each.provider]})
            for each in provided
            if len(cites.get(each.provider, ())) > len(each.citations)
        ]

    def unrecorded_states(self, *, with_seen: bool = False) -> list[ContextStateRecorded]:
        """The states that changed since they were last recorded.

        ``with_seen`` also records which messages were shown: needed unless the end of the run says so.
        """
        states = (session.unrecorded_state(with_seen=with_seen) for session in self._sessions)
        return [state for state in states if state is not None]

    # Hooks

    async def load(self, recorded: ContextState) -> None:
        """Load the states of providers that are not loaded. Without a recorded state, a provider makes its initial one.

        If one fails, the others are loaded before the error is raised: their recorded states must not be overwritten.
        """
        failed: ContextProviderError | None = None
        for session in self._sessions:
            if session.loaded:
                continue
            session.loaded = True
            provider = session.provider.id
            state, seen = recorded.states.get(provider), recorded.seen_by(provider)
            try:
                await self._call(session, "initial_state", partial(_load, session, state, seen))
            except ContextProviderError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def reload(self, recorded: ContextState) -> None:
        """Load the states that others have recorded since."""
        for session in self._sessions:
            session.reload(recorded.states.get(session.provider.id))

    @property
    def seen(self) -> int | None:
        """The version after which a provider wants to be shown messages, None if none does."""
        return min((session.seen for session in self._sessions if session.watches), default=None)

    async def show(self, history: Sequence[HistoryMessage], *, but: Sequence[str] = ()) -> None:
        """Show each watching provider the messages that it has not seen; leave out the providers ``but``."""
        watching = [session for session in self._sessions if session.watches and session.provider.id not in but]
        first = min((session.seen for session in watching), default=0)
        for message in history if watching else ():
            for session in watching if message.version > first else ():
                if message.version > session.seen:
                    session.seen = message.version
                    await self._hook(session, "on_message", message)

    async def invoke(
        self, messages: Sequence[HistoryMessage], before: int, tools: Sequence[Tool], *, first: bool
    ) -> None:
        """Ask providers for context.

        ``before`` is the version that their messages come before; ``tools`` are the agent's. After the ``first`` time,
        only those that give context to every model call are asked, and those whose context is outdated.
        """
        for session in self._sessions:
            if first or session.asks_again:
                await self._call(session, "invoking", partial(self._invoke, session, messages, before, tools))

    async def _invoke(
        self, session: ProviderSession, messages: Sequence[HistoryMessage], before: int, tools: Sequence[Tool]
    ) -> None:
        context = await _outcome(session.provider.invoking(session.context, list(messages)))
        session.save()  # a context counts only together with its state
        provided = session.accept(context, before, self._other_tools(session, tools))
        if provided is not None:
            self.steps.append(provided)
            self.blobs += session.definitions.blobs
        self.steps += persisted_messages(context)

    async def invoke_again(
        self, messages: Sequence[HistoryMessage], provided: Sequence[ContextProvided], tools: Sequence[Tool]
    ) -> None:
        """Get the tool functions of a run that continues. The rest of its context is on the log.

        If the tools have changed, this is recorded.
        """
        for session in self._sessions:
            contribution = next((each for each in provided if each.provider == session.provider.id), None)
            if contribution is None:
                continue
            for citation in contribution.citations:
                session.context.cite(citation)
            if contribution.tools:
                await self._call(session, "invoking", partial(self._invoke_for_tools, session, messages, tools))
        definitions = {session.provider.id: session.definitions for session in self._sessions}
        for each in provided:
            blobs = definitions.get(each.provider, Definitions(None)).blobs
            digests = tuple(blob.digest.hex() for blob in blobs)
            if each.tools and digests != each.tools:
                schemas = definitions[each.provider].tools if each.provider in definitions else ()
                changed = [schema.name for schema, name in zip(schemas, digests, strict=True) if name not in each.tools]
                self.changed_tools |= frozenset(changed)
                self.steps.append(each.model_copy(update={"tools": digests}))
                self.blobs += blobs

    async def _invoke_for_tools(
        self, session: ProviderSession, messages: Sequence[HistoryMessage], tools: Sequence[Tool]
    ) -> None:
        context = await _outcome(session.provider.invoking(session.context, list(messages)))
        session.accept_tools(context, self._other_tools(session, tools))
        session.restore()  # the state of the first time is recorded

    async def invoked(
        self,
        request: Sequence[HistoryMessage],
        response: Sequence[HistoryMessage] | None,
        exception: BaseException | None = None,
    ) -> None:
        """The run is over: call the ``invoked`` hook of each provider, unless it was called already."""
        for session in self._sessions:
            if not session.ended:
                session.ended = True
                arguments = (list(request), None if response is None else list(response), exception)
                await self._hook(session, "invoked", *arguments)

    async def call_all(self, hook: Hook, *arguments: object) -> None:
        """Call a hook of the thread's life on all providers."""
        failed: ContextProviderError | None = None
        for session in self._sessions:
            try:
                await self._hook(session, hook, *arguments)
            except ContextProviderError as error:
                if hook not in _AFTER_THE_FACT:
                    raise
                failed = failed or error
        if failed is not None:
            raise failed

    def _other_tools(self, session: ProviderSession, tools: Sequence[Tool]) -> list[Tool]:
        return [*tools, *(tool for other in self._sessions if other is not session for tool in other.tools)]

    async def _hook(self, session: ProviderSession, hook: Hook, *arguments: object) -> None:
        await self._call(session, hook, lambda: _outcome(getattr(session.provider, hook)(session.context, *arguments)))

    async def _call(self, session: ProviderSession, hook: Hook, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Call a hook. A hook that fails, or is cancelled with the run, changes no state.

        The failure is recorded, and raised as ContextProviderError if the provider's policy says so.
        """
        provider, before, cited = session.provider, session.state_text, len(session.context.citations)
        if session.broken:
            return
        scope, cancelled = asyncio.timeout(provider.timeout), _cancel_requests()
        try:
            async with scope:
                await work()
            session.save()
        except BaseException as error:
            if hook == "initial_state":
                session.broken = True
            else:
                session.state_text = before
                session.restore()
            del session.context.citations[cited:]
            if not isinstance(error, Exception | SystemExit | asyncio.CancelledError):
                raise
            if _cancel_requests() > cancelled:  # even if the hook raised something else because of it
                raise asyncio.CancelledError from error
            self.steps.append(ContextFailed(provider=provider.id, hook=hook, error=failure(error)))
            if provider.on_failure == "fail" and self.raises:
                late = isinstance(error, TimeoutError) and scope.expired()
                why = f"it took longer than {provider.timeout:g} s." if late else _why(error)
                raise ContextProviderError(provider.id, hook, why, _advice(error)) from error


async def _load(session: ProviderSession, recorded: ProviderState | None, seen: int) -> None:
    session.load(recorded, seen)
    if recorded is None:
        session.context.state = await _outcome(session.provider.initial_state(session.context))


def _cancel_requests() -> int:
    """How often the current task was asked to cancel. A hook may raise CancelledError for other reasons."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


async def _outcome(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


def _advice(error: BaseException) -> str:
    """What to do about it. An agent whose parts do not fit together is mended, and not run without one of them."""
    return "" if isinstance(error, ToolNameTakenError) else "To continue without it, give it on_failure='continue'."


def _why(error: BaseException) -> str:
    """What went wrong. Of errors that are not Clew's own it holds only the class: their text may be secret."""
    name = type(error).__name__
    return f"{name}: {joined([str(error)])}" if isinstance(error, ClewError) else f"{name}, which is its cause."
