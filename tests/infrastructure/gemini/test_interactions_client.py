"""The client of Gemini's Interactions over HTTP: its bytes, its errors, and its requests about stored interactions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.domain.wire_requests import to_send
from tests.servers.raw_server import RawServer, Reply, stream, whole

from clew import GeminiInteractionsClient
from clew.domain.messages import Message
from clew.domain.models.client import Answer, Question, ServiceReference
from clew.domain.runs.errors import AgentConfigurationError, ModelRequestError, ServiceThreadExpiredError

KEY = "AIza-canary0123456789"
HELD = ServiceReference(kind="response", id="v1_a/b")
STEPS = [{"type": "model_output", "content": [{"type": "text", "text": "Hello"}]}]
DONE: Any = {"id": "v1_2", "status": "completed", "steps": STEPS}
both_ways = pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])


def client_of(server: RawServer, **more: Any) -> GeminiInteractionsClient:
    return GeminiInteractionsClient("gemini-3-pro", **{"api_key": KEY, "base_url": server.url, "timeout": 60, **more})


def body_of(client: GeminiInteractionsClient) -> Any:
    question = Question(client.model, (Message.user("Hello?"),), options=client.options, service=HELD)
    return client.wire.make_body(question)


async def asked(client: GeminiInteractionsClient, *, streams: bool) -> list[Any]:
    return [update async for update in client.ask(to_send(client, body_of(client), streams=streams))]


@both_ways
def test_sends_exactly_the_bytes_of_the_request(streams: bool) -> None:  # noqa: FBT001  # pytest passes it
    with RawServer() as server:
        server.add_replies(
            stream({"event_type": "interaction.completed", "interaction": DONE}) if streams else whole(DONE)
        )
        client = client_of(server, store=True, options={"thinking_level": "low", "labels": {"a": "ü"}})
        updates = asyncio.run(asked(client, streams=streams))
        (sent,) = server.requests
        assert sent.body == to_send(client, body_of(client), streams=streams).content
        assert (sent.path, sent.headers["x-goog-api-key"]) == ("/v1/interactions", KEY)
        assert body_of(client)["generation_config"] == {"thinking_level": "low"}
        assert (body_of(client)["store"], body_of(client)["previous_interaction_id"]) == (True, "v1_a/b")
        assert isinstance(updates[-1], Answer)
        assert updates[-1].message.text == "Hello"


def refusal(status: int, words: str, code: str = "not_found") -> Reply:
    return whole({"error": {"message": words, "code": code}}, status=status)


@both_ways
@pytest.mark.parametrize(
    ("reply", "is_lost"),
    [
        (refusal(404, "Requested entity was not found."), True),
        (refusal(400, "Interaction v1_a/b not found.", "invalid_request"), True),
        (refusal(404, "models/gemini-3-pro is not found for API version v1beta."), False),
        (refusal(400, "Request contains an invalid argument.", "invalid_request"), False),
    ],
    ids=["404", "400 with the id", "another model", "another field"],
)
def test_a_lost_interaction_is_told_from_other_refusals(reply: Reply, *, is_lost: bool, streams: bool) -> None:
    with RawServer() as server:
        server.add_replies(reply)
        with pytest.raises(ModelRequestError) as raised:
            asyncio.run(asked(client_of(server), streams=streams))
    assert isinstance(raised.value, ServiceThreadExpiredError) is is_lost


def test_asks_for_a_stored_interaction_and_deletes_it() -> None:
    async def converse(server: RawServer) -> None:
        client = client_of(server)
        (message,) = await client.service_history(HELD)
        assert message.text == "Hello"
        await client.delete_service_thread(HELD)
        with pytest.raises(ModelRequestError) as raised:
            await client.delete_service_thread(HELD)
        assert raised.value.status == 404
        assert KEY not in str(raised.value)
        await client.aclose()

    with RawServer() as server:
        server.add_replies(
            whole({**DONE, "previous_interaction_id": "v1_a/b"}), whole({}), refusal(404, f"No such {KEY}.")
        )
        asyncio.run(converse(server))
        sent = [(each.method, each.path, each.headers["x-goog-api-key"]) for each in server.requests]
    path = "/v1/interactions/v1_a%2Fb"
    assert sent == [("GET", f"{path}?include_input=true", KEY), ("DELETE", path, KEY), ("DELETE", path, KEY)]


def test_the_arguments_are_checked() -> None:
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"options": {"background": True}}, "background"),
        ({"options": {"previous_interaction_id": "v1_1"}}, "previous_interaction_id"),
        ({"options": {"store": False}, "store": True}, "store=True"),
    )
    for arguments, words in wrong:
        with pytest.raises(AgentConfigurationError, match=words):
            GeminiInteractionsClient("gemini-3-pro", api_key=KEY, **arguments)
    client = GeminiInteractionsClient("gemini-3-pro", api_key=KEY)
    assert (repr(client), client.thread_kinds) == ("GeminiInteractionsClient('gemini-3-pro')", ("local", "remote"))
    remote = GeminiInteractionsClient("gemini-3-pro", api_key=KEY, options={"store": True})
    assert (repr(remote), remote.thread_kinds) == (
        "GeminiInteractionsClient('gemini-3-pro', store=True)",
        ("remote",),
    )
