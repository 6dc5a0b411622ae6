"""Runs on a cached thread: a request never lacks messages that the log has."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from clew import Agent, Engine, Message, ScriptedChatClient
from clew.domain.events import Event

pytestmark = pytest.mark.anyio


@pytest.fixture
async def engines(tmp_path: Path) -> AsyncIterator[tuple[Engine, Engine]]:
    """Two engines on one store, like two processes: each has its own caches."""
    url = f"sqlite:///{tmp_path}/a.db"
    async with Engine.open(url) as one, Engine.open(url) as other:
        yield one, other


def agent_of(engine: Engine) -> tuple[Agent, ScriptedChatClient]:
    client = ScriptedChatClient("Yes.", loop=True)
    return Agent(client, engine=engine), client


def last_request(client: ScriptedChatClient) -> list[Any]:
    messages: Any = client.requests[-1]["messages"]
    return [each["content"] for each in messages]


async def test_a_cached_thread_is_not_read_again(
    engines: tuple[Engine, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, client = agent_of(engines[0])
    thread = (await agent.run("1")).thread

    def read(*_: object, **__: object) -> list[Event]:
        raise AssertionError("The log was read.")

    with monkeypatch.context() as patched:
        for name in ("lineage", "history"):
            patched.setattr(engines[0]._core.log, name, read)
        await thread.run("2")
        await thread.run("3")
    assert last_request(client) == ["1", "Yes.", "2", "Yes.", "3"]


async def test_the_request_includes_messages_of_another_process(engines: tuple[Engine, Engine]) -> None:
    agent, client = agent_of(engines[0])
    thread = (await agent.run("1")).thread
    await thread.run("2")
    await (await engines[1].thread(thread.id)).append(Message.user("From elsewhere."))
    await thread.run("3")
    assert last_request(client) == ["1", "Yes.", "2", "Yes.", "From elsewhere.", "3"]


async def test_the_request_omits_messages_of_a_new_thread_redacted_by_another_process(
    engines: tuple[Engine, Engine],
) -> None:
    agent, client = agent_of(engines[0])
    thread = (await agent.run("A secret.")).thread
    elsewhere = await engines[1].thread(thread.id)
    await elsewhere.redact((await elsewhere.history()).messages[0])
    assert [each.text for each in await thread.history()] == ["", "Yes."]
    await thread.run("2")
    await thread.run("3")
    assert last_request(client) == ["Yes.", "2", "Yes.", "3"]


async def test_the_request_omits_messages_redacted_by_another_process(engines: tuple[Engine, Engine]) -> None:
    agent, client = agent_of(engines[0])
    thread = (await agent.run("A secret.")).thread
    await thread.run("2")
    elsewhere = await engines[1].thread(thread.id)
    await elsewhere.redact((await elsewhere.history()).messages[0])
    await thread.run("3")
    assert last_request(client) == ["Yes.", "2", "Yes.", "3"]


async def test_the_request_on_a_fork_omits_redacted_inherited_messages(engines: tuple[Engine, Engine]) -> None:
    agent, client = agent_of(engines[0])
    parent = (await agent.run("A secret.")).thread
    fork = (await parent.fork()).bound_to(agent)
    await fork.run("2")
    await fork.run("3")
    elsewhere = await engines[1].thread(parent.id)
    await elsewhere.redact((await elsewhere.history()).messages[0])
    await fork.run("4")
    assert last_request(client) == ["Yes.", "2", "Yes.", "3", "Yes.", "4"]


async def test_the_request_omits_redacted_and_rewound_messages(engines: tuple[Engine, Engine]) -> None:
    agent, client = agent_of(engines[0])
    thread = (await agent.run("A secret.")).thread
    await thread.run("2")
    before = (await thread.history()).version
    await thread.run("3")
    await thread.redact((await thread.history()).messages[0])
    await thread.rewind(before)
    await thread.run("4")
    assert last_request(client) == ["Yes.", "2", "Yes.", "4"]


async def test_changing_a_message_after_a_run_changes_nothing_recorded(engines: tuple[Engine, Engine]) -> None:
    agent, _ = agent_of(engines[0])
    thread = (await agent.run("1")).thread
    await thread.history()
    message, marked = Message.user("2"), Message.user("3", metadata={"mark": [1]})
    await thread.run([message, marked])
    message.metadata["late"] = True
    marked.metadata["mark"] = [2]
    messages = (await thread.history()).messages
    assert [each.metadata for each in messages if each.role == "user"] == [{}, {}, {"mark": [1]}]
    assert messages == (await (await engines[1].thread(thread.id)).history()).messages
