"""The features of llmock that the tests use: each scripted fault, over Chat Completions and over Responses."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal

import openai
import pytest
from tests.servers.aimock_server import ToolCall
from tests.servers.llmock_server import CONTEXT_WINDOW, UNKNOWN_TOOL, Fault, Llmock
from tests.servers.openai_client import with_client

MODEL = "gpt-4o"
PROMPT = "one two three four five six"
WEATHER = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
TOOLS: dict[str, list[Any]] = {
    "chat": [{"type": "function", "function": WEATHER}],
    "responses": [{"type": "function", **WEATHER}],
}

Api = Literal["chat", "responses"]
Outcome = tuple[str, bool]


@pytest.fixture(params=["chat", "responses"])
def api(request: pytest.FixtureRequest) -> Api:
    """One of the two APIs."""
    return request.param  # type: ignore[no-any-return] # one of the params


def stream_from(
    llmock: Llmock, api: Api, prompt: str = PROMPT, timeout: float = 60
) -> tuple[Outcome, Exception | None]:
    """The received text, whether the answer reached its end, and the error that the client raised."""
    text: list[str] = []
    ended: list[str] = []

    async def chat(client: openai.AsyncOpenAI) -> None:
        messages: list[Any] = [{"role": "user", "content": prompt}]
        async for chunk in await client.chat.completions.create(model=MODEL, messages=messages, stream=True):
            text.append(chunk.choices[0].delta.content or "")
            ended.extend(filter(None, [chunk.choices[0].finish_reason]))

    async def responses(client: openai.AsyncOpenAI) -> None:
        async for event in await client.responses.create(model=MODEL, input=prompt, stream=True):
            if event.type == "response.output_text.delta":
                text.append(event.delta)
            ended.extend([event.type] if event.type == "response.completed" else [])

    raised: Exception | None = None
    try:
        with_client(llmock.base_url, chat if api == "chat" else responses, timeout)
    except (openai.OpenAIError, json.JSONDecodeError) as error:
        raised = error
    return ("".join(text), bool(ended)), raised


def call_from(llmock: Llmock, api: Api) -> tuple[str, str]:
    """The name and the arguments of the tool call that the server answers with."""

    async def chat(client: openai.AsyncOpenAI) -> tuple[str, str]:
        messages: list[Any] = [{"role": "user", "content": PROMPT}]
        answer = await client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS["chat"])
        [call] = answer.choices[0].message.tool_calls or []
        assert call.type == "function"
        return call.function.name, call.function.arguments

    async def responses(client: openai.AsyncOpenAI) -> tuple[str, str]:
        answer = await client.responses.create(model=MODEL, input=PROMPT, tools=TOOLS["responses"])
        [call] = answer.output
        assert call.type == "function_call"
        return call.name, call.arguments

    return with_client(llmock.base_url, chat if api == "chat" else responses)


def test_answers_without_a_script(llmock: Llmock, api: Api) -> None:
    assert stream_from(llmock, api) == ((f"Hello! You said: {PROMPT}", True), None)


@pytest.mark.parametrize(("kind", "status"), [("rate limit", 429), ("server error", 500)])
def test_refuses_once_with_a_retry_time_and_then_answers(llmock: Llmock, api: Api, kind: Fault, status: int) -> None:
    llmock.fault(kind, retry_after=1.5)
    outcome, raised = stream_from(llmock, api)
    assert outcome == ("", False)
    assert isinstance(raised, openai.APIStatusError)
    assert raised.status_code == status
    assert raised.response.headers["retry-after-ms"] == "1500"
    assert raised.response.headers["retry-after"] == "2"
    assert stream_from(llmock, api)[1] is None
    assert [received.status for received in llmock.journal()] == [status, 200]


def no_error(error: Exception | None) -> bool:
    return error is None


def error_of(kind: type[Exception]) -> Callable[[Exception | None], bool]:
    return lambda error: type(error) is kind


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("cut", error_of(openai.APIConnectionError)),
        ("malformed chunk", error_of(json.JSONDecodeError)),
        ("early end", no_error),
    ],
)
def test_breaks_a_stream_after_some_text(
    llmock: Llmock, api: Api, kind: Fault, expected: Callable[[Exception | None], bool]
) -> None:
    llmock.fault(kind)
    (text, ended), raised = stream_from(llmock, api)
    assert expected(raised)
    assert text.startswith("Hello! ")
    assert not text.endswith("six")
    assert not ended
    assert stream_from(llmock, api)[1] is None


def test_stalls_until_the_client_times_out(llmock: Llmock, api: Api) -> None:
    llmock.fault("stall")
    (text, ended), raised = stream_from(llmock, api, timeout=0.5)
    assert isinstance(raised, openai.APITimeoutError)
    assert text.startswith("Hello! ")
    assert not ended


def test_calls_a_tool_with_arguments_that_are_not_json(llmock: Llmock, api: Api) -> None:
    llmock.fault("invalid arguments")
    name, arguments = call_from(llmock, api)
    assert name == "weather"
    with pytest.raises(json.JSONDecodeError):
        json.loads(arguments)


def test_calls_a_tool_that_the_request_does_not_offer(llmock: Llmock, api: Api) -> None:
    llmock.fault("unknown tool")
    assert call_from(llmock, api)[0] == UNKNOWN_TOOL


def test_calls_the_scripted_tool(llmock: Llmock, api: Api) -> None:
    llmock.reply(tool_calls=[ToolCall("weather", {"city": "Oslo"})])
    name, arguments = call_from(llmock, api)
    assert (name, json.loads(arguments)) == ("weather", {"city": "Oslo"})


def test_refuses_a_prompt_that_exceeds_the_context_window_and_names_the_limit(llmock: Llmock, api: Api) -> None:
    outcome, raised = stream_from(llmock, api, "word " * CONTEXT_WINDOW)
    assert outcome == ("", False)
    assert isinstance(raised, openai.BadRequestError)
    assert raised.code == "context_length_exceeded"
    assert f"maximum context length is {CONTEXT_WINDOW} tokens" in raised.message


def test_the_journal_has_each_body_unchanged_until_a_reset(llmock: Llmock, api: Api) -> None:
    path = "/chat/completions" if api == "chat" else "/responses"
    prompt = {"messages" if api == "chat" else "input": [{"role": "user", "content": "Grüße 🙂"}]}
    body = {"model": MODEL, **prompt, "store": False, "user": "u-1"}

    async def ask(client: openai.AsyncOpenAI) -> Any:
        return await client.post(path, body=body, cast_to=dict[str, Any])

    with_client(llmock.base_url, ask)
    [received] = llmock.journal()
    assert (received.path, received.body, received.status) == (f"/v1{path}", body, 200)
    assert list(received.body) == list(body)
    llmock.reset()
    assert llmock.journal() == []


def test_the_refusing_url_refuses_connections(refusing: str) -> None:
    async def ask(client: openai.AsyncOpenAI) -> Any:
        return await client.responses.create(model=MODEL, input=PROMPT)

    with pytest.raises(openai.APIConnectionError) as failure:
        with_client(refusing, ask)
    assert not isinstance(failure.value, openai.APITimeoutError)
