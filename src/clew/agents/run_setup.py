"""What a run is set up with: the agent's parts, the caller's options and the thread's providers, all checked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from pydantic import BaseModel

from clew.agents.history_stores import HistoryStores
from clew.agents.middleware import Middleware
from clew.agents.telemetry import Telemetry
from clew.agents.tools import Tool
from clew.domain.context.provider import ContextProvider
from clew.domain.context.state import HISTORY_STORE
from clew.domain.context.thread_providers import as_providers
from clew.domain.json_values import JsonObject
from clew.domain.models.client import ModelClient
from clew.domain.reducers.reducer import Reducer, checked_reducer
from clew.domain.runs.definitions import Definitions
from clew.domain.runs.errors import AgentConfigurationError
from clew.domain.runs.events import AgentIdentity, Fingerprint
from clew.domain.runs.ports import ThreadPort
from clew.domain.runs.state import Rule

OnMissingProvider: TypeAlias = Literal["warn", "raise"]
"""What happens if a context provider that served the thread before is missing."""

ReadFrom: TypeAlias = Literal["log", "store"]
"""Where the history in a request comes from: the log, or the history store, which may bound it."""

_REPORTED_THREADS = 1_024


@dataclass(frozen=True, slots=True)
class Limits:
    """How far a run may go: model calls, seconds in total, and how often a request is sent again after a fault."""

    rounds: int = 20
    seconds: float | None = None
    retries: int = 2


class MissingReports:
    """The missing providers that an agent has reported, by thread, so that it reports them once."""

    def __init__(self) -> None:
        self._by_thread: dict[str, tuple[str, ...]] = {}

    def is_news(self, thread_id: str, missing: tuple[str, ...]) -> bool:
        """Whether this was not reported yet; from now on it was."""
        if self._by_thread.get(thread_id) == missing:
            return False
        self._by_thread[thread_id] = missing
        if len(self._by_thread) > _REPORTED_THREADS:
            del self._by_thread[next(iter(self._by_thread))]
        return True


class Providers(NamedTuple):
    """The context providers of a run: the agent's own, the thread's, and those that were given to the run alone."""

    own: tuple[ContextProvider, ...] = ()
    thread: tuple[ContextProvider, ...] = ()
    run: tuple[ContextProvider, ...] = ()

    @property
    def all(self) -> tuple[ContextProvider, ...]:
        """All of them, in the order in which they are asked. Raises AgentConfigurationError for a repeated id."""
        several = (*self.own, *self.thread, *self.run)
        return as_providers(several) if several else ()


@dataclass(frozen=True)
class RunSetup:
    """Who runs, with which client, model, tools and context, and within which limits."""

    identity: AgentIdentity
    client: ModelClient
    model: str
    definitions: Definitions
    tools: tuple[Tool, ...]
    options: JsonObject
    limits: Limits
    telemetry: Telemetry
    middleware: Sequence[Middleware] = ()
    actor: str | None = None
    deps: Any = None
    response_format: type[BaseModel] | None = None
    rules: dict[str, Rule] = field(default_factory=dict)
    providers: Providers = field(default_factory=Providers)
    removed_providers: frozenset[str] = frozenset()
    """The ids of providers that the application took off the thread: they are not missing."""
    on_missing: OnMissingProvider = "warn"
    reports: MissingReports = field(default_factory=MissingReports)
    reducer: Reducer | None = None
    stores: HistoryStores | None = None
    read_from: ReadFrom = "log"

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """The digests of what the agent consists of."""
        made = self.definitions.fingerprint(self.client.kind)
        own, reduced_by = tuple([provider.id for provider in self.providers.own]), self.reduced_by
        if not own and reduced_by is None:
            return made
        return made.model_copy(update={"providers": own, "reducer": reduced_by})

    @property
    def reduced_by(self) -> str | None:
        """The name of what decides which part of the history is sent; None if all of it is."""
        if self.reducer is not None:
            return self.reducer.name
        return HISTORY_STORE if self.stores is not None and self.read_from == "store" else None

    def about(self, thread_id: str, run_id: str) -> dict[str, Any]:
        """The fields of a middleware's context that say who runs where."""
        identity = self.identity
        return {
            "agent_id": identity.id,
            "agent_name": identity.name,
            "thread_id": thread_id,
            "run_id": run_id,
            "actor": self.actor,
        }

    def for_thread(self, thread: ThreadPort) -> RunSetup:
        """The same, with the context providers of a thread."""
        attached = thread.context_providers
        setup = self if self.stores is None or thread.kind == "local" else replace(self, stores=None)
        if not attached and not attached.removed:
            return setup
        providers = self.providers._replace(thread=tuple(attached))
        return replace(setup, providers=providers, removed_providers=frozenset(attached.removed))

    def with_definitions(
        self, definitions: Definitions, model: str | None = None, options: JsonObject | None = None
    ) -> RunSetup:
        """The same with other definitions and, where given, another model and other options."""
        chosen = self.options if options is None else options
        return replace(self, definitions=definitions, model=model or self.model, options=chosen)


def checked_limits(rounds: object, seconds: object, retries: object) -> Limits:
    """The limits. Raises AgentConfigurationError for values that cannot be limits."""
    for name, value, least in (("max_rounds", rounds, 1), ("retries", retries, 0)):
        if type(value) is not int or value < least:
            raise AgentConfigurationError(f"{name}={value!r} is not a number of times. Give {least} or more.")
    if seconds is not None and (not isinstance(seconds, int | float) or not 0 < seconds < math.inf):
        raise AgentConfigurationError(f"max_seconds={seconds!r} is not a time. Give seconds above 0, or None.")
    return Limits(cast("int", rounds), seconds, cast("int", retries))


def check_parts(client: object, model: object, middleware: Sequence[object]) -> None:
    """Raise AgentConfigurationError for a wrong client, model or middleware."""
    if not hasattr(client, "ask") or not hasattr(client, "thread_kinds"):
        raise AgentConfigurationError(
            f"client: {type(client).__name__} is not a model client. Give OpenAIChatClient(model=…) or another client."
        )
    if model is not None and not isinstance(model, str):
        raise AgentConfigurationError(f"model: {type(model).__name__} is not the name of a model. Give a string.")
    for each in middleware:
        if not isinstance(each, Middleware):
            raise AgentConfigurationError(
                f"middleware: {type(each).__name__} is not one. Derive it from clew.Middleware."
            )


def check_reports(**given: object) -> None:
    """Raise AgentConfigurationError unless each argument is 'warn' or 'raise'."""
    for name, value in given.items():
        if value not in {"warn", "raise"}:
            raise AgentConfigurationError(f"{name}={value!r} is neither 'warn' nor 'raise'.")


def check_history_parts(reducer: object, stores: object, read_from: object) -> None:
    """Raise AgentConfigurationError for a wrong reducer or history store, or parts that exclude each other."""
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


def rules_of(tools: Sequence[Tool]) -> dict[str, Rule]:
    """The rules of the tools: whether a call needs approval, and whether it may be repeated."""
    return {tool.schema.name: Rule(tool.approval == "always", tool.idempotent) for tool in tools}
