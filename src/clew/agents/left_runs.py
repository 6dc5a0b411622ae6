"""The runs whose process has ended: which they are, and how a service that starts continues them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from clew.domain.errors import ThreadDeletedError, UnknownThreadError
from clew.domain.runs.errors import ApprovalPendingError, NoOpenRunError
from clew.domain.runs.events import RunStarted
from clew.domain.runs.ports import EnginePort

RunT = TypeVar("RunT")


async def continue_left_runs(
    engine: EnginePort[Any, Any],
    is_own: Callable[[RunStarted], bool],
    continue_run: Callable[[Any], Awaitable[RunT]],
) -> list[RunT]:
    """Continue what was in progress on all threads with a lease, as far as the outermost run is the agent's own.

    Raises an ExceptionGroup of the errors of runs that cannot be continued, after the others continue.
    """
    left = await asyncio.gather(*(_outermost(engine, id_, is_own) for id_ in await engine.threads_with_lease()))
    ids = dict.fromkeys(id_ for id_ in left if id_ is not None)
    continued = await asyncio.gather(*(_continued(engine, id_, continue_run) for id_ in ids), return_exceptions=True)
    if errors := [each for each in continued if isinstance(each, Exception)]:
        raise ExceptionGroup("continue_runs: some runs cannot be continued", errors)
    return [each for each in continued if each is not None and not isinstance(each, BaseException)]


async def _outermost(engine: EnginePort[Any, Any], thread_id: str, is_own: Callable[[RunStarted], bool]) -> str | None:
    """The thread of the run that has called, also through others, the open one of a thread; None without one."""
    try:
        log = (await engine.thread(thread_id)).runs
        while True:
            run = (await log.control(fresh=True)).run
            started = None if run is None else (await log.event(run.began)).data
            if not isinstance(started, RunStarted):
                return None
            if started.caller is None:
                return log.thread_id if is_own(started) else None
            log = await log.outer(started.caller)
    except (UnknownThreadError, ThreadDeletedError):
        return None


async def _continued(
    engine: EnginePort[Any, Any], thread_id: str, continue_run: Callable[[Any], Awaitable[RunT]]
) -> RunT | None:
    """The run that was in progress on a thread; None if it is over, or waits for approvals."""
    try:
        return await continue_run(await engine.thread(thread_id))
    except (NoOpenRunError, ApprovalPendingError, ThreadDeletedError):
        return None
