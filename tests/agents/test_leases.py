"""Leases: kept while a run is under way, run out when its process is gone, never taken back by one that is late."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from tests.agents.turns import (
    PATIENCE,
    Child,
    Gate,
    ShiftedClock,
    Wire,
    check_runs,
    events_of,
    requests_of,
    taking_turns,
    turns_of,
    types_of,
)

from clew import Agent, Engine, ScriptedChatClient, tool
from clew.agents import journal, run_admission, stream
from clew.domain.errors import ClosedError, StoreUnavailableError, ThreadStatusError
from clew.domain.json_values import JsonObject
from clew.domain.ports import Claim, Write
from clew.domain.runs.errors import ApprovalPendingError, NoOpenRunError, RunInProgressError, RunTakenOverError
from clew.domain.runs.ports import LEASE_SECONDS, Holding
from clew.infrastructure import clock as clocks
from clew.infrastructure.scripted_client import Line, call
from clew.service.run_log import ThreadRuns

pytestmark = pytest.mark.anyio

GONE = LEASE_SECONDS + 1
"""Seconds after which nobody counts on a run of which nothing was heard."""


class Beats:
    """The beats of leases: a hundred a second, counted; each may be made to fail."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.fails: Exception | None = None
        self.refused: list[Exception] = []
        self._made = asyncio.Condition()
        self._begun = self._ended = 0
        self.of: Counter[str] = Counter()
        """How many there were, by the run that holds the lease."""
        really = ThreadRuns.hold

        async def hold(log: ThreadRuns, holding: Holding) -> None:
            self._begun += 1
            number = self._begun
            try:
                if self.fails is not None:
                    raise self.fails  # noqa: TRY301  # as the store would
                await really(log, holding)
            except Exception as error:
                self.refused.append(error)
                raise
            finally:
                async with self._made:
                    self._ended = max(self._ended, number)
                    self.of[holding.holder] += 1
                    self._made.notify_all()

        patch.setattr(ThreadRuns, "hold", hold)
        patch.setattr(journal, "_RENEWAL_SECONDS", 0.01)

    async def after(self, more: int) -> None:
        """Wait for so many more, each begun after this was called: where stores are slow several are under way."""
        until = self._begun + more
        async with self._made:
            await self._made.wait_for(lambda: self._ended >= until)

    async def refusal(self) -> None:
        """Wait until one was refused."""
        async with self._made:
            await self._made.wait_for(lambda: bool(self.refused))


@pytest.fixture
def beats(monkeypatch: pytest.MonkeyPatch) -> Beats:
    return Beats(monkeypatch)


async def test_a_lease_is_kept_as_long_as_the_run_takes(url: str, beats: Beats) -> None:
    clock = ShiftedClock()
    async with asyncio.timeout(PATIENCE), Engine.open(url, now=clock) as engine:
        thread = await engine.start_thread()
        gate = Gate()
        running = asyncio.create_task(taking_turns(engine, gate).run("long", thread=thread))
        await gate.reached.wait()
        for _ in range(5):
            clock.seconds += LEASE_SECONDS - 1
            await beats.after(2)
            lease = await thread.runs.lease()
            assert lease is not None
            with pytest.raises(RunInProgressError, match=lease.holder):
                await taking_turns(engine).run("other", thread=thread)
        gate.opened.set()
        await running
        assert await turns_of(thread) == ["long"]
        await check_runs(thread)
        ((holder, before),) = beats.of.items()
        gate = Gate()
        running = asyncio.create_task(taking_turns(engine, gate).run("next", thread=thread))
        await gate.reached.wait()
        await beats.after(10)
        gate.opened.set()
        await running
        assert beats.of[holder] <= before + 1  # the run that is over beats no more; one may have been under way


async def test_a_store_that_is_busy_for_a_moment_costs_no_lease(url: str, beats: Beats) -> None:
    clock = ShiftedClock()
    async with asyncio.timeout(PATIENCE), Engine.open(url, now=clock) as engine:
        thread = await engine.start_thread()
        gate = Gate()
        running = asyncio.create_task(taking_turns(engine, gate).run("long", thread=thread))
        await gate.reached.wait()
        beats.fails = StoreUnavailableError("busy")
        await beats.after(2)
        beats.fails = None
        clock.seconds += LEASE_SECONDS - 1
        await beats.after(2)
        clock.seconds += LEASE_SECONDS - 1
        assert await thread.runs.lease() is not None
        gate.opened.set()
        await running


async def test_a_run_whose_store_is_closed_beats_no_more(url: str, beats: Beats) -> None:
    async with asyncio.timeout(PATIENCE):
        engine = Engine.open(url)
        thread = await engine.start_thread()
        gate = Gate()
        running = asyncio.create_task(taking_turns(engine, gate).run("long", thread=thread))
        await gate.reached.wait()
        await engine.close()
        await beats.refusal()
        gate.opened.set()
        with pytest.raises(ClosedError):
            await running
        assert [type(each) for each in beats.refused] == [ClosedError]


async def _runs_until_killed(url: str, thread_id: str, wire: Wire) -> None:
    async def asked(turn: str) -> None:
        wire.say("asked", turn)
        await asyncio.Event().wait()

    async with Engine.open(url) as engine:
        await taking_turns(engine, asked).run("lost", thread=await engine.thread(thread_id))


async def _killed(url: str) -> str:
    """A thread with a run whose process was killed while it waited for the model."""
    async with Engine.open(url) as engine:
        thread_id = (await engine.start_thread()).id
    child = Child(lambda wire: _runs_until_killed(url, thread_id, wire))
    assert child.heard() == ["asked", "lost"]
    child.kill()
    return thread_id


async def test_the_run_of_a_killed_process_is_in_the_way_until_its_lease_has_run_out(url: str) -> None:
    thread_id = await _killed(url)
    clock = ShiftedClock(LEASE_SECONDS / 2)
    async with Engine.open(url, now=clock) as engine:
        thread = await engine.thread(thread_id)
        agent = taking_turns(engine)
        with pytest.raises(RunInProgressError):
            await agent.run("next", thread=thread)
        with pytest.raises(RunInProgressError):
            await agent.continue_run(thread)
        assert requests_of(agent) == 0
        clock.seconds = GONE
        response = await agent.run("next", thread=thread)
        assert response.text == "done next"
        types = types_of(await events_of(thread))
        assert types[:6] == [
            "thread-started", "run-started", "model-called", "answer-interrupted", "run-abandoned", "run-started",
        ]  # fmt: skip
        said = [message.message.text for message in await thread.history() if message.message]
        assert said[:2] == ["lost", "next"]
        await check_runs(thread)


async def test_whoever_waits_goes_on_when_the_lease_of_a_killed_process_has_run_out(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_admission, "_POLL_SECONDS", 0.01)
    thread_id = await _killed(url)
    clock = ShiftedClock()
    async with asyncio.timeout(PATIENCE), Engine.open(url, now=clock) as engine:
        thread = await engine.thread(thread_id)
        looked = asyncio.Event()
        really = ThreadRuns.lease

        async def lease(log: ThreadRuns) -> Any:
            looked.set()
            return await really(log)

        monkeypatch.setattr(ThreadRuns, "lease", lease)
        waiting = asyncio.create_task(taking_turns(engine).run("next", thread=thread, on_conflict="wait"))
        for _ in range(3):
            looked.clear()
            await looked.wait()
        assert not waiting.done()
        clock.seconds = GONE
        assert (await waiting).text == "done next"


async def test_the_run_of_a_killed_process_is_gone_on_with(url: str) -> None:
    thread_id = await _killed(url)
    async with Engine.open(url, now=ShiftedClock(GONE)) as engine:
        thread = await engine.thread(thread_id)
        await taking_turns(engine).continue_run(thread)
        assert await turns_of(thread) == ["lost"]
        await check_runs(thread)


@pytest.mark.parametrize("how", ["run", "continue", "live"])
@pytest.mark.parametrize("where", ["model", "tool"])
async def test_a_run_that_was_taken_over_records_nothing_more(url: str, beats: Beats, how: str, where: str) -> None:
    """Its process was paused, say: it learns that it is late when it writes, and its beats take nothing back."""
    gate, effects = Gate(), []

    async def asked(_: JsonObject) -> Line:
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

    async with asyncio.timeout(PATIENCE), Engine.open(url) as late, Engine.open(url, now=ShiftedClock(GONE)) as early:
        zombie = Agent(client=ScriptedChatClient(asked), engine=late, tools=[slow])
        thread = await late.start_thread()
        running = asyncio.create_task(zombie.run("lost", thread=thread))
        await gate.reached.wait()
        other = await early.thread(thread.id)
        held = Gate()
        takes_over = asyncio.create_task(_take_over(early, other, how, held))
        if how == "live":
            await held.reached.wait()
        else:
            await takes_over
        before = await events_of(other)
        await beats.refusal()
        gate.opened.set()
        with pytest.raises(RunTakenOverError):
            await running
        assert await events_of(other) == before
        lease = await other.runs.lease()
        assert (lease is not None) == (how == "live")
        assert effects == (["slow"] if where == "tool" else [])
        held.opened.set()
        await takes_over
        refused = {type(each) for each in beats.refused}
        assert refused == {RunTakenOverError}
        assert (await other.runs.control(fresh=True)).run is None
        response = await taking_turns(early).run("afterwards", thread=other)
        assert response.text == "done afterwards"
        assert (await late.verify()).first_bad is None


async def test_the_beats_of_a_run_that_was_only_closed_take_nothing_back(url: str, beats: Beats) -> None:
    async with asyncio.timeout(PATIENCE), Engine.open(url) as late, Engine.open(url, now=ShiftedClock(GONE)) as early:
        gate = Gate()
        thread = await late.start_thread()
        running = asyncio.create_task(taking_turns(late, gate).run("lost", thread=thread))
        await gate.reached.wait()
        await thread.suspend()
        other = await early.thread(thread.id)
        with pytest.raises(ThreadStatusError):
            await taking_turns(early).run("next", thread=other)
        await beats.refusal()
        assert await thread.runs.lease() is None
        gate.opened.set()
        with pytest.raises(RunTakenOverError):
            await running
        await other.resume()
        assert (await taking_turns(early).run("next", thread=other)).text == "done next"


async def _take_over(engine: Engine, thread: Any, how: str, gate: Gate) -> None:
    if how == "continue":
        agent = Agent(client=ScriptedChatClient("It is done."), engine=engine, tools=[_idempotent()])
        with pytest.warns(UserWarning, match="another"):
            await agent.continue_run(thread)
    else:
        await taking_turns(engine, gate if how == "live" else None).run("next", thread=thread)


def _idempotent() -> Any:
    async def slow() -> str:
        """Take long, and again."""
        return "slow again"

    return tool(slow, idempotent=True)


async def test_the_draft_of_a_run_that_was_taken_over_takes_no_other_s_place(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "DRAFT_SECONDS", 0.0)
    monkeypatch.setattr(stream, "_BUFFERED", 1)
    written: asyncio.Queue[Exception | None] = asyncio.Queue()
    really = ThreadRuns.put_draft

    async def put_draft(log: ThreadRuns, run_id: str, data: bytes, holding: Holding) -> None:
        try:
            await really(log, run_id, data, holding)
        except Exception as error:
            written.put_nowait(error)
            raise
        written.put_nowait(None)

    monkeypatch.setattr(ThreadRuns, "put_draft", put_draft)

    async with asyncio.timeout(PATIENCE), Engine.open(url) as late, Engine.open(url, now=ShiftedClock(GONE)) as early:
        thread = await late.start_thread()
        old, new = "old " * 20, "new " * 20
        zombie = Agent(client=ScriptedChatClient(old), engine=late).run("lost", thread=thread, stream=True)
        assert (await anext(zombie)).text == "old "
        assert await written.get() is None
        other = await early.thread(thread.id)
        heir = Agent(client=ScriptedChatClient(new), engine=early).run("next", thread=other, stream=True)
        assert (await anext(heir)).text == "new "
        for _ in range(4):
            assert (await anext(zombie)).text == "old "
        while not isinstance(await written.get(), RunTakenOverError):
            pass
        draft = await other.runs.draft()
        assert draft is None or b"old" not in (draft.data or b"")
        await heir.aclose()
        with pytest.raises(RunTakenOverError):
            await zombie.get_final_response()
        said = [(each.role, each.message.text.split(" ")[0]) for each in await other.history() if each.message]
        assert said == [("user", "lost"), ("assistant", "old"), ("user", "next"), ("assistant", "new")]
        assert await other.runs.draft() is None


async def test_a_lease_that_nobody_runs_under_is_waited_out(url: str) -> None:
    """Nothing of Clew's leaves one behind; but a run that met one must neither begin nor ask again and again."""
    clock = ShiftedClock()
    async with asyncio.timeout(PATIENCE), Engine.open(url, now=clock) as engine:
        thread = await engine.start_thread()
        now = clocks.now()
        core: Any = engine._core
        left = Claim(core.stream(thread.id), "nobody", now, now + 20_000_000)
        core.log.submit(Write((), {}, claims=(left,))).outcome.result()
        agent = taking_turns(engine)
        with pytest.raises(RunInProgressError, match="nobody"):
            await agent.run("one", thread=thread)
        forked = await agent.run("two", thread=thread, on_conflict="fork")
        assert forked.thread.id != thread.id
        assert await turns_of(forked.thread) == ["two"]
        clock.seconds = GONE
        await agent.run("three", thread=thread)
        assert await turns_of(thread) == ["three"]


async def test_a_run_that_waits_for_approval_holds_no_lease(url: str) -> None:
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
