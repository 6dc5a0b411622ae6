"""Uses of memory: the facts that were given to runs, and where."""

from __future__ import annotations

from collections.abc import Iterator

from clew.domain.projection import Change, Column, Recorded, Rows, Table, Upsert


class Memory:
    """One row for each time that a context provider gave a fact to a run: ids only, no text.

    ``version`` is the version of the ``context-provided`` event in its thread, ``position`` its place in the store.
    """

    name = "memory"
    version = 1
    code_digest = "b64242db086fd8df"  # of this version: change both where it makes other rows
    tables = (
        Table(
            "used",
            (
                Column("tenant"),
                Column("scope"),
                Column("fact"),
                Column("position", "integer"),
                Column("thread_id"),
                Column("version", "integer"),
                Column("run_id"),
            ),
            key=("tenant", "scope", "fact", "position"),
        ),
    )
    texts = ()
    types = frozenset({"context-provided"})

    def project(self, event: Recorded, rows: Rows) -> Iterator[Change]:
        """Add a use for each fact that was given."""
        del rows
        if event.data is None or event.kind != "thread":
            return
        for fact in event.data.get("facts", ()):
            yield Upsert(
                "used",
                {
                    "tenant": event.tenant,
                    "scope": fact["scope"],
                    "fact": fact["fact"],
                    "position": event.position,
                    "thread_id": event.thread_id,
                    "version": event.version,
                    "run_id": event.run_id,
                },
            )
