"""What a thread of an engine is to agents: they run on it, and whoever approves finds what waits there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any, ClassVar, Literal, Self, Unpack, overload

from clew.agents.agent import Agent
from clew.agents.approvals import Approval, approvals
from clew.agents.inputs import Input, inputs
from clew.agents.orphaned_run import LeftRun, left_run, tell_given_up
from clew.agents.response import AgentResponse
from clew.agents.run_options import ContinueOptions, RunOptions
from clew.agents.stream import AgentStream
from clew.agents.thread_hooks import Outside
from clew.aio.memory import MemoryScope
from clew.aio.serializing import SerializedThread
from clew.domain.context.events import Hook
from clew.domain.context.provider import Context, ContextProvider
from clew.domain.context.thread_providers import ThreadProviders
from clew.domain.decider import Intent
from clew.domain.memory.ports import MemoryPort
from clew.domain.models.client import ThreadKind
from clew.domain.runs.errors import AgentConfigurationError
from clew.service.async_operations import drive
from clew.service.core import Core
from clew.service.memory.scopes import version_read
from clew.service.run_log import Beginning, ThreadRuns, branch_of
from clew.service.thread_queries import At


class AgentThread(SerializedThread, ABC):
    """The agents' way in: of every thread of an engine."""

    kind: ClassVar[ThreadKind]
    """Who holds the history: ``local`` for Clew, ``remote`` for a service."""

    id: str
    _core: Core
    _runs: ThreadRuns | None = None
    _asked: bool
    """Whether it was asked if the thread may be read, or nobody need be asked."""
    _providers: ThreadProviders | None = None
    agent: Agent[Any, Any] | None = None
    """The agent that ``run`` is of, None when the thread is bound to none."""

    @overload
    def run(
        self, input: Input = None, *, stream: Literal[False] = False, **options: Unpack[RunOptions]
    ) -> Coroutine[Any, Any, AgentResponse[Self]]: ...
    @overload
    def run(
        self, input: Input = None, *, stream: Literal[True], **options: Unpack[RunOptions]
    ) -> AgentStream[Self]: ...
    def run(
        self,
        input: Input = None,  # noqa: A002  # as in Agent.run
        *,
        stream: bool = False,
        **options: Unpack[RunOptions],
    ) -> Coroutine[Any, Any, AgentResponse[Self]] | AgentStream[Self]:
        """Have the agent that the thread is bound to run on it: see Agent.run. Raises AgentConfigurationError."""
        given: RunOptions = {"thread": self, **options}
        return self._bound("run").run(input, stream=True, **given) if stream else self._bound("run").run(input, **given)

    @overload
    def continue_run(
        self, *, stream: Literal[False] = False, **options: Unpack[ContinueOptions]
    ) -> Coroutine[Any, Any, AgentResponse[Self]]: ...
    @overload
    def continue_run(self, *, stream: Literal[True], **options: Unpack[ContinueOptions]) -> AgentStream[Self]: ...
    def continue_run(
        self, *, stream: bool = False, **options: Unpack[ContinueOptions]
    ) -> Coroutine[Any, Any, AgentResponse[Self]] | AgentStream[Self]:
        """Go on with the thread's open run: see Agent.continue_run. Raises AgentConfigurationError."""
        agent = self._bound("continue_run")
        return agent.continue_run(self, stream=True, **options) if stream else agent.continue_run(self, **options)

    async def approvals(self) -> list[Approval]:
        """The function calls that wait for somebody's approval, in whatever process they were asked for."""
        return await approvals(self.runs)

    @property
    def runs(self) -> ThreadRuns:
        """What a run reads and writes of the thread: for agents."""
        if self._runs is None:
            self._runs = ThreadRuns(self._core, self.id)
        return self._runs

    @property
    def context_providers(self) -> ThreadProviders:
        """The context providers that serve every run on the thread, whichever agent runs; ``add()`` takes more.

        They are code: they are of this object and of the forks that are made of it, and not on the log.
        """
        if self._providers is None:
            self._providers = ThreadProviders()
        return self._providers

    def scope(self, name: str, *, run_id: str | None, actor: str | None, provider: str, reads_only: bool) -> MemoryPort:
        """A memory scope as the thread reads it: for context providers. Raises ScopeError."""
        return MemoryScope.of_thread(
            self._core,
            name,
            thread_id=self.id,
            run_id=run_id,
            actor=actor,
            provider=provider,
            reads_only=reads_only,
        )

    async def reads_at(self, name: str) -> int | None:
        """The version of a scope or a store of documents that the thread reads, None for the newest: for agents."""
        return await drive(version_read(self._core, self.id, name))

    async def context(self, input: Input = None, *, actor: str | None = None) -> Context:  # noqa: A002  # as in Agent.run
        """What the context providers give to an application that calls a model itself, about what is about to be said.

        They are the thread's and, when it is bound to an agent, that agent's. What they give and keep is recorded.
        Raises ContextProviderError.
        """
        return await self._outside(actor).context(inputs("context", input))

    async def tell(self, hook: Hook, *given: object, before: Intent | None = None, actor: str | None = None) -> None:
        """Tell the context providers what happens to the thread: see the port."""
        await self._outside(actor).tell(hook, *given, before=before)

    async def left_run(self) -> LeftRun | None:
        """The open run that nobody carries out, None when there is none or nobody to be told: for threads."""
        return await left_run(self) if self._supplied() else None

    async def tell_given_up(self, left: LeftRun) -> None:
        """Tell the context providers of a run that somebody ended by going back: for threads."""
        agent = None if self.agent is None else self.agent.identity
        # What they keep of it is no part of the thread any more.
        await tell_given_up(left, self, self._supplied(), agent, reason="asked")

    def _supplied(self) -> list[ContextProvider]:
        own = () if self.agent is None else self.agent.context_providers
        return [*own, *self.context_providers]

    def _outside(self, actor: str | None) -> Outside:
        own = () if self.agent is None else self.agent.context_providers
        return Outside(self, own, None if self.agent is None else self.agent.identity, actor)

    async def branch(self, at: At = None) -> Self:
        """A fork at a version that begins with the first run on it: for agents."""
        begin = await drive(branch_of(self._core, self.id, at))
        return self.of(self._core.thread_id()).begun_by_run(begin)

    def begun_by_run(self, begin: Beginning) -> Self:
        """The same, not there yet: it begins with the first run on it."""
        self._runs = ThreadRuns(self._core, self.id, begin)
        self._asked = True
        return self

    def bound_to(self, agent: Agent[Any, Any] | None) -> Self:
        """The same thread, run by an agent."""
        bound = self.of(self.id)
        bound.agent = agent
        bound._providers = self.context_providers  # noqa: SLF001  # it is the same thread
        return bound

    @abstractmethod
    def of(self, thread_id: str) -> Self:
        """A thread of the same kind, store and agent by its id."""

    def _bound(self, asked: str) -> Agent[Any, Any]:
        if self.agent is None:
            raise AgentConfigurationError(
                f"{asked}: thread {self.id!r} is bound to no agent. Use agent.run(…, thread=thread), or get the thread "
                "from the agent: agent.thread(id)."
            )
        return self.agent
