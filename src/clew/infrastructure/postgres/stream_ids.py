"""The integers that stand for streams and tenants in PostgreSQL, and the conversion of names and numbers."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from hashlib import sha256

from clew.infrastructure.append_plan import stream_name
from clew.infrastructure.recorder_ports import HIGHEST, Append


@lru_cache(maxsize=4_096)
def stream_id(name: str) -> int:
    """The integer of a stream: the first 63 bits of the SHA-256 of its name."""
    return int.from_bytes(sha256(name.encode()).digest()[:8]) >> 1


def tenant_of(stream: str) -> str:
    """The tenant of a stream: its name up to the first ``/``."""
    tenant, slash, _ = stream.partition("/")
    return tenant if slash else ""


@lru_cache(maxsize=4_096)
def tenant_id(stream: str) -> int:
    """The integer of a stream's tenant."""
    return stream_id(tenant_of(stream))


def within(value: int) -> int:
    """The nearest 64-bit integer: no version, position or count is outside."""
    return max(-HIGHEST, min(value, HIGHEST))


def table_name(generation: int, table: str) -> str:
    """The name of a table, or of an index of words, of a generation of a projection."""
    return f"clew_g{generation}_{table}"


def index_name(table: str, which: int | str) -> str:
    """The name of an index of a projection's table: no table and no index of another table has it."""
    return f"{table.replace('clew_g', 'clew_i', 1)}_{which}"


def text(stored: bytes) -> str:
    """Stored text. Damaged bytes are shown as well as possible, so that verification can name them."""
    return stored.decode(errors="surrogateescape")


def streams_of(append: Append) -> Iterable[str]:
    """The names of all streams that an append writes to or reads."""
    for event in append.events:
        yield stream_name(event.originator_id)
    for fork in append.forks.values():
        yield fork.parent
    yield from (shred.stream for shred in append.shreds)
    yield from (snapshot.stream for snapshot in append.snapshots)
    yield from (claim.stream for claim in append.claims)
    yield from (draft.stream for draft in append.drafts)
    yield from (fold.stream for fold in append.folds)
    if append.key is not None:
        yield append.key.stream


def only_stream(append: Append) -> str | None:
    """The stream of an append that only has events of one stream; None for any other append."""
    events = append.events
    if not events or any(append[1:7]) or any(append[9:]):  # all but ``previous`` and ``links``
        return None
    if len(events) > 1 and len({event.originator_id for event in events}) > 1:
        return None
    return stream_name(events[0].originator_id)
