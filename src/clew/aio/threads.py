"""One thread, awaited: the same names as in threads.py."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Mapping, Sequence
from typing import Literal, Self, TypeVar, overload

from clew.agents.service_threads import delete_at_service, service_threads
from clew.aio.reading import ReadThread
from clew.aio.runs import AgentThread
from clew.domain.context.events import Hook
from clew.domain.control import Control, Status
from clew.domain.decider import Checkpoint, Delete, End, Intent, Resume, Suspend
from clew.domain.differences.diff import Diff
from clew.domain.events import MemoryReading, ServiceDeletion
from clew.domain.history import HistoryMessage
from clew.domain.json_values import Json
from clew.domain.messages import Message
from clew.domain.models.client import ModelClient, ServiceThreads, ThreadKind
from clew.domain.runs.errors import ServiceDeletionError
from clew.domain.runs.service_comparison import reconciled
from clew.service import remote_threads, thread_commands
from clew.service.async_operations import Subscription, drive
from clew.service.core import Core
from clew.service.operations import Operation
from clew.service.thread_queries import At

T = TypeVar("T")
OtherT = TypeVar("OtherT", bound="Thread")


class Thread(AgentThread, ReadThread):
    """One conversation. The store has all of it; this is a way in.

    ``id`` is the thread's. What its status does not allow raises ThreadStatusError, and ThreadDeletedError when it is
    deleted. A version that is not there raises UnknownVersionError, UnknownCheckpointError or InvalidTimeError.
    """

    def __init__(self, core: Core, live: weakref.WeakSet[Subscription], thread_id: str, *, asked: bool = False) -> None:
        self._core = core
        self._live = live
        self.id = thread_id
        self._seen = Control()
        self._asked = asked or core.authorize is None
        self._look()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"

    @property
    def version(self) -> int:
        """The newest version that this process has seen; ``summary()`` looks."""
        return self._look().version

    @property
    def status(self) -> Status:
        """active, suspended, ended or deleted, as far as this process has seen; ``summary()`` looks."""
        return self._look().status

    @overload
    async def append(
        self,
        messages: Message,
        *,
        actor: str | None = None,
        expected_version: int | None = None,
        idempotency_key: str | None = None,
    ) -> HistoryMessage: ...
    @overload
    async def append(
        self,
        messages: Sequence[Message],
        *,
        actor: str | None = None,
        expected_version: int | None = None,
        idempotency_key: str | None = None,
    ) -> list[HistoryMessage]: ...
    async def append(
        self,
        messages: Message | Sequence[Message],
        *,
        actor: str | None = None,
        expected_version: int | None = None,
        idempotency_key: str | None = None,
    ) -> HistoryMessage | list[HistoryMessage]:
        """Append one message or many, in one commit; returns them in their places.

        With ``expected_version`` a thread that has moved on raises ConflictError; without, the messages come after
        what others appended. The same ``idempotency_key`` again appends nothing and returns what it did the first time;
        with other content it raises IdempotencyKeyReusedError. Raises InvalidContentError for what cannot be stored.
        """
        many = thread_commands.as_messages(messages)
        found = await self._do(
            thread_commands.append(
                self._core,
                self.id,
                many,
                actor=actor,
                expected_version=expected_version,
                idempotency_key=idempotency_key,
            )
        )
        return found[0] if isinstance(messages, Message) else found

    async def label(
        self, labels: Mapping[str, Json] | None = None, /, *, actor: str | None = None, **more: Json
    ) -> None:
        """Set labels, or with None remove them. A mapping takes those that are called ``actor``, too.

        The name of a label has 200 characters at the most.
        """
        await self._do(thread_commands.label(self._core, self.id, thread_commands.labels(labels, more), actor))

    async def checkpoint(self, name: str, *, at: At = None, actor: str | None = None) -> int:
        """Give a version a name, by default the newest; returns the version. Raises CheckpointExistsError."""
        await self.tell("on_checkpoint", name, before=Checkpoint(name), actor=actor)
        return await self._do(thread_commands.checkpoint(self._core, self.id, name, at, actor))

    @overload
    async def fork(
        self,
        *,
        at: At = None,
        at_message: int | None = None,
        title: str | None = None,
        thread_id: str | None = None,
        kind: None = None,
        memory: MemoryReading | None = None,
        actor: str | None = None,
    ) -> Self: ...
    @overload
    async def fork(
        self,
        *,
        at: At = None,
        at_message: int | None = None,
        title: str | None = None,
        thread_id: str | None = None,
        kind: Literal["local"],
        memory: MemoryReading | None = None,
        actor: str | None = None,
    ) -> LocalThread: ...
    @overload
    async def fork(
        self,
        *,
        at: At = None,
        at_message: int | None = None,
        title: str | None = None,
        thread_id: str | None = None,
        kind: Literal["remote"],
        memory: MemoryReading | None = None,
        actor: str | None = None,
    ) -> RemoteThread: ...
    async def fork(
        self,
        *,
        at: At = None,
        at_message: int | None = None,
        title: str | None = None,
        thread_id: str | None = None,
        kind: ThreadKind | None = None,
        memory: MemoryReading | None = None,
        actor: str | None = None,
    ) -> Thread:
        """A new thread whose past is this one up to a version, by default the newest. It costs one event.

        Without ``title`` it has this one's. It is of this one's kind unless ``kind`` says ``local`` or ``remote``: a
        record of what a service holds can be gone on with anywhere. With ``memory="as-of"`` it reads memory scopes as
        they were at the cut, with what is learned in it; with ``live`` as they are; without, as this one does. Raises
        ThreadExistsError for a ``thread_id`` that is taken, and ServiceCannotForkError where the service that holds the
        thread cannot fork it.
        """
        made = await self._do(
            thread_commands.fork(
                self._core,
                self.id,
                thread_commands.Begun(title, kind, memory=memory),
                at=at,
                at_message=at_message,
                new_id=thread_id,
                actor=actor,
            )
        )
        return self._other(type(self) if kind is None else thread_class(kind), made)

    async def rewind(self, to: At, *, abandon_run: bool = False, actor: str | None = None) -> int:
        """Go on from an earlier version, or from one that was abandoned. Nothing is deleted.

        Returns the version of the event that says so: to rewind to the one before it is the undo. While a run is under
        way it raises RunInProgressError, unless ``abandon_run`` ends the run first, in the same commit. Raises
        ServiceCannotForkError where the service that holds the thread cannot go back.
        """
        left = await self.left_run() if abandon_run else None
        version = await self._do(thread_commands.rewind(self._core, self.id, to, abandon_run=abandon_run, actor=actor))
        if left is not None:
            await self.tell_given_up(left)
        return version

    async def edit(
        self,
        message: HistoryMessage | int,
        new: Message | str,
        *,
        title: str | None = None,
        thread_id: str | None = None,
        actor: str | None = None,
    ) -> Self:
        """A fork from before a message, with something else said there; a string is said in the same role.

        ``message`` is one of the thread's history, or the version of one. Raises ThreadExistsError, and
        ServiceCannotForkError as fork() does.
        """
        editing = thread_commands.edit(self._core, self.id, message, new, title=title, new_id=thread_id, actor=actor)
        return self._other(type(self), await self._do(editing))

    async def suspend(self, *, reason: str | None = None, actor: str | None = None) -> None:
        """Let the thread rest: nothing is appended until it is resumed."""
        await self._turn("on_suspend", Suspend(reason), actor)

    async def resume(self, *, actor: str | None = None) -> None:
        """Let the thread go on."""
        await self._do(thread_commands.change(self._core, self.id, Resume(), actor))
        await self.tell("on_resume", actor=actor)

    async def end(self, *, reason: str | None = None, actor: str | None = None) -> None:
        """Close the conversation. It can still be read, labelled, forked and redacted."""
        await self._turn("on_thread_ended", End(reason), actor)

    async def delete(self, *, reason: str | None = None, actor: str | None = None) -> None:
        """Take the thread away from its readers. Forks of it go on; its events remain for audit."""
        await self._turn("on_thread_deleted", Delete(reason), actor)

    async def redact(
        self, message: HistoryMessage | int, *, reason: str | None = None, actor: str | None = None
    ) -> int:
        """Shred a message: its content is gone from the store, here and in every fork, and the chain still verifies.

        ``message`` is one of the thread's history, or the version of one. Returns the version of the event that says
        so, in the thread that the message is recorded in. Raises NotRedactableError.
        """
        return await self._do(thread_commands.redact(self._core, self.id, message, reason, actor))

    def of(self, thread_id: str) -> Self:
        """A thread of the same kind, store and agent by its id."""
        return self._other(type(self), thread_id, asked=self._asked and thread_id == self.id)

    def _other(self, kind: type[OtherT], thread_id: str, *, asked: bool = True) -> OtherT:
        other = kind(self._core, self._live, thread_id, asked=asked)
        other.agent = self.agent
        other._providers = self.context_providers.copy()  # noqa: SLF001  # a fork goes on with them
        return other

    async def _turn(self, hook: Hook, intent: Intent, actor: str | None) -> None:
        """Tell the context providers what is about to happen, and have it happen."""
        await self.tell(hook, before=intent, actor=actor)
        await self._do(thread_commands.change(self._core, self.id, intent, actor))

    async def _do(self, operation: Operation[T]) -> T:
        try:
            found = await drive(operation)
        finally:
            self._look()
        self._asked = True
        return found

    def _look(self) -> Control:
        """The newest control that this process has read or written: what was seen once is not seen less of later.

        Nothing is seen before it was asked whether the thread may be read.
        """
        known = self._core.known.controls.get(self._core.stream(self.id)) if self._asked else None
        if known is not None and known.version > self._seen.version:
            self._seen = known
        return self._seen


class LocalThread(Thread):
    """A conversation whose history Clew holds."""

    kind = "local"


class RemoteThread(Thread):
    """A conversation whose history a service holds. Clew has a full record of what passed through.

    What asks the service does so with the client of the agent that the thread is bound to, or with ``client``. Without
    either it raises AgentConfigurationError, for a client whose service holds no threads UnsupportedThreadError, and
    ModelError for what the service refuses.
    """

    kind = "remote"

    @property
    def service_thread_id(self) -> str | None:
        """What the service calls the thread, None until it has named it, as far as this process has seen.

        What it was called at another version, or is for other processes, is in ``(await thread.state(at=…))``.
        """
        return self._look().service_thread_id

    async def service_history(self, *, at: At = None, client: ModelClient | None = None) -> list[Message]:
        """The messages that the service holds of the thread at a version, oldest first: none before it has named it.

        They are those that the next request goes on from; what was said in an answer that broke off is not among them.
        """
        service = self._service("service_history", client)
        side = await self._do(remote_threads.side_at(self._core, self.id, at))
        return [] if side.call.reference is None else await service.service_history(side.call.reference)

    async def reconcile(self, *, at: At = None, client: ModelClient | None = None) -> Diff:
        """The difference of the record, on side ``a``, from what the service holds, on side ``b``.

        Both are compared as the service would list them: without authors and metadata, results as text.
        """
        record = await self.history(at=at)
        held = await self.service_history(at=record.version, client=client)
        return await asyncio.to_thread(reconciled, record, held)

    async def delete(
        self,
        *,
        reason: str | None = None,
        actor: str | None = None,
        service: bool = False,
        client: ModelClient | None = None,
    ) -> None:
        """Take the thread away from its readers. Forks of it go on; its events remain for audit.

        With ``service`` everything that the service has called it is deleted there first, and what became of each is in
        the event. Forks that go on from there can then only go on with ``fork(kind="local")``. What the service could
        not delete raises ServiceDeletionError when that is recorded.
        """
        done: tuple[ServiceDeletion, ...] = ()
        if service:
            asked = self._service("delete", client)
            done = await delete_at_service(asked, await self._do(remote_threads.bound_here(self._core, self.id)))
        await self._turn("on_thread_deleted", Delete(reason, done), actor)
        if failed := {each.id: each.failed for each in done if each.failed is not None}:
            raise ServiceDeletionError(self.id, failed)

    def _service(self, asked: str, client: ModelClient | None) -> ServiceThreads:
        if client is None and self.agent is not None:
            client = self.agent.client
        return service_threads(asked, self.id, client)


def thread_class(kind: ThreadKind) -> type[LocalThread | RemoteThread]:
    """What the threads of a kind are."""
    return RemoteThread if kind == "remote" else LocalThread
