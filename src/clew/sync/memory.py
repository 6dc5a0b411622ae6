"""Memory scopes, for threads of control: what is remembered outside any one thread, and the way to it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from clew.domain.errors import ScopeError
from clew.domain.history import HistoryMessage
from clew.domain.json_values import JsonObject
from clew.domain.memory.events import Provenance
from clew.domain.memory.facts import Fact, Found, Use, Why
from clew.domain.memory.ports import MemoryAt, Screen
from clew.service.core import Core
from clew.service.memory import scope_commands, scope_queries, scopes
from clew.service.memory.scope_commands import Asked
from clew.service.memory.scope_queries import ScopeSummary
from clew.service.memory.scopes import Scope
from clew.service.operations import run


class MemoryScope:
    """What is remembered of a user, an agent, an application, a group or anything else that has a name: facts.

    Nothing is overwritten: ``at`` is what was known at a version of the scope's stream, or at an aware time, and
    ``valid_at`` what was held to be true of a time. ``actor`` is who acts, by default that of the service. A scope that
    holds documents raises ScopeError.
    """

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @property
    def name(self) -> str:
        """The scope's name, such as ``user/42``."""
        return self._scope.name

    def remember(  # noqa: PLR0913  # all that can be said of a fact
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
        """Know something from now on.

        It is held to be true from ``valid_from``, by default from now, until before ``valid_to``, by default for ever.
        ``source`` is where it was learned. The same ``idempotency_key`` again remembers nothing more. Raises
        InvalidContentError, InvalidTimeError or IdempotencyKeyReusedError; then nothing is stored.
        """
        asked = Asked(key, kind, metadata, valid_from, valid_to, source, actor, idempotency_key)
        return run(scope_commands.remember(self._scope, text, asked))

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
        """Know something else instead of a live fact, of the same key and kind, which holds until ``valid_from``.

        Raises UnknownFactError, and what remember() does.
        """
        asked = Asked(None, None, metadata, valid_from, valid_to, source, actor, idempotency_key)
        return run(scope_commands.supersede(self._scope, fact, text, asked))

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
        """Hold a live fact to be true no more, by default from now; it stays in the past. Raises UnknownFactError."""
        asked = Asked(valid_to=valid_to, source=source, actor=actor, idempotency_key=idempotency_key)
        run(scope_commands.retract(self._scope, fact, reason, asked))

    def facts(
        self,
        *,
        key: str | None = None,
        kind: str | None = None,
        at: MemoryAt = None,
        valid_at: datetime | None = None,
        history: bool = False,
    ) -> list[Fact]:
        """What is held to be true, in the order in which it was remembered; with ``history`` all that ever was known.

        ``valid_at`` is the time that it is to be true of, by default that of the reading. Raises UnknownVersionError or
        InvalidTimeError.
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
    ) -> list[Found]:
        """The facts that have most to do with some words, best first: by words, as embedders are awaited.

        Raises InvalidContentError, and what facts() does.
        """
        found = run(scope_queries.selected(self._scope, kind=kind, at=at, valid_at=valid_at))
        within = scope_queries.searchable(found)
        ranking = within.by_words(found.texts, query, top=top, min_score=min_score, allowed=found.numbers)
        return [Found(found.fact(number), score) for number, score in ranking]

    def why(self, fact: Fact | str) -> Why:
        """Where a fact came from, live or not. Raises UnknownFactError."""
        return run(scope_queries.why(self._scope, fact))

    def used_by(self, fact: Fact | str) -> list[Use]:
        """The model calls that were given a fact, oldest first. Raises UnknownFactError."""
        return run(scope_queries.used_by(self._scope, fact))

    def promote(
        self,
        fact: Fact | str,
        *,
        to: MemoryScope,
        actor: str | None = None,
        idempotency_key: str | None = None,
    ) -> Fact:
        """Take a live fact into a wider scope, past its screen; returns the fact that is remembered there.

        With other words than its own it goes without its metadata. It has the provenance of this one, and ``why`` leads
        back here. Raises FactRefusedError, UnknownFactError, or ScopeError for a scope of another tenant.
        """
        if not isinstance(to, MemoryScope):
            raise ScopeError(f"promote: to={type(to).__name__} is no memory scope. Give conversations.memory(…).")
        wider = to._scope
        return run(scope_commands.promote(self._scope, fact, wider, actor, idempotency_key))


class HasMemory:
    """A service, as far as it remembers."""

    _core: Core

    def memory(self, name: str, *, screen: Screen | None = None) -> MemoryScope:
        """The memory scope of that name, such as ``user/42``; it begins with the first fact.

        ``screen`` decides what may be promoted into it. Raises ScopeError for None or an empty name, and for one that
        holds documents, and InvalidNameError.
        """
        scope = Scope(self._core, name, screen=screen)
        run(scopes.opened(scope))
        return MemoryScope(scope)

    def scopes(self) -> Iterator[ScopeSummary]:
        """The memory scopes of the tenant, those that hold documents too, in the order in which they were opened."""
        pages = scope_queries.scopes(self._core)
        while page := run(pages.next()):
            yield from page
