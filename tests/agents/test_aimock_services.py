"""The clients with aimock, a server that other people wrote for the formats of Anthropic, Gemini and Bedrock.

Its journal converts requests, so it cannot show what was sent: tests with scripted and strict servers do. It is a
second opinion on what the clients read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.agents.run_checks import check_requests, check_store, events_of, short_history
from tests.servers.aimock_server import Aimock, ToolCall

from clew import Agent, AnthropicClient, BedrockClient, Engine, GeminiClient, GeminiInteractionsClient
from clew.domain.messages import Reasoning
from clew.domain.runs.events import ModelFailed
from clew.errors import ModelOverloadedError

pytestmark = pytest.mark.anyio

KEY = "sk-canary0123456789"
CLIENTS: dict[str, Callable[[str], Any]] = {
    "anthropic": lambda url: AnthropicClient("claude-x", api_key=KEY, base_url=url),
    "gemini": lambda url: GeminiClient("gemini-x", api_key=KEY, base_url=f"{url}/v1beta"),
    "interactions": lambda url: GeminiInteractionsClient("gemini-x", api_key=KEY, base_url=f"{url}/v1beta"),
    "bedrock": lambda url: BedrockClient("m.x-v1:0", api_key=KEY, region="us-east-1", base_url=url),
}
CASES = [(name, streams) for name in CLIENTS for streams in (False, True) if (name, streams) != ("interactions", False)]
"""aimock streams every interaction, unless the request says that it must not."""
each_way = pytest.mark.parametrize(("name", "streams"), CASES)


def look_up(order: int) -> str:
    """Look up an order."""
    return f"Order {order} is on its way."


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with Engine.open("memory:") as engine:
        yield engine


async def run(agent: Agent, text: str, thread: Any, *, streams: bool) -> Any:
    if streams:
        return await agent.run(text, thread=thread, stream=True).get_final_response()
    return await agent.run(text, thread=thread)


@each_way
async def test_two_parallel_calls_and_a_text(aimock: Aimock, engine: Engine, name: str, streams: bool) -> None:  # noqa: FBT001  # pytest passes it
    calls = [ToolCall("look_up", {"order": order}, f"call_{order}") for order in (7, 8)]
    aimock.reply("Where", tool_calls=calls, after_tools=False)
    aimock.reply("Where", text="Both are on their way.", after_tools=True, piece=4, usage=(12, 3))
    agent = Agent(CLIENTS[name](aimock.url), engine=engine, instructions="Be brief.", tools=[look_up])
    thread = await engine.start_thread()
    response = await run(agent, "Where are they?", thread, streams=streams)
    assert response.text == "Both are on their way."
    assert await short_history(thread) == [
        ("user", "Where are they?"),
        ("assistant", 'look_up{"order": 7} look_up{"order": 8}'),
        ("tool", "Order 7 is on its way."),
        ("tool", "Order 8 is on its way."),
        ("assistant", "Both are on their way."),
    ]
    events = await events_of(thread)
    await check_requests(thread, events)
    await check_store(engine, thread, events)
    assert {entry.status for entry in aimock.journal()} == {200}


@each_way
async def test_a_service_that_is_busy_at_first(aimock: Aimock, engine: Engine, name: str, streams: bool) -> None:  # noqa: FBT001  # pytest passes it
    aimock.fail(429, message=f"Slow, {KEY}.", kind="rate_limit_error", nth=0, retry_after=0)
    aimock.reply(text="Yes.")
    agent = Agent(CLIENTS[name](aimock.url), engine=engine)
    thread = await engine.start_thread()
    assert (await run(agent, "Are you there?", thread, streams=streams)).text == "Yes."
    failed = [event.data.error for event in await events_of(thread) if isinstance(event.data, ModelFailed)]
    assert [(each.kind, each.status) for each in failed] == [(ModelOverloadedError.__name__, 429)]
    assert KEY not in str(failed)


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
async def test_thinking_of_anthropic(aimock: Aimock, engine: Engine, streams: bool) -> None:  # noqa: FBT001  # pytest passes it
    aimock.reply(text="Yes.", reasoning="They ask whether I am here.")
    thread = await engine.start_thread()
    await run(Agent(CLIENTS["anthropic"](aimock.url), engine=engine), "Are you there?", thread, streams=streams)
    answer = (await thread.history()).messages[-1].message
    assert answer is not None
    assert answer.contents[0] == Reasoning(text="They ask whether I am here.")
    assert answer.text == "Yes."
