"""The lines of an export: rows of threads and memory scopes as they lie in the store, and what they need to be read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from clew.domain.errors import CorruptEventError, NotAuthorizedError, UnknownThreadError
from clew.domain.formats.clew_jsonl import End, Entry, Header, write_line
from clew.domain.formats.event_import import NAMES_BLOBS, is_thread, named_blobs
from clew.domain.names import Kind, stream_prefix
from clew.domain.ports import Blob, EventLog, Fork, Row
from clew.infrastructure.envelope import decode
from clew.service.authorization import allows, asked_of
from clew.service.core import Core

PAGE = 100
"""Rows that are read at once: any of them may be as large as an event can be."""


def with_ancestors(core: Core, thread_ids: Iterable[str]) -> list[str]:
    """The streams of threads and of all that they were forked from, each once. Raises NotAuthorizedError."""
    found: dict[str, None] = {}
    for thread_id in thread_ids:
        _check(core, core.stream(thread_id))
        stream = core.log.stream(core.stream(thread_id))
        if stream is None:
            raise UnknownThreadError(thread_id)
        while stream is not None and stream.name not in found:
            _check(core, stream.name)
            found[stream.name] = None
            stream = None if stream.parent is None else core.log.stream(stream.parent)
    return list(found)


def _check(core: Core, stream: str) -> None:
    _, thread_id = asked_of(stream, "export")
    if not allows(core, "export", thread_id):
        raise NotAuthorizedError(core.actor, "export", thread_id)


def exported(core: Core, rows: Iterator[Row]) -> Iterator[Row]:
    """The rows of streams that may be exported, with all that they were forked from; those come before them."""
    if core.authorize is None:
        return rows
    known: dict[str, bool] = {}
    return (row for row in rows if _is_exported(core, row.stream, known))


def _is_exported(core: Core, name: str, known: dict[str, bool]) -> bool:
    if name not in known:
        stream = core.log.stream(name)
        parent = None if stream is None else stream.parent
        _, thread_id = asked_of(name, "export")
        known[name] = (parent is None or known.get(parent, False)) and allows(core, "export", thread_id)
    return known[name]


def lines(log: EventLog, rows: Iterator[Row], *, definitions: bool) -> Iterator[bytes]:
    """A whole file, line by line: its header, the rows with the definitions that they name, and its end."""
    threads = events = 0
    written: set[bytes] = set()
    yield write_line(Header())
    for row in rows:
        if definitions and row.type in NAMES_BLOBS:
            for blob in _not_yet(log, row, written):
                yield write_line(blob)
        entry = Entry(row, _forked_from(log, row))
        threads += entry.begins and is_thread(row.stream)
        events += 1
        yield write_line(entry)
    yield write_line(End(threads, events, len(written)))


def _not_yet(log: EventLog, row: Row, written: set[bytes]) -> Iterator[Blob]:
    """The blobs that an event names, those that are there and were not written before."""
    try:
        named = named_blobs(decode(row.stream, row.version, row.type, row.state))
    except CorruptEventError:  # it is moved as it is
        return
    for name in named:
        blob = None if name in written else log.blob(name)
        if blob is not None:
            written.add(name)
            yield blob


def _forked_from(log: EventLog, row: Row) -> Fork | None:
    """What a fork's first event is a fork of: the store knows it also where the event cannot be read."""
    stream = log.stream(row.stream) if row.type == "thread-forked" else None
    if stream is None or stream.parent is None or stream.cut is None or row.version != stream.cut + 1:
        return None
    return Fork(stream.parent, stream.cut)


def all_rows(core: Core, kind: Kind) -> Iterator[Row]:
    """Every row of a kind of stream of the tenant's, up to an empty page.

    So the event that redacted what is shredded is there.
    """
    position, prefix = 0, stream_prefix(core.tenant, kind)
    while page := core.log.rows_after(position, PAGE, prefix):
        yield from page
        position = page[-1].position


def own_rows(log: EventLog, stream: str, limit: int) -> Iterator[Row]:
    """Every row of a stream's own, so many at a time."""
    after = -1
    while page := log.own_rows(stream, after=after, limit=limit):
        yield from page
        after = page[-1].version
