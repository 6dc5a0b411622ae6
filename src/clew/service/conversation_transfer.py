"""Import and export of conversations. Each is imported once; one in the OpenAI chat format is exported unchanged."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from clew.domain.events import RECORD_APPENDED, Event, MessageAppended, RecordAppended, ThreadStarted
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
from clew.domain.formats.sources import read_transcript
from clew.domain.formats.transcripts import Transcript, TranscriptPath, import_type, leads_to, record_counts
from clew.domain.history import HistoryBuilder, previous_version
from clew.domain.json_values import JsonObject
from clew.domain.ports import Appended, Write
from clew.domain.records import ThreadRecord, as_record
from clew.domain.streams import ROOT, check_id, stream_id
from clew.service import thread_directory, thread_queries
from clew.service.authorization import check, check_existing_stream, permitted
from clew.service.core import ATTEMPTS, CommitOptions, Core, commit, decide_events
from clew.service.effects import Operation, read, wait, withdraw
from clew.service.thread_commands import ForkStart, fork, start
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
    records: Mapping[str, int] = {}


Source: TypeAlias = Conversation | TranscriptPath
"""A conversation in the OpenAI chat format, or a path through one of another program."""

_REFUSALS = (ImportFormatError, InvalidContentError, NotAuthorizedError, ThreadDeletedError)
"""The errors of one conversation, which do not stop an import."""


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
    conversation: Source
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
                    events += len(part.conversation.values)
                    size += part.item.size + part.conversation.media_size
        except Exception as error:  # noqa: BLE001  # finish() raises it, after what was read before is imported
            group.error, self._ended = error, True
        if not group.parts and group.error is None:
            return None
        self._decide(group)
        return group

    def _read(self, item: Item) -> _Part | ImportFailure:
        try:
            transcript = read_transcript(item)
            conversation: Source = read_conversation(item.value) if transcript is None else self._path(transcript)
        except _REFUSALS as error:
            return failure(item, error)
        occurrence = count_occurrence(conversation, self._counts)
        return _Part(item, conversation, occurrence, thread_id(conversation.key(occurrence)))

    def _path(self, transcript: Transcript, first: str | None = None) -> TranscriptPath:
        """The path of a thread: if it exists, the one that it has, else to what the program shows."""
        path = transcript.path(first)
        if not transcript.branches:
            return path
        known = _known_end(self._core, thread_id(path.key()), import_type(transcript.format))
        return path if known is None else transcript.path(first, known)

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
                continue
            try:
                if part.thread_id in group.new:
                    group.new.remove(part.thread_id)
                    done = _imported(part.thread_id, part.conversation.appended(), started=True)
                else:
                    done = yield from import_conversation(
                        self._core, part.conversation, part.occurrence, self._options.actor
                    )
                self._note(done)
                if isinstance(part.conversation, TranscriptPath) and part.conversation.transcript.branches:
                    yield from self._import_forks(part.thread_id, part.conversation)
            except _REFUSALS as error:
                self._note_failure(failure(part.item, error))
        if group.error is not None:
            raise group.error

    def _import_forks(self, thread: str, path: TranscriptPath) -> Operation[None]:
        """Import the forks that leave a path, and those that leave them, each in an append of its own."""
        pending = [(thread, path)]
        while pending:
            parent, path = pending.pop()
            versions: Sequence[int] | None = None
            for first in path.forks():
                if versions is None:
                    stored = yield from _stored_thread(self._core, parent)
                    versions = () if stored is None else path.stored(stored.messages, stored.records)[1]
                branch = yield from read(partial(self._path, path.transcript, first))
                cut = versions[branch.shared - 1] if branch.shared else 1
                done = yield from _import_fork(self._core, branch, parent, cut, self._options.actor)
                self._note(done)
                pending.append((done.thread_id, branch))

    def _note_failure(self, failure: ImportFailure) -> None:
        self.report.failed.append(failure)
        if self._progress is not None:
            self._progress(self.report)

    def _note(self, done: Imported) -> None:
        self.report = _add_imported(self.report, done)
        if self._progress is not None:
            self._progress(self.report)


def _do_nothing(_: object) -> None: ...


def _known_end(core: Core, id_: str, type_: str) -> str | None:
    """The node that the path of an imported thread leads to; None without a record of it."""
    events = core.log.lineage(core.stream(id_), types=(RECORD_APPENDED,))
    found = [record for event in events if (record := as_record(event)) is not None and record.type == type_]
    return leads_to(found[-1]) if found else None


def _imported(id_: str, items: Sequence[MessageAppended | RecordAppended], *, started: bool = False) -> Imported:
    messages = sum(isinstance(item, MessageAppended) for item in items)
    return Imported(id_, messages, started + len(items), record_counts(items) if messages < len(items) else {})


def _import_fork(core: Core, path: TranscriptPath, parent_id: str, cut: int, actor: str | None) -> Operation[Imported]:
    """Begin the fork of a branch, or import it as a conversation if it exists. Raises its errors."""
    id_ = thread_id(path.key())
    if not (yield from read(lambda: core.log.existing([core.stream(id_)]))):
        events = path.appended(path.shared)
        begun = ForkStart(events=events, said=path.said_from(path.shared))
        with suppress(ThreadExistsError):  # another import was faster
            yield from fork(core, parent_id, begun, at=cut, at_message=None, new_id=id_, actor=actor)
            return _imported(id_, events, started=True)
    return (yield from import_conversation(core, path, 1, actor))


def import_conversation(
    core: Core, conversation: Source, occurrence: int, actor: str | None = None
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
                    return _imported(id_, conversation.appended(), started=True)
                case Extend(items=items, said=said, expected_version=version):
                    options = CommitOptions(actor=actor, expected_version=version)
                    yield from commit(core, id_, Append(items, said), options)
                    return _imported(id_, items)
        except (ConflictError, ThreadExistsError):  # another writer changed the thread: try again
            attempts += 1
            if attempts == ATTEMPTS:
                raise


def _add_imported(report: ImportReport, done: Imported) -> ImportReport:
    if not done.events:
        return report._replace(skipped=report.skipped + 1)
    records = {**Counter(report.records) + Counter(done.records)} if done.records else report.records
    return ImportReport(
        report.threads + 1,
        report.messages + done.messages,
        report.events + done.events,
        report.skipped,
        report.failed,
        records,
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
    return StoredThread(started, control, messages, _records_on_path(events, control.version))


def _records_on_path(events: Sequence[Event], version: int) -> list[ThreadRecord]:
    """The records on the path at a version, in order."""
    by_version = {event.version: event for event in events}
    records: list[ThreadRecord] = []
    while version:
        event = by_version.get(version)
        record = None if event is None else as_record(event)
        records += [] if record is None else [record]
        version = previous_version(version, event)
    return records[::-1]


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
