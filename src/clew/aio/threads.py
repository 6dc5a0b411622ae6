"""A thread of an Engine: one class with every command and query of a conversation.

clew/sync/threads.py is generated from this file: see tools/sync_twin.py.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, ClassVar, Literal, Self, TypeVar, Unpack, overload

from clew.agents.agent import Agent
from clew.agents.background_runs import BackgroundRun
from clew.agents.followed_runs import FollowedRun, Position
from clew.agents.response import AgentResponse, Approval, approvals, change_standing_approvals
from clew.agents.run_setup import ContinueOptions, Input, RunOptions, check_mode, input_messages
from clew.agents.stopped_runs import stop_run
from clew.agents.stream import AgentStream
from clew.agents.thread_provider_hooks import OrphanedRun, ThreadHooks, notify_abandoned, orphaned_run
from clew.aio.memory import scope_of_thread
from clew.aio.subscription import Subscription
from clew.domain.application_folds import Fold, StateT
from clew.domain.call_pairing import ModelView, model_view
from clew.domain.context.events import Hook
from clew.domain.context.provider import Context, ContextProvider, ThreadProviders
from clew.domain.decider import Checkpoint, Delete, End, RecordEvents, Resume, Start, Suspend
from clew.domain.decider_state import Control
from clew.domain.differences.diff import Diff
from clew.domain.event_types import Status
from clew.domain.events import Event, MemoryReading, ServiceDeletion
from clew.domain.history import History, HistoryMessage, NotSeen, StateBuilder, Step, ThreadState
from clew.domain.json_values import Json, JsonObject, check_flags
from clew.domain.memory.ports import MemoryPort
from clew.domain.messages import Message
from clew.domain.models.client import ModelClient, ServiceThreads, ThreadKind
from clew.domain.ports import Verdict
from clew.domain.records import Record, ThreadRecord
from clew.domain.runs.errors import (
    AgentConfigurationError,
    NoOpenRunError,
    RunInProgressError,
    ServiceDeletionError,
)
from clew.domain.runs.events import AgentIdentity
from clew.domain.runs.ports import RunLog
from clew.domain.runs.remote_threads import reconciled
from clew.domain.runs.request_construction import Request
from clew.domain.runs.standing_approvals import StandingApproval, standing_approvals, without_approvals
from clew.service import (
    application_folds,
    conversation_transfer,
    model_requests,
    redactions,
    remote_threads,
    thread_commands,
    thread_directory,
    thread_documents,
    thread_queries,
    version_comparison,
)
from clew.service.async_effects import drive
from clew.service.core import Core
from clew.service.feeds import thread_feed
from clew.service.redactions import Purged, Redaction
from clew.service.remote_threads import delete_at_service, service_threads
from clew.service.run_log import Beginning, ThreadRuns, branch_of, rewind_of
from clew.service.thread_queries import At, ThreadSummary
from clew.service.version_comparison import Variant

OtherT = TypeVar("OtherT", bound="Thread")


class Thread:
    """One conversation. The object holds none of its data: every call reads or writes the store.

    A call that the thread's status does not allow raises ThreadStatusError, or ThreadDeletedError once it is deleted.
    An ``at`` that does not exist raises UnknownVersionError, UnknownCheckpointError or InvalidTimeError.
    """

    id: str
    """The id of the thread in its store."""

    kind: ClassVar[ThreadKind]
    """Who holds the history: ``local`` is Clew, ``remote`` is a service."""

    agent: Agent[Any, Any] | None = None  # asyncio only
    """The agent that ``run`` uses, or None."""  # asyncio only

    # asyncio only: begin
    runs: RunLog
    """The log of its runs, for Clew's own agents. Applications read runs with ``events()`` and ``approvals()``."""
    # asyncio only: end

    def __init__(self, core: Core, live: weakref.WeakSet[Subscription], thread_id: str) -> None:
        self._core = core
        self._live = live
        self.id = thread_id
        self.runs = ThreadRuns(core, thread_id)  # asyncio only
        self._providers: ThreadProviders | None = None  # asyncio only

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"

    @property
    async def version(self) -> int:
        """The newest version."""
        return (await drive(thread_queries.existing(self._core, self.id))).version

    @property
    async def status(self) -> Status:
        """active, suspended, ended or deleted."""
        return (await drive(thread_queries.existing(self._core, self.id))).status

    @property
    async def open_run(self) -> str | None:
        """The id of the run that is in progress, waits for approvals or has lost its process; None without one."""
        opened = (await drive(thread_queries.existing(self._core, self.id))).run
        return None if opened is None else opened.id

    @overload
    async def append(
        self,
        messages: Message,
        *,
        said_at: datetime | None = None,
        on_behalf_of: str | None = None,
        actor: str | None = None,
        expected_version: int | None = None,
        idempotency_key: str | None = None,
    ) -> HistoryMessage: ...
    @overload
    async def append(
        self,
        messages: Record,
        *,
        said_at: datetime | None = None,
        on_behalf_of: str | None = None,
        actor: str | None = None,
        expected_version: int | None = None,
        idempotency_key: str | None = None,
    ) -> ThreadRecord: ...
    @overload
    async def append(
        self,
        messages: Sequence[Message],
        *,
        said_at: datetime | None = None,
        on_behalf_of: str | None = None,
        actor: str | None = None,
        expected_version: int | None = None,
        idempotency_key: str | None = None,
    ) -> list[HistoryMessage]: ...
    @overload
    async def append(
        self,
        messages: Sequence[Record],
        *,
        said_at: datetime | None = None,
        on_behalf_of: str | None = None,
        actor: str | None = None,
        expected_version: int | None = None,
        idempotency_key: str | None = None,
    ) -> list[ThreadRecord]: ...
    @overload
    async def append(
        self,
        messages: Sequence[Message | Record],
        *,
        said_at: datetime | None = None,
        on_behalf_of: str | None = None,
        actor: str | None = None,
        expected_version: int | None = None,
        idempotency_key: str | None = None,
    ) -> list[HistoryMessage | ThreadRecord]: ...
    async def append(
        self,
        messages: Message | Record | Sequence[Message | Record],
        *,
        said_at: datetime | None = None,
        on_behalf_of: str | None = None,
        actor: str | None = None,
        expected_version: int | None = None,
        idempotency_key: str | None = None,
    ) -> HistoryMessage | ThreadRecord | Sequence[HistoryMessage | ThreadRecord]:
        """Append one or more messages and records in one commit; returns them as the history and ``records()`` do.

        ``said_at`` is when they were said, an aware time, if that is not now; ``on_behalf_of`` names for whom the actor
        appends them. With ``expected_version``, raises ConflictError if the thread has another version; without it, the
        messages come after those of other writers. A repeated ``idempotency_key`` appends nothing and returns the first
        result; with other content it raises IdempotencyKeyReusedError. Raises InvalidContentError for content that
        cannot be stored, InvalidTimeError and InvalidNameError.
        """
        appended = await drive(
            thread_commands.append(
                self._core,
                self.id,
                messages,
                actor=actor,
                expected_version=expected_version,
                idempotency_key=idempotency_key,
                said_at=said_at,
                on_behalf_of=on_behalf_of,
            )
        )
        return appended[0] if isinstance(messages, Message | Record) else appended

    async def label(
        self, labels: Mapping[str, Json] | None = None, /, *, actor: str | None = None, **more: Json
    ) -> None:
        """Set labels; a value of None removes the label. Use a mapping for a label that is called ``actor``.

        The name of a label has at most 200 characters.
        """
        await drive(thread_commands.label(self._core, self.id, thread_commands.labels(labels, more), actor))

    async def checkpoint(self, name: str, *, at: At = None, actor: str | None = None) -> int:
        """Name a version, by default the newest, and return it. Raises CheckpointExistsError."""
        await self._hooks(actor).notify("on_checkpoint", name, before=Checkpoint(name))  # asyncio only
        return await drive(thread_commands.checkpoint(self._core, self.id, name, at, actor))

    @overload
    async def fork(
        self,
        *,
        at: At = None,
        at_message: int | None = None,
        title: str | None = None,
        thread_id: str | None = None,
        kind: None = None,
        labels: Mapping[str, Json] | None = None,
        metadata: JsonObject | None = None,
        memory: MemoryReading | None = None,
        then: Message | Record | Sequence[Message | Record] = (),
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
        labels: Mapping[str, Json] | None = None,
        metadata: JsonObject | None = None,
        memory: MemoryReading | None = None,
        then: Message | Record | Sequence[Message | Record] = (),
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
        labels: Mapping[str, Json] | None = None,
        metadata: JsonObject | None = None,
        memory: MemoryReading | None = None,
        then: Message | Record | Sequence[Message | Record] = (),
        actor: str | None = None,
    ) -> RemoteThread: ...
    async def fork(  # noqa: PLR0913  # every option has its own parameter
        self,
        *,
        at: At = None,
        at_message: int | None = None,
        title: str | None = None,
        thread_id: str | None = None,
        kind: ThreadKind | None = None,
        labels: Mapping[str, Json] | None = None,
        metadata: JsonObject | None = None,
        memory: MemoryReading | None = None,
        then: Message | Record | Sequence[Message | Record] = (),
        actor: str | None = None,
    ) -> Thread:
        """Start a new thread whose past is this one up to a version, by default the newest. It costs one event.

        The fork has this thread's title and metadata unless others are given; ``labels`` are set in addition to this
        thread's, and None removes one. ``then`` are messages and records that the same commit appends to the fork.
        It has this thread's kind unless ``kind`` is ``local`` or ``remote``: a fork of a remote thread can be of either
        kind. With ``memory="as-of"`` the fork reads memory scopes as they were at the cut, plus what it learns itself;
        with ``live`` as they are now; by default like this thread. Raises ThreadExistsError when ``thread_id`` is
        taken, InvalidContentError for content that cannot be stored, and ServiceCannotForkError when the service that
        holds the thread cannot fork it.
        """
        forked = await drive(
            thread_commands.fork(
                self._core,
                self.id,
                thread_commands.ForkStart(title, kind, then, memory, labels, metadata),
                at=at,
                at_message=at_message,
                new_id=thread_id,
                actor=actor,
            )
        )
        return self._other(type(self) if kind is None else thread_class(kind), forked)

    async def rewind(
        self,
        to: At,
        *,
        then: Message | Record | Sequence[Message | Record] = (),
        expected_version: int | None = None,
        abandon_run: bool = False,
        actor: str | None = None,
    ) -> int:
        """Continue from an earlier version, or from one that was abandoned by a rewind. Nothing is deleted.

        ``then`` are messages and records that the same commit appends there. Returns the version of the rewind event;
        to undo the rewind, rewind to the version before it. With ``expected_version``, raises ConflictError if the
        thread has another version. Raises RunInProgressError while a run is open, unless ``abandon_run`` is true: then
        the same commit ends the run. Raises ServiceCannotForkError when the service that holds the thread cannot go
        back, and InvalidContentError for content that cannot be stored.
        """
        check_flags(abandon_run=abandon_run)
        orphaned = await self._orphaned_run() if abandon_run else None  # asyncio only
        rewinding = thread_commands.rewind(
            self._core, self.id, to, then, expected_version=expected_version, abandon_run=abandon_run, actor=actor
        )
        version = await drive(rewinding)
        if orphaned is not None:  # asyncio only
            providers = self._all_providers()
            await notify_abandoned(orphaned, self, providers, self._identity(), reason="asked", actor=actor)
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
        """Fork before a message and put another one in its place; a string keeps the role of the old message.

        ``message`` is a message of the thread's history, or its version. Raises ThreadExistsError, and
        ServiceCannotForkError as fork() does.
        """
        editing = thread_commands.edit(self._core, self.id, message, new, title=title, new_id=thread_id, actor=actor)
        return self._other(type(self), await drive(editing))

    async def suspend(self, *, reason: str | None = None, actor: str | None = None) -> None:
        """Suspend the thread: nothing can be appended until it is resumed."""
        intent = Suspend(reason)
        await self._hooks(actor).notify("on_suspend", before=intent)  # asyncio only
        await drive(thread_commands.change(self._core, self.id, intent, actor))

    async def resume(self, *, actor: str | None = None) -> None:
        """Resume a suspended thread. Raises ThreadStatusError for any other thread."""
        await drive(thread_commands.change(self._core, self.id, Resume(), actor))
        await self._hooks(actor).notify("on_resume")  # asyncio only

    async def end(self, *, reason: str | None = None, actor: str | None = None) -> None:
        """End the conversation. It can still be read, labelled, forked and redacted."""
        intent = End(reason)
        await self._hooks(actor).notify("on_thread_ended", before=intent)  # asyncio only
        await drive(thread_commands.change(self._core, self.id, intent, actor))

    async def delete(self, *, reason: str | None = None, actor: str | None = None) -> None:
        """Delete the thread: it can no longer be read. Its forks continue, and its events remain for audit."""
        intent = Delete(reason)
        await self._hooks(actor).notify("on_thread_deleted", before=intent)  # asyncio only
        await drive(thread_commands.change(self._core, self.id, intent, actor))

    async def redact(
        self, message: HistoryMessage | ThreadRecord | int, *, reason: str | None = None, actor: str | None = None
    ) -> Redaction:
        """Destroy the content of a message or of a record, here and in every fork. The hash chain still verifies.

        ``message`` is a message of the thread's history, a record, or the version of one. The later errors in the
        thread that recorded it are redacted, too: a service may have quoted it. ``message`` can also be the version of
        another event. Then the texts of that event are destroyed: the message of an error, the reason of an approval or
        a status, what a provider gave or stored, the summary of a reduction, a title, labels, the name of a checkpoint.
        What a call asked of an agent is in another thread, and stays there: redact its messages, or purge this thread.
        The result says if another program still keeps the content in the files. Raises NotRedactableError for an event
        that holds no such text.
        """
        return await drive(redactions.redact(self._core, self.id, message, reason, actor))

    async def purge(self, *, reason: str | None = None, forks: bool = False, actor: str | None = None) -> Purged:
        """Destroy every text of the thread in one commit, and delete it. The chain, and a stub of each event, stay.

        This removes messages, records, errors, states and contributions of context providers, title, values of labels,
        metadata, names of checkpoints, reasons, drafts and idempotency keys. The time, actor, run, role and type of
        each event and the names of labels stay. A thread with forks is refused, unless ``forks`` is true. Then the
        forks continue, and show as redacted what they have inherited from this thread. What this thread has inherited
        itself belongs to its parent, and stays there. The threads on which its own calls ran agents, and the channels
        that a chat began, are purged before it, each in one commit, with the same ``reason`` and ``forks``: if the
        process dies in between, purge it again.
        Facts that were learned stay in their memory. Definitions of agents stay, and so does a copy at a service: see
        ``delete(service=True)``. ``reason`` stays for ever: it must not contain personal data.
        ``start_thread(thread_id=…, replace_deleted=True)`` can use the id again. Raises ThreadHasForksError, and
        NotRedactableError for a thread that is already purged.
        """
        check_flags(forks=forks)
        if not await drive(redactions.check_purge(self._core, self.id, forks=forks)):  # asyncio only
            await self._hooks(actor).notify("on_thread_deleted", before=Delete())  # asyncio only
        return await drive(redactions.purge(self._core, self.id, reason, actor, forks=forks))

    async def summary(self) -> ThreadSummary:
        """The thread as it appears in a list."""
        return await drive(thread_queries.summary(self._core, self.id))

    async def history(
        self,
        *,
        at: At = None,
        at_message: int | None = None,
        last: int | None = None,
        before: HistoryMessage | int | None = None,
        after: HistoryMessage | int | None = None,
    ) -> History:
        """The messages on the path at a version, by default the newest; or only a part of them.

        ``last`` is the largest number of messages to return: the newest ones. ``before`` and ``after`` are messages of
        the history, or versions, which the part does not contain. Only the events of the part are read, however long
        the thread is. For the previous page, give the first message of a page as ``before``: it continues on the path
        of that message, even if the thread was rewound in between.
        """
        reading = thread_queries.history(self._core, self.id, at, at_message, last=last, before=before, after=after)
        return await drive(reading)

    async def view(self, *, at: At = None, at_message: int | None = None) -> ModelView:
        """The messages as a model would get them: the history, with a result after every call."""
        return model_view(await self.history(at=at, at_message=at_message))

    async def request(self, version: int) -> Request:
        """The request that a model call sent, rebuilt from the log byte for byte and checked against its digest.

        ``version`` is that of a model call; any other raises UnknownVersionError. Raises DefinitionMissingError when
        the store lacks the instructions or tool schemas.
        """
        return await drive(model_requests.request(self._core, self.id, version))

    async def markdown(self, *, at: At = None, at_message: int | None = None) -> str:
        """The thread as Markdown. Content is escaped, so that it cannot change the structure of the page."""
        return await drive(conversation_transfer.markdown(self._core, self.id, at, at_message))

    async def serialize(self) -> JsonObject:
        """The thread with its whole past as one JSON object; ``json.dump`` accepts it.

        ``restore_thread`` restores the thread from it, in any store. It contains no instructions and no tool schemas of
        agents, and no secrets: a component's state that looks like a credential raises CredentialError. Raises
        CorruptEventError for a thread that does not verify.
        """
        return await drive(thread_documents.serialize(self._core, self.id))

    async def state(self, *, at: At = None, at_message: int | None = None) -> ThreadState:
        """The thread at a version: status, labels, checkpoints and messages."""
        return await drive(thread_queries.state(self._core, self.id, at, at_message))

    async def records(
        self, *types: str, key: str | None = None, after: int = 0, last: int | None = None, at: At = None
    ) -> list[ThreadRecord]:
        """The records on the path at a version, by default the newest, oldest first. Redacted ones have no content.

        ``types`` and ``key`` select records, ``after`` leaves out those up to a version, and ``last`` is the largest
        number of records: the newest ones. To read backwards in pages: ``records(last=50, at=first.version - 1)``.
        """
        return await drive(thread_queries.records(self._core, self.id, types, key=key, after=after, last=last, at=at))

    async def fold(self, fold: Fold[StateT], *, at: At = None, at_message: int | None = None) -> StateT:
        """The state of an application's fold at a version, by default the newest: of all events on the path.

        The states that were folded before are cached, and the fold continues from the nearest one. Do not change the
        state: later folds continue from it. Raises InvalidContentError for anything but a Fold, and what its ``evolve``
        raises.
        """
        return await drive(application_folds.fold(self._core, self.id, fold, at, at_message))

    async def events(
        self,
        *,
        at: At = None,
        at_message: int | None = None,
        after: int = 0,
        types: Collection[str] | None = None,
    ) -> AsyncIterator[Event]:
        """The events of the lineage up to a version, including those of ancestors, read a page at a time.

        With ``types`` only events of these types, such as ``{"message-redacted"}``.
        """
        wanted = thread_queries.checked_types(types)
        upto = await drive(thread_queries.upto(self._core, self.id, at, at_message))
        reached = after
        while True:
            after = reached
            page, reached = await drive(thread_queries.events(self._core, self.id, after, upto, wanted))
            for each in page:
                yield each
            if reached == after:
                return

    async def replay(self, *, at: At = None, at_message: int | None = None) -> AsyncIterator[tuple[Event, ThreadState]]:
        """Each event, with the state of the thread after it."""
        await drive(thread_queries.readable(self._core, self.id, "replay"))
        states = StateBuilder()
        async for each in self.events(at=at, at_message=at_message):
            yield each, states.add(each)

    async def step(self, *, at: At = None, at_message: int | None = None, last: int = version_comparison.LAST) -> Step:
        """One step of the replay, by default the newest, with at most ``last`` messages of the path.

        Its cost does not depend on the length of the thread: use it to move back and forth in a long one.
        """
        return await drive(version_comparison.step(self._core, self.id, at, at_message, last))

    async def forks(self) -> list[ThreadSummary]:
        """The direct forks of the thread, without those of a purged thread that had its id before."""
        return await drive(thread_directory.forks(self._core, self.id))

    async def variants(self, message: HistoryMessage | int) -> list[Variant]:
        """The messages that stand in the place of a message, in all branches: it and its edited or new versions.

        All of them follow the same message: in this thread, in its tree of forks, or where a rewind abandoned them.
        They are in the order in which they were recorded. ``message`` is a message of the thread's history, or its
        version. To continue with one, rewind its thread to its ``newest`` version, or fork there. The call reads all
        rewinds of the tree after that place. Raises NotRedactableError for anything but a message, UnknownVersionError
        for one of a purged thread that had the id.
        """
        return await drive(version_comparison.variants(self._core, self.id, message))

    def subscribe(self, *, after: int = 0) -> Subscription:
        """The events of the lineage after a version, and then new ones as they arrive."""
        return Subscription(self._core, thread_feed(self._core, self.id, after), self._live)

    async def verify(self) -> Verdict:
        """Recompute the hash chain of the thread and of its ancestors, and check each event against those before it."""
        return await drive(thread_queries.verify(self._core, self.id))

    def _other(self, kind: type[OtherT], thread_id: str) -> OtherT:
        """Another thread of the same store, with the same agent and context providers."""
        other = kind(self._core, self._live, thread_id)
        other.agent = self.agent  # asyncio only
        other._providers = self.context_providers.copy()  # asyncio only  # noqa: SLF001  # a fork keeps them
        return other

    # asyncio only: begin
    @overload
    def run(
        self, input: Input = None, *, stream: Literal[False] = False, **options: Unpack[RunOptions]
    ) -> Coroutine[Any, Any, AgentResponse[Self]]: ...
    @overload
    def run(
        self, input: Input = None, *, stream: Literal[True], **options: Unpack[RunOptions]
    ) -> AgentStream[Self]: ...
    @overload
    def run(
        self, input: Input = None, *, background: Literal[True], **options: Unpack[RunOptions]
    ) -> Coroutine[Any, Any, BackgroundRun[Self]]: ...
    def run(
        self,
        input: Input = None,
        *,
        stream: bool = False,
        background: bool = False,
        **options: Unpack[RunOptions],
    ) -> Coroutine[Any, Any, AgentResponse[Self]] | AgentStream[Self] | Coroutine[Any, Any, BackgroundRun[Self]]:
        """Run the agent that the thread is bound to: see Agent.run. Raises AgentConfigurationError."""
        on_thread: RunOptions = {"thread": self, **options}
        agent = self._bound_agent("run")
        check_mode(on_thread, stream=stream, background=background)
        if background:
            return agent.run(input, background=True, **on_thread)
        return agent.run(input, stream=True, **on_thread) if stream else agent.run(input, **on_thread)

    @overload
    def continue_run(
        self, *, stream: Literal[False] = False, **options: Unpack[ContinueOptions]
    ) -> Coroutine[Any, Any, AgentResponse[Self]]: ...
    @overload
    def continue_run(self, *, stream: Literal[True], **options: Unpack[ContinueOptions]) -> AgentStream[Self]: ...
    @overload
    def continue_run(
        self, *, background: Literal[True], **options: Unpack[ContinueOptions]
    ) -> Coroutine[Any, Any, BackgroundRun[Self]]: ...
    def continue_run(
        self, *, stream: bool = False, background: bool = False, **options: Unpack[ContinueOptions]
    ) -> Coroutine[Any, Any, AgentResponse[Self]] | AgentStream[Self] | Coroutine[Any, Any, BackgroundRun[Self]]:
        """Continue the thread's open run: see Agent.continue_run. Raises AgentConfigurationError."""
        agent = self._bound_agent("continue_run")
        if background:
            check_mode({}, stream=stream, background=True)
            return agent.continue_run(self, background=True, **options)
        return agent.continue_run(self, stream=True, **options) if stream else agent.continue_run(self, **options)

    def follow(self, run_id: str | None = None, *, after: str = "", continue_run: bool = False) -> FollowedRun[Self]:
        """The updates of a run, from its beginning until it ends or waits for approvals, in any process.

        Without an id it is the newest run. Text comes as it streams: the process of the run writes it four times a
        second. ``after`` is the ``position`` of an update: it continues there. A run continues whether or not somebody
        follows it. Raises UnknownRunError, and RunNotCompletedError for a run that failed, was
        abandoned or is not executed by any process. ``await`` raises the first one before anything is read.
        With ``continue_run``, the agent that the thread is bound to continues a run that no process executes.
        """
        check_flags(continue_run=continue_run)
        agent = self._bound_agent("follow") if continue_run else None

        async def continue_lost() -> None:
            if agent is not None:
                with suppress(NoOpenRunError, RunInProgressError):  # it is over, or another caller continues it
                    await agent.continue_run(self, background=True)

        position = Position.parsed(after) if after else Position()
        return FollowedRun(self, run_id, position, None if agent is None else continue_lost)

    async def stop_run(self, run_id: str | None = None, *, actor: str | None = None) -> bool:
        """Stop the open run, or only the one with this id; returns whether it was open. In any process.

        The part of the answer that has arrived is kept. A run that waits for approvals is abandoned. Another process
        that executes the run notices it when it next writes: while text streams, within a quarter of a second.
        """
        return await stop_run(self, run_id, self._all_providers(), self._identity(), actor)

    async def approvals(self) -> list[Approval]:
        """The function calls that wait for an approval, requested by any process."""
        return await approvals(self.runs)

    async def standing_approvals(self) -> list[StandingApproval]:
        """The tools whose calls need no further approval in this thread, given by ``approval.approve(always=True)``."""
        return [*standing_approvals((await self.runs.history(NotSeen())).context).values()]

    async def revoke_standing_approval(self, tool: str, *, actor: str | None = None) -> bool:
        """Let later calls of the tools with this name wait for an approval again; returns whether one was given.

        A call that has begun continues.
        """
        revoked = False

        def change(approvals: Mapping[str, StandingApproval]) -> list[RecordEvents]:
            nonlocal revoked
            rest = without_approvals(approvals, tool)
            revoked = rest is not None
            return [] if rest is None else [RecordEvents((rest,))]

        await change_standing_approvals(self.runs, change, actor)
        return revoked

    @property
    def context_providers(self) -> ThreadProviders:
        """The context providers of every run on the thread, by any agent; ``add()`` attaches more.

        They are code, so the log does not have them: this object and the forks made from it do.
        """
        if self._providers is None:
            self._providers = ThreadProviders()
        return self._providers

    async def context(self, input: Input = None, *, actor: str | None = None) -> Context:
        """The providers' context for an application that calls a model itself with this new input.

        Asks the providers of the thread and those of the agent that it is bound to. Their context and states are
        recorded. Raises ContextProviderError.
        """
        return await self._hooks(actor).context(input_messages("context", input))

    # The methods that agents use: see clew.domain.runs.ports.ThreadPort.

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
        """A memory scope as the thread reads it: for context providers. Raises ScopeError."""
        return scope_of_thread(
            self._core,
            name,
            thread_id=self.id,
            run_id=run_id,
            actor=actor,
            on_behalf_of=on_behalf_of,
            provider=provider,
            reads_only=reads_only,
        )

    async def notify(self, hook: Hook, *arguments: object, actor: str | None = None) -> None:
        """Notify the context providers of what happens to the thread: for agents."""
        await self._hooks(actor).notify(hook, *arguments)

    def unstarted(self, kind: ThreadKind, thread_id: str) -> LocalThread | RemoteThread:
        """A thread of an inner agent, which starts with its first run: for agents."""
        return unstarted_thread(self._core.with_linked(thread_id), self._live, kind, thread_id)

    async def branch(self, at: At = None, thread_id: str | None = None) -> Self:
        """A fork at a version. The fork starts with its first run: for agents."""
        beginning = await drive(branch_of(self._core, self.id, at))
        branch = self._other(type(self), thread_id or self._core.thread_id())
        branch.runs = ThreadRuns(self._core, branch.id, beginning)
        return branch

    async def rewound(self, to: At) -> Self:
        """The same thread. The first run on it rewinds it to a version, in its first commit: for agents."""
        beginning = await drive(rewind_of(self._core, self.id, to))
        rewound = self._same()
        rewound.runs = ThreadRuns(self._core, self.id, beginning)
        return rewound

    def bound_to(self, agent: Agent[Any, Any] | None) -> Self:
        """The same thread, bound to an agent: ``run()`` and ``continue_run()`` run that agent."""
        if self.agent is agent:
            return self
        bound = self._same()
        bound.agent = agent
        return bound

    def _same(self) -> Self:
        """Another object of the same thread, with the same context providers."""
        same = self._other(type(self), self.id)
        same._providers = self.context_providers  # noqa: SLF001  # it is the same thread
        return same

    def _bound_agent(self, operation: str) -> Agent[Any, Any]:
        if self.agent is None:
            raise AgentConfigurationError(
                f"{operation}: thread {self.id!r} is not bound to an agent. Use agent.run(…, thread=thread), or get "
                "the thread from the agent: agent.thread(id)."
            )
        return self.agent

    async def _orphaned_run(self) -> OrphanedRun | None:
        """The open run that no process executes; None without one, or without a provider to notify of its end."""
        return await orphaned_run(self) if self._all_providers() else None

    def _all_providers(self) -> list[ContextProvider]:
        return [*self._own_providers(), *self.context_providers]

    def _own_providers(self) -> Sequence[ContextProvider]:
        return () if self.agent is None else self.agent.context_providers

    def _identity(self) -> AgentIdentity | None:
        return None if self.agent is None else self.agent.identity

    def _hooks(self, actor: str | None) -> ThreadHooks:
        return ThreadHooks(self, self._own_providers(), self._identity(), actor)

    # asyncio only: end


class LocalThread(Thread):
    """A conversation whose history Clew holds."""

    kind = "local"


class RemoteThread(Thread):
    """A conversation whose history a service holds. Clew has a full record of what was sent and received.

    Calls to the service use ``client``, by default that of the agent that the thread is bound to. Without either they
    raise AgentConfigurationError. They raise UnsupportedThreadError if the client's service holds no threads, and
    ModelError if the service refuses.
    """

    kind = "remote"

    @property
    async def service_thread_id(self) -> str | None:
        """The service's id of the thread at the newest version, None before the service gave it one.

        ``(await thread.state(at=…)).service_thread_id`` is that of another version.
        """
        return (await drive(thread_queries.existing(self._core, self.id))).service_thread_id

    # asyncio only: begin
    async def service_history(self, *, at: At = None, client: ModelClient | None = None) -> list[Message]:
        """The messages that the service holds of the thread at a version, oldest first; none before it gives an id.

        The next request continues from them. A partial answer is not among them.
        """
        service = self._service("service_history", client)
        state = await drive(remote_threads.service_state_at(self._core, self.id, at))
        return [] if state.call.reference is None else await service.service_history(state.call.reference)

    async def reconcile(self, *, at: At = None, client: ModelClient | None = None) -> Diff:
        """The differences between the record, on side ``a``, and what the service holds, on side ``b``.

        Both are compared as the service would list them: without authors and metadata, with results as text.
        """
        wire = self._service("service_history", client).wire
        record = await self.history(at=at)
        at_service = await self.service_history(at=record.version, client=client)
        return await asyncio.to_thread(reconciled, record, at_service, wire)

    async def delete(
        self,
        *,
        reason: str | None = None,
        actor: str | None = None,
        service: bool = False,
        client: ModelClient | None = None,
    ) -> None:
        """Delete the thread: it can no longer be read. Its forks continue, and its events remain for audit.

        With ``service`` the thread is first deleted at the service, under every id that the service gave it; the event
        records the outcome for each id. An earlier fork that continues from such an id can then be continued only
        through its own ``fork(kind="local")``. If the service could not delete some of them, ServiceDeletionError is
        raised after the outcomes are recorded.
        """
        check_flags(service=service)
        deletions: tuple[ServiceDeletion, ...] = ()
        if service:
            service_client = self._service("delete", client)
            deletions = await delete_at_service(
                service_client, await drive(remote_threads.own_references(self._core, self.id))
            )
        intent = Delete(reason, deletions)
        await self._hooks(actor).notify("on_thread_deleted", before=intent)
        await drive(thread_commands.change(self._core, self.id, intent, actor))
        if failed := {each.id: each.failed for each in deletions if each.failed is not None}:
            raise ServiceDeletionError(self.id, failed)

    def _service(self, operation: str, client: ModelClient | None) -> ServiceThreads:
        if client is None and self.agent is not None:
            client = self.agent.client
        return service_threads(operation, self.id, client)

    # asyncio only: end


def thread_class(kind: ThreadKind) -> type[LocalThread | RemoteThread]:
    """The class of the threads of a kind."""
    return RemoteThread if kind == "remote" else LocalThread


# asyncio only: begin
def unstarted_thread(
    core: Core,
    live: weakref.WeakSet[Subscription],
    kind: ThreadKind,
    thread_id: str | None = None,
    labels: JsonObject | None = None,
) -> LocalThread | RemoteThread:
    """A thread that does not exist yet, with that id or a new one, and these labels. It starts with its first run."""
    thread = thread_class(kind)(core, live, thread_id or core.thread_id())
    thread.runs = ThreadRuns(core, thread.id, Beginning(Start(kind=kind, labels=labels or {}), Control()))
    return thread


# asyncio only: end
