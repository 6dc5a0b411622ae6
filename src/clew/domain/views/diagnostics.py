"""What an examination of a store finds."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

State: TypeAlias = Literal["ok", "warning", "failed"]


class Finding(NamedTuple):
    """One thing that was looked at: its state, what was found and, unless it is in order, what to do."""

    name: str
    state: State
    found: str
    advice: str | None = None
