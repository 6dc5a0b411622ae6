"""Import and export of conversations in the OpenAI chat format. Each is imported once, and exported unchanged."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import NamedTuple, TypeAlias

from clew.domain.decider import Append, Start, check_readable
from clew.domain.decider_state import Control, advance
from clew.domain.errors import (
    ConflictError,
    ImportFormatError,
    InvalidContentError,
    NotAuthorizedError,
    ThreadDeletedError,
    ThreadExistsError,
    UnknownThreadError,
)
from clew.domain.events import Event, ThreadStarted
from clew.domain.formats.conversation_import import (
    Conversation,
    Extend,
    ImportFailure,
    ImportReport,
    Item,
    StoredThread,
    count_occurrence,
    failure,
    plan,
    read_conversation,
    source_fields,
    thread_id,
)
from clew.domain.formats.markdown import ForkedThread, as_markdown
from clew.domain.formats.openai_messages import encode, encode_redacted
from clew.domain.history import HistoryBuilder
from clew.domain.json_values import JsonObject
from clew.domain.ports import Appended, Write
from clew.domain.streams import ROOT, check_id, stream_id
from clew.service import thread_directory, thread_queries
from clew.service.authorization import check, check_existing_stream, permitted
from clew.service.core import ATTEMPTS, CommitOptions, Core, commit, decide_events
from clew.service.effects import Operation, read, wait, withdraw
from clew.service.thread_commands import start
from clew.service.thread_queries import At

MOST_EVENTS = 1_000
MOST_BYTES = 1 << 20
"""A group of conversations ends with the one that brings it to this many events, or bytes of JSON."""

Progress: TypeAlias = Callable[[ImportReport], None]
"""Called after every conversation with the report so far."""


class Imported(NamedTuple):
    """The result for one conversation; nothing was written if its thread was complete."""

    thread_id: str
    messages: int
    events: int


def import_conversations(
    core: Core, items: Iterator[Item | ImportFailure], *, actor: str | None = None, progress: Progress | None = None
) -> Operation[ImportReport]:
    """Import conversations in their order, in groups. The next group is read while one is written.

    The new threads of a group are written in one append. Failures are in the report and do not stop the import. Raises
    the errors of the reader of the items, and StoreError if the store fails. Earlier groups stay.
    """
    if actor is not None:
        check_id(actor, "actor")
    importing = _Import(core, items, actor, progress)
    written: _Group | None = None
    try:
        while (group := (yield from read(importing.next_group))) is not None:
            if written is not None:
                yield from importing.finish(written)
            written = group
            importing.begin(group)
        if written is not None:
            yield from importing.finish(written)
    except (Exception, KeyboardInterrupt, asyncio.CancelledError):
        if written is not None and written.outcome is not None:
            yield from withdraw(written.outcome)
        raise
    finally:
        if importing.report.events:
            core.models.notify()  # at the end: until then, projecting the events would only slow the import down
    return importing.report


@dataclass(slots=True)
class _Part:
    """A conversation of a group, and the id of its thread."""

    item: Item
    conversation: Conversation
    occurrence: int
    thread_id: str


@dataclass(slots=True)
class _Group:
    """Conversations, and those that cannot be read, in the order of the input.

    ``new`` are the ids of threads that do not exist, which ``write`` begins. ``error`` is the error with which the
    reader ended after them.
    """

    parts: list[_Part | ImportFailure] = field(default_factory=list)
    new: set[str] = field(default_factory=set)
    write: Write | None = None
    outcome: Future[Appended] | None = None
    error: Exception | None = None


class _Import:
    """An import: its input, the group that was read last, and its report."""

    def __init__(
        self, core: Core, items: Iterator[Item | ImportFailure], actor: str | None, progress: Progress | None
    ) -> None:
        self.report = ImportReport(0, 0, 0, 0, [])
        self._core = core
        self._items = items
        self._options = CommitOptions(actor=actor, base=Control())
        self._progress = progress
        self._counts: Counter[str] = Counter()
        self._begun: set[str] = set()
        """The new threads of the group that was read last: they may not be stored yet."""
        self._ended = False

    def next_group(self) -> _Group | None:
        """Read the next group and decide on its new threads; None at the end."""
        group, events, size = _Group(), 0, 0
        try:
            while not self._ended and events < MOST_EVENTS and size < MOST_BYTES:
                item = next(self._items, None)
                if item is None:
                    self._ended = True
                    break
                part = item if isinstance(item, ImportFailure) else self._read(item)
                group.parts.append(part)
                events += 1
                if isinstance(part, _Part):
                    events += len(part.conversation.messages)
                    size += part.item.size
        except Exception as error:  # noqa: BLE001  # finish() raises it, after what was read before is imported
            group.error, self._ended = error, True
        if not group.parts and group.error is None:
            return None
        self._decide(group)
        return group

    def _read(self, item: Item) -> _Part | ImportFailure:
        try:
            conversation = read_conversation(item.value)
        except (ImportFormatError, InvalidContentError) as error:
            return failure(item, error)
        occurrence = count_occurrence(conversation, self._counts)
        return _Part(item, conversation, occurrence, thread_id(conversation.key(occurrence)))

    def _decide(self, group: _Group) -> None:
        """Decide on the threads that neither exist nor are begun by the group before."""
        core = self._core
        first: dict[str, _Part] = {}
        for part in group.parts:
            if isinstance(part, _Part) and part.thread_id not in self._begun:
                first.setdefault(core.stream(part.thread_id), part)
        existing = core.log.existing(list(first)) if first else set()
        events: list[Event] = []
        previous: dict[str, bytes] = {}
        snapshots: list[tuple[str, Control]] = []
        for stream, part in first.items():
            if stream not in existing:
                intents = (part.conversation.start(),)
                decided, taken, _ = decide_events(core, part.thread_id, stream, Control(), intents, self._options)
                events += decided
                snapshots += taken
                previous[stream] = ROOT
                group.new.add(part.thread_id)
        self._begun = set(group.new)
        if events:
            group.write = Write(events, previous, controls=snapshots)

    def begin(self, group: _Group) -> None:
        """Have a thread write the new threads of a group."""
        if group.write is None:
            return
        try:
            group.outcome = self._core.log.submit(group.write).outcome
        except InvalidContentError:  # of one conversation, but the others must be imported
            group.new.clear()
        else:
            group.outcome.add_done_callback(_do_nothing)  # so that another thread writes it now
        group.write = None  # its events need much memory

    def finish(self, group: _Group) -> Operation[None]:
        """Wait for the new threads of a group, and import its other conversations, each in an append of its own."""
        if group.outcome is not None:
            try:
                yield from wait(group.outcome)
            except ConflictError:  # another import was faster with one of them
                group.new.clear()
        for part in group.parts:
            if isinstance(part, ImportFailure):
                self._note_failure(part)
            elif part.thread_id in group.new:
                group.new.remove(part.thread_id)
                messages = len(part.conversation.messages)
                self._note(Imported(part.thread_id, messages, 1 + messages))
            else:
                try:
                    done = yield from import_conversation(
                        self._core, part.conversation, part.occurrence, self._options.actor
                    )
                except (ImportFormatError, InvalidContentError, NotAuthorizedError) as error:
                    self._note_failure(failure(part.item, error))
                else:
                    self._note(done)
        if group.error is not None:
            raise group.error

    def _note_failure(self, failure: ImportFailure) -> None:
        self.report.failed.append(failure)
        if self._progress is not None:
            self._progress(self.report)

    def _note(self, done: Imported) -> None:
        self.report = _add_imported(self.report, done)
        if self._progress is not None:
            self._progress(self.report)


def _do_nothing(_: object) -> None: ...


def import_conversation(
    core: Core, conversation: Conversation, occurrence: int, actor: str | None = None
) -> Operation[Imported]:
    """Start the thread of a conversation, append its missing messages, or leave it unchanged.

    ``occurrence`` separates equal conversations without ids. Raises ImportFormatError, which names the thread's state,
    if the thread has another conversation. Raises InvalidContentError for a message that is too large, and
    NotAuthorizedError for an existing thread that the caller may not read.
    """
    id_ = thread_id(conversation.key(occurrence))
    attempts = 0
    while True:
        yield from read(lambda: check_existing_stream(core, core.stream(id_)))
        stored = yield from _stored_thread(core, id_)
        try:
            match plan(id_, conversation, stored):
                case None:
                    return Imported(id_, 0, 0)
                case Start() as intent:
                    yield from start(core, id_, intent, actor)
                    return Imported(id_, len(intent.messages), 1 + len(intent.messages))
                case Extend(messages=messages, said=said, expected_version=version):
                    options = CommitOptions(actor=actor, expected_version=version)
                    yield from commit(core, id_, Append(messages, said), options)
                    return Imported(id_, len(messages), len(messages))
        except (ConflictError, ThreadExistsError):  # another writer changed the thread: try again
            attempts += 1
            if attempts == ATTEMPTS:
                raise


def _add_imported(report: ImportReport, done: Imported) -> ImportReport:
    if not done.events:
        return report._replace(skipped=report.skipped + 1)
    return report._replace(
        threads=report.threads + 1, messages=report.messages + done.messages, events=report.events + done.events
    )


def _stored_thread(core: Core, id_: str) -> Operation[StoredThread | None]:
    """The thread in the log, deleted or not; None when it does not exist."""
    stream = core.stream(id_)
    events = yield from read(lambda: core.log.lineage(stream))
    if not events:
        return None
    builder = HistoryBuilder(id_)
    builder.add(events)
    first = events[0]
    control = reduce(advance, events, Control())
    is_first = first.stream == stream and control.began == 1  # else it was purged, and began again as another thread
    started = first.data if is_first and isinstance(first.data, ThreadStarted) else None
    messages = yield from read(partial(core.log.whole_messages, stream, builder.history().messages))
    return StoredThread(started, control, messages)


PAGE = 50


class Cursor(NamedTuple):
    """The position in an export of all threads: first the imported ones, then the others."""

    imported: bool = True
    after: int = 0


class Exported(NamedTuple):
    """A page of conversations, and the cursor of the next page, None after the last."""

    conversations: list[JsonObject]
    next: Cursor | None


def export_thread(core: Core, thread_id: str) -> Operation[JsonObject]:
    """A thread as an object with ``id``, ``messages`` and, if it was imported, the other fields of its source.

    The ``id`` is the source's id, else the thread's own. A fork, or a thread that was not imported, has ``title`` and
    ``metadata`` if they are set. A redacted message has null content and ``"redacted": true``.

    Raises UnknownThreadError, ThreadDeletedError or NotAuthorizedError.
    """
    yield from check(core, "export", thread_id)
    return (yield from _exported(core, thread_id))


def _exported(core: Core, thread_id: str) -> Operation[JsonObject]:
    stored = yield from _stored_thread(core, thread_id)
    if stored is None:
        raise UnknownThreadError(thread_id)
    started, control = stored.started, stored.control
    check_readable(thread_id, control, "export")
    messages: list[JsonObject] = []
    for message in stored.messages:
        messages += [encode_redacted(message.role)] if message.message is None else encode(message.message)
    if started is not None and started.source is not None:
        id_ = thread_id if started.source.id is None else started.source.id
        return {"id": id_, **source_fields(started), "messages": list(messages)}
    fields: JsonObject = {}
    if control.title is not None:
        fields["title"] = control.title
    if control.metadata:
        fields["metadata"] = control.metadata
    return {"id": thread_id, **fields, "messages": list(messages)}


def markdown(core: Core, thread_id: str, at: At = None, at_message: int | None = None) -> Operation[str]:
    """A thread at a version as Markdown, with the forks made until then. Raises the errors of state()."""
    state = yield from thread_queries.state(core, thread_id, at, at_message)
    forks = yield from thread_directory.forks(core, thread_id)
    records = yield from thread_queries.records(core, thread_id, at=state.version or None)
    earlier = [each for each in forks if (each.forked_at or 0) <= state.version]
    listed = [ForkedThread(each.id, each.forked_at, each.title) for each in earlier]
    return as_markdown(thread_id, state, listed, records)


def export_page(core: Core, cursor: Cursor, *, forks: bool = False) -> Operation[Exported]:
    """The next conversations of an export of all threads. A page may be empty even if it is not the last.

    Imported threads come in import order, then the others by creation. Deleted threads, threads that the caller may
    not export and, unless ``forks`` is true, forks are left out.
    """
    prefix = core.prefix()
    streams = yield from read(lambda: core.log.streams(prefix=prefix, after=cursor.after, limit=PAGE))
    conversations: list[JsonObject] = []
    for stream in (yield from permitted(core, "export", streams, lambda stream: stream_id(stream.name))):
        control = yield from read(partial(core.log.control, stream.name))
        is_included = control.imported == cursor.imported and (forks or stream.parent is None)
        if is_included and control.version:
            with suppress(ThreadDeletedError):
                conversations.append((yield from _exported(core, stream_id(stream.name))))
    if len(streams) == PAGE:
        return Exported(conversations, Cursor(cursor.imported, streams[-1].key))
    return Exported(conversations, Cursor(imported=False) if cursor.imported else None)
