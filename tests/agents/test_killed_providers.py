"""Runs with context providers, killed at every point: a continued or abandoned run notifies the providers."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.agents.killed_processes import PassPoint, run_until
from tests.agents.run_checks import check_requests, check_store, events_of

from clew import Agent, Context, ContextProvider, Engine, ScriptedChatClient, tool
from clew.domain.context.provider import ProviderContext
from clew.domain.history import HistoryMessage
from clew.domain.runs.errors import NoOpenRunError
from clew.infrastructure import clock
from clew.testing import call

THREAD = "killed"
LATER = 60_000_000
"""Microseconds after which a lease has expired."""


class Counting(ContextProvider):
    """Counts its hooks in its state and records the ends of runs in a file."""

    id = "counting"

    def __init__(self, folder: Path, pass_point: PassPoint = lambda _: None) -> None:
        self.ended_runs = folder / "ended_runs"
        self.pass_point = pass_point

    def initial_state(self, ctx: ProviderContext) -> Any:
        del ctx
        return {"messages": [], "invoked": 0, "runs": []}

    async def on_message(self, ctx: ProviderContext, message: HistoryMessage) -> None:
        self.pass_point("message")
        ctx.state["messages"].append(message.version)

    async def invoking(self, ctx: ProviderContext, messages: Sequence[HistoryMessage]) -> Context:
        del messages
        self.pass_point("invoking")
        ctx.state["invoked"] += 1
        return Context(instructions="Remember.", tools=[step])

    async def invoked(self, ctx: ProviderContext, *args: Any) -> None:
        del args
        self.pass_point("invoked")
        with self.ended_runs.open("a") as file:
            file.write(f"{ctx.run_id}\n")
        self.pass_point("recorded")
        ctx.state["runs"].append(ctx.run_id)


@tool(idempotent=True)
def step() -> str:
    """Do a step."""
    return "done"


def agent_of(engine: Engine, folder: Path, pass_point: PassPoint = lambda _: None) -> Agent:
    def line(body: Any) -> Any:
        return call("step") if body["messages"][-1]["role"] == "user" else "Fine."

    return Agent(ScriptedChatClient(line), engine=engine, context_providers=Counting(folder, pass_point), retries=0)


async def check_after(engine: Engine, folder: Path, thread: Any) -> None:
    """Check that the file has each run at least once, and the state each run and message exactly once."""
    events = await events_of(thread)
    await check_requests(thread, events)
    assert (await check_store(engine, thread, events)).run is None
    runs = [event.run_id for event in events if event.type == "run-started"]
    state: Any = (await thread.state()).states["counting"]
    assert state["runs"] == runs
    assert set((folder / "ended_runs").read_text().split()) == set(runs)
    assert state["messages"] == [each.version for each in await thread.history()]
    called = {event.run_id for event in events if event.type == "model-called"}
    assert state["invoked"] == len(called)


@pytest.mark.parametrize("resume", [True, False], ids=["continued", "abandoned"])
def test_a_state_changes_exactly_once_for_a_kill_at_any_point(resume: bool, tmp_path: Path) -> None:  # noqa: FBT001  # pytest passes it by name
    store = tmp_path / "store"

    async def start_thread() -> None:
        async with Engine.open(f"sqlite:///{store}/clew.db") as engine:
            await engine.start_thread(thread_id=THREAD)

    store.mkdir()
    asyncio.run(start_thread())
    for point in itertools.count(1):
        folder = Path(shutil.copytree(store, tmp_path / f"killed-{point}"))
        url = f"sqlite:///{folder}/clew.db?synchronous=OFF"

        async def work(pass_point: PassPoint, url: str = url, folder: Path = folder) -> None:
            async with Engine.open(url, embedded=False) as engine:
                await agent_of(engine, folder, pass_point).run("Go.", thread=await engine.thread(THREAD))

        points = run_until(point, work)
        if not points.killed:
            break

        async def after(url: str = url, folder: Path = folder) -> None:
            async with Engine.open(url, embedded=False, now=lambda: clock.now() + LATER) as engine:
                agent, thread = agent_of(engine, folder), await engine.thread(THREAD)
                if resume:
                    with suppress(NoOpenRunError):
                        assert (await agent.continue_run(thread)).text == "Fine."
                await agent.run("And now?", thread=thread)
                await check_after(engine, folder, thread)

        asyncio.run(after())
        shutil.rmtree(folder)
    assert len(points.points) > 15
