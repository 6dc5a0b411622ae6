"""What happens in a memory scope: facts that are learned, replaced and taken back, and documents to look things up in.

Nothing is overwritten: what was known at any version, and what was held to be true at any time, can be read for ever.
"""

from __future__ import annotations

from operator import not_
from typing import Literal, TypeAlias

from pydantic import Field

from clew.domain import event_sentences
from clew.domain.event_types import event_type
from clew.domain.json_values import JsonObject
from clew.domain.values import Value


def _is_none(value: object) -> bool:
    return value is None


class Provenance(Value):
    """Where something was learned: a version of a thread, most often that of a message."""

    thread: str
    version: int


class FactReference(Value):
    """A fact of a scope, as it was at a version of the scope's stream."""

    scope: str
    fact: str
    version: int


class ScopeRead(Value):
    """A memory scope that was read, at which version of its stream."""

    scope: str
    version: int


@event_type(
    "scope-opened",
    headline="A memory scope was opened",
    sentence=event_sentences.scope_opened,
    sample={"holds": "facts"},
    stream="memory",
)
class ScopeOpened(Value):
    """A scope began. ``embedder`` names the model whose vectors it is searched by, None when it is searched by words.

    ``dimensions`` is how many numbers a vector of that model has.
    """

    holds: Literal["facts", "documents"]
    embedder: str | None = Field(default=None, exclude_if=_is_none)
    dimensions: int | None = Field(default=None, exclude_if=_is_none)


class Statement(Value):
    """What a fact says.

    ``key`` names what it is about, where there is one answer at a time (``units``); ``kind`` is a sort of facts that is
    told apart from others (``summary``). It holds from ``valid_from`` until before ``valid_to``, in microseconds since
    1970: None is from when it was recorded, and for ever. ``learned`` is where it was learned, ``promoted`` the fact of
    a narrower scope that it was taken from.
    """

    text: str
    key: str | None = Field(default=None, exclude_if=_is_none)
    kind: str | None = Field(default=None, exclude_if=_is_none)
    metadata: JsonObject = Field(default_factory=dict, exclude_if=not_)
    valid_from: int | None = Field(default=None, exclude_if=_is_none)
    valid_to: int | None = Field(default=None, exclude_if=_is_none)
    learned: Provenance | None = Field(default=None, exclude_if=_is_none)
    promoted: FactReference | None = Field(default=None, exclude_if=_is_none)


@event_type(
    "fact-remembered",
    headline="A fact was remembered",
    sentence=event_sentences.fact_remembered,
    sample={"fact": "f1", "statement": {"text": "Prefers kilometres"}},
    stream="memory",
)
class FactRemembered(Value):
    """Something is known from now on; ``fact`` is its id."""

    fact: str
    statement: Statement


@event_type(
    "fact-superseded",
    headline="A fact was replaced",
    sentence=event_sentences.fact_superseded,
    sample={"fact": "f1", "by": "f2", "statement": {"text": "Prefers miles"}},
    stream="memory",
)
class FactSuperseded(Value):
    """What is known instead of ``fact`` from now on; ``by`` is the id of the new fact."""

    fact: str
    by: str
    statement: Statement


@event_type(
    "fact-retracted",
    headline="A fact was taken back",
    sentence=event_sentences.fact_retracted,
    sample={"fact": "f2", "reason": "moved"},
    stream="memory",
)
class FactRetracted(Value):
    """The fact is not held to be true any more; ``valid_to`` says since when, None is from now.

    ``learned`` is where that was learned.
    """

    fact: str
    reason: str | None = Field(default=None, exclude_if=_is_none)
    valid_to: int | None = Field(default=None, exclude_if=_is_none)
    learned: Provenance | None = Field(default=None, exclude_if=_is_none)


@event_type(
    "document-added",
    headline="A document was added",
    sentence=event_sentences.document_added,
    sample={"document": "d1", "text": "Opening hours", "namespaces": ["default"]},
    stream="memory",
)
class DocumentAdded(Value):
    """A document can be found; ``replaces`` is the id of the one with the same link, which no longer can."""

    document: str
    text: str
    namespaces: tuple[str, ...]
    source_name: str | None = Field(default=None, exclude_if=_is_none)
    source_link: str | None = Field(default=None, exclude_if=_is_none)
    metadata: JsonObject = Field(default_factory=dict, exclude_if=not_)
    replaces: str | None = Field(default=None, exclude_if=_is_none)


@event_type(
    "document-removed",
    headline="A document was removed",
    sentence="removed document {document}",
    sample={"document": "d1", "reason": "old"},
    stream="memory",
)
class DocumentRemoved(Value):
    """A document can no longer be found."""

    document: str
    reason: str | None = Field(default=None, exclude_if=_is_none)


MemoryEvent: TypeAlias = ScopeOpened | FactRemembered | FactSuperseded | FactRetracted | DocumentAdded | DocumentRemoved
