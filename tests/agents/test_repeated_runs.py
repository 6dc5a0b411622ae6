"""Runs with an idempotency key: asked for again in any process, they return the recorded answer."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.agents.killed_processes import PassPoint, run_until
from tests.agents.turns import PATIENCE

from clew import Agent, Engine, Message, ScriptedChatClient, ToolContext, tool
from clew.agents.response import AgentResponse, AgentUpdate
from clew.domain.errors import IdempotencyKeyReusedError, NotAuthorizedError
from clew.domain.json_values import JsonObject
from clew.domain.runs.errors import AgentConfigurationError, ModelError, RunInProgressError, RunNotCompletedError
from clew.infrastructure import clock
from clew.infrastructure.scripted_client import Line
from clew.testing import call, fault

pytestmark = pytest.mark.anyio


@pytest.fixture
def url(any_url: str) -> str:
    return any_url


def agent_of(engine: Engine, *script: Any, **options: Any) -> Agent:
    return Agent(ScriptedChatClient(script), engine=engine, name="Desk", **options)


def requests_of(agent: Agent) -> int:
    client = agent.client
    assert isinstance(client, ScriptedChatClient)
    return len(client.requests)


async def test_a_repeated_run_returns_the_recorded_answer_and_asks_no_model(url: str) -> None:
    async with Engine.open(url) as engine:
        agent = agent_of(engine, "One.", "Two.")
        thread = await engine.start_thread()
        first = await agent.run("Count.", thread=thread, idempotency_key="turn-1")
        version = await thread.version
        again = await agent.run("Count.", thread=thread, idempotency_key="turn-1")
        assert (again.text, again.run_id, again.usage, again.finish_reason) == (
            first.text,
            first.run_id,
            first.usage,
            first.finish_reason,
        )
        assert [message.version for message in again.messages] == [message.version for message in first.messages]
        assert await thread.version == version
        assert requests_of(agent) == 1
        other = await agent.run("Count.", thread=thread, idempotency_key="turn-2")
        assert other.text == "Two."


async def test_the_answer_is_found_after_many_later_events(url: str) -> None:
    async with Engine.open(url) as engine:
        agent = agent_of(engine, call("price"), "Four.", tools=[tool(lambda: 4, name="price")])
        thread = await engine.start_thread()
        first = await agent.run("Price?", thread=thread, idempotency_key="a")
        await thread.append([Message.user(str(number)) for number in range(600)])
        again = await agent.run("Price?", thread=thread, idempotency_key="a")
        assert [each.text for each in again.messages] == [each.text for each in first.messages]
        assert again.usage == first.usage


async def test_a_run_without_a_thread_begins_one_thread_for_a_key(url: str) -> None:
    async with Engine.open(url) as engine:
        agent = agent_of(engine, "Hello.", "Hello, Ben.", "Hello again.")
        first = await agent.run("Hi", actor="user:ann", idempotency_key="k")
        again = await agent.run("Hi", actor="user:ann", idempotency_key="k")
        other = await agent.run("Hi", actor="user:ben", idempotency_key="k")
        assert (again.thread.id, again.text) == (first.thread.id, "Hello.")
        assert (other.thread.id == first.thread.id, other.text) == (False, "Hello, Ben.")
        fork = await agent.run("Hi", thread=first.thread, fork=True, idempotency_key="f")
        same = await agent.run("Hi", thread=first.thread, fork=True, idempotency_key="f")
        assert (same.thread.id, same.text) == (fork.thread.id, "Hello again.")
        assert len([each async for each in engine.threads()]) == 3


async def test_simultaneous_runs_with_one_key_are_one_run(shared_url: str) -> None:
    async with asyncio.timeout(PATIENCE), Engine.open(shared_url) as engine, Engine.open(shared_url) as other:
        agent, elsewhere = agent_of(engine, "One.", "Two."), agent_of(other, "Three.", "Four.")
        thread = await engine.start_thread()
        there = await other.thread(thread.id)
        responses = await asyncio.gather(
            *(agent.run("Go", thread=thread, idempotency_key="k") for _ in range(5)),
            *(elsewhere.run("Go", thread=there, idempotency_key="k") for _ in range(5)),
            *(agent.run("Go", idempotency_key="k") for _ in range(3)),
        )
        assert len({(each.run_id, each.text) for each in responses[:10]}) == 1
        assert len({(each.thread.id, each.text) for each in responses[10:]}) == 1
        assert requests_of(agent) + requests_of(elsewhere) == 2
        assert len(await thread.history()) == 2


async def test_a_repeated_run_waits_for_the_first_and_streams_its_text(shared_url: str) -> None:
    async with asyncio.timeout(PATIENCE), Engine.open(shared_url) as engine, Engine.open(shared_url) as other:
        text = " ".join(map(str, range(40)))
        agent = Agent(ScriptedChatClient([text], delay=0.02), engine=engine, name="Desk")
        thread = await engine.start_thread()
        first = agent.run("Count.", thread=thread, idempotency_key="k", stream=True)
        await first
        elsewhere = agent_of(other, "No.")
        stream = elsewhere.run("Count.", thread=await other.thread(thread.id), idempotency_key="k", stream=True)
        reading = asyncio.create_task(stream.get_final_response())
        assert (await first.get_final_response()).text == text
        assert (await reading).text == text
        assert requests_of(elsewhere) == 0

        async def pieces() -> list[AgentUpdate]:
            repeated = elsewhere.run("Count.", thread=await other.thread(thread.id), idempotency_key="k", stream=True)
            return [update async for update in repeated]

        updates = await pieces()
        assert "".join(update.text for update in updates if update.type == "text") == text
        assert updates[-1].type == "answer"


async def test_another_input_or_agent_for_the_same_key_is_refused(url: str) -> None:
    async with Engine.open(url) as engine:
        agent = agent_of(engine, "One.", "Two.")
        thread = await engine.start_thread()
        await agent.run("Count.", thread=thread, idempotency_key="k")
        with pytest.raises(IdempotencyKeyReusedError):
            await agent.run("Count!", thread=thread, idempotency_key="k")
        with pytest.raises(IdempotencyKeyReusedError):
            await Agent(agent.client, engine=engine, name="Other").run("Count.", thread=thread, idempotency_key="k")
        assert requests_of(agent) == 1
        with pytest.raises(AgentConfigurationError, match="exclude each other"):
            await agent.run("Count.", thread=thread, idempotency_key="k", on_conflict="fork")


async def test_a_failed_run_says_so_when_it_is_asked_for_again(url: str) -> None:
    async with Engine.open(url) as engine:
        agent = agent_of(engine, fault("context-window"), "Two.")
        thread = await engine.start_thread()
        with pytest.raises(ModelError):
            await agent.run("Count.", thread=thread, idempotency_key="k")
        with pytest.raises(RunNotCompletedError, match="failed: ContextWindowError") as raised:
            await agent.run("Count.", thread=thread, idempotency_key="k")
        assert raised.value.outcome == "failed"
        assert (await agent.run("Count.", thread=thread, idempotency_key="k2")).text == "Two."


async def test_a_run_that_waits_for_an_approval_is_returned_and_then_continued(url: str) -> None:
    calls: list[str] = []

    @tool(approval="always")
    def pay() -> str:
        calls.append("paid")
        return "paid"

    async with Engine.open(url) as engine:
        agent = agent_of(engine, call("pay"), "Paid.", tools=[pay])
        thread = await engine.start_thread()
        first = await agent.run("Pay.", thread=thread, idempotency_key="k")
        again = await agent.run("Pay.", thread=thread, idempotency_key="k")
        assert [each.version for each in again.approvals] == [each.version for each in first.approvals]
        assert calls == []
        await again.approvals[0].approve()
        answers = [await agent.run("Pay.", thread=thread, idempotency_key="k") for _ in range(2)]
        assert [(each.text, each.run_id) for each in answers] == [("Paid.", first.run_id)] * 2
        assert calls == ["paid"]


async def test_a_tool_cannot_wait_for_the_run_that_calls_it() -> None:
    async with asyncio.timeout(PATIENCE), Engine.open("memory:") as engine:

        async def again(context: ToolContext) -> str:
            with pytest.raises(RunInProgressError):
                await agent.run("Go", thread=context.thread, idempotency_key="k")
            return "refused"

        agent = agent_of(engine, call("again"), "Done.", tools=[again])
        response = await agent.run("Go", idempotency_key="k")
        assert response.text == "Done."


async def test_a_key_shows_nobody_the_run_of_a_thread_that_they_may_not_read() -> None:
    def may(actor: str | None, action: str, thread: Any) -> bool:
        del action
        return actor == "user:ann" or thread is None

    async with Engine.open("memory:", authorize=may) as engine:
        agent = agent_of(engine.acting_as("user:ann"), "Secret.")
        await agent.run("Hi", actor="user:ann", idempotency_key="k")
        thief = agent_of(engine.acting_as("user:ben"), "No.")
        with pytest.raises(NotAuthorizedError):
            await thief.run("Hi", actor="user:ann", idempotency_key="k")
        assert requests_of(thief) == 0


def test_a_run_whose_process_is_killed_at_any_point_is_answered_once(tmp_path: Path, scale: float) -> None:
    url = f"sqlite:///{tmp_path}/clew.db?synchronous=OFF"
    effects = tmp_path / "effects"

    async def answer(number: int, now: Callable[[], int], pass_point: PassPoint = lambda _: None) -> AgentResponse[Any]:
        @tool(idempotent=True)
        def pay(context: ToolContext) -> str:
            pass_point("before the tool")
            with effects.open("a") as file:
                file.write(f"{context.idempotency_key}\n")
            return "paid"

        def line(body: JsonObject) -> Line:
            pass_point("asked")
            messages: Any = body["messages"]
            return "Done." if messages[-1]["role"] == "tool" else call("pay")

        async with Engine.open(url, embedded=False, now=now) as engine:
            agent = Agent(ScriptedChatClient(line), engine=engine, name="Desk", tools=[pay])
            return await agent.run("Pay.", idempotency_key=f"turn-{number}")

    async def first_process(number: int, pass_point: PassPoint) -> None:
        await answer(number, clock.now, pass_point)

    for point in itertools.count(1, 1 if scale >= 1 else 2):
        effects.unlink(missing_ok=True)
        passed = run_until(point, partial(first_process, point))
        later = clock.now() + point * 60_000_000
        first, again = (asyncio.run(answer(point, lambda: later)) for _ in range(2))  # noqa: B023 # used at once
        assert (first.text, first.run_id, first.thread.id) == ("Done.", again.run_id, again.thread.id)
        assert [each.role for each in first.messages] == ["assistant", "tool", "assistant"]
        assert len(set(effects.read_text().split())) == 1, "each repetition has the same key"
        if not passed.killed:
            break
    assert point > 10
