"""Full-text search: the words of messages, in their text, their tool calls and the results of tools."""

from __future__ import annotations

from collections.abc import Iterable

from clew.domain.projection import ALL_VERSIONS, Change, Column, ForgetText, IndexText, Recorded, Rows, Table, Upsert
from clew.domain.search_terms import only_words, searchable, tenant_scope, thread_scope


class Search:
    """An index of the words of messages, without their text: the text of a hit is read from its event.

    The author is not part of the text: a name finds no message, and a hit shows the author next to it.

    ``stopped`` has a row for each time that a guardrail stopped a run, at the version of the trip: messages of runs
    ``after`` a version and before the trip were taken off the path, and a search does not show them.
    """

    name = "search"
    version = 4
    code_digest = "search-4"  # of this version: change both where it makes other rows
    tables = (
        Table(
            "stopped",
            (Column("tenant"), Column("thread_id"), Column("version", "integer"), Column("after", "integer")),
            key=("tenant", "thread_id", "version"),
        ),
    )
    texts = ("words",)
    types = frozenset({"message-appended", "message-redacted", "thread-purged", "guardrail-tripped", "history-rewound"})

    def project(self, event: Recorded, rows: Rows) -> Iterable[Change]:
        """A message can be found until it is redacted, or stopped by a guardrail."""
        if event.data is None or event.kind != "thread":
            return ()
        tenant, thread_id = event.tenant, event.thread_id
        if event.type == "guardrail-tripped":
            return (_stopped(event, event.version, event.version),)
        if event.type == "history-rewound":
            trip = event.version - FROM_TRIP
            return (
                ()
                if rows.get("stopped", tenant, thread_id, trip) is None
                else (_stopped(event, trip, event.data["to"]),)
            )
        if event.type == "thread-purged":
            return (ForgetText("words", tenant, event.kind, thread_id, ALL_VERSIONS),)
        if event.type == "message-redacted":
            return (ForgetText("words", tenant, event.kind, thread_id, event.data["version"]),)
        scopes = (tenant_scope(tenant), thread_scope(tenant, thread_id))
        return (IndexText("words", only_words(searchable(event.data["message"])), scopes),)


FROM_TRIP = 2
"""The end of the run and the rewind follow the trip in one commit."""


def _stopped(event: Recorded, trip: int, after: int) -> Upsert:
    values = {"tenant": event.tenant, "thread_id": event.thread_id, "version": trip, "after": after}
    return Upsert("stopped", values)
