"""The ports of memory: scopes and document stores for components, embedders, and vector indexes."""

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
"""A version of a scope's stream, or an aware time; None means now."""


class Embedder(Protocol):
    """Turns texts into vectors. Vectors of different models are never compared."""

    @property
    def model(self) -> str:
        """The name of the model, which scopes record."""
        ...

    @property
    def dimensions(self) -> int:
        """The length of a vector."""
        ...

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """A vector for each text. Raises EmbeddingError if its service fails or refuses."""
        ...


class VectorIndex(Protocol):
    """Stores the vectors of texts and finds the nearest ones. It is a projection: it can be dropped and rebuilt.

    ``space`` is a model's name with its dimensions. The key of a vector is the SHA-256 of its text. So a text is
    embedded once for all scopes, or once per tenant if the database separates tenants. Calls may block. All methods are
    thread-safe.
    """

    def missing(self, space: str, digests: Collection[bytes]) -> set[bytes]:
        """The digests that have no vector."""
        ...

    def put(self, space: str, vectors: Mapping[bytes, Sequence[float]]) -> None:
        """Store vectors by digest; existing ones do not change."""
        ...

    def nearest(
        self, space: str, collection: str, entries: Mapping[int, bytes], stamp: int, vector: Sequence[float], top: int
    ) -> list[tuple[int, float]]:
        """The entries nearest to a vector, by cosine, best first: pairs of entry and similarity.

        ``entries`` maps the caller's numbers to digests; entries without a vector are left out. Calls with the same
        ``collection`` and ``stamp`` must pass the same entries, so an index can be cached between calls.
        """
        ...

    def drop(self) -> None:
        """Delete all vectors; they are rebuilt from the log."""
        ...

    def close(self) -> None:
        """Release all resources."""
        ...


class MemoryPort(Protocol):
    """A memory scope, as context providers see it. Their writes have the thread and the run as provenance."""

    @property
    def name(self) -> str:
        """The scope's name, such as ``user/42``."""
        ...

    @property
    def reads(self) -> tuple[ScopeRead, ...]:
        """The scopes that were read through this object, with their versions."""
        ...

    async def remember(  # noqa: PLR0913  # keyword-only, the fields of a fact
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
        """Remember a new fact. Raises InvalidContentError or InvalidTimeError."""
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
        """Replace a live fact by one with the same key and kind. Raises UnknownFactError."""
        ...

    async def retract(
        self,
        fact: Fact | str,
        *,
        reason: str | None = None,
        valid_to: datetime | None = None,
        actor: str | None = None,
    ) -> None:
        """Retract a live fact; earlier versions still have it. Raises UnknownFactError."""
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
        """The live facts in the order in which they were remembered; with ``history`` also facts that are not live.

        ``at`` selects the facts that the scope knew at that version or time. ``valid_at`` selects the facts that are
        true at that time, by default now.
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
        """The live facts that match the query best, best first."""
        ...

    async def why(self, fact: Fact | str) -> FactOrigin:
        """The origin of a fact. Raises UnknownFactError."""
        ...

    async def used_by(self, fact: Fact | str) -> list[FactUse]:
        """The model calls that received a fact, oldest first."""
        ...

    def tools(self) -> Sequence[Callable[..., Any]]:
        """Functions for a model to store, look up, change and clear memories in this scope only."""
        ...


class DocumentPort(Protocol):
    """A view of one namespace of a document store."""

    @property
    def name(self) -> str:
        """The store's name."""
        ...

    @property
    def namespace(self) -> str:
        """The namespace of this view."""
        ...

    async def upsert(self, documents: Sequence[Document], *, actor: str | None = None) -> list[str]:
        """Add documents, each replacing the one with the same link; returns their ids. All are added, or none."""
        ...

    async def remove(self, document: str, *, reason: str | None = None, actor: str | None = None) -> None:
        """Remove a document by its id or its link. Raises UnknownDocumentError."""
        ...

    async def search(self, query: str, *, top: int = 5, min_score: float = 0.0, at: MemoryAt = None) -> list[Passage]:
        """The passages of this namespace that match the query best, best first."""
        ...
