"""Runs that continue when their caller is gone, and callers that follow a run from any process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.agents.turns import PATIENCE, Gate, taking_turns

from clew import Agent, Engine, ScriptedChatClient, tool
from clew.agents.response import AgentUpdate
from clew.domain.runs.errors import (
    AgentConfigurationError,
    ModelError,
    RunInProgressError,
    RunNotCompletedError,
    RunStoppedError,
    UnknownRunError,
)
from clew.testing import call, fault

pytestmark = pytest.mark.anyio

TEXT = " ".join(map(str, range(60)))


def slow_agent(engine: Engine, *script: Any, delay: float = 0.01, **options: Any) -> Agent:
    return Agent(ScriptedChatClient(script, delay=delay), engine=engine, name="Desk", **options)


def text_of(updates: list[AgentUpdate]) -> str:
    return "".join(update.text for update in updates if update.type == "text")


async def test_a_background_run_goes_on_when_its_caller_goes(url: str) -> None:
    async with asyncio.timeout(PATIENCE), Engine.open(url) as engine:
        agent, started = slow_agent(engine, TEXT), asyncio.Queue[Any]()

        async def caller() -> None:
            await started.put(await agent.run("Count.", background=True))
            await asyncio.Event().wait()

        task = asyncio.create_task(caller())
        run = await started.get()
        task.cancel()
        assert not run.done
        waiting = asyncio.create_task(run.response())
        await asyncio.sleep(0)
        waiting.cancel()
        response = await run.response()
        assert (response.text, response.run_id, run.done) == (TEXT, run.run_id, True)
        assert (await run.thread.history()).messages[-1].text == TEXT


async def test_a_background_run_can_be_stopped(url: str) -> None:
    async with asyncio.timeout(PATIENCE), Engine.open(url) as engine:
        agent = slow_agent(engine, TEXT, delay=0.05)
        run = await agent.run("Count.", background=True)
        async for update in run.thread.follow(run.run_id):
            assert update.type == "text"
            break
        await run.stop()
        await run.stop()
        with pytest.raises(RunStoppedError):
            await run.response()
        with pytest.raises(RunNotCompletedError, match="abandoned: stopped"):
            _ = [update async for update in run.thread.follow(run.run_id)]


async def test_a_refused_run_raises_before_the_stream_is_read() -> None:
    async with asyncio.timeout(PATIENCE), Engine.open("memory:") as engine:
        gate = Gate()
        thread = await engine.start_thread()
        first = asyncio.create_task(taking_turns(engine, gate).run("first", thread=thread))
        await gate.reached.wait()
        agent = slow_agent(engine, "No.")
        with pytest.raises(RunInProgressError):
            await agent.run("Go", thread=thread, stream=True)
        with pytest.raises(RunInProgressError):
            async with agent.run("Go", thread=thread, stream=True):
                pass
        with pytest.raises(RunInProgressError):
            await agent.run("Go", thread=thread, background=True)
        gate.opened.set()
        await first
        async with await agent.run("Go", thread=thread, stream=True) as stream:
            assert text_of([update async for update in stream]) == "No."
        with pytest.raises(AgentConfigurationError, match="exclude each other"):
            await thread.bound_to(agent).run("Go", stream=True, background=True)  # type: ignore[call-overload] # the fault


async def test_an_awaited_stream_that_is_cancelled_stops_its_run() -> None:
    async with asyncio.timeout(PATIENCE), Engine.open("memory:") as engine:
        gate = Gate()
        thread = await engine.start_thread()
        first = asyncio.create_task(taking_turns(engine, gate).run("first", thread=thread))
        await gate.reached.wait()
        agent = slow_agent(engine, "No.")
        stream = agent.run("Go", thread=thread, stream=True, on_conflict="wait")

        async def wait_for_stream() -> None:
            await stream

        waiting = asyncio.create_task(wait_for_stream())
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        gate.opened.set()
        await first
        assert [message.text for message in await thread.history()][::3] == ["first", "done first"]


def price(lamp: str) -> int:
    """Return what a lamp costs."""
    return len(lamp)


async def test_every_update_of_a_run_can_be_followed_from_another_process(shared_url: str) -> None:
    async with asyncio.timeout(PATIENCE), Engine.open(shared_url) as engine, Engine.open(shared_url) as other:
        agent = slow_agent(engine, call("price", lamp="bark"), TEXT, tools=[price])
        run = await agent.run("Price?", background=True)
        there = await other.thread(run.thread.id)
        live = [update async for update in there.follow()]
        late = [update async for update in there.follow(run.run_id)]
        assert [update.type for update in live if update.type != "text"] == ["call", "answer", "result", "answer"]
        assert len(live) > len(late), "the text came in pieces while it streamed"
        assert (text_of(live), text_of(late)) == (TEXT, TEXT)
        assert live[0].text == '{"lamp": "bark"}'
        for number, update in enumerate(live):
            rest = [each async for each in there.follow(run.run_id, after=update.position)]
            assert text_of(rest) == text_of(live[number + 1 :])
            assert [each.message for each in rest if each.message] == [
                each.message for each in live[number + 1 :] if each.message
            ]


async def test_an_old_run_is_found_by_its_id(url: str) -> None:
    async with Engine.open(url) as engine:
        agent = slow_agent(engine, "One.", "Two.", delay=0)
        first = await agent.run("Count.")
        for number in range(300):
            await first.thread.label(number=number)
        await agent.run("Count.", thread=first.thread)
        assert text_of([update async for update in first.thread.follow(first.run_id)]) == "One."
        assert text_of([update async for update in first.thread.follow()]) == "Two."
        with pytest.raises(UnknownRunError, match="has no run 'nope'"):
            _ = [update async for update in first.thread.follow("nope")]
        with pytest.raises(UnknownRunError, match="not a position"):
            _ = [update async for update in first.thread.follow(after="7")]
        with pytest.raises(UnknownRunError, match="has no run"):
            _ = [update async for update in (await engine.start_thread()).follow()]


async def test_a_follower_sees_approvals_and_failures_as_ends(url: str) -> None:
    async with asyncio.timeout(PATIENCE), Engine.open(url) as engine:
        pay = tool(lambda: "paid", name="pay", approval="always")
        agent = slow_agent(
            engine,
            call("pay"),
            fault(
                "server-error",
            ),
            delay=0,
            tools=[pay],
            retries=0,
        )
        run = await agent.run("Pay.", background=True)
        first = [update async for update in run.thread.follow(run.run_id)]
        assert [update.type for update in first] == ["call", "answer"]
        (approval,) = (await run.response()).approvals
        await approval.approve()
        with pytest.raises(RunNotCompletedError, match="interrupted") as raised:
            _ = [update async for update in run.thread.follow(run.run_id)]
        assert raised.value.outcome == "interrupted"
        with pytest.raises(ModelError):
            await agent.continue_run(run.thread)
        updates = run.thread.follow(run.run_id, after=first[-1].position)
        assert (await anext(updates)).type == "result"
        with pytest.raises(RunNotCompletedError, match="failed: ModelUnavailableError"):
            await anext(updates)
