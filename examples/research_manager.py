"""A manager leads three workers to an answer, within a budget: ``python examples/research_manager.py "A question"``.

Without OPENAI_API_KEY the answers come from a script. The chat is stored in chats.db.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import dataclass

from clew import Agent, Engine, ManagerSelection, OpenAIChatClient, ScriptedChatClient
from clew.types import ModelClient

NOTES = {"lamps": "Tree bark burns at 250 °C.", "led": "An LED lamp reaches 60 °C."}


def client_for(script: list[str]) -> ModelClient:
    """Return a client of a real model, or of the script."""
    if os.environ.get("OPENAI_API_KEY"):
        return OpenAIChatClient(model="gpt-5.4-mini")
    return ScriptedChatClient(script)


def look_up(topic: str) -> str:
    """Look a topic up in the notes: lamps or led."""
    return NOTES.get(topic, "There is nothing about it.")


def decision(facts: list[str], speaker: str | None = None, instruction: str | None = None, answer: str = "") -> str:
    """Write a decision of the scripted manager."""
    ledger = {
        "facts": facts,
        "plan": ["Look up the heat.", "Compare.", "Write."],
        "progress": f"{len(facts)} facts are known.",
        "is_progressing": True,
        "is_satisfied": bool(answer),
        "next_speaker": speaker,
        "instruction": instruction,
        "answer": answer,
    }
    return json.dumps(ledger)


HEAT = [f"{NOTES['lamps']}", f"{NOTES['led']}"]
DECISIONS = [
    decision([], "Researcher", "Look up lamps and led."),
    decision(HEAT, "Analyst", "Can a lamp of bark have an LED?"),
    decision([*HEAT, "It is safe."], "Writer", "Write the answer in one sentence."),
    decision([*HEAT, "It is safe."], answer="Yes: an LED is far too cold to burn bark."),
]


@dataclass(frozen=True)
class Outcome:
    """What was said, why the work ended, and the tokens of each participant and the manager."""

    messages: list[str]
    reason: str | None
    tokens: dict[str, int]


async def research(url: str, question: str, *, max_turns: int = 8, max_tokens: int = 50_000) -> Outcome:
    """Let the manager answer the question with its workers."""
    async with Engine.open(url) as engine:
        manager = Agent(
            client_for(DECISIONS), engine=engine, name="Manager", instructions="You manage a research team."
        )
        researcher = Agent(
            client_for([" ".join(HEAT)]),
            engine=engine,
            name="Researcher",
            description="Looks things up.",
            tools=[look_up],
        )
        analyst = Agent(
            client_for(["60 °C is less than 250 °C."]), engine=engine, name="Analyst", description="Compares."
        )
        writer = Agent(client_for(["Yes, with an LED."]), engine=engine, name="Writer", description="Writes answers.")
        chat = await engine.start_chat(
            [researcher, analyst, writer],
            selection=ManagerSelection(manager, max_turns=max_turns, max_tokens=max_tokens),
        )
        response = await chat.run(question)
        messages = [f"{each.message.author}: {each.text}" for each in response.messages if each.message is not None]
        return Outcome(messages, response.reason, {who: each.total_tokens for who, each in response.usage.items()})


if __name__ == "__main__":
    given = " ".join(sys.argv[1:]) or "Can a lamp of tree bark be safe?"
    outcome = asyncio.run(research("sqlite:///chats.db", given))
    print("\n".join(outcome.messages), f"\n({outcome.reason}, {outcome.tokens})")
