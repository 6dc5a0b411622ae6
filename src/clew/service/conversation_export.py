"""Exporting threads in the OpenAI chat format, as they were imported."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from clew.domain.control import Control, advance
from clew.domain.decider import check_readable
from clew.domain.errors import ThreadDeletedError, UnknownThreadError
from clew.domain.events import ThreadStarted
from clew.domain.formats.conversation_import import source_fields
from clew.domain.formats.markdown import ForkedThread, as_markdown
from clew.domain.formats.openai_messages import encode, encode_redacted
from clew.domain.history import HistoryBuilder
from clew.domain.json_values import JsonObject
from clew.domain.names import parse_stream_name
from clew.domain.ports import StreamInfo
from clew.service import thread_queries
from clew.service.authorization import check, permitted
from clew.service.core import Core
from clew.service.operations import Operation, read
from clew.service.thread_queries import At

PAGE = 50


class Cursor(NamedTuple):
    """Where an export of all threads goes on: first the imported ones, then, in a second round, the others."""

    imported: bool = True
    after: int = 0


class Exported(NamedTuple):
    """Some conversations, and where the next ones begin, None after the last."""

    conversations: list[JsonObject]
    next: Cursor | None


def export_thread(core: Core, thread_id: str) -> Operation[JsonObject]:
    """A thread as an object with ``id``, ``messages`` and, of an imported one, the other fields that it came with.

    The ``id`` is the source's, else the thread's own; a thread that was not imported, or a fork, says its title and its
    metadata when it has any. A redacted message has null content and ``"redacted": true``. Raises UnknownThreadError,
    ThreadDeletedError or NotAuthorizedError.
    """
    yield from check(core, "export", thread_id)
    return (yield from _exported(core, thread_id))


def _exported(core: Core, thread_id: str) -> Operation[JsonObject]:
    stream = core.stream(thread_id)
    events = yield from read(lambda: core.log.lineage(stream))
    if not events:
        raise UnknownThreadError(thread_id)
    control = Control()
    for event in events:
        control = advance(control, event)
    check_readable(thread_id, control, "export")
    builder = HistoryBuilder(thread_id)
    builder.add(events)
    messages: list[JsonObject] = []
    for said in builder.history():
        messages += [encode_redacted(said.role)] if said.message is None else encode(said.message)
    first = events[0]
    started = first.data if first.stream == stream and isinstance(first.data, ThreadStarted) else None
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
    """A thread at a version as Markdown, with the forks made until then. Raises what state() raises."""
    then = yield from thread_queries.state(core, thread_id, at, at_message)
    summaries = yield from thread_queries.forks(core, thread_id)
    there = (
        ForkedThread(each.thread_id, each.forked_at, each.title)
        for each in summaries
        if (each.forked_at or 0) <= then.version
    )
    return as_markdown(thread_id, then, there)


def export_page(core: Core, cursor: Cursor, *, forks: bool = False) -> Operation[Exported]:
    """The next conversations of an export of all threads; there may be none of them on a page that is not the last.

    Imported threads come in import order, then the others by creation; deleted ones are left out, and what may not be
    exported, and forks too unless ``forks`` is true.
    """
    prefix = core.prefix()
    streams = yield from read(lambda: core.log.streams(prefix=prefix, after=cursor.after, limit=PAGE))
    found: list[JsonObject] = []
    for stream in (yield from permitted(core, "export", streams, _thread_id)):
        name = stream.name
        control = yield from read(partial(core.log.control, name))
        parsed = parse_stream_name(name)
        wanted = control.imported == cursor.imported and (forks or stream.parent is None)
        if parsed is None or not wanted or not control.version:
            continue
        try:
            found.append((yield from _exported(core, parsed.id)))
        except ThreadDeletedError:
            continue
    if len(streams) == PAGE:
        return Exported(found, Cursor(cursor.imported, streams[-1].key))
    return Exported(found, Cursor(imported=False) if cursor.imported else None)


def _thread_id(stream: StreamInfo) -> str | None:
    name = parse_stream_name(stream.name)
    return None if name is None else name.id
