"""Names in a store for tab completion, read without opening the store or creating files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from clew.domain.streams import Kind, parse_stream_name, stream_prefix

_LAST = "\x7f"
"""Sorts after every character of a stream's name, which is ASCII."""


class NameListing(Protocol):
    """A store that lists names. Raises what its driver raises."""

    def streams(self, first: str, end: str, limit: int) -> list[tuple[int, str]]:
        """Keys and names of streams, ``first`` ≤ name < ``end``, in the order of their names."""
        ...

    def events(self, key: int, type_: str) -> list[tuple[int, str, bytes]]:
        """Version, type and state of the events of a type in the lineage of a stream, the newest first."""
        ...

    def close(self) -> None:
        """Release the store."""
        ...


def thread_ids(names: NameListing, tenant: str, prefix: str, limit: int) -> list[str]:
    """Ids of threads with this prefix, if they are printable."""
    return _printable((id_ for _, id_ in _streams(names, tenant, "thread", prefix, limit)), limit)


def scope_names(names: NameListing, tenant: str, prefix: str, limit: int) -> list[str]:
    """Names of memory scopes with this prefix, if they are printable."""
    return _printable((id_ for _, id_ in _streams(names, tenant, "memory", prefix, limit)), limit)


def checkpoint_names(names: NameListing, tenant: str, thread: str, prefix: str, limit: int) -> list[str]:
    """Names of checkpoints with this prefix, newest first, of the only thread whose id begins with ``thread``."""
    from clew.domain.events import CheckpointMade
    from clew.infrastructure.envelope import decode

    rows = _events(names, tenant, thread, "checkpoint-made")
    made = (decode(thread, version, type_, state).data for version, type_, state in rows)
    checkpoints = (each.name for each in made if isinstance(each, CheckpointMade))
    return _printable((name for name in checkpoints if name.startswith(prefix)), limit)


def model_calls(names: NameListing, tenant: str, thread: str, prefix: str, limit: int) -> list[str]:
    """Versions of model calls with this prefix, newest first, of the only thread whose id begins with ``thread``."""
    versions = (str(version) for version, _, _ in _events(names, tenant, thread, "model-called"))
    return [version for version in versions if version.startswith(prefix)][:limit]


def _events(names: NameListing, tenant: str, thread: str, type_: str) -> list[tuple[int, str, bytes]]:
    """The events of a type in the lineage of the only thread whose id begins with ``thread``."""
    threads = _streams(names, tenant, "thread", thread, 2)
    keys = [key for key, id_ in threads if id_ == thread] or [key for key, _ in threads]
    return names.events(keys[0], type_) if len(keys) == 1 else []


def _streams(names: NameListing, tenant: str, kind: Kind, prefix: str, limit: int) -> list[tuple[int, str]]:
    """Keys and ids of the streams of a kind whose ids have this prefix, in the order of their names."""
    first = stream_prefix(tenant, kind, prefix)
    parsed = ((key, parse_stream_name(name)) for key, name in names.streams(first, first + _LAST, limit))
    return [(key, name.id) for key, name in parsed if name is not None]


def _printable(names: Iterable[str], limit: int) -> list[str]:
    return [name for name in names if name.isprintable()][:limit]
