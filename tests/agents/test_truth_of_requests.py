"""The record of a request is the truth: what a server received is what the log says, whoever stood in between."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anthropic
import botocore.session
import openai
import pytest
from tests.agents.scripted_wires import CANARY, WIRES, Calls, Trouble
from tests.agents.services import calls, service_of
from tests.servers.raw_server import CUT, STALL, RawServer, Reply, whole

from clew import (
    Agent,
    AnthropicClient,
    BedrockClient,
    Engine,
    Message,
    Middleware,
    OpenAIChatClient,
    ScriptedChatClient,
)
from clew.agents.middleware import ModelCallContext, Proceed
from clew.domain.errors import InvalidContentError
from clew.domain.json_values import JsonObject
from clew.domain.models.client import Answer, ModelRequest, Question, ThreadKind, Update, WireFormat
from clew.domain.runs.errors import (
    AgentConfigurationError,
    ModelAccessError,
    ModelError,
    ModelUnavailableError,
    RequestAlteredError,
    UnknownWireFormatError,
)
from clew.domain.runs.events import ModelAnswered, ModelCalled, ModelFailed, RequestChanged, RequestWithheld
from clew.domain.runs.request_construction import Request
from clew.domain.streams import digest

pytestmark = pytest.mark.anyio


class Polite(Middleware):
    """Adds a field to each request."""

    async def model_request(self, context: ModelCallContext) -> JsonObject:
        return {**context.body, "user": f"round {context.round}"}


class Shorter(Middleware):
    """Replaces the model, and removes what the other has added."""

    async def model_request(self, context: ModelCallContext) -> JsonObject:
        return {name: value for name, value in context.body.items() if name != "user"} | {"model": "m-2"}


class Liar(Middleware):
    """Changes everything that it can reach, and says nothing."""

    async def model_request(self, context: ModelCallContext) -> None:
        context.request.clear()

    async def model_call(self, context: ModelCallContext, proceed: Proceed[Answer]) -> Answer:
        context.request["model"] = "another"
        for value in context.request.values():
            if isinstance(value, list):
                value.clear()
        return await proceed()


def look_up(order: int) -> str:
    """Look up an order."""
    return f"Order {order} is on its way."


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with Engine.open("memory:") as engine:
        yield engine


async def requests_of(thread: Any) -> list[Request]:
    return [
        await thread.request(event.version) async for event in thread.events() if isinstance(event.data, ModelCalled)
    ]


@pytest.mark.parametrize("kind", WIRES)
@pytest.mark.parametrize("streams", [False, True])
async def test_the_server_received_what_the_log_says(kind: str, streams: bool, engine: Engine) -> None:  # noqa: FBT001  # pytest passes it
    replies: list[Trouble | str | Calls] = [
        Trouble.OVERLOADED,
        calls(("look_up", '{"order": 7}')),
        Trouble.SERVER_ERROR,
        "It is on its way. 🧶",
    ]
    with service_of(kind) as service:
        service.add_replies(*replies, streams=streams)
        agent = Agent(service.client(), engine=engine, tools=[look_up], middleware=[Liar(), Polite(), Liar()])
        thread = await engine.start_thread()
        if streams:
            await agent.run("Where is order 7?", thread=thread, stream=True).get_final_response()
        else:
            await agent.run("Where is order 7?", thread=thread)
        requests = await requests_of(thread)
        assert len(requests) == len(replies), "each attempt is on the log"
        assert service.received(requests)
    assert all(request.verified for request in requests)
    assert [request.changed_by for request in requests] == [("Polite",)] * 4
    assert [request.body["user"] for request in requests] == ["round 1", "round 1", "round 2", "round 2"]
    assert (await engine.verify()).first_bad is None


async def test_the_log_has_each_change_with_its_author(engine: Engine) -> None:
    client = ScriptedChatClient("Hello!")
    thread = await engine.start_thread()
    await Agent(client, engine=engine, middleware=[Polite(), Shorter()]).run("Hi", thread=thread)
    events = [event async for event in thread.events()]
    ((called_at, called),) = [(event.version, event.data) for event in events if isinstance(event.data, ModelCalled)]
    changes = [event.data for event in events if isinstance(event.data, RequestChanged)]
    assert changes == [
        RequestChanged(call=called_at, by="Polite", patch=({"op": "add", "path": "/user", "value": "round 1"},)),
        RequestChanged(
            call=called_at,
            by="Shorter",
            patch=({"op": "remove", "path": "/user"}, {"op": "replace", "path": "/model", "value": "m-2"}),
        ),
    ]
    request = await thread.request(called_at)
    assert request.verified
    assert request.body == client.requests[0]
    assert called.as_sent == digest(request.content).hex()


async def test_a_middleware_that_changes_nothing_leaves_no_event(engine: Engine) -> None:
    class Same(Middleware):
        async def model_request(self, context: ModelCallContext) -> JsonObject:
            return context.body

    thread = await engine.start_thread()
    await Agent(ScriptedChatClient("Hello!"), engine=engine, middleware=[Same(), Middleware()]).run("Hi", thread=thread)
    assert not [event async for event in thread.events() if isinstance(event.data, RequestChanged)]
    assert [request.verified for request in await requests_of(thread)] == [True]


@pytest.mark.parametrize(
    ("returned", "error", "words"),
    [
        ("text", AgentConfigurationError, "Wrong.model_request returned str"),
        ({"stream": True}, AgentConfigurationError, "a body with stream"),
        ({"model": {1, 2}}, InvalidContentError, "Wrong.model_request"),
        ({"temperature": float("nan")}, InvalidContentError, "Wrong.model_request"),
    ],
)
async def test_what_is_not_a_body_is_refused_before_anything_is_sent(
    returned: Any, error: type[Exception], words: str, engine: Engine
) -> None:
    class Wrong(Middleware):
        async def model_request(self, context: ModelCallContext) -> Any:
            del context
            return returned

    client = ScriptedChatClient("Hello!")
    thread = await engine.start_thread()
    with pytest.raises(error, match=words):
        await Agent(client, engine=engine, middleware=[Wrong()]).run("Hi", thread=thread)
    assert client.requests == []
    assert not [event async for event in thread.events() if isinstance(event.data, ModelCalled)]


async def test_a_change_is_redacted_with_the_messages_before_it(engine: Engine) -> None:
    class Quoting(Middleware):
        async def model_request(self, context: ModelCallContext) -> JsonObject:
            return {**context.body, "metadata": {"first": str(context.body["messages"])}}

    thread = await engine.start_thread(messages=[Message.user("my secret")])
    await Agent(ScriptedChatClient("Hello!"), engine=engine, middleware=[Quoting()]).run("Hi", thread=thread)
    (message, *_) = (await thread.history()).messages
    await thread.redact(message.version)
    (changed,) = [event async for event in thread.events() if event.type == "request-changed"]
    assert changed.data == RequestChanged(call=changed.version - 1, by="Quoting")
    (request,) = await requests_of(thread)
    assert (request.verified, request.redacted) == (False, (message.version, changed.version))
    assert b"secret" not in request.content
    assert (await engine.verify()).first_bad is None


class AlteringOpenAI(openai.AsyncOpenAI):
    """A client whose own hook changes what it sends."""

    async def _prepare_options(self, options: Any) -> Any:
        return options.model_copy(update={"content": b'{"model":"m-1","messages":[]}'})


async def test_bytes_that_the_http_client_changes_are_found(engine: Engine) -> None:
    with RawServer() as server:
        server.add_replies(whole({"choices": [{"message": {"role": "assistant", "content": "Ok"}}]}))
        async with AlteringOpenAI(api_key=CANARY, base_url=server.url) as given:
            agent = Agent(OpenAIChatClient("m-1", client=given), engine=engine)
            thread = await engine.start_thread()
            with pytest.raises(RequestAlteredError, match=r"Middleware\.model_request"):
                await agent.run("Hi", thread=thread)
        assert len(server.requests) == 1
    events = [event async for event in thread.events()]
    (failed,) = [event.data for event in events if isinstance(event.data, ModelFailed)]
    assert failed.error.kind == "RequestAlteredError"
    (called,) = [event.version for event in events if isinstance(event.data, ModelCalled)]
    assert not (await thread.request(called)).verified, "other bytes were sent"


async def test_a_client_that_sends_other_bytes_is_found_if_the_service_refuses_them(engine: Engine) -> None:
    with RawServer() as server:
        server.add_replies(whole({"error": {"message": "No."}}, status=500))
        async with AlteringOpenAI(api_key=CANARY, base_url=server.url) as given:
            agent = Agent(OpenAIChatClient("m-1", client=given), engine=engine)
            thread = await engine.start_thread()
            with pytest.raises(RequestAlteredError):
                await agent.run("Hi", thread=thread)
        assert len(server.requests) == 1, "such a request is not repeated"


async def test_a_request_that_the_package_sends_again_is_an_attempt_on_the_log(engine: Engine) -> None:
    """The package gets another token after a 401, and sends the same request with it."""
    answer = whole({"choices": [{"message": {"role": "assistant", "content": "Ok"}, "finish_reason": "stop"}]})
    with RawServer() as server, RawServer() as tokens:
        server.add_replies(whole({"error": {"message": "Expired."}}, status=401), answer)
        tokens.add_replies(*(whole({"access_token": f"token-{each}", "expires_in": 3600}) for each in (1, 2)))
        identity: Any = {
            "identity_provider_id": "p",
            "service_account_id": "s",
            "provider": {"token_type": "jwt", "get_token": lambda: "subject"},
        }
        async with openai.AsyncOpenAI(workload_identity=identity, base_url=server.url) as given:
            auth: Any = given._workload_identity_auth  # the address of the service for tokens is fixed
            auth.token_exchange_url = tokens.url
            thread = await engine.start_thread()
            response = await Agent(OpenAIChatClient("m-1", client=given), engine=engine).run("Hi", thread=thread)
    assert response.text == "Ok"
    assert [request.headers["authorization"] for request in server.requests] == ["Bearer token-1", "Bearer token-2"]
    failures = [event.data async for event in thread.events() if isinstance(event.data, ModelFailed)]
    assert [(each.error.kind, each.error.status, each.retry_in) for each in failures] == [("ModelAccessError", 401, 0)]
    requests = await requests_of(thread)
    assert [request.verified for request in requests] == [True, True], "one call for each request"
    assert [request.content for request in requests] == [request.body for request in server.requests]


class Again(anthropic.Middleware):
    """Middleware of the package, which asks twice."""

    async def handle_async(self, request: Any, call_next: Any) -> Any:
        await call_next(request)
        return await call_next(request)


class Instead(anthropic.Middleware):
    """Middleware of the package, which asks for something else after the answer."""

    async def handle_async(self, request: Any, call_next: Any) -> Any:
        await call_next(request)
        request.options.content = b"{}"
        return await call_next(request)


class Cached(anthropic.Middleware):
    """Middleware of the package, which asks once for two requests."""

    answer: Any = None

    async def handle_async(self, request: Any, call_next: Any) -> Any:
        self.answer = self.answer or await call_next(request)
        return self.answer


@pytest.mark.parametrize(
    ("middleware", "received", "error"),
    [
        (Again, [1], "wanted to send it again"),
        (Instead, [1], "wanted to send it again"),
        (Cached, [1, 0], "sent no request"),
    ],
)
async def test_middleware_of_the_package_cannot_send_unseen(
    middleware: Any, received: list[int], error: str, engine: Engine
) -> None:
    text = {"type": "text", "text": "Ok"}
    reply = {"id": "m", "type": "message", "role": "assistant", "content": [text], "stop_reason": "end_turn"}
    with RawServer() as server:
        server.add_replies(*[whole(reply)] * 3)
        url = server.url.removesuffix("/v1")
        async with anthropic.AsyncAnthropic(api_key=CANARY, base_url=url, middleware=[middleware()]) as given:
            agent = Agent(AnthropicClient("m-1", client=given), engine=engine, retries=0)
            for number in received:
                before, thread = len(server.requests), await engine.start_thread()
                try:
                    await agent.run("Hi", thread=thread)
                    failed = ""
                except ModelError as raised:
                    failed = str(raised)
                assert len(server.requests) - before == number
                (request,) = await requests_of(thread)
                assert request.verified == bool(number), "only what was sent can be verified"
            assert error in failed


@pytest.mark.parametrize("status", [303, 307])
@pytest.mark.parametrize("kind", WIRES)
async def test_a_redirected_request_is_not_sent_again(kind: str, status: int, engine: Engine) -> None:
    with RawServer() as server:
        server.add_replies(whole({}, status=status, headers={"location": f"{server.url}/elsewhere"}))
        agent = Agent(WIRES[kind].client(server.url, 60), engine=engine, retries=0)
        thread = await engine.start_thread()
        with pytest.raises(ModelError, match=f"refused the request with HTTP {status}") as raised:
            await agent.run("Hi", thread=thread)
        assert (raised.value.status, raised.value.retryable) == (status, False)
        assert len(server.requests) == 1
    (request,) = await requests_of(thread)
    assert (request.sent, request.verified) == (True, True)


@pytest.mark.parametrize("kind", WIRES)
async def test_a_request_to_a_service_that_cannot_be_reached_is_not_verified(kind: str, engine: Engine) -> None:
    with RawServer() as server:
        address = server.url  # nobody listens there when the server has closed
    agent = Agent(WIRES[kind].client(address, 60), engine=engine, retries=1)
    thread = await engine.start_thread()
    with pytest.raises(ModelUnavailableError):
        await agent.run("Hi", thread=thread)
    assert [(each.sent, each.verified) for each in await requests_of(thread)] == [(False, False)] * 2


async def test_a_request_that_cannot_be_signed_is_not_verified(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    thread = await engine.start_thread()
    with RawServer() as server:
        client = BedrockClient("m-1", session=botocore.session.Session(), region="eu-west-1", base_url=server.url)
        with pytest.raises(ModelAccessError, match="no AWS credentials"):
            await Agent(client, engine=engine).run("Hi", thread=thread)
        assert not server.requests
    assert [(each.sent, each.verified) for each in await requests_of(thread)] == [(False, False)]


@pytest.mark.parametrize("steps", [(), (CUT,)])
async def test_a_request_without_a_reply_is_not_verified(steps: tuple[Any, ...], engine: Engine) -> None:
    thread = await engine.start_thread()
    with RawServer() as server:
        server.add_replies(Reply(steps or (STALL,)))
        agent = Agent(
            OpenAIChatClient("m-1", api_key=CANARY, base_url=server.url, timeout=0.2), engine=engine, retries=0
        )
        with pytest.raises(ModelUnavailableError):
            await agent.run("Hi", thread=thread)
        assert len(server.requests) == 1
    assert [(each.sent, each.verified) for each in await requests_of(thread)] == [(None, False)]


class Impatient(Middleware):
    """Does not wait for the model."""

    async def model_call(self, context: ModelCallContext, proceed: Proceed[Answer]) -> Answer:
        del context
        asking = asyncio.ensure_future(proceed())
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])
        return Answer(Message.assistant("Too slow"))


async def test_a_request_that_middleware_cancels_is_not_verified(engine: Engine) -> None:
    thread = await engine.start_thread()
    agent = Agent(ScriptedChatClient("Hello", delay=60), engine=engine, middleware=[Impatient()])
    assert (await agent.run("Hi", thread=thread)).text == "Too slow"
    assert [(each.sent, each.verified) for each in await requests_of(thread)] == [(None, False)]


class Cache(Middleware):
    """Answers itself, or fails."""

    def __init__(self, answer: Answer | None = None) -> None:
        self.answer = answer

    async def model_call(self, context: ModelCallContext, proceed: Proceed[Answer]) -> Answer:
        del context, proceed
        if self.answer is None:
            raise PermissionError("No.")
        return self.answer


class Politer(Middleware):
    """Gives another answer than the model."""

    async def model_call(self, context: ModelCallContext, proceed: Proceed[Answer]) -> Answer:
        del context
        answer = await proceed()
        return replace(answer, message=Message.assistant(f"{answer.message.text}, please"))


async def test_a_request_that_middleware_did_not_send_is_not_verified(engine: Engine) -> None:
    client = ScriptedChatClient("Hello!")
    middleware = [Middleware(), Cache(Answer(Message.assistant("From the cache"))), Middleware()]
    thread = await engine.start_thread()
    response = await Agent(client, engine=engine, middleware=middleware).run("Hi", thread=thread)
    assert (response.text, client.requests) == ("From the cache", [])
    (request,) = await requests_of(thread)
    assert (request.verified, request.withheld_by) == (False, "Cache")
    events = [event.data async for event in thread.events()]
    (called,) = [event.version async for event in thread.events() if isinstance(event.data, ModelCalled)]
    assert [each for each in events if isinstance(each, RequestWithheld)] == [RequestWithheld(call=called, by="Cache")]
    assert [each.answered_by for each in events if isinstance(each, ModelAnswered)] == ["Cache"]
    with pytest.raises(PermissionError):
        await Agent(client, engine=engine, middleware=[Cache()]).run("And?", thread=thread)
    assert client.requests == []
    assert [request.withheld_by for request in await requests_of(thread)] == ["Cache", "Cache"]
    assert (await engine.verify()).first_bad is None


async def test_the_log_says_who_answered_instead_of_the_model(engine: Engine) -> None:
    thread = await engine.start_thread()
    for middleware in ([Middleware(), Politer(), Liar()], [Middleware(), Liar()]):
        await Agent(ScriptedChatClient("Hello"), engine=engine, middleware=middleware).run("Hi", thread=thread)
    assert [request.verified for request in await requests_of(thread)] == [True, True]
    answers = [event.data async for event in thread.events() if isinstance(event.data, ModelAnswered)]
    assert [answer.answered_by for answer in answers] == ["Politer", None]


def _body(question: Question) -> JsonObject:
    return {"ask": [message.text for message in question.messages]}


PARROT = WireFormat(name="parrot", make_body=_body, make_path=lambda model, streams: f"/{model}:{streams}")


class Parrot:
    """A client of another package, with a format of its own."""

    kind = "parrot"
    wire = PARROT
    model = "parrot-1"
    thread_kinds: tuple[ThreadKind, ...] = ("local",)
    options: JsonObject = {}  # noqa: RUF012  # never changed

    async def ask(self, request: ModelRequest) -> AsyncIterator[Update]:
        yield Answer(Message.assistant(request.content.decode()))


async def test_a_package_declares_its_own_format(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    response = await Agent(Parrot(), engine=engine).run("Hello")
    assert response.text == '{"ask":["Hello"]}'
    (called,) = [event.version async for event in response.thread.events() if isinstance(event.data, ModelCalled)]
    known = "'parrot', and there are a2a, anthropic-bedrock, .*, openai-chat, openai-responses"
    with pytest.raises(UnknownWireFormatError, match=known) as unknown:
        await response.thread.request(called)
    assert unknown.value.wire == "parrot"
    declared = tmp_path / "parrots-1.dist-info"
    declared.mkdir()
    (declared / "METADATA").write_text("Metadata-Version: 2.1\nName: parrots\nVersion: 1\n")
    (declared / "entry_points.txt").write_text(f"[clew.wire_formats]\nparrot = {__name__}:PARROT\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    request = await response.thread.request(called)
    assert (request.verified, request.path, request.wire) == (True, "/parrot-1:False", "parrot")
    assert request.content == b'{"ask":["Hello"]}'
