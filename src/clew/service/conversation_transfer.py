"""Import and export of conversations in the OpenAI chat format. Each is imported once, and exported unchanged."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
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
from clew.domain.events import ThreadStarted
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
from clew.domain.streams import stream_id
from clew.service import thread_directory, thread_queries
from clew.service.authorization import check, check_existing_stream, permitted
from clew.service.core import ATTEMPTS, CommitOptions, Core, commit
from clew.service.effects import Ahead, Operation, read
from clew.service.thread_commands import start
from clew.service.thread_queries import At

AHEAD = 32
"""How many conversations are passed to the writer before the outcome of the first is awaited."""

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
    """Import conversations in their order, each in one append. The next ones are read while earlier ones are written.

    Failures are in the report and do not stop the import. Raises the errors of the reader of the items, and StoreError
    if the store fails. Earlier imports stay; of the next ones, up to ``AHEAD`` may be stored, too.
    """
    counts: Counter[str] = Counter()
    importing = _Import(progress)
    try:
        while (item := (yield from read(lambda: next(items, None)))) is not None:
            if isinstance(item, ImportFailure):
                yield from importing.finish()
                importing.note_failure(item)
            else:
                yield from importing.begin(item, _import_item(core, item, counts, actor))
        yield from importing.finish()
    except Exception:
        with suppress(Exception):  # of the reader's error and those of the store, the first is raised
            yield from importing.finish()
        raise
    except (KeyboardInterrupt, asyncio.CancelledError):
        yield from importing.withdraw()
        raise
    return importing.report


class _Import:
    """An import: its report, and the conversations that were begun and are not in it yet."""

    def __init__(self, progress: Progress | None) -> None:
        self.report = ImportReport(0, 0, 0, 0, [])
        self._progress = progress
        self._ahead: deque[tuple[Item, Ahead[Imported]]] = deque()

    def begin(self, item: Item, operation: Operation[Imported]) -> Operation[None]:
        """Begin with a conversation. Finish the first one if too many were begun, and all if one has the same id."""
        id_ = _id_of(item)
        if id_ is not None and any(_id_of(other) == id_ for other, _ in self._ahead):
            yield from self.finish()
        ahead = Ahead(operation)
        self._ahead.append((item, ahead))
        yield from ahead.begin()
        if len(self._ahead) > AHEAD:
            yield from self._finish_first()

    def finish(self) -> Operation[None]:
        """Finish all that were begun."""
        while self._ahead:
            yield from self._finish_first()

    def withdraw(self) -> Operation[None]:
        """Cancel the writes of all that were begun, and wait for those that cannot be cancelled."""
        for _, ahead in self._ahead:
            yield from ahead.withdraw()

    def note_failure(self, failure: ImportFailure) -> None:
        """Add a conversation that was not imported."""
        self.report.failed.append(failure)
        if self._progress is not None:
            self._progress(self.report)

    def _finish_first(self) -> Operation[None]:
        item, ahead = self._ahead[0]
        try:
            done = yield from ahead.finish()
        except (ImportFormatError, InvalidContentError, NotAuthorizedError) as error:
            self._ahead.popleft()
            self.note_failure(failure(item, error))
        except Exception:
            self._ahead.popleft()
            raise
        else:
            self._ahead.popleft()
            self.report = _add_imported(self.report, done)
            if self._progress is not None:
                self._progress(self.report)


def _id_of(item: Item) -> str | None:
    """What tells the ids of conversations apart, None for a conversation without an id."""
    id_ = item.value.get("id") if isinstance(item.value, dict) else None
    return None if id_ is None else repr(id_)


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


def _import_item(core: Core, item: Item, counts: Counter[str], actor: str | None) -> Operation[Imported]:
    conversation = yield from read(lambda: read_conversation(item.value))
    return (yield from import_conversation(core, conversation, count_occurrence(conversation, counts), actor))


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
    started = first.data if first.stream == stream and isinstance(first.data, ThreadStarted) else None
    return StoredThread(started, reduce(advance, events, Control()), builder.history().messages)


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
