"""What an agent and its caller supply for the context of runs: providers, a reducer, a history store."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from clew.agents.history_feed import StoreFeed
from clew.domain.context.provider import ContextProvider
from clew.domain.context.thread_providers import as_providers
from clew.domain.history_stores import StoreContext, StoreFactory
from clew.domain.reducers.reducer import checked_reducer
from clew.domain.runs.errors import AgentConfigurationError

OnMissingProvider: TypeAlias = Literal["warn", "raise"]
"""What is done when a context provider that served the thread before is not supplied."""

_REMEMBERED = 1_024
"""Threads of which an agent remembers what it reported."""


class Missed:
    """The providers that an agent has reported as missing, by thread, so that it does so once."""

    def __init__(self) -> None:
        self._by_thread: dict[str, tuple[str, ...]] = {}

    def is_news(self, thread_id: str, missing: tuple[str, ...]) -> bool:
        """Whether that was not reported yet; from now on it was."""
        if self._by_thread.get(thread_id) == missing:
            return False
        self._by_thread[thread_id] = missing
        if len(self._by_thread) > _REMEMBERED:
            del self._by_thread[next(iter(self._by_thread))]
        return True


ReadFrom: TypeAlias = Literal["log", "store"]
"""Where the history comes from that a model is sent: the log, or the history store, which may bound it."""


class Stores:
    """The history stores of an agent: one for each thread in this process, as long as it is remembered."""

    def __init__(self, factory: StoreFactory) -> None:
        self._factory = factory
        self._feeds: dict[tuple[str, str], StoreFeed] = {}

    def feed(self, context: StoreContext) -> StoreFeed:
        """What feeds the store of a thread."""
        key = (context.tenant, context.thread_id)
        found = self._feeds.pop(key, None) or StoreFeed(self._factory, context)
        self._feeds[key] = found
        if len(self._feeds) > _REMEMBERED:
            del self._feeds[next(iter(self._feeds))]
        return found


class Providers(NamedTuple):
    """The context providers of a run: the agent's own, the thread's, and those that were given to it alone."""

    own: tuple[ContextProvider, ...] = ()
    thread: tuple[ContextProvider, ...] = ()
    run: tuple[ContextProvider, ...] = ()

    @property
    def all(self) -> tuple[ContextProvider, ...]:
        """All of them in the order in which they are asked. Raises AgentConfigurationError for two of one id."""
        return as_providers((*self.own, *self.thread, *self.run))


def check_reports(**given: object) -> None:
    """Raise AgentConfigurationError for what is no way to report something."""
    for name, value in given.items():
        if value not in {"warn", "raise"}:
            raise AgentConfigurationError(f"{name}={value!r} is neither 'warn' nor 'raise'.")


def check_history(reducer: object, stores: object, read_from: object) -> None:
    """Raise AgentConfigurationError for what cannot say which part of a history a model is sent."""
    if reducer is not None:
        checked_reducer(reducer)
    if stores is not None and not callable(stores):
        raise AgentConfigurationError(
            f"history_store: {type(stores).__name__} makes no store. Give a function: lambda ctx: RedisHistory(…)."
        )
    if read_from not in {"log", "store"}:
        raise AgentConfigurationError(f"read_history_from={read_from!r} is neither 'log' nor 'store'.")
    if read_from == "store" and stores is None:
        raise AgentConfigurationError("read_history_from='store' needs the store. Give history_store=…, a factory.")
    if read_from == "store" and reducer is not None:
        raise AgentConfigurationError(
            "reducer and read_history_from='store': the history store owns the size of what a model is sent. "
            "Leave one of them out."
        )
