"""The features of aimock that the tests use: scripted answers and errors, and its journal of requests."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from tests.servers.aimock_server import Aimock, ToolCall
from tests.servers.openai_client import with_client

MODEL = "gpt-4o"
WEATHER: Any = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}


def test_answers_a_chat_and_reports_the_scripted_usage(aimock: Aimock) -> None:
    aimock.reply("Hi", text="Hello!", usage=(12, 3))

    async def ask(client: openai.AsyncOpenAI) -> Any:
        return await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hi there"}])

    answer = with_client(aimock.base_url, ask)
    assert answer.choices[0].message.content == "Hello!"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (12, 3)


def test_streams_parallel_tool_calls_and_then_the_answer_to_their_results(aimock: Aimock) -> None:
    calls = [ToolCall("weather", {"city": city}, f"call_{city}") for city in ("Oslo", "Rome")]
    aimock.reply("warmer", tool_calls=calls, after_tools=False)
    aimock.reply("warmer", text="Rome is warmer.", after_tools=True, piece=4)
    messages: list[Any] = [{"role": "user", "content": "Which is warmer?"}]
    tools: list[Any] = [{"type": "function", "function": WEATHER}]

    async def ask(client: openai.AsyncOpenAI) -> list[Any]:
        stream = await client.chat.completions.create(model=MODEL, messages=messages, tools=tools, stream=True)
        return [chunk.choices[0] async for chunk in stream]

    chunks = with_client(aimock.base_url, ask)
    deltas = [delta for chunk in chunks for delta in chunk.delta.tool_calls or []]
    assert [(delta.index, delta.id) for delta in deltas if delta.id] == [(0, "call_Oslo"), (1, "call_Rome")]
    assert "".join(delta.function.arguments for delta in deltas if delta.index == 1) == '{"city":"Rome"}'
    assert chunks[-1].finish_reason == "tool_calls"

    tool_calls = [
        {"id": delta.id, "type": "function", "function": {"name": "weather", "arguments": "{}"}}
        for delta in deltas
        if delta.id
    ]
    messages.append({"role": "assistant", "tool_calls": tool_calls})
    messages.extend({"role": "tool", "tool_call_id": call["id"], "content": "20"} for call in tool_calls)
    pieces = [chunk.delta.content for chunk in with_client(aimock.base_url, ask) if chunk.delta.content]
    assert len(pieces) > 1
    assert "".join(pieces) == "Rome is warmer."


def test_the_last_event_of_a_streamed_response_has_the_whole_response(aimock: Aimock) -> None:
    aimock.reply("think", text="Forty-two.", reasoning="Let me see.", usage=(7, 5))

    async def ask(client: openai.AsyncOpenAI) -> list[Any]:
        return [event async for event in await client.responses.create(model=MODEL, input="think", stream=True)]

    events = with_client(aimock.base_url, ask)
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "Forty-two."
    assert events[-1].type == "response.completed"
    assert events[-1].response.output_text == "Forty-two."
    assert [item.type for item in events[-1].response.output] == ["reasoning", "message"]
    assert (events[-1].response.usage.input_tokens, events[-1].response.usage.output_tokens) == (7, 5)


def test_the_journal_has_each_chat_request_unchanged_until_a_reset(aimock: Aimock) -> None:
    body = {"messages": [{"role": "user", "content": "Grüße 🙂"}], "model": MODEL, "seed": 3, "user": "u-1"}
    aimock.reply(text="Hello!")

    async def ask(client: openai.AsyncOpenAI) -> Any:
        return await client.post("/chat/completions", body=body, cast_to=dict[str, Any])

    with_client(aimock.base_url, ask)
    [received] = aimock.journal()
    assert received.path == "/v1/chat/completions"
    assert received.body == body
    assert list(received.body) == list(body)
    assert received.status == 200
    assert received.headers["authorization"] == "[REDACTED]"
    aimock.reset()
    assert aimock.journal() == []


def test_answers_by_turn_and_by_request_count(aimock: Aimock) -> None:
    aimock.reply("yes", text="first", turn=0, nth=0)
    aimock.reply("yes", text="second", turn=0, nth=1)
    aimock.reply("yes", text="after one answer", turn=1)
    once: list[Any] = [{"role": "user", "content": "yes"}]
    twice = [*once, {"role": "assistant", "content": "first"}, *once]

    async def ask(client: openai.AsyncOpenAI) -> list[Any]:
        return [
            (await client.chat.completions.create(model=MODEL, messages=messages)).choices[0].message.content
            for messages in (once, once, twice)
        ]

    assert with_client(aimock.base_url, ask) == ["first", "second", "after one answer"]


def test_gives_a_scripted_error_and_then_answers(aimock: Aimock) -> None:
    aimock.fail(429, message="Slow down", code="rate_limit_exceeded", retry_after=7, nth=0)
    aimock.reply(text="Hello!")

    async def ask(client: openai.AsyncOpenAI) -> Any:
        return await client.responses.create(model=MODEL, input="Hi")

    with pytest.raises(openai.RateLimitError, match="Slow down") as failure:
        with_client(aimock.base_url, ask)
    assert failure.value.response.headers["retry-after"] == "7"
    assert failure.value.code == "rate_limit_exceeded"
    assert with_client(aimock.base_url, ask).output_text == "Hello!"


def test_closes_the_connection_after_some_chunks(aimock: Aimock) -> None:
    aimock.reply(text="A long answer that never reaches its end.", piece=5, cut_after=3)
    received_text = ""

    async def ask(client: openai.AsyncOpenAI) -> None:
        nonlocal received_text
        messages: list[Any] = [{"role": "user", "content": "Hi"}]
        async for chunk in await client.chat.completions.create(model=MODEL, messages=messages, stream=True):
            received_text += chunk.choices[0].delta.content or ""

    with pytest.raises(openai.APIConnectionError):
        with_client(aimock.base_url, ask)
    assert received_text
    assert "A long answer".startswith(received_text)


def test_refuses_a_request_that_matches_no_reply(aimock: Aimock) -> None:
    aimock.reply("Hi", text="Hello!")

    async def ask(client: openai.AsyncOpenAI) -> Any:
        return await client.responses.create(model=MODEL, input="Bye")

    with pytest.raises(openai.NotFoundError):
        with_client(aimock.base_url, ask)
    assert [received.status for received in aimock.journal()] == [404]
