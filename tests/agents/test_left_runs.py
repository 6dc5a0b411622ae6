"""Runs that a process leaves open: when its engine is closed, and when what they waited for is decided."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from tests.agents.turns import PATIENCE, Child, Pipe, types_of

from clew import Agent, Engine, ScriptedChatClient, tool
from clew.domain.runs.errors import RunInterruptedError
from clew.testing import call

pytestmark = pytest.mark.anyio

TEXT = " ".join(map(str, range(200)))


def agent_of(engine: Engine, *script: Any, delay: float = 0, **options: Any) -> Agent:
    return Agent(ScriptedChatClient(script, delay=delay), engine=engine, **options)


def tree(engine: Engine, outer: list[Any], inner: list[Any], *tools: Any, delay: float = 0) -> Agent:
    """An agent that asks an agent that has the tools."""
    clerk = agent_of(engine, *inner, name="Clerk", tools=tools, delay=delay)
    return agent_of(engine, *outer, name="Desk", tools=[clerk])


def until_exists(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


async def test_another_process_continues_at_once_after_a_sigterm(shared_url: str, tmp_path: Path) -> None:
    effects = tmp_path / "effects"

    @tool
    async def pay(order: int) -> str:
        """Pay."""
        with effects.open("a") as file:
            file.write(f"{order}\n")
        await asyncio.sleep(0.3)
        return f"paid {order}"

    async def work(pipe: Pipe) -> None:
        ends = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ends.set)
        async with Engine.open(shared_url) as engine:
            texts = agent_of(engine, TEXT, name="Texts", delay=0.05)
            pays = agent_of(engine, call("pay", order=1), name="Pays", tools=[pay])
            desk = tree(engine, [call("Clerk", input="Count.")], [TEXT], delay=0.05)
            runs = [await each.run("Go.", background=True) for each in (texts, pays, desk)]
            await asyncio.to_thread(until_exists, effects)
            pipe.say(*(run.thread.id for run in runs))
            await ends.wait()
        for run in runs:
            with pytest.raises(RunInterruptedError, match="continues it, in any process"):
                await run.response()

    child = Child(work)
    ids = await child.hear()
    os.kill(child.pid, signal.SIGTERM)
    assert await asyncio.to_thread(child.wait) == 0
    async with asyncio.timeout(5), Engine.open(shared_url) as engine:
        agents = [
            agent_of(engine, "All.", name="Texts"),
            agent_of(engine, "Paid.", name="Pays", tools=[pay]),
            tree(engine, ["Counted."], ["Done."]),
        ]
        for agent, id_, text in zip(agents, ids, ("All.", "Paid.", "Counted."), strict=True):
            (run,) = await agent.continue_runs()
            assert (run.thread.id, (await run.response()).text) == (id_, text)
            assert await agent.continue_runs() == []
        events = [event async for event in (await engine.thread(ids[1])).events()]
        assert types_of(events).count("tool-finished") == 1
        assert effects.read_text() == "1\n"


@pytest.mark.parametrize("always", [False, True])
@pytest.mark.parametrize("inner", [False, True])
async def test_a_run_whose_approval_is_decided_is_found_after_its_process_has_died(
    url: str, *, inner: bool, always: bool
) -> None:
    pay = tool(lambda: "paid", name="pay", approval="always")

    def desk(engine: Engine, *, again: bool) -> Agent:
        if inner:
            return tree(
                engine, ["Paid."] if again else [call("Clerk", input="Pay.")], ["Ok."] if again else [call("pay")], pay
            )
        return agent_of(engine, "Paid." if again else call("pay"), name="Desk", tools=[pay])

    async with asyncio.timeout(PATIENCE), Engine.open(url) as engine:
        response = await desk(engine, again=False).run("Pay.")
        agent = desk(engine, again=True)
        assert await agent.continue_runs() == []
        await response.approvals[0].approve(always=always)
        (run,) = await agent.continue_runs()
        assert (await run.response()).text == "Paid."
        assert await agent.continue_runs() == []
        assert await engine.threads_with_lease() == []
