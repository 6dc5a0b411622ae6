"""Ending a tree of agents that waits, killed at every point: nothing waits for ever, and no text stays."""

from __future__ import annotations

import asyncio
import itertools
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.agents.killed_processes import PassPoint, run_until

from clew import Agent, Engine, ScriptedChatClient, tool
from clew.agents.tools import Tool
from clew.domain.runs.events import ChildThread
from clew.infrastructure import clock
from clew.infrastructure.scripted_client import Line
from clew.testing import call

pytestmark = pytest.mark.anyio

TEXT = "unmistakable"


def tree(engine: Engine) -> Agent:
    """Three agents, of which the innermost waits for an approval."""

    def agent_of(name: str, asks: Tool, **arguments: str) -> Agent:
        def line(body: Any) -> Line:
            answered = any(message["role"] == "tool" for message in body["messages"])
            return "Not paid." if answered else call(asks.name, **arguments)

        return Agent(ScriptedChatClient(line), engine=engine, name=name, tools=[asks])

    payer = agent_of("Payer", tool(lambda: TEXT, name="pay", approval="always"))
    clerk = agent_of("Clerk", payer.as_tool(), input=TEXT)
    return agent_of("Boss", clerk.as_tool(), input=TEXT)


async def begin(url: str) -> str:
    async with Engine.open(url, embedded=False) as engine:
        return (await tree(engine).run(TEXT)).thread.id


async def end(how: str, url: str, thread_id: str, _: PassPoint) -> None:
    async with Engine.open(url, embedded=False) as engine:
        thread = await engine.thread(thread_id)
        match how:
            case "rewind":
                await thread.rewind(to=1)
            case "stop":
                await thread.stop_run()
            case "run":
                agent = Agent(ScriptedChatClient(["Not paid."]), engine=engine, name="Other")
                await agent.run("Again.", thread=thread, abandon_run=True)
            case _:
                await getattr(thread, how)()


async def last_events(engine: Engine, thread_id: str) -> list[str]:
    """The types of the last events of a thread and of those on which its calls ran agents."""
    events = [event async for event in (await engine.thread(thread_id)).events()]
    if events[-1].type == "thread-purged":
        assert TEXT not in str(events)
    children = [event.data.thread_id for event in events if isinstance(event.data, ChildThread)]
    return [events[-1].type, *itertools.chain(*[await last_events(engine, child) for child in children])]


async def check(how: str, url: str, thread_id: str) -> None:
    """The tree has ended as a whole, or its end can be repeated, or it can be continued."""
    async with Engine.open(url, embedded=False, now=lambda: clock.now() + 60_000_000) as engine:
        outer, *inner = await last_events(engine, thread_id)
        if outer != "approval-requested":
            assert set(inner) <= {"run-abandoned", "thread-purged"}, "nothing below an ended run is open"
            assert how != "purge" or set(inner) == {"thread-purged"}
            return
        thread = await engine.thread(thread_id)
        if inner[-1] == "approval-requested":
            assert [each.call.name for each in await thread.approvals()] == ["pay"]
        else:
            assert await thread.approvals() == []
            assert (await tree(engine).continue_run(thread)).text == "Not paid."
        assert (await engine.verify()).first_bad is None


@pytest.mark.parametrize("forgets", ["delete", "purge", "end"])
async def test_a_tree_continues_after_the_thread_of_an_inner_agent_has_gone(forgets: str) -> None:
    async with Engine.open("memory:") as engine:
        boss = tree(engine)
        response = await boss.run(TEXT)
        (approval,) = response.approvals
        await getattr(await engine.thread(approval.thread_id), forgets)()
        assert await response.thread.approvals() == []
        assert (await boss.continue_run(response.thread)).text == "Not paid."


@pytest.mark.parametrize("how", ["rewind", "end", "delete", "stop", "run", "purge"])
def test_a_kill_while_a_tree_is_ended_leaves_nothing_that_waits_for_ever(tmp_path: Path, how: str) -> None:
    for point in itertools.count(1):
        url = f"sqlite:///{tmp_path}/{point}.db?synchronous=OFF"
        thread_id = asyncio.run(begin(url))
        passed = run_until(point, partial(end, how, url, thread_id))
        asyncio.run(check(how, url, thread_id))
        if not passed.killed:
            break
    assert point > 2 * 3, "three threads have a commit each"
