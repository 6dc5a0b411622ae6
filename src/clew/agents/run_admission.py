"""How a run begins, or is gone on with, on a thread that somebody else may be running on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, TypeAlias
from weakref import WeakValueDictionary

from clew.agents.journal import Emit
from clew.agents.missing_providers import check_supplied, left_by_providers, run_started
from clew.agents.run_loop import Run
from clew.agents.run_setup import Setup
from clew.domain.control import Control
from clew.domain.decider import Advance, Intent
from clew.domain.errors import ConflictError, StoreError
from clew.domain.messages import Message
from clew.domain.ports import Lease
from clew.domain.runs.drafts import interrupted
from clew.domain.runs.errors import (
    ApprovalPendingError,
    NoOpenRunError,
    RunInProgressError,
    RunTakenOverError,
)
from clew.domain.runs.events import AnswerInterrupted, RunAbandoned, RunResumed
from clew.domain.runs.open_run import OpenRun, holder_of
from clew.domain.runs.ports import Holding, RunLog, ThreadPort, ThreadT
from clew.domain.runs.state import RunState, fold

OnConflict: TypeAlias = Literal["raise", "wait", "fork"]
"""What a run does when another one is under way on its thread."""

_LOOKS_AGAIN = 1.0
"""Seconds after which a run that waits for another looks whether that still holds its lease."""

_live: WeakValueDictionary[str, Run] = WeakValueDictionary()
"""The runs of this process, by who holds their leases."""

_unrecorded: set[str] = set()
"""Who may hold the lease of a run of this process that is over, and that the store did not take the end of."""


async def begin_run(
    setup: Setup,
    thread: ThreadT,
    run_id: str,
    inputs: Sequence[Message],
    *,
    on_conflict: OnConflict,
    abandon: bool,
    emit: Emit | None,
    started: Callable[[Run], None],
) -> tuple[Run, ThreadT]:
    """Carry out a new run; returns it with the thread that it was on, which is a new one after ``fork``.

    A run that crashed is closed first. Raises RunInProgressError, or ApprovalPendingError for one that waits, unless it
    is to be abandoned.
    """
    fresh = False
    while True:
        thread = await _free(setup, thread, on_conflict, abandon=abandon, fresh=fresh)
        serving = setup.serving(thread)
        run = Run(serving, thread, RunState(run_id), emit)
        run.recording.add(await run_started(serving, run.recording), *inputs)
        try:
            await _carry_out(run, started)
        except ConflictError:
            if run.state.began:
                raise
            fresh = True  # somebody else was first: look what they do
        else:
            return run, thread


async def resume_run(
    thread: ThreadPort,
    *,
    on_conflict: OnConflict,
    emit: Emit | None,
    started: Callable[[Run], None],
    prepare: Callable[[RunState], Awaitable[Setup]],
) -> Run:
    """Go on with the open run of a thread, from the log; ``prepare`` says with what. Raises NoOpenRunError."""
    log = thread.runs
    while True:
        control = await log.control(fresh=True)
        if control.run is None:
            raise NoOpenRunError(log.thread_id)
        lease = await log.lease()
        if lease is not None:
            await _held(log, control, lease, on_conflict)
            continue
        state = fold(control.run.id, await log.events(control.run.began - 1))
        _check_decided(log, state)
        setup = await prepare(state)
        if _lost_calls(control.run, state):
            await _abandon(setup, thread, control.run, asked=False)
            continue
        serving = setup.serving(thread)
        await check_supplied(serving, log, state.run_id)
        run = Run(serving, thread, state, emit, control.run.attempt + 1)
        cut_off = await _cut_off(log, control.run)
        before = [Advance(state.run_id, control.run.attempt, cut_off)] if cut_off else []
        run.recording.add(
            RunResumed(attempt=run.recording.attempt, agent=setup.identity, fingerprint=setup.fingerprint)
        )
        try:
            await _carry_out(run, started, before)
        except ConflictError:
            if run.resumed:
                raise
            # Somebody else goes on with it, or it is over: look what is there.
        else:
            return run


async def _carry_out(run: Run, started: Callable[[Run], None], before: Sequence[Intent] | None = None) -> None:
    _live[run.recording.holder] = run
    started(run)
    try:
        await run.go(before)
    except StoreError:
        _unrecorded.add(run.recording.holder)
        raise


async def _free(setup: Setup, thread: ThreadT, on_conflict: OnConflict, *, abandon: bool, fresh: bool) -> ThreadT:
    """The thread, or a fork of it, when nobody runs on it; a run that crashed there is closed."""
    log = thread.runs
    if not fresh and (await log.control()).run is None:
        return thread  # what is written first says which version it expects
    while True:
        # From the log: a run that this process has only handed to its writer has no lease yet that could be seen.
        control = await log.control(fresh=True)
        run = control.run
        lease = await log.lease()
        if lease is not None:
            if on_conflict == "fork" and not await _closed(log, lease):
                return await thread.branch(control.version if run is None else run.began - 1)
            await _held(log, control, lease, on_conflict)
        elif run is None:
            return thread
        else:
            # One that began since the control was read has a lease that was not there to be seen.
            now = (await log.control(fresh=True)).run
            if now is not None and (now.id, now.attempt) == (run.id, run.attempt):
                await _abandon(setup, thread, now, asked=abandon)


async def _held(log: RunLog, control: Control, lease: Lease, on_conflict: OnConflict) -> None:
    """Wait for whoever holds the lease, if that is wanted; what a run does itself cannot wait for it."""
    if await _closed(log, lease):
        return
    live = _live.get(lease.holder)
    if on_conflict != "wait" or (live is not None and live.waits_for_caller):
        raise RunInProgressError(log.thread_id, f"run {lease.holder}")
    await log.changed(control.version, _LOOKS_AGAIN)


async def _closed(log: RunLog, lease: Lease) -> bool:
    """Whether the lease is of a run of this process that was ended and only has to record it: that is waited for.

    One that could not be recorded has no need of its lease.
    """
    if lease.holder in _unrecorded:
        await log.hold(Holding(lease.holder, 0))
        _unrecorded.discard(lease.holder)
        return True
    run = _live.get(lease.holder)
    if run is None or run.task is None or run.task.get_loop() is not asyncio.get_running_loop() or not run.ending:
        return False
    if run.waits_for_caller:
        return False
    if run.over.is_set():
        del _live[lease.holder]  # the lease should be gone: one that still stands next time was not let go of
    await run.over.wait()
    return True


async def recorded(mine: Callable[[RunLog], bool]) -> None:
    """Wait until the runs of this event loop that were ended, of those whose logs are ``mine``, have recorded it."""
    for run in list(_live.values()):
        here = run.task is not None and run.task.get_loop() is asyncio.get_running_loop()
        if here and run.ending and mine(run.recording.log):
            await run.over.wait()


async def _abandon(setup: Setup, thread: ThreadPort, run: OpenRun, *, asked: bool) -> None:
    """Close a run that nobody carries out any more, and tell the context providers that served it.

    Raises ApprovalPendingError for one that waits for somebody.
    """
    log = thread.runs
    state = fold(run.id, await log.events(run.began - 1))
    waits = any(call.status in {"asked", "approved", "rejected"} for call in state.calls)
    if waits and not asked:
        raise ApprovalPendingError(log.thread_id, _undecided(state))
    reason = "superseded" if waits else "redacted" if _lost_calls(run, state) else "crashed"
    left = await left_by_providers(setup.serving(thread), thread, state, reason)
    steps = (*await _cut_off(log, run), *left, RunAbandoned(reason=reason))
    try:
        holding = Holding(holder_of(run), 0)
        await log.record([Advance(run.id, run.attempt, steps)], holding=holding, drop_draft=run.id)
    except RunTakenOverError:
        return  # somebody else has closed it


def _undecided(state: RunState) -> list[int]:
    """The requests for approval that nobody has decided about."""
    return [call.request for call in state.calls if call.status == "asked"]


def _check_decided(log: RunLog, state: RunState) -> None:
    undecided = _undecided(state)
    if undecided:
        raise ApprovalPendingError(log.thread_id, undecided)


def _lost_calls(run: OpenRun, state: RunState) -> bool:
    """Whether the message whose calls the run is in the middle of was redacted: nobody knows what they were."""
    return state.lost or (bool(run.asked or run.tools) and not state.calls)


async def _cut_off(log: RunLog, run: OpenRun) -> tuple[Message | AnswerInterrupted, ...]:
    """What is to be recorded of an answer that was arriving when its process ended."""
    return interrupted(run, await log.draft(), "crashed") if run.call else ()
