# Generated from src/clew/aio/memory.py by `make generate`. Do not edit it: edit the source.
"""The memory of Conversations: scopes of facts."""

from __future__ import annotations

from datetime import datetime

from clew.domain.errors import ScopeError
from clew.domain.history import HistoryMessage
from clew.domain.json_values import Json, JsonObject
from clew.domain.memory.events import Provenance
from clew.domain.memory.facts import Fact, FactOrigin, FactUse, FoundFact
from clew.domain.memory.ports import MemoryAt
from clew.service.effects import read, run
from clew.service.memory import scope_commands, scope_queries
from clew.service.memory.scope_commands import WriteOptions
from clew.service.memory.scope_view import Scope


class MemoryScope:
    """Facts about a user, an agent, an application, a group or anything else that has a name.

    Nothing is overwritten. ``at`` selects what was known at a version of the scope, or at an aware datetime.
    ``valid_at`` selects what was true at a time. ``actor`` is by default the actor of the service. Raises ScopeError
    for a scope that holds documents.
    """

    def __init__(
        self,
        scope: Scope,
    ) -> None:
        self._scope = scope

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @property
    def name(self) -> str:
        """The scope's name, such as ``user/42``."""
        return self._scope.name

    def remember(  # noqa: PLR0913  # every property of a fact has its own parameter
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
        """Add a fact.

        It is valid from ``valid_from`` (by default now) to ``valid_to`` (not included; by default for ever). ``source``
        is where it was learned. A repeated ``idempotency_key`` adds nothing and returns the first fact. Raises
        InvalidContentError, InvalidTimeError or IdempotencyKeyReusedError; then nothing is stored.
        """
        options = WriteOptions(key, kind, metadata, valid_from, valid_to, source, actor, idempotency_key)
        return run(scope_commands.remember(self._scope, text, options))

    def supersede(
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
        """Replace a live fact by a new one of the same key and kind. The old one stays valid until ``valid_from``.

        Raises UnknownFactError, and the errors of remember().
        """
        options = WriteOptions(None, None, metadata, valid_from, valid_to, source, actor, idempotency_key)
        return run(scope_commands.supersede(self._scope, fact, text, options))

    def retract(
        self,
        fact: Fact | str,
        *,
        reason: str | None = None,
        valid_to: datetime | None = None,
        source: HistoryMessage | Provenance | None = None,
        actor: str | None = None,
        idempotency_key: str | None = None,
    ) -> None:
        """End the validity of a live fact, by default now. Raises UnknownFactError.

        The log keeps the fact, so ``at``, ``valid_at`` and ``history`` can still select it.
        """
        options = WriteOptions(valid_to=valid_to, source=source, actor=actor, idempotency_key=idempotency_key)
        run(scope_commands.retract(self._scope, fact, reason, options))

    def put(
        self,
        key: str,
        value: Json,
        *,
        text: str | None = None,
        expected: int | None = None,
        source: HistoryMessage | Provenance | None = None,
        actor: str | None = None,
        idempotency_key: str | None = None,
    ) -> Fact:
        """Store a JSON value as the only live fact with a key of 1 to 200 characters. It replaces the live one.

        Of several writers at once, one comes after the other, and the last one's fact is live. ``text`` is what
        searches find and models read, by default the value: a string as it is, other values as JSON. With
        ``expected``, FactConflictError is raised unless that is the version of the live fact, or 0 and there is none.
        Raises UnknownVersionError, and the errors of remember().
        """
        options = WriteOptions(source=source, actor=actor, idempotency_key=idempotency_key)
        return run(scope_commands.put(self._scope, key, value, text, expected, options))

    def get(self, key: str, *, at: MemoryAt = None) -> Fact | None:
        """The newest live fact with a key, whenever it is valid; None if there is none.

        It takes the same time for any number of facts. Raises UnknownVersionError or InvalidTimeError.
        """
        return run(scope_queries.get(self._scope, key, at))

    def delete(
        self,
        key: str,
        *,
        expected: int | None = None,
        reason: str | None = None,
        source: HistoryMessage | Provenance | None = None,
        actor: str | None = None,
        idempotency_key: str | None = None,
    ) -> bool:
        """Retract the live fact with a key; returns whether there was one. The log keeps it, as retract() does.

        ``expected`` is as in put(). Raises FactConflictError, UnknownVersionError and InvalidContentError.
        """
        options = WriteOptions(source=source, actor=actor, idempotency_key=idempotency_key)
        return run(scope_commands.delete(self._scope, key, reason, expected, options))

    def facts(
        self,
        *,
        key: str | None = None,
        kind: str | None = None,
        at: MemoryAt = None,
        valid_at: datetime | None = None,
        history: bool = False,
    ) -> list[Fact]:
        """The facts that are valid, in the order in which they were added; with ``history`` also all earlier ones.

        ``valid_at`` selects another time than now. Raises UnknownVersionError or InvalidTimeError.
        """
        operation = scope_queries.facts(self._scope, key=key, kind=kind, at=at, valid_at=valid_at, history=history)
        return run(operation)

    def search(
        self,
        query: str,
        *,
        top: int = 5,
        min_score: float = 0.0,
        kind: str | None = None,
        at: MemoryAt = None,
        valid_at: datetime | None = None,
    ) -> list[FoundFact]:
        """The facts that match a query best, best first, by words.

        Raises InvalidContentError, and the errors of facts().
        """
        facts = run(scope_queries.select_facts(self._scope, kind=kind, at=at, valid_at=valid_at))
        index = scope_queries.word_index(facts)
        ranking = run(
            read(lambda: index.by_words(facts.texts, query, top=top, min_score=min_score, allowed=facts.numbers))
        )
        return [FoundFact(facts.fact(number), score) for number, score in ranking]

    def why(self, fact: Fact | str) -> FactOrigin:
        """Where a fact comes from, live or not. Raises UnknownFactError."""
        return run(scope_queries.why(self._scope, fact))

    def used_by(self, fact: Fact | str) -> list[FactUse]:
        """The model calls that contained a fact, oldest first. Raises UnknownFactError."""
        return run(scope_queries.used_by(self._scope, fact))

    def promote(
        self,
        fact: Fact | str,
        *,
        to: MemoryScope,
        actor: str | None = None,
        idempotency_key: str | None = None,
    ) -> Fact:
        """Copy a live fact into a wider scope, if that scope's screen allows it; returns the fact there.

        A screen that changes the text drops the metadata. The copy has the provenance of this fact, and ``why`` leads
        back here. Raises FactRefusedError, UnknownFactError, or ScopeError for a scope of another tenant.
        """
        if not isinstance(to, MemoryScope):
            raise ScopeError(f"promote: to={type(to).__name__} is not a memory scope. Give conversations.memory(…).")
        wider = to._scope
        return run(scope_commands.promote(self._scope, fact, wider, actor, idempotency_key))
