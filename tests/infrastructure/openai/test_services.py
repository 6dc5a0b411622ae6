"""The clients with servers that nobody here wrote: what they journal is what was sent, what they keep is listed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.infrastructure.openai.replies import answered, taken
from tests.servers.aimock_server import Aimock, ToolCall
from tests.servers.stateful_server import StatefulServer

from clew.domain.messages import Message
from clew.domain.models.client import Answer, Question, ServiceBound, ServiceReference, TokenUsage, ToolSchema
from clew.domain.runs.errors import ModelRequestError
from clew.domain.runs.requests import request_body, streamed
from clew.infrastructure.openai.clients import OpenAIChatClient, OpenAIResponsesClient

WEATHER = ToolSchema(name="weather", parameters={"type": "object", "properties": {"city": {"type": "string"}}})
CLIENTS = (OpenAIChatClient, OpenAIResponsesClient)


@pytest.mark.parametrize("made", CLIENTS)
def test_a_turn_with_calls_is_journaled_as_it_was_asked(made: Any, aimock: Aimock) -> None:
    calls = [ToolCall("weather", {"city": city}, f"call_{city}") for city in ("Oslo", "Rome")]
    aimock.reply("warmer", tool_calls=calls, after_tools=False)
    aimock.reply("warmer", text="Rome is warmer.", after_tools=True, piece=4, usage=(12, 3))
    client = made("gpt-4o", api_key="none", base_url=aimock.base_url)

    async def turn(said: tuple[Message, ...]) -> Answer:
        """The answer, which is the same streamed and not."""
        question = Question("gpt-4o", said, "Be short.", (WEATHER,), options=client.options)
        body = request_body(client.wire, question)
        whole, one = [await answered(client.ask(body, stream=stream)) for stream in (False, True)]
        assert (one.message, one.finish_reason, one.usage) == (whole.message, whole.finish_reason, whole.usage)
        first, second = [each.body for each in aimock.journal()[-2:]]
        chat: Any = request_body("openai-chat", question)
        assert first["messages"] == second["messages"]
        if made is OpenAIChatClient:
            assert first == chat
            assert second == streamed("openai-chat", chat)
        else:  # it keeps what it makes of the items
            assert _paired(first["messages"]) == _paired(chat["messages"])
        return one

    async def converse() -> Answer:
        user = Message.user("Which is warmer?")
        called = (await turn((user,))).message
        assert [call.call_id for call in called.calls] == ["call_Oslo", "call_Rome"]
        return await turn((user, called, *(Message.tool(call.call_id, "20") for call in called.calls)))

    answer = asyncio.run(converse())
    assert answer.message.text == "Rome is warmer."
    assert answer.usage == TokenUsage(input_tokens=12, output_tokens=3)


def _paired(messages: Any) -> Any:
    """The ids of the calls, and those of the results."""
    calls = [call["id"] for message in messages for call in message.get("tool_calls") or []]
    return calls, [message["tool_call_id"] for message in messages if message["role"] == "tool"]


def asked(text: str, client: OpenAIResponsesClient, service: ServiceReference | None) -> Any:
    return request_body(
        client.wire, Question(client.model, (Message.user(text),), options=client.options, service=service)
    )


@pytest.fixture(params=["stateful", "running_own_stateful"])
def server(request: pytest.FixtureRequest, aimock: Aimock) -> StatefulServer:
    aimock.reply("first", text="One.")
    aimock.reply("second", text="Two.")
    found: StatefulServer = request.getfixturevalue(request.param)
    return found


def test_goes_on_from_a_response_and_lists_what_the_service_holds(server: StatefulServer) -> None:
    client = OpenAIResponsesClient(server.model, store=True, api_key="none", base_url=server.base_url)

    async def converse() -> None:
        service = await client.open_service_thread()
        for text in ("first", "second", "second"):
            bound, *_, answer = await taken(client.ask(asked(text, client, service), stream=text == "first"))
            assert isinstance(bound, ServiceBound)
            assert isinstance(answer, Answer)
            assert bound.service == ServiceReference(kind="response", id=answer.response_id or "")
            service = bound.service
        assert service is not None
        said = [(each.role, each.text) for each in await client.service_history(service)]
        turn = [("user", "second"), ("assistant", "Two.")]
        assert said == [("user", "first"), ("assistant", "One."), *turn, *turn]
        await client.delete_service_thread(service)
        with pytest.raises(ModelRequestError):
            await client.service_history(service)
        with pytest.raises(ModelRequestError):
            await taken(client.ask(asked("second", client, service), stream=True))

    asyncio.run(converse())


def test_converses_in_a_conversation_and_lists_it(server: StatefulServer) -> None:
    client = OpenAIResponsesClient(
        server.model, store=True, service="conversation", api_key="none", base_url=server.base_url
    )

    async def converse() -> None:
        service = await client.open_service_thread()
        assert service is not None
        for text in ("first", "second"):
            updates = await taken(client.ask(asked(text, client, service), stream=True))
            assert not any(isinstance(each, ServiceBound) for each in updates), "it is known already"
        said = [(each.role, each.text) for each in await client.service_history(service)]
        assert said == [("user", "first"), ("assistant", "One."), ("user", "second"), ("assistant", "Two.")]
        await client.delete_service_thread(service)
        with pytest.raises(ModelRequestError):
            await client.service_history(service)

    asyncio.run(converse())
