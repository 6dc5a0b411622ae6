"""Runs that a process leaves open: when its engine is closed, and when what they waited for is decided."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.agents.killed_processes import PassPoint, run_until
from tests.agents.turns import PATIENCE, Child, Pipe, types_of

from clew import Agent, Engine, ScriptedChatClient, ToolContext, tool
from clew.agents.journal import Journal
from clew.agents.response import pending_approvals
from clew.domain.runs.errors import RunInterruptedError
from clew.infrastructure import clock
from clew.infrastructure.scripted_client import Line
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


def packs(engine: Engine, effects: Path, *, approves: bool) -> Agent:
    """An agent that pays, which needs an approval, and packs; the approval is decided while it packs."""

    @tool(approval="always")
    def pay() -> str:
        """Pay."""
        with effects.open("a") as file:
            file.write("paid\n")
        return "paid" if approves else "never"

    @tool(idempotent=True)
    async def pack(context: ToolContext) -> str:
        """Pack."""
        for approval in await context.thread.approvals():
            await (approval.approve() if approves else approval.reject("Too dear"))
        return "packed"

    def line(body: Any) -> Line:
        done = [each["content"] for each in body["messages"] if each["role"] == "tool"]
        return ", ".join(sorted(done)) if done else [call("pay"), call("pack")]

    return Agent(ScriptedChatClient(line), engine=engine, name="Packer", tools=[pay, pack])


@pytest.mark.parametrize("approves", [True, False])
async def test_a_run_carries_out_what_is_decided_while_it_executes_other_calls(
    url: str, tmp_path: Path, *, approves: bool
) -> None:
    async with asyncio.timeout(PATIENCE), Engine.open(url) as engine:
        agent = packs(engine, tmp_path / "effects", approves=approves)
        response = await agent.run("Pack.")
        assert (response.approvals, response.text) == (
            [],
            "packed, paid" if approves else "The call was rejected: Too dear, packed",
        )
        assert await engine.threads_with_lease() == []
        types = types_of([event async for event in response.thread.events()])
        assert [types.count(each) for each in ("approval-requested", "approval-given", "run-completed")] == [1, 1, 1]


async def test_a_decision_that_comes_right_before_the_pause_is_not_missed(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run has read that nothing is decided, and is about to release its lease."""
    read = Journal.read_decisions
    late: list[Any] = []

    async def read_late(journal: Journal) -> int:
        version = await read(journal)
        for approval in await pending_approvals(journal.log, journal.state) if not late else ():
            late.append(approval)
            await approval.approve()
        return version

    monkeypatch.setattr(Journal, "read_decisions", read_late)
    async with asyncio.timeout(PATIENCE), Engine.open(url) as engine:
        agent = Agent(
            ScriptedChatClient([[call("pay"), call("look")], "Done."]),
            engine=engine,
            tools=[tool(lambda: "paid", name="pay", approval="always"), tool(lambda: "looked", name="look")],
        )
        response = await agent.run("Pack.")
        assert (len(late), response.approvals, response.text) == (1, [], "Done.")


def test_a_run_is_found_after_a_kill_at_any_point_while_it_waits_and_executes(tmp_path: Path) -> None:
    async def work(url: str, effects: Path, _: PassPoint) -> None:
        async with Engine.open(url, embedded=False) as engine:
            thread = await engine.thread("packing")
            response = await packs(engine, effects, approves=True).run("Pack.", thread=thread)
            assert response.text == "packed, paid"

    async def prepare(url: str) -> None:
        async with Engine.open(url, embedded=False) as engine:
            await engine.start_thread(thread_id="packing")

    async def check(url: str, effects: Path) -> None:
        async with Engine.open(url, embedded=False, now=lambda: clock.now() + 60_000_000) as engine:
            thread, agent = await engine.thread("packing"), packs(engine, effects, approves=True)
            while (await thread.runs.control(fresh=True)).run is not None:
                found = await agent.continue_runs()
                waiting = await thread.approvals()
                assert found or waiting, "nothing continues the run"
                for run in found:
                    await run.response()
                for approval in await thread.approvals():
                    await (approval.approve() if approval.reason == "approval" else approval.reject())
            assert (await engine.verify()).first_bad is None

    for point in itertools.count(1):
        url, effects = f"sqlite:///{tmp_path}/{point}.db?synchronous=OFF", tmp_path / f"{point}.effects"
        asyncio.run(prepare(url))
        passed = run_until(point, partial(work, url, effects))
        asyncio.run(check(url, effects))
        assert not effects.exists() or effects.read_text() == "paid\n"
        if not passed.killed:
            break
    assert point > 2 * 6, "the start, the first calls, the decision, a result, the second call, the answer"
