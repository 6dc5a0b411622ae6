"""Long histories in applications: reducers, external history stores and thread documents."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.components import Preferences
from tests.acceptance.models import KINDS, Model
from tests.acceptance.programs import json_output, requests, turns_in
from tests.servers.aimock_server import Aimock
from tests.servers.redis_server import RedisServer

from clew import (
    Agent,
    Engine,
    KeepLast,
    OpenAIResponsesClient,
    RedisHistory,
    ScriptedChatClient,
    tool,
)
from clew.errors import AgentConfigurationError, ThreadDocumentError, UnknownThreadError
from clew.testing import call


@pytest.fixture(params=KINDS)
def model(request: pytest.FixtureRequest, aimock: Aimock) -> Model:
    return Model(aimock if request.param == "http" else None)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/clew.db"


async def history(thread: Any) -> list[tuple[str, str]]:
    """Return role and text of each message of a thread."""
    return [(each.role, each.text) for each in await thread.history()]


# A reducer of two messages

JOKES = {"A pirate joke.": "Arrr.", "A parrot joke.": "Twice.", "A poet joke.": "Odd."}


@pytest.mark.parametrize("when", ["after_message_added", "before_retrieval"])
def test_a_reducer_shortens_requests_but_not_the_history(model: Model, url: str, when: Any) -> None:
    for question, answer in JOKES.items():
        model.says(question, answer)

    async def talk() -> None:
        async with Engine.open(url) as engine:
            reducer = KeepLast(2, when=when)
            client = model.client()
            agent = Agent(client=client, engine=engine, name="Joker", instructions="Be funny.", reducer=reducer)
            thread = await agent.get_local_thread()
            for text in JOKES:
                await agent.run(text, thread=thread)
            turns = [turn for pair in JOKES.items() for turn in zip(("user", "assistant"), pair, strict=True)]
            _, second, third = await requests(thread)
            assert turns_in(second) == [("system", "Be funny."), *turns[:3]]
            assert turns_in(third) == [("system", "Be funny."), *turns[2:5]]
            assert [second.body, third.body] == model.asked()[1:]
            assert await history(thread) == turns

    asyncio.run(talk())


@tool
def look_up(number: int) -> str:
    """Look a number up."""
    return f"{number} is there"


def test_a_reducer_keeps_a_call_and_its_result_together_or_leaves_both_out(url: str) -> None:
    async def talk() -> None:
        async with Engine.open(url) as engine:
            script: list[Any] = [call("look_up", number=1), "There.", "Again.", "And again."]
            agent = Agent(ScriptedChatClient(script), engine=engine, tools=[look_up], reducer=KeepLast(2))
            thread = await agent.get_local_thread()
            for text in ("Look.", "Once more.", "And?"):
                await agent.run(text, thread=thread)
            _, _, third, fourth = await requests(thread)
            assert [role for role, _ in turns_in(third)] == ["assistant", "tool", "assistant", "user"]
            assert [role for role, _ in turns_in(fourth)] == ["user", "assistant", "user"]

    asyncio.run(talk())


def test_a_reducer_on_a_remote_thread_is_a_configuration_error(url: str) -> None:
    async def talk() -> None:
        async with Engine.open(url) as engine:
            client = OpenAIResponsesClient("gpt-4o", store=True, api_key="none", base_url="http://127.0.0.1:9/v1")
            agent = Agent(client=client, engine=engine, reducer=KeepLast(2))
            with pytest.raises(AgentConfigurationError, match="service"):
                await agent.run("Hello.", thread=await agent.get_remote_thread())

    asyncio.run(talk())


# Redis, killed between runs


def looking_up() -> ScriptedChatClient:
    """Return a model that looks up a number and then answers."""

    def answer(body: Any) -> Any:
        last = body["messages"][-1]
        if last["role"] == "tool":
            return f"I found that {last['content']}."
        return call("look_up", number=int(last["content"].split()[-1])) if "Look up" in last["content"] else "Gladly."

    return ScriptedChatClient(answer)


def test_redis_receives_the_missed_messages_when_it_is_back(redis: RedisServer, url: str) -> None:
    async def talk() -> None:
        async with Engine.open(url) as engine:
            agent = Agent(
                client=looking_up(),
                engine=engine,
                tools=[look_up],
                read_history_from="store",
                history_store=lambda ctx: RedisHistory(redis.url, ctx.tenant, ctx.thread_id, max_messages=100),
            )
            thread = (await agent.run("Look up 1")).thread
            redis.kill()
            assert (await agent.run("Look up 2", thread=thread)).text == "I found that 2 is there."
            failed: list[Any] = [event.data async for event in thread.events() if event.type == "context-failed"]
            assert {(each.provider, each.error.kind) for each in failed} == {("history-store", "HistoryStoreError")}
            assert len(await history(thread)) == 8
            # The messages of the log, because the store is down.
            assert len((await requests(thread))[-1].body["messages"]) == 7
            redis.start()
            await agent.run("Look up 3", thread=thread)
            (key,) = redis.ask("KEYS", "*")
            stored_ids = [json.loads(each)["id"] for each in redis.ask("LRANGE", key, 0, -1)]
            assert stored_ids == [message.event_id for message in await thread.history()]

    asyncio.run(talk())


# To a JSON file and to another process

ELSEWHERE = """
import asyncio, json, sys, warnings
from pathlib import Path
from clew import Agent, Engine, OpenAIChatClient, ScriptedChatClient
from tests.acceptance.components import Preferences

async def main():
    async with Engine.open("sqlite:///other.db") as engine:
        client = ScriptedChatClient(["Alice."])
        if sys.argv[2]:
            client = OpenAIChatClient("gpt-4o", api_key="none", base_url=sys.argv[2])
        providers = [Preferences()] if sys.argv[3] else []
        agent = Agent(
            client=client, engine=engine, name="Namer", instructions=sys.argv[4], context_providers=providers,
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            thread = await agent.deserialize_thread(json.loads(Path(sys.argv[1]).read_text()))
            before = await thread.summary()
            await agent.run("What's my name?", thread=thread)
        versions = [event.version async for event in thread.events() if event.type == "model-called"]
        sent = await thread.request(versions[-1])
        warned, states = [str(each.message) for each in caught], (await thread.state()).states
        print(json.dumps([thread.id, before.head, sent.content.decode(), warned, states]))

asyncio.run(main())
"""
VERMILION = "You know all names, vermilion."


def serialized(model: Model, url: str, path: Path) -> tuple[str, str, str]:
    """Write the document of a thread. Return its id, its head and its next request in this process."""
    for words, text in (("I prefer", "Noted."), ("my name is Alice", "Hello, Alice."), ("What's my name?", "Alice.")):
        model.says(words, text)

    async def talk() -> tuple[str, str, str]:
        async with Engine.open(url) as engine:
            agent = Agent(
                client=model.client(),
                engine=engine,
                name="Namer",
                instructions=VERMILION,
                tools=[],
                context_providers=[Preferences()],
            )
            thread = await agent.get_local_thread()
            await agent.run("I prefer kilometres", thread=thread)
            await agent.run("Hello, my name is Alice", thread=thread)
            with path.open("w") as file:
                json.dump(await thread.serialize(), file)
            head = (await thread.summary()).head
            await agent.run("What's my name?", thread=thread)
            return thread.id, head, (await requests(thread))[-1].content.decode()

    return asyncio.run(talk())


def test_a_thread_continues_from_a_file_in_another_process_with_another_store(
    model: Model, url: str, tmp_path: Path
) -> None:
    path = tmp_path / "thread.json"
    thread_id, head, content = serialized(model, url, path)
    assert "units: kilometres" in content
    output = json_output(ELSEWHERE, tmp_path, str(path), model.base_url, "with its provider", VERMILION)
    assert output == [thread_id, head, content, [], {"preferences": {"units": "kilometres"}}]
    document = path.read_text()
    assert "vermilion" not in document
    assert "api_key" not in document


def test_a_changed_agent_and_a_missing_provider_are_reported_by_name(url: str, tmp_path: Path) -> None:
    path = tmp_path / "thread.json"
    serialized(Model(), url, path)
    *_, content, warned, states = json_output(ELSEWHERE, tmp_path, str(path), "", "", "You know no names.")
    assert any("instructions" in each for each in warned)
    assert any("preferences" in each for each in warned)
    assert "units: kilometres" not in content
    assert states == {"preferences": {"units": "kilometres"}}


def test_a_changed_document_is_refused_and_nothing_is_stored(url: str, tmp_path: Path) -> None:
    path = tmp_path / "thread.json"
    thread_id, *_ = serialized(Model(), url, path)
    text = path.read_text()
    whole = json.loads(text)

    def changed(value: Any) -> Any:
        """Return the document with one changed byte in the first stored event."""
        if isinstance(value, str) and len(value) > 100:
            return value[:60] + ("A" if value[60] != "A" else "B") + value[61:]
        if isinstance(value, list):
            return [changed(value[0]), *value[1:]] if value else value
        if isinstance(value, dict):
            return {name: changed(each) for name, each in value.items()}
        return value

    async def restore(document: Any) -> None:
        async with Engine.open("memory:") as engine:
            agent = Agent(client=ScriptedChatClient("?"), engine=engine, name="Namer")
            with pytest.raises(ThreadDocumentError):
                await agent.deserialize_thread(document)
            with pytest.raises(UnknownThreadError):
                await engine.thread(thread_id)

    assert changed(whole) != whole
    asyncio.run(restore(changed(whole)))
    (version,) = [name for name, value in whole.items() if type(value) is int]
    asyncio.run(restore({**whole, version: whole[version] + 1}))
    asyncio.run(restore({name: value for name, value in whole.items() if name != "history"} | {"events": []}))
    with pytest.raises(json.JSONDecodeError):
        json.loads(text[: len(text) // 2])  # half of a file is not JSON
