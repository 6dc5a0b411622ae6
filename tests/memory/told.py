"""What hooks are told in tests that need no engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from clew.domain.context.provider import ProviderContext
from clew.domain.history import HistoryMessage
from clew.domain.json_values import JsonObject
from clew.domain.messages import Message


@dataclass
class Told:
    """A hook's context that keeps what is cited."""

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
        """The same, as hooks take it."""
        return cast("ProviderContext", self)


def in_place(*messages: Message) -> list[HistoryMessage]:
    """Messages as the first of a thread."""
    return [HistoryMessage(n, each.role, each, f"e{n}", n) for n, each in enumerate(messages, 1)]
