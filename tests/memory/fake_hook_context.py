"""A context of hooks for tests without an engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from clew.domain.context.provider import ProviderContext
from clew.domain.history import HistoryMessage
from clew.domain.json_values import JsonObject
from clew.domain.messages import Message


@dataclass
class FakeHookContext:
    """A context of hooks that collects citations."""

    state: Any = None
    run_id: str | None = "run-1"
    citations: list[JsonObject] = field(default_factory=list)

    async def reads_at(self, name: str) -> int | None:
        del name
        return None

    def cite(self, citation: JsonObject) -> None:
        self.citations.append(citation)

    @property
    def ctx(self) -> ProviderContext:
        """Return this context with the type that hooks expect."""
        return cast("ProviderContext", self)


def history_of(*messages: Message) -> list[HistoryMessage]:
    """Return the messages as the first ones of a thread."""
    return [HistoryMessage(n, each.role, each, f"e{n}", n) for n, each in enumerate(messages, 1)]
