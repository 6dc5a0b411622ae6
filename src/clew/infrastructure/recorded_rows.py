"""Stored rows as projections see them: plain JSON, because typed events take several times as long to make."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, overload

from pydantic_core import from_json

from clew.domain.events import EVENT_TYPES
from clew.domain.names import StreamName, parse_stream_name
from clew.domain.projection import Recorded, Unreadable
from clew.infrastructure.envelope import JSON, SALT, STUB

if TYPE_CHECKING:
    from clew.infrastructure.recorder import Row


class RecordedRows(Sequence[Recorded | Unreadable]):
    """Rows as projections see them, decoded when they are read: a reader of thousands keeps few of them in memory."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Recorded | Unreadable]:
        return map(recorded, self._rows)

    @overload
    def __getitem__(self, index: int) -> Recorded | Unreadable: ...

    @overload
    def __getitem__(self, index: slice) -> RecordedRows: ...

    def __getitem__(self, index: int | slice) -> Recorded | Unreadable | RecordedRows:
        return RecordedRows(self._rows[index]) if isinstance(index, slice) else recorded(self._rows[index])


def recorded(row: Row) -> Recorded | Unreadable:
    """What projections see of a row."""
    position, stream, version, type_, state, hash_, _ = row
    try:
        codec = state[0]
        fields: dict[str, Any]
        redacted = codec == STUB
        if codec == JSON:
            fields = from_json(state[SALT + 1 :])
            declared, written = EVENT_TYPES.get(type_), fields.get("v", 1)
            data = None if declared is None else fields.get("d")
            if declared is not None and data is not None and written != declared.schema_version:
                data = None if written > declared.schema_version else declared.upcast(written, data)
        elif redacted:
            fields, data = from_json(state[1:]), None
        else:
            fields, data = {"i": "", "t": 0, "n": -1}, None
        get = fields.get
        tenant, kind, thread_id = _name(stream)
        return Recorded(
            position,
            tenant,
            kind,
            thread_id,
            version,
            type_,
            fields["t"],
            fields["n"],
            data,
            len(state),
            hash_,
            fields["i"],
            get("a"),
            get("r"),
            get("c"),
            get("s"),
            redacted,
            get("o"),
        )
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        return Unreadable(position, str(stream), version, str(type_), hash_, type(error).__name__)


@lru_cache(maxsize=4_096)
def _name(stream: str) -> StreamName:
    name = parse_stream_name(stream)
    return StreamName("", "", stream) if name is None else name
