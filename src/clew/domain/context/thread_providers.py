"""The context providers of a thread: code that is attached to it in this process, not data of the thread."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from clew.domain.context.provider import ContextProvider, ContextProviders
from clew.domain.context.state import HISTORY_STORE
from clew.domain.runs.errors import AgentConfigurationError
from clew.domain.streams import check_id


class ThreadProviders:
    """The providers that serve every run on a thread, whichever agent runs, in the order in which they were added."""

    def __init__(self, providers: Sequence[ContextProvider] = ()) -> None:
        self._providers = list(providers)
        self.removed: set[str] = set()
        """The ids of removed providers: they are not missing."""

    def __iter__(self) -> Iterator[ContextProvider]:
        return iter(tuple(self._providers))

    def __len__(self) -> int:
        return len(self._providers)

    def __repr__(self) -> str:
        return f"<context providers {[provider.id for provider in self._providers]}>"

    def add(self, *providers: ContextProvider) -> None:
        """Attach providers, from the next run on. Raises AgentConfigurationError for a repeated id."""
        self._providers = list(as_providers((*self._providers, *providers)))

    def remove(self, provider: ContextProvider | str) -> None:
        """Detach a provider; its state is kept. Raises AgentConfigurationError if it is not attached."""
        id_ = provider if isinstance(provider, str) else provider.id
        left = [each for each in self._providers if each.id != id_]
        if len(left) == len(self._providers):
            raise AgentConfigurationError(f"context_providers: there is no {id_!r} to remove.")
        self._providers = left
        self.removed.add(id_)

    def copy(self) -> ThreadProviders:
        """The same providers, for a fork."""
        other = ThreadProviders(self._providers)
        other.removed = set(self.removed)
        return other


def as_providers(given: ContextProviders | None) -> tuple[ContextProvider, ...]:
    """One provider or several, as a tuple.

    Raises AgentConfigurationError for anything else, a repeated id, the id of history stores, and an invalid policy or
    timeout.
    """
    several: Sequence[Any] = () if given is None else (given,) if isinstance(given, ContextProvider) else given
    if not isinstance(several, Sequence) or isinstance(several, str):
        raise AgentConfigurationError(f"context_providers: {type(given).__name__} is not a context provider.")
    for provider in several:
        if not isinstance(provider, ContextProvider):
            raise AgentConfigurationError(
                f"context_providers: {_name(provider)} is not a context provider. Give a clew.ContextProvider."
            )
        check_id(provider.id, f"id of {type(provider).__name__}")
        if provider.id == HISTORY_STORE:
            raise AgentConfigurationError(
                f"{type(provider).__name__}: history stores use the id {HISTORY_STORE!r}. Give it another id."
            )
        if provider.on_failure not in {"fail", "continue"}:
            raise AgentConfigurationError(
                f"{provider.id}: on_failure={provider.on_failure!r} is neither 'fail' nor 'continue'."
            )
        if provider.timeout is not None and not _is_time(provider.timeout):
            raise AgentConfigurationError(
                f"{provider.id}: timeout={provider.timeout!r} is not a timeout. Give seconds above 0, or None."
            )
    ids = [provider.id for provider in several]
    twice = next((id_ for id_ in ids if ids.count(id_) > 1), None)
    if twice is not None:
        raise AgentConfigurationError(
            f"context_providers: two have the id {twice!r}, but each needs its own state. Give one of them another id."
        )
    return tuple(several)


def _is_time(given: object) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool) and 0 < given < math.inf


def _name(given: object) -> str:
    return f"the class {given.__name__}" if isinstance(given, type) else type(given).__name__
