# Generated from src/clew/aio/threads.py by `make generate`. Do not edit it: edit the source.
"""A thread of Conversations: one class with every command and query of a conversation."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import ClassVar, Literal, Self, TypeVar, overload

from clew.domain.application_folds import Fold, StateT
from clew.domain.call_pairing import ModelView, model_view
from clew.domain.decider import Delete, End, Resume, Suspend
from clew.domain.event_types import Status
from clew.domain.events import Event, MemoryReading
from clew.domain.history import History, HistoryMessage, StateBuilder, Step, ThreadState
from clew.domain.json_values import Json, JsonObject, check_flags
from clew.domain.messages import Message
from clew.domain.models.client import ThreadKind
from clew.domain.ports import Verdict
from clew.domain.records import Record, ThreadRecord
from clew.domain.runs.request_construction import Request
from clew.service import (
    application_folds,
    conversation_transfer,
    model_requests,
    redactions,
    thread_commands,
    thread_directory,
    thread_documents,
    thread_queries,
    version_comparison,
)
from clew.service.core import Core
from clew.service.effects import run
from clew.service.feeds import thread_feed
from clew.service.redactions import Purged, Redaction
from clew.service.thread_queries import At, ThreadSummary
from clew.service.version_comparison import Variant
from clew.sync.subscription import Subscription

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

    def __init__(self, core: Core, live: weakref.WeakSet[Subscription], thread_id: str) -> None:
        self._core = core
        self._live = live
        self.id = thread_id

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"

    @property
    def version(self) -> int:
        """The newest version."""
        return (run(thread_queries.existing(self._core, self.id))).version

    @property
    def status(self) -> Status:
        """active, suspended, ended or deleted."""
        return (run(thread_queries.existing(self._core, self.id))).status

    @property
    def open_run(self) -> str | None:
        """The id of the run that is in progress, waits for approvals or has lost its process; None without one."""
        opened = (run(thread_queries.existing(self._core, self.id))).run
        return None if opened is None else opened.id

    @overload
    def append(
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
    def append(
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
    def append(
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
    def append(
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
    def append(
        self,
        messages: Sequence[Message | Record],
        *,
        said_at: datetime | None = None,
        on_behalf_of: str | None = None,
        actor: str | None = None,
        expected_version: int | None = None,
        idempotency_key: str | None = None,
    ) -> list[HistoryMessage | ThreadRecord]: ...
    def append(
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
        appended = run(
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

    def label(self, labels: Mapping[str, Json] | None = None, /, *, actor: str | None = None, **more: Json) -> None:
        """Set labels; a value of None removes the label. Use a mapping for a label that is called ``actor``.

        The name of a label has at most 200 characters.
        """
        run(thread_commands.label(self._core, self.id, thread_commands.labels(labels, more), actor))

    def checkpoint(self, name: str, *, at: At = None, actor: str | None = None) -> int:
        """Name a version, by default the newest, and return it. Raises CheckpointExistsError."""
        return run(thread_commands.checkpoint(self._core, self.id, name, at, actor))

    @overload
    def fork(
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
    def fork(
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
    def fork(
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
    def fork(  # noqa: PLR0913  # every option has its own parameter
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
        forked = run(
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

    def rewind(
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
        rewinding = thread_commands.rewind(
            self._core, self.id, to, then, expected_version=expected_version, abandon_run=abandon_run, actor=actor
        )
        return run(rewinding)

    def edit(
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
        return self._other(type(self), run(editing))

    def suspend(self, *, reason: str | None = None, actor: str | None = None) -> None:
        """Suspend the thread: nothing can be appended until it is resumed."""
        intent = Suspend(reason)
        run(thread_commands.change(self._core, self.id, intent, actor))

    def resume(self, *, actor: str | None = None) -> None:
        """Resume a suspended thread. Raises ThreadStatusError for any other thread."""
        run(thread_commands.change(self._core, self.id, Resume(), actor))

    def end(self, *, reason: str | None = None, actor: str | None = None) -> None:
        """End the conversation. It can still be read, labelled, forked and redacted."""
        intent = End(reason)
        run(thread_commands.change(self._core, self.id, intent, actor))

    def delete(self, *, reason: str | None = None, actor: str | None = None) -> None:
        """Delete the thread: it can no longer be read. Its forks continue, and its events remain for audit."""
        intent = Delete(reason)
        run(thread_commands.change(self._core, self.id, intent, actor))

    def redact(
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
        return run(redactions.redact(self._core, self.id, message, reason, actor))

    def purge(self, *, reason: str | None = None, forks: bool = False, actor: str | None = None) -> Purged:
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
        return run(redactions.purge(self._core, self.id, reason, actor, forks=forks))

    def summary(self) -> ThreadSummary:
        """The thread as it appears in a list."""
        return run(thread_queries.summary(self._core, self.id))

    def history(
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
        return run(reading)

    def view(self, *, at: At = None, at_message: int | None = None) -> ModelView:
        """The messages as a model would get them: the history, with a result after every call."""
        return model_view(self.history(at=at, at_message=at_message))

    def request(self, version: int) -> Request:
        """The request that a model call sent, rebuilt from the log byte for byte and checked against its digest.

        ``version`` is that of a model call; any other raises UnknownVersionError. Raises DefinitionMissingError when
        the store lacks the instructions or tool schemas.
        """
        return run(model_requests.request(self._core, self.id, version))

    def markdown(self, *, at: At = None, at_message: int | None = None) -> str:
        """The thread as Markdown. Content is escaped, so that it cannot change the structure of the page."""
        return run(conversation_transfer.markdown(self._core, self.id, at, at_message))

    def serialize(self) -> JsonObject:
        """The thread with its whole past as one JSON object; ``json.dump`` accepts it.

        ``restore_thread`` restores the thread from it, in any store. It contains no instructions and no tool schemas of
        agents, and no secrets: a component's state that looks like a credential raises CredentialError. Raises
        CorruptEventError for a thread that does not verify.
        """
        return run(thread_documents.serialize(self._core, self.id))

    def state(self, *, at: At = None, at_message: int | None = None) -> ThreadState:
        """The thread at a version: status, labels, checkpoints and messages."""
        return run(thread_queries.state(self._core, self.id, at, at_message))

    def records(
        self, *types: str, key: str | None = None, after: int = 0, last: int | None = None, at: At = None
    ) -> list[ThreadRecord]:
        """The records on the path at a version, by default the newest, oldest first. Redacted ones have no content.

        ``types`` and ``key`` select records, ``after`` leaves out those up to a version, and ``last`` is the largest
        number of records: the newest ones. To read backwards in pages: ``records(last=50, at=first.version - 1)``.
        """
        return run(thread_queries.records(self._core, self.id, types, key=key, after=after, last=last, at=at))

    def fold(self, fold: Fold[StateT], *, at: At = None, at_message: int | None = None) -> StateT:
        """The state of an application's fold at a version, by default the newest: of all events on the path.

        The states that were folded before are cached, and the fold continues from the nearest one. Do not change the
        state: later folds continue from it. Raises InvalidContentError for anything but a Fold, and what its ``evolve``
        raises.
        """
        return run(application_folds.fold(self._core, self.id, fold, at, at_message))

    def events(
        self,
        *,
        at: At = None,
        at_message: int | None = None,
        after: int = 0,
        types: Collection[str] | None = None,
    ) -> Iterator[Event]:
        """The events of the lineage up to a version, including those of ancestors, read a page at a time.

        With ``types`` only events of these types, such as ``{"message-redacted"}``.
        """
        wanted = thread_queries.checked_types(types)
        upto = run(thread_queries.upto(self._core, self.id, at, at_message))
        reached = after
        while True:
            after = reached
            page, reached = run(thread_queries.events(self._core, self.id, after, upto, wanted))
            yield from page
            if reached == after:
                return

    def replay(self, *, at: At = None, at_message: int | None = None) -> Iterator[tuple[Event, ThreadState]]:
        """Each event, with the state of the thread after it."""
        run(thread_queries.readable(self._core, self.id, "replay"))
        states = StateBuilder()
        for each in self.events(at=at, at_message=at_message):
            yield each, states.add(each)

    def step(self, *, at: At = None, at_message: int | None = None, last: int = version_comparison.LAST) -> Step:
        """One step of the replay, by default the newest, with at most ``last`` messages of the path.

        Its cost does not depend on the length of the thread: use it to move back and forth in a long one.
        """
        return run(version_comparison.step(self._core, self.id, at, at_message, last))

    def forks(self) -> list[ThreadSummary]:
        """The direct forks of the thread, without those of a purged thread that had its id before."""
        return run(thread_directory.forks(self._core, self.id))

    def variants(self, message: HistoryMessage | int) -> list[Variant]:
        """The messages that stand in the place of a message, in all branches: it and its edited or new versions.

        All of them follow the same message: in this thread, in its tree of forks, or where a rewind abandoned them.
        They are in the order in which they were recorded. ``message`` is a message of the thread's history, or its
        version. To continue with one, rewind its thread to its ``newest`` version, or fork there. The call reads all
        rewinds of the tree after that place. Raises NotRedactableError for anything but a message, UnknownVersionError
        for one of a purged thread that had the id.
        """
        return run(version_comparison.variants(self._core, self.id, message))

    def subscribe(self, *, after: int = 0) -> Subscription:
        """The events of the lineage after a version, and then new ones as they arrive."""
        return Subscription(self._core, thread_feed(self._core, self.id, after), self._live)

    def verify(self) -> Verdict:
        """Recompute the hash chain of the thread and of its ancestors, and check each event against those before it."""
        return run(thread_queries.verify(self._core, self.id))

    def _other(self, kind: type[OtherT], thread_id: str) -> OtherT:
        """Another thread of the same store, with the same agent and context providers."""
        return kind(self._core, self._live, thread_id)


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
    def service_thread_id(self) -> str | None:
        """The service's id of the thread at the newest version, None before the service gave it one.

        ``(thread.state(at=…)).service_thread_id`` is that of another version.
        """
        return (run(thread_queries.existing(self._core, self.id))).service_thread_id


def thread_class(kind: ThreadKind) -> type[LocalThread | RemoteThread]:
    """The class of the threads of a kind."""
    return RemoteThread if kind == "remote" else LocalThread
