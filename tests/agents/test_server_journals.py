"""The requests rebuilt from the log equal the complete journals of third-party servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.agents.run_checks import check_requests, events_of, short_history
from tests.servers.aimock_server import Aimock, Received, ToolCall
from tests.servers.llmock_server import Llmock

from clew import Agent, Engine, OpenAIChatClient, OpenAIResponsesClient, tool
from clew.domain.runs.request_construction import Request

CITIES = ("Oslo", "Rome")
CALLS = [ToolCall("weather", {"city": city, "days": [1, 2.5]}, f"call_{city}") for city in CITIES]
STREAMED = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


@tool
async def weather(city: str, days: list[float] | None = None) -> dict[str, Any]:
    """The weather of a city: „mild“ or not.

    Args:
        city: its name.
        days: from today.
    """
    return {"city": city, "days": days, "words": "mild, 20 °C 🌤"}


@asynccontextmanager
async def agent_of(client: Any, folder: Path) -> AsyncIterator[Agent]:
    async with Engine.open(f"sqlite:///{folder}/clew.db") as engine:
        yield Agent(
            client=client,
            engine=engine,
            name="Guide",
            instructions='Be short; say "grüezi" 🧶.',
            tools=[weather],
            options={"temperature": 0.5},
        )


async def converse(agent: Agent, *texts: str, streamed: bool) -> tuple[Any, list[Request]]:
    """Run turns on a thread; return it and the requests rebuilt from its log."""
    thread = await agent.get_local_thread()
    for text in texts:
        if streamed:
            await agent.run(text, thread=thread, stream=True).get_final_response()
        else:
            await agent.run(text, thread=thread)
    return thread, await check_requests(thread, await events_of(thread))


def sizes(journal: list[Received]) -> list[int]:
    """Return the number of bytes of each request."""
    return [int(each.headers["content-length"]) for each in journal]


@STREAMED
def test_chat_completions_with_parallel_calls(aimock: Aimock, tmp_path: Path, *, streamed: bool) -> None:
    aimock.reply("warmer", tool_calls=CALLS, after_tools=False)
    aimock.reply("warmer", text="Neither.", after_tools=True, piece=3)
    aimock.reply("", text="Yes.")

    async def talk() -> None:
        client = OpenAIChatClient("gpt-4o", api_key="none", base_url=aimock.base_url)
        async with agent_of(client, tmp_path) as agent:
            thread, requests = await converse(agent, "yes", "Which is warmer?", "yes", "yes", streamed=streamed)
            journal = aimock.journal()
            assert [each.path for each in journal] == ["/v1/chat/completions"] * 5
            assert [each.body for each in journal] == [each.body for each in requests]
            assert sizes(journal) == [len(each.content) for each in requests]
            assert [text for _, text in await short_history(thread)].count("yes") == 3

    asyncio.run(talk())


@STREAMED
@pytest.mark.parametrize("made", [OpenAIChatClient, OpenAIResponsesClient], ids=["chat", "responses"])
def test_both_forms_with_parallel_calls_and_after_a_fault(
    llmock: Llmock, tmp_path: Path, made: Callable[..., Any], *, streamed: bool
) -> None:
    llmock.fault("rate limit")
    llmock.reply(text="Yes.")
    llmock.reply(tool_calls=CALLS)
    llmock.reply(text="Neither.")

    async def talk() -> None:
        client = made("gpt-4o", api_key="none", base_url=llmock.base_url)
        async with agent_of(client, tmp_path) as agent:
            thread, requests = await converse(agent, "yes", "Which is warmer?", streamed=streamed)
            journal = llmock.journal()
            assert [each.status for each in journal] == [429, 200, 200, 200]
            assert [each.body for each in journal] == [each.body for each in requests]
            assert [role for role, _ in await short_history(thread)] == [
                *("user", "assistant"),
                *("user", "assistant", "tool", "tool", "assistant"),
            ]

    asyncio.run(talk())
