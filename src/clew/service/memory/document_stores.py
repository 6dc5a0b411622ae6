"""Stores of documents: opened, added to and taken from by events, and searched as they are or as they were."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import NamedTuple

from clew.domain.errors import InvalidTimeError, StoreError, UnknownVersionError
from clew.domain.events import to_microseconds
from clew.domain.json_values import check_text
from clew.domain.memory.documents import (
    DocumentFold,
    Shelf,
    adding,
    check_documents,
    check_namespace,
    opening,
    passages,
    removing,
)
from clew.domain.memory.events import MemoryEvent, ScopeOpened
from clew.domain.memory.facts import Document, Passage
from clew.domain.memory.ports import Embedder, MemoryAt
from clew.service.async_operations import drive
from clew.service.authorization import check
from clew.service.caches import Kept, Recent
from clew.service.core import Core
from clew.service.memory.streams import PAGE, check_scope_name, commit, look, stream_of
from clew.service.memory.text_search import Meaning, Searchable, Texts
from clew.service.operations import Operation, read

SEARCHED = 64
SEARCHED_PASSAGES = 1_000_000
"""Namespaces of a store, and passages in them, whose words are kept in memory to be searched."""

_log = logging.getLogger(__name__)


class View(NamedTuple):
    """A store as it was opened: what it is called, the namespace that is seen, and by what it is searched."""

    name: str
    namespace: str
    meaning: Meaning | None


class Seen(NamedTuple):
    """What a namespace shows at a version, and by what that is searched."""

    shelf: Shelf
    searchable: Searchable


async def open_view(core: Core, name: str, namespace: str | None, embedder: Embedder | None) -> View:
    """Open a store in one of its namespaces, and begin it if it is not there.

    Raises ScopeError, EmbeddingMismatchError or MissingExtraError.
    """
    check_scope_name(name, "documents")
    seen = check_namespace(namespace)
    meaning = None if embedder is None else Meaning(embedder, core.vectors)
    if meaning is not None:
        await drive(read(partial(core.vectors.missing, meaning.space, ())))  # what it needs is there
    await drive(_open(core, View(name, seen, meaning), None))
    return View(name, seen, meaning)


async def upsert(core: Core, view: View, documents: Sequence[Document], actor: str | None) -> list[str]:
    """Add documents, each in place of the one with its link; returns their ids.

    First they are checked, then embedded, then written, all in one append; what was embedded is kept when they are
    there. Raises InvalidContentError, ScopeError or EmbeddingError.
    """
    await drive(check(core, "memory"))
    new = await drive(read(partial(check_documents, documents, view.namespace)))
    if view.meaning is None:
        return await drive(_add(core, view, new, actor))
    texts = await drive(read(lambda: [passage for document in new for passage in passages(document.text)]))
    vectors = await view.meaning.embedded(texts)
    ids = await drive(_add(core, view, new, actor))
    try:
        await view.meaning.keep(vectors)
    except StoreError as error:  # the documents are there: a search embeds them again
        _log.warning("The vectors of %d passages could not be kept: %s", len(vectors), error)
    return ids


def remove(core: Core, view: View, document: str, reason: str | None, actor: str | None) -> Operation[None]:
    """Let a document be found no more, by its id or its link. Raises UnknownDocumentError."""
    yield from check(core, "memory")
    check_text(document, "remove")

    def decide(fold: DocumentFold, _now: int) -> list[MemoryEvent]:
        return removing(fold, view.name, view.namespace, document, reason)

    yield from commit(core, view.name, DocumentFold, decide, actor=actor)


async def search(core: Core, view: View, query: str, top: int, min_score: float, at: MemoryAt) -> list[Passage]:
    """The passages that have most to do with some words, of what the namespace shows at a version or a time."""
    shelf, searchable = await drive(_seen(core, view, at))
    texts = Texts(shelf.stamp, shelf.passages)
    found = await searchable.search(texts, query, top=top, min_score=min_score, meaning=view.meaning)
    return shelf.found(found)


def _open(core: Core, view: View, actor: str | None) -> Operation[None]:
    yield from check(core, "memory")
    asked = ScopeOpened(holds="documents")
    if view.meaning is not None:
        asked = ScopeOpened(holds="documents", embedder=view.meaning.model, dimensions=view.meaning.dimensions)
    kept = yield from look(core, view.name, DocumentFold)
    if opening(view.name, kept.fold, asked):
        yield from commit(core, view.name, DocumentFold, lambda fold, _: opening(view.name, fold, asked), actor=actor)


def _add(core: Core, view: View, documents: Sequence[Document], actor: str | None) -> Operation[list[str]]:
    new = [(core.thread_id(), document) for document in documents]
    if new:
        yield from commit(core, view.name, DocumentFold, lambda fold, _: adding(fold, view.namespace, new), actor=actor)
    return [id_ for id_, _ in new]


def _seen(core: Core, view: View, at: MemoryAt) -> Operation[Seen]:
    yield from check(core, "memory")
    kept = yield from look(core, view.name, DocumentFold)
    return (yield from read(partial(_shown, core, view, kept, at)))


def _shown(core: Core, view: View, kept: Kept, at: MemoryAt) -> Seen:
    fold: DocumentFold = kept.fold
    version = _version(view.name, fold, at)
    with core.known.lock(stream_of(core, view.name)):  # nobody adds to the fold meanwhile
        shelf = fold.shelf(view.namespace)
        if version >= shelf.stamp:
            return Seen(shelf, _searchable(core, view, kept, shelf, "now"))
    past = _past(core, view.name, kept, version).shelf(view.namespace)
    with core.known.lock(stream_of(core, view.name)):
        return Seen(past, _searchable(core, view, kept, past, "past"))


def _searchable(core: Core, view: View, kept: Kept, shelf: Shelf, when: str) -> Searchable:
    """What was made of a namespace, to be gone on with; what was asked for lately is kept."""
    made = kept.made.get("searchable")
    if made is None:
        made = kept.made["searchable"] = Recent(SEARCHED, SEARCHED_PASSAGES)
    space = "" if view.meaning is None else view.meaning.space
    name = f"{when} {space} {view.namespace}"
    found = made.get(name)
    if found is None:
        found = Searchable(f"{stream_of(core, view.name)}#{kept.shredded} {name}", view.meaning)
    made.put(name, found, len(shelf.passages) + 1)
    return found


def _past(core: Core, name: str, kept: Kept, version: int) -> DocumentFold:
    """What the store held at a version, folded from the beginning; the one asked for last is kept."""
    known = kept.made.get("past")
    if isinstance(known, DocumentFold) and known.version == version:
        return known
    fold = DocumentFold()
    while fold.version < version:
        upto = min(version, fold.version + PAGE)
        for event in core.log.lineage(stream_of(core, name), after=fold.version, upto=upto):
            fold.add(event)
    kept.made["past"] = fold
    return fold


def _version(name: str, fold: DocumentFold, at: MemoryAt) -> int:
    if at is None:
        return fold.version
    if isinstance(at, datetime):
        if at.utcoffset() is None:
            raise InvalidTimeError(
                f"{at.isoformat()} has no offset, so it names no moment. Add one, as in {at.isoformat()}+00:00."
            )
        return fold.version_at(to_microseconds(at))
    if isinstance(at, bool) or not isinstance(at, int):
        raise UnknownVersionError(f"{type(at).__name__} is no version. Give a number or an aware datetime.")
    if not 0 <= at <= fold.version:
        raise UnknownVersionError(f"The store {name!r} has no version {at}: its versions are 1 to {fold.version}.")
    return at
