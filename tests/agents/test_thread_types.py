"""Static types of the threads that agents return; mypy checks them, and the tests check the values."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import assert_type

import pytest

from clew import Agent, Engine, Middleware, ScriptedChatClient, tool
from clew.agents.middleware import Proceed, RunContext
from clew.agents.response import AgentResponse, AgentUpdate
from clew.agents.stream import AgentStream
from clew.aio.threads import LocalThread, RemoteThread, Thread
from clew.domain.history import History
from clew.domain.runs.events import RunStarted
from clew.errors import NoOpenRunError
from clew.testing import call

pytestmark = pytest.mark.anyio


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with Engine.open("memory:") as opened:
        yield opened


def answering(*words: str, engine: Engine | None = None) -> Agent:
    """Return an agent that runs on threads of both kinds."""
    return Agent(ScriptedChatClient(list(words), thread_kinds=("local", "remote")), engine=engine)


async def last_words(response: AgentResponse[Thread]) -> str:
    """Return the last text, as an application does with the response of any run."""
    return (await response.thread.history()).messages[-1].text


async def test_each_kind_of_thread_has_its_type(engine: Engine) -> None:
    agent = answering("Yes.", engine=engine)
    remote = assert_type(await agent.get_remote_thread("resp_1"), RemoteThread)
    assert assert_type(await remote.service_thread_id, str | None) == "resp_1"
    local = assert_type(await agent.get_local_thread(), LocalThread)
    opened = assert_type(await agent.thread(local.id), LocalThread | RemoteThread)
    again = assert_type(await agent.thread(remote.id), LocalThread | RemoteThread)
    assert [type(each) for each in (local, opened, remote, again)] == [LocalThread] * 2 + [RemoteThread] * 2


async def test_a_response_has_the_type_of_its_thread(engine: Engine) -> None:
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


async def test_a_streamed_response_has_the_type_of_its_thread(engine: Engine) -> None:
    agent = answering("One.", "Two.", engine=engine)
    stream = assert_type(agent.run("x", stream=True), AgentStream[LocalThread | RemoteThread])
    updates = [assert_type(update, AgentUpdate) async for update in stream]
    response = assert_type(await stream.get_final_response(), AgentResponse[LocalThread | RemoteThread])
    assert updates[-1].message == (await response.thread.history()).messages[-1]
    remote = await agent.get_remote_thread()
    followed = assert_type(remote.run("y", stream=True), AgentStream[RemoteThread])
    assert type((await followed.get_final_response()).thread) is RemoteThread


async def test_a_continued_response_has_the_type_of_its_thread(engine: Engine) -> None:
    @tool(approval="always")
    def refund(order: int) -> str:
        """Pay an order back."""
        return f"Paid {order}."

    client = ScriptedChatClient([call("refund", order=7), "It is paid."] * 2, thread_kinds=("remote",))
    agent = Agent(client, engine=engine, tools=[refund])
    for streamed in (False, True):
        remote = await agent.get_remote_thread()
        waiting = await remote.run("Refund order 7.")
        await waiting.approvals[0].approve(actor="user:42")
        if streamed:
            response = await assert_type(
                agent.continue_run(remote, stream=True), AgentStream[RemoteThread]
            ).get_final_response()
        else:
            response = assert_type(await agent.continue_run(remote), AgentResponse[RemoteThread])
        assert type(response.thread) is RemoteThread
        assert await last_words(response) == "It is paid."
    opened = await engine.thread(waiting.thread.id)
    with pytest.raises(NoOpenRunError):
        assert_type(await agent.continue_run(opened), AgentResponse[LocalThread | RemoteThread])


async def test_middleware_can_return_a_typed_response(engine: Engine) -> None:
    class Short(Middleware):
        async def run(self, context: RunContext, proceed: Proceed[AgentResponse[Thread]]) -> AgentResponse[Thread]:
            whole = await super().run(context, proceed)
            return AgentResponse[Thread](whole.run_id, whole.thread, whole.messages[-1:], whole.usage)

    client = ScriptedChatClient([call("none"), "One."])
    response = await Agent(client, engine=engine, middleware=[Short()]).run("x")
    assert [message.text for message in response.messages] == ["One."]
    assert response.thread.kind == "local"


def test_a_sync_response_has_the_type_of_its_thread() -> None:
    response = assert_type(answering("One.").run_sync("x"), AgentResponse[LocalThread | RemoteThread])
    assert type(response.thread) is LocalThread


async def test_the_log_names_the_class_of_an_agent(engine: Engine) -> None:
    class Desk(Agent):
        """A class of the application."""

    client = ScriptedChatClient(["One.", "Two."])
    for agent in (Agent(client, engine=engine), Desk(client, engine=engine)):
        events = [event.data async for event in (await agent.run("x")).thread.events()]
        (started,) = [each for each in events if isinstance(each, RunStarted)]
        assert started.agent.type == type(agent).__name__ == repr(agent).partition("(")[0]
