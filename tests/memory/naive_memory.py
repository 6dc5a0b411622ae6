"""Memory and the context of hooks in their simplest form: lists without a store."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from clew.domain.context.provider import ContextProvider
from clew.domain.errors import ScopeError, UnknownFactError
from clew.domain.history import HistoryMessage
from clew.domain.json_values import JsonObject
from clew.domain.memory.events import Provenance, ScopeRead
from clew.domain.memory.facts import Fact, FactOrigin, FactUse, FoundFact
from clew.domain.memory.ports import MemoryAt
from clew.domain.messages import Message
from clew.domain.models.client import ThreadKind
from clew.domain.runs.events import AgentIdentity

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)


class NaiveMemory:
    """All scopes of all tenants."""

    def __init__(self) -> None:
        self.facts: dict[tuple[str, str], list[Fact]] = {}
        self.repeats: dict[tuple[str, ...], Fact] = {}

    def texts(self, scope: str, tenant: str = "default", *, kind: str | None = None) -> list[str]:
        """Return the texts of the live facts of a scope."""
        return [
            fact.text for fact in self.facts.get((tenant, scope), []) if fact.status == "live" and fact.kind == kind
        ]


@dataclass
class NaiveScope:
    """A memory scope as a hook sees it."""

    memory: NaiveMemory
    tenant: str
    name: str
    thread: str
    run_id: str | None

    @property
    def all(self) -> list[Fact]:
        """Return all facts, also ended ones, oldest first."""
        return self.memory.facts.setdefault((self.tenant, self.name), [])

    @property
    def reads(self) -> tuple[ScopeRead, ...]:
        return ()

    async def remember(
        self,
        text: str,
        *,
        key: str | None = None,
        kind: str | None = None,
        metadata: JsonObject | None = None,
        valid_from: datetime | None = None,
        valid_to: datetime | None = None,
        source: HistoryMessage | Provenance | None = None,
        actor: str | None = None,
        idempotency_key: str | None = None,
        replaces: str | None = None,
    ) -> Fact:
        del valid_from
        again = (self.tenant, self.name, idempotency_key or f"{self.run_id}/{kind}/{key}/{text}")
        if again in self.memory.repeats:
            return self.memory.repeats[again]
        version = len(self.all) + 1
        learned = (
            source if isinstance(source, Provenance | None) else Provenance(thread=self.thread, version=source.version)
        )
        fact = Fact(
            self.name, f"{self.name}-{version}", text, version, NOW, NOW, valid_to, key, kind, metadata or {}, learned
        )
        self.all.append(fact._replace(replaces=replaces, actor=actor))
        self.memory.repeats[again] = self.all[-1]
        return self.all[-1]

    async def supersede(
        self,
        fact: Fact | str,
        text: str,
        *,
        metadata: JsonObject | None = None,
        valid_from: datetime | None = None,
        valid_to: datetime | None = None,
        source: HistoryMessage | Provenance | None = None,
        actor: str | None = None,
        idempotency_key: str | None = None,
    ) -> Fact:
        del valid_from, valid_to
        old = self._end(fact, "superseded")
        return await self.remember(
            text,
            key=old.key,
            kind=old.kind,
            metadata=metadata,
            source=source,
            actor=actor,
            idempotency_key=idempotency_key,
            replaces=old.id,
        )

    async def retract(
        self,
        fact: Fact | str,
        *,
        reason: str | None = None,
        valid_to: datetime | None = None,
        actor: str | None = None,
    ) -> None:
        del reason, valid_to, actor
        self._end(fact, "retracted")

    async def facts(
        self,
        *,
        key: str | None = None,
        kind: str | None = None,
        at: MemoryAt = None,
        valid_at: datetime | None = None,
        history: bool = False,
    ) -> list[Fact]:
        del at, valid_at
        return [
            fact
            for fact in self.all
            if (history or fact.status == "live") and key in {None, fact.key} and kind in {None, fact.kind}
        ]

    async def search(
        self,
        query: str,
        *,
        top: int = 5,
        min_score: float = 0.0,
        kind: str | None = None,
        at: MemoryAt = None,
        valid_at: datetime | None = None,
    ) -> list[FoundFact]:
        del at, valid_at
        wanted = set(query.lower().split())
        hits = [
            FoundFact(fact, len(wanted & set(fact.text.lower().split())) / len(wanted))
            for fact in await self.facts(kind=kind)
        ]
        best = sorted((each for each in hits if each.score > 0), key=lambda each: -each.score)
        return [each for each in best if each.score >= min_score][:top]

    async def why(self, fact: Fact | str) -> FactOrigin:
        raise NotImplementedError(fact)

    async def used_by(self, fact: Fact | str) -> list[FactUse]:
        raise NotImplementedError(fact)

    def tools(self) -> Sequence[Callable[..., Any]]:
        return []

    def _end(self, fact: Fact | str, status: Any) -> Fact:
        id_ = fact if isinstance(fact, str) else fact.id
        for place, each in enumerate(self.all):
            if each.id == id_ and each.status == "live":
                self.all[place] = each._replace(status=status)
                return each
        raise UnknownFactError(self.name, id_)


@dataclass
class NaiveThread:
    """A thread that is a list of messages."""

    id: str = "thread-1"
    kind: ThreadKind = "local"
    messages: list[HistoryMessage] = field(default_factory=list)

    async def history(self, *, last: int | None = None, before: HistoryMessage | None = None) -> list[HistoryMessage]:
        earlier = [each for each in self.messages if before is None or each.version < before.version]
        return earlier if last is None else earlier[-last:]

    def say(self, *messages: Message | str) -> list[HistoryMessage]:
        """Append messages and return them; a string becomes a user's message."""
        appended = [
            HistoryMessage(version, message.role, message, f"event-{version}", 1_772_625_600_000_000 + version)
            for version, message in enumerate(
                (Message.user(each) if isinstance(each, str) else each for each in messages), len(self.messages) + 2
            )
        ]
        self.messages += appended
        return appended


class NaiveContext:
    """The context of the hooks of a provider on a thread."""

    _runs = itertools.count(1)

    def __init__(
        self,
        provider: ContextProvider,
        memory: NaiveMemory | None = None,
        thread: NaiveThread | None = None,
        *,
        tenant: str = "default",
    ) -> None:
        self.provider = provider
        self.store = NaiveMemory() if memory is None else memory
        self.thread = thread or NaiveThread()
        self.tenant = tenant
        self.agent: AgentIdentity | None = None
        self.actor: str | None = None
        self.run_id: str | None = f"run-{next(self._runs)}"
        self.citations: list[JsonObject] = []
        self.state: Any = provider.initial_state(self)

    @property
    def scope(self) -> NaiveScope:
        if self.provider.scope is None:
            raise ScopeError("none")
        return self.memory(self.provider.scope)

    def memory(self, name: str) -> NaiveScope:
        return NaiveScope(self.store, self.tenant, name, self.thread.id, self.run_id)

    def cite(self, citation: JsonObject) -> None:
        self.citations.append(citation)

    async def reads_at(self, name: str) -> int | None:
        del name
        return None

    async def run(self, text: str, answer: str | Message = "Fine.") -> str | None:
        """Do a run with a user's text and an answer; return the instructions of the provider."""
        self.run_id = f"run-{next(self._runs)}"
        request = self.thread.say(text)
        context = await self.provider.invoking(self, request)
        response = self.thread.say(Message.assistant(answer) if isinstance(answer, str) else answer)
        await self.provider.invoked(self, request, response)
        return None if context is None else context.instructions
