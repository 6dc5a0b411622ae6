"""Context providers: components that give context to a run and learn from its messages."""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

from pydantic import BaseModel

from clew.domain.context.state import OWN_IDS
from clew.domain.history import HistoryMessage
from clew.domain.json_values import JsonObject
from clew.domain.memory.facts import Fact
from clew.domain.memory.ports import MemoryPort
from clew.domain.messages import Message
from clew.domain.models.client import ThreadKind, ToolSchema
from clew.domain.runs.errors import AgentConfigurationError
from clew.domain.runs.events import AgentIdentity
from clew.domain.streams import check_id

_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

OnFailure: TypeAlias = Literal["fail", "continue"]
"""What happens to a run if a provider fails or is too slow: it fails, or it continues without the provider."""


@dataclass(frozen=True)
class Context:
    """What a provider gives to a run, for that run only.

    ``instructions`` come after the agent's. ``messages`` come before the new ones; with ``persist`` they
    are appended to the thread. ``tools`` are functions or tools. ``facts`` are the facts that the context uses, which
    ``used_by`` reports. ``citations`` are its sources, as JSON objects.
    """

    instructions: str | None = None
    messages: Sequence[Message] = ()
    tools: Sequence[Any] = ()
    persist: bool = False
    facts: Sequence[Fact] = ()
    citations: Sequence[JsonObject] = ()


ProvidedApproval: TypeAlias = Literal["never", "always"] | Callable[[JsonObject, Any], bool | Awaitable[bool]]
"""Whether calls of a provided tool need approval, or a function of the arguments and the ToolContext that says so."""


@dataclass(frozen=True)
class ProvidedTool:
    """A tool of a context provider that is not a Python function: its schema comes from elsewhere.

    ``call`` gets the arguments and the ToolContext of the call, and returns the result. The other fields are those of
    ``@tool``.
    """

    schema: ToolSchema
    call: Callable[[JsonObject, Any], Awaitable[Any]]
    approval: ProvidedApproval = "never"
    idempotent: bool = False
    timeout: float | None = None
    retries: int = 0


class ThreadView(Protocol):
    """A thread, as a provider sees it."""

    @property
    def id(self) -> str:
        """The id of the thread."""
        ...

    @property
    def kind(self) -> ThreadKind:
        """Who holds the history."""
        ...

    async def history(self, *, last: int | None = None, before: HistoryMessage | None = None) -> list[HistoryMessage]:
        """The messages on its path, as of now; of those ``before`` a message, the ``last`` ones.

        With ``last`` it reads backwards, so it costs the same on a thread of any length.
        """
        ...


class ProviderContext(Protocol):
    """The first argument of a hook.

    ``state`` is the state of this provider in this thread: JSON values, or the model that it declares. If a hook
    changes or replaces it, the new state is recorded.
    """

    state: Any

    @property
    def thread(self) -> ThreadView:
        """The thread."""
        ...

    @property
    def agent(self) -> AgentIdentity | None:
        """The agent of the run, None outside a run."""
        ...

    @property
    def actor(self) -> str | None:
        """The actor of the run or of the call."""
        ...

    @property
    def tenant(self) -> str:
        """The tenant of the thread."""
        ...

    @property
    def run_id(self) -> str | None:
        """The run, None outside a run. Use it as the idempotency key of external calls: a hook may be called again."""
        ...

    @property
    def scope(self) -> MemoryPort:
        """The memory scope that the provider declares as its own. Raises ScopeError if it declares none."""
        ...

    def memory(self, name: str) -> MemoryPort:
        """A memory scope, read as this thread reads it. Raises ScopeError for an invalid name.

        A provider writes to its own scope only. To copy what it learned into another scope, use ``promote()``.
        """
        ...

    async def reads_at(self, name: str) -> int | None:
        """The version at which this thread reads a scope or a document store.

        None is the newest. A fork that reads memory as of its cut has an older version, or 0 if there was none yet.
        """
        ...

    @property
    def citations(self) -> Sequence[JsonObject]:
        """The citations of this provider in this run, oldest first, including those of earlier attempts."""
        ...

    def cite(self, citation: JsonObject) -> None:
        """Add a source of the answer. It goes into the metadata of the run's answer, under ``citations``."""
        ...


class ContextProvider:
    """Gives context to runs and learns from their messages. All hooks are optional.

    A provider object holds no data of a thread: that is in ``ctx.state``. So many threads can use one instance, and a
    fork or a rewind has the state of its version. ``id`` identifies the provider in the log, by default by the name of
    its class; two providers of a run cannot have the same id. ``scope`` is its own memory scope, if it has one.
    ``state_model`` is a pydantic model of its state, None for plain JSON. With ``every_model_call`` it is invoked
    before each model call of a run, not only before the first. ``idempotent_tools`` says that calling one of its
    functions again has no second effect; after a crash they are called again. ``on_failure`` says what happens to a run
    if a hook fails or takes longer than ``timeout`` seconds.
    """

    id: str = ""
    scope: str | None = None
    state_model: ClassVar[type[BaseModel] | None] = None
    every_model_call: bool = False
    idempotent_tools: bool = False
    on_failure: OnFailure = "fail"
    timeout: float | None = 60.0

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if not cls.id:
            cls.id = _WORD.sub("-", cls.__name__).lower()

    def initial_state(self, ctx: ProviderContext) -> Any:
        """The state before the first run on a thread, None for none; it may be a coroutine."""
        del ctx
        return None if self.state_model is None else self.state_model()

    async def on_thread_created(self, ctx: ProviderContext, input: Sequence[Message]) -> None:
        """A thread has begun, with this input."""

    async def on_message(self, ctx: ProviderContext, message: HistoryMessage) -> None:
        """A message was appended. The hook receives each message once, in order."""

    async def invoking(self, ctx: ProviderContext, messages: Sequence[HistoryMessage]) -> Context | None:
        """Called before a request to the model; ``messages`` are those since its last answer. Returns its context."""

    def outdated(self, given: Context) -> bool:
        """Whether what it gave to a run is no longer right: then it is invoked again before the next model call."""
        del given
        return False

    async def invoked(
        self,
        ctx: ProviderContext,
        request_messages: Sequence[HistoryMessage],
        response_messages: Sequence[HistoryMessage] | None = None,
        exception: BaseException | None = None,
    ) -> None:
        """The run has ended: with these messages, or with this exception."""

    async def on_checkpoint(self, ctx: ProviderContext, name: str) -> None:
        """A checkpoint is about to be made."""

    async def on_suspend(self, ctx: ProviderContext) -> None:
        """The thread is about to be suspended."""

    async def on_resume(self, ctx: ProviderContext) -> None:
        """The thread was resumed."""

    async def on_thread_ended(self, ctx: ProviderContext) -> None:
        """The thread is about to be ended."""

    async def on_thread_deleted(self, ctx: ProviderContext) -> None:
        """The thread is about to be deleted."""


ContextProviders: TypeAlias = ContextProvider | Sequence[ContextProvider]
"""One provider or several."""


class ThreadProviders:
    """The providers of every run on a thread, by any agent, in the order in which they were added."""

    def __init__(self, providers: Sequence[ContextProvider] = ()) -> None:
        self.attached = tuple(providers)
        self.removed: set[str] = set()
        """The ids of removed providers: they are not missing."""

    def __iter__(self) -> Iterator[ContextProvider]:
        return iter(self.attached)

    def __len__(self) -> int:
        return len(self.attached)

    def __repr__(self) -> str:
        return f"<context providers {[provider.id for provider in self.attached]}>"

    def add(self, *providers: ContextProvider) -> None:
        """Attach providers, from the next run on. Raises AgentConfigurationError for a repeated id."""
        self.attached = as_providers((*self.attached, *providers))

    def remove(self, provider: ContextProvider | str) -> None:
        """Detach a provider; its state is kept. Raises AgentConfigurationError if it is not attached."""
        id_ = provider if isinstance(provider, str) else provider.id
        remaining = tuple(each for each in self.attached if each.id != id_)
        if len(remaining) == len(self.attached):
            raise AgentConfigurationError(f"context_providers: {id_!r} is not attached, so it cannot be removed.")
        self.attached = remaining
        self.removed.add(id_)

    def copy(self) -> ThreadProviders:
        """The same providers, for a fork."""
        other = ThreadProviders(self.attached)
        other.removed = set(self.removed)
        return other


def as_providers(providers: ContextProviders | None) -> tuple[ContextProvider, ...]:
    """One provider or several, as a tuple.

    Raises AgentConfigurationError for anything else, a repeated id, the id of history stores, and an invalid policy or
    timeout.
    """
    listed: Sequence[Any] = (
        () if providers is None else (providers,) if isinstance(providers, ContextProvider) else providers
    )
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        raise AgentConfigurationError(f"context_providers: {type(providers).__name__} is not a context provider.")
    for provider in listed:
        if not isinstance(provider, ContextProvider):
            raise AgentConfigurationError(
                f"context_providers: {_name(provider)} is not a context provider. Give a clew.ContextProvider."
            )
        check_id(provider.id, f"id of {type(provider).__name__}")
        if provider.id in OWN_IDS:
            raise AgentConfigurationError(
                f"{type(provider).__name__}: Clew itself uses the id {provider.id!r}. Give it another id."
            )
        if provider.on_failure not in {"fail", "continue"}:
            raise AgentConfigurationError(
                f"{provider.id}: on_failure={provider.on_failure!r} is neither 'fail' nor 'continue'."
            )
        if provider.timeout is not None and not _is_time(provider.timeout):
            raise AgentConfigurationError(
                f"{provider.id}: timeout={provider.timeout!r} is not a timeout. Give seconds above 0, or None."
            )
    ids = [provider.id for provider in listed]
    repeated = next((id_ for id_ in ids if ids.count(id_) > 1), None)
    if repeated is not None:
        raise AgentConfigurationError(
            f"context_providers: two providers have the id {repeated!r}, but each needs its own state. "
            "Give one of them another id."
        )
    return tuple(listed)


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _name(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
