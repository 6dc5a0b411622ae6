"""Checks of a PostgreSQL store for `clew doctor`: the server, its settings and sessions, the rights, the tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
from psycopg.types.numeric import Int8

from clew.domain.diagnostics import Finding, binary_size, count, runs_finding
from clew.domain.errors import ClewError
from clew.infrastructure.postgres.connection import Address, Rows
from clew.infrastructure.postgres.connection_pool import ConnectionPool
from clew.infrastructure.postgres.errors import unavailable
from clew.infrastructure.postgres.sql_files import statements
from clew.infrastructure.postgres.stream_ids import text

LONG_OPEN = 30.0
"""Seconds that an open transaction may hold readers back before a warning."""

MANY_SINCE = 1_000
"""Transactions that may begin after an open one of unknown age before a warning."""

FEW_CONNECTIONS_LEFT = 0.2
FAR_BEHIND = 60.0
"""Seconds."""

LARGE_LOG = 1024 * 1024 * 1024
"""Bytes."""

DEAD_MANY, DEAD_SHARE = 10_000, 0.2

READ = (
    "clew_blob",
    "clew_draft",
    "clew_entry",
    "clew_event",
    "clew_fold_state",
    "clew_key",
    "clew_lease",
    "clew_meta",
    "clew_record_blob",
    "clew_snapshot",
    "clew_stream",
)
WRITTEN = ("clew_event", "clew_stream")

_SQL = statements("doctor.sql")

Asking = Callable[..., Rows]


def of_server(address: Address) -> Iterator[Finding]:
    """The server as this user sees it, with or without Clew's tables. Nothing if it cannot be reached."""
    try:
        connection = address.connect()
    except ClewError:
        return  # opening the store reports the reason
    with closing(connection):

        def ask(name: str, **parameters: Any) -> Rows:
            return connection.execute(_SQL[name].encode(), parameters or None).fetchall()

        try:
            version, user, standby = ask("server")[0]
        except psycopg.Error as error:
            yield _failed_check("server", address, error)
            return
        role = "standby, which is only read" if standby else "server"
        yield Finding("server", "ok", f"{address.shown} is a {role}, PostgreSQL {version}; this user is {user}.")
        checks: list[tuple[str, Callable[[], Finding]]] = [
            ("rights", lambda: _rights(ask, user, standby=standby)),
            ("tenants", lambda: _security(ask, user)),
            ("durability", lambda: of_durability(*ask("settings")[0][:4])),
            ("readers", lambda: of_oldest_writer(next(iter(ask("oldest writer")), None), ask("begun since")[0][0])),
            ("connections", lambda: of_connections(*ask("connections")[0])),
            ("standby", lambda: of_standby(*ask("standby")[0]))
            if standby
            else ("replication", lambda: of_replication(ask("followers")[0][0], next(iter(ask("idle slots")), None))),
            ("pgvector", lambda: _vector(ask("vector"))),
        ]
        for name, check in checks:
            yield _checked(name, address, check)


def of_tables(address: Address, tenant: str | None, now: int) -> Iterator[Finding]:
    """Clew's own tables, which must exist; ``now`` is in microseconds since 1970."""
    session = ConnectionPool(address, 1, tenant=tenant).fresh()
    with closing(session.connection):

        def ask(name: str, **parameters: Any) -> Rows:
            return session.query(_SQL[name], parameters or None)

        yield _checked("size", address, lambda: _size(*ask("sizes")[0]))
        yield _checked("vacuum", address, lambda: of_dead_rows(ask("settings")[0][4], *ask("dead rows")[0]))
        yield _checked("runs", address, lambda: _runs(ask, Int8(now)))


def _runs(ask: Asking, now: Int8) -> Finding:
    crashed = [(text(stream), text(holder)) for stream, holder in ask("crashed runs", now=now)]
    leases, drafts, definitions, size = ask("runs", now=now)[0]
    return runs_finding(leases, drafts, definitions, size, crashed)


def _checked(name: str, address: Address, check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except psycopg.Error as error:
        return _failed_check(name, address, error)


def _failed_check(name: str, address: Address, error: psycopg.Error) -> Finding:
    advice = "Follow the message, or run `clew doctor` as a user with more rights (pg_monitor)."
    return Finding(name, "warning", f"This check failed: {unavailable(address.shown, error)}", advice)


def _rights(ask: Asking, user: str, *, standby: bool) -> Finding:
    found = {name: (reads, writes) for name, reads, writes in ask("rights", names=list(READ))}
    if not found:
        if ask("may create")[0][0]:
            return Finding("rights", "ok", f"{user} can create tables.")
        advice = "Grant it CREATE on a schema in its search_path, or run `clew migrate` as another user."
        return Finding("rights", "failed", f"{user} cannot create tables, and there are none.", advice)
    missing = [name for name in READ if name not in found]
    if missing:
        advice = "Restore the database from a copy, or name another."
        return Finding("rights", "failed", f"These tables of Clew's are missing: {', '.join(missing)}.", advice)
    unread = [name for name, (reads, _) in found.items() if not reads]
    if unread:
        advice = "Grant it SELECT on Clew's tables; with row-level security, make it a member of clew_app."
        return Finding("rights", "failed", f"{user} cannot read {', '.join(unread)}.", advice)
    unwritten = [name for name in WRITTEN if name in found and not found[name][1]]
    if unwritten and not standby:
        advice = "Grant it INSERT on Clew's tables, unless it only reads."
        return Finding("rights", "warning", f"{user} cannot write {', '.join(unwritten)}.", advice)
    return Finding("rights", "ok", f"{user} can read Clew's tables" + ("." if standby else " and write events."))


def _security(ask: Asking, user: str) -> Finding:
    found = ask("security")
    active, forced = found[0] if found else (False, False)
    if active:
        return Finding("tenants", "ok", f"Row-level security is on; {user} sees one tenant.")
    if forced:
        return Finding("tenants", "ok", f"Row-level security is on; {user} sees every tenant.")
    return Finding("tenants", "ok", "Row-level security is off: Clew itself separates tenants.")


def of_durability(fsync: str, full_pages: str, commit: str, isolation: str) -> Finding:
    """Whether acknowledged events survive a crash, by the server's settings."""
    settings = {"fsync": fsync, "full_page_writes": full_pages, "synchronous_commit": commit}
    found = ", ".join(f"{name} {value}" for name, value in settings.items())
    weak = [name for name, value in settings.items() if value == "off"]
    if not weak:
        return Finding("durability", "ok", f"{found}; {isolation} by default.")
    advice = f"Turn {' and '.join(weak)} on: a crash can lose acknowledged events, or damage the database."
    return Finding("durability", "warning", f"{found}; {isolation} by default.", advice)


def of_oldest_writer(oldest: tuple[str, str, str, float | None] | None, since: int) -> Finding:
    """The open transaction at which readers stop: its database, its session, its state and its age in seconds.

    The age is None if this user cannot see it. ``since`` counts the transactions that began after the oldest open one.
    """
    if oldest is None:
        return Finding("readers", "ok", "No open transaction holds readers back.")
    database, who, state, age = oldest
    state_text = (
        f"its age is unknown, and {since:,} transactions have begun since"
        if age is None
        else f"for {age:,.0f} s, and is {state}"
    )
    found = f"{who[0].upper()}{who[1:]} in the database {database} writes: {state_text}."
    if since < MANY_SINCE if age is None else age < LONG_OPEN:
        return Finding("readers", "ok", found)
    advice = (
        "Until it ends, readers in the order of events, and projections, do not see what was appended after it began. "
        "End it (pg_terminate_backend, ROLLBACK PREPARED), and set idle_in_transaction_session_timeout on the server."
    )
    return Finding("readers", "warning", found, advice)


def of_connections(used: int, most: int) -> Finding:
    """How many connections the server has, and how many it accepts."""
    found = f"{used:,} of {most:,} connections are in use."
    if used < most * (1 - FEW_CONNECTIONS_LEFT):
        return Finding("connections", "ok", found)
    advice = "Raise max_connections, open fewer stores (?workers=, ?readers=), or put PgBouncer before the server."
    return Finding("connections", "warning", found, advice)


def of_standby(behind: float | None, paused: bool) -> Finding:  # noqa: FBT001 - a column of the answer
    """How far a standby is behind: the age of the last replayed transaction in seconds."""
    if paused:
        advice = "Resume it: SELECT pg_wal_replay_resume()."
        return Finding("standby", "warning", "Replay is paused.", advice)
    found = "It has replayed nothing yet." if behind is None else f"Its last transaction is {behind:,.1f} s old."
    if behind is None or behind < FAR_BEHIND:
        return Finding("standby", "ok", found)
    return Finding("standby", "warning", found, "If the primary is in use, check the connection between them.")


def of_replication(followers: int, idle: tuple[str, int] | None) -> Finding:
    """The number of standbys, and the unused replication slot that retains the most bytes of the log."""
    found = f"{count(followers, 'standby')} {'is' if followers == 1 else 'are'} connected."
    if idle is None or idle[1] < LARGE_LOG:
        return Finding("replication", "ok", found)
    advice = "Restart its reader, or drop it with pg_drop_replication_slot: it fills the disk."
    kept = f"The unused slot {idle[0]} retains {binary_size(idle[1])} of the log."
    return Finding("replication", "warning", f"{found} {kept}", advice)


def _vector(found: Rows) -> Finding:
    installed, available = found[0] if found else (None, None)
    if installed is not None:
        return Finding("pgvector", "ok", f"pgvector {installed} is installed in this database.")
    if available is not None:
        return Finding("pgvector", "ok", f"pgvector {available} is available, but not installed in this database.")
    return Finding("pgvector", "ok", "pgvector is not available on the server.")


def _size(everything: int, events: int) -> Finding:
    return Finding("size", "ok", f"Clew's tables have {binary_size(everything)}, {binary_size(events)} of it events.")


def of_dead_rows(autovacuum: str, live: int, dead: int, of_events: int) -> Finding:
    """Rows in the tables that no transaction can see any more."""
    found = f"{dead:,} dead and {live:,} live rows, by the server's statistics"
    found += f"; {of_events:,} dead rows are events, which contain redacted text until a VACUUM." if of_events else "."
    if autovacuum != "on":
        advice = "Turn it on: without VACUUM, redacted text stays in the tables, and they grow."
        return Finding("vacuum", "warning", f"Autovacuum is off. {found}", advice)
    if dead > DEAD_MANY and dead > live * DEAD_SHARE:
        advice = "VACUUM the tables, and look for a long transaction or an unused replication slot."
        return Finding("vacuum", "warning", found, advice)
    return Finding("vacuum", "ok", found)
