"""Run admission: when a run may begin or continue on a thread on which another run may be under way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from clew.agents.configuration_changes import check_providers, run_started
from clew.agents.journal import Emit
from clew.agents.run_loop import Run, live_runs, unrecorded_ends
from clew.agents.run_options import OnConflict
from clew.agents.run_setup import RunSetup
from clew.agents.thread_provider_hooks import OrphanedRun, notify_abandoned
from clew.domain.decider import Advance
from clew.domain.decider_state import Control, OpenRun, holder_of
from clew.domain.errors import ConflictError
from clew.domain.messages import Message
from clew.domain.ports import Lease
from clew.domain.runs.drafts import interrupted
from clew.domain.runs.errors import ApprovalPendingError, NoOpenRunError, RunInProgressError, RunTakenOverError
from clew.domain.runs.events import AnswerInterrupted, RunAbandoned, RunResumed
from clew.domain.runs.ports import Holding, RunLog, ThreadPort, ThreadT
from clew.domain.runs.state import RunState, fold

_POLL_SECONDS = 1.0
"""Seconds after which a waiting run checks whether the other run still holds its lease."""


async def begin_run(
    setup: RunSetup,
    thread: ThreadT,
    run_id: str,
    inputs: Sequence[Message],
    *,
    on_conflict: OnConflict,
    abandon: bool,
    emit: Emit | None,
    on_start: Callable[[Run], None] | None,
) -> tuple[Run, ThreadT]:
    """Carry out a new run; returns it with its thread, which is a new one after ``fork``.

    A run that crashed is abandoned first. Raises RunInProgressError, or ApprovalPendingError for a run that waits for
    approvals, unless ``abandon`` gives it up.
    """
    fresh = False
    while True:
        if fresh or (await thread.runs.control()).run is not None:
            thread = await _free_thread(setup, thread, on_conflict, abandon=abandon)
        on_thread = setup.for_thread(thread)
        run = Run(on_thread, thread, RunState(run_id), emit)
        run.journal.add(await run_started(on_thread, run.journal), *inputs)
        try:
            await run.carry_out(on_start)
        except ConflictError:
            if run.state.began:
                raise
            fresh = True  # another run began first
        else:
            return run, thread


async def resume_run(
    thread: ThreadPort,
    *,
    on_conflict: OnConflict,
    emit: Emit | None,
    on_start: Callable[[Run], None] | None,
    prepare: Callable[[RunState], Awaitable[RunSetup]],
) -> Run:
    """Continue the open run of a thread from the log; ``prepare`` returns the setup for it. Raises NoOpenRunError."""
    log = thread.runs
    while True:
        control = await log.control(fresh=True)
        if control.run is None:
            raise NoOpenRunError(log.thread_id)
        lease = await log.lease()
        if lease is not None:
            await _wait_for_lease(log, control, lease, on_conflict)
            continue
        state = fold(control.run.id, await log.events(control.run.began - 1))
        if undecided := _undecided(state):
            raise ApprovalPendingError(log.thread_id, undecided)
        setup = await prepare(state)
        if _lost_calls(control.run, state):
            await _abandon(setup, thread, control.run, asked=False)
            continue
        on_thread = setup.for_thread(thread)
        await check_providers(on_thread, log, state.run_id)
        run = Run(on_thread, thread, state, emit, control.run.attempt + 1)
        cut_off = await _cut_off(log, control.run)
        before = [Advance(state.run_id, control.run.attempt, cut_off)] if cut_off else []
        run.journal.add(RunResumed(attempt=run.journal.attempt, agent=setup.identity, fingerprint=setup.fingerprint))
        try:
            await run.carry_out(on_start, before)
        except ConflictError:
            if run.resumed:
                raise
            # Another process continued it first, or it is over: look again.
        else:
            return run


async def _free_thread(setup: RunSetup, thread: ThreadT, on_conflict: OnConflict, *, abandon: bool) -> ThreadT:
    """The thread, or a fork of it, once no run is under way there; a run that crashed is abandoned."""
    log = thread.runs
    while True:
        # From the log: a run that this process has handed to its writer has no visible lease yet.
        control = await log.control(fresh=True)
        run = control.run
        lease = await log.lease()
        if lease is not None:
            if on_conflict == "fork" and not await _is_over(log, lease):
                return await thread.branch(control.version if run is None else run.began - 1)
            await _wait_for_lease(log, control, lease, on_conflict)
        elif run is None:
            return thread
        else:
            # A run that began after the control was read has a lease that was not visible either.
            now = (await log.control(fresh=True)).run
            if now is not None and (now.id, now.attempt) == (run.id, run.attempt):
                await _abandon(setup, thread, now, asked=abandon)


async def _wait_for_lease(log: RunLog, control: Control, lease: Lease, on_conflict: OnConflict) -> None:
    """Wait for the holder of the lease if ``on_conflict`` says so. Code that a run calls cannot wait for that run."""
    if await _is_over(log, lease):
        return
    live = live_runs.get(lease.holder)
    if on_conflict != "wait" or (live is not None and live.encloses_caller):
        raise RunInProgressError(log.thread_id, f"run {lease.holder}")
    await log.changed(control.version, _POLL_SECONDS)


async def _is_over(log: RunLog, lease: Lease) -> bool:
    """Whether the lease belongs to a run of this process that has ended. While it records its end, wait for that.

    The lease of a run whose end could not be recorded is released here.
    """
    if lease.holder in unrecorded_ends:
        await log.hold(Holding(lease.holder, 0))
        unrecorded_ends.discard(lease.holder)
        return True
    run = live_runs.get(lease.holder)
    if run is None or not run.in_this_loop or not run.ending or run.encloses_caller:
        return False
    if run.over.is_set():
        del live_runs[lease.holder]  # its lease should be gone: if it is still there next time, it was not released
    await run.over.wait()
    return True


async def _abandon(setup: RunSetup, thread: ThreadPort, run: OpenRun, *, asked: bool) -> None:
    """Abandon a run that no process executes, and notify the context providers that served it.

    Raises ApprovalPendingError for a run that waits for approvals, unless ``asked`` to give it up.
    """
    log = thread.runs
    state = fold(run.id, await log.events(run.began - 1))
    waits = any(call.status in {"asked", "approved", "rejected"} for call in state.calls)
    if waits and not asked:
        raise ApprovalPendingError(log.thread_id, _undecided(state))
    reason = "superseded" if waits else "redacted" if _lost_calls(run, state) else "crashed"
    hooks = await notify_abandoned(
        OrphanedRun(state, await log.history()),
        thread,
        setup.for_thread(thread).providers.all,
        setup.identity,
        reason=reason,
        actor=setup.actor,
    )
    left = [*hooks.steps, *hooks.unrecorded_states(with_seen=True)]
    steps = (*await _cut_off(log, run), *left, RunAbandoned(reason=reason))
    try:
        holding = Holding(holder_of(run), 0)
        await log.record([Advance(run.id, run.attempt, steps)], holding=holding, drop_draft=run.id)
    except RunTakenOverError:
        return  # another process has abandoned it


def _undecided(state: RunState) -> list[int]:
    """The requests for approval that are not decided."""
    return [call.request for call in state.calls if call.status == "asked"]


def _lost_calls(run: OpenRun, state: RunState) -> bool:
    """Whether the message with the run's open calls was redacted: nobody knows what the calls were."""
    return state.lost or (bool(run.asked or run.tools) and not state.calls)


async def _cut_off(log: RunLog, run: OpenRun) -> tuple[Message | AnswerInterrupted, ...]:
    """What to record of an answer that was arriving when its process ended."""
    return interrupted(run, await log.draft(), "crashed") if run.call else ()
