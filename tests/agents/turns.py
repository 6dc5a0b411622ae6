"""Helpers for concurrent runs: distinguishable turns, models that wait, and child processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

import pytest

from clew import Agent, Engine, ScriptedChatClient, tool
from clew.agents import journal
from clew.aio.threads import Thread
from clew.domain.events import MESSAGE_APPENDED, Event
from clew.domain.json_values import JsonObject
from clew.infrastructure import clock
from clew.infrastructure.scripted_client import Line, call
from clew.service.run_log import ThreadRuns

PATIENCE = 30.0
"""Seconds after which a test gives up; working code never needs them."""

SECOND = 1_000_000


@tool
async def note(turn: str) -> str:
    """Note a turn."""
    await asyncio.sleep(0)
    return f"noted {turn}"


OnTurn = Callable[[str], Awaitable[None]]
"""Called with each turn before the model answers; it may delay the answer."""


def taking_turns(engine: Engine, on_turn: OnTurn | None = None, *, name: str | None = None) -> Agent:
    """Return an agent whose turns have four messages, each of which names the turn."""

    async def answer(body: JsonObject) -> Line:
        messages: Any = body["messages"]
        await asyncio.sleep(0)
        if messages[-1]["role"] == "tool":
            return f"done {messages[-1]['content'].removeprefix('noted ')}"
        turn = messages[-1]["content"]
        if on_turn is not None:
            await on_turn(turn)
        return call("note", turn=turn)

    return Agent(client=ScriptedChatClient(answer), engine=engine, name=name or "turns", tools=[note])


def requests_of(agent: Agent) -> int:
    """Return the number of requests to the agent's model."""
    client: Any = agent.client
    return len(client.requests)


async def events_of(thread: Thread) -> list[Event]:
    """Return the events of a thread's lineage."""
    return [event async for event in thread.events()]


async def turns_of(thread: Thread) -> list[str]:
    """Return the turns of a thread in order; fail if one is incomplete or interleaved with another."""
    messages = [each.message for each in await thread.history() if each.message is not None]
    turns: list[str] = []
    for first in range(0, len(messages), 4):
        four = messages[first : first + 4]
        assert [each.role for each in four] == ["user", "assistant", "tool", "assistant"]
        turn = four[0].text
        assert [json.loads(each.arguments) for each in four[1].calls] == [{"turn": turn}]
        assert [each.result for each in four[2].results] == [f"noted {turn}"]
        assert four[3].text == f"done {turn}"
        turns.append(turn)
    return turns


async def check_runs(thread: Thread, *, others: int = 0) -> None:
    """Check that each run's events are contiguous, with ``others`` gaps, and that no run is open or has a lease."""
    runs = [event.run_id for event in await events_of(thread) if event.run_id is not None]
    changes = [run for run, before in zip(runs, [None, *runs], strict=False) if run != before]
    assert len(changes) == len(set(runs)) + others
    assert (await thread.runs.control(fresh=True)).run is None
    assert await thread.runs.lease() is None


def watch_drafts(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Let runs store a draft after each part of an answer; the event is set once one is stored."""
    monkeypatch.setattr(journal, "DRAFT_SECONDS", 0.0)
    drafted = asyncio.Event()
    put = ThreadRuns.put_draft

    async def put_draft(*args: Any) -> None:
        await put(*args)
        drafted.set()

    monkeypatch.setattr(ThreadRuns, "put_draft", put_draft)
    return drafted


def types_of(events: Iterable[Event]) -> list[str]:
    """Return the types of events, without messages."""
    return [event.type for event in events if event.type != MESSAGE_APPENDED]


class ShiftedClock:
    """A clock that is ahead by this many seconds."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def __call__(self) -> int:
        return clock.now() + round(self.seconds * SECOND)


class Gate:
    """A gate at which a model waits until it is opened."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    async def __call__(self, _turn: str = "") -> None:
        """Report the arrival and wait until the gate is open."""
        self.reached.set()
        await self.opened.wait()


class Pipe:
    """A two-way connection of a child process and its parent, with lines of JSON."""

    def __init__(self, read: int, write: int) -> None:
        self._read = os.fdopen(read)
        self._write = write

    def say(self, *values: Any) -> None:
        """Send a line to the other process."""
        os.write(self._write, f"{json.dumps(values)}\n".encode())

    def heard(self) -> list[Any]:
        """Receive the next line of the other process."""
        line = self._read.readline()
        assert line, "the other process has ended: see its output"
        values: list[Any] = json.loads(line)
        return values

    async def hear(self) -> list[Any]:
        """Receive the next line without blocking the event loop."""
        return await asyncio.get_running_loop().run_in_executor(None, self.heard)

    def close(self) -> None:
        """Close the connection."""
        self._read.close()
        os.close(self._write)


class Child(Pipe):
    """A child process that does some work; it never continues its parent's code."""

    def __init__(self, work: Callable[[Pipe], Coroutine[Any, Any, None]]) -> None:
        theirs_read, my_write = os.pipe()
        my_read, theirs_write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(my_read)
            os.close(my_write)
            code = 1
            try:
                asyncio.run(work(Pipe(theirs_read, theirs_write)))
                code = 0
            except BaseException:  # noqa: BLE001  # the child must not run the parent's code
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(theirs_read)
        os.close(theirs_write)
        super().__init__(my_read, my_write)

    def kill(self) -> None:
        """Kill the process like a power failure."""
        os.kill(self.pid, signal.SIGKILL)
        assert self.wait() == -signal.SIGKILL

    def wait(self) -> int:
        """Wait for the end of the process; return its exit code."""
        _, status = os.waitpid(self.pid, 0)
        self.close()
        return os.waitstatus_to_exitcode(status)
