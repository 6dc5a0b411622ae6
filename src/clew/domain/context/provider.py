"""Context providers: components that give context to a run and learn from its messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

from pydantic import BaseModel

from clew.domain.history import HistoryMessage
from clew.domain.json_values import JsonObject
from clew.domain.memory.facts import Fact
from clew.domain.memory.ports import MemoryPort
from clew.domain.messages import Message
from clew.domain.models.client import ThreadKind
from clew.domain.runs.events import AgentIdentity

_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

OnFailure: TypeAlias = Literal["fail", "continue"]
"""What becomes of a run when a provider fails or is too slow: it fails, or it goes on without."""


@dataclass(frozen=True)
class Context:
    """What a provider gives to a run, and for that run only.

    ``instructions`` come after the agent's. ``messages`` stand before the new ones; with ``persist`` they become real
    messages of the thread, and stay. ``tools`` are functions or tools. ``facts`` are those that it passes on, so that
    ``used_by`` knows, and ``citations`` the sources of what it says, as JSON objects.
    """

    instructions: str | None = None
    messages: Sequence[Message] = ()
    tools: Sequence[Any] = ()
    persist: bool = False
    facts: Sequence[Fact] = field(default=())
    citations: Sequence[JsonObject] = field(default=())


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

    async def history(self) -> list[HistoryMessage]:
        """The messages on its path, as they are now."""
        ...


class ProviderContext(Protocol):
    """What a hook is told, and what it keeps.

    ``state`` is what this provider keeps of this thread: JSON values, or the model that it declares. A hook that
    changes it, or puts another in its place, has it recorded.
    """

    state: Any

    @property
    def thread(self) -> ThreadView:
        """The thread."""
        ...

    @property
    def agent(self) -> AgentIdentity | None:
        """The agent that runs, None outside a run."""
        ...

    @property
    def actor(self) -> str | None:
        """Who acts."""
        ...

    @property
    def tenant(self) -> str:
        """Whose thread it is."""
        ...

    @property
    def run_id(self) -> str | None:
        """The run, None outside one: the idempotency key for what is done outside, as a hook may be called again."""
        ...

    @property
    def scope(self) -> MemoryPort:
        """The memory scope that the provider declares as its own. Raises ScopeError when it declares none."""
        ...

    def memory(self, name: str) -> MemoryPort:
        """A memory scope, read as this thread reads them. Raises ScopeError for a name that is none.

        A provider writes to the scope of its own only: what is learned in a thread gets into another one by promote().
        """
        ...

    async def reads_at(self, name: str) -> int | None:
        """The version of a scope or a store of documents that this thread reads.

        None is the newest; a fork that reads as of its cut has an older one, and 0 where there was nothing yet.
        """
        ...

    @property
    def citations(self) -> Sequence[JsonObject]:
        """What was cited in this run, by this provider, oldest first; also before somebody else went on with it."""
        ...

    def cite(self, citation: JsonObject) -> None:
        """Say what the answer rests on: it comes into the metadata of the run's answer, under ``citations``."""
        ...


class ContextProvider:
    """Gives context to runs and learns from their messages. All hooks are optional; this class has none that does much.

    It holds no conversation: what it keeps of a thread is ``ctx.state``, so that one instance serves many threads, and
    a fork or a rewind takes the state along. ``id`` names it on the log, by default after its class; two of one id
    cannot serve the same run. ``scope`` is the memory scope of its own, if it has one. ``state_model`` is a pydantic
    model of its state, None for plain JSON. With ``every_model_call`` it is invoked before each model call of a run,
    and not only once. ``idempotent_tools`` says that the functions among its tools may be called twice to the effect of
    once, and so are after a crash. ``on_failure`` says what becomes of a run when it fails or takes longer than
    ``timeout`` seconds.
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
        """What it keeps of a thread at its first run there; it may be a coroutine. None keeps nothing."""
        del ctx
        return None if self.state_model is None else self.state_model()

    async def on_thread_created(self, ctx: ProviderContext, input: Sequence[Message]) -> None:  # noqa: A002  # the field's word
        """A thread that it is attached to has begun, with this input."""

    async def on_message(self, ctx: ProviderContext, message: HistoryMessage) -> None:
        """A message was appended: once for each, in the order in which they were."""

    async def invoking(self, ctx: ProviderContext, messages: Sequence[HistoryMessage]) -> Context | None:
        """The model is about to be asked; ``messages`` are those since its last answer. Returns what it is to know."""

    async def invoked(
        self,
        ctx: ProviderContext,
        request_messages: Sequence[HistoryMessage],
        response_messages: Sequence[HistoryMessage] | None = None,
        exception: BaseException | None = None,
    ) -> None:
        """The run is over: with these messages, or with what went wrong."""

    async def on_checkpoint(self, ctx: ProviderContext, name: str) -> None:
        """A version of the thread gets a name."""

    async def on_suspend(self, ctx: ProviderContext) -> None:
        """The thread is about to rest."""

    async def on_resume(self, ctx: ProviderContext) -> None:
        """The thread goes on after a rest."""

    async def on_thread_ended(self, ctx: ProviderContext) -> None:
        """The thread is about to be closed."""

    async def on_thread_deleted(self, ctx: ProviderContext) -> None:
        """The thread is about to be taken away."""


ContextProviders: TypeAlias = ContextProvider | Sequence[ContextProvider]
"""One provider or several."""

ToolFunctions: TypeAlias = Sequence[Callable[..., Any]]
