"""Document stores: they are opened and changed by events, and can be searched at any version."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import NamedTuple

from clew.domain.errors import StoreError, UnknownVersionError
from clew.domain.events import to_utc_microseconds
from clew.domain.json_values import check_text
from clew.domain.memory.document_store import (
    DocumentFold,
    NamespaceView,
    check_documents,
    check_namespace,
    decide_additions,
    decide_opening,
    decide_removals,
    passages,
)
from clew.domain.memory.events import MemoryEvent, ScopeOpened
from clew.domain.memory.facts import Document, Passage
from clew.domain.memory.ports import Embedder, MemoryAt
from clew.service.async_effects import drive
from clew.service.authorization import check
from clew.service.core import BoundedCache, CacheBudget, CachedFold, Core
from clew.service.effects import Operation, read
from clew.service.memory.streams import PAGE, check_scope_name, commit, load_cached, scope_stream
from clew.service.memory.text_search import EmbeddingIndex, SearchIndex, Texts

CACHED_PASSAGES = 1_000_000
"""The most namespaces of a store, and passages in them, whose indexes are cached."""

_log = logging.getLogger(__name__)


class StoreView(NamedTuple):
    """A store as it was opened: its name, its visible namespace, and its embeddings if it has an embedder."""

    name: str
    namespace: str
    embeddings: EmbeddingIndex | None


async def open_view(core: Core, name: str, namespace: str | None, embedder: Embedder | None) -> StoreView:
    """Open a store in one of its namespaces, and create it if it is new.

    Raises ScopeError, EmbeddingMismatchError or MissingExtraError.
    """
    check_scope_name(name, "documents")
    embeddings = None if embedder is None else EmbeddingIndex(embedder, core.vectors)
    store = StoreView(name, check_namespace(namespace), embeddings)
    if embeddings is not None:
        await drive(read(partial(core.vectors.missing, embeddings.space, ())))  # fail early if an extra is missing
    await drive(_open(core, store))
    return store


async def upsert(core: Core, store: StoreView, documents: Sequence[Document], actor: str | None) -> list[str]:
    """Add documents, each in place of the one with the same link. Returns their ids.

    The documents are checked, then embedded, then written in one append; their vectors are stored after it. Raises
    InvalidContentError, ScopeError or EmbeddingError.
    """
    await drive(check(core, "memory"))
    new = await drive(read(partial(check_documents, documents, store.namespace)))
    if store.embeddings is None:
        return await drive(_add(core, store, new, actor))
    texts = await drive(read(lambda: [passage for document in new for passage in passages(document.text)]))
    vectors = await store.embeddings.missing_vectors(texts)
    ids = await drive(_add(core, store, new, actor))
    try:
        await store.embeddings.store(vectors)
    except StoreError as error:  # the documents are stored, and the next search embeds them again
        _log.warning("The vectors of %d passages could not be stored: %s", len(vectors), error)
    return ids


def remove(core: Core, store: StoreView, document: str, reason: str | None, actor: str | None) -> Operation[None]:
    """Remove a document by its id or its link. Raises UnknownDocumentError."""
    yield from check(core, "memory")
    check_text(document, "remove")

    def decide(fold: DocumentFold, _now: int) -> list[MemoryEvent]:
        return decide_removals(fold, store.name, store.namespace, document, reason)

    yield from commit(core, store.name, DocumentFold, decide, actor=actor)


async def search(core: Core, store: StoreView, query: str, top: int, min_score: float, at: MemoryAt) -> list[Passage]:
    """The passages of the namespace, at a version or a time, that match the query best."""
    view, index = await drive(_namespace(core, store, at))
    texts = Texts(view.stamp, view.passages)
    return view.ranked(await index.search(texts, query, top=top, min_score=min_score, embeddings=store.embeddings))


def _open(core: Core, store: StoreView) -> Operation[None]:
    yield from check(core, "memory")
    opening = ScopeOpened(holds="documents")
    if store.embeddings is not None:
        model, dimensions = store.embeddings.model, store.embeddings.dimensions
        opening = ScopeOpened(holds="documents", embedder=model, dimensions=dimensions)

    def decide(fold: DocumentFold, _now: int = 0) -> list[MemoryEvent]:
        return decide_opening(store.name, fold, opening)

    if decide((yield from load_cached(core, store.name, DocumentFold)).fold):
        yield from commit(core, store.name, DocumentFold, decide)


def _add(core: Core, store: StoreView, documents: Sequence[Document], actor: str | None) -> Operation[list[str]]:
    new = [(core.thread_id(), document) for document in documents]
    if new:
        yield from commit(
            core, store.name, DocumentFold, lambda fold, _: decide_additions(fold, store.namespace, new), actor=actor
        )
    return [id_ for id_, _ in new]


def _namespace(core: Core, store: StoreView, at: MemoryAt) -> Operation[tuple[NamespaceView, SearchIndex]]:
    """The documents of a namespace at a version, and their search index."""
    yield from check(core, "memory")
    cached = yield from load_cached(core, store.name, DocumentFold)
    return (yield from read(partial(_namespace_at, core, store, cached, at)))


def _namespace_at(core: Core, store: StoreView, cached: CachedFold, at: MemoryAt) -> tuple[NamespaceView, SearchIndex]:
    fold: DocumentFold = cached.fold
    version = _version(store.name, fold, at)
    with core.caches.lock(scope_stream(core, store.name)):  # the fold must not change meanwhile
        view = fold.view(store.namespace)
        if version >= view.stamp:
            return view, _search_index(core, store, cached, view, "now")
    past = _past(core, store.name, cached, version).view(store.namespace)
    with core.caches.lock(scope_stream(core, store.name)):
        return past, _search_index(core, store, cached, past, "past")


def _search_index(core: Core, store: StoreView, cached: CachedFold, view: NamespaceView, when: str) -> SearchIndex:
    """The search index of a namespace. Recently used indexes are cached."""
    indexes = cached.indexes.get("indexes")
    if indexes is None:
        indexes = cached.indexes["indexes"] = BoundedCache(CacheBudget(CACHED_PASSAGES))
    space = "" if store.embeddings is None else store.embeddings.space
    name = f"{when} {space} {store.namespace}"
    index = indexes.get(name)
    if index is None:
        index = SearchIndex(f"{scope_stream(core, store.name)}#{cached.shredded} {name}", store.embeddings)
    indexes.put(name, index, len(view.passages) + 1)
    return index


def _past(core: Core, name: str, cached: CachedFold, version: int) -> DocumentFold:
    """The state of the store at a version, folded from the beginning. The last result is cached."""
    last = cached.indexes.get("past")
    if isinstance(last, DocumentFold) and last.version == version:
        return last
    fold = DocumentFold()
    while fold.version < version:
        upto = min(version, fold.version + PAGE)
        for event in core.log.lineage(scope_stream(core, name), after=fold.version, upto=upto):
            fold.add(event)
    cached.indexes["past"] = fold
    return fold


def _version(name: str, fold: DocumentFold, at: MemoryAt) -> int:
    if at is None:
        return fold.version
    if isinstance(at, datetime):
        return fold.version_at(to_utc_microseconds(at, "at") or 0)
    if isinstance(at, bool) or not isinstance(at, int):
        raise UnknownVersionError(f"{type(at).__name__} is not a version. Give a number or an aware datetime.")
    if not 0 <= at <= fold.version:
        raise UnknownVersionError(f"The store {name!r} has no version {at}: its versions are 1 to {fold.version}.")
    return at
