"""The store of ``postgresql+shards:`` URLs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clew.domain.errors import StoreUrlError
from clew.infrastructure.postgres.store import PostgresStore
from clew.infrastructure.stores import Schemas, Store, store_at, without_secrets

if TYPE_CHECKING:
    from clew.infrastructure.completion_names import NameListing
    from clew.infrastructure.event_log import ConversationLog
    from clew.infrastructure.postgres.projection_store import PostgresProjections
    from clew.infrastructure.postgres.vectors import PostgresVectors
    from clew.infrastructure.shards.directory import Directory


class ShardedStore(Store):
    """A directory of shards: a PostgreSQL database that says which database each tenant is in."""

    def __init__(self, url: str) -> None:
        self._plain = url.replace("postgresql+shards", "postgresql", 1)
        self._database = PostgresStore(self._plain)
        self.name = self._database.name
        self.read_only = self._database.read_only

    def directory(self) -> Directory:
        """The directory itself."""
        from clew.infrastructure.shards.directory import Directory

        return Directory(self._plain, self._database.address)

    def of_tenant(self, tenant: str, *, create: bool) -> Store:
        """The store of the tenant's shard."""
        return store_at(self.directory().url_of(tenant, place=create), read_only=self.read_only)

    def list_names(self, tenant: str) -> NameListing:
        """Names of a tenant's streams, from its shard."""
        return self.of_tenant(tenant, create=False).list_names(tenant)

    def open_log(self, *, create: bool = True, tenant: str | None = None) -> ConversationLog:
        """Always an error: a log is in a shard."""
        del create, tenant
        raise self._not_a_store()

    def open_projections(self, *, tenant: str | None = None) -> PostgresProjections:
        """Always an error: projections are in a shard."""
        del tenant
        raise self._not_a_store()

    def open_vectors(self, *, tenant: str | None = None) -> PostgresVectors:
        """Always an error: vectors are in a shard."""
        del tenant
        raise self._not_a_store()

    def schemas(self) -> Schemas:
        """Always an error: each shard has its own schema."""
        raise self._not_a_store()

    def _not_a_store(self) -> StoreUrlError:
        return StoreUrlError(f"{self.name} is a directory of shards, not a store. Name one of its shards.")


def shard_directory(url: str) -> Directory:
    """The directory of shards that a URL names. Raises StoreUrlError."""
    store = store_at(url)
    if not isinstance(store, ShardedStore):
        raise StoreUrlError(
            f"{without_secrets(url)!r} does not name a directory of shards. "
            "Use postgresql+shards://user@host:5432/directory."
        )
    return store.directory()
