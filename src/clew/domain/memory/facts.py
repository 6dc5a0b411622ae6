"""Facts and documents as callers read them, and their origin."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, NamedTuple, TypeAlias

from clew.domain.errors import InvalidContentError
from clew.domain.history import HistoryMessage
from clew.domain.json_values import Json, JsonObject
from clew.domain.memory.events import FactReference, Provenance

FactStatus: TypeAlias = Literal["live", "superseded", "retracted"]

_NO_METADATA: JsonObject = {}
"""The metadata of a fact that has none. It is never changed in place."""


class Fact(NamedTuple):
    """A fact that a scope knows, or knew.

    ``version`` is the version of its event in the scope's stream, ``recorded_at`` the event's time. The fact is true
    from ``valid_from`` until before ``valid_to``; None means forever. ``learned`` is where it was learned, ``promoted``
    the fact of a narrower scope that it was copied from, ``replaces`` the id of the fact that it superseded. ``status``
    is its status at the version at which the scope was read. ``value`` is the JSON that ``put`` stored; None for other
    facts. ``created_at`` is the time of the first of the facts that it replaced, one after the other.
    """

    scope: str
    id: str
    text: str
    version: int
    recorded_at: datetime
    valid_from: datetime
    valid_to: datetime | None = None
    key: str | None = None
    kind: str | None = None
    metadata: JsonObject = _NO_METADATA
    learned: Provenance | None = None
    promoted: FactReference | None = None
    replaces: str | None = None
    actor: str | None = None
    status: FactStatus = "live"
    value: Json = None
    created_at: datetime | None = None

    @property
    def reference(self) -> FactReference:
        """The reference to this fact in events."""
        return FactReference(scope=self.scope, fact=self.id, version=self.version)


class FoundFact(NamedTuple):
    """A fact that a search found. ``score`` is from 0 to 1, where 1 is best."""

    fact: Fact
    score: float


class FactOrigin(NamedTuple):
    """The origin of a fact: the message that it was learned from, None if it was not learned in a thread.

    ``thread_id`` and ``version`` are the address of the message, ``redacted`` is true if its content was redacted, and
    ``actor`` is the actor of the write. ``promoted_from`` is the origin of the fact that it was promoted from.
    """

    fact: Fact
    thread_id: str | None = None
    version: int | None = None
    message: HistoryMessage | None = None
    redacted: bool = False
    actor: str | None = None
    promoted_from: FactOrigin | None = None


class FactUse(NamedTuple):
    """A model call that received a fact: its version, the version of the ``context-provided`` event, and the run."""

    thread_id: str
    version: int
    provided: int
    run_id: str | None


class Document:
    """A text for search; answers cite its ``source_name`` and ``source_link``.

    Searches in each of its ``namespaces`` can find it. A new document replaces an older one with the same link.
    """

    def __init__(
        self,
        text: str,
        *,
        source_name: str | None = None,
        source_link: str | None = None,
        namespaces: tuple[str, ...] | list[str] = (),
        metadata: JsonObject | None = None,
    ) -> None:
        if not isinstance(text, str):
            raise InvalidContentError(f"Document: the text is {type(text).__name__}, not a string.")
        if isinstance(namespaces, str):
            raise InvalidContentError("Document: namespaces is one string. Give a list of them: ['group/g1'].")
        self.text = text
        self.source_name = source_name
        self.source_link = source_link
        self.namespaces = tuple(namespaces)
        self.metadata: JsonObject = dict(metadata or {})


class Passage(NamedTuple):
    """A part of a document that a search found: ``text`` is the part, the other fields describe the document.

    ``version`` is that of the document's event in the stream. ``score`` is from 0 to 1, where 1 is best.
    """

    text: str
    score: float
    document: str
    version: int
    source_name: str | None
    source_link: str | None
    namespaces: tuple[str, ...]
    metadata: JsonObject


class Allow(NamedTuple):
    """The screen of a scope accepts a fact unchanged."""


class Redact(NamedTuple):
    """The screen of a scope accepts a fact with this text and key, and without its metadata."""

    text: str
    key: str | None = None


class Refuse(NamedTuple):
    """The screen of a scope refuses a fact."""

    reason: str


Screened: TypeAlias = Allow | Redact | Refuse
