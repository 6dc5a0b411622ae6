"""One thread, for threads of control: what is said, and what is done with it."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Literal, Self, overload

from clew.domain.control import Status
from clew.domain.decider import Delete, End, Resume, Suspend
from clew.domain.events import Event, MemoryReading
from clew.domain.history import History, HistoryMessage, StateBuilder, ThreadState
from clew.domain.json_values import Json, JsonObject
from clew.domain.messages import Message
from clew.domain.model_view import ModelView, model_view
from clew.domain.models.client import ThreadKind
from clew.domain.ports import Verdict
from clew.domain.runs.request_building import Request
from clew.domain.views.replay import Step
from clew.service import (
    conversation_export,
    run_requests,
    thread_commands,
    thread_documents,
    thread_queries,
    thread_versions,
)
from clew.service.core import Core
from clew.service.feeds import thread_feed
from clew.service.operations import run
from clew.service.subscription import Subscription
from clew.service.thread_queries import At, ThreadSummary


class Thread:
    """One conversation. It keeps nothing: what it says is what the store has.

    ``id`` is the thread's. What its status does not allow raises ThreadStatusError, and ThreadDeletedError when it is
    deleted. A version that is not there raises UnknownVersionError, UnknownCheckpointError or InvalidTimeError.
    """

    kind: ClassVar[ThreadKind]
    """Who holds the history: ``local`` for Clew, ``remote`` for a service."""

    def __init__(self, core: Core, live: weakref.WeakSet[Subscription], thread_id: str) -> None:
        self._core = core
        self._live = live
        self.id = thread_id

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"

    @property
    def version(self) -> int:
        """The newest version."""
        return run(thread_queries.existing(self._core, self.id)).version

    @property
    def status(self) -> Status:
        """active, suspended, ended or deleted."""
        return run(thread_queries.existing(self._core, self.id)).status

    def summary(self) -> ThreadSummary:
        """What a list says of the thread."""
        return run(thread_queries.summary(self._core, self.id))

    @overload
    def append(
        self,
        messages: Message,
        *,
        actor: str | None = None,
        expected_version: int | None = None,
        idempotency_key: str | None = None,
    ) -> HistoryMessage: ...
    @overload
    def append(
        self,
        messages: Sequence[Message],
        *,
        actor: str | None = None,
        expected_version: int | None = None,
        idempotency_key: str | None = None,
    ) -> list[HistoryMessage]: ...
    def append(
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
        found = run(
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

    def label(self, labels: Mapping[str, Json] | None = None, /, *, actor: str | None = None, **more: Json) -> None:
        """Set labels, or with None remove them. A mapping takes those that are called ``actor``, too.

        The name of a label has 200 characters at the most.
        """
        run(thread_commands.label(self._core, self.id, thread_commands.labels(labels, more), actor))

    def checkpoint(self, name: str, *, at: At = None, actor: str | None = None) -> int:
        """Give a version a name, by default the newest; returns the version. Raises CheckpointExistsError."""
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
        memory: MemoryReading | None = None,
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
        memory: MemoryReading | None = None,
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
        memory: MemoryReading | None = None,
        actor: str | None = None,
    ) -> RemoteThread: ...
    def fork(
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
        made = run(
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
        return self._other(made) if kind is None else self._of_kind(kind, made)

    def rewind(self, to: At, *, abandon_run: bool = False, actor: str | None = None) -> int:
        """Go on from an earlier version, or from one that was abandoned. Nothing is deleted.

        Returns the version of the event that says so: to rewind to the one before it is the undo. While a run is under
        way it raises RunInProgressError, unless ``abandon_run`` ends the run first, in the same commit. Raises
        ServiceCannotForkError where the service that holds the thread cannot go back.
        """
        return run(thread_commands.rewind(self._core, self.id, to, abandon_run=abandon_run, actor=actor))

    def edit(
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
        return self._other(
            run(thread_commands.edit(self._core, self.id, message, new, title=title, new_id=thread_id, actor=actor))
        )

    def suspend(self, *, reason: str | None = None, actor: str | None = None) -> None:
        """Let the thread rest: nothing is appended until it is resumed."""
        run(thread_commands.change(self._core, self.id, Suspend(reason), actor))

    def resume(self, *, actor: str | None = None) -> None:
        """Let the thread go on."""
        run(thread_commands.change(self._core, self.id, Resume(), actor))

    def end(self, *, reason: str | None = None, actor: str | None = None) -> None:
        """Close the conversation. It can still be read, labelled, forked and redacted."""
        run(thread_commands.change(self._core, self.id, End(reason), actor))

    def delete(self, *, reason: str | None = None, actor: str | None = None) -> None:
        """Take the thread away from its readers. Forks of it go on; its events remain for audit."""
        run(thread_commands.change(self._core, self.id, Delete(reason), actor))

    def redact(self, message: HistoryMessage | int, *, reason: str | None = None, actor: str | None = None) -> int:
        """Shred a message: its content is gone from the store, here and in every fork, and the chain still verifies.

        ``message`` is one of the thread's history, or the version of one. Returns the version of the event that says
        so, in the thread that the message is recorded in. Raises NotRedactableError.
        """
        return run(thread_commands.redact(self._core, self.id, message, reason, actor))

    def history(self, *, at: At = None, at_message: int | None = None) -> History:
        """The messages on the path at a version, by default the newest."""
        return run(thread_queries.history(self._core, self.id, at, at_message))

    def view(self, *, at: At = None, at_message: int | None = None) -> ModelView:
        """The messages that a model would be sent: the history, with every call followed by its result."""
        return model_view(self.history(at=at, at_message=at_message))

    def request(self, version: int) -> Request:
        """What the model was asked at a version, rebuilt from the log, byte for byte, with its digest checked.

        ``version`` is that of a model call. Raises UnknownVersionError for any other, and DefinitionMissingError when
        the store does not have the instructions or tool schemas.
        """
        return run(run_requests.request(self._core, self.id, version))

    def markdown(self, *, at: At = None, at_message: int | None = None) -> str:
        """The thread as Markdown, to read: nothing that was said can break out of its place."""
        return run(conversation_export.markdown(self._core, self.id, at, at_message))

    def serialize(self) -> JsonObject:
        """The thread with its whole past as one JSON object, to be kept or sent: ``json.dump`` takes it.

        ``restore_thread`` makes the thread of it again, in any store. It has no instructions and no tool schemas of
        agents, and no secrets: a state of a component that looks like a credential raises CredentialError. Raises
        CorruptEventError for a thread that does not verify.
        """
        return run(thread_documents.serialize(self._core, self.id))

    def state(self, *, at: At = None, at_message: int | None = None) -> ThreadState:
        """What the thread was at a version: status, labels, checkpoints and messages."""
        return run(thread_queries.state(self._core, self.id, at, at_message))

    def events(self, *, at: At = None, at_message: int | None = None, after: int = 0) -> Iterator[Event]:
        """The events of the lineage up to a version, ancestors' included, read a page at a time."""
        upto = run(thread_queries.upto(self._core, self.id, at, at_message))
        while page := run(thread_queries.events(self._core, self.id, after, upto)):
            yield from page
            after = page[-1].version

    def replay(self, *, at: At = None, at_message: int | None = None) -> Iterator[tuple[Event, ThreadState]]:
        """Each event with the state after it."""
        run(thread_queries.readable(self._core, self.id, "replay"))
        states = StateBuilder()
        return ((event, states.add(event)) for event in self.events(at=at, at_message=at_message))

    def step(self, *, at: At = None, at_message: int | None = None, last: int = thread_versions.LAST) -> Step:
        """One step of the replay, by default the newest, with the last messages on the path, so many at the most.

        It is read from near the version and not from the start: for going to and fro in a long thread.
        """
        return run(thread_versions.step(self._core, self.id, at, at_message, last))

    def forks(self) -> list[ThreadSummary]:
        """The threads that were forked from this one."""
        return run(thread_queries.forks(self._core, self.id))

    def subscribe(self, *, after: int = 0) -> Subscription:
        """The events of the lineage from a version on, and then those that come, as they come."""
        return Subscription(self._core, thread_feed(self._core, self.id, after), self._live)

    def verify(self) -> Verdict:
        """Recompute the hash chain of the thread and of its ancestors."""
        return run(thread_queries.verify(self._core, self.id))

    def _other(self, thread_id: str) -> Self:
        return type(self)(self._core, self._live, thread_id)

    def _of_kind(self, kind: ThreadKind, thread_id: str) -> Thread:
        return thread_class(kind)(self._core, self._live, thread_id)


class LocalThread(Thread):
    """A conversation whose history Clew holds."""

    kind = "local"


class RemoteThread(Thread):
    """A conversation whose history a service holds. Clew has a full record of what passed through.

    Only an Engine's threads can ask the service, as they can run.
    """

    kind = "remote"

    @property
    def service_thread_id(self) -> str | None:
        """What the service calls the thread at its newest version, None until it has named it; see state(at=…)."""
        return run(thread_queries.existing(self._core, self.id)).service_thread_id


def thread_class(kind: ThreadKind) -> type[LocalThread | RemoteThread]:
    """What the threads of a kind are."""
    return RemoteThread if kind == "remote" else LocalThread
