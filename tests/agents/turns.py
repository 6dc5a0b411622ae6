"""Runs that others run beside: turns that can be told apart, models that wait, and processes of their own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

from clew import Agent, Engine, ScriptedChatClient, tool
from clew.aio.threads import Thread
from clew.domain.events import MESSAGE_APPENDED, Event
from clew.domain.json_values import JsonObject
from clew.infrastructure import clock
from clew.infrastructure.scripted_client import Line, call

PATIENCE = 30.0
"""Seconds after which a test gives up: never reached by what works."""

SECOND = 1_000_000


@tool
async def note(turn: str) -> str:
    """Note a turn."""
    await asyncio.sleep(0)
    return f"noted {turn}"


Asked = Callable[[str], Awaitable[None]]
"""Is told of each turn that a model is asked about, and may let it wait."""


def taking_turns(engine: Engine, asked: Asked | None = None, *, name: str | None = None) -> Agent:
    """An agent that answers each turn in four messages, of which every one names the turn."""

    async def answer(body: JsonObject) -> Line:
        messages: Any = body["messages"]
        await asyncio.sleep(0)
        if messages[-1]["role"] == "tool":
            return f"done {messages[-1]['content'].removeprefix('noted ')}"
        turn = messages[-1]["content"]
        if asked is not None:
            await asked(turn)
        return call("note", turn=turn)

    return Agent(client=ScriptedChatClient(answer), engine=engine, name=name or "turns", tools=[note])


def requests_of(agent: Agent) -> int:
    """How often the agent's model was asked."""
    client: Any = agent.client
    return len(client.requests)


async def events_of(thread: Thread) -> list[Event]:
    """The events of a thread's lineage."""
    return [event async for event in thread.events()]


async def turns_of(thread: Thread) -> list[str]:
    """The turns of a thread, one after the other; fails when one is not whole, or another lies in between."""
    messages = [each.message for each in await thread.history() if each.message is not None]
    found: list[str] = []
    for first in range(0, len(messages), 4):
        four = messages[first : first + 4]
        assert [each.role for each in four] == ["user", "assistant", "tool", "assistant"]
        turn = four[0].text
        assert [json.loads(each.arguments) for each in four[1].calls] == [{"turn": turn}]
        assert [each.result for each in four[2].results] == [f"noted {turn}"]
        assert four[3].text == f"done {turn}"
        found.append(turn)
    return found


async def check_runs(thread: Thread, *, others: int = 0) -> None:
    """Each run's events lie together on the path, but for so many of others; none is open, and nobody has the lease."""
    runs = [event.run_id for event in await events_of(thread) if event.run_id is not None]
    changes = [run for run, before in zip(runs, [None, *runs], strict=False) if run != before]
    assert len(changes) == len(set(runs)) + others
    assert (await thread.runs.control(fresh=True)).run is None
    assert await thread.runs.lease() is None


def types_of(events: Iterable[Event]) -> list[str]:
    """The types of events, without messages."""
    return [event.type for event in events if event.type != MESSAGE_APPENDED]


class ShiftedClock:
    """The clock, but so many seconds on."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def __call__(self) -> int:
        return clock.now() + round(self.seconds * SECOND)


class Gate:
    """Where a model waits until it is let through."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    async def __call__(self, _turn: str = "") -> None:
        """Wait here."""
        self.reached.set()
        await self.opened.wait()


class Wire:
    """What a child process and its parent say to each other: lines of JSON, each way."""

    def __init__(self, read: int, write: int) -> None:
        self._read = os.fdopen(read)
        self._write = write

    def say(self, *said: Any) -> None:
        """Say something to the other."""
        os.write(self._write, f"{json.dumps(said)}\n".encode())

    def heard(self) -> list[Any]:
        """What the other says next; waits for it."""
        line = self._read.readline()
        assert line, "the other process has ended: see what it printed"
        found: list[Any] = json.loads(line)
        return found

    async def hear(self) -> list[Any]:
        """The same, without holding the loop."""
        return await asyncio.get_running_loop().run_in_executor(None, self.heard)

    def close(self) -> None:
        """Say and hear nothing more."""
        self._read.close()
        os.close(self._write)


class Child(Wire):
    """A process of its own that does some work; it ends without going on in what its parent was doing."""

    def __init__(self, work: Callable[[Wire], Coroutine[Any, Any, None]]) -> None:
        theirs_read, my_write = os.pipe()
        my_read, theirs_write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(my_read)
            os.close(my_write)
            code = 1
            try:
                asyncio.run(work(Wire(theirs_read, theirs_write)))
                code = 0
            except BaseException:  # noqa: BLE001  # nothing of the parent's is to go on in here
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(theirs_read)
        os.close(theirs_write)
        super().__init__(my_read, my_write)

    def kill(self) -> None:
        """End it as the power would."""
        os.kill(self.pid, signal.SIGKILL)
        assert self.wait() == -signal.SIGKILL

    def wait(self) -> int:
        """Wait for its end; returns its exit code."""
        _, status = os.waitpid(self.pid, 0)
        self.close()
        return os.waitstatus_to_exitcode(status)
