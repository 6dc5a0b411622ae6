"""Stores of documents of an engine, each seen in one namespace."""

from __future__ import annotations

from collections.abc import Sequence

from clew.domain.memory.facts import Document, Passage
from clew.domain.memory.ports import Embedder, MemoryAt
from clew.service.async_operations import drive
from clew.service.core import Core
from clew.service.memory.document_stores import View, open_view, remove, search, upsert


class DocumentStore:
    """A view on a store of documents: it reads and writes one namespace, and never sees another's.

    A document may be in several; each is found in passages of at most 1,200 characters.
    """

    def __init__(self, core: Core, view: View) -> None:
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
        """Add documents, each in place of the one with its link that this namespace shows; returns their ids.

        All are added or none, and each must list the namespace among its own. Raises ScopeError for one that does not,
        InvalidContentError for what cannot be stored, such as a document of more than 16 MiB, and EmbeddingError when
        the embedder gives no vectors, or others than it says.
        """
        return await upsert(self._core, self._view, documents, actor)

    async def remove(self, document: str, *, reason: str | None = None, actor: str | None = None) -> None:
        """Let a document be found no more, by its id or its link. Raises UnknownDocumentError."""
        await drive(remove(self._core, self._view, document, reason, actor))

    async def search(self, query: str, *, top: int = 5, min_score: float = 0.0, at: MemoryAt = None) -> list[Passage]:
        """The passages that have most to do with some words, best first, of this namespace only.

        By words and, with an embedder, by meaning; a score is from 0 to 1, and none is below ``min_score``. ``at`` a
        version of the store, or an aware time, finds what was there then. Raises UnknownVersionError, InvalidTimeError,
        InvalidContentError or EmbeddingError.
        """
        return await search(self._core, self._view, query, top, min_score, at)


class HasDocuments:
    """An engine, as far as it has stores of documents."""

    _core: Core

    async def documents(self, name: str, *, namespace: str | None, embedder: Embedder | None = None) -> DocumentStore:
        """A view on the store of that name in one of its namespaces; the store begins when it is first opened.

        It is searched by words, and with an ``embedder`` by meaning, too: always the one that it began with. Raises
        ScopeError for a namespace that is none or a name that stands for facts, InvalidNameError,
        EmbeddingMismatchError for another embedder, and MissingExtraError where numpy is not there.
        """
        return DocumentStore(self._core, await open_view(self._core, name, namespace, embedder))
