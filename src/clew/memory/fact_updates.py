"""What context providers with a memory scope share: checks of their arguments, and how they change facts."""

from __future__ import annotations

import contextlib

from clew.domain.errors import InvalidNameError, ScopeError, UnknownFactError
from clew.domain.history import HistoryMessage
from clew.domain.memory.facts import Fact
from clew.domain.memory.ports import MemoryPort
from clew.domain.reducers.reducer import checked_limit
from clew.domain.runs.errors import AgentConfigurationError
from clew.domain.streams import check_id


def checked_scope(scope: str | None, provider: str) -> str:
    """The name of a scope. Raises ScopeError if it is missing: an unset scope never means everyone's."""
    if not isinstance(scope, str) or not scope.strip():
        raise ScopeError(
            f"{provider}: scope={scope!r} is empty. Name the owner of the memory, such as scope='user/42'."
        )
    try:
        check_id(scope, "scope")
    except InvalidNameError as error:
        raise ScopeError(f"{provider}: {error}") from None
    return scope


def checked_search(owner: object, top: int, min_score: float) -> None:
    """Raise AgentConfigurationError unless ``top`` is 1 or more and ``min_score`` from 0 to 1."""
    checked_limit(owner, "top", top, 1)
    if isinstance(min_score, bool) or not isinstance(min_score, int | float) or not 0 <= min_score <= 1:
        raise AgentConfigurationError(f"{type(owner).__name__}: min_score={min_score!r} is not a score from 0 to 1.")


async def keep_fact(
    scope: MemoryPort,
    text: str,
    replaced: Fact | None,
    *,
    key: str | None = None,
    kind: str | None = None,
    source: HistoryMessage | None,
    idempotency_key: str | None = None,
) -> Fact:
    """Remember a fact, in place of ``replaced`` if that is still live."""
    if replaced is not None:
        with contextlib.suppress(UnknownFactError):  # another run replaced or removed it first
            return await scope.supersede(replaced, text, source=source, idempotency_key=idempotency_key)
    return await scope.remember(text, key=key, kind=kind, source=source, idempotency_key=idempotency_key)


async def retract_fact(scope: MemoryPort, fact: Fact, reason: str) -> None:
    """Retract a fact, unless it was removed meanwhile."""
    with contextlib.suppress(UnknownFactError):
        await scope.retract(fact, reason=reason)
