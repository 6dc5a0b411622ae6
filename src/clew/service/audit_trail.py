"""The audit trail: who did what and when. The read model finds the entries, and their events describe them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

from clew.domain.event_sentences import with_article
from clew.domain.event_types import quoted
from clew.domain.events import EVENT_TYPES, MESSAGE_APPENDED, RECORD_APPENDED, to_time, to_utc_microseconds
from clew.domain.json_values import check_count
from clew.domain.projection import Query, Recorded, RowValues, SaidWithin, Unreadable, Where, said_within
from clew.domain.streams import stream_id
from clew.service.authorization import check, permitted
from clew.service.core import Core
from clew.service.effects import Operation, Page, Pages, read
from clew.service.thread_directory import SEPARATELY, few_permitted

AUDIT = "audit"


class AuditEntry(NamedTuple):
    """One event in the audit trail: of a thread, or of the memory scope that ``scope`` names.

    ``what`` is a sentence without any text of messages and facts; ``why`` is the reason that was given.
    ``cause``, ``run_id``, ``subject``, ``said_at`` and ``on_behalf_of`` are those of the event. ``actor`` is None if
    the event has none.
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
    Entries of threads that the actor may not audit are left out; if ``thread`` names such a thread, reading a page
    raises NotAuthorizedError.
    """
    check_count(after, "after")
    where = [Where("tenant", "=", core.tenant)]
    for memory, id_ in enumerate((thread, scope)):
        if id_ is not None:
            where += [Where("thread_id", "=", id_), Where("memory", "=", memory)]
    for column, value in (("actor", actor), ("type", type)):
        if value is not None:
            where.append(Where(column, "=", value))
    if since is not None:
        where.append(Where("recorded_at", ">=", to_utc_microseconds(since, "since")))
    if until is not None:
        where.append(Where("recorded_at", "<", to_utc_microseconds(until, "until")))
    said = said_within(said_since, said_until)
    return Pages(partial(_page, core, tuple(where), thread, said, newest_first=newest_first), after, limit)


def _page(
    core: Core,
    wanted: Sequence[Where],
    thread: str | None,
    said: SaidWithin | None,
    after: int | None,
    limit: int,
    *,
    newest_first: bool,
) -> Operation[Page[AuditEntry, int]]:
    if thread is not None:
        yield from check(core, "audit", thread)
    core = core.read_barrier()
    place = [] if after is None else [Where("position", "<" if newest_first else ">", after)]
    query = Query("entry", [*wanted, *place], ["-position" if newest_first else "position"], limit)
    permitted_threads = (yield from few_permitted(core, "audit")) if thread is None else None
    if permitted_threads is None or len(permitted_threads) > SEPARATELY:
        rows = yield from core.models.select(AUDIT, query)
    else:
        rows = []
        for id_ in permitted_threads:
            of_thread = (*query.where, Where("thread_id", "=", id_), Where("memory", "=", 0))
            rows += yield from core.models.select(AUDIT, query._replace(where=of_thread))
        rows = sorted(rows, key=itemgetter("position"), reverse=newest_first)[:limit]
    if not rows:
        return [], None
    shown = yield from permitted(core, "audit", rows, lambda row: None if row["memory"] else row["thread_id"])
    events = yield from read(partial(core.log.recorded_at, [row["position"] for row in shown]))
    by_position = {event.position: event for event in events if said is None or said.has(event)}
    entries = [_entry(row, by_position[row["position"]]) for row in shown if row["position"] in by_position]
    return entries, rows[-1]["position"] if len(rows) == limit else None


def _entry(row: RowValues, event: Recorded | Unreadable) -> AuditEntry:
    fields: dict[str, Any] = {"run_id": None, "cause": None, "subject": None, "event_id": ""}
    if isinstance(event, Recorded):
        fields = {name: getattr(event, name) for name in fields}
        said = event.said if isinstance(event.said, int) else None  # a forged event may have anything there
        fields |= {"said_at": None if said is None else to_time(said), "on_behalf_of": event.on_behalf_of}
        actor, id_ = event.actor, event.thread_id
    else:
        actor, id_ = row["actor"], stream_id(event.stream)
    return AuditEntry(
        position=event.position,
        time=to_time(row["recorded_at"]),
        actor=actor,
        type=event.type,
        what=what(event),
        why=why(event),
        thread_id=None if row["memory"] else id_,
        version=event.version,
        hash=event.hash.hex(),
        scope=id_ if row["memory"] else None,
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
    declared = EVENT_TYPES.get(event.type)
    if declared is None or event.data is None:
        return f"recorded {quoted(event.type)}, which this Clew does not know"
    try:
        return declared.describe(event.data)
    except ValueError:  # JSON, but not of this event: the row was changed
        return _unreadable(event.type)


def why(event: Recorded | Unreadable) -> str | None:
    """The reason that was given."""
    data = None if isinstance(event, Unreadable) else event.data
    reason = None if data is None else data.get("reason")
    return reason if isinstance(reason, str) else None


def _unreadable(type_: str) -> str:
    return f"recorded {quoted(type_)}, which cannot be read: verify says what is wrong with it"
