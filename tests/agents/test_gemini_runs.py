"""Runs with Gemini's client against the service's strict rules: rounds of calls with signatures."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from tests.agents.run_checks import events_of
from tests.servers.strict_gemini import StrictGemini

from clew import Agent, Context, ContextProvider, Engine, GeminiClient, KeepLast, Message, ScriptedChatClient
from clew.domain.runs.events import ModelCalled
from clew.infrastructure.scripted_client import call

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore::clew.errors.AgentChangedWarning")]

KEY = "AIza-canary0123456789"


def look_up(order: int) -> str:
    """Look up an order."""
    return f"Order {order} is on its way."


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with Engine.open("memory:") as engine:
        yield engine


@pytest.fixture
def strict() -> Iterator[StrictGemini]:
    with StrictGemini() as server:
        yield server


def agent_of(strict: StrictGemini, engine: Engine, model: str = "gemini-3-pro", **more: Any) -> Agent:
    client = GeminiClient(model, api_key=KEY, base_url=strict.url, options={"temperature": 1})
    return Agent(client, engine=engine, **{"instructions": "Be brief.", "tools": [look_up], **more})


async def run(agent: Agent, text: str, thread: Any, *, streams: bool = False) -> str:
    if streams:
        return (await agent.run(text, thread=thread, stream=True).get_final_response()).text
    return (await agent.run(text, thread=thread)).text


async def left_out(thread: Any) -> list[tuple[int, ...]]:
    return [event.data.left_out for event in await events_of(thread) if isinstance(event.data, ModelCalled)]


async def requests_of(thread: Any) -> list[Any]:
    return [
        await thread.request(event.version) for event in await events_of(thread) if isinstance(event.data, ModelCalled)
    ]


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
async def test_three_rounds_of_parallel_calls(strict: StrictGemini, engine: Engine, streams: bool) -> None:  # noqa: FBT001  # pytest passes it
    thread = await engine.start_thread()
    agent = agent_of(strict, engine)
    assert await run(agent, "Where is it?", thread, streams=streams) == "Done 4."
    assert await run(agent, "And now?", thread, streams=streams) == "Done 8."
    assert strict.refused == []
    requests = await requests_of(thread)
    assert [request.content for request in requests] == strict.requests
    assert all(request.verified for request in requests)
    assert strict.paths == [f"/v1beta{request.path}" for request in requests]
    assert not any(await left_out(thread))
    assert b'{"text":"","thoughtSignature":"gemini-3-pro-end-4"}' in strict.requests[-1], "an empty part is no noise"


async def test_streamed_and_whole_answers_are_equal(strict: StrictGemini, engine: Engine) -> None:
    recorded = []
    for streams in (False, True):
        strict.requests.clear()
        thread = await engine.start_thread()
        await run(agent_of(strict, engine), "Where is it?", thread, streams=streams)
        recorded.append([each.message for each in (await thread.history()).messages])
    assert recorded[0] == recorded[1]


async def test_after_a_fork_a_rewind_a_reducer_and_a_redaction(strict: StrictGemini, engine: Engine) -> None:
    thread = await engine.start_thread()
    agent = agent_of(strict, engine)
    await run(agent, "My secret is 7.", thread)
    branch = await thread.fork()
    await run(agent, "And on the fork?", branch)
    await thread.rewind(to=(await thread.history()).messages[3].version)
    await run(agent, "Again?", thread)
    await branch.redact((await branch.history()).messages[-1].version)
    await run(agent_of(strict, engine, reducer=KeepLast(6)), "And now?", branch)
    assert strict.refused == []
    assert not any(await left_out(thread))


async def test_memory_that_changes_the_instructions(strict: StrictGemini, engine: Engine) -> None:
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
    assert strict.refused == []
    assert not any(await left_out(thread)), "signatures are bound to their part only"


@pytest.mark.parametrize("order", ["before", "between"])
async def test_another_model_in_between(strict: StrictGemini, engine: Engine, order: str) -> None:
    thread = await engine.start_thread()
    agent = agent_of(strict, engine)
    if order == "between":
        await run(agent, "Where is it?", thread)
    scripted = ScriptedChatClient([call("look_up", order=7), "On its way."])
    await run(Agent(scripted, engine=engine, tools=[look_up], instructions="Be brief."), "Ask another.", thread)
    assert any(await left_out(thread)) == (order == "between"), "the other model got no signatures"
    await run(agent, "And now?", thread)
    assert not (await left_out(thread))[-1]
    await run(agent_of(strict, engine, "gemini-3-flash"), "And you?", thread)
    assert strict.refused == []
    assert (await left_out(thread))[-1], "the other model's signatures are not sent"


async def test_a_thread_that_moved_to_another_store(strict: StrictGemini, engine: Engine) -> None:
    thread = await engine.start_thread()
    await run(agent_of(strict, engine), "Where is it?", thread)
    document = await thread.serialize()
    async with Engine.open("memory:") as there:
        agent = agent_of(strict, there)
        moved = await agent.deserialize_thread(document)
        assert await run(agent, "And now?", moved) == "Done 8."
    assert strict.refused == []


async def test_authors_and_system_messages(strict: StrictGemini, engine: Engine) -> None:
    thread = await engine.start_thread(messages=[Message.system("Know this."), Message.user("Hi", author="Anna")])
    await thread.append([Message.system("Now be formal.")])
    await agent_of(strict, engine, tools=[]).run(thread=thread)
    (request,) = await requests_of(thread)
    assert request.body == {
        "contents": [{"role": "user", "parts": [{"text": "Anna: Hi"}, {"text": "[System] Now be formal."}]}],
        "systemInstruction": {"parts": [{"text": "Be brief.\n\nKnow this."}]},
        "generationConfig": {"temperature": 1},
    }
