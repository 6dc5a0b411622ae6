"""URLs of databases that are a directory and its shards."""

from __future__ import annotations

from clew.infrastructure.shards.store import shard_directory


def sharded(url: str) -> str:
    """The URL of a directory in this database."""
    return url.replace("postgresql://", "postgresql+shards://")


def address(url: str) -> str:
    """The address of a database, as a directory stores it."""
    return url.split("@")[1]


def homes(url: str, tenants: list[str]) -> dict[str, str]:
    """The URL of each tenant's store."""
    return {tenant: shard_directory(url).url_of(tenant, place=True) for tenant in tenants}
