"""The service for asyncio: threads, forks, histories, memory and read models of one tenant; and agents.

clew/conversations.py, the same service without asyncio, is generated from this file: see tools/sync_twin.py.
"""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Self, TypeVar

from clew.agents.agent import Agent as AgentOf
from clew.agents.agent import set_engine_factory
from clew.agents.response import Approval, approvals
from clew.agents.run_loop import leave_runs
from clew.aio.batch import Batch
from clew.aio.memory import DocumentStore, MemoryScope
from clew.aio.subscription import Subscription
from clew.aio.threads import LocalThread, RemoteThread, thread_class, unstarted_thread
from clew.chats.group_chat import GroupChat
from clew.chats.opening import open_chat, start_chat
from clew.chats.participants import Joining
from clew.chats.termination import Termination
from clew.chats.turn_selection import TurnSelection
from clew.domain.authorization import Authorize
from clew.domain.context.provider import ContextProviders, as_providers
from clew.domain.decider import Start
from clew.domain.differences.diff import Diff
from clew.domain.errors import ThreadDeletedError, UnknownThreadError
from clew.domain.event_types import Status
from clew.domain.fork_tree import Branch, ForkPoint
from clew.domain.formats.conversation_import import ImportFailure, ImportReport, Item
from clew.domain.formats.event_import import EventsReport
from clew.domain.json_values import Json, JsonObject, check_flags
from clew.domain.memory.ports import Embedder, Screen
from clew.domain.messages import Message
from clew.domain.models.client import ServiceReference, ThreadKind
from clew.domain.models.prices import Prices
from clew.domain.ports import Verdict
from clew.domain.projection import Projection, Query, RowValues, said_within
from clew.domain.records import Record
from clew.domain.runs.ports import OnExisting
from clew.infrastructure import clock
from clew.infrastructure.conversation_files import read_conversations
from clew.service import (
    audit_trail,
    conversation_transfer,
    cost_queries,
    event_export,
    event_import,
    message_search,
    projection_status,
    redactions,
    thread_commands,
    thread_directory,
    thread_documents,
    thread_queries,
    usage_queries,
    version_comparison,
)
from clew.service.async_effects import drive
from clew.service.audit_trail import AuditEntry
from clew.service.core import CACHE_BYTES, Core, open_core
from clew.service.cost_queries import Costs, CostsBy
from clew.service.effects import Pages, read
from clew.service.feeds import store_feed
from clew.service.memory import scope_queries, scope_view
from clew.service.memory.document_stores import open_view
from clew.service.memory.scope_queries import ScopeSummary
from clew.service.memory.scope_view import Scope
from clew.service.memory.text_search import EmbeddingIndex
from clew.service.message_search import Hit
from clew.service.projection_status import ProjectionStatus
from clew.service.run_log import ThreadRuns
from clew.service.thread_directory import Order
from clew.service.thread_queries import At, ThreadSummary
from clew.service.usage_queries import By, UsageCounts
from clew.service.waiting_threads import waiting_threads

if TYPE_CHECKING:
    from clew.conversations import Conversations

T = TypeVar("T")

set_engine_factory(lambda: Engine.open("memory:"))  # asyncio only


class Engine:
    """All threads of one tenant in one store. Call it from the tasks of one event loop; close it when done."""

    def __init__(self, core: Core, live: weakref.WeakSet[Any] | None = None) -> None:
        self._core = core
        self._live: weakref.WeakSet[Any] = weakref.WeakSet() if live is None else live  # subscriptions of both APIs

    @classmethod
    def open(  # noqa: PLR0913  # every setting has its own parameter
        cls,
        url: str | Path = "sqlite:///clew.db",
        *,
        tenant: str = "default",
        create: bool = True,
        projections: Sequence[Projection] | None = None,
        embedded: bool = True,
        authorize: Authorize | None = None,
        cache_bytes: int = CACHE_BYTES,
        prices: Prices | None = None,
        now: Callable[[], int] = clock.now,
        read_only: bool = False,
    ) -> Self:
        """Open a store by its path or URL.

        A path (``"clew.db"``, ``Path("clew.db")``) names a SQLite file. A Path is always a file; a string that looks
        like a URL is refused, so write ``"./my:file"`` for ``"my:file"``. URLs are ``sqlite:///file.db`` (relative),
        ``sqlite:////file.db`` (absolute), ``memory:``, ``postgresql://user@host/database``, or
        ``postgresql+shards://…`` for a directory that knows which of several servers has the tenant. Without ``create``
        a missing database raises StoreUnavailableError, and missing tables StoreSchemaError.

        ``projections`` are the read models, by default those that Clew ships. This process updates them. If
        ``embedded`` is false, ``clew project run`` must do this. ``authorize(actor, action, thread)`` decides what the
        actor of ``acting_as`` may read: lists leave out the threads that it refuses, and a request for such a thread
        raises NotAuthorizedError. ``cache_bytes`` limits the memory, in estimated bytes, for the histories, states and
        memory scopes that the service used last. What is larger is read again each time: with the default, a history of
        more than 256 MiB, or a memory scope of more than about 130,000 facts and passages, at 2,000 bytes each.
        ``prices`` is the price list by which the cost of each model call is recorded, by default that of the package
        genai-prices if it is installed. ``now`` returns microseconds since 1970 (UTC).

        With ``read_only``, or with ``?mode=ro`` in the URL, nothing is written: every call that would write raises
        ReadOnlyStoreError. Next to a SQLite file, no file is made or changed. Read models that are missing or behind
        are then built in memory; on PostgreSQL they are read as they are.

        Raises StoreUrlError, StoreSchemaError, StoreUnavailableError, InvalidProjectionError, InvalidAuthorizeError or,
        for the tenant, InvalidNameError.
        """
        core = open_core(
            url,
            tenant=tenant,
            create=create,
            projections=projections,
            embedded=embedded,
            authorize=authorize,
            cache_bytes=cache_bytes,
            prices=prices,
            now=now,
            read_only=read_only,
        )
        return cls(core)

    @property
    def blocking(self) -> Conversations:
        """The same open store for code without asyncio, to be called from any thread. It has the same actor.

        Both share the store, its caches and its background work, and subscriptions work in both. Closing either closes
        the store and ends the subscriptions of both. If agents run, close the engine: it waits until their ends are
        recorded.
        """
        from clew.conversations import Conversations

        return Conversations(self._core, self._live)

    @property
    def actor(self) -> str | None:
        """The actor of its calls, None if it has none."""
        return self._core.actor

    def acting_as(self, actor: str | None) -> Engine:
        """A copy of the service whose calls have this actor: events record it, and ``authorize`` receives it."""
        return Engine(self._core.acting_as(actor), self._live)

    async def start_thread(  # noqa: PLR0913  # every option has its own parameter
        self,
        title: str | None = None,
        *,
        thread_id: str | None = None,
        labels: JsonObject | None = None,
        metadata: JsonObject | None = None,
        messages: Sequence[Message | Record] = (),
        replace_deleted: bool = False,
        context_providers: ContextProviders | None = None,  # asyncio only
        idempotency_key: str | None = None,
        actor: str | None = None,
    ) -> LocalThread:
        """Start a thread, with its first messages and records if there are any, in one commit.

        With ``replace_deleted`` the id of a purged thread can be used again: a new history begins, and the versions
        continue. An ``idempotency_key`` is given instead of ``thread_id``: the same actor and key always give the same
        thread, which starts once; with something else it raises IdempotencyKeyReusedError. Raises ThreadExistsError.
        """
        check_flags(replace_deleted=replace_deleted)
        first = tuple(messages)
        attached = as_providers(context_providers)  # asyncio only
        starting = thread_commands.start_new(
            self._core,
            Start(title, labels or {}, metadata or {}),
            actor,
            first,
            thread_id=thread_id,
            key=idempotency_key,
            replace_deleted=replace_deleted,
        )
        started = await drive(starting)
        thread = LocalThread(self._core, self._live, started.thread_id)
        thread.context_providers.add(*attached)  # asyncio only
        created = [message for message in first if isinstance(message, Message)]  # asyncio only
        if started.is_new:  # asyncio only
            await thread.notify("on_thread_created", created, actor=actor)  # asyncio only
        return thread

    async def open_thread(self, thread_id: str, *, actor: str | None = None) -> LocalThread | RemoteThread:
        """The thread with that id. Starts it if it does not exist."""
        control = await drive(thread_commands.open_or_start(self._core, thread_id, actor))
        return self._thread(thread_id, control.kind)

    async def thread(self, thread_id: str) -> LocalThread | RemoteThread:
        """The thread with that id. Raises UnknownThreadError."""
        control = await drive(thread_queries.existing(self._core, thread_id))
        return self._thread(thread_id, control.kind)

    # asyncio only: begin
    def unstarted_thread(
        self, kind: ThreadKind, thread_id: str | None = None, labels: JsonObject | None = None
    ) -> LocalThread | RemoteThread:
        """A thread that does not exist yet and starts with its first run, with these labels: for agents."""
        return unstarted_thread(self._core, self._live, kind, thread_id, labels)

    async def threads_with_lease(self) -> list[str]:
        """The ids of the threads with a run that a process executes, or executed when it ended: for agents."""
        return await drive(thread_queries.with_lease(self._core))

    async def approvals(self) -> AsyncIterator[Approval]:
        """The function calls of all threads that wait for an approval; threads that have waited longest come first.

        Those of agents that a run uses as tools come with the thread of the run. The threads are found in a read model.
        Threads that the actor may not read are left out.
        """
        async for thread_id in _each(waiting_threads(self._core)):
            with suppress(ThreadDeletedError, UnknownThreadError):  # it was deleted since
                for approval in await approvals(ThreadRuns(self._core, thread_id)):
                    yield approval

    async def start_remote_thread(
        self, service_thread_id: str | ServiceReference | None, held: Sequence[Message] = ()
    ) -> RemoteThread:
        """Start a thread that a service holds, with the service's id and the messages held there if any: for agents."""
        started = await drive(thread_commands.start_remote(self._core, service_thread_id, held))
        return RemoteThread(self._core, self._live, started)

    async def start_chat(  # every option has its own parameter
        self,
        participants: Sequence[Joining] = (),
        *,
        chat_id: str | None = None,
        selection: TurnSelection | None = None,
        termination: Termination | Sequence[Termination] | None = None,
        max_turns: int | None = None,
        context_providers: ContextProviders | None = None,
        newcomers_read: int | None = None,
        actor: str | None = None,
    ) -> GroupChat:
        """Start a group chat of agents and people.

        ``selection`` selects who speaks next, by default in the order of joining. A run ends with the first
        ``termination`` that is met, after ``max_turns`` turns; after 20 if neither is given. ``context_providers`` are
        the chat's own: all participants receive what they give, and they learn from the messages of the chat. A
        newcomer hears the whole chat, or the last ``newcomers_read`` messages. Raises ThreadExistsError, and
        AgentConfigurationError for two participants with one id or name.
        """
        return await start_chat(
            self,
            participants,
            chat_id=chat_id,
            selection=selection,
            termination=termination,
            max_turns=max_turns,
            context_providers=context_providers,
            newcomers_read=newcomers_read,
            actor=actor,
        )

    async def chat(
        self,
        chat_id: str,
        participants: Sequence[Joining] = (),
        *,
        selection: TurnSelection | None = None,
        termination: Termination | Sequence[Termination] | None = None,
        context_providers: ContextProviders | None = None,
    ) -> GroupChat:
        """The group chat with that id, with those of its participants that this process has.

        ``selection`` and ``termination`` are those of the log, unless they are given: those that are code must be.
        Raises UnknownThreadError, and AgentConfigurationError for a thread that is not a chat, or somebody who has not
        joined.
        """
        return await open_chat(
            self,
            chat_id,
            participants,
            selection=selection,
            termination=termination,
            context_providers=context_providers,
        )

    # asyncio only: end

    async def restore_thread(
        self,
        document: JsonObject,
        *,
        on_existing: OnExisting = "raise",
        as_new: bool = False,
        actor: str | None = None,
    ) -> LocalThread | RemoteThread:
        """Restore the thread of a document that ``thread.serialize()`` wrote, with its id, events and hashes.

        The whole document is checked first, and then stored in one commit. Events that the store already has do not
        change. If the thread has newer events, ThreadAheadError is raised, or with ``on_existing="fork"`` a fork at the
        document's version is returned. With ``as_new`` a new thread starts with the messages and states on the
        document's path. Raises ThreadDocumentError for a document that was changed, and ThreadDivergedError if the
        store has this thread with different events.
        """
        restoring = thread_documents.restore(self._core, document, on_existing=on_existing, as_new=as_new, actor=actor)
        return self._thread(*(await drive(restoring)))

    async def find(self, prefix: str) -> str:
        """The id of the thread with the id ``prefix``, or else of the only thread whose id starts with it.

        Raises UnknownThreadError, AmbiguousThreadError or InvalidNameError.
        """
        return await drive(thread_directory.find(self._core, prefix))

    def threads(  # noqa: PLR0913  # every filter has its own parameter
        self,
        *,
        status: Status | None = None,
        labels: Mapping[str, Json] | None = None,
        parent: str | None = None,
        order: Order = "begun",
        newest_first: bool = False,
        said_since: datetime | None = None,
        said_until: datetime | None = None,
        limit: int | None = None,
        after: ThreadSummary | str | None = None,
    ) -> AsyncIterator[ThreadSummary]:
        """Threads, including forks and deleted ones, read a page at a time.

        A thread must match every filter that is given: it has this ``status``, it has all of these ``labels``, it is a
        fork of ``parent``. With ``said_since`` or ``said_until`` (not included), which are aware datetimes, the time of
        the thread must overlap this range. This time begins when the thread began, or when its earliest message or
        record was said, if that is earlier. It ends when its latest one was said. A thread without messages and records
        does not match, and what a fork inherits does not count. ``order`` is by start (``begun``) or by last change
        (``updated``). For the next page, give ``limit`` again, and as ``after`` the last thread of the previous page,
        or its id. Raises InvalidContentError, InvalidTimeError, UnknownThreadError for ``after``, or
        ProjectionBehindError while the tables of an older Clew are being rebuilt.
        """
        return _each(
            thread_directory.threads(
                self._core,
                status=status,
                labels=labels,
                parent=parent,
                order=order,
                newest_first=newest_first,
                said=None if said_since is said_until is None else said_within(said_since, said_until),
                limit=limit,
                after=after,
            )
        )

    def tree(self, thread_id: str | None = None, *, newest_first: bool = False) -> AsyncIterator[Branch[ThreadSummary]]:
        """The tree of forks that a thread belongs to; without a thread all trees, oldest first.

        Each branch comes before its forks, depth first. Raises UnknownThreadError.
        """
        return _each(thread_directory.tree(self._core, thread_id, newest_first=newest_first))

    async def search(
        self,
        text: str,
        *,
        thread: str | None = None,
        said_since: datetime | None = None,
        said_until: datetime | None = None,
        before: int | None = None,
        limit: int = 20,
    ) -> list[Hit]:
        """The newest messages with all the words of ``text``, which may contain "phrases", prefixes* and -exclusions.

        Case does not matter, nor do accents on Latin letters. ``thread`` limits the search to one thread with its
        ancestors. ``said_since`` and ``said_until`` (not included) are aware datetimes: a message was said at its
        ``said_at``, or else when it was recorded. For the next page, give the ``position`` of the last hit as
        ``before``. Redacted messages are never found. Messages of a deleted thread are found only through its forks.
        Raises InvalidSearchError, InvalidContentError for a ``limit`` that is not a whole number, InvalidTimeError,
        UnknownThreadError or ThreadDeletedError.
        """
        said = None if said_since is said_until is None else said_within(said_since, said_until)
        searching = message_search.search(self._core, text, thread=thread, before=before, limit=limit, said=said)
        return await drive(searching)

    def audit(  # noqa: PLR0913  # every filter has its own parameter
        self,
        *,
        thread: str | None = None,
        scope: str | None = None,
        actor: str | None = None,
        on_behalf_of: str | None = None,
        type: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        said_since: datetime | None = None,
        said_until: datetime | None = None,
        newest_first: bool = False,
        limit: int | None = None,
        after: int | None = None,
    ) -> AsyncIterator[AuditEntry]:
        """Who did what, when and why: an entry for each event, in the order of the store, read a page at a time.

        ``thread`` selects a thread's own events, without inherited ones; ``scope`` selects a memory scope; ``actor``,
        ``on_behalf_of`` and ``type`` are those of the event. ``since`` and ``until`` (not included) are aware
        datetimes, and select by the time of recording; ``said_since`` and ``said_until`` select by ``said_at``, or else
        by the time of recording. For the next page, give the ``position`` of the last entry as ``after``. Raises
        InvalidTimeError, or InvalidContentError for a ``limit`` that is not a whole number.
        """
        return _each(
            audit_trail.audit(
                self._core,
                thread=thread,
                scope=scope,
                actor=actor,
                on_behalf_of=on_behalf_of,
                type=type,
                since=since,
                until=until,
                said_since=said_since,
                said_until=said_until,
                newest_first=newest_first,
                limit=limit,
                after=after,
            )
        )

    async def usage(
        self, *, thread: str | None = None, since: date | None = None, until: date | None = None, by: By = "total"
    ) -> list[UsageCounts]:
        """How much was recorded on the days (UTC) from ``since`` to ``until``: in total, by thread or by day.

        By thread, the largest counts come first. Raises UnknownThreadError, InvalidContentError or, for anything but
        dates, InvalidTimeError.
        """
        return await drive(usage_queries.usage(self._core, thread=thread, since=since, until=until, by=by))

    async def costs(
        self,
        *,
        by: CostsBy = "total",
        label: str | None = None,
        thread: str | None = None,
        since: date | None = None,
        until: date | None = None,
        prices: Prices | None = None,
    ) -> list[Costs]:
        """What the model calls of runs used and cost on the days (UTC) from ``since`` to ``until``.

        In total, or by day, agent, actor for whom agents acted, model, thread, run, or value of a ``label``. Each call
        is counted once, on the thread where it was recorded: forks do not count what they inherit. The calls of an
        inner agent count for the thread and the run that asked it. Costs are those that were recorded with the calls.
        With ``prices`` all calls in the log are priced again, each at its own time. Raises UnknownThreadError,
        InvalidContentError or InvalidTimeError.
        """
        asked = cost_queries.costs(
            self._core, by=by, label=label, thread=thread, since=since, until=until, prices=prices
        )
        return await drive(asked)

    def batch(self, *, idempotency_key: str | None = None) -> Batch:
        """Appends to threads and facts of scopes in one commit: ``async with engine.batch() as batch: …``.

        With a repeated ``idempotency_key`` nothing is stored, and the results are those of the first batch; with other
        parts it raises IdempotencyKeyReusedError.
        """
        return Batch(self._core, idempotency_key)

    async def memory(
        self,
        name: str,
        *,
        embedder: Embedder | None = None,  # asyncio only
        screen: Screen | None = None,
    ) -> MemoryScope:
        """The memory scope of that name, such as ``user/42``. It begins with its first fact.

        ``screen`` decides which facts may be promoted into it. With an ``embedder`` it is searched by meaning too.
        Raises ScopeError for None, an empty name or a scope that holds documents; InvalidNameError; and
        EmbeddingMismatchError for another embedder than the recorded one.
        """
        scope = Scope(self._core, name, screen=screen)
        meaning = None if embedder is None else EmbeddingIndex(embedder, self._core.vectors)  # asyncio only
        if meaning is not None:  # asyncio only
            scope = replace(scope, model=meaning.model, dimensions=meaning.dimensions)
        await drive(scope_view.load_facts(scope))
        return MemoryScope(
            scope,
            meaning,  # asyncio only
        )

    def scopes(self, *, prefix: str = "") -> AsyncIterator[ScopeSummary]:
        """The memory scopes of the tenant whose names begin with ``prefix``, in the order of their names.

        They include those that hold documents. They are read from an index, a page at a time. Raises
        InvalidContentError for a prefix that is not valid text.
        """
        return _each(scope_queries.scopes(self._core, prefix))

    # asyncio only: begin
    async def documents(self, name: str, *, namespace: str | None, embedder: Embedder | None = None) -> DocumentStore:
        """The document store of that name, seen in one of its namespaces. It is created when it is first opened.

        It is searched by words, and with an ``embedder`` by meaning too; it must always be the one that the store was
        created with. Raises ScopeError for an invalid namespace or the name of a scope of facts, InvalidNameError,
        EmbeddingMismatchError for another embedder, and MissingExtraError without numpy.
        """
        return DocumentStore(self._core, await open_view(self._core, name, namespace, embedder))

    # asyncio only: end

    async def rows(self, projection: str, query: Query) -> list[RowValues]:
        """Rows of a projection's table, up to date with everything written before the call.

        A table with a column ``tenant`` shows this tenant's rows only; any other shows the rows of all tenants. Raises
        UnknownProjectionError or InvalidProjectionError.
        """
        return await drive(projection_status.rows(self._core, projection, query))

    async def position(self) -> int:
        """The newest position of the store: at or after everything that this process has written.

        Pass it to ``wait`` on a standby to read your own writes there.
        """
        return await drive(self._core.models.position())

    async def wait(
        self,
        position: int | None = None,
        *,
        projection: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  # as in Conversations
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Wait until one projection, or all of them, reach a position, by default the newest at the call.

        On a standby it also waits until the log has the position. ``timeout`` is in seconds. Without one the call
        waits for ever if no process updates the projections; after ten seconds without progress it logs a warning.
        ``progress`` receives the position of the slowest projection and the goal, both counted from the first event.
        Raises ProjectionBehindError or UnknownProjectionError.
        """
        await drive(self._core.models.wait(position, projection=projection, timeout=timeout, progress=progress))

    async def erase(self, *, timeout: float | None = None) -> bool:  # noqa: ASYNC109  # as in Conversations
        """Remove what redactions have left in the files of a SQLite store, of all tenants.

        A redaction usually does so itself, unless another program reads an older state of the store at that moment.
        This call brings the read models up to date and waits for such programs, at most ``timeout`` seconds. True
        means that nothing is left, in the log and in the read models.
        """
        return await drive(redactions.erase(self._core, timeout))

    async def rebuild(self, projection: str, *, progress: Callable[[int, int], None] | None = None) -> None:
        """Build a projection again from the log. Reads use the old tables until it is done.

        ``progress`` receives the position of the projection and the goal, both counted from the first event. On
        PostgreSQL positions have gaps, so use the two numbers only as a ratio. Raises UnknownProjectionError, or
        ProjectionBehindError while a process with other code rebuilds the projection.
        """
        await drive(self._core.models.rebuild(projection, progress))

    async def projections(self) -> list[ProjectionStatus]:
        """The position and the state of each projection, and the events that it had to skip."""
        return await drive(projection_status.statuses(self._core))

    async def import_files(
        self,
        paths: str | Path | Iterable[str | Path],
        *,
        actor: str | None = None,
        progress: Callable[[ImportReport], None] | None = None,
    ) -> ImportReport:
        """Import OpenAI chat messages, exports of ChatGPT and Claude, sessions of agents, and traces.

        The sessions are those of the OpenAI Agents SDK and of Agent Framework, the traces those of LangSmith and
        Langfuse. Paths name JSON files, JSON lines, zips of exports, SQLite files of sessions, or directories. A
        repeated import adds nothing.

        Conversations that cannot be imported are in the report's ``failed``; the others are imported. Raises
        ImportFormatError for a path that does not exist or, if it is the only one, holds no conversations.
        """
        all_paths = (paths,) if isinstance(paths, str | Path) else paths
        return await self.import_items(read_conversations(all_paths), actor=actor, progress=progress)

    async def import_items(
        self,
        items: Iterable[Item | ImportFailure],
        *,
        actor: str | None = None,
        progress: Callable[[ImportReport], None] | None = None,
    ) -> ImportReport:
        """Import conversations that are parsed already, one by one. Raises the errors of the iterator."""
        operation = conversation_transfer.import_conversations(self._core, iter(items), actor=actor, progress=progress)
        return await drive(operation)

    async def export(
        self, thread_ids: str | Iterable[str] | None = None, *, forks: bool = False
    ) -> AsyncIterator[JsonObject]:
        """Conversations in the OpenAI chat format, each as it was imported.

        Without ids: the imported threads in import order, then the others by start time. Deleted threads are left out,
        and forks too, unless ``forks`` is true.
        """
        check_flags(forks=forks)
        ids = (thread_ids,) if isinstance(thread_ids, str) else thread_ids
        for thread_id in ids or ():
            yield await drive(conversation_transfer.export_thread(self._core, thread_id))
        cursor = conversation_transfer.Cursor() if thread_ids is None else None
        while cursor is not None:
            page = await drive(conversation_transfer.export_page(self._core, cursor, forks=forks))
            for each in page.conversations:
                yield each
            cursor = page.next

    async def export_events(
        self, thread_ids: str | Iterable[str] | None = None, *, definitions: bool = False, children: bool = False
    ) -> AsyncIterator[bytes]:
        """Lines of Clew's own JSONL: all events of the threads and of their ancestors, byte for byte, in order.

        Without ids: all threads of the tenant, including deleted ones, and its memory scopes. Equal stores give equal
        bytes. ``definitions`` adds the agents' instructions and tool schemas that the store has; they can be
        confidential, so they are left out by default. ``children`` adds the threads on which calls of these threads ran
        agents. Write the lines to a file that is open for bytes;
        import_events() reads it. Raises UnknownThreadError.
        """
        check_flags(definitions=definitions, children=children)
        ids = (thread_ids,) if isinstance(thread_ids, str) else thread_ids
        lines = await drive(event_export.export_events(self._core, ids, definitions=definitions, children=children))
        while page := await drive(event_export.next_lines(lines)):
            for line in page:
                yield line

    async def import_events(
        self, source: str | Path | BinaryIO, *, progress: Callable[[EventsReport], None] | None = None
    ) -> EventsReport:
        """Import a file in Clew's own JSONL, by its path or open for reading bytes. Ids, hashes and order are kept.

        Every hash is checked before anything is written. Events that exist are skipped, so an interrupted import can be
        repeated. A thread that the store has with different events is not changed; the report's ``failed`` lists it. A
        thread or a scope with an event that makes no sense after those before it is refused in the same way; only
        commits of a large file that were made before that event stay. At the first damaged line the import ends;
        ``failed`` lists this line too. Raises ImportFormatError for a file of another kind, or of a newer format.
        """
        return await drive(event_import.import_events(self._core, source, progress))

    def subscribe(self, *, after: int = 0) -> Subscription:
        """Every event of every thread after a position, and then new ones as they arrive.

        Raises InvalidContentError for a position that is not a whole number.
        """
        return Subscription(self._core, store_feed(self._core, after), self._live)

    async def fork_point(self, thread_id: str, other_id: str) -> ForkPoint | None:
        """The last version that two threads share, and the thread that holds it; None without a common past.

        Raises UnknownThreadError or ThreadDeletedError.
        """
        return await drive(version_comparison.fork_point(self._core, thread_id, other_id))

    async def diff(
        self,
        thread_id: str,
        other_id: str | None = None,
        *,
        at: At = None,
        other_at: At = None,
        at_message: int | None = None,
        other_at_message: int | None = None,
    ) -> Diff:
        """Compare two threads from the first difference on; without ``other_id``, two versions of one thread.

        ``at`` or ``at_message`` selects the version of the first, ``other_at`` or ``other_at_message`` that of the
        second; by default the newest versions. Threads without a common past are aligned by their content. Raises
        UnknownThreadError, ThreadDeletedError, UnknownVersionError, UnknownCheckpointError or InvalidTimeError.
        """
        operation = version_comparison.diff(self._core, thread_id, other_id, at, other_at, at_message, other_at_message)
        return await drive(operation)

    async def verify(self, thread_id: str | None = None, *, children: bool = False) -> Verdict:
        """Recompute the hash chain of a thread with its ancestors, or of the whole store.

        Each event is also checked against the events before it. ``first_bad`` is the first event that was changed
        (``kind`` is ``changed``), or else the first that has a correct hash and makes no sense (``senseless``).
        With ``children``, the threads on which calls of the thread ran agents are checked, too, and so are the links to
        them.
        """
        return await drive(thread_queries.verify(self._core, thread_id, children=children))

    async def close(self) -> None:
        """Write all submitted appends, end the subscriptions and close the store."""
        # First record the ends of cancelled runs, and let other processes continue the others.  # asyncio only
        await leave_runs(lambda log: isinstance(log, ThreadRuns) and log.is_in(self._core))  # asyncio only
        for subscription in list(self._live):
            subscription.close()
        await drive(read(self._core.close))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _thread(self, thread_id: str, kind: ThreadKind) -> LocalThread | RemoteThread:
        return thread_class(kind)(self._core, self._live, thread_id)


# asyncio only: begin
class Agent(AgentOf[LocalThread, RemoteThread]):
    """A model with instructions and tools. It holds no conversation: threads do, and it can run on many at once.

    ``client`` calls the model. ``id`` identifies the agent in the log and to other processes; by default it is the
    ``name``, or else ``agent``. ``engine`` has the threads that the agent starts; without one they are in memory.
    ``tools`` are functions that the model may call and servers of tools (MCPTools), ``guardrails`` are checks that
    stop a run, and ``handoffs`` the agents to which the model may hand the conversation. ``context_providers`` give
    context to each run and learn from it.
    ``reducer`` limits the history that the model receives. ``history_store`` creates a copy of each thread's history;
    with ``read_history_from="store"`` the model receives the messages that the copy lists. ``model`` and ``options``
    (such as ``temperature``) replace the client's own; a run can replace them again.

    ``max_rounds`` is the number of model calls, and ``max_seconds`` the time, that a run may take; ``retries`` is how
    often a request is repeated after a temporary fault. With ``reset_tool_choice``, options that force a call
    (``tool_choice="required"``) count for the first answer of a run only. ``tool_use_behavior`` says which results of
    tools are the answer of a run: ``"stop_on_first_tool"``, a list of tools' names, or a function of the results.
    ``on_changed_agent`` says whether to warn or
    raise if the agent with this id ran on the thread before with other instructions, tools or another client.
    ``on_missing_provider`` says the same for a context provider that the thread used before.
    ``on_expired_service_thread="reseed"`` sends the whole record again if the service no longer has what a remote
    thread continues. If the model's service has no place for media of a message, the run warns with
    MediaNotSentWarning; with ``strict_media`` it raises MediaNotSentError before anything is sent. Raises
    AgentConfigurationError or InvalidNameError.
    """


# asyncio only: end


async def _each(pages: Pages[T]) -> AsyncIterator[T]:
    while page := await drive(pages.next()):
        for each in page:
            yield each
