"""The audit trail: the actor, type and time of every event; the rest of an entry is read from the event."""

from __future__ import annotations

from collections.abc import Iterator

from clew.domain.projection import Change, Column, Recorded, Rows, Table, Upsert


class Audit:
    """One row for each event, indexed by thread or memory scope, actor, type and time.

    ``thread_id`` is the id of a thread or, where ``memory`` is 1 and not 0, the name of a scope. ``recorded_at`` is
    microseconds since 1970.
    """

    name = "audit"
    version = 2
    code_digest = "789a87746c675c6d"  # of this version: change both where it makes other rows
    tables = (
        Table(
            "entry",
            (
                Column("position", "integer"),
                Column("tenant"),
                Column("memory", "integer"),
                Column("thread_id"),
                Column("actor"),
                Column("type"),
                Column("recorded_at", "integer"),
            ),
            key=("position",),
            indexes=(
                ("tenant", "type", "position"),
                ("tenant", "actor", "position"),
                ("tenant", "thread_id", "position"),  # last: of two equally good indexes SQLite takes the later one
                ("tenant", "position", "recorded_at"),  # the order of the store; the time is checked in it
            ),
        ),
    )
    texts = ()
    types = None

    def project(self, event: Recorded, rows: Rows) -> Iterator[Change]:
        """Add an entry for every event of a thread or of a scope."""
        del rows
        if event.kind in {"thread", "memory"}:
            yield Upsert(
                "entry",
                {
                    "position": event.position,
                    "tenant": event.tenant,
                    "memory": int(event.kind == "memory"),
                    "thread_id": event.thread_id,
                    "actor": event.actor,
                    "type": event.type,
                    "recorded_at": event.recorded_at,
                },
            )
