"""Runs cancelled at any await: recorded messages are kept, and the thread is free at once."""

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
from clew.agents.run_loop import leave_runs
from clew.domain.errors import ConflictError
from clew.domain.messages import Message
from clew.domain.runs.errors import ApprovalPendingError, NoOpenRunError, RunInProgressError
from clew.infrastructure.scripted_client import Line, call, fault
from clew.service.run_log import ThreadRuns

pytestmark = pytest.mark.anyio

T = TypeVar("T")

Work = Callable[[Engine, Any], Coroutine[Any, Any, None]]


@types.coroutine
def cancel_at(work: Coroutine[Any, Any, T], places: set[int]) -> Generator[Any, Any, T]:
    """Do the work; cancel the current task at these awaits, counted from 1."""
    task = asyncio.current_task()
    assert task is not None
    error: BaseException | None = None
    place = 0
    while True:
        try:
            waits = work.send(None) if error is None else work.throw(error)
        except StopIteration as done:
            result: T = done.value
            return result
        place += 1
        if place in places:
            task.cancel()
        try:
            error = None
            yield waits
        except BaseException as raised:  # noqa: BLE001  # the work handles it
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
    """Run until a call needs approval, approve it, and continue the run."""
    agent = Agent(client=ScriptedChatClient([call("pay"), "Done."]), engine=engine, name="a", tools=[pay])
    response = await agent.run("one", thread=thread)
    await response.approvals[0].approve()
    await agent.continue_run(thread)


@pytest.mark.parametrize("again", [0, 1, 2], ids=["once", "twice", "twice-apart"])
@pytest.mark.parametrize("work", [_run, _stream, _waiting, _fork], ids=["run", "stream", "waiting", "fork"])
async def test_a_run_can_be_cancelled_at_any_await(work: Work, again: int) -> None:
    """Some cases cancel a second time, while the run records the first cancellation."""
    place = 0
    completed = False
    ends: set[str] = set()
    async with asyncio.timeout(PATIENCE), Engine.open("memory:") as engine:
        while not completed:
            place += 1
            thread = await engine.start_thread(messages=[Message.user("zero")])
            places = {place, place + again} if again else {place}
            completed = await _cancelled(cancel_at(work(engine, thread), places))
            ends.add(await _check(engine, thread, started=completed))
        assert place > 5
        assert len(ends) > 1 or work is _fork


async def _cancelled(work: Any) -> bool:
    """Return whether the work was done before it could be cancelled."""

    async def whole() -> None:
        await work

    task = asyncio.create_task(whole())
    await asyncio.wait([task])
    if not task.cancelled() and task.exception() is not None:
        await task
    return not task.cancelled()


async def _check(engine: Engine, thread: Any, *, started: bool) -> str:
    """Check that the messages are recorded and the thread is free; return the type of the last event."""
    await leave_runs(lambda _: True)  # a twice cancelled stream does not wait for its end
    events = await events_of(thread)
    last = types_of(events)[-1]
    control = await check_store(engine, thread, events)
    assert await thread.runs.lease() is None
    assert await thread.runs.draft() is None
    history = [each.message.text for each in await thread.history() if each.message]
    started = started or any(event.type == "run-started" for event in events)
    assert ("one" in history) == started or await thread.forks() != []
    if control.run is not None:
        # The run waits for an approval or to be continued: it was not running when the caller was cancelled.
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


async def test_the_next_run_does_not_wait_for_the_cancelled_task(engine: Engine) -> None:
    """It waits only for the last events of the cancelled run; the caller's task may still do other work."""
    gate, released = Gate(), asyncio.Event()
    thread = await engine.start_thread()

    async def caller() -> None:
        try:
            await taking_turns(engine, gate).run("one", thread=thread)
        finally:
            await released.wait()

    task = asyncio.create_task(caller())
    await gate.reached.wait()
    task.cancel()
    assert (await taking_turns(engine).run("two", thread=thread)).text == "done two"
    assert not task.done()
    released.set()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_a_caller_cancelled_earlier_can_still_run(engine: Engine) -> None:
    """The caller caught its cancellation; its new run is in progress like any other."""
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


async def test_a_run_that_times_out_leaves_the_thread_free(engine: Engine) -> None:
    thread = await engine.start_thread()
    gate = Gate()

    async def expire(limit: asyncio.Timeout) -> None:
        await gate.reached.wait()
        limit.reschedule(0)

    async def run() -> None:
        async with asyncio.timeout(None) as limit, asyncio.TaskGroup() as tasks:
            tasks.create_task(expire(limit))
            await taking_turns(engine, gate).run("one", thread=thread)

    with pytest.raises(TimeoutError):
        await run()
    assert (await taking_turns(engine).run("two", thread=thread)).text == "done two"
    assert "run-abandoned" in types_of(await events_of(thread))


async def test_a_cancellation_during_a_failing_write_is_not_lost() -> None:
    released = asyncio.Event()

    async def fails() -> None:
        await released.wait()
        raise ConflictError("t", 1, 2)

    task = asyncio.create_task(run_to_end(fails()))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    released.set()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_tool_results_are_recorded_when_a_run_is_cancelled_during_an_append(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cancellation comes just before the next model call, after another append; pending events are written."""
    thread = await engine.start_thread()
    record_steps = ThreadRuns.record
    tasks: list[asyncio.Task[Any]] = []

    async def record(log: ThreadRuns, *args: Any, **options: Any) -> Any:
        if options.get("expected_version") and not tasks[0].cancelling() and len(client.requests) == 1:
            await thread.append(Message.user("me first"))
            tasks[0].cancel()
        return await record_steps(log, *args, **options)

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
