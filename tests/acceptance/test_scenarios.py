"""Agents and threads in applications."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.servers.aimock_server import Aimock
from tests.servers.stateful_launchers import StatefulServer

from clew import Agent, Engine, OpenAIChatClient, OpenAIResponsesClient, ScriptedChatClient
from clew.errors import UnsupportedThreadError

INSTRUCTIONS = "You are good at telling jokes."
TURNS = [
    ("user", "Tell me a joke about a pirate."),
    ("assistant", "Why is a pirate called one? He just arrrr."),
    ("user", "Now give it a parrot."),
    ("assistant", "So says the parrot, twice."),
]


async def sent(thread: Any) -> list[Any]:
    """Return the requests, rebuilt from the events."""
    return [await thread.request(event.version) async for event in thread.events() if event.type == "model-called"]


def turns_in(request: Any) -> list[tuple[str, str]]:
    """Return role and text of each message of a request."""
    body = request.body
    messages = body["messages"] if "messages" in body else body["input"]
    return [(message["role"], text_of(message["content"])) for message in messages]


def text_of(content: Any) -> str:
    """Return the text of a content. An answer goes back to its service in parts."""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


async def service_id(thread: Any) -> str | None:
    """Return the service's id of the thread, or None for a local thread."""
    return await thread.service_thread_id if thread.kind == "remote" else None


async def joke(engine: Engine, client: Any, kind: str) -> tuple[Any, list[str | None]]:
    """Run two turns; return the thread, and its service ids before and after each turn."""
    agent = Agent(client=client, engine=engine, name="Joker", instructions=INSTRUCTIONS)
    thread = await (agent.get_local_thread() if kind == "local" else agent.get_remote_thread())
    service_ids = [await service_id(thread)]
    first = await agent.run("Tell me a joke about a pirate.", thread=thread)
    service_ids.append(await service_id(thread))
    second = await agent.run("Now give it a parrot.", thread=thread)
    service_ids.append(await service_id(thread))
    assert [m.role for m in first.messages] == ["assistant"]
    assert [m.role for m in second.messages] == ["assistant"]
    assert len((await thread.history()).messages) == 4
    return thread, service_ids


async def history(thread: Any) -> list[tuple[str, str]]:
    """Return role and text of each message of a thread."""
    return [(each.role, each.text) for each in await thread.history()]


@pytest.mark.parametrize("kind", ["scripted", "chat", "responses"])
def test_two_turns_on_a_local_thread(aimock: Aimock, tmp_path: Path, kind: str) -> None:
    aimock.reply("pirate", text=TURNS[1][1])
    aimock.reply("parrot", text=TURNS[3][1])
    clients: dict[str, Any] = {
        "scripted": lambda: ScriptedChatClient([TURNS[1][1], TURNS[3][1]]),
        "chat": lambda: OpenAIChatClient("gpt-4o", api_key="none", base_url=aimock.base_url),
        "responses": lambda: OpenAIResponsesClient("gpt-4o", api_key="none", base_url=aimock.base_url),
    }

    async def talk() -> None:
        async with Engine.open(f"sqlite:///{tmp_path}/clew.db") as engine:
            thread, service_ids = await joke(engine, clients[kind](), "local")
            assert await history(thread) == TURNS
            _, second = await sent(thread)
            assert second.verified
            if kind == "responses":
                assert second.body["instructions"] == INSTRUCTIONS
                assert turns_in(second) == TURNS[:3]
            else:
                assert turns_in(second) == [("system", INSTRUCTIONS), *TURNS[:3]]
            assert service_ids == [None, None, None]
            assert not {"previous_response_id", "conversation"} & set(second.body)
            assert "service-thread-bound" not in [event.type async for event in thread.events()]

    asyncio.run(talk())


def test_two_turns_on_a_remote_thread(stateful: StatefulServer, aimock: Aimock, tmp_path: Path) -> None:
    aimock.reply("pirate", text=TURNS[1][1])
    aimock.reply("parrot", text=TURNS[3][1])

    async def talk() -> None:
        async with Engine.open(f"sqlite:///{tmp_path}/clew.db") as engine:
            client = OpenAIResponsesClient(stateful.model, api_key="none", base_url=stateful.base_url)
            thread, service_ids = await joke(engine, client, "remote")
            assert await history(thread) == TURNS
            first, second = await sent(thread)
            assert first.verified
            assert second.verified
            assert turns_in(first) == TURNS[:1]
            assert turns_in(second) == [TURNS[2]]
            assert first.body["instructions"] == second.body["instructions"] == INSTRUCTIONS
            bound: list[Any] = [each.data async for each in thread.events() if each.type == "service-thread-bound"]
            assert [each.kind for each in bound] == ["response", "response"]
            assert service_ids == [None, *(each.id for each in bound)]
            assert "previous_response_id" not in first.body
            assert second.body["previous_response_id"] == bound[0].id
            assert [(each.role, each.text) for each in await thread.service_history()] == TURNS
            assert (await thread.reconcile()).counts == (4, 0, 0, 0)

            # A client without remote threads is refused before any event. The error names the supported kind.
            before = [event.event_id async for event in thread.events()]
            chat = OpenAIChatClient("gpt-4o", api_key="none", base_url=aimock.base_url)
            agent = Agent(client=chat, engine=engine, name="Joker", instructions=INSTRUCTIONS)
            with pytest.raises(UnsupportedThreadError, match="local"):
                await agent.get_remote_thread()
            with pytest.raises(UnsupportedThreadError, match="local"):
                await agent.run("And a poet.", thread=thread)
            assert [event.event_id async for event in thread.events()] == before
            assert [each.id async for each in engine.threads()] == [thread.id]

    asyncio.run(talk())
