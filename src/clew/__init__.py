"""Clew: event-sourced conversations that fork, rewind, travel in time and verify."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clew.agents.middleware import Middleware
    from clew.agents.telemetry import Telemetry
    from clew.agents.tools import ToolContext, tool
    from clew.conversations import Conversations
    from clew.domain.errors import ClewError
    from clew.domain.messages import Message
    from clew.engine import Agent, Engine
    from clew.infrastructure.openai_chat_client import OpenAIChatClient
    from clew.infrastructure.openai_responses_client import OpenAIResponsesClient
    from clew.infrastructure.scripted_client import ScriptedChatClient

__all__ = [
    "Agent",
    "ClewError",
    "Conversations",
    "Engine",
    "Message",
    "Middleware",
    "OpenAIChatClient",
    "OpenAIResponsesClient",
    "ScriptedChatClient",
    "Telemetry",
    "ToolContext",
    "tool",
]

_HOMES = {
    "Agent": "clew.engine",
    "ClewError": "clew.domain.errors",
    "Conversations": "clew.conversations",
    "Engine": "clew.engine",
    "Message": "clew.domain.messages",
    "Middleware": "clew.agents.middleware",
    "OpenAIChatClient": "clew.infrastructure.openai_chat_client",
    "OpenAIResponsesClient": "clew.infrastructure.openai_responses_client",
    "ScriptedChatClient": "clew.infrastructure.scripted_client",
    "Telemetry": "clew.agents.telemetry",
    "ToolContext": "clew.agents.tools",
    "tool": "clew.agents.tools",
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
