"""The audit trail: who did what and when. The read model finds the entries, and their events describe them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Literal, NamedTuple

from clew.domain.errors import InvalidProjectionError, ProjectionBehindError
from clew.domain.event_sentences import with_article
from clew.domain.event_types import quoted
from clew.domain.events import EVENT_TYPES, MESSAGE_APPENDED, RECORD_APPENDED, to_time, to_utc_microseconds
from clew.domain.json_values import check_count, check_flags
from clew.domain.projection import Query, Recorded, SaidWithin, Unreadable, Where, said_within
from clew.domain.streams import is_thread, stream_id
from clew.projections.audit import BLOCK, Part, following, in_all
from clew.service.authorization import check, permitted
from clew.service.core import Core
from clew.service.effects import Operation, Page, Pages, read
from clew.service.thread_directory import SEPARATELY, few_permitted

AUDIT = "audit"

FEWEST_ROWS = 64
"""Rows of a list that are read together, where a page has fewer entries."""


class AuditEntry(NamedTuple):
    """One event in the audit trail: of a thread, or of the memory scope that ``scope`` names.

    ``what`` is a sentence without any text of messages and facts; ``why`` is the reason that was given.
    ``cause``, ``run_id``, ``subject``, ``said_at`` and ``on_behalf_of`` are those of the event. ``actor`` is None if
    the event has none. Of an event that cannot be read, ``actor`` is None, and ``time`` is that of the
    first of up to 63 events around it.
    """

    position: int
    time: datetime
    actor: str | None
    type: str
    what: str
    why: str | None
    thread_id: str | None
    version: int
    run_id: str | None
    cause: str | None
    subject: str | None
    event_id: str
    hash: str
    scope: str | None = None
    said_at: datetime | None = None
    on_behalf_of: str | None = None


def audit(  # noqa: PLR0913 - every filter has its own parameter
    core: Core,
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
    after: int | None = None,
    newest_first: bool = False,
    limit: int | None = None,
) -> Pages[AuditEntry]:
    """The entries that match, a page at a time. Raises InvalidTimeError for anything but an aware datetime.

    ``limit`` and ``after`` are whole numbers, or InvalidContentError is raised.
    A page raises ProjectionBehindError while only tables of an older version can be read.
    Entries of threads that the actor may not audit are left out; if ``thread`` names such a thread, reading a page
    raises NotAuthorizedError.
    """
    check_flags(newest_first=newest_first)
    check_count(after, "after")
    named = {"thread": thread, "scope": scope, "actor": actor, "on_behalf_of": on_behalf_of, "type": type}
    lists = [_list_of(core, by, value) for by, value in named.items() if value is not None]
    recorded = _Range(to_utc_microseconds(since, "since"), to_utc_microseconds(until, "until"))
    wanted = _Wanted(tuple(lists), thread, recorded, said_within(said_since, said_until), newest_first)
    return Pages(partial(_page, core, wanted), after, limit)


class _Range(NamedTuple):
    """A range of times in which events were recorded, in microseconds; ``until`` is not included."""

    since: int | None
    until: int | None

    def of_blocks(self) -> list[Where]:
        """The conditions on blocks that may have events in the range."""
        since = [] if self.since is None else [Where("last", ">=", self.since)]
        return since if self.until is None else [*since, Where("first", "<", self.until)]

    def has(self, event: Recorded | Unreadable) -> bool:
        """Whether the event is in the range. Of one that cannot be read, only the times of its block are known."""
        if isinstance(event, Unreadable):
            return True
        at = event.recorded_at
        return (self.since is None or at >= self.since) and (self.until is None or at < self.until)


class _Wanted(NamedTuple):
    """The entries to read: those in all ``lists``; without lists, all.

    A ``thread`` that is named must be one that the actor may audit.
    """

    lists: tuple[Query, ...]
    thread: str | None
    recorded: _Range
    said: SaidWithin | None
    newest_first: bool

    def has(self, event: Recorded | Unreadable) -> bool:
        """Whether an event in all lists is in both ranges of time."""
        return self.recorded.has(event) and (self.said is None or self.said.has(event))


def _list_of(core: Core, by: str, value: str) -> Query:
    """The blocks with events of a thread, a scope, a type or an actor, on somebody's behalf, or with any events."""
    return Query("entry", (Where("tenant", "=", core.tenant), Where("by", "=", by), Where("value", "=", value)))


def _page(core: Core, wanted: _Wanted, after: int | None, limit: int) -> Operation[Page[AuditEntry, int]]:
    if wanted.thread is not None:
        yield from check(core, "audit", wanted.thread)
    core = core.read_barrier()
    try:
        found = yield from _permitted_positions(core, wanted, after, limit)
        if not found:
            return [], None
        events = yield from read(partial(core.log.recorded_at, found))
        in_order = [event for event in events if wanted.has(event)][:: -1 if wanted.newest_first else 1]
        shown = yield from permitted(core, "audit", in_order, _thread_of)
        times = yield from _times(core, [each.position for each in shown if isinstance(each, Unreadable)])
    except InvalidProjectionError:
        raise ProjectionBehindError(
            "The tables of the audit trail are those of an older Clew. Wait until they are rebuilt: `clew project "
            "status` shows their version, and `clew rebuild audit` does it at once."
        ) from None
    return [_entry(event, times) for event in shown], found[-1] if len(found) == limit else None


def _permitted_positions(core: Core, wanted: _Wanted, after: int | None, limit: int) -> Operation[list[int]]:
    """The first positions that are wanted. If the actor may audit only a few threads, those of no other thread."""
    few = (yield from few_permitted(core, "audit")) if wanted.thread is None else None
    if few is None or len(few) > SEPARATELY:
        lists = wanted.lists or (_list_of(core, "all", ""),)
        return (yield from _positions(core, wanted, lists, after, limit))
    found: list[int] = []
    for id_ in few:
        lists = (_list_of(core, "thread", id_), *wanted.lists)
        found += yield from _positions(core, wanted, lists, after, limit)
    return sorted(found, reverse=wanted.newest_first)[:limit]


def _positions(
    core: Core, wanted: _Wanted, lists: Sequence[Query], after: int | None, limit: int
) -> Operation[list[int]]:
    """The first positions after one that are in all lists, in blocks with wanted times."""
    newest_first, times = wanted.newest_first, wanted.recorded.of_blocks()
    from_: Literal["<=", ">="] = "<=" if newest_first else ">="
    order = ("-block" if newest_first else "block",)
    rows = max(limit, FEWEST_ROWS)
    begin = None if after is None else after // BLOCK
    found: list[int] = []
    while True:
        parts: list[Part] = []
        for each in lists:
            where = (*each.where, *times, *(() if begin is None else (Where("block", from_, begin),)))
            query = each._replace(where=where, order=order, limit=rows, columns=("block", "events"))
            found_rows = yield from core.models.values(AUDIT, query)
            parts.append(Part(dict(found_rows), more=len(found_rows) == rows))
        for position in in_all(parts, newest_first=newest_first):
            if after is None or (position < after if newest_first else position > after):
                found.append(position)
                if len(found) == limit:
                    return found
        begin = following(parts, newest_first=newest_first)
        if begin is None:
            return found


def _thread_of(event: Recorded | Unreadable) -> str | None:
    """The thread of an event, None for one of a scope."""
    if isinstance(event, Recorded):
        return event.thread_id if event.kind == "thread" else None
    return stream_id(event.stream) if is_thread(event.stream) else None


def _times(core: Core, unreadable: Sequence[int]) -> Operation[dict[int, int]]:
    """The first times of the blocks of events that cannot be read, in microseconds, by block."""
    if not unreadable:
        return {}
    all_events = _list_of(core, "all", "")
    where = (*all_events.where, Where("block", "in", [position // BLOCK for position in unreadable]))
    query = all_events._replace(where=where, columns=("block", "first"))
    return dict((yield from core.models.values(AUDIT, query)))


def _entry(event: Recorded | Unreadable, times: Mapping[int, int]) -> AuditEntry:
    thread_id = _thread_of(event)
    fields: dict[str, Any] = {"actor": None, "run_id": None, "cause": None, "subject": None, "event_id": ""}
    if isinstance(event, Recorded):
        fields = {name: getattr(event, name) for name in fields}
        said = event.said if isinstance(event.said, int) else None  # a forged event may have anything there
        fields |= {"said_at": None if said is None else to_time(said), "on_behalf_of": event.on_behalf_of}
        id_, recorded_at = event.thread_id, event.recorded_at
    else:
        id_, recorded_at = stream_id(event.stream), times.get(event.position // BLOCK, 0)
    return AuditEntry(
        position=event.position,
        time=to_time(recorded_at),
        type=event.type,
        what=what(event),
        why=why(event),
        thread_id=thread_id,
        version=event.version,
        hash=event.hash.hex(),
        scope=id_ if thread_id is None else None,
        **fields,
    )


def what(event: Recorded | Unreadable) -> str:
    """What the actor did, without the text of messages. Names are quoted and printable."""
    if isinstance(event, Unreadable):
        return _unreadable(event.type)
    if event.type == MESSAGE_APPENDED and event.redacted:
        return f"appended {with_article(event.role or 'message')}{' message' if event.role else ''} (redacted since)"
    if event.type == RECORD_APPENDED and event.redacted:
        return "appended a record (redacted since)"
    if event.data is None and event.redacted:
        return f"recorded {quoted(event.type)} (redacted since)"
    declared = EVENT_TYPES.get(event.type)
    if declared is None or event.data is None:
        return f"recorded {quoted(event.type)}, which this Clew does not know"
    try:
        return declared.describe(event.data, redacted=event.redacted)
    except ValueError:  # JSON, but not of this event: the row was changed
        return _unreadable(event.type)


def why(event: Recorded | Unreadable) -> str | None:
    """The reason that was given."""
    data = None if isinstance(event, Unreadable) else event.data
    reason = None if data is None else data.get("reason")
    return reason if isinstance(reason, str) else None


def _unreadable(type_: str) -> str:
    return f"recorded {quoted(type_)}, which cannot be read: verify says what is wrong with it"
