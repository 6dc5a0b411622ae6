"""The behaviour of both clients: requests, answers, faults, and the release of connections."""

from __future__ import annotations

import asyncio
import gc
import socket
from typing import Any

import pytest
from tests.domain.wire_requests import to_send
from tests.infrastructure.openai.replies import CANARY, CHAT, CONTENT, SERVICES, Service, answer_of, updates_of
from tests.servers.raw_server import CUT, STALL, RawServer, Reply, stream, whole

from clew.domain.models.client import Answer, ModelClient, TextDelta, TokenUsage
from clew.domain.runs.errors import (
    AgentConfigurationError,
    ContextWindowError,
    ModelAccessError,
    ModelError,
    ModelOverloadedError,
    ModelRequestError,
    ModelStreamError,
    ModelUnavailableError,
)
from clew.infrastructure.openai.clients import OpenAIChatClient, OpenAIResponsesClient

both = pytest.mark.parametrize("service", SERVICES, ids=lambda each: each.kind)
streaming = pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])


def ask_service(service: Service, reply: Reply, *, streams: bool) -> list[Any]:
    """The updates of an answer, and the error at its end if there is one."""
    updates: list[Any] = []
    timeout = 0.5 if STALL in reply.steps else 60

    async def ask(server: RawServer) -> None:
        client = service.client(server, timeout=timeout)
        try:
            async for update in client.ask(to_send(client, service.body(client), streams=streams)):
                updates.append(update)  # noqa: PERF401  # keeps the updates before an error
        except ModelError as error:
            updates.append(error)

    with RawServer() as server:
        server.add_replies(reply)
        asyncio.run(ask(server))
        assert len(server.requests) == 1, "the client does not retry, the run does"
    return updates


def error_of(service: Service, reply: Reply, *, streams: bool) -> ModelError:
    *_, last = ask_service(service, reply, streams=streams)
    assert isinstance(last, ModelError)
    return last


@both
def test_a_streamed_answer_equals_a_whole_answer(service: Service) -> None:
    *deltas, one = ask_service(service, stream(*service.start, *service.end), streams=True)
    *_, other = ask_service(service, whole(service.whole), streams=False)
    assert one == other
    assert deltas == [TextDelta("Hel"), TextDelta("lo")]
    assert one.message.text == "Hello"
    assert one.usage == TokenUsage(input_tokens=9, output_tokens=4)
    assert one.finish_reason == "stop"
    assert one.model == "m-1"


@both
@streaming
def test_sends_exactly_the_bytes_of_the_body(service: Service, streams: bool) -> None:  # noqa: FBT001  # pytest passes it
    async def ask(server: RawServer) -> None:
        client = service.client(server, options={"metadata": {"ü": 0.1, "n": 10**30}})
        body = service.body(client, "Grüße 🧶 \u2028 \x00 </script>")
        await updates_of(client.ask(to_send(client, body, streams=streams)))
        sent = server.requests[0]
        assert sent.body == to_send(client, body, streams=streams).content
        assert sent.path == service.path
        assert sent.headers["authorization"] == f"Bearer {CANARY}"

    with RawServer() as server:
        server.add_replies(stream(*service.start, *service.end) if streams else whole(service.whole))
        asyncio.run(ask(server))


OVERFLOW = {
    "error": {
        "message": "This model's maximum context length is 8192 tokens, and your messages resulted in 9000 tokens.",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }
}


@both
@streaming
@pytest.mark.parametrize(
    ("reply", "kind", "details"),
    [
        (
            whole({"error": {"message": "Slow."}}, status=429, headers={"retry-after": "7"}),
            ModelOverloadedError,
            (429, 7),
        ),
        (whole({}, status=500, headers={"retry-after-ms": "250"}), ModelUnavailableError, (500, 0.25)),
        (whole(b"<html>Bad gateway</html>", status=502), ModelUnavailableError, (502, None)),
        (Reply((CUT,)), ModelUnavailableError, (None, None)),
        (Reply((STALL,)), ModelUnavailableError, (None, None)),
    ],
    ids=["429", "500", "502", "cut", "stall"],
)
def test_a_fault_before_the_answer_is_retryable(
    service: Service,
    streams: bool,  # noqa: FBT001  # pytest passes it
    reply: Reply,
    kind: type[ModelError],
    details: tuple[int | None, float | None],
) -> None:
    error = error_of(service, reply, streams=streams)
    assert type(error) is kind
    assert error.retryable
    assert (error.status, error.retry_after) == details


@both
@streaming
@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (whole({"error": {"message": "No.", "code": "invalid_api_key"}}, status=401), ModelAccessError),
        (whole({"error": {"message": "No."}}, status=403), ModelAccessError),
        (whole({"error": {"message": "No model."}}, status=404), ModelRequestError),
        (whole({"error": {"message": "No.", "code": "insufficient_quota"}}, status=429), ModelOverloadedError),
        (whole({"detail": [{"msg": "field required", "input": CONTENT}]}, status=422), ModelRequestError),
        (whole(OVERFLOW, status=400), ContextWindowError),
        (whole(b"<html>Hello</html>"), ModelStreamError),
        (whole([]), ModelStreamError),
        (whole({"hello": "world"}), ModelStreamError),
    ],
    ids=["401", "403", "404", "quota", "422", "overflow", "page", "list", "other"],
)
def test_a_refusal_and_an_invalid_answer_are_not_retryable(
    service: Service,
    streams: bool,  # noqa: FBT001  # pytest passes it
    reply: Reply,
    kind: type[ModelError],
) -> None:
    error = error_of(service, reply, streams=streams)
    assert type(error) is kind
    assert not error.retryable
    assert "'m-1'" in str(error)
    assert "127.0.0.1" in str(error)
    assert CONTENT not in str(error)


@both
@streaming
def test_an_html_page_is_not_reported_as_a_stream_that_ended_early(service: Service, streams: bool) -> None:  # noqa: FBT001  # pytest passes it
    page = whole(b"<html>Hello</html>", headers={"content-type": "text/html; charset=utf-8"})
    assert "base_url" in str(error_of(service, page, streams=streams))


@both
@pytest.mark.parametrize(
    ("rest", "end"),
    [((), CUT), ((), STALL), ((b"data: {broken\n\n",), None), ((), None), ((b"data: \xff\n\n",), None)],
    ids=["cut", "stall", "malformed", "early end", "not UTF-8"],
)
def test_an_interrupted_answer_is_not_retryable(service: Service, rest: tuple[Any, ...], end: Any) -> None:
    *deltas, error = ask_service(service, stream(*service.start, *rest, end=end), streams=True)
    assert deltas == [TextDelta("Hel")]
    assert type(error) is ModelStreamError
    assert not error.retryable


@both
@pytest.mark.parametrize("end", [CUT, STALL])
def test_a_complete_answer_needs_no_clean_end(service: Service, end: Any) -> None:
    last = ask_service(service, stream(*service.start, *service.end, end=end), streams=True)[-1]
    assert isinstance(last, Answer)


@both
def test_accepts_a_whole_reply_to_a_streaming_request(service: Service) -> None:
    assert isinstance(ask_service(service, whole(service.whole), streams=True)[-1], Answer)


@both
def test_an_interrupted_whole_answer_is_retryable(service: Service) -> None:
    incomplete = whole(service.whole, headers={"content-length": "9999"})
    error = error_of(service, Reply((*incomplete.steps, CUT)), streams=False)
    assert type(error) is ModelUnavailableError
    assert error.retryable


@both
def test_the_code_of_an_error_determines_its_type(service: Service) -> None:
    failure = {"code": "rate_limit_exceeded", "message": "Slow."}
    event = {"error": failure} if service is CHAT else {"type": "response.failed", "response": {"error": failure}}
    error = error_of(service, stream(event), streams=True)
    assert type(error) is ModelOverloadedError
    assert error.retryable
    later = error_of(service, stream(*service.start, event), streams=True)
    assert type(later) is ModelStreamError
    assert not later.retryable
    assert later.code == "rate_limit_exceeded"


@both
@streaming
def test_a_refused_connection_is_retryable(service: Service, streams: bool) -> None:  # noqa: FBT001  # pytest passes it
    with socket.socket() as reserved_port:
        reserved_port.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        client = service.client(f"http://127.0.0.1:{reserved_port.getsockname()[1]}/v1")
        with pytest.raises(ModelUnavailableError, match="ConnectError") as refused:
            asyncio.run(updates_of(client.ask(to_send(client, service.body(client), streams=streams))))
    assert refused.value.retryable


@both
def test_an_invalid_address_is_not_retryable(service: Service) -> None:
    import openai

    for url in ("localhost:1", "ftp://localhost/v1", "http://", "http://localhost:port"):
        with pytest.raises(AgentConfigurationError, match="https://"):
            service.client(url)
    given_client = openai.AsyncOpenAI(api_key=CANARY, base_url="ftp://localhost/v1")
    client = service.client("", client=given_client, api_key=None, base_url=None)
    with pytest.raises(ModelUnavailableError, match="https://") as refused:
        asyncio.run(updates_of(client.ask(to_send(client, service.body(client), streams=True))))
    assert not refused.value.retryable


@both
def test_an_answer_that_is_interrupted_before_its_first_word_is_retryable(service: Service) -> None:
    error = error_of(service, stream(service.start[0], end=CUT), streams=True)
    assert type(error) is ModelUnavailableError
    assert error.retryable


@both
@streaming
def test_successive_requests_share_a_connection(service: Service, streams: bool) -> None:  # noqa: FBT001  # pytest passes it
    async def ask(server: RawServer) -> None:
        client = service.client(server)
        for _ in range(3):
            await answer_of(client.ask(to_send(client, service.body(client), streams=streams)))

    with RawServer() as server:
        server.add_replies(*[stream(*service.start, *service.end) if streams else whole(service.whole)] * 3)
        asyncio.run(ask(server))
        assert (len(server.requests), server.connections) == (3, 1)


@both
def test_a_client_works_in_successive_event_loops(service: Service) -> None:
    with RawServer() as server:
        client = service.client(server)
        for _ in range(3):
            server.add_replies(whole(service.whole))
            asyncio.run(answer_of(client.ask(to_send(client, service.body(client), streams=False))))
        gc.collect()
    assert len(server.requests) == 3


@both
def test_a_closed_client_reopens_for_the_next_request(service: Service) -> None:
    async def ask_twice(server: RawServer) -> None:
        client = service.client(server)
        for _ in range(2):
            await answer_of(client.ask(to_send(client, service.body(client), streams=False)))
            await client.aclose()
        await client.aclose()

    with RawServer() as server:
        server.add_replies(whole(service.whole), whole(service.whole))
        asyncio.run(ask_twice(server))


@both
def test_a_given_openai_client_does_not_retry_and_stays_open(service: Service) -> None:
    import openai

    async def ask(server: RawServer) -> None:
        async with openai.AsyncOpenAI(api_key=CANARY, base_url=server.url, max_retries=5) as given_client:
            client = service.client(server, client=given_client, api_key=None, base_url=None)
            with pytest.raises(ModelUnavailableError):
                await answer_of(client.ask(to_send(client, service.body(client), streams=False)))
            await client.aclose()
            await answer_of(client.ask(to_send(client, service.body(client), streams=False)))

    with RawServer() as server:
        server.add_replies(whole({}, status=500), whole(service.whole))
        asyncio.run(ask(server))
    assert len(server.requests) == 2


@both
@streaming
def test_azure_requests_use_azures_paths(service: Service, streams: bool) -> None:  # noqa: FBT001  # pytest passes it
    import openai

    async def ask(server: RawServer) -> None:
        endpoint = server.url.removesuffix("/v1")
        async with openai.AsyncAzureOpenAI(
            api_key=CANARY, azure_endpoint=endpoint, api_version="2025-04-01"
        ) as given_client:
            client = service.client(server, client=given_client, api_key=None, base_url=None)
            body = service.body(client)
            await answer_of(client.ask(to_send(client, body, streams=streams)))
        sent = server.requests[0]
        path = "/openai/deployments/m-1/chat/completions" if service is CHAT else "/openai/responses"
        assert sent.path == f"{path}?api-version=2025-04-01"
        assert sent.headers["api-key"] == CANARY
        assert sent.body == to_send(client, body, streams=streams).content

    with RawServer() as server:
        server.add_replies(stream(*service.start, *service.end) if streams else whole(service.whole))
        asyncio.run(ask(server))


@both
def test_explains_an_invalid_configuration(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    for wrong, words in (
        ({"api_key": None}, "OPENAI_API_KEY"),
        ({"client": object(), "api_key": None, "base_url": None}, "AsyncOpenAI"),
        ({"client": object()}, "api_key="),
        ({"options": {"stream": True, "model": "x"}}, "model, stream"),
    ):
        with pytest.raises(AgentConfigurationError, match=words):
            service.client("http://127.0.0.1/v1", **wrong)
    for address in ("ftp://127.0.0.1/v1", "127.0.0.1/v1", "http://127.0.0.1/v1?key=secret", "http://127.0.0.1/v1#key"):
        with pytest.raises(AgentConfigurationError, match="base_url") as raised:
            service.client(address)
        assert "secret" not in str(raised.value)
    with pytest.raises(AgentConfigurationError, match="no model"):
        type(service.client("http://127.0.0.1/v1"))("", api_key=CANARY)
    for key in (f"{CANARY}\n", f" {CANARY}", f"{CANARY}é", f"{CANARY}\r\nX-Other: 1"):
        with pytest.raises(AgentConfigurationError, match="not allowed in a key") as refused:
            service.client("http://127.0.0.1/v1", api_key=key)
        assert CANARY not in str(refused.value)


@both
def test_reads_the_key_and_the_address_from_the_environment(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    with RawServer() as server:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-environment")
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        server.add_replies(whole(service.whole))
        client = service.client("", api_key=None, base_url=None)
        asyncio.run(answer_of(client.ask(to_send(client, service.body(client), streams=False))))
        assert server.requests[0].headers["authorization"] == "Bearer sk-of-the-environment"


def test_clients_report_their_kind_and_options() -> None:
    local: ModelClient = OpenAIChatClient("m-1", api_key=CANARY, options={"seed": 1})
    both: ModelClient = OpenAIResponsesClient("m-1", api_key=CANARY, options={"seed": 1})
    stateless: ModelClient = OpenAIResponsesClient("m-1", api_key=CANARY, store=False, options={"seed": 1})
    remote: ModelClient = OpenAIResponsesClient("m-1", api_key=CANARY, store=True)
    assert (both.thread_kinds, both.options) == (("local", "remote"), {"seed": 1})
    assert [repr(each) for each in (both, stateless, remote)] == [
        "OpenAIResponsesClient('m-1')",
        "OpenAIResponsesClient('m-1', store=False)",
        "OpenAIResponsesClient('m-1', store=True)",
    ]
    assert [each.kind for each in (local, stateless, remote)] == ["openai-chat", "openai-responses", "openai-responses"]
    assert [each.wire.name for each in (local, stateless, remote)] == [
        "openai-chat",
        "openai-responses",
        "openai-responses",
    ]
    assert [each.thread_kinds for each in (local, stateless, remote)] == [("local",), ("local",), ("remote",)]
    assert local.options == {"seed": 1}
    assert stateless.options == {"seed": 1, "store": False, "include": ["reasoning.encrypted_content"]}
    assert remote.options == {"store": True}
