"""The stored form of control snapshots: droppable, outside the chain, and ignored when not understood."""

from __future__ import annotations

from pydantic import TypeAdapter, ValidationError

from clew.domain.control import Control

FORMAT = b"1"
"""The first byte of a snapshot. Another one is another shape of the control: such a snapshot is not used."""

_ADAPTER: TypeAdapter[Control] = TypeAdapter(Control)


def write_control(control: Control) -> bytes:
    """The bytes of a snapshot."""
    return FORMAT + _ADAPTER.dump_json(control)


def read_control(state: bytes) -> Control | None:
    """The control that a snapshot holds, None if it is not one of today's."""
    if not state.startswith(FORMAT):
        return None
    try:
        return _ADAPTER.validate_json(state[1:])
    except ValidationError:
        return None
