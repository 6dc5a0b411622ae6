"""The ports through which agents reach threads: run logs, threads and engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol, Self, TypeAlias, TypeVar

from clew.domain.context.events import Hook
from clew.domain.context.provider import ThreadProviders
from clew.domain.decider import Intent
from clew.domain.decider_state import CallLocation, Control
from clew.domain.events import Event
from clew.domain.history import History, HistoryMessage, NeededHistory
from clew.domain.json_values import Json, JsonObject
from clew.domain.memory.ports import MemoryPort
from clew.domain.messages import Message
from clew.domain.models.client import ServiceReference, ThreadKind, TokenUsage
from clew.domain.models.prices import Cost, Prices
from clew.domain.ports import Blob, Draft, Lease
from clew.domain.runs.events import Caller
from clew.domain.runs.remote_threads import ServiceState

LEASE_SECONDS = 30.0
"""How long a run counts as under way after its last write."""


LEFT_OPEN = 1e-9
"""The seconds of a lease that has expired when it is written: any process may continue the run, and finds it by it.

Written with events, it leaves the lease of a process that executes the run as it is.
"""


class Holding(NamedTuple):
    """The thread's lease after an append: taken or renewed for that many seconds; 0 releases it.

    The ``successor`` is the holder that takes the released lease in the same commit.
    """

    holder: str
    seconds: float = LEASE_SECONDS
    successor: str | None = None


class RunKey(NamedTuple):
    """The idempotency key of a run. The same key with other ``content`` is an error."""

    key: str
    content: bytes


class RunLog(Protocol):
    """What a run reads and writes of its thread."""

    thread_id: str
    tenant: str
    """The tenant of the thread."""
    actor: str | None
    """The actor of calls that name none."""
    prices: Prices | None
    """The price list of model calls."""

    async def channel(self, thread_id: str) -> RunLog:
        """The log of a thread on which this chat takes turns, which may not exist yet."""
        ...

    async def inner(self, call: CallLocation, thread_id: str) -> RunLog:
        """The log of a thread on which a call runs an agent. Raises UnknownThreadError if it does not name the call."""
        ...

    async def outer(self, caller: Caller) -> RunLog:
        """The log of the thread whose call began a run. Raises UnknownThreadError if it does not name this one."""
        ...

    async def control(self, *, fresh: bool = False, checkpoint: str | None = None) -> Control:
        """The thread's control; unless it is to be ``fresh``, as far as this process has seen it.

        It may lack older checkpoints, except the one whose name is ``checkpoint``.
        For a thread that begins with the run, the control that it begins with. Raises UnknownThreadError.
        """
        ...

    @property
    def begins(self) -> bool:
        """Whether the first record begins the thread, other than as a fork."""
        ...

    async def history(self, needed: NeededHistory | None = None) -> History:
        """The messages on the path that are ``needed``, with the context state and the version that they were read at.

        With None, all messages.
        """
        ...

    async def history_part(self, last: int | None, before: HistoryMessage | None) -> History:
        """The ``last`` messages on the path, ``before`` a message if it is given."""
        ...

    async def service_state(self, at: int | None = None) -> ServiceState:
        """The state of the thread at the service that holds it, at a version or now."""
        ...

    async def events(self, after: int, upto: int | None = None) -> list[Event]:
        """The events of the lineage after a version, up to another."""
        ...

    async def event(self, version: int) -> Event:
        """One event of the lineage."""
        ...

    async def blob(self, digest: str) -> bytes | None:
        """The bytes of that digest, in hex; None if the store does not have them."""
        ...

    async def reads_at(self, name: str) -> int | None:
        """The version at which the thread reads a scope or a document store, None for the newest."""
        ...

    async def claim_state(self, provider: str, state: Json) -> None:
        """Record that a provider state belongs to this thread only. Raises HistoryStoreSharedError."""
        ...

    async def supply(self, blobs: Sequence[Blob]) -> None:
        """Store the blobs that the store does not have."""
        ...

    async def record(
        self,
        intents: Sequence[Intent],
        *,
        actor: str | None = None,
        on_behalf_of: str | None = None,
        expected_version: int | None = None,
        blobs: Sequence[Blob] = (),
        holding: Holding | None = None,
        drop_draft: str | None = None,
        key: RunKey | None = None,
    ) -> list[Event]:
        """Write the events of the intents in one commit, and return them. It waits for a write that has begun.

        With a ``key`` that an earlier record had, nothing is written, and the list is empty.

        ``drop_draft`` is the run whose draft is no longer needed. With an ``expected_version``, a thread with newer
        events raises ConflictError. Raises RunInProgressError if another run holds the lease, and RunTakenOverError if
        the run no longer belongs to the caller.
        """
        ...

    async def cost(self, usage: TokenUsage, *, model: str, provider: str | None) -> Cost | None:
        """What a model call costs now by the price list; None if it has no price."""
        ...

    async def repeated(self, key: RunKey) -> int | None:
        """The first version that an earlier record with the key wrote, None if there was none.

        Raises IdempotencyKeyReusedError if its content was another. An empty content is not compared.
        """
        ...

    async def hold(self, holding: Holding, *, drop_draft: str | None = None) -> None:
        """Renew the lease, or release it. Raises RunTakenOverError if the holder has lost it.

        ``drop_draft`` is the run whose draft is no longer needed.
        """
        ...

    async def lease(self) -> Lease | None:
        """The lease, None if no run holds one or it has expired."""
        ...

    async def draft(self) -> Draft | None:
        """The draft of an answer that was arriving."""
        ...

    async def put_draft(self, run_id: str, data: bytes, holding: Holding) -> None:
        """Save the draft of an answer, and renew the lease. Raises RunTakenOverError as ``hold`` does."""
        ...

    async def changed(self, after: int, seconds: float) -> bool:
        """Wait for a version of the thread later than ``after``, at most that many seconds; returns whether it came."""
        ...


class ThreadPort(Protocol):
    """A thread, as agents use it."""

    id: str

    @property
    def kind(self) -> ThreadKind:
        """Who holds the history."""
        ...

    @property
    def runs(self) -> RunLog:
        """The log of its runs."""
        ...

    @property
    def context_providers(self) -> ThreadProviders:
        """The context providers that are attached to the thread, in this process."""
        ...

    def scope(
        self,
        name: str,
        *,
        run_id: str | None,
        actor: str | None,
        on_behalf_of: str | None,
        provider: str,
        reads_only: bool,
    ) -> MemoryPort:
        """A memory scope as the thread reads it, for one of its providers; perhaps only to read. Raises ScopeError."""
        ...

    async def notify(self, hook: Hook, *arguments: object, actor: str | None = None) -> None:
        """Call a hook of the thread's context providers. Raises ContextProviderError."""
        ...

    def unstarted(self, kind: ThreadKind, thread_id: str) -> ThreadPort:
        """The thread of an inner agent, in the same store. It begins with the first run on it."""
        ...

    async def branch(self, at: Any = None, thread_id: str | None = None) -> Self:
        """A fork, with that id or a new one, that begins with the first run on it."""
        ...

    async def rewound(self, to: Any) -> Self:
        """The same thread. The first run on it rewinds it to a version, in its first commit."""
        ...

    def bound_to(self, agent: Any) -> Self:
        """The same thread, bound to an agent: its ``run()`` runs that agent."""
        ...


OnExisting: TypeAlias = Literal["raise", "fork"]
"""What happens to a document of a thread that the store has with newer events."""

ThreadT = TypeVar("ThreadT", bound=ThreadPort)
LocalT_co = TypeVar("LocalT_co", bound=ThreadPort, covariant=True)
RemoteT_co = TypeVar("RemoteT_co", bound=ThreadPort, covariant=True)


class EnginePort(Protocol[LocalT_co, RemoteT_co]):
    """Where threads come from: threads whose history Clew holds, and threads that a service holds."""

    def unstarted_thread(
        self, kind: ThreadKind, thread_id: str | None = None, labels: JsonObject | None = None
    ) -> LocalT_co | RemoteT_co:
        """A thread with that id or a new one, and these labels. It begins with the first run on it."""
        ...

    async def start_thread(self, *, messages: Sequence[Message] = ()) -> LocalT_co:
        """A thread that begins now, with its first messages if there are any."""
        ...

    async def start_remote_thread(
        self, service_thread_id: str | ServiceReference | None, held: Sequence[Message] = ()
    ) -> RemoteT_co:
        """A thread that begins now, with the service's id of it and the messages ``held`` there, if it has them."""
        ...

    async def thread(self, thread_id: str) -> LocalT_co | RemoteT_co:
        """The thread of that id. Raises UnknownThreadError."""
        ...

    async def threads_with_lease(self) -> list[str]:
        """The ids of the threads with a run that a process executes, or executed when it ended."""
        ...

    async def restore_thread(
        self, document: JsonObject, *, on_existing: OnExisting = "raise", as_new: bool = False
    ) -> LocalT_co | RemoteT_co:
        """The thread that a document holds. Raises ThreadDocumentError, ThreadAheadError or ThreadDivergedError."""
        ...
