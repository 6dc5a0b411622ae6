"""Runs whose caller is cancelled, wherever they wait: what was said is kept, and the thread is free at once."""

from __future__ import annotations

import asyncio
import types
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.agents.run_checks import check_requests, check_store
from tests.agents.turns import PATIENCE, Gate, events_of, taking_turns, types_of

from clew import Agent, Engine, ScriptedChatClient, tool
from clew.agents.journal import run_to_end
from clew.agents.run_loop import ends_recorded
from clew.domain.errors import ConflictError
from clew.domain.messages import Message
from clew.domain.runs.errors import ApprovalPendingError, NoOpenRunError, RunInProgressError
from clew.infrastructure.scripted_client import Line, call, fault
from clew.service.run_log import ThreadRuns

pytestmark = pytest.mark.anyio

T = TypeVar("T")

Work = Callable[[Engine, Any], Coroutine[Any, Any, None]]


@types.coroutine
def cancelled_at(work: Coroutine[Any, Any, T], places: set[int]) -> Generator[Any, Any, T]:
    """Do the work; at the places, which count how often it waits, whoever waits for it is cancelled."""
    task = asyncio.current_task()
    assert task is not None
    error: BaseException | None = None
    place = 0
    while True:
        try:
            waits = work.send(None) if error is None else work.throw(error)
        except StopIteration as done:
            found: T = done.value
            return found
        place += 1
        if place in places:
            task.cancel()
        try:
            error = None
            yield waits
        except BaseException as raised:  # noqa: BLE001  # it is the work's
            error = raised


@tool
async def slow() -> str:
    """Take a while."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return "slow"


@tool
def quick() -> str:
    """Take no time."""
    return "quick"


@tool(approval="always")
def pay() -> str:
    """Pay."""
    return "paid"


async def _run(engine: Engine, thread: Any) -> None:
    script: list[Line] = [
        ["Let me see.", call("slow"), call("quick")],
        fault("overloaded", retry_after=0),
        "Done and done.",
    ]
    await Agent(client=ScriptedChatClient(script), engine=engine, name="a", tools=[slow, quick]).run(
        "one", thread=thread
    )


async def _stream(engine: Engine, thread: Any) -> None:
    script: list[Line] = [["Let me see.", call("slow")], "Done and done."]
    agent = Agent(client=ScriptedChatClient(script), engine=engine, name="a", tools=[slow])
    async for _ in agent.run("one", thread=thread, stream=True):
        pass


async def _fork(engine: Engine, thread: Any) -> None:
    await Agent(client=ScriptedChatClient("Done."), engine=engine, name="a").run("one", thread=thread, fork=True)


async def _waiting(engine: Engine, thread: Any) -> None:
    """A call needs approval, which ends the run for now; what came of it is then gone on with."""
    agent = Agent(client=ScriptedChatClient([call("pay"), "Done."]), engine=engine, name="a", tools=[pay])
    response = await agent.run("one", thread=thread)
    await response.approvals[0].approve()
    await agent.continue_run(thread)


@pytest.mark.parametrize("again", [0, 1, 2], ids=["once", "twice", "twice-apart"])
@pytest.mark.parametrize("work", [_run, _stream, _waiting, _fork], ids=["run", "stream", "waiting", "fork"])
async def test_a_run_may_be_cancelled_wherever_it_waits(work: Work, again: int) -> None:
    """Again a while later, too, when it is about to record that."""
    place = 0
    through = False
    ends: set[str] = set()
    async with asyncio.timeout(PATIENCE), Engine.open("memory:") as engine:
        while not through:
            place += 1
            thread = await engine.start_thread(messages=[Message.user("zero")])
            places = {place, place + again} if again else {place}
            through = await _cancelled(cancelled_at(work(engine, thread), places))
            ends.add(await _check(engine, thread, begun=through))
        assert place > 5
        assert len(ends) > 1 or work is _fork


async def _cancelled(work: Any) -> bool:
    """Whether it was done before it could be cancelled."""

    async def whole() -> None:
        await work

    task = asyncio.create_task(whole())
    await asyncio.wait([task])
    if not task.cancelled() and task.exception() is not None:
        await task
    return not task.cancelled()


async def _check(engine: Engine, thread: Any, *, begun: bool) -> str:
    """What was said is there if anything is, and the thread is free; returns the last that was recorded."""
    await ends_recorded(lambda _: True)  # whoever left a stream may have been cancelled again, and is not waited for
    events = await events_of(thread)
    last = types_of(events)[-1]
    control = await check_store(engine, thread, events)
    assert await thread.runs.lease() is None
    assert await thread.runs.draft() is None
    history = [each.message.text for each in await thread.history() if each.message]
    begun = begun or any(event.type == "run-started" for event in events)
    assert ("one" in history) == begun or await thread.forks() != []
    if control.run is not None:
        # It waits for an approval, or with that given for being gone on with: nobody was cancelled while it ran.
        assert last in {"approval-requested", "approval-given"}
        with pytest.raises(ApprovalPendingError):
            await taking_turns(engine).run("two", thread=thread)
    else:
        with pytest.raises(NoOpenRunError):
            await taking_turns(engine).continue_run(thread)
    response = await taking_turns(engine).run("two", thread=thread, abandon_run=True)
    assert response.text == "done two"
    await check_requests(thread, await events_of(thread))
    return last


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    async with asyncio.timeout(PATIENCE), Engine.open(f"sqlite:///{tmp_path}/clew.db?synchronous=OFF") as opened:
        yield opened


async def test_the_next_run_needs_not_wait_until_whoever_was_cancelled_has_ended(engine: Engine) -> None:
    """Only for what the run itself has left to record: whose task it was may have more to do, or to wait for."""
    gate, let = Gate(), asyncio.Event()
    thread = await engine.start_thread()

    async def caller() -> None:
        try:
            await taking_turns(engine, gate).run("one", thread=thread)
        finally:
            await let.wait()

    task = asyncio.create_task(caller())
    await gate.reached.wait()
    task.cancel()
    assert (await taking_turns(engine).run("two", thread=thread)).text == "done two"
    assert not task.done()
    let.set()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_a_caller_that_was_cancelled_before_is_not_taken_for_one_that_ends(engine: Engine) -> None:
    """It went on all the same: its new run is under way as any other is."""
    gate = Gate()
    thread = await engine.start_thread()

    async def caller() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await taking_turns(engine, gate).run("one", thread=thread)

    task = asyncio.create_task(caller())
    await asyncio.sleep(0)
    task.cancel()
    await gate.reached.wait()
    with pytest.raises(RunInProgressError):
        await taking_turns(engine).run("two", thread=thread)
    gate.opened.set()
    await task


async def test_a_run_with_a_time_limit_around_it_leaves_the_thread_free(engine: Engine) -> None:
    thread = await engine.start_thread()
    gate = Gate()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await taking_turns(engine, gate).run("one", thread=thread)
    assert (await taking_turns(engine).run("two", thread=thread)).text == "done two"
    types_ = types_of(await events_of(thread))
    assert "run-abandoned" in types_ or gate.reached.is_set() is False


async def test_a_cancellation_is_not_lost_when_what_is_written_fails_in_that_moment() -> None:
    let = asyncio.Event()

    async def fails() -> None:
        await let.wait()
        raise ConflictError("t", 1, 2)

    task = asyncio.create_task(run_to_end(fails()))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    let.set()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_what_tools_gave_is_kept_when_a_run_is_cancelled_while_others_append(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The question is about to be asked on what others appended in that moment: what waits to be written is written."""
    thread = await engine.start_thread()
    really = ThreadRuns.record
    tasks: list[asyncio.Task[Any]] = []

    async def record(log: ThreadRuns, *given: Any, **named: Any) -> Any:
        if named.get("expected_version") and not tasks[0].cancelling() and len(client.requests) == 1:
            await thread.append(Message.user("me first"))
            tasks[0].cancel()
        return await really(log, *given, **named)

    monkeypatch.setattr(ThreadRuns, "record", record)
    client = ScriptedChatClient([call("quick"), "no"])
    agent = Agent(client=client, engine=engine, name="a", tools=[quick])
    tasks.append(asyncio.create_task(agent.run("one", thread=thread)))
    await asyncio.wait(tasks)
    assert tasks[0].cancelled()
    assert len(client.requests) == 1
    types_ = types_of(await events_of(thread))
    assert types_[-3:] == ["tool-started", "tool-finished", "run-abandoned"]
    assert (await taking_turns(engine).run("two", thread=thread)).text == "done two"
