"""A writer and an editor work on a slogan until the editor approves it: ``python examples/writer_and_editor.py``.

Without OPENAI_API_KEY their answers come from a script. The chat is stored in chats.db.
"""

from __future__ import annotations

import asyncio
import os
import sys

from clew import Agent, Engine, OpenAIChatClient, ScriptedChatClient, TextMentioned
from clew.types import ModelClient

DRAFTS = ["Lamps of bark, light after dark.", "Bark up your room."]
REVIEWS = ["Too long. Try a pun.", "APPROVED"]


def client_for(script: list[str]) -> ModelClient:
    """Return a client of a real model, or of the script."""
    if os.environ.get("OPENAI_API_KEY"):
        return OpenAIChatClient(model="gpt-5.4-mini")
    return ScriptedChatClient(script)


async def work(url: str, task: str) -> list[str]:
    """Let them work, and return what they said."""
    async with Engine.open(url) as engine:
        writer = Agent(client_for(DRAFTS), engine=engine, name="Writer", instructions="You write slogans. One line.")
        editor = Agent(
            client_for(REVIEWS),
            engine=engine,
            name="Editor",
            instructions="You review slogans in one sentence. If one is good, answer APPROVED.",
        )
        chat = await engine.start_chat([writer, editor], termination=TextMentioned("APPROVED", by="Editor"))
        response = await chat.run(task)
        await chat.end(reason=response.reason)
        return [f"{each.message.author}: {each.text}" for each in response.messages if each.message is not None]


if __name__ == "__main__":
    given = " ".join(sys.argv[1:]) or "A slogan for decorative lamps of tree bark."
    print("\n".join(asyncio.run(work("sqlite:///chats.db", given))))
