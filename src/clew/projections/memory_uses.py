"""Memory: the scopes of a tenant, and the facts that were given to runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from clew.domain.projection import Change, Column, Delete, Query, Recorded, Rows, Table, Upsert, Where


class Memory:
    """One row for each scope, and for each time that a context provider gave a fact to a run: ids only, no text.

    In ``used``, ``version`` is the version of the ``context-provided`` event in its thread, ``position`` its place in
    the store. In ``scope``, ``facts`` counts those that are live; ``live`` names them. Times are microseconds since
    1970.
    """

    name = "memory"
    version = 2
    code_digest = "memory-2"  # of this version: change both where it makes other rows
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
        Table(
            "scope",
            (
                Column("tenant"),
                Column("name"),
                Column("holds"),
                Column("version", "integer"),
                Column("facts", "integer", adds=True),
                Column("embedder"),
                Column("dimensions", "integer"),
                Column("opened", "integer"),
                Column("updated", "integer"),
            ),
            key=("tenant", "name"),
        ),
        Table("live", (Column("tenant"), Column("scope"), Column("fact")), key=("tenant", "scope", "fact")),
    )
    texts = ()
    types = frozenset(
        {
            "context-provided",
            "thread-purged",
            "scope-opened",
            "fact-remembered",
            "fact-superseded",
            "fact-retracted",
            "document-added",
            "document-removed",
        }
    )

    def project(self, event: Recorded, rows: Rows) -> Iterator[Change]:
        """Add a use for each fact that was given; note the newest event of a scope, and its live facts."""
        if event.kind == "memory":
            yield from _of_scope(event, event.data or {}, rows)
        elif event.kind == "thread" and event.data is not None:
            yield from _purged(event, rows) if event.type == "thread-purged" else _uses(event, event.data)


def _purged(event: Recorded, rows: Rows) -> Iterator[Change]:
    """A purged thread used nothing."""
    of_thread = (Where("tenant", "=", event.tenant), Where("thread_id", "=", event.thread_id))
    for use in rows.select(Query("used", of_thread)):
        yield Delete("used", (event.tenant, use["scope"], use["fact"], use["position"]))


def _uses(event: Recorded, data: dict[str, Any]) -> Iterator[Change]:
    for fact in data.get("facts", ()):
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


def _of_scope(event: Recorded, data: dict[str, Any], rows: Rows) -> Iterator[Change]:
    scope = (event.tenant, event.thread_id)
    row: dict[str, Any] = {
        "tenant": event.tenant,
        "name": event.thread_id,
        "version": event.version,
        "updated": event.recorded_at,
    }
    if event.version == 1 or rows.get("scope", *scope) is None:  # the first event, or the first one that can be read
        row |= {"holds": data.get("holds", "facts"), "opened": event.recorded_at}
        row |= {name: data.get(name) for name in ("embedder", "dimensions")}
    ended = data.get("fact") if event.type in {"fact-superseded", "fact-retracted"} else None
    new = data.get({"fact-remembered": "fact", "fact-superseded": "by"}.get(event.type, ""))
    # Threads that read the scope as of a cut can each end the same fact.
    if ended is not None and rows.get("live", *scope, ended) is not None:
        row["facts"] = -1
        yield Delete("live", (*scope, ended))
    if new is not None:
        row["facts"] = row.get("facts", 0) + 1
        yield Upsert("live", {"tenant": event.tenant, "scope": event.thread_id, "fact": new})
    yield Upsert("scope", row)
