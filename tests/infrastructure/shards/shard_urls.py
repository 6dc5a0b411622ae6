"""Databases as a directory and its shards, as the tests of them name them."""

from __future__ import annotations

from clew.infrastructure.shards.store import shard_directory


def sharded(url: str) -> str:
    """The URL of a database as that of a directory."""
    return url.replace("postgresql://", "postgresql+shards://")


def address(url: str) -> str:
    """Where a database is, as a directory says it."""
    return url.split("@")[1]


def homes(url: str, tenants: list[str]) -> dict[str, str]:
    """The URL of each tenant's store."""
    return {tenant: shard_directory(url).url_of(tenant, place=True) for tenant in tenants}
