"""Tools and middleware of a run can run agents on other threads, but not on the run's own thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.agents.turns import PATIENCE, check_runs, events_of, types_of

from clew import Agent, Engine, Middleware, ScriptedChatClient, ToolContext, tool
from clew.domain.models.client import Answer
from clew.domain.runs.errors import RunInProgressError
from clew.domain.runs.events import RunAbandoned, RunFailed
from clew.infrastructure.scripted_client import call

pytestmark = pytest.mark.anyio


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with asyncio.timeout(PATIENCE), Engine.open("memory:") as opened:
        yield opened


def nesting_agent(engine: Engine, function: Callable[..., Any]) -> Agent:
    return Agent(
        client=ScriptedChatClient([call("again"), "done"]), engine=engine, tools=[tool(function, name="again")]
    )


def other(engine: Engine) -> Agent:
    return Agent(client=ScriptedChatClient("from within", loop=True), engine=engine, name="other")


@pytest.mark.parametrize("on_conflict", ["raise", "wait"])
async def test_a_tool_cannot_run_on_the_thread_of_its_own_run(engine: Engine, on_conflict: Any) -> None:
    async def again(context: ToolContext) -> str:
        return (await other(engine).run("inner", thread=context.thread, on_conflict=on_conflict)).text

    thread = await engine.start_thread()
    response = await nesting_agent(engine, again).run("outer", thread=thread)
    assert response.text == "done"
    assert "RunInProgressError" in str(response.messages[1].message)
    await check_runs(thread)


@pytest.mark.parametrize("on_conflict", ["raise", "wait"])
async def test_a_sync_tool_cannot_run_on_the_thread_of_its_own_run(engine: Engine, on_conflict: Any) -> None:
    def again(context: ToolContext) -> str:
        return other(engine).run_sync("inner", thread=context.thread, on_conflict=on_conflict).text

    thread = await engine.start_thread()
    response = await nesting_agent(engine, again).run("outer", thread=thread)
    assert "RunInProgressError" in str(response.messages[1].message)
    await check_runs(thread)


async def test_a_tool_can_run_on_another_thread_and_on_a_fork(engine: Engine) -> None:
    async def again(context: ToolContext) -> list[str]:
        elsewhere = await other(engine).run("inner")
        forked = await other(engine).run("inner", thread=context.thread, on_conflict="fork")
        return [elsewhere.text, forked.text]

    thread = await engine.start_thread()
    response = await nesting_agent(engine, again).run("outer", thread=thread)
    results: Any = response.messages[1].message
    assert results.results[0].result == ["from within", "from within"]
    await check_runs(thread)


async def test_a_stopped_tool_does_not_wait_for_its_own_run(engine: Engine) -> None:
    started = asyncio.Event()

    async def again(context: ToolContext) -> str:
        started.set()
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            await other(engine).run("inner", thread=context.thread)
        return "not reached"

    thread = await engine.start_thread()
    running = asyncio.create_task(nesting_agent(engine, again).run("outer", thread=thread))
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    events = await events_of(thread)
    assert types_of(events)[-2:] == ["tool-failed", "run-abandoned"]
    assert events[-1].data == RunAbandoned(reason="cancelled")
    await check_runs(thread)
    assert (await other(engine).run("next", thread=thread)).text == "from within"


async def test_middleware_that_runs_on_the_thread_of_its_own_run_fails_the_run(engine: Engine) -> None:
    class Again(Middleware):
        async def model_call(self, context: Any, proceed: Any) -> Answer:
            del proceed
            await other(engine).run("inner", thread=await engine.thread(context.thread_id))
            raise AssertionError

    thread = await engine.start_thread()
    agent = Agent(client=ScriptedChatClient("never"), engine=engine, middleware=[Again()])
    with pytest.raises(RunInProgressError):
        await agent.run("outer", thread=thread)
    last = (await events_of(thread))[-1].data
    assert isinstance(last, RunFailed)
    assert last.error.kind == "RunInProgressError"
    await check_runs(thread)
