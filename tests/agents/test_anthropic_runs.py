"""Runs with Anthropic's client against the service's strict rules: tool rounds with signed thinking."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from tests.agents.run_checks import events_of
from tests.servers.strict_anthropic import StrictAnthropic

from clew import Agent, AnthropicClient, Context, ContextProvider, Engine, KeepLast, Message, ScriptedChatClient
from clew.domain.runs.events import ModelCalled
from clew.infrastructure.scripted_client import call

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore::clew.errors.AgentChangedWarning")]

KEY = "sk-ant-canary0123456789"
THINKS: Any = {"thinking": {"type": "enabled", "budget_tokens": 1024}}


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
def strict() -> Iterator[StrictAnthropic]:
    with StrictAnthropic() as server:
        yield server


def client_of(strict: StrictAnthropic, model: str = "claude-x", *, late: bool = True) -> AnthropicClient:
    return AnthropicClient(model, api_key=KEY, base_url=strict.url, options=THINKS, late_context=late)


def plain(memory: ContextProvider) -> dict[str, Any]:
    return {"instructions": "Be brief.", "tools": [look_up], "context_providers": memory}


def agent_of(strict: StrictAnthropic, engine: Engine, **more: Any) -> Agent:
    return Agent(client_of(strict), engine=engine, **{"instructions": "Be brief.", "tools": [look_up], **more})


async def run(agent: Agent, text: str, thread: Any, *, streams: bool = False) -> str:
    if streams:
        return (await agent.run(text, thread=thread, stream=True).get_final_response()).text
    return (await agent.run(text, thread=thread)).text


async def left_out(thread: Any) -> list[tuple[int, ...]]:
    return [event.data.left_out for event in await events_of(thread) if isinstance(event.data, ModelCalled)]


async def check_record(thread: Any, strict: StrictAnthropic) -> None:
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
async def test_three_rounds_of_thinking_with_tools(strict: StrictAnthropic, engine: Engine, streams: bool) -> None:  # noqa: FBT001  # pytest passes it
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
    last = [message for message in (await thread.history()).messages if message.role == "assistant"][-1]
    assert last.message is not None
    assert last.message.native is not None
    assert "citations" in str(last.message.native.patch)


async def test_streamed_and_whole_answers_are_equal(strict: StrictAnthropic, engine: Engine) -> None:
    recorded = []
    for streams in (False, True):
        strict.requests.clear()
        thread = await engine.start_thread()
        await run(agent_of(strict, engine), "Where is it?", thread, streams=streams)
        recorded.append([each.message for each in (await thread.history()).messages])
    assert recorded[0] == recorded[1]


async def test_after_a_fork_and_a_rewind(strict: StrictAnthropic, engine: Engine) -> None:
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


async def test_other_tools_and_instructions_leave_signed_blocks_out(strict: StrictAnthropic, engine: Engine) -> None:
    thread = await engine.start_thread()
    await run(agent_of(strict, engine), "Where is it?", thread)
    await run(agent_of(strict, engine, tools=[refund], on_changed_agent="warn"), "Refund it.", thread)
    await run(agent_of(strict, engine, instructions="Be long."), "And now?", thread)
    await check_record(thread, strict)
    calls = await left_out(thread)
    assert calls[:4] == [()] * 4
    assert all(calls[4:]), "each later request left signed blocks out"


async def test_memory_that_changes_the_instructions(strict: StrictAnthropic, engine: Engine) -> None:
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
    assert not any(await left_out(thread)), "the late message does not change what came before"
    body = json.loads(strict.requests[-1])
    assert body["system"] == "Be brief.\n\nThis is run 1."
    assert [message for message in body["messages"] if message["role"] == "system"] == [
        {"role": "system", "content": "(This replaces the earlier context of counting.)\n\nThis is run 2."}
    ]
    await run(Agent(client_of(strict, late=False), engine=engine, **plain(Counting())), "Again?", thread)
    assert all((await left_out(thread))[8:]), "without late messages the system prompt changes"


async def test_a_reducer_and_a_redaction(strict: StrictAnthropic, engine: Engine) -> None:
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
async def test_another_model_in_between(strict: StrictAnthropic, engine: Engine, order: str) -> None:
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


async def test_a_round_that_another_model_began_goes_on(strict: StrictAnthropic, engine: Engine) -> None:
    """Thinking must come first in a round that goes on. Without it the request asks for none."""
    thread = await engine.start_thread()
    scripted = ScriptedChatClient([call("look_up", order=7), "On its way."])
    await run(Agent(scripted, engine=engine, tools=[look_up]), "Where is it?", thread)
    history = (await thread.history()).messages
    branch = await thread.fork(at=history[2].version)  # after the result, before the answer
    response = await agent_of(strict, engine).run(thread=branch)
    assert response.text.startswith("Done")
    assert strict.refused == []
    assert b'"thinking":{"type"' not in strict.requests[0]
    assert b'"thinking":{"type"' in strict.requests[-1] or len(strict.requests) == 1


async def test_a_thread_that_moved_to_another_store(strict: StrictAnthropic, engine: Engine) -> None:
    thread = await engine.start_thread()
    await run(agent_of(strict, engine), "Where is it?", thread)
    document = await thread.serialize()
    async with Engine.open("memory:") as there:
        agent = agent_of(strict, there)
        moved = await agent.deserialize_thread(document)
        assert await run(agent, "And now?", moved) == "Done 8."
        assert not any(await left_out(moved))
    assert strict.refused == []


async def test_late_system_messages_and_authors(strict: StrictAnthropic, engine: Engine) -> None:
    thread = await engine.start_thread(messages=[Message.system("Know this."), Message.assistant("Hello.")])
    await thread.append([Message.user("Hi", author="Anna"), Message.system("Now be formal.")])
    await agent_of(strict, engine).run(thread=thread)
    assert strict.refused == []
    body = json.loads(strict.requests[0])
    assert body["system"] == "Be brief.\n\nKnow this."
    assert body["messages"][2:] == [
        {"role": "user", "content": [{"type": "text", "text": "Anna: Hi"}]},
        {"role": "system", "content": "Now be formal."},
    ]
    assert strict.headers[0]["authorization" if "authorization" in strict.headers[0] else "x-api-key"].endswith(KEY)
