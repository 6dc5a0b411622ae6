"""Runs that continue when their caller is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, cast

from clew.agents.admission import Admission
from clew.agents.journal import Emit
from clew.agents.response import AgentResponse, AgentUpdate, ThreadT_co
from clew.agents.stream import retrieve_outcome
from clew.domain.runs.errors import RunStoppedError
from clew.domain.runs.ports import ThreadT

_tasks: set[asyncio.Task[Any]] = set()
"""The tasks of all background runs: the event loop itself keeps only weak references."""


async def _discard(update: AgentUpdate) -> None:
    """Emit nothing: the answer is streamed, so that others can follow it on the log."""


class BackgroundRun(Generic[ThreadT_co]):
    """A run that continues when its caller is gone: ``await agent.run(…, background=True)``.

    ``run_id`` and ``thread`` name it in any process: ``thread.follow(run_id)``. It belongs to this process's event
    loop: if that ends, ``agent.continue_run(thread)`` continues the run.
    """

    def __init__(self, task: asyncio.Task[AgentResponse[ThreadT_co]], admission: Admission, agent: Any) -> None:
        if admission.thread is None:
            raise AssertionError(admission)  # the caller has waited
        self.run_id = admission.run_id
        self.thread: ThreadT_co = cast("ThreadT_co", admission.thread.bound_to(agent))
        self._task = task
        self._admission = admission

    @property
    def done(self) -> bool:
        """Whether this process has nothing more to do for the run: it ended, or waits for approvals."""
        return self._task.done()

    async def response(self) -> AgentResponse[ThreadT_co]:
        """Wait for the run, and return its response. A cancelled wait stops nothing.

        Raises the errors of the run, and RunStoppedError after it was stopped.
        """
        await asyncio.wait([self._task])
        if self._task.cancelled():
            raise RunStoppedError
        return self._task.result()

    async def stop(self) -> None:
        """Stop the run, and wait until that is recorded. Does nothing when it is over."""
        if self._task.done():
            return
        if self._admission.run is not None:
            self._admission.run.stop()
        self._task.cancel()
        await asyncio.wait([self._task])


async def begin_in_background(
    execute: Callable[[Emit, Admission], Awaitable[AgentResponse[ThreadT]]], agent: Any
) -> BackgroundRun[ThreadT]:
    """Begin a run, and return when it is on the log. Raises the error of a run that is refused."""
    admission = Admission()
    task = asyncio.ensure_future(execute(_discard, admission))
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    task.add_done_callback(retrieve_outcome)
    await admission.wait(task)
    return BackgroundRun(task, admission, agent)
