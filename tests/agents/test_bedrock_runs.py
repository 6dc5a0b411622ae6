"""Runs with Bedrock's client against the service's strict rules: tool rounds with signed thinking."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from tests.agents.run_checks import events_of
from tests.servers.strict_bedrock import StrictBedrock

from clew import Agent, BedrockClient, Context, ContextProvider, Engine, KeepLast, Message, ScriptedChatClient
from clew.domain.runs.events import ModelCalled
from clew.infrastructure.scripted_client import call

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore::clew.errors.AgentChangedWarning")]

KEY = "sk-ant-canary0123456789"


def look_up(order: int) -> str:
    """Look up an order."""
    return f"Order {order} is on its way."


def refund(order: int) -> str:
    """Refund an order."""
    return f"Order {order} is refunded."


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with Engine.open("memory:") as engine:
        yield engine


@pytest.fixture
def strict() -> Iterator[StrictBedrock]:
    with StrictBedrock() as server:
        yield server


def client_of(strict: StrictBedrock, model: str = "claude-x") -> BedrockClient:
    return BedrockClient(model, api_key=KEY, region="us-east-1", base_url=strict.url)


def agent_of(strict: StrictBedrock, engine: Engine, **more: Any) -> Agent:
    return Agent(client_of(strict), engine=engine, **{"instructions": "Be brief.", "tools": [look_up], **more})


async def run(agent: Agent, text: str, thread: Any, *, streams: bool = False) -> str:
    if streams:
        return (await agent.run(text, thread=thread, stream=True).get_final_response()).text
    return (await agent.run(text, thread=thread)).text


async def left_out(thread: Any) -> list[tuple[int, ...]]:
    return [event.data.left_out for event in await events_of(thread) if isinstance(event.data, ModelCalled)]


async def check_record(thread: Any, strict: StrictBedrock) -> None:
    """The server received what the log says, and refused nothing."""
    assert strict.refused == []
    requests = [
        await thread.request(event.version) for event in await events_of(thread) if isinstance(event.data, ModelCalled)
    ]
    assert all(request.verified for request in requests)
    contents = [request.content for request in requests]
    assert [content for content in strict.requests if content in contents] == contents


both_ways = pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])


@both_ways
async def test_three_rounds_of_thinking_with_tools(strict: StrictBedrock, engine: Engine, streams: bool) -> None:  # noqa: FBT001  # pytest passes it
    thread = await engine.start_thread()
    agent = agent_of(strict, engine)
    assert await run(agent, "Where is it?", thread, streams=streams) == "Done 4."
    assert await run(agent, "And now?", thread, streams=streams) == "Done 8."
    await check_record(thread, strict)
    assert strict.requests == [
        (await thread.request(event.version)).content
        for event in await events_of(thread)
        if isinstance(event.data, ModelCalled)
    ]
    assert await left_out(thread) == [()] * 8, "the prefix never changed"


async def test_streamed_and_whole_answers_are_equal(strict: StrictBedrock, engine: Engine) -> None:
    recorded = []
    for streams in (False, True):
        strict.requests.clear()
        thread = await engine.start_thread()
        await run(agent_of(strict, engine), "Where is it?", thread, streams=streams)
        recorded.append([each.message for each in (await thread.history()).messages])
    assert recorded[0] == recorded[1]


async def test_after_a_fork_and_a_rewind(strict: StrictBedrock, engine: Engine) -> None:
    thread = await engine.start_thread()
    agent = agent_of(strict, engine)
    await run(agent, "Where is it?", thread)
    branch = await thread.fork()
    await run(agent, "And on the fork?", branch)
    await thread.rewind(to=(await thread.history()).messages[2].version)
    await run(agent, "Again?", thread)
    assert strict.refused == []
    assert not any(await left_out(branch))
    assert not any(await left_out(thread))


async def test_other_tools_and_instructions_leave_signed_blocks_out(strict: StrictBedrock, engine: Engine) -> None:
    thread = await engine.start_thread()
    await run(agent_of(strict, engine), "Where is it?", thread)
    await run(agent_of(strict, engine, tools=[refund], on_changed_agent="warn"), "Refund it.", thread)
    await run(agent_of(strict, engine, instructions="Be long."), "And now?", thread)
    await check_record(thread, strict)
    calls = await left_out(thread)
    assert calls[:4] == [()] * 4
    assert all(calls[4:]), "each later request left signed blocks out"


async def test_thinking_goes_back_after_a_call_that_was_forced(strict: StrictBedrock, engine: Engine) -> None:
    thread = await engine.start_thread()
    forced: Any = {"toolConfig": {"toolChoice": {"any": {}}}}
    assert await run(agent_of(strict, engine, options=forced), "Where is it?", thread) == "Done 4."
    await check_record(thread, strict)
    choices = [json.loads(request)["toolConfig"].get("toolChoice") for request in strict.requests]
    assert choices == [{"any": {}}, None, None, None]
    assert await left_out(thread) == [()] * 4


async def test_memory_that_changes_the_instructions(strict: StrictBedrock, engine: Engine) -> None:
    class Counting(ContextProvider):
        id = "counting"

        def initial_state(self, ctx: Any) -> Any:
            del ctx
            return 0

        async def invoking(self, ctx: Any, messages: Any) -> Context:
            del messages
            ctx.state += 1
            return Context(instructions=f"This is run {ctx.state}.")

    thread = await engine.start_thread()
    agent = agent_of(strict, engine, context_providers=Counting())
    await run(agent, "Where is it?", thread)
    await run(agent, "And now?", thread)
    await check_record(thread, strict)
    calls = await left_out(thread)
    assert (any(calls[:4]), all(calls[4:])) == (False, True)


async def test_a_reducer_and_a_redaction(strict: StrictBedrock, engine: Engine) -> None:
    thread = await engine.start_thread()
    agent = agent_of(strict, engine, reducer=KeepLast(6))
    for text in ("Where is it?", "And now?", "And then?"):
        await run(agent, text, thread)
    assert strict.refused == []
    plain = agent_of(strict, engine)
    other = await engine.start_thread()
    await run(plain, "My secret is 7.", other)
    await other.redact((await other.history()).messages[0].version)
    await run(plain, "And now?", other)
    assert strict.refused == []
    assert all((await left_out(other))[4:])


@pytest.mark.parametrize("order", ["before", "between"])
async def test_another_model_in_between(strict: StrictBedrock, engine: Engine, order: str) -> None:
    thread = await engine.start_thread()
    agent = agent_of(strict, engine)
    if order == "between":
        await run(agent, "Where is it?", thread)
    scripted = ScriptedChatClient([call("look_up", order=7), "On its way."])
    await run(Agent(scripted, engine=engine, tools=[look_up], instructions="Be brief."), "Ask another.", thread)
    await run(agent, "And now?", thread)
    await run(Agent(client_of(strict, "claude-y"), engine=engine, tools=[look_up]), "And you?", thread)
    assert strict.refused == []
    assert (await left_out(thread))[-1], "the other model's thinking is not sent"


async def test_a_thread_that_moved_to_another_store(strict: StrictBedrock, engine: Engine) -> None:
    thread = await engine.start_thread()
    await run(agent_of(strict, engine), "Where is it?", thread)
    document = await thread.serialize()
    async with Engine.open("memory:") as there:
        agent = agent_of(strict, there)
        moved = await agent.deserialize_thread(document)
        assert await run(agent, "And now?", moved) == "Done 8."
        assert not any(await left_out(moved))
    assert strict.refused == []


async def test_late_system_messages_and_authors(strict: StrictBedrock, engine: Engine) -> None:
    thread = await engine.start_thread(messages=[Message.system("Know this."), Message.user("Hi", author="Anna")])
    await agent_of(strict, engine, tools=[]).run(thread=thread)
    assert strict.refused == []
    body = json.loads(strict.requests[0])
    assert body["system"] == [{"text": "Be brief."}, {"text": "Know this."}]
    assert body["messages"] == [{"role": "user", "content": [{"text": "Anna: Hi"}]}]
    assert strict.headers[0]["authorization"] == f"Bearer {KEY}"
