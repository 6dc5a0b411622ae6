"""From stored rows to what projections see: plain JSON, because a typed event costs several times as much to make."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from clew.domain.events import EVENT_TYPES
from clew.domain.names import StreamName, parse_stream_name
from clew.domain.projection import Recorded, Unreadable
from clew.domain.upcasting import schema_version, upcast
from clew.infrastructure.envelope import JSON, SALT, STUB

if TYPE_CHECKING:
    from clew.infrastructure.recorder import Row


def recorded(row: Row) -> Recorded | Unreadable:
    """What projections see of a row."""
    position, stream, version, type_, state, hash_, _ = row
    try:
        codec = state[0]
        fields: dict[str, Any]
        redacted = codec == STUB
        if codec == JSON:
            fields = from_json(state[SALT + 1 :])
            data = fields.get("d") if type_ in EVENT_TYPES else None
            written = fields.get("v", 1)
            if data is not None and written != schema_version(type_):
                data = None if written > schema_version(type_) else upcast(type_, written, data)
        elif redacted:
            fields, data = from_json(state[1:]), None
        else:
            fields, data = {"i": "", "t": 0, "n": -1}, None
        get = fields.get
        return Recorded(
            position,
            *_name(stream),
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
