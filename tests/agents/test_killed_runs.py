"""Runs whose process is killed at every point: they continue, and no recorded step is repeated."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.agents.killed_processes import PassedPoints, PassPoint, run_until
from tests.agents.run_checks import check_body, check_requests, check_store, events_of

from clew.agents.response import AgentResponse
from clew.agents.tool_calls import OUTCOME_UNKNOWN
from clew.agents.tools import ToolContext, tool
from clew.aio.threads import Thread
from clew.domain.events import MessageAppended
from clew.domain.json_values import JsonObject
from clew.domain.messages import FunctionCall, Message
from clew.domain.runs.errors import ApprovalNotPendingError, NoOpenRunError, RunInProgressError
from clew.domain.runs.events import ToolFinished, ToolStarted
from clew.engine import Agent, Engine
from clew.infrastructure import clock
from clew.infrastructure.scripted_client import Line, ScriptedChatClient, call

THREAD = "killed"
TASK = "Do all three."
LATER = "And now?"
MICROSECONDS = 1_000_000


@dataclass(frozen=True)
class Store:
    """A database and the effects of tools, as a killed process left them."""

    folder: Path

    @property
    def url(self) -> str:
        return f"sqlite:///{self.folder}/clew.db"

    @property
    def effects(self) -> list[str]:
        """Return the executed steps in order: the number of each step and its idempotency key."""
        file = self.folder / "effects"
        return file.read_text().split("\n")[:-1] if file.exists() else []

    @property
    def done(self) -> Counter[int]:
        """Return how often each step was executed."""
        return Counter(int(each.split()[0]) for each in self.effects)

    def copy(self, name: str) -> Store:
        return Store(Path(shutil.copytree(self.folder, self.folder.parent / name)))

    def open(self, *, later: int = 60) -> Engine:
        """Open the store this many seconds later, when the lease of the killed process has expired."""
        return Engine.open(
            f"{self.url}?synchronous=OFF", embedded=False, now=lambda: clock.now() + later * MICROSECONDS
        )


def agent_of(
    store: Store, engine: Engine, *, parallel: bool, idempotent: bool, pass_point: PassPoint = lambda _: None
) -> Agent:
    """Return an agent that does three steps, one by one or in parallel; its client is stateless."""

    @tool(idempotent=idempotent)
    async def step(number: int, context: ToolContext) -> str:
        """Do a step."""
        pass_point(f"before step {number}")
        with (store.folder / "effects").open("a") as file:
            file.write(f"{number} {context.idempotency_key}\n")
        pass_point(f"after step {number}")
        return f"step {number} is done"

    def line(body: JsonObject) -> Line:
        check_body(body)
        messages: Any = body["messages"]
        pass_point("asked")
        if messages[-1]["content"] == LATER:
            return "Fine."
        done = sum(message["role"] == "tool" for message in messages)
        if parallel and not done:
            return [call("step", number=number) for number in (1, 2, 3)]
        return call("step", number=done + 1) if done < 3 else "All done."

    client = ScriptedChatClient(line)
    return Agent(client, engine=engine, name="Worker", instructions="Follow the steps.", tools=[step], retries=0)


def run_and_kill(store: Store, point: int | None, *, parallel: bool, stream: bool) -> PassedPoints:
    """Run the agent in a process that is killed at a point."""

    async def work(pass_point: PassPoint) -> None:
        async with Engine.open(f"{store.url}?synchronous=OFF", embedded=False) as engine:
            agent = agent_of(store, engine, parallel=parallel, idempotent=False, pass_point=pass_point)
            thread = await engine.thread(THREAD)
            if stream:
                await agent.run(TASK, thread=thread, stream=True).get_final_response()
            else:
                await agent.run(TASK, thread=thread)

    return run_until(point, work)


async def start_thread(store: Store) -> None:
    async with Engine.open(store.url) as engine:
        await engine.start_thread(thread_id=THREAD)


@dataclass(frozen=True)
class RecordedSteps:
    """The steps of a run on the log: those with a result, and those only started."""

    started: bool
    ended: bool
    finished: frozenset[int]
    unknown: frozenset[int]


async def recorded_steps(thread: Thread) -> RecordedSteps:
    types = {event.type for event in await events_of(thread)}
    finished = frozenset(await steps_of(thread, ToolFinished))
    unknown = frozenset(await steps_of(thread, ToolStarted)) - finished
    return RecordedSteps("run-started" in types, "run-completed" in types, finished, unknown)


async def steps_of(thread: Thread, kind: type[ToolStarted | ToolFinished]) -> Counter[int]:
    """Return how many events of this type the log has for each step."""
    events = await events_of(thread)
    calls = {
        (event.version, index): json.loads(content.arguments)["number"]
        for event in events
        if isinstance(event.data, MessageAppended)
        for index, content in enumerate(event.data.message.contents)
        if isinstance(content, FunctionCall)
    }
    return Counter(calls[event.data.message, event.data.index] for event in events if isinstance(event.data, kind))


async def continue_or_start(agent: Agent, thread: Thread) -> AgentResponse[Any] | None:
    """Continue the open run, start it, or find that it is complete."""
    recorded = await recorded_steps(thread)
    try:
        return await agent.continue_run(thread)
    except NoOpenRunError:
        assert recorded.ended or not recorded.started
    return None if recorded.ended else await agent.run(TASK, thread=thread)


async def messages_of(thread: Thread) -> list[Message | None]:
    return [each.message for each in await thread.history()]


async def check_steps(store: Store, engine: Engine, thread: Thread) -> Counter[int]:
    """Check the invariants and return how often each step was executed."""
    events = await events_of(thread)
    await check_requests(thread, events)
    assert (await check_store(engine, thread, events)).run is None
    keys = {tuple(each.split()) for each in store.effects}
    assert len({number for number, _ in keys}) == len(keys), "a step was executed with two keys"
    return store.done


# Actions after the kill


async def continued(store: Store, whole: list[Message | None], *, parallel: bool, later: int = 60) -> None:
    """With idempotent tools, the continued run has the history of an undisturbed run."""
    async with store.open(later=later) as engine:
        agent = agent_of(store, engine, parallel=parallel, idempotent=True)
        thread = await engine.thread(THREAD)
        recorded = await recorded_steps(thread)
        before = store.done
        await continue_or_start(agent, thread)
        assert await messages_of(thread) == whole
        done = await check_steps(store, engine, thread)
        for number in (1, 2, 3):
            if number in recorded.finished:
                assert done[number] == before[number]
            else:
                assert done[number] == before[number] + 1
            assert 1 <= done[number] <= (await steps_of(thread, ToolStarted))[number]
        assert (await agent.run(LATER, thread=thread)).text == "Fine."


async def decide_approvals(store: Store, whole: list[Message | None], *, parallel: bool, approve: bool) -> None:
    """With other tools, an approval is requested for exactly the steps started without a result."""
    async with store.open() as engine:
        agent = agent_of(store, engine, parallel=parallel, idempotent=False)
        thread = await engine.thread(THREAD)
        recorded = await recorded_steps(thread)
        if not (approve or recorded.unknown):
            return  # no step to reject
        before = store.done
        response = await continue_or_start(agent, thread)
        approvals = await thread.approvals()
        assert approvals == ([] if response is None else response.approvals)
        assert {json.loads(each.call.arguments)["number"] for each in approvals} == recorded.unknown
        assert {each.reason for each in approvals} <= {"outcome-unknown"}
        assert store.done >= before
        for each in approvals:
            await (each.approve(actor="user:1") if approve else each.reject("Too risky.", actor="user:1"))
            with pytest.raises(ApprovalNotPendingError):
                await each.approve(actor="user:2")
        if approvals:
            await agent.continue_run(thread)
        done = await check_steps(store, engine, thread)
        for number in (1, 2, 3):
            unknown = number in recorded.unknown
            assert done[number] == (before[number] + approve if unknown else 1)
        if approve:
            assert await messages_of(thread) == whole
        else:
            results = [each.results[0].result for each in await messages_of(thread) if each and each.results]
            assert results.count(OUTCOME_UNKNOWN) == len(recorded.unknown)
            assert len(results) == 3
        assert (await agent.run(LATER, thread=thread)).text == "Fine."


async def run_again(store: Store, whole: list[Message | None], *, parallel: bool) -> None:
    """A new run works at once: recorded messages stay, and no step is repeated."""
    async with store.open() as engine:
        agent = agent_of(store, engine, parallel=parallel, idempotent=True)
        thread = await engine.thread(THREAD)
        recorded = await recorded_steps(thread)
        before, effects = await messages_of(thread), store.effects
        assert set(map(str, whole)) >= set(map(str, before))
        assert before[:1] == whole[: int(recorded.started)]
        assert (await agent.run(LATER, thread=thread)).text == "Fine."
        assert (await messages_of(thread))[: len(before)] == before
        assert store.effects == effects
        types = [event.type for event in await events_of(thread)]
        assert types.count("run-abandoned") == (recorded.started and not recorded.ended)
        await check_steps(store, engine, thread)


ACTIONS: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
    "continued": continued,
    "approved": partial(decide_approvals, approve=True),
    "rejected": partial(decide_approvals, approve=False),
    "new run": run_again,
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("parallel", [False, True], ids=["one by one", "at once"])
def test_a_run_can_continue_after_a_kill_at_any_point(
    tmp_path: Path,
    parallel: bool,  # noqa: FBT001  # pytest passes it by name
    stream: bool,  # noqa: FBT001  # pytest passes it by name
    scale: float,
) -> None:
    first = Store(tmp_path / "first")
    first.folder.mkdir()
    asyncio.run(start_thread(first))
    whole = first.copy("whole")
    points = run_and_kill(whole, None, parallel=parallel, stream=stream).points
    expected = asyncio.run(read(whole))
    assert points.count("before a commit") == (4 if parallel else 8)
    assert whole.done == {1: 1, 2: 1, 3: 1}
    every = 1 if scale >= 1 else 6 if stream else 3  # ``make soak`` kills at each
    for point in range(1, len(points) + 1, every):
        killed = first.copy(f"{point}")
        assert run_and_kill(killed, point, parallel=parallel, stream=stream).killed
        for name, action in ACTIONS.items():
            asyncio.run(action(killed.copy(f"{point} {name}"), expected, parallel=parallel))


def test_a_run_can_continue_after_repeated_kills(tmp_path: Path, scale: float) -> None:
    first = Store(tmp_path / "first")
    first.folder.mkdir()
    asyncio.run(start_thread(first))
    whole = first.copy("whole")
    points = run_and_kill(whole, None, parallel=True, stream=False).points
    expected = asyncio.run(read(whole))
    chance = random.Random(4)
    for number in range(max(8, round(80 * scale))):
        store = first.copy(str(number))
        run_and_kill(store, chance.randint(2, len(points)), parallel=True, stream=False)

        async def continue_run(pass_point: PassPoint, store: Store = store) -> None:
            async with store.open() as engine:
                agent = agent_of(store, engine, parallel=True, idempotent=True, pass_point=pass_point)
                await continue_or_start(agent, await engine.thread(THREAD))

        run_until(chance.randint(1, len(points)), continue_run)
        asyncio.run(continued(store, expected, parallel=True, later=120))


def test_a_run_cannot_continue_before_the_lease_expires(tmp_path: Path) -> None:
    store = Store(tmp_path / "first")
    store.folder.mkdir()
    asyncio.run(start_thread(store))
    run_and_kill(store, 4, parallel=False, stream=False)

    async def continue_run() -> None:
        async with store.open(later=0) as engine:
            agent = agent_of(store, engine, parallel=False, idempotent=True)
            thread = await engine.thread(THREAD)
            with pytest.raises(RunInProgressError):
                await agent.continue_run(thread)
            with pytest.raises(RunInProgressError):
                await agent.run(LATER, thread=thread)

    asyncio.run(continue_run())


async def read(store: Store) -> list[Message | None]:
    async with store.open() as engine:
        return await messages_of(await engine.thread(THREAD))
