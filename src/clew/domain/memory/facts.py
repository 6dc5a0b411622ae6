"""Facts, documents and where they came from, as they are read."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, NamedTuple, TypeAlias

from clew.domain.errors import InvalidContentError
from clew.domain.history import HistoryMessage
from clew.domain.json_values import JsonObject
from clew.domain.memory.events import FactReference, Provenance

FactStatus: TypeAlias = Literal["live", "superseded", "retracted"]


class Fact(NamedTuple):
    """Something that a scope knows, or knew.

    ``version`` is that of its event in the scope's stream, ``recorded_at`` its time. It holds from ``valid_from`` until
    before ``valid_to``, None for ever. ``learned`` is where it was learned, ``promoted`` the fact of a narrower scope
    that it was taken from; ``replaces`` is the id of the one that it superseded. ``status`` is as of the version at
    which the scope was read.
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
    metadata: JsonObject = {}  # noqa: RUF012  # nothing in a fact is changed in place
    learned: Provenance | None = None
    promoted: FactReference | None = None
    replaces: str | None = None
    actor: str | None = None
    status: FactStatus = "live"

    @property
    def reference(self) -> FactReference:
        """What events call it."""
        return FactReference(scope=self.scope, fact=self.id, version=self.version)


class FoundFact(NamedTuple):
    """A fact that was found; ``score`` is 1 for the best there could be."""

    fact: Fact
    score: float


class FactOrigin(NamedTuple):
    """Where a fact came from: the message that it was learned from, None when it was not learned in a thread.

    ``thread_id`` and ``version`` say where that is, ``redacted`` whether its content is gone, and ``actor`` who had the
    fact remembered. ``promoted_from`` says the same of the fact that it was taken from.
    """

    fact: Fact
    thread_id: str | None = None
    version: int | None = None
    message: HistoryMessage | None = None
    redacted: bool = False
    actor: str | None = None
    promoted_from: FactOrigin | None = None


class FactUse(NamedTuple):
    """A model call that was given a fact: its version, that of the ``context-provided`` event, and the run."""

    thread_id: str
    version: int
    provided: int
    run_id: str | None


class Document:
    """A text to look things up in: ``source_name`` and ``source_link`` are what an answer cites.

    It can be found in each of its ``namespaces``. A document with the link of another takes its place.
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
    """A part of a document that was found: ``text`` is the part, and the rest says what it is of.

    ``version`` is that of the document's event in the stream; ``score`` is 1 for the best there could be.
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
    """A scope's screen lets a fact in as it is."""


class Redact(NamedTuple):
    """A scope's screen lets a fact in with other words, and without its metadata; its key is what is given here."""

    text: str
    key: str | None = None


class Refuse(NamedTuple):
    """A scope's screen keeps a fact out."""

    reason: str


Screened: TypeAlias = Allow | Redact | Refuse
