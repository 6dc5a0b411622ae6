"""Where the threads of agents live that were given no engine: in memory, from a factory that the engine supplies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from clew.domain.runs.errors import AgentConfigurationError
from clew.domain.runs.ports import EnginePort

_factories: list[Callable[[], EnginePort[Any, Any]]] = []


def supply(factory: Callable[[], EnginePort[Any, Any]]) -> None:
    """Say how a default engine is made."""
    _factories[:] = [factory]


def make() -> EnginePort[Any, Any]:
    """A new default engine. Raises AgentConfigurationError when nobody said how one is made."""
    if not _factories:
        raise AgentConfigurationError(
            "The agent has no engine. Give Agent(engine=…), or import it: from clew import Agent."
        )
    return _factories[0]()
