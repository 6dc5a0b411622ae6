"""Runs with context providers, killed at every point: whoever goes on with them, or gives them up, tells those."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.agents.killed import Passing, run_until
from tests.agents.run_checks import check_requests, check_store, events_of

from clew import Agent, Context, ContextProvider, Engine, ScriptedChatClient, tool
from clew.domain.context.provider import ProviderContext
from clew.domain.history import HistoryMessage
from clew.domain.runs.errors import NoOpenRunError
from clew.infrastructure import clock
from clew.testing import call

THREAD = "killed"
LATER = 60_000_000
"""Microseconds after which a lease has run out."""


class Counting(ContextProvider):
    """Counts in its state what it is told, and notes outside that it was told of a run's end."""

    id = "counting"

    def __init__(self, folder: Path, passing: Passing = lambda _: None) -> None:
        self.told = folder / "told"
        self.passing = passing

    def initial_state(self, ctx: ProviderContext) -> Any:
        del ctx
        return {"messages": [], "invoked": 0, "runs": []}

    async def on_message(self, ctx: ProviderContext, message: HistoryMessage) -> None:
        self.passing("message")
        ctx.state["messages"].append(message.version)

    async def invoking(self, ctx: ProviderContext, messages: Sequence[HistoryMessage]) -> Context:
        del messages
        self.passing("invoking")
        ctx.state["invoked"] += 1
        return Context(instructions="Remember.", tools=[step])

    async def invoked(self, ctx: ProviderContext, *given: Any) -> None:
        del given
        self.passing("invoked")
        with self.told.open("a") as file:
            file.write(f"{ctx.run_id}\n")
        self.passing("told")
        ctx.state["runs"].append(ctx.run_id)


@tool(idempotent=True)
def step() -> str:
    """Do a step."""
    return "done"


def agent_of(engine: Engine, folder: Path, passing: Passing = lambda _: None) -> Agent:
    def line(body: Any) -> Any:
        return call("step") if body["messages"][-1]["role"] == "user" else "Fine."

    return Agent(ScriptedChatClient(line), engine=engine, context_providers=Counting(folder, passing), retries=0)


async def check_after(engine: Engine, folder: Path, thread: Any) -> None:
    """Every run was told of at least once outside, and counted exactly once in the state; as was each message."""
    events = await events_of(thread)
    await check_requests(thread, events)
    assert (await check_store(engine, thread, events)).run is None
    runs = [event.run_id for event in events if event.type == "run-started"]
    state: Any = (await thread.state()).states["counting"]
    assert state["runs"] == runs
    assert set((folder / "told").read_text().split()) == set(runs)
    assert state["messages"] == [each.version for each in await thread.history()]
    called = {event.run_id for event in events if event.type == "model-called"}
    assert state["invoked"] == len(called)


@pytest.mark.parametrize("going_on", [True, False], ids=["continued", "given-up"])
def test_a_state_changes_exactly_once_wherever_the_process_is_killed(going_on: bool, tmp_path: Path) -> None:  # noqa: FBT001  # a parameter
    store = tmp_path / "store"

    async def begin() -> None:
        async with Engine.open(f"sqlite:///{store}/clew.db") as engine:
            await engine.start_thread(thread_id=THREAD)

    store.mkdir()
    asyncio.run(begin())
    for point in itertools.count(1):
        folder = Path(shutil.copytree(store, tmp_path / f"killed-{point}"))
        url = f"sqlite:///{folder}/clew.db?synchronous=OFF"

        async def work(passing: Passing, url: str = url, folder: Path = folder) -> None:
            async with Engine.open(url, embedded=False) as engine:
                await agent_of(engine, folder, passing).run("Go.", thread=await engine.thread(THREAD))

        passed = run_until(point, work)
        if not passed.killed:
            break

        async def after(url: str = url, folder: Path = folder) -> None:
            async with Engine.open(url, embedded=False, now=lambda: clock.now() + LATER) as engine:
                agent, thread = agent_of(engine, folder), await engine.thread(THREAD)
                if going_on:
                    with suppress(NoOpenRunError):
                        assert (await agent.continue_run(thread)).text == "Fine."
                await agent.run("And now?", thread=thread)
                await check_after(engine, folder, thread)

        asyncio.run(after())
        shutil.rmtree(folder)
    assert len(passed.points) > 15
