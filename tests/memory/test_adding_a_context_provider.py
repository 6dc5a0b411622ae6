"""Follows the recipe in CONTRIBUTING.md: a class with two hooks is a context provider with state per thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from clew import Agent, Context, ContextProvider, Engine, ProviderContext, ScriptedChatClient
from clew.testing import check_context_provider
from clew.types import HistoryMessage

pytestmark = pytest.mark.anyio


class Greeting(ContextProvider):
    """Tells the model how often the user has greeted."""

    def initial_state(self, ctx: ProviderContext) -> int:
        del ctx
        return 0

    async def on_message(self, ctx: ProviderContext, message: HistoryMessage) -> None:
        if message.role == "user" and message.text.startswith("Hello"):
            ctx.state += 1

    async def invoking(self, ctx: ProviderContext, messages: Sequence[HistoryMessage]) -> Context | None:
        del messages
        return Context(instructions=f"The user has greeted {ctx.state} times.") if ctx.state else None


async def test_a_run_gets_its_context_and_a_fork_its_state() -> None:
    client = ScriptedChatClient("Hi.", loop=True)
    async with Engine.open("memory:") as engine:
        agent = Agent(client, engine=engine, instructions="Be kind.", context_providers=Greeting())
        thread = await agent.get_local_thread()
        await thread.run("Hello!")
        await thread.checkpoint("once")
        await thread.run("Hello again!")
        await thread.run("Well?")
        branch = await thread.fork(at="once")
        await agent.run("Well?", thread=branch)
    requests: list[Any] = client.requests
    instructions = [request["messages"][0]["content"] for request in requests]
    assert instructions[-2:] == [
        "Be kind.\n\nThe user has greeted 2 times.",
        "Be kind.\n\nThe user has greeted 1 times.",
    ]


async def test_the_provider_fulfils_the_contract() -> None:
    await check_context_provider(Greeting, texts=["Hello!", "Hello again!"])
