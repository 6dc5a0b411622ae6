"""With what a run is made: everything that the agent, the call and the client say before it begins."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from pydantic import BaseModel

from clew.agents.middleware import Middleware
from clew.agents.provider_config import Missed, OnMissingProvider, Providers, ReadFrom, Stores
from clew.agents.telemetry import Telemetry
from clew.agents.tools import Tool
from clew.domain.context.provider_state import HISTORY_STORE
from clew.domain.json_values import JsonObject
from clew.domain.models.client import ModelClient
from clew.domain.reducers.reducer import Reducer
from clew.domain.runs.definitions import Definitions, fingerprint
from clew.domain.runs.errors import AgentConfigurationError
from clew.domain.runs.events import AgentIdentity, Fingerprint
from clew.domain.runs.ports import ThreadPort
from clew.domain.runs.state import Rule

MOST_WAIT = 60.0
"""Seconds that a service may ask to wait before a request is sent again; when it asks for more, the run fails."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How far a run may go: model calls, seconds in all, and how often a request is sent again after a fault."""

    rounds: int = 20
    seconds: float | None = None
    retries: int = 2


def checked_limits(rounds: object, seconds: object, retries: object) -> Limits:
    """The limits. Raises AgentConfigurationError for what is no number, or none that a run could keep."""
    for name, value, least in (("max_rounds", rounds, 1), ("retries", retries, 0)):
        if type(value) is not int or value < least:
            raise AgentConfigurationError(f"{name}={value!r} is no number of times. Give {least} or more.")
    if seconds is not None and (not isinstance(seconds, int | float) or not 0 < seconds < math.inf):
        raise AgentConfigurationError(f"max_seconds={seconds!r} is no time. Give seconds above 0, or None.")
    return Limits(cast("int", rounds), seconds, cast("int", retries))


def check_parts(client: object, model: object, middleware: Sequence[object]) -> None:
    """Raise AgentConfigurationError for what agents cannot be made of."""
    if not hasattr(client, "ask") or not hasattr(client, "thread_kinds"):
        raise AgentConfigurationError(
            f"client: {type(client).__name__} is no way to a model. Give OpenAIChatClient(model=…) or another client."
        )
    if model is not None and not isinstance(model, str):
        raise AgentConfigurationError(f"model: {type(model).__name__} is no name of a model. Give a string.")
    for each in middleware:
        if not isinstance(each, Middleware):
            raise AgentConfigurationError(f"middleware: {type(each).__name__} is none. Derive it from clew.Middleware.")


@dataclass(frozen=True, slots=True)
class Setup:
    """Who runs, on what client, with which tools, and on what terms."""

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
    on_missing: OnMissingProvider = "warn"
    missed: Missed = field(default_factory=Missed)
    reducer: Reducer | None = None
    stores: Stores | None = None
    read_from: ReadFrom = "log"
    not_missed: frozenset[str] = frozenset()

    @property
    def fingerprint(self) -> Fingerprint:
        """What the agent is made of, by digest."""
        made = fingerprint(self.definitions, self.client.kind)
        own = tuple(provider.id for provider in self.providers.own)
        if not own and self.made_of_history is None:
            return made
        return made.model_copy(update={"providers": own, "reducer": self.made_of_history})

    @property
    def made_of_history(self) -> str | None:
        """What says which part of the history the requests are made of; None when it is all of it."""
        if self.reducer is not None:
            return self.reducer.name
        return HISTORY_STORE if self.stores is not None and self.read_from == "store" else None

    def serving(self, thread: ThreadPort) -> Setup:
        """The same on a thread, with the context providers that are attached to it."""
        attached = thread.context_providers
        setup = self if thread.kind == "local" or self.stores is None else replace(self, stores=None)
        if not attached and not attached.dropped:
            return setup
        providers = self.providers._replace(thread=tuple(attached))
        return replace(setup, providers=providers, not_missed=frozenset(attached.dropped))

    def made_of(self, definitions: Definitions, model: str | None = None, options: JsonObject | None = None) -> Setup:
        """The same with other definitions and, where they are given, another model and other options."""
        asked = self.options if options is None else options
        return replace(self, definitions=definitions, model=model or self.model, options=asked)


def rules_of(tools: Sequence[Tool]) -> dict[str, Rule]:
    """What the tools say of themselves, as far as the order of things depends on it."""
    return {tool.name: Rule(tool.approval == "always", tool.idempotent) for tool in tools}
