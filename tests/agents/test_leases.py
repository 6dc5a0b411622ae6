"""Leases: renewed during a run, expired after its process ended, and never taken back by a late process."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from tests.agents.turns import (
    PATIENCE,
    Child,
    Gate,
    Pipe,
    ShiftedClock,
    check_runs,
    events_of,
    requests_of,
    taking_turns,
    turns_of,
    types_of,
)

from clew import Agent, Engine, ScriptedChatClient, tool
from clew.agents import journal, run_admission, stream
from clew.domain.errors import StoreUnavailableError, ThreadStatusError
from clew.domain.json_values import JsonObject
from clew.domain.ports import Claim, Write
from clew.domain.runs.errors import (
    ApprovalPendingError,
    NoOpenRunError,
    RunInProgressError,
    RunInterruptedError,
    RunTakenOverError,
)
from clew.domain.runs.ports import LEASE_SECONDS, Holding
from clew.infrastructure import clock as clocks
from clew.infrastructure.scripted_client import Line, call
from clew.service.run_log import ThreadRuns

pytestmark = pytest.mark.anyio

EXPIRED = LEASE_SECONDS + 1
"""Seconds after which the lease of a silent run has expired."""


class Renewals:
    """Counts the renewals of leases, a hundred per second; each can be made to fail."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.fails: Exception | None = None
        self.refused: list[Exception] = []
        self._made = asyncio.Condition()
        self._started = self._ended = 0
        self.by_holder: Counter[str] = Counter()
        """The number of renewals by the run that holds the lease."""
        renew = ThreadRuns.hold

        async def hold(log: ThreadRuns, holding: Holding) -> None:
            self._started += 1
            number = self._started
            try:
                if self.fails is not None:
                    raise self.fails  # noqa: TRY301  # like the store
                await renew(log, holding)
            except Exception as error:
                self.refused.append(error)
                raise
            finally:
                async with self._made:
                    self._ended = max(self._ended, number)
                    self.by_holder[holding.holder] += 1
                    self._made.notify_all()

        patch.setattr(ThreadRuns, "hold", hold)
        patch.setattr(journal, "_RENEWAL_SECONDS", 0.01)

    async def after(self, more: int) -> None:
        """Wait for this many more renewals that start after this call; on slow stores several are in progress."""
        until = self._started + more
        async with self._made:
            await self._made.wait_for(lambda: self._ended >= until)

    async def refusal(self) -> None:
        """Wait until a renewal was refused."""
        async with self._made:
            await self._made.wait_for(lambda: bool(self.refused))


@pytest.fixture
def renewals(monkeypatch: pytest.MonkeyPatch) -> Renewals:
    return Renewals(monkeypatch)


async def test_a_lease_is_renewed_during_the_whole_run(url: str, renewals: Renewals) -> None:
    clock = ShiftedClock()
    async with asyncio.timeout(PATIENCE), Engine.open(url, now=clock) as engine:
        thread = await engine.start_thread()
        gate = Gate()
        running = asyncio.create_task(taking_turns(engine, gate).run("long", thread=thread))
        await gate.reached.wait()
        for _ in range(5):
            clock.seconds += LEASE_SECONDS - 1
            await renewals.after(2)
            lease = await thread.runs.lease()
            assert lease is not None
            with pytest.raises(RunInProgressError, match=lease.holder):
                await taking_turns(engine).run("other", thread=thread)
        gate.opened.set()
        await running
        assert await turns_of(thread) == ["long"]
        await check_runs(thread)
        ((holder, before),) = renewals.by_holder.items()
        gate = Gate()
        running = asyncio.create_task(taking_turns(engine, gate).run("next", thread=thread))
        await gate.reached.wait()
        await renewals.after(10)
        gate.opened.set()
        await running
        assert (
            renewals.by_holder[holder] <= before + 1
        )  # the completed run renews no more; one renewal may have been in progress


async def test_a_briefly_busy_store_loses_no_lease(url: str, renewals: Renewals) -> None:
    clock = ShiftedClock()
    async with asyncio.timeout(PATIENCE), Engine.open(url, now=clock) as engine:
        thread = await engine.start_thread()
        gate = Gate()
        running = asyncio.create_task(taking_turns(engine, gate).run("long", thread=thread))
        await gate.reached.wait()
        renewals.fails = StoreUnavailableError("busy")
        await renewals.after(2)
        renewals.fails = None
        clock.seconds += LEASE_SECONDS - 1
        await renewals.after(2)
        clock.seconds += LEASE_SECONDS - 1
        assert await thread.runs.lease() is not None
        gate.opened.set()
        await running


async def test_a_run_whose_store_is_closed_renews_no_more(url: str, renewals: Renewals) -> None:
    async with asyncio.timeout(PATIENCE):
        engine = Engine.open(url)
        thread = await engine.start_thread()
        gate = Gate()
        running = asyncio.create_task(taking_turns(engine, gate).run("long", thread=thread))
        await gate.reached.wait()
        await engine.close()
        with pytest.raises(RunInterruptedError):
            await running
        assert renewals.refused == []


async def _runs_until_killed(url: str, thread_id: str, pipe: Pipe) -> None:
    async def wait_forever(turn: str) -> None:
        pipe.say("asked", turn)
        await asyncio.Event().wait()

    async with Engine.open(url) as engine:
        await taking_turns(engine, wait_forever).run("lost", thread=await engine.thread(thread_id))


async def _killed_run(url: str) -> str:
    """Return the id of a thread with a run whose process was killed during the model call."""
    async with Engine.open(url) as engine:
        thread_id = (await engine.start_thread()).id
    child = Child(lambda pipe: _runs_until_killed(url, thread_id, pipe))
    assert child.heard() == ["asked", "lost"]
    child.kill()
    return thread_id


async def test_the_run_of_a_killed_process_blocks_until_its_lease_expires(url: str) -> None:
    thread_id = await _killed_run(url)
    clock = ShiftedClock(LEASE_SECONDS / 2)
    async with Engine.open(url, now=clock) as engine:
        thread = await engine.thread(thread_id)
        agent = taking_turns(engine)
        with pytest.raises(RunInProgressError):
            await agent.run("next", thread=thread)
        with pytest.raises(RunInProgressError):
            await agent.continue_run(thread)
        assert requests_of(agent) == 0
        clock.seconds = EXPIRED
        response = await agent.run("next", thread=thread)
        assert response.text == "done next"
        types = types_of(await events_of(thread))
        assert types[:6] == [
            "thread-started", "run-started", "model-called", "answer-interrupted", "run-abandoned", "run-started",
        ]  # fmt: skip
        texts = [message.message.text for message in await thread.history() if message.message]
        assert texts[:2] == ["lost", "next"]
        await check_runs(thread)


async def test_a_waiting_run_starts_when_the_lease_of_a_killed_process_expires(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_admission, "_POLL_SECONDS", 0.01)
    thread_id = await _killed_run(url)
    clock = ShiftedClock()
    async with asyncio.timeout(PATIENCE), Engine.open(url, now=clock) as engine:
        thread = await engine.thread(thread_id)
        has_checked = asyncio.Event()
        renew = ThreadRuns.lease

        async def lease(log: ThreadRuns) -> Any:
            has_checked.set()
            return await renew(log)

        monkeypatch.setattr(ThreadRuns, "lease", lease)
        waiting = asyncio.create_task(taking_turns(engine).run("next", thread=thread, on_conflict="wait"))
        for _ in range(3):
            has_checked.clear()
            await has_checked.wait()
        assert not waiting.done()
        clock.seconds = EXPIRED
        assert (await waiting).text == "done next"


async def test_the_run_of_a_killed_process_can_continue(url: str) -> None:
    thread_id = await _killed_run(url)
    async with Engine.open(url, now=ShiftedClock(EXPIRED)) as engine:
        thread = await engine.thread(thread_id)
        await taking_turns(engine).continue_run(thread)
        assert await turns_of(thread) == ["lost"]
        await check_runs(thread)


@pytest.mark.parametrize("how", ["run", "continue", "live"])
@pytest.mark.parametrize("where", ["model", "tool"])
async def test_a_taken_over_run_records_nothing_more(url: str, renewals: Renewals, how: str, where: str) -> None:
    """Like a paused process, it notices at its next renewal that it is late, takes nothing back, and ends its tools."""
    gate, effects = Gate(), []

    async def wait_forever(_: JsonObject) -> Line:
        if where == "model":
            await gate()
        return call("slow")

    @tool
    async def slow() -> str:
        """Take long."""
        if where == "tool":
            await gate()
        effects.append("slow")
        return "slow"

    async with (
        asyncio.timeout(PATIENCE),
        Engine.open(url) as late,
        Engine.open(url, now=ShiftedClock(EXPIRED)) as early,
    ):
        late_run = Agent(client=ScriptedChatClient(wait_forever), engine=late, tools=[slow])
        thread = await late.start_thread()
        running = asyncio.create_task(late_run.run("lost", thread=thread))
        await gate.reached.wait()
        other = await early.thread(thread.id)
        gate_of_takeover = Gate()
        takeover = asyncio.create_task(_take_over(early, other, how, gate_of_takeover))
        if how == "live":
            await gate_of_takeover.reached.wait()
        else:
            await takeover
        before = await events_of(other)
        await renewals.refusal()
        gate.opened.set()
        with pytest.raises(RunTakenOverError):
            await running
        assert await events_of(other) == before
        lease = await other.runs.lease()
        assert (lease is not None) == (how == "live")
        assert effects == []
        gate_of_takeover.opened.set()
        await takeover
        refused = {type(each) for each in renewals.refused}
        assert refused == {RunTakenOverError}
        assert (await other.runs.control(fresh=True)).run is None
        response = await taking_turns(early).run("afterwards", thread=other)
        assert response.text == "done afterwards"
        assert (await late.verify()).first_bad is None


async def test_renewals_of_a_closed_run_take_nothing_back(url: str, renewals: Renewals) -> None:
    async with (
        asyncio.timeout(PATIENCE),
        Engine.open(url) as late,
        Engine.open(url, now=ShiftedClock(EXPIRED)) as early,
    ):
        gate = Gate()
        thread = await late.start_thread()
        running = asyncio.create_task(taking_turns(late, gate).run("lost", thread=thread))
        await gate.reached.wait()
        await thread.suspend()
        other = await early.thread(thread.id)
        with pytest.raises(ThreadStatusError):
            await taking_turns(early).run("next", thread=other)
        await renewals.refusal()
        assert await thread.runs.lease() is None
        gate.opened.set()
        with pytest.raises(RunTakenOverError):
            await running
        await other.resume()
        assert (await taking_turns(early).run("next", thread=other)).text == "done next"


async def _take_over(engine: Engine, thread: Any, how: str, gate: Gate) -> None:
    if how == "continue":
        agent = Agent(client=ScriptedChatClient("It is done."), engine=engine, tools=[_idempotent()])
        with pytest.warns(UserWarning, match="differs from this"):
            await agent.continue_run(thread)
    else:
        await taking_turns(engine, gate if how == "live" else None).run("next", thread=thread)


def _idempotent() -> Any:
    async def slow() -> str:
        """Take long again."""
        return "slow again"

    return tool(slow, idempotent=True)


async def test_the_draft_of_a_taken_over_run_does_not_replace_another(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "DRAFT_SECONDS", 0.0)
    monkeypatch.setattr(stream, "_BUFFERED", 1)
    written: asyncio.Queue[Exception | None] = asyncio.Queue()
    renew = ThreadRuns.put_draft

    async def put_draft(log: ThreadRuns, run_id: str, data: bytes, holding: Holding) -> None:
        try:
            await renew(log, run_id, data, holding)
        except Exception as error:
            written.put_nowait(error)
            raise
        written.put_nowait(None)

    monkeypatch.setattr(ThreadRuns, "put_draft", put_draft)

    async with (
        asyncio.timeout(PATIENCE),
        Engine.open(url) as late,
        Engine.open(url, now=ShiftedClock(EXPIRED)) as early,
    ):
        thread = await late.start_thread()
        old, new = "old " * 20, "new " * 20
        late_run = Agent(client=ScriptedChatClient(old), engine=late).run("lost", thread=thread, stream=True)
        assert (await anext(late_run)).text == "old "
        assert await written.get() is None
        other = await early.thread(thread.id)
        new_run = Agent(client=ScriptedChatClient(new), engine=early).run("next", thread=other, stream=True)
        assert (await anext(new_run)).text == "new "
        for _ in range(4):
            assert (await anext(late_run)).text == "old "
        while not isinstance(await written.get(), RunTakenOverError):
            pass
        draft = await other.runs.draft()
        assert draft is None or b"old" not in (draft.data or b"")
        await new_run.aclose()
        with pytest.raises(RunTakenOverError):
            await late_run.get_final_response()
        messages = [(each.role, each.message.text.split(" ")[0]) for each in await other.history() if each.message]
        assert messages == [("user", "lost"), ("assistant", "old"), ("user", "next"), ("assistant", "new")]
        assert await other.runs.draft() is None


async def test_a_lease_without_a_run_blocks_until_it_expires(url: str) -> None:
    """Clew never leaves such a lease. A run that reads one must neither start nor poll forever."""
    clock = ShiftedClock()
    async with asyncio.timeout(PATIENCE), Engine.open(url, now=clock) as engine:
        thread = await engine.start_thread()
        now = clocks.now()
        core: Any = engine._core
        claim = Claim(core.stream(thread.id), "unknown", now, now + 20_000_000)
        core.log.submit(Write((), {}, claims=(claim,))).outcome.result()
        agent = taking_turns(engine)
        with pytest.raises(RunInProgressError, match="unknown"):
            await agent.run("one", thread=thread)
        forked = await agent.run("two", thread=thread, on_conflict="fork")
        assert forked.thread.id != thread.id
        assert await turns_of(forked.thread) == ["two"]
        clock.seconds = EXPIRED
        await agent.run("three", thread=thread)
        assert await turns_of(thread) == ["three"]


async def test_a_run_that_waits_for_approval_has_no_lease(url: str) -> None:
    async with Engine.open(url) as engine:
        agent = Agent(client=ScriptedChatClient([call("pay"), "Paid."]), engine=engine, tools=[_paying()])
        response = await agent.run("Pay.")
        assert await response.thread.runs.lease() is None
        with pytest.raises(ApprovalPendingError):
            await agent.run("Again.", thread=response.thread)
        await response.approvals[0].approve()
        await agent.continue_run(response.thread)
        assert await response.thread.runs.lease() is None
        with pytest.raises(NoOpenRunError):
            await agent.continue_run(response.thread)


def _paying() -> Any:
    def pay() -> str:
        """Pay."""
        return "paid"

    return tool(pay, approval="always")
