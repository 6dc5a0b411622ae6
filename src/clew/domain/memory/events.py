"""The events of memory scopes: facts are remembered, replaced and retracted, documents are added and removed.

Nothing is overwritten, so the facts of every version and every time can always be read.
"""

from __future__ import annotations

import json
from operator import not_
from typing import Literal, TypeAlias

from pydantic import Field

from clew.domain import event_sentences
from clew.domain.event_types import event_type
from clew.domain.json_values import Json, JsonObject
from clew.domain.messages import Value, is_none


class Provenance(Value):
    """Where a fact was learned: a version of a thread, usually that of a message."""

    thread: str
    version: int


class FactReference(Value):
    """A fact of a scope at a version of the scope's stream."""

    scope: str
    fact: str
    version: int


class ScopeRead(Value):
    """A read of a memory scope: its name and the version of its stream."""

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
    """A scope was opened. ``embedder`` names the model of the vectors for its search, None for search by words.

    ``dimensions`` is the length of such a vector.
    """

    holds: Literal["facts", "documents"]
    embedder: str | None = Field(default=None, exclude_if=is_none)
    dimensions: int | None = Field(default=None, exclude_if=is_none)


def text_of(value: Json) -> str:
    """A value as text: a string as it is unless it is blank, and other values as JSON."""
    return value if isinstance(value, str) and value.strip() else json.dumps(value, ensure_ascii=False)


class Statement(Value):
    """The content of a fact.

    ``key`` names a subject that has one answer at a time (``units``). ``kind`` is the category of the fact
    (``summary``). ``value`` is what was put under the key; then ``text`` is empty if it can be made from the value.
    The fact is true from ``valid_from`` until before ``valid_to``, in microseconds since 1970; None
    means from its recording, or forever. ``learned`` is where it was learned, ``promoted`` the fact of a narrower scope
    that it was copied from.
    """

    text: str
    key: str | None = Field(default=None, exclude_if=is_none)
    kind: str | None = Field(default=None, exclude_if=is_none)
    metadata: JsonObject = Field(default_factory=dict, exclude_if=not_)
    valid_from: int | None = Field(default=None, exclude_if=is_none)
    valid_to: int | None = Field(default=None, exclude_if=is_none)
    learned: Provenance | None = Field(default=None, exclude_if=is_none)
    promoted: FactReference | None = Field(default=None, exclude_if=is_none)
    value: Json = Field(default=None, exclude_if=is_none)

    @property
    def words(self) -> str:
        """The text, else the value as text."""
        return self.text or ("" if self.value is None else text_of(self.value))


@event_type(
    "fact-remembered",
    headline="A fact was remembered",
    sentence=event_sentences.fact_remembered,
    sample={"fact": "f1", "statement": {"text": "Prefers kilometres"}},
    stream="memory",
)
class FactRemembered(Value):
    """A fact was remembered; ``fact`` is its id."""

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
    """A fact was replaced; ``by`` is the id of the new fact."""

    fact: str
    by: str
    statement: Statement


@event_type(
    "fact-retracted",
    headline="A fact was retracted",
    sentence=event_sentences.fact_retracted,
    sample={"fact": "f2", "reason": "moved"},
    stream="memory",
)
class FactRetracted(Value):
    """A fact was retracted; ``valid_to`` is the time from which it is not true; None is the time of this event.

    ``learned`` is where the retraction was learned.
    """

    fact: str
    reason: str | None = Field(default=None, exclude_if=is_none)
    valid_to: int | None = Field(default=None, exclude_if=is_none)
    learned: Provenance | None = Field(default=None, exclude_if=is_none)


@event_type(
    "document-added",
    headline="A document was added",
    sentence=event_sentences.document_added,
    sample={"document": "d1", "text": "Opening hours", "namespaces": ["default"]},
    stream="memory",
)
class DocumentAdded(Value):
    """A document was added; ``replaces`` is the id of the document with the same link that it replaces."""

    document: str
    text: str
    namespaces: tuple[str, ...]
    source_name: str | None = Field(default=None, exclude_if=is_none)
    source_link: str | None = Field(default=None, exclude_if=is_none)
    metadata: JsonObject = Field(default_factory=dict, exclude_if=not_)
    replaces: str | None = Field(default=None, exclude_if=is_none)


@event_type(
    "document-removed",
    headline="A document was removed",
    sentence="removed document {document}",
    sample={"document": "d1", "reason": "old"},
    stream="memory",
)
class DocumentRemoved(Value):
    """A document was removed: searches no longer find it."""

    document: str
    reason: str | None = Field(default=None, exclude_if=is_none)


MemoryEvent: TypeAlias = ScopeOpened | FactRemembered | FactSuperseded | FactRetracted | DocumentAdded | DocumentRemoved
