"""Agents on threads with random runs, faults, cancellations, crashes, approvals, forks and rewinds."""

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
from tests.agents.run_checks import check_requests, check_store, events_of
from tests.agents.run_rules import check_runs
from tests.agents.simulated_process import TOOLS, Died, Life

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
from clew.domain.runs.request_construction import request_bytes
from clew.domain.streams import digest
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
# The commit at choice the process dies, and the seconds until the next use: a lease lasts 30.
death = st.none() | st.tuples(st.integers(1, 8), st.sampled_from([31, 31, 0]))


class RunsStayConsistent(RuleBasedStateMachine):
    """Checks that threads stay complete and that nothing happens twice."""

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
        self.start_process()
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

    def start_process(self) -> None:
        self.agent = Agent(
            self.life.start_process(),
            engine=self.engine,
            name="Clerk",
            instructions="Be brief.",
            tools=self.life.tools,
            retries=1,
            max_rounds=4,
        )

    def reopen(self) -> None:
        """Continue in another process, choice knows only the stored data."""
        if self.durable:
            self.do(self.engine.close())
            self.engine = self.open()
        else:
            self.engine = Engine(replace(self.engine._core, caches=Caches()))
        self.start_process()

    # Operations

    @initialize()
    def start_thread(self) -> None:
        self.threads.append(self.do(self.engine.start_thread()).id)

    def thread(self, choice: int) -> Thread:
        return self.do(self.engine.thread(self.threads[choice % len(self.threads)]))

    def perform(
        self, thread: Thread, work: Coroutine[Any, Any, Any], cancel: int | None = None, *, ran: bool = True
    ) -> Any:
        """Do work that may fail in expected ways, check the thread, and return the outcome."""

        async def watched() -> Any:
            self.life.task = task = asyncio.ensure_future(work)
            if cancel is not None:
                for _ in range(cancel):
                    await asyncio.sleep(0)
                task.cancel()
            result: Any = (await asyncio.gather(task, return_exceptions=True))[0]
            self.life.task = None
            # A caller cancelled while it waits for the end of a run no longer waits.
            while others := asyncio.all_tasks() - {asyncio.current_task()}:
                await asyncio.wait(others)
            return result

        before = self.do(thread.runs.control(fresh=True)).run
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
        self.check(thread.id)
        if ran and not died:
            now = self.do(thread.runs.control(fresh=True)).run
            assert now is None or now.approvals or now == before, "a run stays open without a process"
        return outcome

    @rule(choice=number, lines=script, streams=st.booleans(), cancel=moment, dies=death, give_up=st.booleans())
    def run(
        self,
        choice: int,
        lines: list[Any],
        *,
        streams: bool,
        cancel: int | None,
        dies: tuple[int, int] | None,
        give_up: bool,
    ) -> None:
        thread = self.thread(choice)
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

    @rule(choice=number, lines=script, updates=st.integers(0, 6))
    def abandon_stream(self, choice: int, lines: list[Any], updates: int) -> None:
        async def follow() -> None:
            async with self.agent.run("Go.", thread=thread, stream=True) as stream:
                for _ in range(updates):
                    if await anext(stream, None) is None:
                        return

        thread = self.thread(choice)
        self.life.lines.extend(lines)
        self.life.streams = True
        self.perform(thread, follow())

    @rule(choice=number, lines=script, cancel=moment, dies=death, twice=st.booleans())
    def continue_run(
        self, choice: int, lines: list[Any], *, cancel: int | None, dies: tuple[int, int] | None, twice: bool
    ) -> None:
        thread = self.thread(choice)
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

    @rule(choice=number, names=names, dies=st.integers(3, 6), lines=script)
    def die_in_tools(self, choice: int, names: list[str], dies: int, lines: list[Any]) -> None:
        self.run(choice, [names], streams=False, cancel=None, dies=(dies, 31), give_up=True)
        self.continue_run(choice, lines, cancel=None, dies=None, twice=False)

    @rule(choice=number, approval=number, approved=st.booleans())
    def decide(self, choice: int, approval: int, *, approved: bool) -> None:
        thread = self.thread(choice)
        waiting = self.do(thread.approvals())
        if waiting:
            chosen = waiting[approval % len(waiting)]
            self.stale.append(chosen)
            done = self.perform(thread, chosen.approve() if approved else chosen.reject("No."), ran=False)
            assert done is None

    # The timing of a cancellation varies, so the drawn values must not depend on its result: no preconditions and no
    # bundles.

    @rule(approval=number)
    def decide_again(self, approval: int) -> None:
        if not self.stale:
            return
        chosen = self.stale[approval % len(self.stale)]
        thread = self.do(self.engine.thread(chosen.thread_id))
        chosen = replace(chosen, _log=thread.runs)  # as this process would have kept it
        assert isinstance(self.perform(thread, chosen.approve(), ran=False), ApprovalNotPendingError)

    @rule(choice=number)
    def append(self, choice: int) -> None:
        thread = self.thread(choice)
        self.do(thread.append(Message.user("By the way.")))
        self.check(thread.id)

    @rule(choice=number, at=number)
    def fork(self, choice: int, at: int) -> None:
        if len(self.threads) == THREADS:
            return
        thread = self.thread(choice)
        version = 1 + at % self.do(thread.version)
        before = self.do(thread.history(at=version)).messages
        fork = self.do(thread.fork(at=version))
        self.threads.append(fork.id)
        assert self.do(fork.history()).messages == before
        assert self.do(fork.approvals()) == []
        with pytest.raises(NoOpenRunError):
            self.do(self.agent.continue_run(fork))
        self.check(fork.id)

    @rule(choice=number, to=number)
    def rewind(self, choice: int, to: int) -> None:
        thread = self.thread(choice)
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
        self.check(thread.id)

    @rule(dies=st.booleans(), seconds=st.sampled_from([0, 31]))
    def pass_time(self, *, dies: bool, seconds: int) -> None:
        """Advance the time, and perhaps continue in another process."""
        self.now += seconds * SECOND
        if dies:
            self.reopen()

    # Invariants

    def check(self, thread_id: str) -> None:
        type(self).steps += 1
        self.do(self.check_thread(thread_id))

    async def check_thread(self, thread_id: str) -> None:
        thread = await self.engine.thread(thread_id)
        events = await events_of(thread)
        control = await check_store(self.engine, thread, events)
        own = [event for event in events if event.thread_id == thread_id]
        started = check_runs(events, TOOLS)
        runs = {event.run_id for event in own}
        for key, times in self.life.effects.items():
            if key.split(":")[0] in runs:
                assert times <= started[key], "a call was executed that is not on the log"
        after = list((await thread.history()).messages)
        before = self.histories.get(thread_id, [])
        assert after[: len(before)] == before
        assert control.messages == len(after)
        self.histories[thread_id] = after
        new = [event for event in own if event.version > self.checked.get(thread_id, 0)]
        self.checked[thread_id] = events[-1].version
        await check_requests(thread, new)
        self.digests.update(event.data.digest for event in new if isinstance(event.data, ModelCalled))
        for body in self.life.requests:
            assert self.digests[digest(request_bytes(body)).hex()] > 0, "a request was sent that is not on the log"
            self.digests[digest(request_bytes(body)).hex()] -= 1
        self.life.requests.clear()


class RunsStayConsistentOnDisk(RunsStayConsistent):
    durable = True


@pytest.mark.parametrize(("machine", "examples"), [(RunsStayConsistent, 250), (RunsStayConsistentOnDisk, 50)])
def test_nothing_is_lost_or_repeated(machine: type[RunsStayConsistent], examples: int, scale: float) -> None:
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
