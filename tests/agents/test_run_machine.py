"""Agents on threads in any order: runs, faults, cancellations, crashes, approvals, forks and rewinds."""

from __future__ import annotations

import asyncio
import math
import tempfile
from collections import Counter
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, ClassVar, TypeVar
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from tests.agents.mortal import TOOLS, Died, Life
from tests.agents.run_checks import check_requests, check_store, events_of
from tests.agents.run_rules import check_runs

from clew.agents.response import Approval
from clew.aio.threads import Thread
from clew.domain.messages import Message
from clew.domain.runs.errors import (
    ApprovalNotPendingError,
    ApprovalPendingError,
    ModelError,
    NoOpenRunError,
    RunInProgressError,
    RunLimitError,
    RunTakenOverError,
    ToolFailedError,
)
from clew.domain.runs.events import ModelCalled
from clew.domain.runs.requests import body_digest
from clew.engine import Agent, Engine
from clew.service.core import Caches
from clew.service.run_log import ThreadRuns

BEGAN = 1_700_000_000_000_000
SECOND = 1_000_000
THREADS = 3

T = TypeVar("T")

number = st.integers(0, 9_999)
names = st.lists(st.sampled_from([*TOOLS, "unknown"]), min_size=1, max_size=3)
answer = st.one_of(
    st.just("One two three."),
    names,
    st.sampled_from(["overloaded", "refused", "cut", "die", "die later"]).map(lambda kind: (kind,)),
)
script = st.lists(answer, max_size=5)
moment = st.none() | st.integers(0, 60)
# Before or after which commit the process dies, and after how many seconds somebody looks: the lease lasts 30.
death = st.none() | st.tuples(st.integers(1, 8), st.sampled_from([31, 31, 0]))


class AgentsKeepTheirWord(RuleBasedStateMachine):
    """Whatever happens, what threads say stays whole, and nothing is done twice."""

    steps: ClassVar[int] = 0
    durable: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.now = BEGAN
        self.url = f"sqlite:///{self.folder.name}/clew.db?synchronous=OFF" if self.durable else "memory:"
        self.life = Life()
        self.stale: list[Approval] = []
        self.threads: list[str] = []
        self.histories: dict[str, list[Any]] = {}
        self.checked: dict[str, int] = {}
        self.digests: Counter[str] = Counter()
        self.later = 0
        self.engine = self.open()
        self.begin_process()
        self.patch = patch.object(ThreadRuns, "record", self.life.recording(ThreadRuns.record))
        self.patch.start()

    def teardown(self) -> None:
        self.patch.stop()
        self.do(self.engine.close())
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        self.folder.cleanup()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def open(self) -> Engine:
        return Engine.open(self.url, embedded=False, now=lambda: self.now)

    def begin_process(self) -> None:
        self.agent = Agent(
            self.life.begin(),
            engine=self.engine,
            name="Clerk",
            instructions="Be brief.",
            tools=self.life.tools,
            retries=1,
            max_rounds=4,
        )

    def reopen(self) -> None:
        """Another process: it knows what is stored, and nothing else."""
        if self.durable:
            self.do(self.engine.close())
            self.engine = self.open()
        else:
            self.engine = Engine(replace(self.engine._core, caches=Caches()))
        self.begin_process()

    # What is done

    @initialize()
    def begin(self) -> None:
        self.threads.append(self.do(self.engine.start_thread()).id)

    def thread(self, which: int) -> Thread:
        return self.do(self.engine.thread(self.threads[which % len(self.threads)]))

    def perform(
        self, thread: Thread, work: Coroutine[Any, Any, Any], cancel: int | None = None, *, ran: bool = True
    ) -> Any:
        """Do what may fail in the ways that it may; returns what came of it. Then everything must hold."""

        async def watched() -> Any:
            self.life.task = task = asyncio.ensure_future(work)
            if cancel is not None:
                for _ in range(cancel):
                    await asyncio.sleep(0)
                task.cancel()
            came: Any = (await asyncio.gather(task, return_exceptions=True))[0]
            self.life.task = None
            # Whoever is cancelled while they wait for a run to be ended does not wait for that any more.
            while others := asyncio.all_tasks() - {asyncio.current_task()}:
                await asyncio.wait(others)
            return came

        left = self.do(thread.runs.control(fresh=True)).run
        outcome = self.do(watched())
        self.life.lines.clear()
        died, self.life.died, self.life.deaths, self.life.client.death = self.life.died, False, None, None
        if died:
            self.now += self.later * SECOND
            self.reopen()
        expected = ModelError | RunLimitError | ToolFailedError | asyncio.CancelledError | Died
        known = ApprovalPendingError | NoOpenRunError | RunInProgressError | ApprovalNotPendingError
        if isinstance(outcome, BaseException) and not isinstance(outcome, expected | known):
            raise outcome
        self.hold(thread.id)
        if ran and not died:
            now = self.do(thread.runs.control(fresh=True)).run
            assert now is None or now.asked or now == left, "a run is left open that nobody carries out"
        return outcome

    @rule(which=number, lines=script, streams=st.booleans(), cancel=moment, dies=death, give_up=st.booleans())
    def run(
        self,
        which: int,
        lines: list[Any],
        *,
        streams: bool,
        cancel: int | None,
        dies: tuple[int, int] | None,
        give_up: bool,
    ) -> None:
        thread = self.thread(which)
        control = self.do(thread.runs.control(fresh=True))
        lease = self.do(thread.runs.lease())
        self.life.lines.extend(lines)
        self.life.streams = streams
        self.life.deaths, self.later = dies or (None, 0)
        outcome = self.perform(thread, self.running(thread, give_up=give_up, streams=streams), cancel)
        if isinstance(outcome, ApprovalPendingError):
            assert control.run is not None
            assert not give_up
        if isinstance(outcome, RunInProgressError):
            assert lease is not None
        assert not isinstance(outcome, NoOpenRunError | ApprovalNotPendingError)

    async def running(self, thread: Thread, *, give_up: bool, streams: bool) -> Any:
        if streams:
            stream = self.agent.run("Go.", thread=thread, stream=True, abandon_run=give_up)
            return await stream.get_final_response()
        return await self.agent.run("Go.", thread=thread, abandon_run=give_up)

    @rule(which=number, lines=script, updates=st.integers(0, 6))
    def leave(self, which: int, lines: list[Any], updates: int) -> None:
        async def follow() -> None:
            async with self.agent.run("Go.", thread=thread, stream=True) as stream:
                for _ in range(updates):
                    if await anext(stream, None) is None:
                        return

        thread = self.thread(which)
        self.life.lines.extend(lines)
        self.life.streams = True
        self.perform(thread, follow())

    @rule(which=number, lines=script, cancel=moment, dies=death, twice=st.booleans())
    def go_on(
        self, which: int, lines: list[Any], *, cancel: int | None, dies: tuple[int, int] | None, twice: bool
    ) -> None:
        thread = self.thread(which)
        control = self.do(thread.runs.control(fresh=True))
        self.life.lines.extend(lines)
        self.life.streams = False
        self.life.deaths, self.later = dies or (None, 0)

        async def both() -> Any:
            outcomes = await asyncio.gather(
                *(self.agent.continue_run(thread) for _ in range(1 + twice)), return_exceptions=True
            )
            failed = [each for each in outcomes if isinstance(each, BaseException)]
            for each in failed:
                if not isinstance(each, RunInProgressError | NoOpenRunError | ApprovalPendingError | RunTakenOverError):
                    raise each
            if len(failed) == len(outcomes):
                raise failed[0]

        outcome = self.perform(thread, both(), cancel)
        if isinstance(outcome, NoOpenRunError):
            assert control.run is None
        if isinstance(outcome, ApprovalPendingError):
            assert control.run is not None

    @rule(which=number, names=names, dies=st.integers(3, 6), lines=script)
    def die_in_tools(self, which: int, names: list[str], dies: int, lines: list[Any]) -> None:
        self.run(which, [names], streams=False, cancel=None, dies=(dies, 31), give_up=True)
        self.go_on(which, lines, cancel=None, dies=None, twice=False)

    @rule(which=number, approval=number, approved=st.booleans())
    def decide(self, which: int, approval: int, *, approved: bool) -> None:
        thread = self.thread(which)
        waiting = self.do(thread.approvals())
        if waiting:
            chosen = waiting[approval % len(waiting)]
            self.stale.append(chosen)
            done = self.perform(thread, chosen.approve() if approved else chosen.reject("No."), ran=False)
            assert done is None

    # What is drawn must not depend on what came of a cancellation, which may come a moment earlier or later: so no
    # preconditions, and no bundles.

    @rule(approval=number)
    def decide_again(self, approval: int) -> None:
        if not self.stale:
            return
        chosen = self.stale[approval % len(self.stale)]
        thread = self.do(self.engine.thread(chosen.thread_id))
        chosen = replace(chosen, _log=thread.runs)  # as whoever kept it in this process would have it
        assert isinstance(self.perform(thread, chosen.approve(), ran=False), ApprovalNotPendingError)

    @rule(which=number)
    def append(self, which: int) -> None:
        thread = self.thread(which)
        self.do(thread.append(Message.user("By the way.")))
        self.hold(thread.id)

    @rule(which=number, at=number)
    def fork(self, which: int, at: int) -> None:
        if len(self.threads) == THREADS:
            return
        thread = self.thread(which)
        version = 1 + at % self.do(thread.version)
        before = self.do(thread.history(at=version)).messages
        fork = self.do(thread.fork(at=version))
        self.threads.append(fork.id)
        assert self.do(fork.history()).messages == before
        assert self.do(fork.approvals()) == []
        with pytest.raises(NoOpenRunError):
            self.do(self.agent.continue_run(fork))
        self.hold(fork.id)

    @rule(which=number, to=number)
    def rewind(self, which: int, to: int) -> None:
        thread = self.thread(which)
        control = self.do(thread.runs.control(fresh=True))
        version = 1 + to % self.do(thread.version)
        try:
            self.do(thread.rewind(version, abandon_run=bool(to % 2)))
        except RunInProgressError:
            assert control.run is not None
            assert not to % 2
            return
        self.histories[thread.id] = list(self.do(thread.history()).messages)
        assert self.do(thread.history()).messages == self.do(thread.history(at=version)).messages
        assert self.do(thread.approvals()) == []
        self.hold(thread.id)

    @rule(dies=st.booleans(), seconds=st.sampled_from([0, 31]))
    def rest(self, *, dies: bool, seconds: int) -> None:
        """Time passes, and the process may be another."""
        self.now += seconds * SECOND
        if dies:
            self.reopen()

    # What must hold

    def hold(self, thread_id: str) -> None:
        type(self).steps += 1
        self.do(self.checked_thread(thread_id))

    async def checked_thread(self, thread_id: str) -> None:
        thread = await self.engine.thread(thread_id)
        events = await events_of(thread)
        control = await check_store(self.engine, thread, events)
        own = [event for event in events if event.thread_id == thread_id]
        begun = check_runs(events, TOOLS)
        runs = {event.run_id for event in own}
        for key, times in self.life.effects.items():
            if key.split(":")[0] in runs:
                assert times <= begun[key], "a call was carried out that is not on the log"
        after = list((await thread.history()).messages)
        before = self.histories.get(thread_id, [])
        assert after[: len(before)] == before
        assert control.messages == len(after)
        self.histories[thread_id] = after
        new = [event for event in own if event.version > self.checked.get(thread_id, 0)]
        self.checked[thread_id] = events[-1].version
        await check_requests(thread, new)
        self.digests.update(event.data.digest for event in new if isinstance(event.data, ModelCalled))
        for body in self.life.asked:
            assert self.digests[body_digest(body)] > 0, "a request was sent that is not on the log"
            self.digests[body_digest(body)] -= 1
        self.life.asked.clear()


class AgentsKeepTheirWordOnDisk(AgentsKeepTheirWord):
    durable = True


@pytest.mark.parametrize(("machine", "examples"), [(AgentsKeepTheirWord, 250), (AgentsKeepTheirWordOnDisk, 50)])
def test_nothing_is_lost_or_done_twice(machine: type[AgentsKeepTheirWord], examples: int, scale: float) -> None:
    machine.steps = 0
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=math.ceil(examples * scale),
            stateful_step_count=30,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
        ),
    )
    assert machine.steps > examples * scale
