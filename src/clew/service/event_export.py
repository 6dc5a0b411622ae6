"""Export of stored events, byte for byte, in Clew's own JSONL."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from operator import attrgetter

from clew.domain.blobs import may_name_blobs
from clew.domain.errors import (
    CorruptEventError,
    NotAuthorizedError,
    UnknownThreadError,
)
from clew.domain.formats.clew_jsonl import End, Entry, Header, write_line
from clew.domain.formats.event_import import (
    NAMES_BLOBS,
    TRANSFERRED,
)
from clew.domain.ports import Blob, EventLog, Fork, Row
from clew.domain.streams import Kind, is_thread, stream_prefix
from clew.infrastructure.envelope import decode_row
from clew.service.authorization import action_on, allows
from clew.service.child_runs import with_children
from clew.service.core import Core
from clew.service.effects import Operation, read
from clew.service.stored_rows import (
    PAGE,
    blobs_named_by,
    own_rows,
)

MOST_ROWS = 5_000
"""The most rows that an export of several streams holds in memory."""


def export_events(
    core: Core, thread_ids: Iterable[str] | None, *, definitions: bool = False, children: bool = False
) -> Operation[Iterator[bytes]]:
    """The lines of threads with all their ancestors, or of the whole tenant with its memory, in position order.

    With ``children`` come the threads on which calls ran agents. With ``definitions`` the stored definitions of their
    agents are included, each before the first event that names it.
    The lines are read lazily, by next_lines(). A fork is exported with its complete ancestors, so the caller must have
    permission to export these, too. Raises UnknownThreadError or NotAuthorizedError.
    """
    if thread_ids is None:
        rows = _permitted_rows(
            core, heapq.merge(*(_all_rows(core, each) for each in TRANSFERRED), key=attrgetter("position"))
        )
    else:
        ids: Iterable[str] = thread_ids
        if children:
            ids, _ = yield from read(partial(with_children, core, tuple(ids)))
        streams = yield from read(partial(_with_ancestors, core, ids))
        page = max(MOST_ROWS // max(len(streams), 1), 1)
        rows = heapq.merge(*(own_rows(core.log, name, min(page, PAGE)) for name in streams), key=attrgetter("position"))
    return _lines(core.log, rows, definitions=definitions)


def next_lines(lines: Iterator[bytes]) -> Operation[list[bytes]]:
    """The next page of lines, empty at the end."""
    return (yield from read(lambda: list(islice(lines, PAGE))))


def _with_ancestors(core: Core, thread_ids: Iterable[str]) -> list[str]:
    """The streams of threads and of all their ancestors, each once. Raises NotAuthorizedError."""
    streams: dict[str, None] = {}
    for thread_id in thread_ids:
        _check_export(core, core.stream(thread_id))
        stream = core.log.stream(core.stream(thread_id))
        if stream is None:
            raise UnknownThreadError(thread_id)
        while stream is not None and stream.name not in streams:
            _check_export(core, stream.name)
            streams[stream.name] = None
            stream = None if stream.parent is None else core.log.stream(stream.parent)
    return list(streams)


def _check_export(core: Core, stream: str) -> None:
    _, thread_id = action_on(stream, "export")
    if not allows(core, "export", thread_id):
        raise NotAuthorizedError(core.actor, "export", thread_id)


def _permitted_rows(core: Core, rows: Iterator[Row]) -> Iterator[Row]:
    """The rows of streams that the caller may export together with their parents, whose rows come first."""
    if core.authorize is None:
        return rows
    permitted: dict[str, bool] = {}
    return (row for row in rows if _is_permitted(core, row.stream, permitted))


def _is_permitted(core: Core, name: str, permitted: dict[str, bool]) -> bool:
    if name not in permitted:
        stream = core.log.stream(name)
        parent = None if stream is None else stream.parent
        _, thread_id = action_on(name, "export")
        permitted[name] = (parent is None or permitted.get(parent, False)) and allows(core, "export", thread_id)
    return permitted[name]


def _lines(log: EventLog, rows: Iterator[Row], *, definitions: bool) -> Iterator[bytes]:
    """The lines of a file: its header, the rows with the definitions that they name, and its end.

    The bytes next to an event come before each event that has them: an import may refuse the thread of another one.
    """
    threads = events = blobs = 0
    written: set[bytes] = set()
    yield write_line(Header())
    for row in rows:
        if definitions and row.type in NAMES_BLOBS:
            for blob in _new_blobs(log, row, written):
                yield write_line(blob)
        if may_name_blobs(row.type, row.state) and row.digest is None:
            row, next_to_it = _with_blobs(log, row)  # noqa: PLW2901 - the row as it is now
            blobs += len(next_to_it)
            yield from map(write_line, next_to_it)
        entry = Entry(row, _fork_point(log, row))
        threads += entry.begins and is_thread(row.stream)
        events += 1
        yield write_line(entry)
    yield write_line(End(threads, events, len(written) + blobs))


def _with_blobs(log: EventLog, row: Row) -> tuple[Row, tuple[Blob, ...]]:
    """A row and the bytes next to it. If it was redacted after it was read: the row as it is now."""
    try:
        event = decode_row(row)
    except CorruptEventError:
        return row, ()
    ((event, blobs),) = log.blobs_of([event._replace(position=row.position)])
    if event.redacted:
        (row,) = log.own_rows(row.stream, after=row.version - 1, limit=1)
    return row, blobs


def _new_blobs(log: EventLog, row: Row, written: set[bytes]) -> Iterator[Blob]:
    """The stored blobs that an event names and that were not written before."""
    for name in blobs_named_by(row):
        blob = None if name in written else log.blob(name)
        if blob is not None:
            written.add(name)
            yield blob


def _fork_point(log: EventLog, row: Row) -> Fork | None:
    """The fork point of a fork's first event, from the store: the event itself may be damaged."""
    stream = log.stream(row.stream) if row.type == "thread-forked" else None
    fork = None if stream is None else stream.fork
    return fork if fork is not None and row.version == fork.cut + 1 else None


def _all_rows(core: Core, kind: Kind) -> Iterator[Row]:
    """All rows of the tenant's streams of a kind, until a page is empty.

    So the event that redacted a row always comes after the shredded row.
    """
    position, prefix = 0, stream_prefix(core.tenant, kind)
    while page := core.log.rows_after(position, PAGE, prefix):
        yield from page
        position = page[-1].position
