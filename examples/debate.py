"""Two agents debate a question, and a third one judges: ``python examples/debate.py "Tabs or spaces?"``.

Without OPENAI_API_KEY their answers come from a script. The chat is stored in chats.db.
"""

from __future__ import annotations

import asyncio
import os
import sys

from clew import Agent, Engine, FunctionSelection, OpenAIChatClient, ScriptedChatClient
from clew.types import ChatView, ModelClient

ROUNDS = 2


def client_for(script: list[str]) -> ModelClient:
    """Return a client of a real model, or of the script."""
    if os.environ.get("OPENAI_API_KEY"):
        return OpenAIChatClient(model="gpt-5.4-mini")
    return ScriptedChatClient(script)


def next_in_debate(chat: ChatView) -> list[str] | str | None:
    """Return who speaks: both open at the same time, then they answer each other, and then the judge decides."""
    if chat.turns == 0:
        return ["Pro", "Contra"]
    if chat.turns < 2 * ROUNDS:
        return "Contra" if chat.last_speaker == "Pro" else "Pro"
    return "Judge" if chat.turns == 2 * ROUNDS else None


async def debate(url: str, question: str) -> list[str]:
    """Let them debate, and return what they said."""
    async with Engine.open(url) as engine:
        pro = Agent(
            client_for(["One blank fits all.", "Nobody counts them by hand."]),
            engine=engine,
            name="Pro",
            instructions="You argue for the first answer to the question, in one sentence.",
        )
        contra = Agent(
            client_for(["Everyone sets the width.", "Then nobody agrees how wide."]),
            engine=engine,
            name="Contra",
            instructions="You argue for the second answer to the question, in one sentence.",
        )
        judge = Agent(
            client_for(["Pro wins: the argument was answered."]),
            engine=engine,
            name="Judge",
            instructions="You judge the debate: name the winner and the reason, in one sentence.",
        )
        chat = await engine.start_chat([pro, contra, judge], selection=FunctionSelection(next_in_debate))
        response = await chat.run(question)
        return [f"{each.message.author}: {each.text}" for each in response.messages if each.message is not None]


if __name__ == "__main__":
    given = " ".join(sys.argv[1:]) or "Spaces or tabs?"
    print("\n".join(asyncio.run(debate("sqlite:///chats.db", given))))
