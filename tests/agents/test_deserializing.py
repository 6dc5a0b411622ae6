"""Threads that are serialized in one process and taken up in another, on another store."""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from tests.agents.run_checks import check_store, events_of
from tests.agents.turns import Child, Wire
from tests.servers.aimock_server import Aimock

from clew import Agent, Engine, OpenAIChatClient, ScriptedChatClient, tool
from clew.aio.threads import Thread
from clew.domain.context.provider import Context, ContextProvider, ProviderContext
from clew.domain.history import HistoryMessage
from clew.domain.json_values import JsonObject
from clew.domain.messages import Message
from clew.domain.models.client import ThreadKind
from clew.domain.runs.errors import MissingProviderWarning
from clew.domain.runs.requests import request_bytes
from clew.errors import (
    AgentChangedError,
    AgentChangedWarning,
    DefinitionMissingError,
    NoOpenRunError,
    ThreadAheadError,
    ThreadDocumentError,
    UnsupportedThreadError,
)
from clew.infrastructure.scripted_client import Line, call

INSTRUCTIONS = "You know everybody, four-nine-two."
CANARY = "four-nine-two"


@tool
def look_up(name: str) -> str:
    """Look somebody up, four-nine-two."""
    return f"{name} is known."


@tool(approval="always")
def pay(cents: int) -> str:
    """Pay somebody."""
    return f"{cents} paid."


def answer(body: JsonObject) -> Line:
    """What the model says, from what it was asked last."""
    sent: Any = body.get("messages", body.get("input"))
    last = sent[-1]
    asked = last.get("content") or ""
    if last.get("role") == "user" and "Who is" in asked:
        return [call("look_up", name="Ada")]
    if last.get("role") == "user" and "Pay" in asked:
        return [call("look_up", name="Ada"), call("pay", cents=7)]
    return f"I heard {len(sent)} things."


class Counter(ContextProvider):
    """Counts what the user says, and tells the model."""

    def initial_state(self, ctx: ProviderContext) -> Any:  # noqa: ARG002  # as in the port
        return {"said": 0}

    async def on_message(self, ctx: ProviderContext, message: HistoryMessage) -> None:
        if message.role == "user":
            ctx.state = {"said": ctx.state["said"] + 1}

    async def invoking(self, ctx: ProviderContext, messages: Sequence[HistoryMessage]) -> Context:  # noqa: ARG002  # the same
        return Context(instructions=f"The user has spoken {ctx.state['said']} times.")


def desk(engine: Engine, kind: ThreadKind = "local", **more: Any) -> Agent:
    """The agent, as every process makes it."""
    client = ScriptedChatClient(answer, thread_kinds=[kind])
    made: dict[str, Any] = {"name": "Desk", "instructions": INSTRUCTIONS, "tools": [look_up, pay], **more}
    made.setdefault("context_providers", [Counter()])
    return Agent(client, engine=engine, **made)


async def begun(agent: Agent) -> Thread:
    remote = agent.client.thread_kinds == ("remote",)
    thread: Thread = await (agent.get_remote_thread() if remote else agent.get_local_thread())
    await thread.run("Hello, my name is Alice", actor="user:42")
    await thread.run("Who is Ada?")
    return thread


async def forked(agent: Agent) -> Thread:
    """A fork right at an answer: that it was a whole one is only said after the cut."""
    thread = await begun(agent)
    return await thread.fork(at_message=2)


async def forked_twice(agent: Agent) -> Thread:
    branch = await forked(agent)
    await branch.run("Who is Ada?")
    return await branch.fork(title="Again")


async def rewound(agent: Agent) -> Thread:
    thread = await begun(agent)
    said = (await thread.history()).messages
    await thread.run("Not to be heard of again")
    await thread.rewind(to=said[-1].version)
    return thread


async def redacted(agent: Agent) -> Thread:
    """Of a fork, an inherited message and one of its own are redacted."""
    thread = await begun(agent)
    branch = await thread.fork()
    await branch.run("My card is 4929")
    said = (await branch.history()).messages
    await branch.redact(said[0])
    await branch.redact(next(each for each in said if "4929" in each.text))
    return branch


async def edited(agent: Agent) -> Thread:
    thread = await begun(agent)
    return await thread.edit((await thread.history()).messages[0], "Hello, my name is Bob")


async def waiting(agent: Agent) -> Thread:
    thread = await begun(agent)
    response = await thread.run("Pay Ada.")
    assert response.approvals
    return thread


async def suspended(agent: Agent) -> Thread:
    thread = await waiting(agent)
    await thread.suspend()
    return thread


PASTS: dict[str, Callable[[Agent], Awaitable[Thread]]] = {
    each.__name__: each for each in (begun, forked, forked_twice, rewound, redacted, edited, waiting, suspended)
}


async def next_request(agent: Agent, thread: Any) -> tuple[str, Any]:
    """The next request to the model, as bytes, and the thread's answer."""
    client: Any = agent.client
    before = len(client.requests)
    if await thread.status == "suspended":
        await thread.resume()
    approvals = await thread.approvals()
    for approval in approvals:
        await approval.approve(actor="user:7")
    response = await (thread.continue_run() if approvals else thread.run("What's my name?"))
    return request_bytes(client.requests[before]).decode(), response.text


@pytest.mark.parametrize("kind", ["local", "remote"])
def test_the_next_request_is_byte_equal_to_the_one_that_would_have_been_sent(kind: ThreadKind, tmp_path: Path) -> None:
    async def here(wire: Wire) -> None:
        async with Engine.open(f"sqlite:///{tmp_path}/here.db") as engine:
            agent = desk(engine, kind)
            for past, made in PASTS.items():
                thread = await made(agent)
                document = json.dumps(await thread.serialize())
                (tmp_path / past).write_text(document, encoding="utf-8")
                head = (await thread.summary()).head
                wire.say(past, thread.id, head, (await next_request(agent, thread))[0])

    async def there(wire: Wire) -> None:
        async with Engine.open(f"sqlite:///{tmp_path}/there.db") as engine:
            agent = desk(engine, kind)
            for past in PASTS:
                document = json.loads((tmp_path / past).read_text(encoding="utf-8"))
                thread: Any = await agent.deserialize_thread(document)
                head = (await thread.summary()).head
                await check_store(engine, thread, await events_of(thread))
                wire.say(past, thread.id, head, (await next_request(agent, thread))[0])
                await check_store(engine, thread, await events_of(thread))

    said = []
    for process in (here, there):
        child = Child(process)
        said.append([child.heard() for _ in PASTS])
        assert child.wait() == 0
    assert said[0] == said[1]
    for past, *_, request in said[0]:
        assert CANARY in request
        assert "The user has spoken" in request
        document = (tmp_path / past).read_text(encoding="utf-8")
        assert CANARY not in document, "what the agent is made of stays with the agent"


def test_over_http_the_next_request_is_the_one_that_would_have_been_sent(
    any_url: str, aimock: Aimock, tmp_path: Path
) -> None:
    file = tmp_path / "thread.json"
    aimock.reply("my name is", text="Hello, Alice.")
    aimock.reply("What's my name", text="Alice.")

    def http_desk(engine: Engine) -> Agent:
        client = OpenAIChatClient("gpt-test", api_key="none", base_url=aimock.base_url)
        return Agent(client, engine=engine, name="Desk", instructions=INSTRUCTIONS, tools=[look_up, pay])

    async def here(wire: Wire) -> None:
        async with Engine.open(f"sqlite:///{tmp_path}/here.db") as engine:
            thread = await http_desk(engine).get_local_thread()
            await thread.run("Hello, my name is Alice")
            file.write_text(json.dumps(await thread.serialize()), encoding="utf-8")
            wire.say((await thread.run("What's my name?")).text)

    async def there(wire: Wire) -> None:
        async with Engine.open(any_url) as engine:
            document = json.loads(file.read_text(encoding="utf-8"))
            thread = await http_desk(engine).deserialize_thread(document)
            wire.say((await thread.run("What's my name?")).text)

    for process in (here, there):
        child = Child(process)
        assert child.heard() == ["Alice."]
        assert child.wait() == 0
    _, one, two = aimock.journal()
    assert one.body == two.body
    assert one.headers["content-length"] == two.headers["content-length"]
    assert [each["content"] for each in two.body["messages"][1:]] == [
        "Hello, my name is Alice",
        "Hello, Alice.",
        "What's my name?",
    ]


def test_a_local_thread_is_begun_again_with_its_messages(any_url: str, tmp_path: Path) -> None:
    async def again() -> None:
        async with Engine.open(any_url) as here, Engine.open(f"sqlite:///{tmp_path}/there.db") as there:
            thread = await redacted(desk(here))
            agent = desk(there)
            new: Any = await agent.deserialize_thread(await thread.serialize(), as_new=True)
            said = [each.message for each in await thread.history() if each.message is not None]
            assert [each.message for each in await new.history()] == said
            assert "What's my name?" in (await next_request(agent, new))[0]

    asyncio.run(again())


def test_what_the_agent_was_made_of_is_not_in_the_document(any_url: str, tmp_path: Path) -> None:
    async def there_and_back() -> None:
        async with Engine.open(any_url) as here, Engine.open(f"sqlite:///{tmp_path}/there.db") as there:
            thread = await begun(desk(here))
            calls = [event.version for event in await events_of(thread) if event.type == "model-called"]
            bare = await there.restore_thread(await thread.serialize())
            with pytest.raises(DefinitionMissingError):
                await bare.request(calls[0])
            with pytest.warns(AgentChangedWarning, match="the instructions differ"):
                await desk(there, instructions="Another").deserialize_thread(await thread.serialize())
            with pytest.raises(DefinitionMissingError):
                await bare.request(calls[0])
            await desk(there).deserialize_thread(await thread.serialize())
            for version in calls:  # now that the agent has supplied what it is made of
                rebuilt, sent = await bare.request(version), await thread.request(version)
                assert (rebuilt.verified, rebuilt.content) == (True, sent.content)

    asyncio.run(there_and_back())


def test_a_changed_agent_is_reported_at_once(any_url: str, tmp_path: Path) -> None:
    async def there_and_back() -> None:
        async with Engine.open(any_url) as here, Engine.open(f"sqlite:///{tmp_path}/there.db") as there:
            document = await (await begun(desk(here))).serialize()
            with pytest.warns(AgentChangedWarning, match="the tools differ"):
                await desk(there, tools=[look_up]).deserialize_thread(document)
            strict = desk(there, instructions="Another", on_changed_agent="raise")
            with pytest.raises(AgentChangedError, match="the instructions"):
                await strict.deserialize_thread(document)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                await desk(there).deserialize_thread(document)

    asyncio.run(there_and_back())


def test_what_a_provider_keeps_comes_along_and_one_that_nobody_supplies_is_reported(
    any_url: str, tmp_path: Path
) -> None:
    async def there_and_back() -> None:
        async with Engine.open(any_url) as here, Engine.open(f"sqlite:///{tmp_path}/there.db") as there:
            thread = await begun(desk(here))
            document = await thread.serialize()
            assert document["states"] == {"counter": {"said": 2}}
            bare = await desk(there, context_providers=[]).deserialize_thread(document)
            with pytest.warns(MissingProviderWarning, match="counter"):
                await bare.run("Hello again")
            assert (await bare.state()).states == {"counter": {"said": 2}}
            anew = await desk(there, context_providers=[]).deserialize_thread(document, as_new=True)
            with pytest.warns(MissingProviderWarning, match="counter"):
                await anew.run("Hello again")
            new = await desk(there).deserialize_thread(document, as_new=True)
            request, _ = await next_request(cast("Agent", new.agent), new)
            assert "The user has spoken 3 times." in request

    asyncio.run(there_and_back())


def test_a_thread_is_of_the_kind_that_it_was(any_url: str, tmp_path: Path) -> None:
    async def there_and_back() -> None:
        async with Engine.open(any_url) as here, Engine.open(f"sqlite:///{tmp_path}/there.db") as there:
            document = await (await begun(desk(here, "remote"))).serialize()
            thread = await desk(there, "local").deserialize_thread(document)
            assert thread.kind == "remote"
            with pytest.raises(UnsupportedThreadError):
                await thread.run("What's my name?")

    asyncio.run(there_and_back())


def test_a_document_goes_into_the_store_that_it_came_from(url: str) -> None:
    async def there_and_back() -> None:
        async with Engine.open(url) as engine:
            agent = desk(engine)
            thread = await begun(agent)
            document = await thread.serialize()
            version = await thread.version
            assert await (await agent.deserialize_thread(document)).version == version
            await thread.run("Another thing")
            with pytest.raises(ThreadAheadError):
                await agent.deserialize_thread(document)
            fork: Any = await agent.deserialize_thread(document, on_existing="fork")
            assert (await fork.summary()).forked_at == version
            assert fork.agent is agent
            with pytest.raises(ThreadDocumentError):
                await agent.deserialize_thread({**document, "states": {"more": 1}})

    asyncio.run(there_and_back())


def test_an_open_approval_can_be_given_in_one_of_the_places_or_in_both(any_url: str, tmp_path: Path) -> None:
    async def there_and_back() -> None:
        async with Engine.open(any_url) as here, Engine.open(f"sqlite:///{tmp_path}/there.db") as there:
            thread = await waiting(desk(here))
            restored: Any = await desk(there).deserialize_thread(await thread.serialize())
            (approval,) = await restored.approvals()
            assert (approval.call.name, approval.call.arguments) == ("pay", '{"cents": 7}')
            await approval.reject("too much", actor="user:7")
            await restored.continue_run()
            assert [event.type for event in await events_of(restored)].count("run-resumed") == 1
            with pytest.raises(NoOpenRunError):
                await restored.continue_run()
            assert len(await thread.approvals()) == 1

    asyncio.run(there_and_back())


def test_messages_without_any_agent_come_along(any_url: str, tmp_path: Path) -> None:
    async def there_and_back() -> None:
        async with Engine.open(any_url) as here, Engine.open(f"sqlite:///{tmp_path}/there.db") as there:
            thread = await here.start_thread(messages=[Message.user("Hello")])
            restored = await desk(there).deserialize_thread(await thread.serialize())
            assert (await restored.run()).text == "I heard 2 things."

    asyncio.run(there_and_back())
