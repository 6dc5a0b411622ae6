"""Structured output: one question to a model outside any thread, with any answer."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.servers.aimock_server import Aimock

from clew.domain.messages import Message
from clew.domain.models.client import Answer
from clew.domain.runs.errors import AnswerFormatError, ModelStreamError, ModelUnavailableError
from clew.infrastructure.openai.clients import OpenAIChatClient, OpenAIResponsesClient
from clew.infrastructure.scripted_client import Line, ScriptedChatClient, fault
from clew.memory.structured_output import MOST_ANSWER_CHARACTERS, Reply, ask

pytestmark = pytest.mark.anyio


class _Colours(Reply):
    colours: tuple[str, ...]
    best: int | None = None


async def answered(line: Line) -> _Colours:
    return await ask(ScriptedChatClient(line), "Name colours.", {"count": 2}, _Colours)


async def test_asks_with_instructions_data_and_a_strict_format() -> None:
    client = ScriptedChatClient('{"colours": ["red"], "best": 1}', options={"temperature": 0})
    assert await ask(client, "Name colours.", {"of": "line\nend"}, _Colours, model="small") == _Colours(
        colours=("red",), best=1
    )
    (body,) = client.requests
    assert (body["model"], body["temperature"]) == ("small", 0)
    assert body["messages"] == [
        {"role": "system", "content": "Name colours."},
        {"role": "user", "content": '{"of": "line\\nend"}'},
    ]
    form = body["response_format"]
    assert isinstance(form, dict)
    assert form["json_schema"] == {
        "name": "colours",
        "strict": True,
        "schema": {
            "title": "_Colours",
            "type": "object",
            "properties": {
                "colours": {"items": {"type": "string"}, "title": "Colours", "type": "array"},
                "best": {"anyOf": [{"type": "integer"}, {"type": "null"}], "title": "Best"},
            },
            "required": ["colours", "best"],
            "additionalProperties": False,
        },
    }


async def test_a_service_with_threads_is_asked_to_store_nothing() -> None:
    client = ScriptedChatClient('{"colours": []}', thread_kinds=["remote"], options={"store": True})
    await ask(client, "Name colours.", {}, _Colours)
    assert client.requests[0]["store"] is False
    assert client.options == {"store": True}


@pytest.mark.parametrize(
    "text",
    [
        '{"colours": ["red"]}',
        '```json\n{"colours": ["red"], "best": null}\n```',
        '<think>{"colours": ["blue"]}?</think>{"colours": ["red"]}',
        'Here you are: {"colours": ["red"], "more": {"of": "it"}} I hope that it helps.',
    ],
)
async def test_accepts_text_around_an_answer_and_extra_fields(text: str) -> None:
    assert await answered(text) == _Colours(colours=("red",))


@pytest.mark.parametrize(
    "text", ["", "Red!", "{", "}{", '{"colours": "red"}', '{"best": 1}', "[]", "{" * 5_000 + "}" * 5_000]
)
async def test_an_invalid_answer_is_an_error_without_the_text_of_the_answer(text: str) -> None:
    with pytest.raises(AnswerFormatError, match="asked for a JSON object with colours, best") as caught:
        await answered(text)
    assert caught.value.text == text
    assert "It was not used." in str(caught.value)
    assert "Red!" not in str(caught.value)


async def test_a_huge_answer_is_not_parsed() -> None:
    text = json.dumps({"colours": ["red"] * 200_000})
    with pytest.raises(AnswerFormatError, match=r"answered with [0-9,]+ characters, and 1,000,000 are read") as caught:
        await answered(text)
    assert caught.value.text == text[:MOST_ANSWER_CHARACTERS]


async def test_an_answer_without_text_is_an_error() -> None:
    with pytest.raises(AnswerFormatError):
        await answered(Answer(Message(role="assistant", contents=())))


@given(text=st.text() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_any_text_is_an_answer_or_the_same_error(text: str) -> None:
    read = ask(_AnswersAtOnce(text), "Name colours.", {}, _Colours)
    with pytest.raises((AnswerFormatError, StopIteration)) as caught:
        read.send(None)  # the coroutine never waits
    if isinstance(caught.value, StopIteration):
        assert isinstance(caught.value.value, _Colours)


class _AnswersAtOnce(ScriptedChatClient):
    """Answers at once."""

    def __init__(self, text: str) -> None:
        super().__init__("")
        self._text = text

    async def ask(self, request):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202  # the protocol's signature
        del request
        yield Answer(Message.assistant(self._text))


class _Silent(ScriptedChatClient):
    """Ends without an answer, which breaks the protocol."""

    async def ask(self, request):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202  # the protocol's signature
        del request
        return
        yield


async def test_a_client_that_ends_without_an_answer_is_an_error() -> None:
    with pytest.raises(ModelStreamError, match="ended without an answer"):
        await ask(_Silent(""), "Name colours.", {}, _Colours)


async def test_an_error_of_the_service_is_raised() -> None:
    with pytest.raises(ModelUnavailableError):
        await answered(fault("server-error"))


@pytest.mark.parametrize("made", [OpenAIChatClient, OpenAIResponsesClient])
async def test_asks_over_http_in_both_wire_formats(aimock: Aimock, made: type[OpenAIChatClient]) -> None:
    aimock.reply("three of them", text='{"colours": ["red", "blue", "green"], "best": 2}')
    client = made("m-1", api_key="sk-unused", base_url=aimock.base_url)
    try:
        assert (await ask(client, "Name colours.", {"how": "three of them"}, _Colours)).best == 2
    finally:
        await client.aclose()
