"""A document store: its documents at a version, the passages that are searched, and the events of its commands."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import NamedTuple

from clew.domain.errors import EmbeddingMismatchError, InvalidContentError, ScopeError, UnknownDocumentError
from clew.domain.events import Event
from clew.domain.json_values import MAX_BYTES, check_json, check_text
from clew.domain.memory.events import DocumentAdded, DocumentRemoved, MemoryEvent, ScopeOpened
from clew.domain.memory.facts import Document, Passage

_PLACES = 20
"""Bits of a passage's number for its place in the document. The bits above are the document's version."""

_ENVELOPE = 4_096
"""The bytes of an event that are reserved for its envelope."""


class StoredDocument(NamedTuple):
    """A document that searches can find, with its event's version and its passages."""

    version: int
    added: DocumentAdded
    passages: tuple[str, ...]

    @property
    def numbered(self) -> dict[int, str]:
        """Its passages by number. A number always stands for the same text."""
        return {self.version << _PLACES | place: text for place, text in enumerate(self.passages)}


class NamespaceView(NamedTuple):
    """The content of a namespace: passages by number, documents by version. It last changed at version ``stamp``."""

    stamp: int
    passages: Mapping[int, str]
    documents: Mapping[int, StoredDocument]

    def ranked(self, ranking: Iterable[tuple[int, float]]) -> list[Passage]:
        """The passages that a ranking names by number."""
        return [self._passage(number, score) for number, score in ranking]

    def _passage(self, number: int, score: float) -> Passage:
        stored = self.documents[number >> _PLACES]
        document = stored.added
        return Passage(
            self.passages[number],
            score,
            document.document,
            stored.version,
            document.source_name,
            document.source_link,
            document.namespaces,
            deepcopy(document.metadata),
        )


class _Namespace:
    """The content of a namespace while it changes."""

    def __init__(self) -> None:
        self.passages: dict[int, str] = {}
        self.documents: dict[int, StoredDocument] = {}
        self.view = NamespaceView(0, {}, {})

    def change(self, version: int) -> None:
        self.view = self.view._replace(stamp=version, passages={}, documents={})


class DocumentFold:
    """The documents of a store: a fold of its stream.

    Only one caller at a time may add events, and nobody may call ``view()`` meanwhile. All other methods are safe.
    ``recorded_at`` is the time of the newest event, ``opened`` the event that opened the store, None before it.
    """

    def __init__(self) -> None:
        self.version = 0
        self.head = b""
        self.recorded_at = 0
        self.opened: ScopeOpened | None = None
        self._live: dict[str, StoredDocument] = {}
        self._linked: dict[tuple[str, str], tuple[str, ...]] = {}
        self._namespaces: dict[str, _Namespace] = {}
        self._times: list[int] = []

    def __len__(self) -> int:
        return len(self._live)

    def add(self, event: Event) -> None:
        """Add the next event of the stream. Shredded and unknown events change nothing."""
        match event.data:
            case ScopeOpened() as opened:
                self.opened = self.opened or opened
            case DocumentAdded() as added:
                if added.replaces is not None:
                    self._remove(added.replaces, event.version)
                self._add(StoredDocument(event.version, added, tuple(passages(added.text))))
            case DocumentRemoved(document=document):
                self._remove(document, event.version)
            case _:
                pass
        self.recorded_at = max(self.recorded_at, event.recorded_at)
        self._times.append(self.recorded_at)
        self.head = event.hash or b""
        self.version = event.version

    def version_at(self, time: int) -> int:
        """The last version that was recorded at or before a time, 0 before the store was opened."""
        return bisect_right(self._times, time)

    def view(self, namespace: str) -> NamespaceView:
        """The content of a namespace. It is the same object until the content changes."""
        content = self._namespaces.get(namespace)
        if content is None:
            return NamespaceView(0, {}, {})
        if len(content.view.documents) != len(content.documents):
            content.view = NamespaceView(content.view.stamp, dict(content.passages), dict(content.documents))
        return content.view

    def live(self, namespace: str, document: str) -> bool:
        """Whether the namespace has a document with this id."""
        stored = self._live.get(document)
        return stored is not None and namespace in stored.added.namespaces

    def linked(self, namespace: str, link: str) -> tuple[str, ...]:
        """The ids of the documents with this link in the namespace, oldest first."""
        return self._linked.get((namespace, link), ())

    def _add(self, stored: StoredDocument) -> None:
        added = stored.added
        self._live[added.document] = stored
        for namespace in added.namespaces:
            content = self._namespaces.setdefault(namespace, _Namespace())
            content.documents[stored.version] = stored
            content.passages.update(stored.numbered)
            content.change(stored.version)
            if added.source_link is not None:
                key = namespace, added.source_link
                self._linked[key] = (*self._linked.get(key, ()), added.document)

    def _remove(self, document: str, version: int) -> None:
        stored = self._live.pop(document, None)
        if stored is None:
            return
        for namespace in stored.added.namespaces:
            content = self._namespaces[namespace]
            del content.documents[stored.version]
            for number in stored.numbered:
                del content.passages[number]
            content.change(version)
            if stored.added.source_link is not None:
                key = namespace, stored.added.source_link
                self._linked[key] = tuple(each for each in self._linked[key] if each != document)


def check_namespace(namespace: str | None) -> str:
    """Raise ScopeError for a missing or empty namespace, which never means all namespaces."""
    if not isinstance(namespace, str) or not namespace.strip():
        raise ScopeError(
            f"namespace={namespace!r}: a document store is read and written in one namespace. Name one, such as "
            "namespace='group/g1'."
        )
    check_text(namespace, "namespace")
    return namespace


def decide_opening(name: str, fold: DocumentFold, opening: ScopeOpened) -> list[MemoryEvent]:
    """The events that open a store: one for a new store, none for an existing one.

    Raises ScopeError for a scope of facts, and EmbeddingMismatchError for another embedder than the first one.
    """
    opened = fold.opened
    if opened is None:
        return [opening]
    if opened.holds != "documents":
        raise ScopeError(f"{name!r} is a scope of facts, not a store of documents. Give the store another name.")
    if (opened.embedder, opened.dimensions) != (opening.embedder, opening.dimensions):
        raise EmbeddingMismatchError(
            f"The store {name!r} is searched by {_search_method(opened)}, and was opened with "
            f"{_search_method(opening)}. Open it with the first embedder, or put its documents into a store of another "
            "name."
        )
    return []


def _search_method(opened: ScopeOpened) -> str:
    if opened.embedder is None:
        return "words alone (no embedder)"
    return f"vectors of {opened.embedder!r} with {opened.dimensions} dimensions"


def check_documents(documents: Sequence[Document], namespace: str) -> list[Document]:
    """Checked copies of the documents.

    Raises InvalidContentError for content that cannot be stored, and ScopeError for documents of other namespaces.
    """
    if isinstance(documents, Document | str) or not isinstance(documents, Sequence):
        raise InvalidContentError(f"upsert: {type(documents).__name__} is not a list of documents. Give [Document(…)].")
    return [_own(document, place, namespace) for place, document in enumerate(documents)]


def _own(document: Document, place: int, namespace: str) -> Document:
    where = f"document {place}"
    if not isinstance(document, Document):
        raise InvalidContentError(f"{where} is {type(document).__name__}, not a Document.")
    if namespace not in document.namespaces:
        raise ScopeError(
            f"{where} is for the namespaces {list(document.namespaces)}, and the store was opened for {namespace!r}. "
            "Nothing was stored. Add this namespace to the document, or open the store for another one."
        )
    _check_document(document, where)
    return Document(
        document.text,
        source_name=document.source_name,
        source_link=document.source_link,
        namespaces=document.namespaces,
        metadata=deepcopy(document.metadata),
    )


def _check_document(document: Document, where: str) -> None:
    if not isinstance(document.text, str):
        raise InvalidContentError(f"{where}: the text is {type(document.text).__name__}, not a string.")
    if len(document.text) > MAX_BYTES:
        raise _too_large(where, len(document.text))
    check_text(document.text, f"{where}, text")
    for what, value in (("source_name", document.source_name), ("source_link", document.source_link)):
        if value is not None:
            check_text(value, f"{where}, {what}")
    for namespace in document.namespaces:
        check_namespace(namespace)
    check_json(document.metadata, f"{where}, metadata")
    size = len(_added("", document, None).model_dump_json().encode())
    if size + _ENVELOPE > MAX_BYTES:
        raise _too_large(where, size)


def _too_large(where: str, size: int) -> InvalidContentError:
    return InvalidContentError(
        f"{where} has {size:,} bytes, and an event holds at most {MAX_BYTES:,}. Nothing was stored. Split it."
    )


def decide_additions(fold: DocumentFold, namespace: str, new: Sequence[tuple[str, Document]]) -> list[MemoryEvent]:
    """The events that add documents under new ids. Each replaces the documents with the same link in the namespace.

    Documents of other namespaces stay, even with the same link.
    """
    replaced: dict[str, tuple[str, ...]] = {}
    events: list[MemoryEvent] = []
    for id_, document in new:
        link = document.source_link
        # A document can be in several namespaces, so several documents of this one can have the same link.
        old = () if link is None else replaced.get(link) or fold.linked(namespace, link)
        events += (DocumentRemoved(document=each, reason="replaced") for each in old[:-1])
        events.append(_added(id_, document, old[-1] if old else None))
        if link is not None:
            replaced[link] = (id_,)
    return events


def decide_removals(
    fold: DocumentFold, name: str, namespace: str, id_or_link: str, reason: str | None
) -> list[MemoryEvent]:
    """The events that remove a document by its id or its link. Raises UnknownDocumentError."""
    check_text(id_or_link, "remove")
    if reason is not None:
        check_text(reason, "reason")
    ids = (id_or_link,) if fold.live(namespace, id_or_link) else fold.linked(namespace, id_or_link)
    if not ids:
        raise UnknownDocumentError(
            f"The store {name!r} has no document with the id or the link {id_or_link!r} in the namespace "
            f"{namespace!r}. Nothing was removed."
        )
    return [DocumentRemoved(document=each, reason=reason) for each in ids]


def _added(id_: str, document: Document, replaces: str | None) -> DocumentAdded:
    return DocumentAdded(
        document=id_,
        text=document.text,
        namespaces=tuple(dict.fromkeys(document.namespaces)),
        source_name=document.source_name,
        source_link=document.source_link,
        metadata=document.metadata,
        replaces=replaces,
    )


MOST = 1_200
"""The most characters of a passage."""

_BORDERS = tuple(
    re.compile(border)
    for border in (
        r"\n[^\S\n]*\n\s*",  # paragraphs
        r"\n\s*",  # lines
        "(?<=[.!?\u2026])\\s+|(?<=[.!?\u2026][\"'\u201d\u2019)\\]])\\s+|(?<=[\u3002\uff01\uff1f])",  # sentences
        r"\s+",  # words
    )
)


def passages(text: str) -> list[str]:
    """A text in passages of at most 1,200 characters, in order. A text always has the same passages.

    The text is split between paragraphs if possible, else between lines, sentences or words, and within a word only if
    there is no other way. White space at the borders is dropped; an empty text has no passages.
    """
    return list(_cut(text, 0))


def _cut(text: str, coarse: int) -> Iterator[str]:
    """The parts of a text between borders of one kind, joined while they fit. Longer parts are split again."""
    text = text.strip()
    if len(text) <= MOST:
        if text:
            yield text
        return
    if coarse == len(_BORDERS):
        yield from (text[at : at + MOST] for at in range(0, len(text), MOST))
        return
    start = end = 0
    for first, last in _parts(text, _BORDERS[coarse]):
        if last - start > MOST and end > start:
            yield from _cut(text[start:end], coarse + 1)
            start = first
        end = last
    yield from _cut(text[start:end], coarse + 1)


def _parts(text: str, border: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    """The start and end of each part of a text between borders."""
    start = 0
    for match in border.finditer(text):
        if match.start() > start:
            yield start, match.start()
        start = max(start, match.end())
    if start < len(text):
        yield start, len(text)
