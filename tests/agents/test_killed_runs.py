"""Runs whose process is killed, at every point: they are gone on with, and nothing that is recorded is done again."""

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
from tests.agents.killed import Passed, Passing, run_until
from tests.agents.run_checks import check_body, check_requests, check_store, events_of

from clew.agents.response import AgentResponse
from clew.agents.run_loop import OUTCOME_UNKNOWN
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
    """A database and what tools did to the world, both as a killed process left them."""

    folder: Path

    @property
    def url(self) -> str:
        return f"sqlite:///{self.folder}/clew.db"

    @property
    def effects(self) -> list[str]:
        """What tools did: the number of the step and the idempotency key, in the order in which it was done."""
        file = self.folder / "effects"
        return file.read_text().split("\n")[:-1] if file.exists() else []

    @property
    def done(self) -> Counter[int]:
        """How often each step was done."""
        return Counter(int(each.split()[0]) for each in self.effects)

    def copy(self, name: str) -> Store:
        return Store(Path(shutil.copytree(self.folder, self.folder.parent / name)))

    def open(self, *, later: int = 60) -> Engine:
        """So many seconds later, when the lease of whoever was killed has run out."""
        return Engine.open(
            f"{self.url}?synchronous=OFF", embedded=False, now=lambda: clock.now() + later * MICROSECONDS
        )


def agent_of(
    store: Store, engine: Engine, *, parallel: bool, idempotent: bool, passing: Passing = lambda _: None
) -> Agent:
    """An agent that does three steps, one after the other or all at once; its client needs no memory."""

    @tool(idempotent=idempotent)
    async def step(number: int, context: ToolContext) -> str:
        """Do a step."""
        passing(f"before step {number}")
        with (store.folder / "effects").open("a") as file:
            file.write(f"{number} {context.idempotency_key}\n")
        passing(f"after step {number}")
        return f"step {number} is done"

    def line(body: JsonObject) -> Line:
        check_body(body)
        messages: Any = body["messages"]
        passing("asked")
        if messages[-1]["content"] == LATER:
            return "Fine."
        done = sum(message["role"] == "tool" for message in messages)
        if parallel and not done:
            return [call("step", number=number) for number in (1, 2, 3)]
        return call("step", number=done + 1) if done < 3 else "All done."

    client = ScriptedChatClient(line)
    return Agent(client, engine=engine, name="Worker", instructions="Do as you are told.", tools=[step], retries=0)


def leave(store: Store, point: int | None, *, parallel: bool, stream: bool) -> Passed:
    """Have a process run the agent, and be killed at a point."""

    async def work(passing: Passing) -> None:
        async with Engine.open(f"{store.url}?synchronous=OFF", embedded=False) as engine:
            agent = agent_of(store, engine, parallel=parallel, idempotent=False, passing=passing)
            thread = await engine.thread(THREAD)
            if stream:
                await agent.run(TASK, thread=thread, stream=True).get_final_response()
            else:
                await agent.run(TASK, thread=thread)

    return run_until(point, work)


async def begin(store: Store) -> None:
    async with Engine.open(store.url) as engine:
        await engine.start_thread(thread_id=THREAD)


@dataclass(frozen=True)
class Left:
    """What the log says of the steps of a run: those with a result, and those that were only begun."""

    began: bool
    ended: bool
    finished: frozenset[int]
    unknown: frozenset[int]


async def left_in(thread: Thread) -> Left:
    types = {event.type for event in await events_of(thread)}
    finished = frozenset(await steps_of(thread, ToolFinished))
    unknown = frozenset(await steps_of(thread, ToolStarted)) - finished
    return Left("run-started" in types, "run-completed" in types, finished, unknown)


async def steps_of(thread: Thread, kind: type[ToolStarted | ToolFinished]) -> Counter[int]:
    """How often the log says this of each step."""
    events = await events_of(thread)
    calls = {
        (event.version, index): json.loads(content.arguments)["number"]
        for event in events
        if isinstance(event.data, MessageAppended)
        for index, content in enumerate(event.data.message.contents)
        if isinstance(content, FunctionCall)
    }
    return Counter(calls[event.data.message, event.data.index] for event in events if isinstance(event.data, kind))


async def going_on(agent: Agent, thread: Thread) -> AgentResponse[Any] | None:
    """Go on with the run if there is one, else begin it, or find that it is over."""
    left = await left_in(thread)
    try:
        return await agent.continue_run(thread)
    except NoOpenRunError:
        assert left.ended or not left.began
    return None if left.ended else await agent.run(TASK, thread=thread)


async def messages_of(thread: Thread) -> list[Message | None]:
    return [each.message for each in await thread.history()]


async def checked(store: Store, engine: Engine, thread: Thread) -> Counter[int]:
    """Checks what always holds; returns how often each step was done."""
    events = await events_of(thread)
    await check_requests(thread, events)
    assert (await check_store(engine, thread, events)).run is None
    keys = {tuple(each.split()) for each in store.effects}
    assert len({number for number, _ in keys}) == len(keys), "a step was done with two keys"
    return store.done


# What is done after the kill


async def continued(store: Store, whole: list[Message | None], *, parallel: bool, later: int = 60) -> None:
    """With tools that may be called twice, the history is that of a run that nothing happened to."""
    async with store.open(later=later) as engine:
        agent = agent_of(store, engine, parallel=parallel, idempotent=True)
        thread = await engine.thread(THREAD)
        left = await left_in(thread)
        before = store.done
        await going_on(agent, thread)
        assert await messages_of(thread) == whole
        done = await checked(store, engine, thread)
        for number in (1, 2, 3):
            if number in left.finished:
                assert done[number] == before[number]
            else:
                assert done[number] == before[number] + 1
            assert 1 <= done[number] <= (await steps_of(thread, ToolStarted))[number]
        assert (await agent.run(LATER, thread=thread)).text == "Fine."


async def asked(store: Store, whole: list[Message | None], *, parallel: bool, approve: bool) -> None:
    """With others, somebody is asked about exactly those that had been begun and have no result."""
    async with store.open() as engine:
        agent = agent_of(store, engine, parallel=parallel, idempotent=False)
        thread = await engine.thread(THREAD)
        left = await left_in(thread)
        if not (approve or left.unknown):
            return  # there is nothing to reject
        before = store.done
        response = await going_on(agent, thread)
        approvals = await thread.approvals()
        assert approvals == ([] if response is None else response.approvals)
        assert {json.loads(each.call.arguments)["number"] for each in approvals} == left.unknown
        assert {each.reason for each in approvals} <= {"outcome-unknown"}
        assert store.done >= before
        for each in approvals:
            await (each.approve(actor="user:1") if approve else each.reject("Too risky.", actor="user:1"))
            with pytest.raises(ApprovalNotPendingError):
                await each.approve(actor="user:2")
        if approvals:
            await agent.continue_run(thread)
        done = await checked(store, engine, thread)
        for number in (1, 2, 3):
            unknown = number in left.unknown
            assert done[number] == (before[number] + approve if unknown else 1)
        if approve:
            assert await messages_of(thread) == whole
        else:
            results = [each.results[0].result for each in await messages_of(thread) if each and each.results]
            assert results.count(OUTCOME_UNKNOWN) == len(left.unknown)
            assert len(results) == 3
        assert (await agent.run(LATER, thread=thread)).text == "Fine."


async def begun_anew(store: Store, whole: list[Message | None], *, parallel: bool) -> None:
    """A new run works at once: what was recorded is there, and no step is done again."""
    async with store.open() as engine:
        agent = agent_of(store, engine, parallel=parallel, idempotent=True)
        thread = await engine.thread(THREAD)
        left = await left_in(thread)
        before, effects = await messages_of(thread), store.effects
        assert set(map(str, whole)) >= set(map(str, before))
        assert before[:1] == whole[: int(left.began)]
        assert (await agent.run(LATER, thread=thread)).text == "Fine."
        assert (await messages_of(thread))[: len(before)] == before
        assert store.effects == effects
        types = [event.type for event in await events_of(thread)]
        assert types.count("run-abandoned") == (left.began and not left.ended)
        await checked(store, engine, thread)


WAYS: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
    "continued": continued,
    "approved": partial(asked, approve=True),
    "rejected": partial(asked, approve=False),
    "begun anew": begun_anew,
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("parallel", [False, True], ids=["one by one", "at once"])
def test_goes_on_from_wherever_it_was_killed(
    tmp_path: Path,
    parallel: bool,  # noqa: FBT001  # pytest passes it
    stream: bool,  # noqa: FBT001  # the same
    scale: float,
) -> None:
    first = Store(tmp_path / "first")
    first.folder.mkdir()
    asyncio.run(begin(first))
    whole = first.copy("whole")
    points = leave(whole, None, parallel=parallel, stream=stream).points
    expected = asyncio.run(read(whole))
    assert points.count("before a commit") == (4 if parallel else 8)
    assert whole.done == {1: 1, 2: 1, 3: 1}
    every = 1 if scale >= 1 or not stream else 6
    for point in range(1, len(points) + 1, every):
        killed = first.copy(f"{point}")
        assert leave(killed, point, parallel=parallel, stream=stream).killed
        for name, way in WAYS.items():
            asyncio.run(way(killed.copy(f"{point} {name}"), expected, parallel=parallel))


def test_goes_on_when_whoever_goes_on_is_killed_too(tmp_path: Path, scale: float) -> None:
    first = Store(tmp_path / "first")
    first.folder.mkdir()
    asyncio.run(begin(first))
    whole = first.copy("whole")
    points = leave(whole, None, parallel=True, stream=False).points
    expected = asyncio.run(read(whole))
    chance = random.Random(4)
    for number in range(max(8, round(80 * scale))):
        store = first.copy(str(number))
        leave(store, chance.randint(2, len(points)), parallel=True, stream=False)

        async def go_on(passing: Passing, store: Store = store) -> None:
            async with store.open() as engine:
                agent = agent_of(store, engine, parallel=True, idempotent=True, passing=passing)
                await going_on(agent, await engine.thread(THREAD))

        run_until(chance.randint(1, len(points)), go_on)
        asyncio.run(continued(store, expected, parallel=True, later=120))


def test_nobody_goes_on_while_the_lease_lasts(tmp_path: Path) -> None:
    store = Store(tmp_path / "first")
    store.folder.mkdir()
    asyncio.run(begin(store))
    leave(store, 4, parallel=False, stream=False)

    async def go_on() -> None:
        async with store.open(later=0) as engine:
            agent = agent_of(store, engine, parallel=False, idempotent=True)
            thread = await engine.thread(THREAD)
            with pytest.raises(RunInProgressError):
                await agent.continue_run(thread)
            with pytest.raises(RunInProgressError):
                await agent.run(LATER, thread=thread)

    asyncio.run(go_on())


async def read(store: Store) -> list[Message | None]:
    async with store.open() as engine:
        return await messages_of(await engine.thread(THREAD))
