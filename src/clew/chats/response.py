"""What a run of a chat returns: the updates of all participants, and the response."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal

from clew.agents.response import Approval
from clew.agents.stream import UpdateStream
from clew.domain.history import HistoryMessage
from clew.domain.models.client import TokenUsage


@dataclass(frozen=True)
class ChatResponse:
    """The result of a run of a chat.

    ``messages`` are those that were added to the chat after the input. ``reason`` is why the run ended, None while it
    waits: for the ``approvals`` of function calls, or for the people in ``waiting_for``, also those in chats that are
    participants. ``usage`` are the tokens of the run by participant, and ``costs`` what they cost in US dollars, None
    for one whose costs are not all known. Failed turns count, too.
    """

    messages: list[HistoryMessage]
    reason: str | None
    usage: dict[str, TokenUsage] = field(default_factory=dict)
    approvals: list[Approval] = field(default_factory=list)
    waiting_for: tuple[str, ...] = ()
    costs: dict[str, Decimal | None] = field(default_factory=dict)

    @property
    def cost(self) -> Decimal | None:
        """What the run cost in US dollars, None if that is not known of all."""
        known = [each for each in self.costs.values() if each is not None]
        return sum(known, Decimal(0)) if len(known) == len(self.costs) else None

    @property
    def text(self) -> str:
        """The text of the last message."""
        return self.messages[-1].text if self.messages else ""


class ChatStream(UpdateStream[ChatResponse]):
    """The updates of all participants while a chat runs: each names its ``author``.

    It is read, awaited and left like an AgentStream. ``get_final_response()`` returns the ChatResponse.
    """
