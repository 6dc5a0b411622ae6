"""Runs with the anthropic package's own clients for Bedrock, Vertex and others: the log has the sent bytes."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from types import ModuleType, SimpleNamespace
from typing import Any, TypeAlias

import anthropic
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from tests.agents.run_checks import events_of
from tests.servers.raw_server import RawServer, Reply, stream, whole
from tests.servers.strict_anthropic import StrictAnthropic, frames
from tests.servers.strict_bedrock import frame

from clew import Agent, AnthropicClient, Engine
from clew.domain.runs.events import ModelCalled
from clew.errors import AgentConfigurationError, ModelAccessError, ModelError, ModelOverloadedError, ModelStreamError

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore::clew.errors.AgentChangedWarning")]

KEY = "sk-ant-canary0123456789"
MODEL = "eu.anthropic.claude-x-v1:0"
THINKS: Any = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2048}

CLIENTS: dict[str, Callable[[str], Any]] = {
    "bedrock": lambda url: anthropic.AsyncAnthropicBedrock(aws_region="eu-west-1", api_key=KEY, base_url=url),
    "bedrock-mantle": lambda url: anthropic.AsyncAnthropicBedrockMantle(
        aws_region="eu-west-1", api_key=KEY, base_url=url
    ),
    "vertex": lambda url: anthropic.AsyncAnthropicVertex(
        region="eu", project_id="p-1", access_token=KEY, base_url=f"{url}/v1"
    ),
    "foundry": lambda url: anthropic.AsyncAnthropicFoundry(api_key=KEY, base_url=url),
    "aws": lambda url: anthropic.AsyncAnthropicAWS(api_key=KEY, base_url=url, workspace_id="w-1"),
    "google-cloud": lambda url: anthropic.AsyncAnthropicGoogleCloud(
        project="p-1", location="eu", workspace_id="w-1", token_provider=lambda: KEY, base_url=url
    ),
    "anthropic": lambda url: anthropic.AsyncAnthropic(api_key=KEY, base_url=url),
}
Clients: TypeAlias = Callable[[str, str], Any]
both_ways = pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
every_service = pytest.mark.parametrize("service", CLIENTS)


def look_up(order: int) -> str:
    """Look up an order."""
    return f"Order {order} is on its way."


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with Engine.open("memory:") as engine:
        yield engine


@pytest.fixture
def strict() -> Iterator[StrictAnthropic]:
    with StrictAnthropic(rounds=2) as server:
        yield server


@pytest.fixture
async def clients() -> AsyncIterator[Clients]:
    """Makes the package's client for a service and a URL, and closes it after the test."""
    async with AsyncExitStack() as opened:

        def make(service: str, url: str) -> Any:
            made = CLIENTS[service](url)
            opened.push_async_callback(made.close)
            return made

        yield make


def model_of(service: str) -> str:
    return "claude-x@20260101" if service == "vertex" else MODEL


def agent_of(clients: Clients, strict: StrictAnthropic, engine: Engine, service: str) -> Agent:
    client = AnthropicClient(model_of(service), client=clients(service, strict.url), options=THINKS)
    return Agent(client, engine=engine, instructions="Be brief.", tools=[look_up])


async def run(agent: Agent, text: str, thread: Any, *, streams: bool = False) -> str:
    if streams:
        return (await agent.run(text, thread=thread, stream=True).get_final_response()).text
    return (await agent.run(text, thread=thread)).text


async def requests_of(thread: Any) -> list[Any]:
    return [
        await thread.request(event.version) for event in await events_of(thread) if isinstance(event.data, ModelCalled)
    ]


async def left_out(thread: Any) -> list[tuple[int, ...]]:
    return [event.data.left_out for event in await events_of(thread) if isinstance(event.data, ModelCalled)]


@both_ways
@every_service
async def test_rounds_of_signed_thinking_on_every_service(
    clients: Clients,
    strict: StrictAnthropic,
    engine: Engine,
    service: str,
    streams: bool,  # noqa: FBT001  # pytest passes it
) -> None:
    thread = await engine.start_thread()
    agent = agent_of(clients, strict, engine, service)
    assert await run(agent, "Where is it?", thread, streams=streams) == "Done 3."
    assert await run(agent, "And now?", thread, streams=streams) == "Done 6."
    assert strict.refused == []
    requests = await requests_of(thread)
    assert [request.content for request in requests] == strict.requests
    assert all(request.verified for request in requests)
    assert all(sent.endswith(request.path) for request, sent in zip(requests, strict.paths, strict=True))
    assert all(KEY in "".join(headers.values()) for headers in strict.headers)
    assert not any(await left_out(thread))
    called = [event.data for event in await events_of(thread) if isinstance(event.data, ModelCalled)]
    assert {each.provider for each in called} == {"127.0.0.1" if service == "anthropic" else service}


@pytest.mark.parametrize("service", ["bedrock", "vertex"])
async def test_streamed_and_whole_answers_are_equal(
    clients: Clients, strict: StrictAnthropic, engine: Engine, service: str
) -> None:
    recorded = []
    for streams in (False, True):
        strict.requests.clear()
        thread = await engine.start_thread()
        await run(agent_of(clients, strict, engine, service), "Where is it?", thread, streams=streams)
        recorded.append([each.message for each in (await thread.history()).messages])
    assert recorded[0] == recorded[1]


@both_ways
@every_service
async def test_the_package_itself_sends_the_same_request(
    clients: Clients,
    strict: StrictAnthropic,
    service: str,
    streams: bool,  # noqa: FBT001  # pytest passes it
) -> None:
    own, model = clients(service, strict.url), model_of(service)
    client = AnthropicClient(model, client=own, options=THINKS)
    async with Engine.open("memory:") as engine:
        thread = await engine.start_thread()
        await run(Agent(client, engine=engine, instructions="Be brief."), "Hi.", thread, streams=streams)
    content = [{"type": "text", "text": "Hi."}]
    asked = {"model": model, "system": "Be brief.", "messages": [{"role": "user", "content": content}], **THINKS}
    if streams:
        events = [event async for event in await own.messages.create(**asked, stream=True)]
        assert (events[0].type, events[-1].type) == ("message_start", "message_stop"), "the server's frames are valid"
    else:
        assert (await own.messages.create(**asked)).stop_reason == "end_turn"
    ours, theirs = (json.loads(sent) for sent in strict.requests)
    assert ours == theirs
    assert strict.paths[0] == strict.paths[1]
    mine, its = (
        {name: headers.get(name) for name in ("accept", "content-type", "authorization", "x-api-key", "host")}
        for headers in strict.headers
    )
    assert mine == its


async def test_thinking_goes_back_to_the_service_that_made_it(
    clients: Clients, strict: StrictAnthropic, engine: Engine
) -> None:
    thread = await engine.start_thread()
    await run(agent_of(clients, strict, engine, "bedrock"), "Where is it?", thread)
    await run(agent_of(clients, strict, engine, "bedrock-mantle"), "And now?", thread)
    await run(agent_of(clients, strict, engine, "bedrock"), "And here?", thread)
    assert strict.refused == []
    first, *_ = (await left_out(thread))[3:]
    assert first == (1, 3, 5), "the thinking of another service is not sent"


async def test_a_request_is_signed_over_the_bytes_on_the_log(
    strict: StrictAnthropic, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_BEARER_TOKEN_BEDROCK", raising=False)
    credentials = install_boto3(monkeypatch)
    own = anthropic.AsyncAnthropicBedrock(
        aws_region="eu-west-1", aws_access_key="AKIACANARY", aws_secret_key=KEY, base_url=strict.url
    )
    async with own:
        agent = Agent(AnthropicClient(MODEL, client=own), engine=engine)
        assert await run(agent, "Hi.", await engine.start_thread()) == "Done 1."
    (content,), (path,), (headers,) = strict.requests, strict.paths, strict.headers
    assert headers["authorization"] == signed_again(credentials, strict.url + path, headers, content)
    assert headers["authorization"] != signed_again(credentials, strict.url + path, headers, content + b" ")


async def test_an_error_names_the_package_that_the_client_needs(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_BEARER_TOKEN_BEDROCK", raising=False)
    monkeypatch.setitem(sys.modules, "boto3", None)
    async with anthropic.AsyncAnthropicBedrock(
        aws_region="eu-central-1", aws_access_key="AKIACANARY", aws_secret_key=KEY
    ) as own:
        with pytest.raises(ModelError, match="needs the package 'boto3'"):
            await Agent(AnthropicClient(MODEL, client=own), engine=engine).run("Hi.")


async def test_an_error_shows_no_key_of_the_session(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_BEARER_TOKEN_BEDROCK", raising=False)
    install_boto3(monkeypatch, "AKIASESSION0")
    with RawServer() as server:
        server.add_replies(whole({"message": "The key AKIASESSION0 is not known."}, status=403))
        url = server.url.removesuffix("/v1")
        async with anthropic.AsyncAnthropicBedrock(aws_region="eu-central-1", base_url=url) as own:
            agent = Agent(AnthropicClient(MODEL, client=own), engine=engine)
            with pytest.raises(ModelAccessError, match="is not known") as raised:
                await agent.run("Hi.")
    assert "AKIASESSION0" not in str(raised.value)


def install_boto3(monkeypatch: pytest.MonkeyPatch, key: str = "AKIACANARY") -> Any:
    """A boto3 whose sessions have fixed credentials: the package signs with it, and only botocore is installed."""
    credentials = Credentials(key, KEY)
    boto3: Any = ModuleType("boto3")
    session = SimpleNamespace(get_credentials=lambda: credentials, region_name="eu-west-1")
    boto3.Session = lambda **_: session
    monkeypatch.setitem(sys.modules, "boto3", boto3)
    return credentials


def signed_again(credentials: Any, url: str, headers: dict[str, str], content: bytes) -> str:
    """The header of a signature that AWS would compute for what it received."""
    given = headers["authorization"]
    names = given.partition("SignedHeaders=")[2].partition(",")[0].split(";")
    request = AWSRequest("POST", url, {name: headers[name] for name in names}, content)
    request.context["timestamp"] = headers["x-amz-date"]
    signer = SigV4Auth(credentials, "bedrock", "eu-west-1")
    signature = signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request)
    return f"{given.rpartition('=')[0]}={signature}"


ANSWER: Any = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-x",
    "content": [{"type": "text", "text": "Hello"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 9, "output_tokens": 4},
}
FRAMES = list(frames(ANSWER))


async def asked_on_bedrock(reply: Reply, engine: Engine, *, streams: bool = True) -> Any:
    with RawServer() as server:
        server.add_replies(reply)
        async with CLIENTS["bedrock"](server.url.removesuffix("/v1")) as own:
            agent = Agent(AnthropicClient(MODEL, client=own), engine=engine, retries=0)
            try:
                return await run(agent, "Hi.", await engine.start_thread(), streams=streams)
            except ModelError as error:
                return error


def framed(*sent: bytes) -> Reply:
    return stream(*sent, done=False, kind="application/vnd.amazon.eventstream")


@pytest.mark.parametrize("after", range(1, len(FRAMES)))
async def test_a_stream_of_bedrock_that_ends_early_is_an_error(engine: Engine, after: int) -> None:
    assert type(await asked_on_bedrock(framed(*FRAMES[:after]), engine)) is ModelStreamError


async def test_a_stream_of_bedrock_in_any_pieces(engine: Engine) -> None:
    data = b"".join(FRAMES)
    assert await asked_on_bedrock(framed(*(data[at : at + 7] for at in range(0, len(data), 7))), engine) == "Hello"
    damaged = bytearray(data)
    damaged[40] ^= 1
    assert type(await asked_on_bedrock(framed(bytes(damaged)), engine)) is ModelStreamError


async def test_throttling_on_bedrock_shows_no_key(engine: Engine) -> None:
    headers = {"x-amzn-errortype": "ThrottlingException:http://x", "retry-after": "7"}
    refused = whole({"message": f"Slow, {KEY}."}, status=429, headers=headers)
    exception = frame("throttlingException", {"message": f"Slow, {KEY}."}, "exception")
    for reply, streams, code in (
        (refused, False, "ThrottlingException"),
        (framed(exception), True, "throttlingException"),
    ):
        error = await asked_on_bedrock(reply, engine, streams=streams)
        assert type(error) is ModelOverloadedError
        assert (error.retryable, error.code) == (True, code)
        assert KEY not in str(error)


async def test_errors_of_vertex_are_read_also_from_a_list(engine: Engine) -> None:
    body = [{"error": {"code": 429, "message": f"Slow, {KEY}.", "status": "RESOURCE_EXHAUSTED"}}]
    with RawServer() as server:
        server.add_replies(whole(body, status=429))
        async with CLIENTS["vertex"](server.url.removesuffix("/v1")) as own:
            agent = Agent(AnthropicClient("claude-x", client=own), engine=engine, retries=0)
            with pytest.raises(ModelOverloadedError, match="Slow") as raised:
                await agent.run("Hi.")
    assert raised.value.code == "RESOURCE_EXHAUSTED"
    assert KEY not in str(raised.value)


def test_a_client_of_another_kind_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_VERTEX_PROJECT_ID", raising=False)
    synchronous = anthropic.AnthropicBedrock(aws_region="eu-west-1", api_key=KEY)
    nowhere = anthropic.AsyncAnthropicVertex(region="eu", access_token=KEY)
    for client, words in ((synchronous, "asynchronous"), (nowhere, "project_id=")):
        with pytest.raises(AgentConfigurationError, match=words):
            AnthropicClient(MODEL, client=client)  # type: ignore[arg-type]
