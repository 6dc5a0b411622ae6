"""Runs with the openai package's client objects for Azure and Foundry: the log has the bytes that were received."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import openai
import pytest
from tests.agents.run_checks import events_of
from tests.agents.scripted_wires import CANARY, WIRES
from tests.agents.services import calls
from tests.servers.raw_server import RawServer, whole

from clew import Agent, Engine, OpenAIChatClient, OpenAIResponsesClient
from clew.domain.runs.events import ModelCalled

pytestmark = pytest.mark.anyio

VERSION = "2026-06-01"
OBJECTS: dict[str, Callable[[str], openai.AsyncOpenAI]] = {
    "azure": lambda url: openai.AsyncAzureOpenAI(api_key=CANARY, azure_endpoint=url, api_version=VERSION),
    "azure, one deployment": lambda url: openai.AsyncAzureOpenAI(
        api_key=CANARY, azure_endpoint=url, api_version=VERSION, azure_deployment="m-1"
    ),
    "azure, token": lambda url: openai.AsyncAzureOpenAI(azure_ad_token=CANARY, azure_endpoint=url, api_version=VERSION),
    "foundry": lambda url: openai.AsyncOpenAI(api_key=CANARY, base_url=f"{url}/openai/v1/"),
}
ADDRESSES = {
    ("azure", "chat"): f"/openai/deployments/m-1/chat/completions?api-version={VERSION}",
    ("azure", "responses"): f"/openai/responses?api-version={VERSION}",
    ("azure, one deployment", "chat"): f"/openai/deployments/m-1/chat/completions?api-version={VERSION}",
    ("azure, one deployment", "responses"): f"/openai/responses?api-version={VERSION}",
    ("azure, token", "chat"): f"/openai/deployments/m-1/chat/completions?api-version={VERSION}",
    ("azure, token", "responses"): f"/openai/responses?api-version={VERSION}",
    ("foundry", "chat"): "/openai/v1/chat/completions",
    ("foundry", "responses"): "/openai/v1/responses",
}


def look_up(order: int) -> str:
    """Look up an order."""
    return f"Order {order} is on its way."


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with Engine.open("memory:") as engine:
        yield engine


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("name", "api"), ADDRESSES)
async def test_the_log_has_the_received_bytes(engine: Engine, name: str, api: str, streams: bool) -> None:  # noqa: FBT001  # pytest passes it
    made: Any = OpenAIChatClient if api == "chat" else OpenAIResponsesClient
    with RawServer() as server:
        replies = (calls(("look_up", '{"order": 7}')), "On its way.")
        server.add_replies(*(WIRES[api].reply(each, streams=streams) for each in replies))
        async with OBJECTS[name](server.url.removesuffix("/v1")) as own:
            agent: Any = Agent(made("m-1", client=own), engine=engine, tools=[look_up])
            thread = await engine.start_thread()
            run = agent.run("Where is it?", thread=thread, stream=streams)
            response = await (run.get_final_response() if streams else run)
        assert response.text == "On its way."
        called = [event for event in await events_of(thread) if isinstance(event.data, ModelCalled)]
        requests = [await thread.request(event.version) for event in called]
        assert [request.content for request in requests] == [request.body for request in server.requests]
        assert all(request.verified and request.path in ADDRESSES[name, api] for request in requests)
        assert {request.path for request in server.requests} == {ADDRESSES[name, api]}
        assert all(CANARY in json.dumps(request.headers) for request in server.requests)
        assert [event.data.provider for event in called] == ["127.0.0.1"] * 2  # type: ignore[union-attr]


@pytest.mark.parametrize("service", ["response", "conversation"])
async def test_an_agent_of_foundry_is_named_instead_of_a_model(engine: Engine, service: Any) -> None:
    """Foundry refuses a request that names both."""
    named: Any = {"agent_reference": {"name": "desk", "type": "agent_reference"}}
    with RawServer() as server:
        if service == "conversation":
            server.add_replies(whole({"id": "conv_1", "object": "conversation"}))
        server.add_replies(*(WIRES["responses"].reply(text, streams=False) for text in ("One.", "Two.")))
        async with OBJECTS["foundry"](server.url.removesuffix("/v1")) as own:
            client = OpenAIResponsesClient("desk", client=own, options=named, service=service)
            agent = Agent(client, engine=engine)
            thread: Any = await agent.get_remote_thread()
            await agent.run("First?", thread=thread)
            assert (await agent.run("Second?", thread=thread)).text == "Two."
        bodies = [json.loads(request.body) for request in server.requests[-2:]]
    assert [(body["agent_reference"]["name"], "model" in body) for body in bodies] == [("desk", False)] * 2
    assert bodies[1].get("previous_response_id", bodies[1].get("conversation")) in {"resp_1", "conv_1"}
    called = [event async for event in thread.events() if isinstance(event.data, ModelCalled)]
    assert all([(await thread.request(event.version)).verified for event in called])


async def test_a_remote_thread_on_foundry(engine: Engine) -> None:
    with RawServer() as server:
        server.add_replies(*(WIRES["responses"].reply(text, streams=False) for text in ("One.", "Two.")))
        async with OBJECTS["foundry"](server.url.removesuffix("/v1")) as own:
            agent = Agent(OpenAIResponsesClient("m-1", client=own), engine=engine)
            thread: Any = await agent.get_remote_thread()
            await agent.run("First?", thread=thread)
            await agent.run("Second?", thread=thread)
        first, second = (json.loads(request.body) for request in server.requests)
    assert (first["store"], "previous_response_id" in first) == (True, False)
    assert (second["previous_response_id"], len(second["input"])) == ("resp_1", 1)
