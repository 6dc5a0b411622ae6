"""The clients with third-party servers: the servers receive what was sent, and list what they store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.domain.wire_requests import to_send
from tests.infrastructure.openai.replies import answer_of, updates_of
from tests.servers.aimock_server import Aimock, ToolCall
from tests.servers.stateful_launchers import StatefulServer

from clew.domain.messages import Message
from clew.domain.models.chat_requests import chat_body, chat_stream
from clew.domain.models.client import Answer, Question, ServiceBound, ServiceReference, TokenUsage, ToolSchema
from clew.domain.runs.errors import ModelRequestError
from clew.infrastructure.openai.clients import OpenAIChatClient, OpenAIResponsesClient

WEATHER = ToolSchema(name="weather", parameters={"type": "object", "properties": {"city": {"type": "string"}}})
CLIENTS = (OpenAIChatClient, OpenAIResponsesClient)


@pytest.mark.parametrize("client_class", CLIENTS)
def test_the_server_receives_a_turn_with_tool_calls_unchanged(client_class: Any, aimock: Aimock) -> None:
    calls = [ToolCall("weather", {"city": city}, f"call_{city}") for city in ("Oslo", "Rome")]
    aimock.reply("warmer", tool_calls=calls, after_tools=False)
    aimock.reply("warmer", text="Rome is warmer.", after_tools=True, piece=4, usage=(12, 3))
    client = client_class("gpt-4o", api_key="none", base_url=aimock.base_url)

    async def turn(messages: tuple[Message, ...]) -> Answer:
        """The answer. It is the same streamed and whole."""
        question = Question("gpt-4o", messages, "Be short.", (WEATHER,), options=client.options)
        body = client.wire.make_body(question)
        whole, one = [await answer_of(client.ask(to_send(client, body, streams=stream))) for stream in (False, True)]
        assert (one.message.contents, one.finish_reason, one.usage) == (
            whole.message.contents,  # the server gives each answer other ids, which are in its native part
            whole.finish_reason,
            whole.usage,
        )
        first, second = [each.body for each in aimock.journal()[-2:]]
        chat: Any = chat_body(question)
        assert first["messages"] == second["messages"]
        if client_class is OpenAIChatClient:
            assert first == chat
            assert second == chat_stream(chat)
        else:  # the journal has its conversion of the items
            assert _paired(first["messages"]) == _paired(chat["messages"])
        return one

    async def converse() -> Answer:
        user = Message.user("Which is warmer?")
        assistant = (await turn((user,))).message
        assert [call.call_id for call in assistant.calls] == ["call_Oslo", "call_Rome"]
        return await turn((user, assistant, *(Message.tool(call.call_id, "20") for call in assistant.calls)))

    answer = asyncio.run(converse())
    assert answer.message.text == "Rome is warmer."
    assert answer.usage == TokenUsage(input_tokens=12, output_tokens=3)


def _paired(messages: Any) -> Any:
    """The ids of the calls, and those of the results."""
    calls = [call["id"] for message in messages for call in message.get("tool_calls") or []]
    return calls, [message["tool_call_id"] for message in messages if message["role"] == "tool"]


def body_of(text: str, client: OpenAIResponsesClient, service: ServiceReference | None) -> Any:
    return client.wire.make_body(Question(client.model, (Message.user(text),), options=client.options, service=service))


@pytest.fixture(params=["stateful", "running_own_stateful"])
def server(request: pytest.FixtureRequest, aimock: Aimock) -> StatefulServer:
    aimock.reply("first", text="One.")
    aimock.reply("second", text="Two.")
    server: StatefulServer = request.getfixturevalue(request.param)
    return server


def test_continues_from_a_response_and_lists_the_history(server: StatefulServer) -> None:
    client = OpenAIResponsesClient(server.model, store=True, api_key="none", base_url=server.base_url)

    async def converse() -> None:
        service = await client.open_service_thread()
        for text in ("first", "second", "second"):
            request = to_send(client, body_of(text, client, service), streams=text == "first")
            bound, *_, answer = await updates_of(client.ask(request))
            assert isinstance(bound, ServiceBound)
            assert isinstance(answer, Answer)
            assert bound.service == ServiceReference(kind="response", id=answer.response_id or "")
            service = bound.service
        assert service is not None
        history = [(each.role, each.text) for each in await client.service_history(service)]
        turn = [("user", "second"), ("assistant", "Two.")]
        assert history == [("user", "first"), ("assistant", "One."), *turn, *turn]
        await client.delete_service_thread(service)
        with pytest.raises(ModelRequestError):
            await client.service_history(service)
        with pytest.raises(ModelRequestError):
            await updates_of(client.ask(to_send(client, body_of("second", client, service), streams=True)))

    asyncio.run(converse())


def test_converses_in_a_conversation_and_lists_it(server: StatefulServer) -> None:
    client = OpenAIResponsesClient(
        server.model, store=True, service="conversation", api_key="none", base_url=server.base_url
    )

    async def converse() -> None:
        service = await client.open_service_thread()
        assert service is not None
        for text in ("first", "second"):
            updates = await updates_of(client.ask(to_send(client, body_of(text, client, service), streams=True)))
            assert not any(isinstance(each, ServiceBound) for each in updates), "the client already knows it"
        history = [(each.role, each.text) for each in await client.service_history(service)]
        assert history == [("user", "first"), ("assistant", "One."), ("user", "second"), ("assistant", "Two.")]
        await client.delete_service_thread(service)
        with pytest.raises(ModelRequestError):
            await client.service_history(service)

    asyncio.run(converse())
