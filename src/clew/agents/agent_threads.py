"""The threads of an agent: those that it starts, takes up again and may run on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic

from clew.agents import default_engine
from clew.agents.agent_compatibility import OnChangedAgent, take_up
from clew.agents.run_setup import Setup
from clew.domain.json_values import JsonObject
from clew.domain.messages import Message
from clew.domain.models.client import ModelClient, ThreadKind
from clew.domain.reducers.reducer import Reducer
from clew.domain.runs.errors import AgentConfigurationError, UnsupportedThreadError
from clew.domain.runs.ports import EnginePort, LocalT_co, OnExisting, RemoteT_co, ThreadPort, ThreadT

_COMPARED = 1_024
"""Threads of which an agent remembers that it was compared with what it was there."""


class AgentThreads(ABC, Generic[LocalT_co, RemoteT_co]):
    """An agent's way to threads."""

    client: ModelClient
    reducer: Reducer | None

    def __init__(self, engine: EnginePort[LocalT_co, RemoteT_co] | None, on_changed: OnChangedAgent) -> None:
        self._engine = engine
        self._on_changed = on_changed
        self._compared: dict[str, None] = {}

    @property
    def engine(self) -> EnginePort[LocalT_co, RemoteT_co]:
        """Where the threads live that the agent starts."""
        if self._engine is None:
            self._engine = default_engine.make()
        return self._engine

    async def get_local_thread(self, messages: Sequence[Message] | None = None) -> LocalT_co:
        """A new thread whose history Clew holds, with its first messages if there are any.

        Raises UnsupportedThreadError where the client cannot run on one.
        """
        self._check_kind("local")
        thread = (await self.engine.start_thread(messages=messages or ())).bound_to(self)
        await thread.tell("on_thread_created", list(messages or ()))
        return thread

    async def get_remote_thread(self, service_thread_id: str | None = None) -> RemoteT_co:
        """A new thread whose history the client's service holds, or one that goes on from there.

        ``service_thread_id`` is the id of a response or a conversation of the service's. Raises UnsupportedThreadError
        where the client cannot run on one.
        """
        self._check_kind("remote")
        thread = (await self.engine.start_remote_thread(service_thread_id)).bound_to(self)
        await thread.tell("on_thread_created", [])
        return thread

    async def thread(self, thread_id: str) -> LocalT_co | RemoteT_co:
        """The thread of that id, bound to the agent: it has ``run()``. Raises UnknownThreadError."""
        return await self._taken_up(await self.engine.thread(thread_id))

    async def deserialize_thread(
        self, document: JsonObject, *, on_existing: OnExisting = "raise", as_new: bool = False
    ) -> LocalT_co | RemoteT_co:
        """The thread that ``thread.serialize()`` has written, restored in the agent's engine, and bound to the agent.

        See ``engine.restore_thread``, which says what is checked and raised.
        """
        restoring = self.engine.restore_thread(document, on_existing=on_existing, as_new=as_new)
        return await self._taken_up(await restoring)

    @abstractmethod
    def _made_of(self) -> Setup:
        """What the agent is made of, whatever a run is given."""

    def _check_thread(self, thread: ThreadPort) -> None:
        if not hasattr(thread, "runs"):
            kind = type(thread).__name__
            raise AgentConfigurationError(
                f"run: {kind} is no thread of an Engine. Give one of engine.start_thread(), engine.thread(id)."
            )
        self._check_kind(thread.kind)

    def _check_kind(self, kind: ThreadKind) -> None:
        if kind not in self.client.thread_kinds:
            raise UnsupportedThreadError(type(self.client).__name__, kind, self.client.thread_kinds)
        if kind == "remote" and self.reducer is not None:
            raise AgentConfigurationError(
                f"reducer: the service that holds a remote thread owns the size of its history, so {self.reducer.name} "
                "has nothing to reduce there. Leave it out, or run on a local thread."
            )

    async def _taken_up(self, thread: ThreadT) -> ThreadT:
        self._compared.pop(thread.id, None)
        await self._take_up(thread)
        return thread.bound_to(self)

    async def _take_up(self, thread: ThreadPort) -> None:
        """Compare with what the agent was made of before, once for each of the threads that it last ran on."""
        if thread.id in self._compared:
            return
        await take_up(thread.runs, self._made_of().serving(thread), self._on_changed)
        self._compared[thread.id] = None
        if len(self._compared) > _COMPARED:
            del self._compared[next(iter(self._compared))]
