"""Clew: event-sourced conversations that fork, rewind, travel in time and verify."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clew.conversations import Conversations
    from clew.domain.errors import ClewError
    from clew.domain.messages import Message
    from clew.engine import Engine

__all__ = ["ClewError", "Conversations", "Engine", "Message"]

_HOMES = {
    "ClewError": "clew.domain.errors",
    "Conversations": "clew.conversations",
    "Engine": "clew.engine",
    "Message": "clew.domain.messages",
}


def __getattr__(name: str) -> object:
    """Import what is asked for when it is asked for: ``import clew`` costs next to nothing."""
    if name not in _HOMES:
        message = f"module 'clew' has no attribute {name!r}"
        raise AttributeError(message)
    found: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
