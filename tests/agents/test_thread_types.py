"""What type checkers and editors know of the threads that agents give: mypy checks it, and it is so."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import assert_type

import pytest

from clew import Agent, Engine, ScriptedChatClient
from clew.agents.response import AgentResponse, AgentUpdate
from clew.agents.stream import AgentStream
from clew.domain.history import History
from clew.engine_threads import LocalThread, RemoteThread, Thread
from clew.testing import call

pytestmark = pytest.mark.anyio


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with Engine.open("memory:") as opened:
        yield opened


def answering(*words: str, engine: Engine | None = None) -> Agent:
    """An agent that runs on threads of both kinds."""
    return Agent(ScriptedChatClient(list(words), thread_kinds=("local", "remote")), engine=engine)


async def last_words(response: AgentResponse[Thread]) -> str:
    """What an application does with the response of any run."""
    return (await response.thread.history())[-1].text


async def test_each_kind_of_thread_is_known_as_what_it_is(engine: Engine) -> None:
    agent = answering("Yes.", engine=engine)
    remote = assert_type(await agent.get_remote_thread("resp_1"), RemoteThread)
    assert assert_type(remote.service_thread_id, str | None) == "resp_1"
    local = assert_type(await agent.get_local_thread(), LocalThread)
    found = assert_type(await agent.thread(local.id), LocalThread | RemoteThread)
    again = assert_type(await agent.thread(remote.id), LocalThread | RemoteThread)
    assert [type(each) for each in (local, found, remote, again)] == [LocalThread] * 2 + [RemoteThread] * 2


async def test_a_response_knows_the_thread_that_was_run_on(engine: Engine) -> None:
    agent = answering("One.", "Two.", "Three.", engine=engine)
    response = assert_type(await agent.run("x"), AgentResponse[LocalThread | RemoteThread])
    assert_type(response.thread, LocalThread | RemoteThread)
    history = assert_type(await response.thread.history(), History)
    assert [message.text for message in history] == ["x", "One."]
    local = await agent.get_local_thread()
    bound = assert_type(await local.run("y"), AgentResponse[LocalThread])
    assert await last_words(bound) == "Two."
    remote = await agent.get_remote_thread()
    assert_type((await remote.run("z")).thread, RemoteThread)
    assert await last_words(response) == "One."


async def test_so_does_that_of_a_stream(engine: Engine) -> None:
    agent = answering("One.", "Two.", engine=engine)
    stream = assert_type(agent.run("x", stream=True), AgentStream[LocalThread | RemoteThread])
    updates = [assert_type(update, AgentUpdate) async for update in stream]
    response = assert_type(await stream.get_final_response(), AgentResponse[LocalThread | RemoteThread])
    assert updates[-1].message == (await response.thread.history())[-1]
    remote = await agent.get_remote_thread()
    followed = assert_type(remote.run("y", stream=True), AgentStream[RemoteThread])
    assert type((await followed.get_final_response()).thread) is RemoteThread


async def test_so_does_that_of_a_run_that_is_gone_on_with(engine: Engine) -> None:
    def refund(order: int) -> str:
        """Pay an order back."""
        return f"Paid {order}."

    script = [call("refund", order=7), "It is paid."]
    agent = Agent(ScriptedChatClient(script), engine=engine, tools=[refund])
    remote = await agent.get_local_thread()
