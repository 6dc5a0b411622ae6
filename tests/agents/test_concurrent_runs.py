"""Twenty concurrent runs on one thread, in one process and in two: turns stay whole and none is lost."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.agents.turns import PATIENCE, Child, Gate, Pipe, check_runs, requests_of, taking_turns, turns_of

from clew import Engine
from clew.agents import run_admission
from clew.agents.run_setup import OnConflict
from clew.aio.threads import LocalThread
from clew.domain.errors import ConflictError
from clew.domain.ports import Lease
from clew.domain.runs.errors import RunInProgressError
from clew.service.run_log import ThreadRuns

pytestmark = pytest.mark.anyio

RUNS = 20
TURNS = [str(number) for number in range(RUNS)]


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/clew.db?synchronous=OFF"


@pytest.fixture
def url(any_url: str) -> str:
    return any_url


@pytest.fixture
def _no_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable polling: a waiting run must be notified, or the test fails."""
    monkeypatch.setattr(run_admission, "_POLL_SECONDS", 10 * PATIENCE)


class AnswerBarrier:
    """Lets the models answer when this many of them are asked."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._there = asyncio.Event()

    async def __call__(self, _turn: str) -> None:
        self._left -= 1
        if self._left <= 0:
            self._there.set()
        await self._there.wait()


@pytest.mark.usefixtures("_no_polling")
async def test_waiting_runs_execute_one_after_the_other(url: str) -> None:
    async with asyncio.timeout(PATIENCE):
        async with Engine.open(url) as engine:
            thread = await engine.start_thread()
            agent = taking_turns(engine)
            responses = await asyncio.gather(*(agent.run(turn, thread=thread, on_conflict="wait") for turn in TURNS))
            assert sorted(await turns_of(thread), key=int) == TURNS
            assert [response.text for response in responses] == [f"done {turn}" for turn in TURNS]
            assert {response.thread.id for response in responses} == {thread.id}
            assert requests_of(agent) == 2 * RUNS
            await check_runs(thread)
            assert (await engine.verify()).first_bad is None


@pytest.mark.usefixtures("_no_polling")
async def test_waiting_runs_occupy_no_worker_thread(file_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    wait_for_change, waiting, all_wait = ThreadRuns.changed, set[asyncio.Task[Any] | None](), asyncio.Event()

    async def changed(self: ThreadRuns, after: int, seconds: float) -> bool:
        waiting.add(asyncio.current_task())
        if len(waiting) == RUNS:
            all_wait.set()
        return await wait_for_change(self, after, seconds)

    monkeypatch.setattr(ThreadRuns, "changed", changed)
    async with asyncio.timeout(PATIENCE):
        async with Engine.open(file_url) as engine:
            thread = await engine.start_thread()
            gate = Gate()
            first = asyncio.create_task(taking_turns(engine, gate).run("first", thread=thread))
            await gate.reached.wait()
            agent = taking_turns(engine)
            others = [asyncio.create_task(agent.run(turn, thread=thread, on_conflict="wait")) for turn in TURNS]
            await all_wait.wait()
            assert await asyncio.to_thread(lambda: "free") == "free"
            assert not any(task.done() for task in others)
            assert requests_of(agent) == 0
            gate.opened.set()
            await asyncio.gather(first, *others)
            assert (await turns_of(thread))[0] == "first"
            assert sorted((await turns_of(thread))[1:], key=int) == TURNS


async def test_forking_runs_use_twenty_threads(url: str) -> None:
    async with asyncio.timeout(PATIENCE):
        async with Engine.open(url) as engine:
            thread = await engine.start_thread()
            agent = taking_turns(engine, AnswerBarrier(RUNS))
            responses = await asyncio.gather(*(agent.run(turn, thread=thread, on_conflict="fork") for turn in TURNS))
            threads = {response.thread.id: response.thread for response in responses}
            assert len(threads) == RUNS
            assert thread.id in threads
            for turn, response in zip(TURNS, responses, strict=True):
                assert await turns_of(response.thread) == [turn]
                await check_runs(response.thread)
            assert {each.id for each in await thread.forks()} == set(threads) - {thread.id}


async def test_all_runs_but_one_are_refused_before_any_model_call(url: str) -> None:
    async with asyncio.timeout(PATIENCE):
        async with Engine.open(url) as engine:
            thread = await engine.start_thread()
            gate = Gate()
            agent = taking_turns(engine, gate)
            tasks = [asyncio.create_task(agent.run(turn, thread=thread)) for turn in TURNS]
            done: set[asyncio.Task[Any]] = set()
            while len(done) < RUNS - 1:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                await asyncio.sleep(0)
            assert all(isinstance(task.exception(), RunInProgressError) for task in done)
            assert requests_of(agent) == 1
            gate.opened.set()
            (winner,) = set(tasks) - done
            response = await winner
            assert await turns_of(thread) == [response.text.removeprefix("done ")]
            assert requests_of(agent) == 2
            await check_runs(thread)


async def _runs(
    url: str,
    thread_id: str,
    turns: list[str],
    on_conflict: OnConflict,
    ask: bool,  # noqa: FBT001  # positional, before the wire
    pipe: Pipe,
) -> None:
    """Do the work of one process: start all runs on command and report the outcome of each."""
    run_admission._POLL_SECONDS = 10 * PATIENCE
    released = asyncio.Event()

    async def asked(turn: str) -> None:
        pipe.say("asked", turn)
        await released.wait()

    async def one(agent: Any, thread: Any, turn: str) -> None:
        try:
            response = await agent.run(turn, thread=thread, on_conflict=on_conflict)
        except ConflictError as error:
            pipe.say("refused", type(error).__name__)
        else:
            pipe.say("done", turn, response.thread.id)

    async with Engine.open(url) as engine:
        agent = taking_turns(engine, asked if ask else None)
        thread = await engine.thread(thread_id)
        pipe.say("ready")
        await pipe.hear()
        tasks = [asyncio.create_task(one(agent, thread, turn)) for turn in turns]
        if ask:
            await pipe.hear()
            released.set()
        await asyncio.gather(*tasks)
    pipe.say("requests", requests_of(agent))


class TwoProcesses:
    """Two processes that start ten runs each at the same time."""

    def __init__(self, url: str, thread_id: str, on_conflict: OnConflict, *, ask: bool) -> None:
        self.children = [
            Child(partial(_runs, url, thread_id, part, on_conflict, ask)) for part in (TURNS[::2], TURNS[1::2])
        ]
        for child in self.children:
            assert child.heard() == ["ready"]
        self.go()

    def go(self) -> None:
        for child in self.children:
            child.say("go")

    def heard(self, *counts: int) -> list[list[Any]]:
        """Return this many reported lines of each process, sorted."""
        lines = [child.heard() for child, count in zip(self.children, counts, strict=True) for _ in range(count)]
        return sorted(lines, key=str)

    def end(self) -> None:
        assert [child.wait() for child in self.children] == [0, 0]


async def _start_thread(url: str) -> str:
    async with Engine.open(url) as engine:
        return (await engine.start_thread()).id


async def test_waiting_runs_of_two_processes_execute_one_after_the_other(file_url: str) -> None:
    thread_id = await _start_thread(file_url)
    two = TwoProcesses(file_url, thread_id, "wait", ask=False)
    lines = two.heard(RUNS // 2 + 1, RUNS // 2 + 1)
    two.end()
    assert lines[:RUNS] == sorted((["done", turn, thread_id] for turn in TURNS), key=str)
    assert lines[RUNS:] == [["requests", RUNS]] * 2
    async with Engine.open(file_url) as engine:
        thread = await engine.thread(thread_id)
        assert sorted(await turns_of(thread), key=int) == TURNS
        await check_runs(thread)
        assert (await engine.verify()).first_bad is None


async def test_forking_runs_of_two_processes_use_twenty_threads(file_url: str) -> None:
    thread_id = await _start_thread(file_url)
    two = TwoProcesses(file_url, thread_id, "fork", ask=True)
    asked = two.heard(RUNS // 2, RUNS // 2)
    assert asked == sorted((["asked", turn] for turn in TURNS), key=str)
    two.go()
    lines = two.heard(RUNS // 2 + 1, RUNS // 2 + 1)[:RUNS]
    two.end()
    async with Engine.open(file_url) as engine:
        for kind, turn, branch in lines:
            assert kind == "done"
            assert await turns_of(await engine.thread(branch)) == [turn]
            await check_runs(await engine.thread(branch))
        assert len({branch for _, _, branch in lines}) == RUNS
        assert thread_id in {branch for _, _, branch in lines}


async def test_all_runs_but_one_of_two_processes_are_refused_before_any_model_call(file_url: str) -> None:
    thread_id = await _start_thread(file_url)
    two = TwoProcesses(file_url, thread_id, "raise", ask=True)
    lines = two.heard(RUNS // 2, RUNS // 2)
    (asked,) = [line for line in lines if line[0] == "asked"]
    assert [line for line in lines if line != asked] == [["refused", "RunInProgressError"]] * (RUNS - 1)
    two.go()
    won = [asked[1] in part for part in (TURNS[::2], TURNS[1::2])]
    rest = two.heard(*(2 if each else 1 for each in won))
    two.end()
    assert rest == [["done", asked[1], thread_id], ["requests", 0], ["requests", 2]]
    async with Engine.open(file_url) as engine:
        thread = await engine.thread(thread_id)
        assert await turns_of(thread) == [asked[1]]
        await check_runs(thread)


async def wait_for_submitted_run(thread: LocalThread) -> None:
    """Wait until the start of a run was submitted to the writer."""
    while (await thread.runs.control()).run is None:  # noqa: ASYNC110  # no event signals it
        await asyncio.sleep(0)


async def test_a_run_whose_start_is_being_written_does_not_look_orphaned(
    file_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process knows the run already, but its lease is not stored yet."""
    read_lease, gate, paused = ThreadRuns.lease, Gate(), ExitStack()

    async def lease(log: ThreadRuns) -> Lease | None:
        result = await read_lease(log)
        paused.close()
        await gate.reached.wait()
        return result

    async with asyncio.timeout(PATIENCE), Engine.open(file_url) as engine:
        thread = await engine.start_thread()
        datastore: Any = engine._core.log.recorder.datastore  # type: ignore[attr-defined]  # its writer
        with paused:
            paused.enter_context(datastore.lock.held())
            first = asyncio.create_task(taking_turns(engine, gate).run("one", thread=thread))
            await wait_for_submitted_run(thread)
            monkeypatch.setattr(ThreadRuns, "lease", lease)
            with pytest.raises(RunInProgressError):
                await taking_turns(engine).run("two", thread=thread)
        gate.opened.set()
        assert (await first).text == "done one"
        assert await turns_of(thread) == ["one"]
        monkeypatch.undo()
        await check_runs(thread)
