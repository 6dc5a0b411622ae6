"""The service for threads of control: threads, forks, checkpoints, rewinds and histories. Synchronous."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self, TypeVar

from clew.domain.authorization import Authorize
from clew.domain.control import Status
from clew.domain.decider import Start
from clew.domain.differences.diff import Diff
from clew.domain.formats.conversation_import import Failure, ImportReport, Item
from clew.domain.formats.event_import import EventsReport
from clew.domain.json_values import Json, JsonObject
from clew.domain.messages import Message
from clew.domain.models.client import ThreadKind
from clew.domain.ports import Verdict
from clew.domain.projection import Projection
from clew.domain.runs.ports import OnExisting
from clew.domain.views.fork_tree import Branch
from clew.infrastructure import clock
from clew.infrastructure.conversation_files import read_conversations
from clew.service import (
    audit_trail,
    conversation_export,
    conversation_import,
    event_transfer,
    message_search,
    thread_commands,
    thread_directory,
    thread_documents,
    thread_queries,
    thread_versions,
    usage_queries,
)
from clew.service.audit_trail import AuditEntry
from clew.service.core import Core, open_core
from clew.service.feeds import store_feed
from clew.service.message_search import Hit
from clew.service.operations import run
from clew.service.pages import Pages
from clew.service.subscription import Subscription
from clew.service.thread_directory import Order
from clew.service.thread_queries import At, ThreadSummary
from clew.service.usage_queries import By, Usage
from clew.sync.memory import HasMemory
from clew.sync.read_models import HasReadModels
from clew.sync.threads import LocalThread, RemoteThread, thread_class

T = TypeVar("T")


class Conversations(HasMemory, HasReadModels):
    """All threads of one tenant in one store. Use it from as many threads as you like; close it when done."""

    def __init__(self, core: Core, live: weakref.WeakSet[Subscription] | None = None) -> None:
        self._core = core
        self._live: weakref.WeakSet[Subscription] = weakref.WeakSet() if live is None else live

    @classmethod
    def open(
        cls,
        url: str = "sqlite:///clew.db",
        *,
        tenant: str = "default",
        create: bool = True,
        projections: Sequence[Projection] | None = None,
        embedded: bool = True,
        authorize: Authorize | None = None,
        now: Callable[[], int] = clock.now,
    ) -> Self:
        """Open a store by its URL.

        ``sqlite:///file.db`` (relative), ``sqlite:////file.db`` (absolute), ``memory:``, or
        ``postgresql://user@host/database``; ``postgresql+shards://…`` names a directory that says
        on which of several servers the tenant is. Without ``create`` a database that is not there is a
        StoreUnavailableError, tables that are not there a StoreSchemaError, and neither is made. ``projections`` are
        the read models, by default those that are shipped; they are filled here, unless ``embedded`` is false: then by
        ``clew project run``. ``authorize(actor, action, thread)`` says what the actor of ``acting_as`` may read;
        what it refuses is left out, or raises NotAuthorizedError where it was named. ``now`` gives microseconds since
        1970 (UTC). Raises StoreUrlError, StoreSchemaError, StoreUnavailableError,
        InvalidProjectionError, InvalidAuthorizeError or, for the tenant, InvalidNameError.
        """
        core = open_core(
            url,
            tenant=tenant,
            create=create,
            projections=projections,
            embedded=embedded,
            authorize=authorize,
            now=now,
        )
        return cls(core)

    def acting_as(self, actor: str | None) -> Conversations:
        """The same service with this actor on every call: who writes, and who reads where ``authorize`` is asked."""
        return Conversations(self._core.acting_as(actor), self._live)

    def start_thread(
        self,
        title: str | None = None,
        *,
        thread_id: str | None = None,
        labels: JsonObject | None = None,
        metadata: JsonObject | None = None,
        messages: Sequence[Message] = (),
        actor: str | None = None,
    ) -> LocalThread:
        """Begin a thread, with its first messages if there are any, in one commit. Raises ThreadExistsError."""
        intent = Start(title, labels or {}, metadata or {}, None, tuple(messages))
        return LocalThread(self._core, self._live, run(thread_commands.start(self._core, thread_id, intent, actor)))

    def open_thread(self, thread_id: str, *, actor: str | None = None) -> LocalThread | RemoteThread:
        """The thread of that id, begun if it is not there."""
        control = run(thread_commands.open_or_start(self._core, thread_id, actor))
        return self._thread(thread_id, control.kind)

    def thread(self, thread_id: str) -> LocalThread | RemoteThread:
        """The thread of that id. Raises UnknownThreadError."""
        control = run(thread_queries.existing(self._core, thread_id))
        return self._thread(thread_id, control.kind)

    def restore_thread(
        self,
        document: JsonObject,
        *,
        on_existing: OnExisting = "raise",
        as_new: bool = False,
        actor: str | None = None,
    ) -> LocalThread | RemoteThread:
        """The thread that a document holds, with its id, its events and its hashes, as ``serialize`` has written it.

        Everything in it is checked before anything is stored, and all of it is stored at once. What the store has
        already stays as it is; where the thread has gone on since, ThreadAheadError is raised, or with
        ``on_existing="fork"`` a fork at the document's version is returned. With ``as_new`` a new thread is begun with
        the messages and the states on the document's path. Raises ThreadDocumentError for what is not as it was
        written, and ThreadDivergedError for a thread that is there with another past.
        """
        restoring = thread_documents.restore(self._core, document, on_existing=on_existing, as_new=as_new, actor=actor)
        return self._thread(*run(restoring))

    def find(self, prefix: str) -> str:
        """The id of the one thread that is named so, or else whose id begins so.

        Raises UnknownThreadError, AmbiguousThreadError or InvalidNameError.
        """
        return run(thread_directory.find(self._core, prefix))

    def threads(
        self,
        *,
        status: Status | None = None,
        labels: Mapping[str, Json] | None = None,
        parent: str | None = None,
        order: Order = "begun",
        newest_first: bool = False,
        limit: int | None = None,
        after: ThreadSummary | str | None = None,
    ) -> Iterator[ThreadSummary]:
        """The threads that are asked for, forks and deleted ones too, read a page at a time.

        With this ``status``, with all of these ``labels``, forked from ``parent``. ``order`` is that in which they were
        begun, or that of their last change (``updated``). For a page give ``limit``, and as ``after`` the last thread
        of the page before, or its id. Raises InvalidContentError, or UnknownThreadError for ``after``.
        """
        return _each(
            thread_directory.threads(
                self._core,
                status=status,
                labels=labels,
                parent=parent,
                order=order,
                newest_first=newest_first,
                limit=limit,
                after=after,
            )
        )

    def tree(self, thread_id: str | None = None, *, newest_first: bool = False) -> Iterator[Branch[ThreadSummary]]:
        """The tree of forks that a thread belongs to; without a thread all trees, in the order in which they began.

        Each branch comes before its forks, depth first. Raises UnknownThreadError.
        """
        return _each(thread_directory.tree(self._core, thread_id, newest_first=newest_first))

    def search(self, text: str, *, thread: str | None = None, before: int | None = None, limit: int = 20) -> list[Hit]:
        """The newest messages that have all the words of ``text``, which may be a "phrase", a beginning* and -without.

        Case makes no difference, nor does an accent on a Latin letter. With ``thread`` only what it has, from its
        ancestors too; ``before`` is the ``position`` of the last hit of the page before. Redacted messages are not
        found, and those of deleted threads only through forks that have them. Raises InvalidSearchError,
        UnknownThreadError or ThreadDeletedError.
        """
        return run(message_search.search(self._core, text, thread=thread, before=before, limit=limit))

    def audit(  # noqa: PLR0913  # each narrows down what is told
        self,
        *,
        thread: str | None = None,
        scope: str | None = None,
        actor: str | None = None,
        type: str | None = None,  # noqa: A002  # what it is called in the event
        since: datetime | None = None,
        until: datetime | None = None,
        newest_first: bool = False,
        limit: int | None = None,
        after: int | None = None,
    ) -> Iterator[AuditEntry]:
        """Who did what, when and why: an entry for each event, in the order of the store, read a page at a time.

        Of a ``thread`` its own events, without those that it inherited; of a memory ``scope`` by its name; by
        ``actor``, and by ``type`` of event; ``since`` and before ``until`` are aware times. ``after`` is the
        ``position`` of the last entry of the page before. Raises InvalidTimeError.
        """
        return _each(
            audit_trail.audit(
                self._core,
                thread=thread,
                scope=scope,
                actor=actor,
                type=type,
                since=since,
                until=until,
                newest_first=newest_first,
                limit=limit,
                after=after,
            )
        )

    def usage(
        self, *, thread: str | None = None, since: date | None = None, until: date | None = None, by: By = "total"
    ) -> list[Usage]:
        """How much was recorded, on the days (UTC) from ``since`` to ``until``: all in all, by thread or by day.

        By thread the biggest come first; in total there is one. Raises UnknownThreadError or InvalidContentError.
        """
        return run(usage_queries.usage(self._core, thread=thread, since=since, until=until, by=by))

    def import_files(
        self,
        paths: str | Path | Iterable[str | Path],
        *,
        actor: str | None = None,
        progress: Callable[[ImportReport], None] | None = None,
    ) -> ImportReport:
        """Import OpenAI chat messages from JSON files, JSON lines or directories of them; again adds nothing.

        What cannot be imported is in the report's ``failed``, and the rest is imported. Raises ImportFormatError for a
        path that is not there or, when it is the only one, holds no conversations.
        """
        found = (paths,) if isinstance(paths, str | Path) else paths
        return self.import_items(read_conversations(found), actor=actor, progress=progress)

    def import_items(
        self,
        items: Iterable[Item | Failure],
        *,
        actor: str | None = None,
        progress: Callable[[ImportReport], None] | None = None,
    ) -> ImportReport:
        """Import conversations that were read already, each when its turn comes; raises what their iterator raises."""
        operation = conversation_import.import_conversations(self._core, iter(items), actor=actor, progress=progress)
        return run(operation)

    def export(self, thread_ids: str | Iterable[str] | None = None, *, forks: bool = False) -> Iterator[JsonObject]:
        """Conversations in the OpenAI chat format, each as it was imported.

        Without ids the imported threads in import order, then the others by creation; without deleted ones and, unless
        ``forks`` is true, without forks.
        """
        named = (thread_ids,) if isinstance(thread_ids, str) else thread_ids
        for thread_id in named or ():
            yield run(conversation_export.export_thread(self._core, thread_id))
        cursor = conversation_export.Cursor() if thread_ids is None else None
        while cursor is not None:
            page = run(conversation_export.export_page(self._core, cursor, forks=forks))
            yield from page.conversations
            cursor = page.next

    def export_events(
        self, thread_ids: str | Iterable[str] | None = None, *, definitions: bool = False
    ) -> Iterator[bytes]:
        """Lines of Clew's own JSONL: all events of the threads and of their ancestors, byte for byte, in order.

        Without ids all threads of the tenant, deleted ones too, and its memory scopes. Equal stores give equal bytes.
        With ``definitions`` the instructions and tool schemas of the agents that ran are in it, as far as the store has
        them; they are an agent's, so by default they are not. Write the lines to a file that is open for bytes;
        import_events() takes it. Raises UnknownThreadError.
        """
        named = (thread_ids,) if isinstance(thread_ids, str) else thread_ids
        lines = run(event_transfer.export_events(self._core, named, definitions=definitions))
        while page := run(event_transfer.next_lines(lines)):
            yield from page

    def import_events(
        self, source: str | Path | BinaryIO, *, progress: Callable[[EventsReport], None] | None = None
    ) -> EventsReport:
        """Import a file in Clew's own JSONL, by its path or open for reading bytes; ids, hashes and order stay.

        Every hash is checked before anything is written; what is there already is skipped, so an import that was
        interrupted goes on when it is called again. A thread that is there with another past is left as it is, and is
        in the report's ``failed``, as is the first line that is damaged: nothing after that is read. Raises
        ImportFormatError for what is no such file, or of a newer format.
        """
        return run(event_transfer.import_events(self._core, source, progress))

    def subscribe(self, *, after: int = 0) -> Subscription:
        """Every event of every thread from a position on, and then those that come, as they come."""
        return Subscription(self._core, store_feed(self._core, after), self._live)

    def diff(
        self,
        thread_id: str,
        other_id: str | None = None,
        *,
        at: At = None,
        other_at: At = None,
        at_message: int | None = None,
        other_at_message: int | None = None,
    ) -> Diff:
        """Two threads message by message, from where they part; without ``other_id`` two versions of one thread.

        ``at`` and ``at_message`` are of the first, ``other_at`` and ``other_at_message`` of the second; by default the
        newest versions. Threads that share no past are aligned by what they say. Raises UnknownThreadError,
        ThreadDeletedError, UnknownVersionError, UnknownCheckpointError or InvalidTimeError.
        """
        operation = thread_versions.diff(self._core, thread_id, other_id, at, other_at, at_message, other_at_message)
        return run(operation)

    def verify(self, thread_id: str | None = None) -> Verdict:
        """Recompute the hash chain: of a thread with its ancestors, or of everything in the store."""
        return run(thread_queries.verify(self._core, thread_id))

    def close(self) -> None:
        """Write what was submitted, end the subscriptions and let go of the store."""
        for subscription in list(self._live):
            subscription.close()
        self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _thread(self, thread_id: str, kind: ThreadKind) -> LocalThread | RemoteThread:
        return thread_class(kind)(self._core, self._live, thread_id)


def _each(pages: Pages[T]) -> Iterator[T]:
    while page := run(pages.next()):
        yield from page
