"""Runs that start on a new fork: one commit starts both, and the parent thread does not change."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.agents.run_checks import check_requests
from tests.agents.turns import (
    PATIENCE,
    SECOND,
    Gate,
    ShiftedClock,
    check_runs,
    events_of,
    requests_of,
    taking_turns,
    turns_of,
    types_of,
)

from clew import Agent, Engine, ScriptedChatClient, tool
from clew.aio.threads import LocalThread
from clew.domain.errors import UnknownCheckpointError, UnknownVersionError
from clew.domain.ports import Submitted, Write
from clew.domain.runs.errors import AgentConfigurationError
from clew.infrastructure.event_log import ConversationLog
from clew.infrastructure.scripted_client import call

pytestmark = pytest.mark.anyio


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[Write]:
    """Collect the writes that the writer receives."""
    writes: list[Write] = []
    submit_write = ConversationLog.submit

    def submit(log: ConversationLog, write: Write) -> Submitted:
        writes.append(write)
        return submit_write(log, write)

    monkeypatch.setattr(ConversationLog, "submit", submit)
    return writes


async def three_turns(engine: Engine, clock: ShiftedClock) -> tuple[Agent, LocalThread, list[int]]:
    """Return an agent, a thread with three turns one hour apart, and the version at the end of each turn."""
    agent = taking_turns(engine)
    thread = await engine.start_thread(title="Three")
    ends: list[int] = []
    for turn in "abc":
        await agent.run(turn, thread=thread)
        ends.append((await thread.summary()).version)
        clock.seconds += 3600
    return agent, thread, ends


async def test_a_run_on_a_fork_does_not_change_the_parent(url: str, writes: list[Write]) -> None:
    async with Engine.open(url, now=ShiftedClock()) as engine:
        agent, thread, ends = await three_turns(engine, ShiftedClock())
        before = await events_of(thread)
        writes.clear()
        response = await agent.run("d", thread=thread, fork=True)
        assert response.thread.id != thread.id
        assert await turns_of(response.thread) == ["a", "b", "c", "d"]
        assert await turns_of(thread) == ["a", "b", "c"]
        assert await events_of(thread) == before
        summary = await response.thread.summary()
        assert (summary.parent_id, summary.forked_at, summary.title) == (thread.id, ends[-1], "Three")
        assert [event.type for event in writes[0].events] == [
            "thread-forked", "run-started", "message-appended", "model-called",
        ]  # fmt: skip
        assert len(writes) == 4  # like a run with one tool round on an existing thread
        assert len(writes[0].claims) == 1
        await check_requests(response.thread, await events_of(response.thread))
        await check_runs(response.thread)
        await agent.run("e", thread=response.thread)
        assert await turns_of(response.thread) == ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize("reference", ["version", "checkpoint", "time", "inside"])
async def test_a_run_at_an_earlier_version_forks_there(url: str, reference: str) -> None:
    clock = ShiftedClock()
    async with asyncio.timeout(PATIENCE), Engine.open(url, now=clock) as engine:
        agent, thread, ends = await three_turns(engine, clock)
        at: Any = ends[0]
        if reference == "checkpoint":
            at = "after a"
            await thread.checkpoint(at, at=ends[0])
        elif reference == "time":
            last = next(event for event in await events_of(thread) if event.version == ends[0])
            at = datetime.fromtimestamp(last.recorded_at / SECOND + 60, UTC)
        elif reference == "inside":
            at = ends[0] + 4  # in the middle of b's run: after the call, before its result
        before = await events_of(thread)
        response = await agent.run("x", thread=thread, at=at)
        branch = response.thread
        assert branch.id != thread.id
        assert (await branch.summary()).forked_at == (at if reference == "inside" else ends[0])
        assert await events_of(thread) == before
        messages = [each.message.text for each in await branch.history() if each.message and each.role == "user"]
        assert messages == (["a", "b", "x"] if reference == "inside" else ["a", "x"])
        assert reference == "inside" or await turns_of(branch) == ["a", "x"]
        await check_requests(branch, await events_of(branch))
        assert (await branch.runs.control(fresh=True)).run is None


async def test_a_fork_inside_an_open_run_starts_a_new_run(url: str) -> None:
    """Runs do not cross a cut, whether the run was waiting or had crashed."""

    @tool(approval="always")
    def pay() -> str:
        """Pay."""
        raise AssertionError

    async with asyncio.timeout(PATIENCE), Engine.open(url) as engine:
        waits = Agent(client=ScriptedChatClient([call("pay")]), engine=engine, name="turns", tools=[pay])
        response = await waits.run("Pay.")
        events = await events_of(response.thread)
        for version in range(1, len(events) + 1):
            agent = Agent(client=ScriptedChatClient("Hello."), engine=engine, name="else")
            again = await agent.run("Hi.", thread=response.thread, at=version)
            assert again.text == "Hello."
            assert again.thread.id != response.thread.id
            types = types_of((await events_of(again.thread))[version:])
            assert types == ["thread-forked", "run-started", "model-called", "model-answered", "run-completed"]
            await check_requests(again.thread, (await events_of(again.thread))[version:])
        assert await events_of(response.thread) == events
        assert len(await response.thread.approvals()) == 1


async def test_a_second_run_forks_before_the_run_in_progress(url: str) -> None:
    async with asyncio.timeout(PATIENCE), Engine.open(url) as engine, Engine.open(url) as other:
        thread = await engine.start_thread()
        await taking_turns(engine).run("a", thread=thread)
        end = (await thread.summary()).version
        gate = Gate()
        first = asyncio.create_task(taking_turns(engine, gate).run("b", thread=thread))
        await gate.reached.wait()
        response = await taking_turns(other).run("c", thread=await other.thread(thread.id), on_conflict="fork")
        assert (await response.thread.summary()).forked_at == end
        assert await turns_of(response.thread) == ["a", "c"]
        gate.opened.set()
        await first
        assert await turns_of(thread) == ["a", "b"]


async def test_refuses_an_invalid_fork_point_before_any_model_call(url: str) -> None:
    async with Engine.open(url) as engine:
        agent = taking_turns(engine)
        thread = await engine.start_thread()
        for at, error in (("nowhere", UnknownCheckpointError), (99, UnknownVersionError)):
            with pytest.raises(error):
                await agent.run("a", thread=thread, at=at)
        with pytest.raises(AgentConfigurationError, match="thread="):
            await agent.run("a", fork=True)
        assert requests_of(agent) == 0
        assert [each.id async for each in engine.threads()] == [thread.id]


async def test_a_cancelled_run_leaves_no_fork(url: str) -> None:
    async with Engine.open(url) as engine:
        thread = await engine.start_thread()
        task = asyncio.create_task(taking_turns(engine).run("a", thread=thread, fork=True))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await thread.forks() == []
