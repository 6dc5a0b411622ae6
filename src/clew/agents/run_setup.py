"""The setup of a run: the agent's parts, the caller's input and options, and the thread's providers, all checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict, cast

from clew.agents.guardrails import Guardrail
from clew.agents.handoffs import Handoff
from clew.agents.history_replication import HistoryStores
from clew.agents.middleware import Middleware
from clew.agents.telemetry import Telemetry
from clew.agents.tool_use import ToolUseBehavior
from clew.agents.tools import BecomesTool, Tool, as_tools
from clew.domain.context.provider import ContextProvider, ContextProviders, as_providers
from clew.domain.context.state import HISTORY_STORE
from clew.domain.errors import InvalidContentError
from clew.domain.history import NotReduced
from clew.domain.json_values import JsonObject
from clew.domain.messages import Message, check_message
from clew.domain.models.client import ModelClient
from clew.domain.reducers.reducer import Reducer, checked_reducer, decides_from_newest
from clew.domain.runs.errors import AgentConfigurationError
from clew.domain.runs.events import AgentIdentity, Fingerprint
from clew.domain.runs.ports import ThreadPort
from clew.domain.runs.request_construction import Definitions
from clew.domain.runs.state import Rule

Input: TypeAlias = str | Message | Sequence[Message] | None
"""The input of a run: the user's text, a message, several, or None to answer what is already on the thread."""

OnConflict: TypeAlias = Literal["raise", "wait", "fork"]
"""What a run does while another run is in progress on its thread."""

ToolFunction: TypeAlias = Tool | Callable[..., Any] | BecomesTool | ContextProvider
"""A tool, a plain function or an agent that becomes one, or a context provider that gives tools, such as MCPTools."""


class ContinueOptions(TypedDict, total=False):
    """The options of ``continue_run``.

    ``actor`` is the caller. ``deps`` is what tools get in their ToolContext. ``tools`` and ``context_providers`` that
    were given to the run itself must be given again, and ``response_format`` if ``response.value`` is wanted; the model
    and its options are those in the log. ``on_conflict`` says what to do if another process continues the run: raise
    RunInProgressError, or wait.
    """

    actor: str | None
    deps: Any
    tools: Sequence[ToolFunction]
    context_providers: ContextProviders | None
    response_format: Any
    on_conflict: Literal["raise", "wait"]


class RunOptions(TypedDict, total=False):
    """The options of ``run``.

    ``thread`` is the thread to run on; without it a new one is started. ``actor`` is who wrote the input. ``fork`` runs
    on a new fork of the thread, ``at`` on one from a version, a checkpoint or a time. ``rewind_to`` continues the
    thread itself from there: the rewind is stored with the start of the run. ``tools`` (in addition to the agent's),
    ``model``, ``options`` of the model service (in addition to the agent's) and ``response_format`` apply to this run
    only. So do ``context_providers``, unless the run starts its thread: then they are attached to the thread.
    ``response_format`` is a pydantic model, a dataclass, a TypedDict, a type such as ``list[Model]``, or a JSON Schema.
    ``deps`` is what tools get in their ToolContext.

    If another run is in progress on the thread, ``on_conflict`` decides: raise RunInProgressError (``raise``), ``wait``
    for it, or run on a ``fork`` from before it. Code that a run calls, such as its tools, cannot wait for that run, and
    raises. If a run waits for approvals, ApprovalPendingError is raised, unless ``abandon_run`` is true: then that run
    is abandoned. A run with the ``idempotency_key`` of an earlier run on the thread, in any process, stores nothing: it
    waits for that run and returns its response. Without a ``thread``, and for a fork, the key also names the new
    thread. ``max_rounds`` (model calls), ``max_seconds`` and ``strict_media`` are the agent's unless given.
    """

    thread: ThreadPort | None
    actor: str | None
    fork: bool
    at: Any
    rewind_to: Any
    tools: Sequence[ToolFunction]
    context_providers: ContextProviders | None
    model: str | None
    options: Mapping[str, Any] | None
    response_format: Any
    deps: Any
    on_conflict: OnConflict
    abandon_run: bool
    idempotency_key: str | None
    max_rounds: int | None
    max_seconds: float | None
    strict_media: bool | None


def split_tools(given: Sequence[ToolFunction]) -> tuple[tuple[Tool, ...], tuple[ContextProvider, ...]]:
    """The tools among the given ones, and the context providers that give tools. Raises InvalidToolError."""
    listed = isinstance(given, list | tuple)
    providers = tuple([each for each in given if isinstance(each, ContextProvider)]) if listed else ()
    tools: Any = [each for each in given if not isinstance(each, ContextProvider)] if providers else given
    return as_tools(tools), providers


_ON_CONFLICT = {RunOptions: ("raise", "wait", "fork"), ContinueOptions: ("raise", "wait")}


def check_options(operation: str, given: Mapping[str, object], options: type[RunOptions | ContinueOptions]) -> None:
    """Raise AgentConfigurationError for an unknown option, or an unknown value of ``on_conflict``."""
    unknown = given.keys() - options.__annotations__.keys()
    if unknown:
        known = ", ".join(options.__annotations__)
        raise AgentConfigurationError(
            f"{operation}: there is no option {', '.join(sorted(unknown))}. There are: {known}."
        )
    if given.get("on_conflict", "raise") not in _ON_CONFLICT[options]:
        allowed = ", ".join(map(repr, _ON_CONFLICT[options]))
        raise AgentConfigurationError(f"{operation}: on_conflict={given['on_conflict']!r} is none of {allowed}.")


def check_mode(options: Mapping[str, object], *, stream: bool, background: bool) -> None:
    """Raise AgentConfigurationError for ways to run that exclude each other."""
    if stream and background:
        raise AgentConfigurationError(
            "run: stream= and background= exclude each other. Follow a background run: thread.follow(run.run_id)."
        )
    if options.get("rewind_to") is not None:
        forks = options.get("fork") or options.get("at") is not None or options.get("on_conflict") == "fork"
        if forks or options.get("thread") is None:
            raise AgentConfigurationError("run: rewind_to= needs a thread=, and no fork: it rewinds that thread.")


def input_messages(operation: str, given: Input) -> tuple[Message, ...]:
    """The input of a run as messages. Raises InvalidContentError for anything that is not an Input."""
    if given is None:
        return ()
    messages: tuple[Message, ...]
    if isinstance(given, str):
        messages = (Message.user(given),)
    elif isinstance(given, Message):
        messages = (given,)
    elif isinstance(given, list | tuple) and all(isinstance(each, Message) for each in given):
        messages = tuple(given)
    else:
        kind = type(given).__name__
        raise InvalidContentError(
            f"{operation}: {kind} is not an input. Give a string, a Message or a list of Messages."
        )
    for message in messages:
        check_message(message)
    return messages


OnChangedAgent: TypeAlias = Literal["warn", "raise"]
"""What happens if an agent runs on a thread again and its definitions have changed."""

OnMissingProvider: TypeAlias = Literal["warn", "raise"]
"""What happens if a context provider that the thread used before is missing."""

OnExpiredServiceThread: TypeAlias = Literal["raise", "reseed"]
"""What happens if the service no longer has what a remote thread continues."""

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
        """Whether this was not reported before. It is noted as reported."""
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
    """The agent of a run, with its client, model, tools, context and limits."""

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
    response_format: Any = None
    rules: dict[str, Rule] = field(default_factory=dict)
    providers: Providers = field(default_factory=Providers)
    removed_providers: frozenset[str] = frozenset()
    """The ids of providers that the application took off the thread: they are not missing."""
    guardrails: tuple[Guardrail, ...] = ()
    handoffs: tuple[Handoff, ...] = ()
    kept_options: RunOptions = field(default_factory=RunOptions)
    """The options of the run that also hold for an agent to which it hands the conversation."""
    resets_tool_choice: bool = True
    """Whether options that force a call count for the first answer of a run only."""
    tool_use: ToolUseBehavior | None = None
    """Which results of tools end a run as its answer, None if none does."""
    on_changed: OnChangedAgent = "warn"
    compared: dict[str, None] = field(default_factory=dict)
    """The last threads on which the agent was compared with its last run there."""
    on_missing: OnMissingProvider = "warn"
    on_expired: OnExpiredServiceThread = "raise"
    strict_media: bool = False
    """Whether a run fails if the model would not receive media, instead of warning."""
    reports: MissingReports = field(default_factory=MissingReports)
    reducer: Reducer | None = None
    stores: HistoryStores | None = None
    read_from: ReadFrom = "log"

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """The digests of what the agent consists of."""
        fingerprint = self.definitions.fingerprint(self.client.kind)
        own, reduced_by = self.providers.own, self.reduced_by
        if not own and reduced_by is None:
            return fingerprint
        providers = tuple([provider.id for provider in own])
        return fingerprint.model_copy(update={"providers": providers, "reducer": reduced_by})

    @cached_property
    def is_observed(self) -> bool:
        """Whether middleware or telemetry surrounds its runs, model calls and tool calls."""
        return bool(self.middleware) or self.telemetry._instruments is not None  # noqa: SLF001  # private to Clew

    @cached_property
    def has_conditional_tools(self) -> bool:
        """Whether some of its tools are not always offered."""
        return any(each.is_enabled is not True for each in self.tools)

    @cached_property
    def checks_answers(self) -> bool:
        """Whether guardrails check each answer, so that no part of it may leave the run before."""
        return any(each.stage == "after" for each in self.guardrails)

    @property
    def late_context(self) -> bool:
        """Whether context that changes from run to run is sent as late messages."""
        return bool(getattr(self.client, "late_context", False))

    @property
    def reduced_by(self) -> str | None:
        """The name of the reducer or history store that selects the history; None if all of it is sent."""
        if self.reducer is not None:
            return self.reducer.name
        return HISTORY_STORE if self.stores is not None and self.read_from == "store" else None

    def needed_history(self, reducer: Reducer) -> NotReduced | None:
        """What the run needs of the history, None for all of it: a history store is given all messages."""
        return None if self.stores is not None else NotReduced(self.identity.id, decides_from_newest(reducer))

    def about(self, thread_id: str, run_id: str) -> dict[str, Any]:
        """The fields of a middleware's context that name the agent, the thread and the run."""
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
        providers = thread.context_providers
        setup = self if self.stores is None or thread.kind == "local" else replace(self, stores=None)
        if not providers.attached and not providers.removed:
            return setup
        return replace(
            setup,
            providers=self.providers._replace(thread=providers.attached),
            removed_providers=frozenset(providers.removed),
        )


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


def check_on_expired(value: object) -> None:
    """Raise AgentConfigurationError for another value than 'raise' or 'reseed'."""
    if value not in {"raise", "reseed"}:
        raise AgentConfigurationError(f"on_expired_service_thread={value!r} is neither 'raise' nor 'reseed'.")


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
    return {tool.schema.name: Rule(tool.approval != "never", tool.idempotent) for tool in tools}
