"""Runs that are stopped from outside, in their process or in another, and runs that continue after their process."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.agents.turns import PATIENCE, Child, Gate, Pipe, ShiftedClock, taking_turns, types_of

from clew import Agent, Engine, ScriptedChatClient, tool
from clew.agents import journal
from clew.aio.threads import Thread
from clew.domain.events import Event
from clew.domain.runs.errors import (
    ApprovalNotPendingError,
    RunInProgressError,
    RunNotCompletedError,
    RunStoppedError,
    RunTakenOverError,
    UnknownRunError,
)
from clew.testing import call

pytestmark = pytest.mark.anyio

TEXT = " ".join(map(str, range(60)))


def slow_agent(engine: Engine, *script: Any, delay: float = 0.02, **options: Any) -> Agent:
    return Agent(ScriptedChatClient(script, delay=delay), engine=engine, name="Desk", **options)


async def first_text(thread: Thread) -> None:
    async for update in thread.follow():
        if update.type == "text":
            return


async def last(thread: Thread) -> tuple[str, bool]:
    message = (await thread.history()).messages[-1].message
    assert message is not None
    return message.text, message.cut


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "elsewhere"])
async def test_a_background_run_is_stopped_and_its_text_is_kept(shared_url: str, *, elsewhere: bool) -> None:
    async with asyncio.timeout(PATIENCE), Engine.open(shared_url) as engine, Engine.open(shared_url) as other:
        agent = slow_agent(engine, TEXT, "Again.")
        run = await agent.run("Count.", background=True)
        await first_text(run.thread)
        there = await (other if elsewhere else engine).thread(run.thread.id)
        if elsewhere:
            hide_from_this_process()
        assert await there.stop_run(run.run_id, actor="user:ann")
        assert not await there.stop_run(run.run_id)
        text, cut = await last(there)
        assert cut
        assert TEXT.startswith(text)
        with pytest.raises(RunTakenOverError if elsewhere else RunStoppedError):
            await run.response()
        assert await last(there) == (text, True)
        with pytest.raises(RunNotCompletedError, match="abandoned: stopped"):
            await there.follow(run.run_id).response()
        events = [event async for event in there.events()]
        assert types_of(events)[-2:] == ["answer-interrupted", "run-abandoned"]
        assert (await agent.run("Again.", thread=run.thread)).text == "Again."
        assert (await there.verify()).first_bad is None


def hide_from_this_process() -> None:
    """Let ``stop_run`` treat the runs of this process as those of another."""
    from clew.agents.run_loop import live_runs

    live_runs.clear()


async def test_a_caller_that_waits_for_a_stopped_run_is_not_cancelled(url: str) -> None:
    async with asyncio.timeout(PATIENCE), Engine.open(url) as engine:
        gate = Gate()
        thread = await engine.start_thread()
        running = asyncio.create_task(taking_turns(engine, gate).run("first", thread=thread))
        await gate.reached.wait()
        assert not await thread.stop_run("another")
        assert await thread.stop_run()
        with pytest.raises(RunStoppedError):
            await running
        assert not await thread.stop_run()


async def test_a_run_that_waits_for_approvals_is_stopped_with_its_children(url: str) -> None:
    async with Engine.open(url) as engine:
        pay = tool(lambda: "paid", name="pay", approval="always")
        till = slow_agent(engine, call("pay"), delay=0, tools=[pay]).as_tool(name="Till")
        agent = slow_agent(engine, call("Till", input="Pay."), delay=0, tools=[till])
        response = await agent.run("Pay.")
        (approval,) = response.approvals
        assert await response.thread.stop_run()
        assert await response.thread.approvals() == []
        with pytest.raises(ApprovalNotPendingError):
            await approval.approve()


async def test_a_tool_stops_its_own_run(url: str) -> None:
    async with asyncio.timeout(PATIENCE), Engine.open(url) as engine:
        thread = await engine.start_thread()

        @tool
        async def leave() -> str:
            """Stop."""
            assert await thread.stop_run()
            await asyncio.sleep(PATIENCE)
            return "never"

        with pytest.raises(RunStoppedError):
            await slow_agent(engine, call("leave"), delay=0, tools=[leave]).run("Go.", thread=thread)


async def test_a_run_without_text_notices_at_its_next_renewal(shared_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_RENEWAL_SECONDS", 0.05)
    async with asyncio.timeout(PATIENCE), Engine.open(shared_url) as engine, Engine.open(shared_url) as other:
        gate = Gate()
        thread = await engine.start_thread()
        running = asyncio.create_task(taking_turns(engine, gate).run("first", thread=thread))
        await gate.reached.wait()
        hide_from_this_process()
        assert await (await other.thread(thread.id)).stop_run()
        with pytest.raises(RunTakenOverError):
            await running


async def test_a_follower_is_refused_before_it_reads_and_gets_the_response(url: str) -> None:
    async with asyncio.timeout(PATIENCE), Engine.open(url) as engine:
        agent = slow_agent(engine, "One.", delay=0)
        run = await agent.run("Count.", background=True)
        with pytest.raises(UnknownRunError, match="has no run 'nope'"):
            await run.thread.follow("nope")
        with pytest.raises(UnknownRunError, match="not a position"):
            run.thread.follow(run.run_id, after="7")
        followed = await run.thread.follow(run.run_id)
        response, recorded = await run.response(), await followed.response()
        assert (recorded.text, recorded.usage, recorded.finish_reason) == ("One.", response.usage, "stop")
        assert [update async for update in followed] == []
        await followed.aclose()


async def test_runs_of_a_killed_process_continue_in_another(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/clew.db?synchronous=OFF"
    pay = tool(lambda: "paid", name="pay", approval="always")

    async def work(pipe: Pipe) -> None:
        async with Engine.open(url) as engine:
            agent = slow_agent(engine, TEXT, TEXT)
            runs = [await agent.run(f"Count {number}.", background=True) for number in range(2)]
            await slow_agent(engine, call("pay"), delay=0, tools=[pay]).run("Pay.")
            other = Agent(ScriptedChatClient([TEXT], delay=0.02), engine=engine, name="Other")
            await other.run("Count.", background=True)
            await asyncio.gather(*(first_text(run.thread) for run in runs))
            pipe.say(*(run.thread.id for run in runs))
            await asyncio.Event().wait()

    child = Child(work)
    ids = await child.hear()
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    async with asyncio.timeout(PATIENCE), Engine.open(url, now=ShiftedClock(31)) as engine:
        agent = slow_agent(engine, "All.", "All.", delay=0, tools=[pay])
        with pytest.warns(UserWarning, match="tools differ"):
            continued = await agent.continue_runs()
        assert {run.thread.id for run in continued} == set(ids)
        assert [(await run.response()).text for run in continued] == ["All.", "All."]
        assert await agent.continue_runs() == []


async def test_two_processes_do_not_continue_a_run_at_once(shared_url: str) -> None:
    async with (
        asyncio.timeout(PATIENCE),
        Engine.open(shared_url) as lost,
        Engine.open(shared_url, now=ShiftedClock(31)) as engine,
    ):
        gate = Gate()
        thread = await lost.start_thread()
        running = asyncio.create_task(taking_turns(lost, gate).run("first", thread=thread))
        await gate.reached.wait()
        there, other = await engine.thread(thread.id), await engine.thread(thread.id)
        again = Gate()
        read = there.runs.events

        async def events(after: int, upto: int | None = None) -> list[Event]:
            """Read the events after another process has continued the run."""
            if not again.reached.is_set():
                await taking_turns(engine, again).continue_run(other, background=True)
            return await read(after, upto)

        there.runs.events = events  # type: ignore[method-assign]  # of this thread only
        with pytest.raises(RunInProgressError):
            await taking_turns(engine).continue_run(there)
        gate.opened.set()
        again.opened.set()
        with pytest.raises(RunTakenOverError):
            await running
        assert (await other.follow().response()).text == "done first"
