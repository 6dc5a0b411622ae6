"""What a run is asked on, when this process knows the thread already: never less than what the log has."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from clew import Agent, Engine, Message, ScriptedChatClient
from clew.domain.events import Event

pytestmark = pytest.mark.anyio


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[tuple[Engine, Engine]]:
    """Two engines on one store, as in two processes: neither sees what the other remembers."""
    url = f"sqlite:///{tmp_path}/a.db"
    async with Engine.open(url) as one, Engine.open(url) as other:
        yield one, other


def agent_of(engine: Engine) -> tuple[Agent, ScriptedChatClient]:
    client = ScriptedChatClient("Yes.", loop=True)
    return Agent(client, engine=engine), client


def said_last(client: ScriptedChatClient) -> list[Any]:
    messages: Any = client.requests[-1]["messages"]
    return [each["content"] for each in messages]


async def test_nothing_is_read_of_a_thread_that_nobody_else_writes_to(
    two: tuple[Engine, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, client = agent_of(two[0])
    thread = (await agent.run("1")).thread

    def read(*_: object, **__: object) -> list[Event]:
        raise AssertionError("The log was read.")

    with monkeypatch.context() as patched:
        patched.setattr(two[0]._core.log, "lineage", read)
        await thread.run("2")
        await thread.run("3")
    assert said_last(client) == ["1", "Yes.", "2", "Yes.", "3"]


async def test_what_another_process_appended_is_asked_too(two: tuple[Engine, Engine]) -> None:
    agent, client = agent_of(two[0])
    thread = (await agent.run("1")).thread
    await thread.run("2")
    await (await two[1].thread(thread.id)).append(Message.user("From elsewhere."))
    await thread.run("3")
    assert said_last(client) == ["1", "Yes.", "2", "Yes.", "From elsewhere.", "3"]


async def test_what_another_process_redacted_of_a_new_thread_is_not_sent(two: tuple[Engine, Engine]) -> None:
    agent, client = agent_of(two[0])
    thread = (await agent.run("A secret.")).thread
    there = await two[1].thread(thread.id)
    await there.redact((await there.history()).messages[0])
    assert [each.text for each in await thread.history()] == ["", "Yes."]
    await thread.run("2")
    await thread.run("3")
    assert said_last(client) == ["Yes.", "2", "Yes.", "3"]


async def test_what_another_process_redacted_is_not_sent(two: tuple[Engine, Engine]) -> None:
    agent, client = agent_of(two[0])
    thread = (await agent.run("A secret.")).thread
    await thread.run("2")
    there = await two[1].thread(thread.id)
    await there.redact((await there.history()).messages[0])
    await thread.run("3")
    assert said_last(client) == ["Yes.", "2", "Yes.", "3"]


async def test_what_was_redacted_before_a_fork_is_not_sent_on_it(two: tuple[Engine, Engine]) -> None:
    agent, client = agent_of(two[0])
    parent = (await agent.run("A secret.")).thread
    fork = (await parent.fork()).bound_to(agent)
    await fork.run("2")
    await fork.run("3")
    there = await two[1].thread(parent.id)
    await there.redact((await there.history()).messages[0])
    await fork.run("4")
    assert said_last(client) == ["Yes.", "2", "Yes.", "3", "Yes.", "4"]


async def test_what_this_process_redacted_or_rewound_is_not_sent(two: tuple[Engine, Engine]) -> None:
    agent, client = agent_of(two[0])
    thread = (await agent.run("A secret.")).thread
    await thread.run("2")
    before = (await thread.history()).version
    await thread.run("3")
    await thread.redact((await thread.history()).messages[0])
    await thread.rewind(before)
    await thread.run("4")
    assert said_last(client) == ["Yes.", "2", "Yes.", "4"]


async def test_a_message_that_is_changed_after_it_was_said_stays_what_it_was(two: tuple[Engine, Engine]) -> None:
    agent, _ = agent_of(two[0])
    thread = (await agent.run("1")).thread
    await thread.history()
    message, marked = Message.user("2"), Message.user("3", metadata={"mark": [1]})
    await thread.run([message, marked])
    message.metadata["late"] = True
    marked.metadata["mark"] = [2]
    found = (await thread.history()).messages
    assert [each.metadata for each in found if each.role == "user"] == [{}, {}, {"mark": [1]}]
    assert found == (await (await two[1].thread(thread.id)).history()).messages
