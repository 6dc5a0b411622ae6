"""Threads serialized in one process and continued in another, on another store."""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from tests.agents.run_checks import check_store, events_of
from tests.agents.turns import Child, Pipe
from tests.servers.aimock_server import Aimock

from clew import Agent, Engine, OpenAIChatClient, ScriptedChatClient, tool
from clew.aio.threads import Thread
from clew.domain.context.provider import Context, ContextProvider, ProviderContext
from clew.domain.history import HistoryMessage
from clew.domain.json_values import JsonObject
from clew.domain.messages import Message
from clew.domain.models.client import ThreadKind
from clew.domain.runs.errors import MissingProviderWarning
from clew.domain.runs.request_construction import request_bytes
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

INSTRUCTIONS = "You know all customers, four-nine-two."
CANARY = "four-nine-two"


@tool
def look_up(name: str) -> str:
    """Look up a person, four-nine-two."""
    return f"{name} is known."


@tool(approval="always")
def pay(cents: int) -> str:
    """Pay a person."""
    return f"{cents} paid."


def answer(body: JsonObject) -> Line:
    """Return the model's answer to the last message."""
    sent: Any = body.get("messages", body.get("input"))
    last = sent[-1]
    text = last.get("content") or ""
    if last.get("role") == "user" and "Who is" in text:
        return [call("look_up", name="Ada")]
    if last.get("role") == "user" and "Pay" in text:
        return [call("look_up", name="Ada"), call("pay", cents=7)]
    return f"I heard {len(sent)} things."


class Counter(ContextProvider):
    """Counts the user's messages and reports the number to the model."""

    def initial_state(self, ctx: ProviderContext) -> Any:  # noqa: ARG002  # the port's parameters
        return {"spoken": 0}

    async def on_message(self, ctx: ProviderContext, message: HistoryMessage) -> None:
        if message.role == "user":
            ctx.state = {"spoken": ctx.state["spoken"] + 1}

    async def invoking(self, ctx: ProviderContext, messages: Sequence[HistoryMessage]) -> Context:  # noqa: ARG002  # the same
        return Context(instructions=f"The user has spoken {ctx.state['spoken']} times.")


def desk(engine: Engine, kind: ThreadKind = "local", **more: Any) -> Agent:
    """Return the agent that each process makes."""
    client = ScriptedChatClient(answer, thread_kinds=[kind])
    made: dict[str, Any] = {"name": "Desk", "instructions": INSTRUCTIONS, "tools": [look_up, pay], **more}
    made.setdefault("context_providers", [Counter()])
    return Agent(client, engine=engine, **made)


async def started(agent: Agent) -> Thread:
    remote = agent.client.thread_kinds == ("remote",)
    thread: Thread = await (agent.get_remote_thread() if remote else agent.get_local_thread())
    await thread.run("Hello, my name is Alice", actor="user:42")
    await thread.run("Who is Ada?")
    return thread


async def forked(agent: Agent) -> Thread:
    """Return a fork right after an answer; the event that completes the answer comes after the cut."""
    thread = await started(agent)
    return await thread.fork(at_message=2)


async def forked_twice(agent: Agent) -> Thread:
    branch = await forked(agent)
    await branch.run("Who is Ada?")
    return await branch.fork(title="Again")


async def rewound(agent: Agent) -> Thread:
    thread = await started(agent)
    messages = (await thread.history()).messages
    await thread.run("To be rewound")
    await thread.rewind(to=messages[-1].version)
    return thread


async def redacted(agent: Agent) -> Thread:
    """Return a fork with two redacted messages, an inherited one and an own one."""
    thread = await started(agent)
    branch = await thread.fork()
    await branch.run("My card is 4929")
    messages = (await branch.history()).messages
    await branch.redact(messages[0])
    await branch.redact(next(each for each in messages if "4929" in each.text))
    return branch


async def edited(agent: Agent) -> Thread:
    thread = await started(agent)
    return await thread.edit((await thread.history()).messages[0], "Hello, my name is Bob")


async def waiting(agent: Agent) -> Thread:
    thread = await started(agent)
    response = await thread.run("Pay Ada.")
    assert response.approvals
    return thread


async def suspended(agent: Agent) -> Thread:
    thread = await waiting(agent)
    await thread.suspend()
    return thread


PASTS: dict[str, Callable[[Agent], Awaitable[Thread]]] = {
    each.__name__: each for each in (started, forked, forked_twice, rewound, redacted, edited, waiting, suspended)
}


async def next_request(agent: Agent, thread: Any) -> tuple[str, Any]:
    """Return the next request to the model as bytes, and the answer."""
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
def test_the_next_request_is_byte_equal_on_both_stores(kind: ThreadKind, tmp_path: Path) -> None:
    async def here(pipe: Pipe) -> None:
        async with Engine.open(f"sqlite:///{tmp_path}/here.db") as engine:
            agent = desk(engine, kind)
            for past, made in PASTS.items():
                thread = await made(agent)
                document = json.dumps(await thread.serialize())
                (tmp_path / past).write_text(document, encoding="utf-8")
                head = (await thread.summary()).head
                pipe.say(past, thread.id, head, (await next_request(agent, thread))[0])

    async def there(pipe: Pipe) -> None:
        async with Engine.open(f"sqlite:///{tmp_path}/there.db") as engine:
            agent = desk(engine, kind)
            for past in PASTS:
                document = json.loads((tmp_path / past).read_text(encoding="utf-8"))
                thread: Any = await agent.deserialize_thread(document)
                head = (await thread.summary()).head
                await check_store(engine, thread, await events_of(thread))
                pipe.say(past, thread.id, head, (await next_request(agent, thread))[0])
                await check_store(engine, thread, await events_of(thread))

    reports = []
    for process in (here, there):
        child = Child(process)
        reports.append([child.heard() for _ in PASTS])
        assert child.wait() == 0
    assert reports[0] == reports[1]
    for past, *_, request in reports[0]:
        assert CANARY in request
        assert "The user has spoken" in request
        document = (tmp_path / past).read_text(encoding="utf-8")
        assert CANARY not in document, "the document does not contain the agent's definitions"


def test_the_next_http_request_is_equal_on_both_stores(any_url: str, aimock: Aimock, tmp_path: Path) -> None:
    file = tmp_path / "thread.json"
    aimock.reply("my name is", text="Hello, Alice.")
    aimock.reply("What's my name", text="Alice.")

    def http_desk(engine: Engine) -> Agent:
        client = OpenAIChatClient("gpt-test", api_key="none", base_url=aimock.base_url)
        return Agent(client, engine=engine, name="Desk", instructions=INSTRUCTIONS, tools=[look_up, pay])

    async def here(pipe: Pipe) -> None:
        async with Engine.open(f"sqlite:///{tmp_path}/here.db") as engine:
            thread = await http_desk(engine).get_local_thread()
            await thread.run("Hello, my name is Alice")
            file.write_text(json.dumps(await thread.serialize()), encoding="utf-8")
            pipe.say((await thread.run("What's my name?")).text)

    async def there(pipe: Pipe) -> None:
        async with Engine.open(any_url) as engine:
            document = json.loads(file.read_text(encoding="utf-8"))
            thread = await http_desk(engine).deserialize_thread(document)
            pipe.say((await thread.run("What's my name?")).text)

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


def test_a_local_thread_is_restored_as_new_with_its_messages(any_url: str, tmp_path: Path) -> None:
    async def again() -> None:
        async with Engine.open(any_url) as here, Engine.open(f"sqlite:///{tmp_path}/there.db") as there:
            thread = await redacted(desk(here))
            agent = desk(there)
            new: Any = await agent.deserialize_thread(await thread.serialize(), as_new=True)
            messages = [each.message for each in await thread.history() if each.message is not None]
            assert [each.message for each in await new.history()] == messages
            assert "What's my name?" in (await next_request(agent, new))[0]

    asyncio.run(again())


def test_the_document_does_not_contain_the_agents_definitions(any_url: str, tmp_path: Path) -> None:
    async def move_thread() -> None:
        async with Engine.open(any_url) as here, Engine.open(f"sqlite:///{tmp_path}/there.db") as there:
            thread = await started(desk(here))
            calls = [event.version for event in await events_of(thread) if event.type == "model-called"]
            bare = await there.restore_thread(await thread.serialize())
            with pytest.raises(DefinitionMissingError):
                await bare.request(calls[0])
            with pytest.warns(AgentChangedWarning, match="the instructions differ"):
                await desk(there, instructions="Another").deserialize_thread(await thread.serialize())
            with pytest.raises(DefinitionMissingError):
                await bare.request(calls[0])
            await desk(there).deserialize_thread(await thread.serialize())
            for version in calls:  # the agent has supplied its definitions
                rebuilt, sent = await bare.request(version), await thread.request(version)
                assert (rebuilt.verified, rebuilt.content) == (True, sent.content)

    asyncio.run(move_thread())


def test_a_changed_agent_is_reported_at_once(any_url: str, tmp_path: Path) -> None:
    async def move_thread() -> None:
        async with Engine.open(any_url) as here, Engine.open(f"sqlite:///{tmp_path}/there.db") as there:
            document = await (await started(desk(here))).serialize()
            with pytest.warns(AgentChangedWarning, match="the tools differ"):
                await desk(there, tools=[look_up]).deserialize_thread(document)
            strict = desk(there, instructions="Another", on_changed_agent="raise")
            with pytest.raises(AgentChangedError, match="the instructions"):
                await strict.deserialize_thread(document)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                await desk(there).deserialize_thread(document)

    asyncio.run(move_thread())


def test_the_document_contains_provider_states_and_missing_providers_are_reported(any_url: str, tmp_path: Path) -> None:
    async def move_thread() -> None:
        async with Engine.open(any_url) as here, Engine.open(f"sqlite:///{tmp_path}/there.db") as there:
            thread = await started(desk(here))
            document = await thread.serialize()
            assert document["states"] == {"counter": {"spoken": 2}}
            bare = await desk(there, context_providers=[]).deserialize_thread(document)
            with pytest.warns(MissingProviderWarning, match="counter"):
                await bare.run("Hello again")
            assert (await bare.state()).states == {"counter": {"spoken": 2}}
            copy = await desk(there, context_providers=[]).deserialize_thread(document, as_new=True)
            with pytest.warns(MissingProviderWarning, match="counter"):
                await copy.run("Hello again")
            new = await desk(there).deserialize_thread(document, as_new=True)
            request, _ = await next_request(cast("Agent", new.agent), new)
            assert "The user has spoken 3 times." in request

    asyncio.run(move_thread())


def test_a_restored_thread_keeps_its_kind(any_url: str, tmp_path: Path) -> None:
    async def move_thread() -> None:
        async with Engine.open(any_url) as here, Engine.open(f"sqlite:///{tmp_path}/there.db") as there:
            document = await (await started(desk(here, "remote"))).serialize()
            thread = await desk(there, "local").deserialize_thread(document)
            assert thread.kind == "remote"
            with pytest.raises(UnsupportedThreadError):
                await thread.run("What's my name?")

    asyncio.run(move_thread())


def test_a_document_is_restored_into_its_own_store(url: str) -> None:
    async def move_thread() -> None:
        async with Engine.open(url) as engine:
            agent = desk(engine)
            thread = await started(agent)
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

    asyncio.run(move_thread())


def test_a_pending_approval_can_be_decided_in_each_store(any_url: str, tmp_path: Path) -> None:
    async def move_thread() -> None:
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

    asyncio.run(move_thread())


def test_a_thread_without_runs_is_restored(any_url: str, tmp_path: Path) -> None:
    async def move_thread() -> None:
        async with Engine.open(any_url) as here, Engine.open(f"sqlite:///{tmp_path}/there.db") as there:
            thread = await here.start_thread(messages=[Message.user("Hello")])
            restored = await desk(there).deserialize_thread(await thread.serialize())
            assert (await restored.run()).text == "I heard 2 things."

    asyncio.run(move_thread())
