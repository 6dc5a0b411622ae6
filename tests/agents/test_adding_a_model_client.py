"""Follows the recipe in CONTRIBUTING.md: a class with five properties and one method is a model client.

The class is in ``parrot_client.py``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from tests.agents.parrot_client import PIECES, WHOLE, ParrotClient
from tests.servers.raw_server import RawServer, stream, whole

from clew import Agent, Engine, ScriptedChatClient
from clew.domain.errors import InvalidContentError
from clew.domain.json_values import JsonObject
from clew.domain.messages import Message, Native, Raw
from clew.domain.models.client import ModelClient, ServiceReference
from clew.domain.models.client_calls import client_calls
from clew.domain.runs.errors import ModelUnavailableError
from clew.domain.runs.events import ModelCalled, RunFailed, ServiceThreadBound
from clew.testing import HttpModelService, check_model_client

pytestmark = pytest.mark.anyio


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with Engine.open("memory:") as engine:
        yield engine


@pytest.fixture
def server() -> Iterator[RawServer]:
    with RawServer() as server:
        yield server


@pytest.fixture
async def client(server: RawServer) -> AsyncIterator[ModelClient]:
    client = ParrotClient("parrot-1", base_url=server.url)
    yield client
    await client.aclose()


async def test_the_client_keeps_the_contract() -> None:
    with HttpModelService(
        lambda address: ParrotClient("parrot-1", base_url=address), whole=WHOLE, pieces=PIECES
    ) as service:
        await check_model_client(service)


async def test_an_agent_runs_with_the_client_and_the_log_names_it(
    server: RawServer, client: ModelClient, engine: Engine
) -> None:
    server.add_replies(whole(WHOLE))
    thread = await engine.start_thread()
    response = await Agent(client, engine=engine, name="Polly").run("Hello there.", thread=thread)
    assert response.text == "Hello there."
    (called,) = [event.data async for event in thread.events() if isinstance(event.data, ModelCalled)]
    assert (called.client, called.model, called.wire) == ("parrot", "parrot-1", "parrot")
    assert server.requests[0].json() == {"model": "parrot-1", "said": ["Hello there."]}
    assert (await engine.verify()).first_bad is None


async def test_a_service_says_whether_its_ids_name_answers_or_conversations(engine: Engine) -> None:
    client = ScriptedChatClient("Hello!", thread_kinds=["remote"], loop=True)
    agent = Agent(client, engine=engine)
    ids: list[tuple[str | ServiceReference, str]] = [
        ("dialog-1", "response"),
        ("conv_1", "conversation"),
        (ServiceReference(kind="conversation", id="dialog-1"), "conversation"),
        (ServiceReference(kind="response", id="conv_1"), "response"),
    ]
    for given, kind in ids:
        thread = await agent.get_remote_thread(given)
        (bound,) = [event.data async for event in thread.events() if isinstance(event.data, ServiceThreadBound)]
        assert (bound.id, bound.kind) == (given if isinstance(given, str) else given.id, kind)
        await agent.run("Hi", thread=thread)
    with pytest.raises(InvalidContentError, match="service_thread_id"):
        await agent.get_remote_thread(5)  # type: ignore[arg-type]  # what a caller without types may do


async def test_what_waits_for_the_client_is_known_from_the_item_and_not_from_the_client() -> None:
    item: JsonObject = {
        "type": "mcp_approval_request",
        "id": "1",
        "server_label": "shop",
        "name": "buy",
        "arguments": "{}",
    }
    message = Message(role="assistant", contents=(Raw(value=item),), native=Native(wire="parrot"))
    ((place, waiting),) = client_calls(message)
    assert (place, waiting.kind, waiting.call.name, waiting.asks) == (0, "approval", "shop.buy", True)


async def test_answers_of_the_client_stream(server: RawServer, client: ModelClient, engine: Engine) -> None:
    server.add_replies(stream(*PIECES, done=False))
    updates = Agent(client, engine=engine, name="Polly").run("Hello there.", stream=True)
    assert [update.text async for update in updates if update.text] == ["Hello", " there."]


async def test_errors_of_the_client_end_the_run(server: RawServer, client: ModelClient, engine: Engine) -> None:
    server.add_replies(whole({}, status=503))
    thread = await engine.start_thread()
    with pytest.raises(ModelUnavailableError, match="503"):
        await Agent(client, engine=engine, name="Polly", retries=0).run("Hello", thread=thread)
    assert any([isinstance(event.data, RunFailed) async for event in thread.events()])
