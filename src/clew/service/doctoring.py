"""Looking for what goes wrong with a store: each thing that is looked at is a finding, whatever state it is in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from clew.domain.errors import ClewError, StoreSchemaError
from clew.domain.names import parse_stream_name
from clew.domain.ports import EventLog, Verdict
from clew.domain.projection import Projection
from clew.domain.views.diagnostics import Finding
from clew.infrastructure import clock
from clew.infrastructure.stores import Store, store_at
from clew.service.core import Core, open_core
from clew.service.projection_status import ProjectionStatus, read_statuses

NEWEST_EVENTS = 500
MOST_THREADS = 20
"""What is verified of a store unless all of it is to be: the threads of its newest events."""

FAR_BEHIND = 100_000
"""Events."""


def examine(
    url: str, *, tenant: str, projections: Sequence[Projection] | None = None, verify: bool = False
) -> Iterator[Finding]:
    """Everything that is found about the store that a URL names; with ``verify`` all of it is read.

    Raises StoreUrlError, also for a directory of shards: then there is nothing to look at.
    """
    store = store_at(url)
    yield from store.check_environment()
    if not store.is_lasting:
        yield Finding("database", "ok", "A store in memory is empty, and gone with the process.")
        return
    try:
        found = store.schemas()
    except ClewError as error:
        name = "schema" if isinstance(error, StoreSchemaError) else "database"
        yield Finding(name, "failed", str(error), "Nothing more can be looked at until that is done.")
        return
    yield from store.check_files()
    if found.found != found.known:
        yield _of_schema(store.name, found.found, found.known)
        return
    yield Finding("schema", "ok", f"{store.name} has schema {found.known}, which is this Clew's.")
    try:
        core = open_core(url, tenant=tenant, create=False, now=clock.now, projections=projections, embedded=False)
    except ClewError as error:
        yield Finding("database", "failed", str(error), "See what the message says.")
        return
    try:
        yield from _of_core(core, store, verify=verify)
    except ClewError as error:
        yield Finding("database", "failed", str(error), "See what the message says.")
    finally:
        core.close()


def _of_schema(shown: str, found: int, known: int) -> Finding:
    if not found:
        return Finding("schema", "failed", f"{shown} has no tables of Clew's.", "Make them with `clew migrate`.")
    advice = "Copy it, then bring it up to date with `clew migrate`."
    return Finding("schema", "failed", f"{shown} has schema {found}, this Clew's is {known}.", advice)


def _of_core(core: Core, store: Store, *, verify: bool) -> Iterator[Finding]:
    yield Finding("database", "ok", f"{store.name} can be opened; its last position is {core.log.last_position():,}.")
    yield from store.check_tables(core.tenant, clock.now())
    yield from _projections(core)
    if verify:
        yield of_verdict(core.log.verify(), "that is everything")
        yield from store.check_pages()
    else:
        yield _newest(core.log)


def _projections(core: Core) -> Iterator[Finding]:
    try:
        statuses = read_statuses(core.models.projector)
    except ClewError as error:
        yield Finding("projections", "failed", str(error), "It can be deleted: it is made anew from the log.")
        return
    yield from map(of_projection, statuses)


def of_projection(status: ProjectionStatus) -> Finding:
    """What the status of a projection means."""
    name = f"projection {status.name}"
    found = f"{status.state}, version {status.version}, at position {status.position:,} of {status.last_position:,}"
    if status.parked:
        first = status.parked_events[0]
        return Finding(
            name,
            "warning",
            f"It went on without {status.parked:,} events, the first at position {first.position:,}: {first.error}.",
            f"Mend its code, or what `clew verify` finds, then `clew rebuild {status.name}`.",
        )
    if status.state == "newer":
        advice = "Use the newer Clew: this one reads what is there, and does not fill it."
        return Finding(name, "warning", f"A newer version of it has built its tables: {found}.", advice)
    if status.state == "changed":
        advice = "It is built anew by the next process that fills it: `clew project run --once`."
        return Finding(name, "warning", f"Other code has built its tables: {found}.", advice)
    if status.lag >= FAR_BEHIND:
        advice = "It is filled when it is read, which will take a while: `clew project run --once` does it now."
        return Finding(name, "warning", f"It is far behind: {found}.", advice)
    return Finding(name, "ok", f"{found[0].upper()}{found[1:]}.")


def _newest(log: EventLog) -> Finding:
    """Verify some of the store, which takes about as long for every one."""
    last = log.last_position()
    streams: dict[str, None] = {}
    for row in reversed(log.rows_after(max(0, last - NEWEST_EVENTS), NEWEST_EVENTS, "")):
        name = parse_stream_name(row.stream)
        if name is not None and name.kind == "thread":
            streams[row.stream] = None
    verdict = Verdict(0, 0, None)
    for stream in list(streams)[:MOST_THREADS]:
        one = log.verify(stream)
        verdict = Verdict(verdict.threads + one.threads, verdict.events + one.events, one.first_bad)
        if one.first_bad is not None:
            break
    return of_verdict(verdict, "those of the newest events; the others were not looked at")


def of_verdict(verdict: Verdict, what: str) -> Finding:
    """What a verification comes to."""
    bad = verdict.first_bad
    if bad is None:
        return Finding("verified", "ok", f"{verdict.threads:,} threads, {verdict.events:,} events verified: {what}.")
    return Finding(
        "verified",
        "failed",
        f"Thread {bad.thread_id}, version {bad.version}: {bad.reason}.",
        "It was changed behind Clew's back, or the disk failed: compare it with a copy. `clew verify` says more.",
    )
