"""Names in a store for tab completion, read without opening the store or creating files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from clew.domain.streams import Kind, parse_stream_name, stream_prefix

if TYPE_CHECKING:
    from clew.domain.events import RecordAppended

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


def record_types(names: NameListing, tenant: str, thread: str, prefix: str, limit: int) -> list[str]:
    """Types of records with this prefix, newest first, of the only thread whose id begins with ``thread``."""
    types = dict.fromkeys(record.type for record in _records(names, tenant, thread))
    return _printable((each for each in types if each.startswith(prefix)), limit)


def record_keys(names: NameListing, tenant: str, thread: str, prefix: str, limit: int) -> list[str]:
    """Keys of records with this prefix, newest first, of the only thread whose id begins with ``thread``."""
    keys = dict.fromkeys(record.key for record in _records(names, tenant, thread) if record.key is not None)
    return _printable((each for each in keys if each.startswith(prefix)), limit)


def _records(names: NameListing, tenant: str, thread: str) -> Iterator[RecordAppended]:
    """The records of a thread that are not redacted, newest first."""
    from clew.domain.events import RECORD_APPENDED, RecordAppended
    from clew.infrastructure.envelope import decode

    for version, type_, state in _events(names, tenant, thread, RECORD_APPENDED):
        if state and isinstance(record := decode(thread, version, type_, state).data, RecordAppended):
            yield record


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
