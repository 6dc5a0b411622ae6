"""Anthropic's client over HTTP: the bytes that it sends, and every way in which an answer fails."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anthropic
import pytest
from tests.domain.wire_requests import to_send
from tests.servers.raw_server import CUT, STALL, RawServer, Reply, stream, whole
from tests.servers.strict_anthropic import events

from clew import AnthropicClient
from clew.domain.messages import Message
from clew.domain.models.client import Answer, Question
from clew.domain.runs.errors import (
    AgentConfigurationError,
    ContextWindowError,
    ModelAccessError,
    ModelError,
    ModelOverloadedError,
    ModelRequestError,
    ModelStreamError,
    ModelUnavailableError,
    RequestAlteredError,
)

KEY = "sk-ant-canary0123456789"
SECRET = "the secret recipe of grandmother's plum cake"  # noqa: S105  # not a password
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
EVENTS = list(events(ANSWER))
both_ways = pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])


def client_of(server: RawServer | str, **more: Any) -> AnthropicClient:
    url = server if isinstance(server, str) else server.url.removesuffix("/v1")
    return AnthropicClient("claude-x", **{"api_key": KEY, "base_url": url, "timeout": 60, **more})


async def asked(client: AnthropicClient, *, streams: bool) -> list[Any]:
    body = client.wire.make_body(Question("claude-x", (Message.user(SECRET),), options=client.options))
    return [update async for update in client.ask(to_send(client, body, streams=streams))]


def ask(reply: Reply | None, *, streams: bool, **more: Any) -> tuple[list[Any], RawServer]:
    with RawServer() as server:
        if reply is not None:
            server.add_replies(reply)
        return asyncio.run(asked(client_of(server, **more), streams=streams)), server


@both_ways
def test_sends_exactly_the_bytes_of_the_request(streams: bool) -> None:  # noqa: FBT001  # pytest passes it
    reply = stream(*EVENTS, done=False) if streams else whole(ANSWER)
    with RawServer() as server:
        server.add_replies(reply)
        client = client_of(server, options={"metadata": {"user_id": "ü🧶"}})
        updates = asyncio.run(asked(client, streams=streams))
        body = client.wire.make_body(Question("claude-x", (Message.user(SECRET),), options=client.options))
        (sent,) = server.requests
        assert sent.body == to_send(client, body, streams=streams).content
        assert (sent.path, sent.headers["content-type"]) == ("/v1/messages", "application/json")
        assert KEY in (sent.headers.get("authorization", "") + sent.headers.get("x-api-key", ""))
        assert isinstance(updates[-1], Answer)


@both_ways
def test_the_callers_client_is_used_without_its_retries(streams: bool) -> None:  # noqa: FBT001  # pytest passes it
    async def with_own(server: RawServer) -> None:
        async with anthropic.AsyncAnthropic(api_key=KEY, base_url=server.url.removesuffix("/v1"), max_retries=5) as own:
            client = AnthropicClient("claude-x", client=own)
            with pytest.raises(ModelUnavailableError):
                await asked(client, streams=streams)
            assert isinstance((await asked(client, streams=streams))[-1], Answer)

    with RawServer() as server:
        server.add_replies(whole({"type": "error", "error": {"type": "api_error", "message": "Broken."}}, status=500))
        server.add_replies(stream(*EVENTS, done=False) if streams else whole(ANSWER))
        asyncio.run(with_own(server))
        assert len(server.requests) == 2


def error(kind: str, status: int, words: str = "No.", **headers: str) -> Reply:
    body = {"type": "error", "error": {"type": kind, "message": f"{words} {KEY} {SECRET}"}}
    return whole(body, status=status, headers=headers)


TOO_LONG = "prompt is too long: 9 tokens > 8 maximum"
REFUSED: dict[str, tuple[Reply, type[ModelError], bool]] = {
    "400": (error("invalid_request_error", 400), ModelRequestError, False),
    "window": (
        error("invalid_request_error", 400, "prompt is too long: 9 tokens > 8 maximum"),
        ContextWindowError,
        False,
    ),
    "401": (error("authentication_error", 401), ModelAccessError, False),
    "403": (error("permission_error", 403), ModelAccessError, False),
    "404": (error("not_found_error", 404), ModelRequestError, False),
    "413": (error("request_too_large", 413), ModelRequestError, False),
    "429": (error("rate_limit_error", 429, **{"retry-after": "7"}), ModelOverloadedError, True),
    "500": (error("api_error", 500), ModelUnavailableError, True),
    "529": (error("overloaded_error", 529), ModelOverloadedError, True),
    "cut": (Reply((CUT,)), ModelUnavailableError, True),
    "html": (whole(b"<html>", headers={"content-type": "text/html"}), ModelStreamError, False),
    "no answer": (whole({"hello": 1}), ModelStreamError, False),
}


def check_hidden(raised: BaseException) -> None:
    shown = repr(raised) + str(raised)
    assert KEY not in shown
    assert SECRET not in shown
    assert raised.__cause__ is None
    assert raised.__context__ is None


@both_ways
@pytest.mark.parametrize("case", REFUSED)
def test_what_the_service_refuses_is_an_error_without_secrets(case: str, streams: bool) -> None:  # noqa: FBT001  # pytest passes it
    reply, expected, retryable = REFUSED[case]
    with pytest.raises(expected) as raised:
        ask(reply, streams=streams)
    assert raised.value.retryable is retryable
    assert raised.value.retry_after == (7.0 if case == "429" else None)
    check_hidden(raised.value)


@pytest.mark.parametrize("after", range(len(EVENTS)))
def test_an_error_in_a_stream_is_raised_without_secrets(after: int) -> None:
    begun = EVENTS[:after]
    overloaded = {"type": "error", "error": {"type": "overloaded_error", "message": f"Busy {KEY}."}}
    with pytest.raises(ModelError) as raised:
        ask(stream(*begun, overloaded, done=False), streams=True)
    if any(b"content_block" in event for event in begun):
        assert isinstance(raised.value, ModelStreamError)
        assert not raised.value.retryable
    check_hidden(raised.value)


def test_a_stall_is_an_error_after_the_timeout() -> None:
    with pytest.raises(ModelStreamError, match="within the timeout"):
        ask(stream(*EVENTS[:4], end=STALL), streams=True, timeout=0.3)


def test_a_service_that_is_not_there() -> None:
    with pytest.raises(ModelUnavailableError) as raised:
        asyncio.run(asked(client_of("http://127.0.0.1:9"), streams=True))
    assert raised.value.retryable


class Altering(anthropic.AsyncAnthropic):
    async def _prepare_options(self, options: Any) -> Any:
        return options.model_copy(update={"content": json.dumps({"model": "other"}).encode()})


def test_bytes_that_the_client_changes_are_found() -> None:
    async def with_own(server: RawServer) -> None:
        async with Altering(api_key=KEY, base_url=server.url.removesuffix("/v1")) as own:
            with pytest.raises(RequestAlteredError):
                await asked(AnthropicClient("claude-x", client=own), streams=False)

    with RawServer() as server:
        server.add_replies(whole(ANSWER))
        asyncio.run(with_own(server))


def test_the_arguments_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({}, "ANTHROPIC_API_KEY"),
        ({"api_key": "a b"}, "Remove the character"),
        ({"api_key": KEY, "base_url": "nowhere"}, "base_url"),
        ({"api_key": KEY, "options": {"temperature": 1}}, "temperature"),
        ({"client": object()}, "AsyncAnthropic"),
    )
    for arguments, words in wrong:
        with pytest.raises(AgentConfigurationError, match=words):
            AnthropicClient("claude-x", **arguments)
    assert repr(AnthropicClient("claude-x", api_key=KEY)) == "AnthropicClient('claude-x')"
