"""The behaviour that tests expect of a stateful server: of the one that this run uses, and of the tests' own."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from tests.servers.aimock_server import Aimock, ToolCall
from tests.servers.openai_client import with_client
from tests.servers.stateful_launchers import StatefulServer

TOOL: Any = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}


@pytest.fixture(params=["stateful", "running_own_stateful"])
def server(request: pytest.FixtureRequest, aimock: Aimock) -> StatefulServer:
    aimock.reply("first", text="One.")
    aimock.reply("second", text="Two.")
    aimock.reply("weather", tool_calls=[ToolCall("weather", {"city": "Oslo"}, "call_1")], after_tools=False)
    aimock.reply("weather", text="It rains.", after_tools=True)
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return] # a fixture of this type


def messages_to_model(aimock: Aimock) -> list[tuple[str, str]]:
    """The role and the text of each message in the last request to the model."""
    messages = aimock.journal()[-1].body["messages"]
    return [(message["role"], _text(message["content"])) for message in messages]


def _text(content: Any) -> str:
    """The text of a content: a string, a list of parts, or None next to tool calls."""
    return "".join(part["text"] for part in content) if isinstance(content, list) else content or ""


def test_continues_from_any_earlier_response_so_that_threads_can_fork(server: StatefulServer, aimock: Aimock) -> None:
    async def talk(client: openai.AsyncOpenAI) -> tuple[Any, Any]:
        first = await client.responses.create(model=server.model, input="first")
        await client.responses.create(model=server.model, input="second", previous_response_id=first.id)
        other = await client.responses.create(model=server.model, input="second", previous_response_id=first.id)
        return first, other

    first, other = with_client(server.base_url, talk)
    assert first.store is True
    assert (other.output_text, other.previous_response_id) == ("Two.", first.id)
    assert messages_to_model(aimock) == [("user", "first"), ("assistant", "One."), ("user", "second")]


def test_the_first_event_of_a_stream_has_the_id_of_the_response(server: StatefulServer) -> None:
    async def talk(client: openai.AsyncOpenAI) -> tuple[list[Any], Any]:
        stream = await client.responses.create(model=server.model, input="first", stream=True)
        events: list[Any] = [event async for event in stream]
        return events, await client.responses.retrieve(events[0].response.id)

    events, stored = with_client(server.base_url, talk)
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "One."
    assert stored.output_text == events[-1].response.output_text == "One."


def test_lists_the_input_of_a_response(server: StatefulServer) -> None:
    async def talk(client: openai.AsyncOpenAI) -> list[str]:
        first = await client.responses.create(model=server.model, input="first")
        then = await client.responses.create(model=server.model, input="second", previous_response_id=first.id)
        page = await client.responses.input_items.list(then.id)
        return [item.to_dict()["content"][0]["text"] for item in page.data]  # type: ignore[index] # messages only

    assert with_client(server.base_url, talk) == ["second", "One.", "first"]


@pytest.mark.parametrize("stored", [True, False])
def test_stores_a_response_only_on_request_and_until_it_is_deleted(server: StatefulServer, *, stored: bool) -> None:
    async def talk(client: openai.AsyncOpenAI) -> None:
        first = await client.responses.create(model=server.model, input="first", store=stored)
        if stored:
            await client.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(first.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.create(model=server.model, input="second", previous_response_id=first.id)

    with_client(server.base_url, talk)


def test_a_conversation_has_all_turns_and_lists_them_in_pages(server: StatefulServer, aimock: Aimock) -> None:
    result = {"type": "function_call_output", "call_id": "call_1", "output": "rain"}
    turns: list[Any] = ["first", [{"role": "user", "content": "weather"}], [result]]

    async def talk(client: openai.AsyncOpenAI) -> tuple[list[str], list[str], Any]:
        key = (await client.conversations.create()).id
        for turn in turns:
            answer = await client.responses.create(model=server.model, input=turn, conversation=key, tools=[TOOL])
        page = await client.conversations.items.list(key, limit=2)
        pages = client.conversations.items.list(key, limit=4, order="asc")
        return [item.type for item in page.data], [item.type async for item in pages], answer

    newest, items, answer = with_client(server.base_url, talk)
    assert answer.output_text == "It rains."
    assert newest == ["message", "function_call_output"]
    assert items == ["message", "message", "message", "function_call", "function_call_output", "message"]
    roles = ["user", "assistant", "user", "assistant", "tool"]
    assert [role for role, _ in messages_to_model(aimock)] == roles


def test_a_conversation_accepts_items_and_can_be_deleted(server: StatefulServer, aimock: Aimock) -> None:
    async def talk(client: openai.AsyncOpenAI) -> None:
        key = (await client.conversations.create(metadata={"of": "a test"})).id
        await client.conversations.items.create(key, items=[{"type": "message", "role": "user", "content": "before"}])
        await client.responses.create(model=server.model, input="first", conversation=key)
        assert messages_to_model(aimock) == [("user", "before"), ("user", "first")]
        assert (await client.conversations.delete(key)).deleted
        with pytest.raises(openai.NotFoundError):
            await client.conversations.retrieve(key)

    with_client(server.base_url, talk)
