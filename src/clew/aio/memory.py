"""The memory of an Engine: scopes of facts, and stores of documents.

clew/sync/memory.py is generated from this file: see tools/sync_twin.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from clew.agents.tools import Tool
from clew.domain.errors import ScopeError
from clew.domain.history import HistoryMessage
from clew.domain.json_values import Json, JsonObject
from clew.domain.memory.events import Provenance, ScopeRead
from clew.domain.memory.facts import Document, Fact, FactOrigin, FactUse, FoundFact, Passage
from clew.domain.memory.ports import MemoryAt
from clew.service.async_effects import drive
from clew.service.core import Core
from clew.service.effects import read
from clew.service.memory import scope_commands, scope_queries
from clew.service.memory.document_stores import StoreView, remove, search, upsert
from clew.service.memory.scope_commands import WriteOptions
from clew.service.memory.scope_view import Scope, ThreadAccess
from clew.service.memory.text_search import EmbeddingIndex, SearchIndex
from clew.service.memory.tools import memory_tools


class MemoryScope:
    """Facts about a user, an agent, an application, a group or anything else that has a name.

    Nothing is overwritten. ``at`` selects what was known at a version of the scope, or at an aware datetime.
    ``valid_at`` selects what was true at a time. ``actor`` is by default the actor of the service. Raises ScopeError
    for a scope that holds documents, and EmbeddingMismatchError for one that is recorded with another embedder.
    """

    def __init__(
        self,
        scope: Scope,
        meaning: EmbeddingIndex | None = None,  # asyncio only
    ) -> None:
        self._scope = scope
        self._meaning = meaning  # asyncio only

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @property
    def name(self) -> str:
        """The scope's name, such as ``user/42``."""
        return self._scope.name

    async def remember(  # noqa: PLR0913  # every property of a fact has its own parameter
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
        """Add a fact.

        It is valid from ``valid_from`` (by default now) to ``valid_to`` (not included; by default for ever). ``source``
        is where it was learned. A repeated ``idempotency_key`` adds nothing and returns the first fact. Raises
        InvalidContentError, InvalidTimeError or IdempotencyKeyReusedError; then nothing is stored.
        """
        options = WriteOptions(key, kind, metadata, valid_from, valid_to, source, actor, idempotency_key)
        return await drive(scope_commands.remember(self._scope, text, options))

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
        """Replace a live fact by a new one of the same key and kind. The old one stays valid until ``valid_from``.

        Raises UnknownFactError, and the errors of remember().
        """
        options = WriteOptions(None, None, metadata, valid_from, valid_to, source, actor, idempotency_key)
        return await drive(scope_commands.supersede(self._scope, fact, text, options))

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
        """End the validity of a live fact, by default now. Raises UnknownFactError.

        The log keeps the fact, so ``at``, ``valid_at`` and ``history`` can still select it.
        """
        options = WriteOptions(valid_to=valid_to, source=source, actor=actor, idempotency_key=idempotency_key)
        await drive(scope_commands.retract(self._scope, fact, reason, options))

    async def put(
        self,
        key: str,
        value: Json,
        *,
        text: str | None = None,
        expected: int | None = None,
        source: HistoryMessage | Provenance | None = None,
        actor: str | None = None,
        idempotency_key: str | None = None,
    ) -> Fact:
        """Store a JSON value as the only live fact with a key of 1 to 200 characters. It replaces the live one.

        Of several writers at once, one comes after the other, and the last one's fact is live. ``text`` is what
        searches find and models read, by default the value: a string as it is, other values as JSON. With
        ``expected``, FactConflictError is raised unless that is the version of the live fact, or 0 and there is none.
        Raises UnknownVersionError, and the errors of remember().
        """
        options = WriteOptions(source=source, actor=actor, idempotency_key=idempotency_key)
        return await drive(scope_commands.put(self._scope, key, value, text, expected, options))

    async def get(self, key: str, *, at: MemoryAt = None) -> Fact | None:
        """The newest live fact with a key, whenever it is valid; None if there is none.

        It takes the same time for any number of facts. Raises UnknownVersionError or InvalidTimeError.
        """
        return await drive(scope_queries.get(self._scope, key, at))

    async def delete(
        self,
        key: str,
        *,
        expected: int | None = None,
        reason: str | None = None,
        source: HistoryMessage | Provenance | None = None,
        actor: str | None = None,
        idempotency_key: str | None = None,
    ) -> bool:
        """Retract the live fact with a key; returns whether there was one. The log keeps it, as retract() does.

        ``expected`` is as in put(). Raises FactConflictError, UnknownVersionError and InvalidContentError.
        """
        options = WriteOptions(source=source, actor=actor, idempotency_key=idempotency_key)
        return await drive(scope_commands.delete(self._scope, key, reason, expected, options))

    async def facts(
        self,
        *,
        key: str | None = None,
        kind: str | None = None,
        at: MemoryAt = None,
        valid_at: datetime | None = None,
        history: bool = False,
    ) -> list[Fact]:
        """The facts that are valid, in the order in which they were added; with ``history`` also all earlier ones.

        ``valid_at`` selects another time than now. Raises UnknownVersionError or InvalidTimeError.
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
    ) -> list[FoundFact]:
        """The facts that match a query best, best first: by words, and with an embedder by meaning too.

        Raises InvalidContentError, EmbeddingError, and the errors of facts().
        """
        facts = await drive(scope_queries.select_facts(self._scope, kind=kind, at=at, valid_at=valid_at))
        if self._meaning is not None:  # asyncio only
            ranking = await self._by_meaning(facts, self._meaning).search(
                facts.texts, query, top=top, min_score=min_score, allowed=facts.numbers, embeddings=self._meaning
            )
            return [FoundFact(facts.fact(number), score) for number, score in ranking]
        index = scope_queries.word_index(facts)
        ranking = await drive(
            read(lambda: index.by_words(facts.texts, query, top=top, min_score=min_score, allowed=facts.numbers))
        )
        return [FoundFact(facts.fact(number), score) for number, score in ranking]

    async def why(self, fact: Fact | str) -> FactOrigin:
        """Where a fact comes from, live or not. Raises UnknownFactError."""
        return await drive(scope_queries.why(self._scope, fact))

    async def used_by(self, fact: Fact | str) -> list[FactUse]:
        """The model calls that contained a fact, oldest first. Raises UnknownFactError."""
        return await drive(scope_queries.used_by(self._scope, fact))

    async def promote(
        self,
        fact: Fact | str,
        *,
        to: MemoryScope,
        actor: str | None = None,
        idempotency_key: str | None = None,
    ) -> Fact:
        """Copy a live fact into a wider scope, if that scope's screen allows it; returns the fact there.

        A screen that changes the text drops the metadata. The copy has the provenance of this fact, and ``why`` leads
        back here. Raises FactRefusedError, UnknownFactError, or ScopeError for a scope of another tenant.
        """
        if not isinstance(to, MemoryScope):
            raise ScopeError(f"promote: to={type(to).__name__} is not a memory scope. Give await engine.memory(…).")
        wider = to._scope
        return await drive(scope_commands.promote(self._scope, fact, wider, actor, idempotency_key))

    # asyncio only: begin
    def tools(self) -> list[Tool]:
        """Functions with which a model stores, looks up, changes and clears facts in this scope only."""
        return memory_tools(self, lambda text, options: drive(scope_commands.store(self._scope, text, options)))

    @property
    def reads(self) -> tuple[ScopeRead, ...]:
        """The versions of the scope that were read for a thread, in order: for agents."""
        learner = self._scope.learner
        return () if learner is None else tuple(ScopeRead(scope=each[0], version=each[1]) for each in learner.reads)

    def _by_meaning(self, facts: scope_queries.Selection, meaning: EmbeddingIndex) -> SearchIndex:
        index: SearchIndex | None = facts.cached.indexes.get("meaning")
        if index is None or index.embeddings is None or index.embeddings.space != meaning.space:
            index = facts.cached.indexes["meaning"] = SearchIndex(facts.collection, meaning)
        return index

    # asyncio only: end


# asyncio only: begin
def scope_of_thread(
    core: Core,
    name: str,
    *,
    thread_id: str,
    run_id: str | None,
    actor: str | None,
    provider: str | None,
    on_behalf_of: str | None = None,
    reads_only: bool = False,
) -> MemoryScope:
    """A scope as a thread reads and writes it: for agents.

    It is read as it is now, or as of the thread's cut. A fact written here has the thread as its provenance, at the
    version of ``source`` or else at the newest; within a run the same write happens once. With ``reads_only``
    writes raise ScopeError.
    """
    learner = ThreadAccess(thread_id, run_id, actor, provider, reads_only, on_behalf_of)
    return MemoryScope(Scope(core, name, learner=learner))


class DocumentStore:
    """One namespace of a document store: reads and writes do not reach the others.

    A document can be in several namespaces. Searches return passages of at most 1,200 characters.
    """

    def __init__(self, core: Core, view: StoreView) -> None:
        self._core = core
        self._view = view

    @property
    def name(self) -> str:
        """The store's name."""
        return self._view.name

    @property
    def namespace(self) -> str:
        """The namespace that is read and written."""
        return self._view.namespace

    async def upsert(self, documents: Sequence[Document], *, actor: str | None = None) -> list[str]:
        """Add documents; each replaces the one with the same link in this namespace. Returns their ids.

        Either all are added or none. Each document must list this namespace. Raises ScopeError for one that does not,
        InvalidContentError for a document that cannot be stored, such as one of more than 16 MiB, and
        EmbeddingError if the embedder returns no vectors, or vectors that differ from its declaration.
        """
        return await upsert(self._core, self._view, documents, actor)

    async def remove(self, document: str, *, reason: str | None = None, actor: str | None = None) -> None:
        """Remove a document from all further searches, by its id or its link. Raises UnknownDocumentError."""
        await drive(remove(self._core, self._view, document, reason, actor))

    async def search(self, query: str, *, top: int = 5, min_score: float = 0.0, at: MemoryAt = None) -> list[Passage]:
        """The passages of this namespace that match a query best, best first.

        They are found by words and, with an embedder, by meaning. Scores are from 0 to 1; passages below ``min_score``
        are left out. ``at`` searches the store at a version, or at an aware datetime. Raises UnknownVersionError,
        InvalidTimeError, InvalidContentError or EmbeddingError.
        """
        return await search(self._core, self._view, query, top, min_score, at)


# asyncio only: end
