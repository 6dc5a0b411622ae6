"""A triage agent hands a customer to the right colleague: ``python examples/triage.py "I want my money back."``.

Without OPENAI_API_KEY their answers come from a script. The chat is stored in chats.db.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from clew import Agent, Engine, HandoffSelection, OpenAIChatClient, ScriptedChatClient
from clew.testing import call
from clew.types import ModelClient


def client_for(*script: Any) -> ModelClient:
    """Return a client of a real model, or of the script."""
    if os.environ.get("OPENAI_API_KEY"):
        return OpenAIChatClient(model="gpt-5.4-mini")
    return ScriptedChatClient(script)


def refund(order: int) -> str:
    """Refund an order."""
    return f"Order {order} is refunded: 12 €."


async def help_with(url: str, question: str) -> list[str]:
    """Answer a customer, and return what was said."""
    async with Engine.open(url) as engine:
        triage = Agent(
            client_for(call("hand_off_to_Refunds", reason="money back"), "A colleague will help you."),
            engine=engine,
            name="Triage",
            instructions="Hand the customer to the colleague who can help, and say so.",
        )
        refunds = Agent(
            client_for(call("refund", order=7), "You get 12 € back."),
            engine=engine,
            name="Refunds",
            description="Refunds orders.",
            tools=[refund],
        )
        parcels = Agent(client_for(), engine=engine, name="Parcels", description="Knows where parcels are.")
        chat = await engine.start_chat([triage, refunds, parcels], selection=HandoffSelection("Triage"))
        response = await chat.run(question)
        return [f"{each.message.author}: {each.text}" for each in response.messages if each.message is not None]


if __name__ == "__main__":
    given = " ".join(sys.argv[1:]) or "I want my money back for order 7."
    print("\n".join(asyncio.run(help_with("sqlite:///chats.db", given))))
