"""The stored form of control snapshots: droppable, outside the chain, and ignored when not understood."""

from __future__ import annotations

from typing import Any, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from clew.domain.control import Control

FORMAT = b"3"
"""The first byte of a snapshot. Another one is another shape of the control: such a snapshot is not used."""

_SHAPE: Any = tuple[tuple(get_type_hints(Control).values())]  # type: ignore[misc]  # every field, none left out
_ADAPTER: TypeAdapter[Any] = TypeAdapter(_SHAPE, config=ConfigDict(ser_json_bytes="hex", val_json_bytes="hex"))


def write_control(control: Control) -> bytes:
    """The bytes of a snapshot: the format, then the control's fields as a JSON list."""
    return FORMAT + _ADAPTER.dump_json(tuple(control))


def read_control(state: bytes) -> Control | None:
    """The control that a snapshot holds, None if it is not one of today's."""
    if not state.startswith(FORMAT):
        return None
    try:
        return Control._make(_ADAPTER.validate_json(state[len(FORMAT) :]))
    except ValidationError:
        return None
