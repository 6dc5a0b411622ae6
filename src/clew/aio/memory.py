"""Memory scopes, awaited: what is remembered outside any one thread, and the way to it from an engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Self

from clew.agents.tools import Tool
from clew.domain.errors import ScopeError
from clew.domain.history import HistoryMessage
from clew.domain.json_values import JsonObject
from clew.domain.memory.events import Provenance, ScopeRead
from clew.domain.memory.facts import Fact, Found, Use, Why
from clew.domain.memory.ports import Embedder, MemoryAt, Screen
from clew.service.async_operations import drive
from clew.service.core import Core
from clew.service.memory import scope_commands, scope_queries, scopes
from clew.service.memory.scope_commands import Asked
from clew.service.memory.scope_queries import ScopeSummary
from clew.service.memory.scopes import Learner, Scope
from clew.service.memory.text_search import Meaning, Searchable
from clew.service.memory.tools import memory_tools


class MemoryScope:
    """What is remembered of a user, an agent, an application, a group or anything else that has a name: facts.

    Nothing is overwritten: ``at`` is what was known at a version of the scope's stream, or at an aware time, and
    ``valid_at`` what was held to be true of a time. ``actor`` is who acts, by default the engine's. A scope that holds
    documents raises ScopeError, and one that another embedder is recorded for EmbeddingMismatchError.
    """

    def __init__(self, scope: Scope, meaning: Meaning | None = None) -> None:
        self._scope = scope
        self._meaning = meaning

    @classmethod
    def of_thread(
        cls,
        core: Core,
        name: str,
        *,
        thread_id: str,
        run_id: str | None,
        actor: str | None,
        provider: str | None,
        reads_only: bool = False,
        embedder: Embedder | None = None,
    ) -> Self:
        """A scope as a thread reads and writes it: for agents.

        It is read live, or as of the thread's cut. What is written has the thread as its provenance, at the version of
        ``source`` or else at its newest; in a run it is written once, however often the same is asked for. One that
        ``reads_only`` raises ScopeError for what is written.
        """
        return cls(*_opened(core, name, embedder, None, Learner(thread_id, run_id, actor, provider, reads_only)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @property
    def name(self) -> str:
        """The scope's name, such as ``user/42``."""
        return self._scope.name

    @property
    def reads(self) -> tuple[ScopeRead, ...]:
        """The versions of the scope that were read for a thread, in order: for agents."""
        learner = self._scope.learner
        return () if learner is None else tuple(ScopeRead(scope=each[0], version=each[1]) for each in learner.reads)

    async def remember(  # noqa: PLR0913  # all that can be said of a fact
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
    ) -> Fact:
        """Know something from now on.

        It is held to be true from ``valid_from``, by default from now, until before ``valid_to``, by default for ever.
        ``source`` is where it was learned. The same ``idempotency_key`` again remembers nothing more. Raises
        InvalidContentError, InvalidTimeError or IdempotencyKeyReusedError; then nothing is stored.
        """
        asked = Asked(key, kind, metadata, valid_from, valid_to, source, actor, idempotency_key)
        return await drive(scope_commands.remember(self._scope, text, asked))

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
        """Know something else instead of a live fact, of the same key and kind, which holds until ``valid_from``.

        Raises UnknownFactError, and what remember() does.
        """
        asked = Asked(None, None, metadata, valid_from, valid_to, source, actor, idempotency_key)
        return await drive(scope_commands.supersede(self._scope, fact, text, asked))

    async def retract(
        self,
        fact: Fact | str,
        *,
        reason: str | None = None,
        valid_to: datetime | None = None,
        source: HistoryMessage | Provenance | None = None,
        actor: str | None = None,
        idempotency_key: str | None = None,
    ) -> None:
        """Hold a live fact to be true no more, by default from now; it stays in the past. Raises UnknownFactError."""
        asked = Asked(valid_to=valid_to, source=source, actor=actor, idempotency_key=idempotency_key)
        await drive(scope_commands.retract(self._scope, fact, reason, asked))

    async def facts(
        self,
        *,
        key: str | None = None,
        kind: str | None = None,
        at: MemoryAt = None,
        valid_at: datetime | None = None,
        history: bool = False,
    ) -> list[Fact]:
        """What is held to be true, in the order in which it was remembered; with ``history`` all that ever was known.

        ``valid_at`` is the time that it is to be true of, by default that of the reading. Raises UnknownVersionError or
        InvalidTimeError.
        """
        operation = scope_queries.facts(self._scope, key=key, kind=kind, at=at, valid_at=valid_at, history=history)
        return await drive(operation)

    async def search(
        self,
        query: str,
        *,
        top: int = 5,
        min_score: float = 0.0,
        kind: str | None = None,
        at: MemoryAt = None,
        valid_at: datetime | None = None,
    ) -> list[Found]:
        """The facts that have most to do with some words, best first: by words, and with an embedder by meaning too.

        Raises InvalidContentError, EmbeddingError, and what facts() does.
        """
        found = await drive(scope_queries.selected(self._scope, kind=kind, at=at, valid_at=valid_at))
        within = self._searchable(found)
        ranking = await within.search(
            found.texts, query, top=top, min_score=min_score, allowed=found.numbers, meaning=self._meaning
        )
        return [Found(found.fact(number), score) for number, score in ranking]

    async def why(self, fact: Fact | str) -> Why:
        """Where a fact came from, live or not. Raises UnknownFactError."""
        return await drive(scope_queries.why(self._scope, fact))

    async def used_by(self, fact: Fact | str) -> list[Use]:
        """The model calls that were given a fact, oldest first. Raises UnknownFactError."""
        return await drive(scope_queries.used_by(self._scope, fact))

    async def promote(
        self,
        fact: Fact | str,
        *,
        to: MemoryScope,
        actor: str | None = None,
        idempotency_key: str | None = None,
    ) -> Fact:
        """Take a live fact into a wider scope, past its screen; returns the fact that is remembered there.

        With other words than its own it goes without its metadata. It has the provenance of this one, and ``why`` leads
        back here. Raises FactRefusedError, UnknownFactError, or ScopeError for a scope of another tenant.
        """
        if not isinstance(to, MemoryScope):
            raise ScopeError(f"promote: to={type(to).__name__} is no memory scope. Give await engine.memory(…).")
        wider = to._scope
        return await drive(scope_commands.promote(self._scope, fact, wider, actor, idempotency_key))

    def tools(self) -> list[Tool]:
        """Functions with which a model stores, looks up, changes and clears what is in this scope, and no other."""
        return memory_tools(self, lambda text, asked: drive(scope_commands.store(self._scope, text, asked)))

    def _searchable(self, found: scope_queries.Selection) -> Searchable:
        if self._meaning is None:
            return scope_queries.searchable(found)
        kept: Searchable | None = found.kept.made.get("meaning")
        if kept is None or kept.meaning is None or kept.meaning.space != self._meaning.space:
            kept = found.kept.made["meaning"] = Searchable(found.collection, self._meaning)
        return kept


class HasMemory:
    """An engine, as far as it remembers."""

    _core: Core

    async def memory(self, name: str, *, embedder: Embedder | None = None, screen: Screen | None = None) -> MemoryScope:
        """The memory scope of that name, such as ``user/42``; it begins with the first fact.

        With an ``embedder`` it is searched by meaning too. ``screen`` decides what may be promoted into it. Raises
        ScopeError for None or an empty name, and for one that holds documents; InvalidNameError; EmbeddingMismatchError
        where another embedder is recorded.
        """
        scope, meaning = _opened(self._core, name, embedder, screen, None)
        await drive(scopes.opened(scope))
        return MemoryScope(scope, meaning)

    async def scopes(self) -> AsyncIterator[ScopeSummary]:
        """The memory scopes of the tenant, those that hold documents too, in the order in which they were opened."""
        pages = scope_queries.scopes(self._core)
        while page := await drive(pages.next()):
            for each in page:
                yield each


def _opened(
    core: Core, name: str, embedder: Embedder | None, screen: Screen | None, learner: Learner | None
) -> tuple[Scope, Meaning | None]:
    meaning = None if embedder is None else Meaning(embedder, core.vectors)
    model, dimensions = (None, None) if meaning is None else (meaning.model, meaning.dimensions)
    return Scope(core, name, model, dimensions, screen, learner), meaning
