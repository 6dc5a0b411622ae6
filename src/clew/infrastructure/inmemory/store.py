"""The store of ``memory:`` URLs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from clew.domain.errors import StoreUrlError
from clew.infrastructure.stores import FORMS, Store, without_secrets

if TYPE_CHECKING:
    from clew.domain.diagnostics import Finding
    from clew.infrastructure.event_log import ConversationLog
    from clew.infrastructure.inmemory.vectors import InMemoryVectors
    from clew.infrastructure.sqlite.projection_store import SQLiteProjections


class InMemoryStore(Store):
    """A store that ends with the process. Each log is a new, empty one; the projections are a SQLite database."""

    is_lasting = False

    def __init__(self, url: str) -> None:
        if url != "memory:":
            raise StoreUrlError(f"{without_secrets(url)!r} does not name a store that Clew can open. {FORMS}")
        self.name = url

    def open_log(self, *, create: bool = True, tenant: str | None = None) -> ConversationLog:
        """A new log."""
        del create, tenant
        if self.read_only:
            raise StoreUrlError("A store in memory begins empty: there would be nothing to read. Open it for writing.")
        from clew.infrastructure.event_log import ConversationLog

        return ConversationLog({"PERSISTENCE_MODULE": "clew.infrastructure.inmemory.factory:InMemoryFactory"})

    def open_projections(self, *, tenant: str | None = None) -> SQLiteProjections:
        """New tables."""
        del tenant
        from clew.infrastructure.sqlite.projection_store import SQLiteProjections

        return SQLiteProjections(None)

    def open_vectors(self, *, tenant: str | None = None) -> InMemoryVectors:
        """A new index."""
        del tenant
        from clew.infrastructure.inmemory.vectors import InMemoryVectors

        return InMemoryVectors()

    def check_environment(self) -> Iterator[Finding]:
        """The SQLite library, which holds the projections."""
        from clew.infrastructure.sqlite import doctor

        return doctor.of_library()
