"""What became of what is remembered: which facts were passed on to runs, and where."""

from __future__ import annotations

from collections.abc import Iterator

from clew.domain.projection import Change, Column, Recorded, Rows, Table, Upsert


class Memory:
    """A row for each fact and each time that a context provider passed it on: no text, only ids.

    ``version`` is that of the ``context-provided`` event in the thread that it is recorded in, ``position`` its place
    in the store.
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
        """Each fact that was passed on is a use of it."""
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
