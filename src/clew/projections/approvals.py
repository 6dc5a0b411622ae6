"""Approvals: the threads whose open run waits for a decision."""

from __future__ import annotations

from collections.abc import Iterable

from clew.domain.projection import Change, Column, Delete, Recorded, Rows, Table, Upsert


class Approvals:
    """One row for each thread whose open run has requests without a decision: their number, and no content.

    ``position`` is the place in the store of the first of them. What they ask for is read from the log.
    """

    name = "approvals"
    version = 2
    code_digest = "approvals-2"  # of this version: change both where it makes other rows
    tables = (
        Table(
            "waiting",
            (
                Column("tenant"),
                Column("thread_id"),
                Column("position", "integer", keeps="least"),
                Column("requests", "integer", adds=True),
            ),
            key=("tenant", "thread_id"),
            indexes=(("tenant", "position"),),
        ),
    )
    texts = ()
    types = frozenset(
        {
            "approval-requested",
            "approval-given",
            "run-completed",
            "run-failed",
            "run-abandoned",
            "history-rewound",
            "thread-ended",
            "thread-deleted",
            "thread-purged",
        }
    )

    def project(self, event: Recorded, rows: Rows) -> Iterable[Change]:
        """Count the requests of a run until each has a decision, or the run ends."""
        if event.kind != "thread":
            return ()
        key = event.tenant, event.thread_id
        place = {"tenant": event.tenant, "thread_id": event.thread_id}
        if event.type == "approval-requested":
            return (Upsert("waiting", {**place, "position": event.position, "requests": 1}),)
        if event.type == "approval-given":
            row = rows.get("waiting", *key)
            if row is not None and row["requests"] > 1:
                return (Upsert("waiting", {**place, "requests": -1}),)
        return (Delete("waiting", key),)
