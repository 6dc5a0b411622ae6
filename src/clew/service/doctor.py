"""The checks of ``clew doctor``: each yields a finding, even without a problem."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from clew.domain.diagnostics import Finding, count
from clew.domain.errors import ClewError, StoreSchemaError
from clew.domain.ports import EventLog, Verdict
from clew.domain.projection import Projection
from clew.domain.streams import parse_stream_name
from clew.infrastructure import clock
from clew.infrastructure.stores import Store, store_at
from clew.service.core import Core, open_core
from clew.service.projection_status import ProjectionStatus, read_statuses
from clew.service.projector import OTHER_LOG
from clew.service.thread_queries import verify_all

NEWEST_EVENTS = 500
MOST_THREADS = 20
"""Without ``verify``, the threads of the newest events are verified."""

FAR_BEHIND = 100_000
"""Events."""


def examine(
    url: str, *, tenant: str, projections: Sequence[Projection] | None = None, verify: bool = False
) -> Iterator[Finding]:
    """The findings about the store that a URL names. With ``verify`` the whole store is read.

    Raises StoreUrlError, also for a directory of shards.
    """
    store = store_at(url)
    yield from store.check_environment()
    if not store.is_lasting:
        yield Finding("database", "ok", "A store in memory is empty, and ends with the process.")
        return
    try:
        schemas = store.schemas()
    except ClewError as error:
        name = "schema" if isinstance(error, StoreSchemaError) else "database"
        yield Finding(name, "failed", str(error), "Solve this first: the other checks need it.")
        return
    yield from store.check_files()
    if schemas is not None:
        if schemas.found != schemas.known:
            yield _of_schema(store.name, schemas.found, schemas.known)
            return
        yield Finding("schema", "ok", f"{store.name} has schema {schemas.known}, which this Clew needs.")
    try:
        core = open_core(
            url,
            tenant=tenant,
            create=False,
            now=clock.now,
            projections=projections,
            embedded=False,
            read_only=not store.can_be_written(),
        )
    except ClewError as error:
        yield Finding("database", "failed", str(error), "The message says what to do.")
        return
    try:
        yield from _of_core(core, store, verify=verify)
    except ClewError as error:
        yield Finding("database", "failed", str(error), "The message says what to do.")
    finally:
        core.close()


def _of_schema(shown: str, found: int, known: int) -> Finding:
    if not found:
        return Finding("schema", "failed", f"{shown} does not have Clew's tables.", "Make them with `clew migrate`.")
    advice = "Copy it, then bring it up to date with `clew migrate`."
    return Finding("schema", "failed", f"{shown} has schema {found}, and this Clew needs {known}.", advice)


def _of_core(core: Core, store: Store, *, verify: bool) -> Iterator[Finding]:
    yield Finding("database", "ok", f"{store.name} can be opened; its last position is {core.log.last_position():,}.")
    yield from store.check_tables(core.tenant, clock.now())
    yield from _projections(core)
    if verify:
        yield of_verdict(verify_all(core), "the whole store")
        yield from store.check_pages()
    else:
        yield _newest(core.log)


def _projections(core: Core) -> Iterator[Finding]:
    try:
        statuses = read_statuses(core.models.projector)
    except ClewError as error:
        yield Finding("projections", "failed", str(error), "The message says what to do.")
        return
    yield from map(of_projection, statuses)


def of_projection(status: ProjectionStatus) -> Finding:
    """The finding for the status of a projection."""
    name = f"projection {status.name}"
    summary = f"{status.state}, version {status.version}, at position {status.position:,} of {status.last_position:,}"
    lost = next((each for each in status.parked_events if each.type == OTHER_LOG), None)
    if lost is not None:
        return Finding(
            name,
            "failed",
            f"Its tables were filled from another log, up to position {lost.position:,}, and were rebuilt.",
            "An older copy was put in the place of the log, or another file: newer events are missing. If that was "
            f"intended, run `clew rebuild {status.name}`.",
        )
    if status.parked:
        first = status.parked_events[0]
        return Finding(
            name,
            "warning",
            f"It skipped {count(status.parked, 'event')}, the first at position {first.position:,}: {first.error}.",
            f"Correct its code, or what `clew verify` finds, then run `clew rebuild {status.name}`.",
        )
    if status.state == "newer":
        advice = "Use the newer Clew: this one reads the tables, but does not fill them."
        return Finding(name, "warning", f"A newer version of it has built its tables: {summary}.", advice)
    if status.state == "changed":
        advice = "The next process that fills it rebuilds it: `clew project run --once`."
        return Finding(name, "warning", f"Other code built its tables: {summary}.", advice)
    if status.lag >= FAR_BEHIND:
        advice = "The next read waits until it has caught up. `clew project run --once` catches up now."
        return Finding(name, "warning", f"It is {count(status.lag, 'event')} behind: {summary}.", advice)
    if status.lag:
        return Finding(
            name, "ok", f"It is {count(status.lag, 'event')} behind and catches up at its next read: {summary}."
        )
    return Finding(name, "ok", f"{summary[0].upper()}{summary[1:]}.")


def _newest(log: EventLog) -> Finding:
    """Verify a part of the store. The time does not depend on the size of the store."""
    last = log.last_position()
    streams: dict[str, None] = {}
    for row in reversed(log.rows_after(max(0, last - NEWEST_EVENTS), NEWEST_EVENTS, "")):
        name = parse_stream_name(row.stream)
        if name is not None and name.kind == "thread":
            streams[row.stream] = None
    newest = list(streams)[:MOST_THREADS]
    verdict = log.verify(*newest) if newest else Verdict(0, 0, None)
    return of_verdict(verdict, "the newest ones; `clew doctor --verify` checks all")


def of_verdict(verdict: Verdict, what: str) -> Finding:
    """The finding for a verification."""
    bad = verdict.first_bad
    if bad is None:
        checked = f"{count(verdict.threads, 'thread')}, {count(verdict.events, 'event')}"
        return Finding("verified", "ok", f"{checked} verified: {what}.")
    advice = "Another program changed it, or the disk failed. Compare it with a backup; `clew verify` says more."
    if bad.kind == "senseless":
        advice = "An older Clew imported it, or another program wrote it. Continue with a fork from an earlier version."
    return Finding("verified", "failed", f"Thread {bad.thread_id}, version {bad.version}: {bad.reason}.", advice)
