"""Full-text search: the words of messages, in their text, their tool calls and the results of tools."""

from __future__ import annotations

from collections.abc import Iterable

from clew.domain.projection import ALL_VERSIONS, Change, ForgetText, IndexText, Recorded, Rows
from clew.domain.search_terms import only_words, searchable, tenant_scope, thread_scope


class Search:
    """An index of the words of messages, without their text: the text of a hit is read from its event.

    The author is not part of the text: a name finds no message, and a hit shows the author next to it.
    """

    name = "search"
    version = 3
    code_digest = "search-3"  # of this version: change both where it makes other rows
    tables = ()
    texts = ("words",)
    types = frozenset({"message-appended", "message-redacted", "thread-purged"})

    def project(self, event: Recorded, rows: Rows) -> Iterable[Change]:
        """A message can be found until it is redacted."""
        del rows
        if event.data is None or event.kind != "thread":
            return ()
        tenant, thread_id = event.tenant, event.thread_id
        if event.type == "thread-purged":
            return (ForgetText("words", tenant, event.kind, thread_id, ALL_VERSIONS),)
        if event.type == "message-redacted":
            return (ForgetText("words", tenant, event.kind, thread_id, event.data["version"]),)
        scopes = (tenant_scope(tenant), thread_scope(tenant, thread_id))
        return (IndexText("words", only_words(searchable(event.data["message"])), scopes),)
