"""What tests and demos of agents need: the lines of a ScriptedChatClient's script."""

from __future__ import annotations

from clew.infrastructure.scripted_client import Fault, ScriptedChatClient, call, fault

__all__ = ["Fault", "ScriptedChatClient", "call", "fault"]
