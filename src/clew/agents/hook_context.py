"""What a hook is told: the thread, who acts, the provider's state, and the scopes that it may look into."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from clew.domain.context.provider import ContextProvider
from clew.domain.errors import ScopeError
from clew.domain.history import HistoryMessage
from clew.domain.json_values import JsonObject, check_json
from clew.domain.memory.events import ScopeRead
from clew.domain.memory.ports import MemoryPort
from clew.domain.models.client import ThreadKind
from clew.domain.runs.events import AgentIdentity
from clew.domain.runs.ports import ThreadPort


class ThreadSeen:
    """A thread, as its providers see it."""

    def __init__(self, thread: ThreadPort) -> None:
        self._thread = thread

    @property
    def id(self) -> str:
        """The id of the thread."""
        return self._thread.id

    @property
    def kind(self) -> ThreadKind:
        """Who holds the history."""
        return self._thread.kind

    async def history(self) -> list[HistoryMessage]:
        """The messages on its path, as they are now."""
        return list((await self._thread.runs.history()).messages)


class HookContext:
    """What the hooks of one provider are told in one run, or in one call outside a run."""

    def __init__(
        self,
        thread: ThreadPort,
        provider: ContextProvider,
        *,
        agent: AgentIdentity | None,
        actor: str | None,
        run_id: str | None,
    ) -> None:
        self.state: Any = None
        self.thread = ThreadSeen(thread)
        self.agent = agent
        self.actor = actor or thread.runs.actor
        self.tenant = thread.runs.tenant
        self.run_id = run_id
        self.citations: list[JsonObject] = []
        self._thread = thread
        self._provider = provider
        self._scopes: dict[str, MemoryPort] = {}

    @property
    def scope(self) -> MemoryPort:
        """The memory scope that the provider declares as its own."""
        if self._provider.scope is None:
            raise ScopeError(
                f"{self._provider.id!r} has no scope of its own, and an unset one is nobody's. Give scope='user/42'."
            )
        return self.memory(self._provider.scope)

    def memory(self, name: str) -> MemoryPort:
        """A memory scope, read as the thread reads them."""
        if name not in self._scopes:
            self._scopes[name] = self._thread.scope(
                name,
                run_id=self.run_id,
                actor=self.actor,
                provider=self._provider.id,
                reads_only=name != self._provider.scope,
            )
        return self._scopes[name]

    @property
    def reads(self) -> tuple[ScopeRead, ...]:
        """The scopes that were read, and at which versions."""
        return tuple(read for scope in self._scopes.values() for read in scope.reads)

    async def reads_at(self, name: str) -> int | None:
        """The version of a scope or a store of documents that the thread reads, None for the newest."""
        return await self._thread.reads_at(name)

    def cite(self, citation: JsonObject) -> None:
        """Say what the answer rests on."""
        check_json(citation, "citation")
        if citation not in self.citations:
            self.citations.append(deepcopy(citation))
