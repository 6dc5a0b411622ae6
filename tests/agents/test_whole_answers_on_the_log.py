"""All of an answer is on the log, over real HTTP, and what the service wants back is in the next request."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.agents.run_checks import events_of
from tests.domain.models.provider_formats import BedrockFormat, GeminiFormat, InteractionsFormat, ProviderFormat
from tests.domain.models.provider_values import extended
from tests.domain.models.test_provider_round_trips import made
from tests.servers.raw_server import RawServer, Reply, stream, whole
from tests.servers.strict_bedrock import frame

from clew import Agent, BedrockClient, Engine, GeminiClient, GeminiInteractionsClient
from clew.domain.runs.events import ModelCalled

pytestmark = pytest.mark.anyio

KEY = "key-canary0123456789"


def bedrock_stream(events: list[Any]) -> Reply:
    frames = [frame(kind, payload) for event in events for kind, payload in event.items()]
    return stream(*frames, done=False, kind="application/vnd.amazon.eventstream")


CLIENTS: dict[type[ProviderFormat], tuple[Callable[[str], Any], Callable[[list[Any]], Reply]]] = {
    BedrockFormat: (
        lambda url: BedrockClient("m-1", api_key=KEY, region="us-east-1", base_url=url),
        bedrock_stream,
    ),
    GeminiFormat: (
        lambda url: GeminiClient("m-1", api_key=KEY, base_url=url),
        lambda events: stream(*events, done=False),
    ),
    InteractionsFormat: (
        lambda url: GeminiInteractionsClient("m-1", api_key=KEY, base_url=url, store=False),
        lambda events: stream(*events, done=False),
    ),
}


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("kind", CLIENTS, ids=lambda kind: kind.name)
async def test_an_answer_is_on_the_log_and_goes_back(
    kind: type[ProviderFormat],
    streams: bool,  # noqa: FBT001  # pytest passes it
    tmp_path: Path,
) -> None:
    provider, (client, streamed) = made(kind), CLIENTS[kind]
    reply = next(each for each in provider.full() if provider.whole(each).message.text)
    numbers = count()
    future = extended(reply, numbers)
    answered = whole(future)
    if streams:
        numbers = count()
        answered = streamed(provider.extended_events(provider.events(reply) or [], numbers))
    with RawServer() as server:
        server.add_replies(answered, whole(reply))
        async with Engine.open(f"sqlite:///{tmp_path}/clew.db") as engine:
            thread = await engine.start_thread()
            agent = Agent(client(server.url), engine=engine)
            first = agent.run("Hello", thread=thread, stream=True).get_final_response() if streams else None
            await (first or agent.run("Hello", thread=thread))
            await agent.run("Go on", thread=thread)
            events = await events_of(thread)
            requests = [await thread.request(event.version) for event in events if isinstance(event.data, ModelCalled)]
        sent = [request.body for request in server.requests]
    stored = "".join(repr(event.data) for event in events)
    assert [number for number in range(next(numbers)) if f"<{number}>" not in stored] == []
    assert [request.content for request in requests] == sent
    assert all(request.verified for request in requests)
    if not streams:
        assert provider.sent(json.loads(sent[1])) == provider.wanted(future)
