"""Gemini's client over HTTP: the bytes that it sends, and every way in which an answer fails."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from tests.domain.wire_requests import to_send
from tests.servers.raw_server import CUT, STALL, RawServer, Reply, stream, whole

from clew import GeminiClient
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
)

KEY = "AIza-canary0123456789"
SECRET = "the secret recipe of grandmother's plum cake"  # noqa: S105  # not a password
TOO_LONG = "The input token count (9) exceeds the maximum number of tokens allowed (8)."
ANSWER: Any = {
    "candidates": [{"content": {"role": "model", "parts": [{"text": "Hello"}]}, "finishReason": "STOP", "index": 0}],
    "usageMetadata": {"promptTokenCount": 9, "candidatesTokenCount": 4},
}


def piece(text: str) -> Any:
    return {"candidates": [{"content": {"role": "model", "parts": [{"text": text}]}, "index": 0}]}


EVENTS = [piece("Hel"), piece("lo"), {**ANSWER, "candidates": [{"finishReason": "STOP", "index": 0}]}]
both_ways = pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])


def client_of(server: RawServer | str, **more: Any) -> GeminiClient:
    url = server if isinstance(server, str) else server.url
    return GeminiClient("gemini-3-pro", **{"api_key": KEY, "base_url": url, "timeout": 60, **more})


async def asked(client: GeminiClient, *, streams: bool) -> list[Any]:
    body = client.wire.make_body(Question(client.model, (Message.user(SECRET),), options=client.options))
    return [update async for update in client.ask(to_send(client, body, streams=streams))]


def ask(reply: Reply, *, streams: bool, **more: Any) -> list[Any]:
    with RawServer() as server:
        server.add_replies(reply)
        return asyncio.run(asked(client_of(server, **more), streams=streams))


@both_ways
def test_sends_exactly_the_bytes_of_the_request(streams: bool) -> None:  # noqa: FBT001  # pytest passes it
    with RawServer() as server:
        server.add_replies(stream(*EVENTS, done=False) if streams else whole(ANSWER))
        client = client_of(server, options={"topK": 3, "safetySettings": [{"category": "ü🧶"}]})
        updates = asyncio.run(asked(client, streams=streams))
        body = client.wire.make_body(Question(client.model, (Message.user(SECRET),), options=client.options))
        (sent,) = server.requests
        assert sent.body == to_send(client, body, streams=streams).content
        method = "streamGenerateContent?alt=sse" if streams else "generateContent"
        assert sent.path == f"/v1/models/gemini-3-pro:{method}"
        assert (sent.headers["x-goog-api-key"], sent.headers["content-type"]) == (KEY, "application/json")
        answer = updates[-1]
        assert isinstance(answer, Answer)
        assert (answer.message.text, answer.finish_reason) == ("Hello", "stop")


def error(status: int, name: str, words: str = "No.", **headers: str) -> Reply:
    body = {"error": {"code": status, "message": f"{words} {KEY} {SECRET}", "status": name}}
    return whole(body, status=status, headers=headers)


REFUSED: dict[str, tuple[Reply, type[ModelError], bool]] = {
    "400": (error(400, "INVALID_ARGUMENT"), ModelRequestError, False),
    "window": (error(400, "INVALID_ARGUMENT", TOO_LONG), ContextWindowError, False),
    "401": (error(401, "UNAUTHENTICATED"), ModelAccessError, False),
    "403": (error(403, "PERMISSION_DENIED"), ModelAccessError, False),
    "404": (error(404, "NOT_FOUND"), ModelRequestError, False),
    "429": (error(429, "RESOURCE_EXHAUSTED", **{"retry-after": "7"}), ModelOverloadedError, True),
    "500": (error(500, "INTERNAL"), ModelUnavailableError, True),
    "503": (error(503, "UNAVAILABLE"), ModelUnavailableError, True),
    "list": (whole([{"error": {"code": 400, "message": f"No. {KEY}"}}], status=400), ModelRequestError, False),
    "cut": (Reply((CUT,)), ModelUnavailableError, True),
    "html": (whole(b"<html>", headers={"content-type": "text/html"}), ModelStreamError, False),
    "html 502": (whole(b"<html>", status=502, headers={"content-type": "text/html"}), ModelUnavailableError, True),
    "no answer": (whole({"hello": 1}), ModelStreamError, False),
}


RETRY_INFO = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "36.5s"}


@pytest.mark.parametrize(
    ("details", "after"), [([{"reason": "x"}, RETRY_INFO], 36.5), ([{"retryDelay": "soon"}], None)]
)
def test_the_body_says_when_to_ask_again(details: list[Any], after: float | None) -> None:
    body = {"error": {"code": 429, "message": "Slow.", "status": "RESOURCE_EXHAUSTED", "details": details}}
    with pytest.raises(ModelOverloadedError) as raised:
        ask(whole(body, status=429), streams=False)
    assert (raised.value.retry_after, raised.value.code) == (after, "RESOURCE_EXHAUSTED")


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


def test_an_error_names_the_model_of_the_request() -> None:
    async def ask_another(server: RawServer) -> None:
        client = client_of(server)
        request = to_send(client, client.wire.make_body(Question("m", (Message.user("Hi"),))), streams=False)
        with pytest.raises(ModelRequestError, match="'gemini-3-flash' at"):
            await anext(client.ask(replace(request, model="gemini-3-flash")))

    with RawServer() as server:
        server.add_replies(error(404, "NOT_FOUND"))
        asyncio.run(ask_another(server))


@pytest.mark.parametrize("after", range(len(EVENTS)))
def test_an_error_in_a_stream_is_raised_without_secrets(after: int) -> None:
    begun = EVENTS[:after]
    overloaded = {"error": {"code": 503, "message": f"Busy {KEY}.", "status": "UNAVAILABLE"}}
    with pytest.raises(ModelError) as raised:
        ask(stream(*begun, overloaded, done=False), streams=True)
    if begun:
        assert isinstance(raised.value, ModelStreamError)
        assert not raised.value.retryable
    check_hidden(raised.value)


@both_ways
def test_json_that_is_nested_too_deep_to_be_read_is_an_error(streams: bool) -> None:  # noqa: FBT001  # pytest passes it
    """Where the limit is depends on the stack: near it, the answer can be parsed and not be stored."""
    failures: set[bool] = set()
    for depth in (100, 300, *range(880, 1_000, 20), 9_000):
        nested = '{"d":[' * (depth // 2) + "1" + "]}" * (depth // 2)
        body = f'{json.dumps(ANSWER)[:-1]}, "future": {nested}}}'.encode()
        reply = stream(b"data: " + body + b"\n\n", done=False) if streams else whole(body)
        try:
            answer = ask(reply, streams=streams)[-1]
        except ModelStreamError:
            failures.add(depth > 300)  # the others can be stored
        else:
            assert answer.message.text == "Hello"
    assert failures == {True}


def test_a_stall_is_an_error_after_the_timeout() -> None:
    with pytest.raises(ModelStreamError, match="within the timeout"):
        ask(stream(*EVENTS[:1], end=STALL), streams=True, timeout=0.3)


def test_a_service_that_is_not_there() -> None:
    with pytest.raises(ModelUnavailableError) as raised:
        asyncio.run(asked(client_of("http://127.0.0.1:9"), streams=True))
    assert raised.value.retryable


def test_the_arguments_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({}, "GEMINI_API_KEY"),
        ({"api_key": "a b"}, "Remove the character"),
        ({"api_key": KEY, "base_url": "nowhere"}, "base_url"),
        ({"api_key": KEY, "options": {"contents": []}}, "contents"),
    )
    for arguments, words in wrong:
        with pytest.raises(AgentConfigurationError, match=words):
            GeminiClient("gemini-3-pro", **arguments)
    monkeypatch.setenv("GOOGLE_API_KEY", KEY)
    assert repr(GeminiClient("gemini-3-pro")) == "GeminiClient('gemini-3-pro')"
