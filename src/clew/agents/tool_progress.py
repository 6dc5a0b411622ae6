"""The progress that tools report while they run: an update for each report, and now and then an event on the log."""

from __future__ import annotations

import asyncio
import json
import math
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from clew.agents.journal import Emit
from clew.agents.response import AgentUpdate
from clew.domain.decider import Actor, Advance
from clew.domain.decider_state import CallLocation
from clew.domain.errors import ClewError, InvalidContentError
from clew.domain.json_values import Json, check_json
from clew.domain.models.client import joined
from clew.domain.runs.events import ToolProgressed
from clew.domain.runs.ports import RunLog
from clew.domain.runs.state import CallState

RECORDED_SECONDS = 1.0
"""The least time between two events of one call."""

GROWTH = 0.1
"""The least time between two events as a part of the time since the first report: an hour has about 70 events."""

MAX_TEXT = 1_000
"""The most characters of a report's text. The rest is cut off."""

MAX_DATA = 10_000
"""The most bytes of a report's data as JSON."""

_MOST_WAITING = 100
"""The most reports that wait for a reader. Of more, the oldest are dropped."""


def progressed(place: CallLocation, text: str, fraction: float | None, data: Json) -> ToolProgressed:
    """The event of a report. Raises InvalidContentError."""
    if fraction is not None and not (math.isfinite(fraction) and 0 <= fraction <= 1):
        raise InvalidContentError(f"progress: fraction={fraction!r} is not a part of the whole. Give 0 to 1.")
    check_json(data, "data")
    if len(json.dumps(data, ensure_ascii=False).encode()) > MAX_DATA:
        raise InvalidContentError(f"progress: data has more than {MAX_DATA:,} bytes as JSON. Give less.")
    text = joined([text])[:MAX_TEXT]
    return ToolProgressed(message=place.message, index=place.content, text=text, fraction=fraction, data=data)


class _Report(NamedTuple):
    call: CallState
    event: ToolProgressed


class ToolProgress:
    """The reports of the calls that one answer makes."""

    def __init__(self, log: RunLog, emit: Emit | None, run_id: str, attempt: int, by: Actor | None) -> None:
        self._log = log
        self._emit = emit
        self._run = run_id, attempt
        self._by = by
        self._waiting: deque[_Report] = deque(maxlen=_MOST_WAITING)
        self._newest: dict[CallLocation, _Report] = {}
        """The newest report of each call that is not on the log."""
        self._began: dict[CallLocation, float] = {}
        self._next: dict[CallLocation, float] = {}
        """When the next event of each call may be recorded."""
        self._over: set[CallLocation] = set()
        self._turn = asyncio.Lock()
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    def take(self, call: CallState, event: ToolProgressed) -> None:
        """Take a report."""
        if self._stopped or call.place in self._over:
            return
        self._waiting.append(_Report(call, event))
        self._woken.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())

    async def settle(self, places: Iterable[CallLocation]) -> None:
        """Emit what these calls have reported. They are over, and nothing more of them is recorded."""
        async with self._turn:
            await self._emit_waiting()
            for place in places:
                self._over.add(place)
                self._newest.pop(place, None)

    async def stop(self) -> None:
        """Stop: nothing more is emitted or recorded."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _work(self) -> None:
        while self._waiting or self._newest:
            self._woken.clear()
            async with self._turn:
                await self._emit_waiting()
                with suppress(ClewError):  # the run itself finds out at its next write
                    await self._record(asyncio.get_running_loop().time())
            if self._newest:
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(min(self._next[place] for place in self._newest)):
                        await self._woken.wait()

    async def _emit_waiting(self) -> None:
        while self._waiting:
            report = self._waiting.popleft()
            if report.call.place in self._over:
                continue
            self._newest[report.call.place] = report
            if self._emit is not None:
                await self._emit(progress_update(report.event, report.call.call.call_id, report.call.call.name))

    async def _record(self, now: float) -> None:
        due = [place for place in self._newest if now >= self._next.get(place, now)]
        if not due:
            return
        steps = tuple(self._newest.pop(place).event for place in due)
        for place in due:
            elapsed = now - self._began.setdefault(place, now)
            self._next[place] = now + max(RECORDED_SECONDS, GROWTH * elapsed)
        await self._log.record([Advance(*self._run, steps, self._by)])


def progress_update(event: ToolProgressed, call_id: str, name: str, position: str = "") -> AgentUpdate:
    """The update of a report."""
    return AgentUpdate(
        "progress", event.text, call_id, name, position=position, fraction=event.fraction, data=event.data
    )
