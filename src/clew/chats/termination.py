"""Terminations: when a run of a chat ends."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Protocol, runtime_checkable

from clew.agents.agent import Agent
from clew.chats.chat_view import ChatView
from clew.domain.json_values import JsonObject
from clew.domain.runs.errors import AgentConfigurationError

MAX_TURNS = 20
"""The turns of a run if no termination is given."""


@runtime_checkable
class Termination(Protocol):
    """Decides after each turn whether the run ends. ``data`` describes it in the log; its ``type`` is the reason."""

    @property
    def data(self) -> JsonObject:
        """The termination as JSON."""
        ...

    async def is_over(self, chat: ChatView) -> bool:
        """Whether the run ends here. It is asked before each turn but the first."""
        ...


class MaxTurns:
    """The run ends after that many turns."""

    def __init__(self, turns: int) -> None:
        self.turns = _positive("MaxTurns", turns)

    @property
    def data(self) -> JsonObject:
        """The termination as JSON."""
        return {"type": "max-turns", "turns": self.turns}

    async def is_over(self, chat: ChatView) -> bool:
        """Whether the run has that many turns."""
        return chat.turns >= self.turns


class MaxTokens:
    """The run ends when its participants have used that many tokens. The last turn may exceed the number."""

    def __init__(self, tokens: int) -> None:
        self.tokens = _positive("MaxTokens", tokens)

    @property
    def data(self) -> JsonObject:
        """The termination as JSON."""
        return {"type": "max-tokens", "tokens": self.tokens}

    async def is_over(self, chat: ChatView) -> bool:
        """Whether the tokens are used."""
        return chat.tokens >= self.tokens


class MaxCost:
    """The run ends when its participants have cost that many US dollars. The last turn may exceed the amount.

    Costs are by the price list of the engine. A turn whose cost is not known raises AgentConfigurationError.
    """

    def __init__(self, usd: Decimal | str | int) -> None:
        try:
            self.usd = Decimal(usd) if isinstance(usd, Decimal | str) or type(usd) is int else Decimal("NaN")
        except InvalidOperation:
            self.usd = Decimal("NaN")
        if not (self.usd.is_finite() and self.usd > 0):
            raise AgentConfigurationError(f"MaxCost({usd!r}): give an amount in US dollars as text, such as '0.50'.")

    @property
    def data(self) -> JsonObject:
        """The termination as JSON."""
        return {"type": "max-cost", "usd": f"{self.usd:f}"}

    async def is_over(self, chat: ChatView) -> bool:
        """Whether the amount is spent."""
        if chat.cost is None:
            raise AgentConfigurationError(
                f"{self.data}: the cost of a turn is not known, because the engine has no price for its model. Open it "
                "with Engine.open(…, prices=…), or limit tokens with MaxTokens."
            )
        return chat.cost >= self.usd


class TextMentioned:
    """The run ends when the last message of a turn contains the text; with ``by``, only one by that author."""

    def __init__(self, text: str, *, by: str | None = None) -> None:
        self.text = text
        self.by = by

    @property
    def data(self) -> JsonObject:
        """The termination as JSON."""
        return {"type": "text", "text": self.text, "by": self.by}

    async def is_over(self, chat: ChatView) -> bool:
        """Whether the newest message contains the text."""
        (newest,) = await chat.history(last=1)
        if newest.message is None or newest.role != "assistant" or self.text not in newest.text:
            return False
        return self.by is None or self.by == newest.message.author


class FunctionTermination:
    """A function of the application decides. It is code, so it must be given again when the chat is opened."""

    data: JsonObject = {"type": "function"}  # noqa: RUF012  # never changed

    def __init__(self, function: Callable[[ChatView], bool | Awaitable[bool]]) -> None:
        self._function = function

    async def is_over(self, chat: ChatView) -> bool:
        """What the function returns."""
        over = self._function(chat)
        return await over if inspect.isawaitable(over) else over


class ModelTermination:
    """An agent decides, by the newest messages. It must be given again when the chat is opened."""

    def __init__(self, agent: Agent[Any, Any]) -> None:
        self._agent = agent

    @property
    def data(self) -> JsonObject:
        """The termination as JSON, with the id of the agent."""
        return {"type": "model", "agent": self._agent.id}

    async def is_over(self, chat: ChatView) -> bool:
        """Whether the agent answers yes."""
        lines = "\n".join(
            f"{each.message.author or each.role}: {each.text}"
            for each in await chat.history(last=20)
            if each.message is not None
        )
        prompt = f"Conversation:\n{lines}\n\nIs it finished? Answer yes or no."
        response = await chat.ask(self._agent, prompt, "over")
        return response.text.strip().casefold().startswith("yes")


def _positive(name: str, value: object) -> int:
    if type(value) is not int or value < 1:
        raise AgentConfigurationError(f"{name}({value!r}): give a whole number from 1.")
    return value


def terminations_of(data: Sequence[JsonObject]) -> tuple[Termination, ...]:
    """The terminations that ``data`` describes. Raises AgentConfigurationError if one is code or not known."""
    return tuple(map(_termination_of, data))


def _termination_of(data: JsonObject) -> Termination:
    fields: dict[str, Any] = dict(data)
    match fields:
        case {"type": "max-turns", "turns": turns}:
            return MaxTurns(turns)
        case {"type": "max-tokens", "tokens": tokens}:
            return MaxTokens(tokens)
        case {"type": "max-cost", "usd": str(usd)}:
            return MaxCost(usd)
        case {"type": "text", "text": str(text), "by": by}:
            return TextMentioned(text, by=by)
    raise AgentConfigurationError(
        f"A termination of the chat has the type {data.get('type')!r}, which cannot be made of data. "
        "Give termination=…."
    )
