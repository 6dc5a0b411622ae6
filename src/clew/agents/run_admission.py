"""Run admission: whether a run may begin or continue on a thread, with which definitions and context providers."""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial, reduce
from operator import attrgetter
from typing import Any, Generic, NamedTuple

from clew.agents.admission import Admission
from clew.agents.followed_runs import Position, follow, read_runs
from clew.agents.handoffs import Handoff, find_handoff, setup_after
from clew.agents.journal import Emit, Journal, RunRepeatedError, Successor
from clew.agents.response import AgentResponse, approvals_of_child, pending_approvals
from clew.agents.run_loop import Run, abandon_children, live_runs, unrecorded_ends
from clew.agents.run_setup import OnConflict, RunSetup
from clew.agents.thread_provider_hooks import OrphanedRun, notify_abandoned
from clew.agents.tool_calls import calling
from clew.domain.context.state import OWN_IDS
from clew.domain.decider import Advance, Intent
from clew.domain.decider_state import Control, OpenRun, holder_of
from clew.domain.errors import ConflictError
from clew.domain.history import NotSeen
from clew.domain.messages import Message
from clew.domain.models.client import ResponseFormat
from clew.domain.ports import Lease
from clew.domain.runs.errors import (
    AgentChangedError,
    AgentChangedWarning,
    AgentConfigurationError,
    ApprovalPendingError,
    MissingProviderError,
    MissingProviderWarning,
    NoOpenRunError,
    RunInProgressError,
    RunNotCompletedError,
    RunTakenOverError,
    missing_words,
)
from clew.domain.runs.events import (
    AnswerInterrupted,
    ApprovalGiven,
    Fingerprint,
    HandedFrom,
    HandedOff,
    RunAbandoned,
    RunResumed,
    RunStarted,
)
from clew.domain.runs.ports import Holding, RunKey, RunLog, ThreadPort, ThreadT
from clew.domain.runs.request_construction import changed
from clew.domain.runs.state import RunState, fold, interrupted, joined_runs

_id = attrgetter("id")

_COMPARED_THREADS = 1_024

_POLL_SECONDS = 1.0
"""Seconds after which a waiting run checks whether the other run still holds its lease."""


class CarriedOut(NamedTuple, Generic[ThreadT]):
    """A run that has ended, or waits for approvals, with those of the agents to which it handed the conversation.

    ``run_id`` is that of the first one; ``state`` is that of the last one, with the messages and tokens of all.
    ``agent`` is the agent of the last one, None for the agent that was asked. ``response`` is what the middleware of
    another agent returned.
    """

    run_id: str
    state: RunState
    thread: ThreadT
    agent: Any = None
    response: AgentResponse[ThreadT] | None = None


class NewRun(NamedTuple):
    """A run that is asked for. ``abandon`` allows to abandon a run that waits for approvals.

    ``rewind_to`` is a version that the thread is rewound to first, or None.
    """

    run_id: str
    inputs: Sequence[Message]
    on_conflict: OnConflict = "raise"
    abandon: bool = False
    key: RunKey | None = None
    rewind_to: Any = None


async def begin_run(
    setup: RunSetup, thread: ThreadT, new: NewRun, *, emit: Emit | None, admission: Admission | None
) -> CarriedOut[ThreadT]:
    """Carry out a new run. If ``on_conflict`` is ``fork``, this can be a new thread.

    A run that crashed is abandoned first. Raises RunInProgressError, or ApprovalPendingError for a run that waits for
    approvals, unless it may be abandoned: then it is. Also raises what ``compare_with_last_run`` raises. With a key
    that an earlier run has, it returns that run: see ``_repeated``.
    """
    await compare_with_last_run(setup, thread)
    fresh = False
    while True:
        if new.key is not None and (began := await _began(thread, new.key)) is not None:
            return await _repeated(setup, thread, began, emit, admission)
        try:
            if fresh or (await thread.runs.control()).run is not None:
                thread = await _free_thread(setup, thread, new.on_conflict, abandon=new.abandon)
        except RunInProgressError:
            if await _began(thread, new.key) is None:
                raise
            continue  # it is the run that is asked for again
        at = thread if new.rewind_to is None else await thread.rewound(new.rewind_to)
        on_thread = setup.for_thread(at)
        run = Run(on_thread, at, RunState(new.run_id), emit)
        run.journal.key = new.key
        if thread.kind == "remote":
            await run.journal.leave_to_service()
        run.journal.add(await _run_started(on_thread, run.journal), *new.inputs)
        run.next_run = partial(_next_run, thread)
        try:
            await run.carry_out(admission)
        except (ConflictError, RunRepeatedError):
            if run.state.began:
                raise
            fresh = True  # another run began first
        else:
            return await _after(run, thread, admission)


async def _after(run: Run, thread: ThreadT, admission: Admission | None) -> CarriedOut[ThreadT]:
    """What a run has led to. Carries out the runs of the agents to which it handed the conversation."""
    following, state = run.next, run.state
    if following is None:
        return CarriedOut(state.run_id, state, thread)

    async def admit() -> CarriedOut[ThreadT]:
        await following.carry_out(admission)
        return await _after(following, thread, admission)

    handoff = find_handoff(run.setup.handoffs, following.setup.identity.id)
    if handoff is not None and following.setup.is_observed:
        done = await _observed(handoff.agent, following, run, thread, admit)
    else:
        done = await admit()
    if done.agent is None and handoff is not None:
        done = done._replace(agent=handoff.agent)
    return _preceded(done, state, state.run_id)


async def _observed(
    agent: Any, run: Run, before: Run | None, thread: ThreadT, admit: Callable[[], Awaitable[CarriedOut[ThreadT]]]
) -> CarriedOut[ThreadT]:
    """Carry out the run of another agent within its telemetry span and its middleware.

    The run ``before`` has begun it; None for a run that continues.
    """
    done: CarriedOut[ThreadT] | None = None
    proceeded = False

    async def admitted() -> CarriedOut[ThreadT]:
        nonlocal done, proceeded
        proceeded = True
        done = await admit()
        return done

    run_id = run.state.run_id
    try:
        response = await agent._observe(run.setup, thread.id, run_id, (), admitted)  # noqa: SLF001  # private to Clew
    except BaseException as error:
        if before is not None and not proceeded:
            await run.give_up(before, error if isinstance(error, Exception) else None)
        raise
    if done is None:  # the middleware has answered itself
        if before is not None:
            await run.give_up(before)
        done = CarriedOut(run_id, run.state, thread)
    return done._replace(agent=response.agent, response=response)


def _preceded(done: CarriedOut[ThreadT], before: RunState, run_id: str) -> CarriedOut[ThreadT]:
    """The same, after runs that handed the conversation over; ``run_id`` is that of the first one."""
    response = done.response
    if response is not None:
        usage, messages = before.usage + response.usage, [*before.added, *response.messages]
        cost = None if before.cost is None or response.cost is None else before.cost + response.cost
        response = replace(response, run_id=run_id, usage=usage, cost=cost, messages=messages)
    return done._replace(run_id=run_id, state=joined_runs(before, done.state), response=response)


async def _next_run(thread: ThreadPort, run: Run, handed: HandedOff) -> tuple[Run, Successor]:
    """The run of the agent to which a run hands the conversation."""
    handoff = find_handoff(run.setup.handoffs, handed.agent.id)
    if handoff is None:
        raise AgentConfigurationError(
            f"The run hands the conversation to the agent {handed.agent.id!r}, which is not among the handoffs of "
            f"{run.setup.identity.id!r}. Give it in handoffs=."
        )
    its_setup = setup_after(handoff, run.setup)
    await compare_with_last_run(its_setup, thread)
    its_setup, state = its_setup.for_thread(thread), run.state
    following = Run(its_setup, thread, RunState(uuid.uuid4().hex[:16]), run.journal.emit)
    following.next_run = partial(_next_run, thread)
    following.takes_over = True
    following.clock_began = run.clock_began
    if thread.kind == "remote":
        await following.journal.leave_to_service()
    handed_from = HandedFrom(run_id=state.run_id, since=state.since, rounds=state.all_rounds)
    started = (await _run_started(its_setup, run.journal)).model_copy(update={"handed_from": handed_from})
    return following, Successor(following.journal, started, its_setup.definitions.blobs)


async def _began(thread: ThreadPort, key: RunKey | None) -> int | None:
    """The version from which on the run with a key is on the log, None if there is none."""
    return None if key is None else await thread.runs.repeated(key)


async def _repeated(
    setup: RunSetup, thread: ThreadT, began: int, emit: Emit | None, admission: Admission | None
) -> CarriedOut[ThreadT]:
    """The run that an earlier call with the same key began: as recorded, once it has ended or waits for approvals.

    A run that no process executes any more is continued. Raises RunNotCompletedError for one that has failed or was
    abandoned, and RunInProgressError for code that this run itself calls: it cannot wait for it.
    """
    log, messages, position = thread.runs, 0, Position()
    lease = await log.lease()
    live = None if lease is None else live_runs.get(lease.holder)
    if lease is not None and live is not None and live.encloses_caller:
        raise RunInProgressError(log.thread_id, f"run {lease.holder}")
    if admission is not None:
        first = await log.events(began - 1, began + 1)  # a new thread begins in the same commit
        admission.begin(next(each.run_id for each in first if each.run_id), thread)
    while True:
        try:
            async with aclosing(follow(log, began, position)) as updates:
                async for update in updates:
                    messages, position = messages + (update.message is not None), Position.parsed(update.position)
                    if emit is not None:
                        await emit(update)
            states = await read_runs(log, began)
            state = reduce(joined_runs, states)
            if state.ended is not None or await pending_approvals(log, state):
                return CarriedOut(states[0].run_id, state, thread, _agent_of(setup, state))
        except RunNotCompletedError as error:
            if error.outcome != "interrupted":
                raise
        try:
            states = await read_runs(log, began)
            before = reduce(joined_runs, states[:-1], RunState(""))
            emitted = max(messages - len(before.added), 0)
            done = await resume_run(setup, thread, on_conflict="wait", emit=emit, admission=admission, emitted=emitted)
            return _preceded(done, before, states[0].run_id)
        except NoOpenRunError:
            continue  # another process has continued it to its end


async def resume_run(
    asked: RunSetup,
    thread: ThreadT,
    *,
    on_conflict: OnConflict,
    emit: Emit | None,
    admission: Admission | None,
    emitted: int = 0,
) -> CarriedOut[ThreadT]:
    """Continue the open run of a thread from the log, as the agent that began it: this one, or one of its handoffs.

    ``emitted`` is the number of its messages that were already emitted.
    Raises NoOpenRunError, ApprovalPendingError, RunInProgressError and AgentChangedError.
    """
    log = thread.runs
    while True:
        opened, state = await _left_run(log, on_conflict)
        if undecided := await _undecided(log, state):
            raise ApprovalPendingError(log.thread_id, undecided)
        handoff = _handoff_of(asked, state)
        setup = asked if handoff is None else setup_after(handoff, asked)
        _report_changes(setup.for_thread(thread), thread.id, state.fingerprint)
        if _lost_calls(opened, state):
            await _abandon(setup, thread, opened, requested=False)
            continue
        run_setup = await _with_recorded_options(log, state, setup)
        on_thread = run_setup.for_thread(thread)
        await _check_providers(on_thread, log, state.run_id)
        run = Run(on_thread, thread, state, emit, opened.attempt + 1)
        run.journal.emitted = emitted
        run.next_run = partial(_next_run, thread)
        if thread.kind == "remote":
            await run.journal.leave_to_service()
        cut_off = await _cut_off(log, opened)
        first = (*cut_off, *_decided_children(state))
        before = [Advance(state.run_id, opened.attempt, first, state.by)] if first else []
        fingerprint = run_setup.fingerprint
        run.journal.add(RunResumed(attempt=run.journal.attempt, agent=setup.identity, fingerprint=fingerprint))
        admit = partial(_resumed, run, thread, admission, before)
        try:
            if handoff is None or not setup.is_observed:
                done = await admit()
            else:
                done = await _observed(handoff.agent, run, None, thread, admit)
        except ConflictError:
            if run.resumed:
                raise
            # Another process continued the run first, or the run is over: read the control again.
        else:
            return done if done.agent is not None else done._replace(agent=_agent_of(asked, done.state))


async def _resumed(
    run: Run, thread: ThreadT, admission: Admission | None, before: Sequence[Intent]
) -> CarriedOut[ThreadT]:
    await run.carry_out(admission, before)
    return await _after(run, thread, admission)


def _handoff_of(setup: RunSetup, state: RunState) -> Handoff | None:
    """The handoff to the agent of a run, None for the agent of the setup or an unknown one."""
    if state.handed_from is None or state.agent == setup.identity.id:
        return None
    return find_handoff(setup.handoffs, state.agent)


def _agent_of(setup: RunSetup, state: RunState) -> Any:
    """The agent of a run, None for that of the setup."""
    handoff = _handoff_of(setup, state)
    return None if handoff is None else handoff.agent


async def _left_run(log: RunLog, on_conflict: OnConflict) -> tuple[OpenRun, RunState]:
    """The open run of a thread, once no process executes it. Raises NoOpenRunError and RunInProgressError."""
    while True:
        control = await log.control(fresh=True)
        if control.run is None:
            raise NoOpenRunError(log.thread_id)
        lease = await log.lease()
        if lease is not None:
            await _wait_for_lease(log, control, lease, on_conflict)
            continue
        state = fold(control.run.id, await log.events(control.run.began - 1))
        if state.attempt == control.run.attempt and state.ended is None:
            return control.run, state
        # Another process has continued the run since the control was read.


async def _free_thread(setup: RunSetup, thread: ThreadT, on_conflict: OnConflict, *, abandon: bool) -> ThreadT:
    """The thread, or a fork of it, once no run is in progress there; a run that crashed is abandoned."""
    log = thread.runs
    while True:
        # Read from the log: a run that this process has only submitted has no visible lease yet.
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
            # A run that began after the control was read had no visible lease either.
            newest = (await log.control(fresh=True)).run
            if newest is not None and (newest.id, newest.attempt) == (run.id, run.attempt):
                await _abandon(setup, thread, newest, requested=abandon)


async def _wait_for_lease(log: RunLog, control: Control, lease: Lease, on_conflict: OnConflict) -> None:
    """Wait for the holder of the lease if ``on_conflict`` says so. Code that a run calls cannot wait for that run."""
    if await _is_over(log, lease):
        return
    live = live_runs.get(lease.holder)
    if on_conflict != "wait" or (live is not None and live.encloses_caller):
        raise RunInProgressError(log.thread_id, f"run {lease.holder}")
    await log.changed(control.version, _POLL_SECONDS)


async def _is_over(log: RunLog, lease: Lease) -> bool:
    """Whether the lease belongs to a run of this process that has ended. Waits while the run records its end.

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


async def _abandon(setup: RunSetup, thread: ThreadPort, run: OpenRun, *, requested: bool) -> None:
    """Abandon a run that no process executes, and notify its context providers.

    Raises ApprovalPendingError for a run that waits for approvals, unless ``requested`` to abandon it.
    """
    log = thread.runs
    state = fold(run.id, await log.events(run.began - 1))
    waits = any(call.status in {"asked", "approved", "rejected"} for call in state.calls)
    if waits and not requested:
        raise ApprovalPendingError(log.thread_id, await _undecided(log, state))
    reason = "superseded" if waits else "redacted" if _lost_calls(run, state) else "crashed"
    providers = setup.for_thread(thread).providers.all
    hooks = await notify_abandoned(
        OrphanedRun(state, await log.history(None if providers else NotSeen())),
        thread,
        providers,
        setup.identity,
        reason=reason,
        actor=setup.actor,
    )
    provider_steps = [*hooks.steps, *hooks.unrecorded_states(with_seen=True)]
    steps = (*await _cut_off(log, run), *provider_steps, RunAbandoned(reason=reason))
    await abandon_children(log, state.calls)
    try:
        holding = Holding(holder_of(run), 0)
        abandoning = Advance(run.id, run.attempt, steps, state.by)
        await log.record([abandoning], actor=setup.actor, holding=holding, drop_draft=run.id)
    except RunTakenOverError:
        return  # another process has abandoned it


async def _undecided(log: RunLog, state: RunState) -> list[int]:
    """The requests for approval that are not decided. That of a child is decided when the child's own ones are."""
    return [
        call.request
        for call in state.calls
        if call.status == "asked"
        and (call.why != "child" or call.child is None or await approvals_of_child(log, call.place, call.child))
    ]


def _decided_children(state: RunState) -> list[ApprovalGiven]:
    """The approvals of calls whose agents need not wait any more."""
    waiting = (call for call in state.calls if call.status == "asked" and call.why == "child")
    return [ApprovalGiven(request=call.request, approved=True) for call in waiting]


def _lost_calls(run: OpenRun, state: RunState) -> bool:
    """Whether the message with the run's open calls was redacted: its calls are unknown."""
    return state.lost or (bool(run.approvals or run.tools) and not state.calls)


async def _cut_off(log: RunLog, run: OpenRun) -> tuple[Message | AnswerInterrupted, ...]:
    """The steps for an answer that was arriving when its process ended."""
    return interrupted(run, await log.draft(), "crashed") if run.call else ()


async def compare_with_last_run(setup: RunSetup, thread: ThreadPort) -> None:
    """Compare the agent with its last run on the thread, and store definitions that the store lacks.

    The agent remembers the last 1,024 threads that were compared, and skips them. Warns with AgentChangedWarning, or
    raises AgentChangedError.
    """
    if thread.id in setup.compared:
        return
    log, agent = thread.runs, setup.identity.id
    if agent in (await log.control()).agents:
        version = (await log.control(fresh=True)).agents.get(agent)
        # Without a version, the run is submitted to the writer and not yet in the log.
        data = None if version is None else (await log.event(version)).data
        if isinstance(data, RunStarted | RunResumed):
            _report_changes(setup.for_thread(thread), thread.id, data.fingerprint)
            await log.supply(setup.definitions.blobs)
    setup.compared[thread.id] = None
    if len(setup.compared) > _COMPARED_THREADS:
        del setup.compared[next(iter(setup.compared))]


def _report_changes(setup: RunSetup, thread_id: str, before: Fingerprint | None) -> None:
    """Report how the agent differs from the one with the fingerprint ``before``."""
    differences = [] if before is None else changed(before, setup.fingerprint)
    if not differences:
        return
    if setup.on_changed == "raise":
        raise AgentChangedError(thread_id, differences)
    warnings.warn(
        f"Thread {thread_id!r} was last run by an agent that differs from this {setup.identity.id!r}: "
        f"{', '.join(differences)} differ.",
        AgentChangedWarning,
        stacklevel=2,
    )


async def _with_recorded_options(log: RunLog, state: RunState, setup: RunSetup) -> RunSetup:
    """The setup with the model, the options and the response format that the run began with.

    The model and the options are used only with the same kind of client. A new response format replaces the recorded
    one.
    """
    fingerprint, call, definitions = state.fingerprint, state.model_call, setup.definitions
    if fingerprint is not None and fingerprint.response_format is not None and definitions.response_format is None:
        blob = await log.blob(fingerprint.response_format)
        if blob is not None:
            definitions = replace(definitions, response_format=ResponseFormat.model_validate_json(blob))
    if call is None or call.client != setup.client.kind:
        return replace(setup, definitions=definitions)
    return replace(setup, definitions=definitions, model=call.model, options=call.options)


async def _run_started(setup: RunSetup, journal: Journal) -> RunStarted:
    """The event with which a run begins. Warns of missing providers, or raises MissingProviderError.

    A provider is missing if the thread, or this agent on the thread, used it before, and it is not given now. A thread
    without runs may have been restored from a document: there, the providers with a recorded state are expected.
    """
    await journal.history()
    providers, recorded = setup.providers, journal.context_state
    expected = [*recorded.thread_providers, *recorded.agent_providers.get(setup.identity.id, ())]
    if not recorded.agent_providers:
        expected += [id_ for id_ in recorded.states if id_ not in OWN_IDS]
    missing = _missing(setup, expected)
    if missing and (await journal.log.control()).status == "active":
        _report_missing(setup, journal.log.thread_id, missing)
    outer = calling.get()
    return RunStarted(
        agent=setup.identity,
        fingerprint=setup.fingerprint,
        providers=tuple(map(_id, providers.thread)),
        run_providers=tuple(map(_id, providers.run)),
        missing=missing,
        caller=None if outer is None else outer.call,
    )


async def _check_providers(setup: RunSetup, log: RunLog, run_id: str) -> None:
    """Report the providers that a run used and that are missing now that it continues, as ``_run_started`` does."""
    missing = _missing(setup, (await log.history(NotSeen())).context.open_runs.get(run_id, ()))
    if missing:
        _report_missing(setup, log.thread_id, missing)


def _missing(setup: RunSetup, expected: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    if not expected:
        return ()
    present = {*(provider.id for provider in setup.providers.all), *setup.removed_providers}
    return tuple(id_ for id_ in dict.fromkeys(expected) if id_ not in present)


def _report_missing(setup: RunSetup, thread_id: str, missing: tuple[str, ...]) -> None:
    if setup.on_missing == "raise":
        raise MissingProviderError(thread_id, missing)
    if setup.reports.is_news(thread_id, missing):
        warnings.warn(missing_words(thread_id, missing), MissingProviderWarning, stacklevel=2)
