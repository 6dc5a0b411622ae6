"""The ports of memory: scopes and document stores as components see them, embedders, and indexes of vectors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeAlias

from clew.domain.history import HistoryMessage
from clew.domain.json_values import JsonObject
from clew.domain.memory.events import Provenance, ScopeRead
from clew.domain.memory.facts import Document, Fact, FactOrigin, FactUse, FoundFact, Passage, Screened

Screen: TypeAlias = Callable[[Fact], Screened]
"""Decides whether a fact may be promoted into a scope."""

MemoryAt: TypeAlias = int | datetime | None
"""A version of a scope's stream, or an aware time; None is now."""


class Embedder(Protocol):
    """Turns texts into vectors. ``model`` names what it does so with: vectors of two models are not compared."""

    @property
    def model(self) -> str:
        """The name of the model, which scopes record."""
        ...

    @property
    def dimensions(self) -> int:
        """How many numbers a vector has."""
        ...

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """A vector for each text. Raises EmbeddingError for what the service behind it refuses."""
        ...


class VectorIndex(Protocol):
    """Keeps vectors by what they are of, and finds the nearest: a projection, which can be dropped and made again.

    ``space`` is a model's name with its dimensions. A vector is kept by the SHA-256 of the text that it is of, so that
    a text is embedded once, whichever scopes have it; where a database keeps tenants apart, once for each.
    Calls may block, and come from any thread.
    """

    def missing(self, space: str, digests: Collection[bytes]) -> set[bytes]:
        """Which of these have no vector yet."""
        ...

    def put(self, space: str, vectors: Mapping[bytes, Sequence[float]]) -> None:
        """Keep vectors; those that are there stay as they are."""
        ...

    def nearest(
        self, space: str, collection: str, entries: Mapping[int, bytes], stamp: int, vector: Sequence[float], top: int
    ) -> list[tuple[int, float]]:
        """The entries nearest to a vector, by cosine, best first: pairs of entry and similarity.

        ``entries`` maps numbers of the caller's to digests; what has no vector is left out. ``collection`` and
        ``stamp`` name them: with the same two they are the same entries, so that an index can keep what it made of
        them.
        """
        ...

    def drop(self) -> None:
        """Forget everything: it is made again from the log."""
        ...

    def close(self) -> None:
        """Let go of what is open."""
        ...


class MemoryPort(Protocol):
    """A memory scope, as context providers see it. What they remember has the thread and the run as its provenance."""

    @property
    def name(self) -> str:
        """The scope's name, such as ``user/42``."""
        ...

    @property
    def reads(self) -> tuple[ScopeRead, ...]:
        """The scopes that were read through it, at which versions."""
        ...

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
        """Know something from now on. Raises InvalidContentError or InvalidTimeError."""
        ...

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
        """Know something else instead of a live fact, of the same key and kind. Raises UnknownFactError."""
        ...

    async def retract(
        self,
        fact: Fact | str,
        *,
        reason: str | None = None,
        valid_to: datetime | None = None,
        actor: str | None = None,
    ) -> None:
        """Hold a live fact to be true no more; it stays in the past. Raises UnknownFactError."""
        ...

    async def facts(
        self,
        *,
        key: str | None = None,
        kind: str | None = None,
        at: MemoryAt = None,
        valid_at: datetime | None = None,
        history: bool = False,
    ) -> list[Fact]:
        """The live facts in the order in which they were remembered; with ``history`` also those that no longer are.

        ``at`` is what was known then; ``valid_at`` is what is held to be true of that time, by default that of the
        reading.
        """
        ...

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
        """The live facts that have most to do with some words, best first."""
        ...

    async def why(self, fact: Fact | str) -> FactOrigin:
        """Where a fact came from. Raises UnknownFactError."""
        ...

    async def used_by(self, fact: Fact | str) -> list[FactUse]:
        """The model calls that were given a fact, oldest first."""
        ...

    def tools(self) -> Sequence[Callable[..., Any]]:
        """Functions with which a model stores, looks up, changes and clears what is in this scope, and no other."""
        ...


class DocumentPort(Protocol):
    """A view on a store of documents, which sees one namespace of it."""

    @property
    def name(self) -> str:
        """The store's name."""
        ...

    @property
    def namespace(self) -> str:
        """The namespace that is read and written."""
        ...

    async def upsert(self, documents: Sequence[Document], *, actor: str | None = None) -> list[str]:
        """Add documents, each in place of the one with its link; returns their ids. All are added or none."""
        ...

    async def remove(self, document: str, *, reason: str | None = None, actor: str | None = None) -> None:
        """Let a document be found no more, by its id or its link. Raises UnknownDocumentError."""
        ...

    async def search(self, query: str, *, top: int = 5, min_score: float = 0.0, at: MemoryAt = None) -> list[Passage]:
        """The passages that have most to do with some words, best first, of this namespace only."""
        ...
