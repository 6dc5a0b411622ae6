"""How names and numbers stand in the tables of a PostgreSQL store."""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256

HIGHEST = 2**63 - 1


@lru_cache(maxsize=4_096)
def stream_id(name: str) -> int:
    """The integer that stands for a stream: the first 63 bits of SHA-256 of its name."""
    return int.from_bytes(sha256(name.encode()).digest()[:8]) >> 1


def tenant_of(stream: str) -> str:
    """The tenant of a stream: what its name begins with, up to the first ``/``."""
    tenant, slash, _ = stream.partition("/")
    return tenant if slash else ""


def tenant_id(stream: str) -> int:
    """The integer that stands for the tenant of a stream."""
    return stream_id(tenant_of(stream))


def within(value: int) -> int:
    """The nearest integer of 64 bits: no version, position or count lies between."""
    return max(-HIGHEST, min(value, HIGHEST))


def text(stored: bytes) -> str:
    """Text as it was stored; what somebody damaged is shown as far as it can be, for verification to name."""
    return stored.decode(errors="surrogateescape")
