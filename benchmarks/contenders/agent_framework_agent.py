"""agent-framework's agent with its history in memory. It runs in a separate environment without Clew."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
from agent_framework import Agent
from agent_framework.openai import OpenAIChatCompletionClient

from benchmarks.contenders.conversation import INSTRUCTIONS, MODEL, Contender, Say, Shape, main, weather


class AgentFrameworkAgent:
    """An agent with sessions."""

    def __init__(self, client: Any) -> None:
        self._agents = {
            shape: Agent(client, INSTRUCTIONS, tools=tools)
            for shape, tools in (("whole", None), ("streamed", None), ("with a tool", [weather]))
        }

    async def converse(self, shape: Shape) -> Say:
        """Start a conversation: a session."""
        agent = self._agents[shape]
        session = agent.create_session()

        async def say(text: str) -> str:
            if shape != "streamed":
                return str((await agent.run(text, session=session)).text)
            pieces = [update.text async for update in agent.run(text, stream=True, session=session) if update.text]
            return "".join(pieces)

        return say

    def commits(self) -> int:
        """Return 0: there is no store."""
        return 0


@asynccontextmanager
async def agent_framework_agent(address: str, _: list[str]) -> AsyncIterator[Contender]:
    """An agent on the same client as the others."""
    async with openai.AsyncOpenAI(api_key="none", base_url=address, max_retries=0) as client:
        yield AgentFrameworkAgent(OpenAIChatCompletionClient(MODEL, async_client=client))


if __name__ == "__main__":
    main(agent_framework_agent)
