"""The function calls of one answer, carried out side by side."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import NamedTuple

from clew.agents.tools import ToolOutcome
from clew.domain.runs.state import CallState

STOPPED = "Error: the call was stopped before it gave a result. Nobody knows how far it came."
"""What the model is told of a call that was under way when its run was stopped."""


class Carried(NamedTuple):
    """A call with what came of it, and how long that took."""

    call: CallState
    outcome: ToolOutcome
    milliseconds: int


def stopped(call: CallState) -> Carried:
    """A call that its run had begun when it was stopped."""
    return Carried(call, ToolOutcome(STOPPED, "CancelledError", reason="stopped"), 0)


class ToolRound:
    """Calls that are being carried out, each in a task of its own."""

    def __init__(self, calls: Sequence[CallState], carry: Callable[[CallState], Awaitable[ToolOutcome]]) -> None:
        self._carry = carry
        self._tasks = {asyncio.create_task(self._timed(call)): call for call in calls}

    async def results(self) -> AsyncIterator[tuple[list[Carried], bool]]:
        """What is done, as it gets done, with whether anything is still under way; in the order of the calls."""
        while self._tasks:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0)  # those that end in the same moment are written together
            done = self._take()
            yield done, bool(self._tasks)

    async def stop(self) -> list[Carried]:
        """End what is under way; returns all calls that were not handed out, also those that ended in time."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        return self._take()

    def _take(self) -> list[Carried]:
        done = [task for task in self._tasks if task.done()]
        found: list[Carried] = []
        for task in done:
            call = self._tasks.pop(task)
            if task.cancelled():
                found.append(stopped(call))
            else:
                found.append(task.result())
        return found

    async def _timed(self, call: CallState) -> Carried:
        began = time.monotonic()
        outcome = await self._carry(call)
        return Carried(call, outcome, round((time.monotonic() - began) * 1000))
