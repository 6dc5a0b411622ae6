"""Clew's agent on a store: each step is on the log before the next external call."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.contenders.conversation import INSTRUCTIONS, MODEL, Contender, Say, Shape, main, weather
from benchmarks.durable_appends import Commits, counted_commits
from clew import Agent, Engine, OpenAIChatClient
from clew.projections import SHIPPED


class ClewAgent:
    """An agent with an engine."""

    def __init__(self, engine: Engine, client: OpenAIChatClient, commits: Commits) -> None:
        self._agents = {
            shape: Agent(client, engine=engine, instructions=INSTRUCTIONS, tools=tools)
            for shape, tools in (("whole", ()), ("streamed", ()), ("with a tool", (weather,)))
        }
        self._commits = commits

    async def converse(self, shape: Shape) -> Say:
        """Start a conversation: a thread."""
        thread = await self._agents[shape].get_local_thread()

        async def say(text: str) -> str:
            if shape != "streamed":
                return str((await thread.run(text)).text)
            pieces = [update.text async for update in thread.run(text, stream=True) if update.type == "text"]
            return "".join(pieces)

        return say

    def commits(self) -> int:
        """The number of commits of the writer."""
        return self._commits.count


@asynccontextmanager
async def clew_agent(address: str, rest: list[str]) -> AsyncIterator[Contender]:
    """An agent on the store at a URL; the argument ``log`` disables the read models."""
    url, read_models = rest
    client = OpenAIChatClient(MODEL, api_key="none", base_url=address)
    with counted_commits() as commits:
        async with Engine.open(url, projections=() if read_models == "log" else SHIPPED) as engine:
            yield ClewAgent(engine, client, commits)
    await client.aclose()


if __name__ == "__main__":
    main(clew_agent)
