"""The ports through which agents reach threads: who keeps what happens in a run, and where threads come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol, Self, TypeAlias, TypeVar

from clew.domain.context.events import Hook
from clew.domain.context.thread_providers import ThreadProviders
from clew.domain.control import Control
from clew.domain.decider import Intent
from clew.domain.events import Event
from clew.domain.history import History
from clew.domain.json_values import Json, JsonObject
from clew.domain.memory.ports import MemoryPort
from clew.domain.messages import Message
from clew.domain.models.client import ThreadKind
from clew.domain.ports import Blob, Draft, Lease
from clew.domain.runs.service_state import ServiceSide

LEASE_SECONDS = 30.0
"""How long a run counts as under way when nothing more is heard of it."""


class Holding(NamedTuple):
    """What becomes of the thread's lease with an append: taken or kept for so many seconds, with 0 let go of."""

    holder: str
    seconds: float = LEASE_SECONDS


class RunLog(Protocol):
    """What a run reads and writes of one thread."""

    @property
    def thread_id(self) -> str:
        """The id of the thread."""
        ...

    async def control(self, *, fresh: bool = False) -> Control:
        """The thread's control; unless it is to be ``fresh``, as far as this process has seen it.

        Of a thread that is to begin with the run it is what it begins with. Raises UnknownThreadError.
        """
        ...

    @property
    def tenant(self) -> str:
        """Whose thread it is."""
        ...

    @property
    def actor(self) -> str | None:
        """Who acts where nobody else is named."""
        ...

    @property
    def begins(self) -> bool:
        """Whether the thread is not there yet, and begins, other than as a fork, with what is recorded first."""
        ...

    async def history(self) -> History:
        """The messages on the path, what is kept for components, and the version up to which they were read."""
        ...

    async def service_side(self) -> ServiceSide:
        """What the service that holds the thread has been sent, and what it calls it."""
        ...

    async def events(self, after: int) -> list[Event]:
        """The events of the lineage after a version."""
        ...

    async def event(self, version: int) -> Event:
        """One event of the lineage."""
        ...

    async def blob(self, digest: str) -> bytes | None:
        """The bytes of that digest, in hex; None when they are not there."""
        ...

    async def claim_state(self, provider: str, state: Json) -> None:
        """Say that what a component keeps is this thread's, and no other's. Raises HistoryStoreSharedError."""
        ...

    async def supply(self, blobs: Sequence[Blob]) -> None:
        """Store blobs that are not there yet."""
        ...

    async def record(
        self,
        intents: Sequence[Intent],
        *,
        actor: str | None = None,
        expected_version: int | None = None,
        blobs: Sequence[Blob] = (),
        holding: Holding | None = None,
        drop_draft: str | None = None,
    ) -> list[Event]:
        """Write what intents come to, together, and return it. What was taken by the writer is waited for.

        ``drop_draft`` is the run whose draft is needed no more. With an ``expected_version``, a thread that has moved
        on raises ConflictError. Raises RunInProgressError when somebody else holds the lease, and RunTakenOverError
        when the run is not the caller's any more.
        """
        ...

    async def hold(self, holding: Holding, *, drop_draft: str | None = None) -> None:
        """Keep the lease, or let go of it. Raises RunTakenOverError when it is not the holder's any more.

        ``drop_draft`` is the run whose draft is needed no more.
        """
        ...

    async def lease(self) -> Lease | None:
        """The lease, None when nobody holds one that has not run out."""
        ...

    async def draft(self) -> Draft | None:
        """What was written down of an answer that was arriving."""
        ...

    async def put_draft(self, run_id: str, data: bytes, holding: Holding) -> None:
        """Write down what has arrived of an answer, and keep the lease. Raises RunTakenOverError as ``hold`` does."""
        ...

    async def changed(self, after: int, seconds: float) -> None:
        """Wait until the thread has moved on from a version, but not longer than so many seconds."""
        ...


class ThreadPort(Protocol):
    """A thread, as far as agents need to know it."""

    id: str

    @property
    def kind(self) -> ThreadKind:
        """Who holds the history."""
        ...

    @property
    def runs(self) -> RunLog:
        """What a run reads and writes of it."""
        ...

    @property
    def context_providers(self) -> ThreadProviders:
        """The context providers that are attached to the thread, in this process."""
        ...

    def scope(self, name: str, *, run_id: str | None, actor: str | None, provider: str, reads_only: bool) -> MemoryPort:
        """A memory scope as the thread reads it, for one of its providers, perhaps only to look. Raises ScopeError."""
        ...

    async def reads_at(self, name: str) -> int | None:
        """The version of a scope or a store of documents that the thread reads, None for the newest."""
        ...

    async def notify(self, hook: Hook, *given: object, before: Intent | None = None, actor: str | None = None) -> None:
        """Tell the thread's context providers what happens to it; ``before`` is what is to be decided next.

        Raises ContextProviderError, and what a decision on ``before`` would.
        """
        ...

    async def branch(self, at: Any = None) -> Self:
        """A fork that begins with the first run on it."""
        ...

    def bound_to(self, agent: Any) -> Self:
        """The same thread, with ``run()`` being that of the agent."""
        ...


OnExisting: TypeAlias = Literal["raise", "fork"]
"""What is done with a document of a thread that the store has, and that has gone on there since."""

ThreadT = TypeVar("ThreadT", bound=ThreadPort)
LocalT_co = TypeVar("LocalT_co", bound=ThreadPort, covariant=True)
RemoteT_co = TypeVar("RemoteT_co", bound=ThreadPort, covariant=True)


class EnginePort(Protocol[LocalT_co, RemoteT_co]):
    """Where threads come from: those whose history Clew holds, and those that a service holds."""

    def unstarted_thread(self, kind: ThreadKind) -> LocalT_co | RemoteT_co:
        """A thread of its own id that begins with the first run on it."""
        ...

    async def start_thread(self, *, messages: Sequence[Message] = ()) -> LocalT_co:
        """A thread that begins now, with its first messages if there are any."""
        ...

    async def start_remote_thread(self, service_thread_id: str | None) -> RemoteT_co:
        """A thread that begins now, with what the service calls it if it is there already."""
        ...

    async def thread(self, thread_id: str) -> LocalT_co | RemoteT_co:
        """The thread of that id. Raises UnknownThreadError."""
        ...

    async def restore_thread(
        self, document: JsonObject, *, on_existing: OnExisting = "raise", as_new: bool = False
    ) -> LocalT_co | RemoteT_co:
        """The thread that a document holds. Raises ThreadDocumentError, ThreadAheadError or ThreadDivergedError."""
        ...
