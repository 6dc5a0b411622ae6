"""The loop of a run: ask the model, carry out the calls in its answer, ask again, until it answers without calls.

Steps wait in the journal and are written together right before an external call (before the model is asked, before
tools are called) and at the end. If the process dies, any other process can continue the run from the log. A run
without tools costs two commits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import cached_property
from typing import Any
from weakref import WeakValueDictionary

from clew.agents import background_loop
from clew.agents.admission import Admission
from clew.agents.context_assembly import ContextAssembly
from clew.agents.guard import Guard
from clew.agents.journal import Emit, Journal, Successor, failure, run_to_end
from clew.agents.model_calls import InterruptReason, ModelCalls
from clew.agents.response import AgentUpdate
from clew.agents.run_setup import RunSetup
from clew.agents.tool_calls import ToolCalls, calling
from clew.agents.tool_use import ToolUseBehavior, answer_of
from clew.domain.decider import Actor, Advance, Intent
from clew.domain.decider_state import holder_of
from clew.domain.errors import ClewError, StoreError, ThreadDeletedError, ThreadStatusError, UnknownThreadError
from clew.domain.messages import Message, Text
from clew.domain.runs.errors import (
    GuardrailTrippedError,
    RunInterruptedError,
    RunLimitError,
    RunStoppedError,
    RunTakenOverError,
)
from clew.domain.runs.events import HandedOff, RunAbandoned, RunCompleted, RunEvent, RunFailed
from clew.domain.runs.ports import LEFT_OPEN, Holding, RunLog, ThreadPort
from clew.domain.runs.state import TOOL_RESULT, CallState, RunState, answers_late, calls_of, fold, interrupted

live_runs: WeakValueDictionary[str, Run] = WeakValueDictionary()
"""The runs of this process, by the names under which they hold their leases."""

unrecorded_ends: set[str] = set()
"""The lease holders of ended runs of this process whose end the store did not record."""

HANDED_OFF = "handed-off"
"""Why a run ended whose agent handed the conversation to another one."""

GRACE_SECONDS = 5.0
"""How long tools that are running may take to end when the engine of their run is closed."""

_enclosing: ContextVar[tuple[str, ...]] = ContextVar("clew_enclosing_runs", default=())
"""The lease holders of the runs that the current code runs inside, as a tool or as middleware."""


class Run:
    """One attempt of a run on a thread, from its first commit to its last. ``over`` is set when all is recorded."""

    def __init__(
        self, setup: RunSetup, thread: ThreadPort, state: RunState, emit: Emit | None, attempt: int = 1
    ) -> None:
        needed = None if setup.reducer is None else setup.needed_history(setup.reducer)
        outer = calling.get()
        if outer is None:
            asking = Actor(setup.actor or thread.runs.actor)
        else:  # the agent whose tool the current code runs in, on behalf of the caller
            asking = Actor(outer.by.name, setup.actor or outer.by.on_behalf_of)
        if state.by is None:
            state = replace(state, by=Actor(setup.identity.id, asking.on_behalf_of or asking.name))
        self.journal = Journal(thread.runs, state, asking, attempt, emit, needed)
        self.over = asyncio.Event()
        self.journal.on_lost = lambda: self.end_with(RunTakenOverError(thread.id, state.run_id))
        self.next_run: Callable[[Run, HandedOff], Awaitable[tuple[Run, Successor]]] | None = None
        """Makes the run of the agent to which this one, given to it, hands the conversation."""
        self.next: Run | None = None
        """That run. It begins when this one ends."""
        self.clock_began: float | None = None
        """The time of the event loop from which on ``max_seconds`` counts: over all agents of a conversation."""
        self.takes_over = False
        """Whether the run before it has begun this one."""
        self._stopped = False
        self._ends_with: RunStoppedError | RunTakenOverError | None = None
        self._task: asyncio.Task[Any] | None = None
        self._cancelled_before = 0
        self.setup = self._setup = setup
        self._thread = thread
        self._providers = ContextAssembly(setup, thread, self.journal)
        self._models = ModelCalls(setup, thread, self.journal, self._providers)

    @cached_property
    def _tools(self) -> ToolCalls:
        return ToolCalls(self._setup, self._thread, self.journal, self._providers)

    @cached_property
    def _guard(self) -> Guard:
        return Guard(self._setup, self._thread, self.journal)

    @property
    def state(self) -> RunState:
        """What the run has done, as far as it is recorded."""
        return self.journal.state

    @property
    def resumed(self) -> bool:
        """Whether the start of this attempt is recorded."""
        return self.state.attempt == self.journal.attempt

    @property
    def ending(self) -> bool:
        """Whether the run was stopped or cancelled, and only has to record that."""
        return self._stopped or (self._task is not None and self._task.cancelling() > self._cancelled_before)

    @property
    def encloses_caller(self) -> bool:
        """Whether the calling code runs inside this run. Then the run cannot end before that code does."""
        return self.journal.holder in _enclosing.get()

    @property
    def in_this_loop(self) -> bool:
        """Whether the run belongs to the running event loop."""
        return self._task is not None and self._task.get_loop() is asyncio.get_running_loop()

    def stop(self) -> None:
        """Note that the reader has left the stream. The caller cancels the task of the run next."""
        self._stopped = True

    def end_with(self, error: RunStoppedError | RunTakenOverError) -> None:
        """End the run with an error: somebody stopped it, or another process has ended it."""
        if self._task is not None and self._ends_with is None:
            self._ends_with = error
            self._stopped = isinstance(error, RunStoppedError)
            self._task.cancel()

    async def carry_out(self, admission: Admission | None, resuming: Sequence[Intent] | None = None) -> None:
        """Carry out the run until it ends or waits for approvals. Records the end of one that fails or is cancelled.

        ``admission`` waits for its start. ``resuming`` are the intents that a continued run records first; None for a
        new run.
        """
        with self._live(admission):
            limit = self._setup.limits.seconds
            if self.clock_began is None:
                self.clock_began = asyncio.get_running_loop().time()
            try:
                async with asyncio.timeout_at(None if limit is None else self.clock_began + limit) as scope:
                    await self._rounds(await self._first_calls(resuming))
            except TimeoutError as error:
                if not scope.expired():
                    await self._fail(error)
                    raise
                too_long = RunLimitError(
                    f"The run took longer than max_seconds allows: {limit:g} s. The log has its steps so far."
                )
                await self._fail(too_long)
                raise too_long from None
            except asyncio.CancelledError:
                cause = self._ends_with
                if isinstance(cause, RunTakenOverError):
                    await self._leave_to_other(cause)
                else:
                    reason: InterruptReason = "stopped" if self._stopped else "cancelled"
                    await self._end(RunAbandoned(reason=reason), reason)
                if cause is None or self._task is None or self._task.uncancel() > self._cancelled_before:
                    raise
                raise cause from None
            except RunTakenOverError as error:
                await self._leave_to_other(error)
                raise
            except Exception as error:
                await self._fail(error)
                raise

    async def _leave_to_other(self, error: RunTakenOverError) -> None:
        """End without a record: the other process records the end of the run."""
        if isinstance(error, RunInterruptedError):
            await run_to_end(self._leave_open())
            return
        await self._tools.stop()
        await self._providers.handle_takeover(error)

    async def _leave_open(self) -> None:
        """Record the results of calls that end soon, and let any process continue the run at once."""
        journal = self.journal
        await self._tools.finish(GRACE_SECONDS)
        if journal.answer is not None:
            await journal.answer.save_last()  # a later draft would renew the lease
        journal.stop_renewing()
        await journal.log.hold(Holding(journal.holder, LEFT_OPEN))

    @contextmanager
    def _live(self, admission: Admission | None) -> Iterator[None]:
        """Keep the run in ``live_runs`` until it is over."""
        holder = self.journal.holder
        live_runs[holder] = self
        if admission is not None:
            admission.start(self, self._thread)
        self._task = asyncio.current_task()
        self._cancelled_before = 0 if self._task is None else self._task.cancelling()
        token = _enclosing.set((*_enclosing.get(), holder))
        try:
            yield
        except StoreError:
            unrecorded_ends.add(holder)
            raise
        finally:
            self.journal.stop_renewing()
            self.journal.on_begun = self.journal.on_lost = None  # they hold this run, which holds the journal
            self.over.set()
            _enclosing.reset(token)

    async def _first_calls(self, resuming: Sequence[Intent] | None) -> list[CallState]:
        """Check the input, and prepare the context. Returns the open calls of a run that continues."""
        if resuming is None:
            if self.takes_over:
                await self.journal.take_over()
            if self._setup.guardrails or not self._providers.idle:
                inputs = [step for step in self.journal.steps if isinstance(step, Message)]
                await self._begin(inputs or await self._handed_inputs())
            return []
        await self.journal.resume(resuming, self._setup.definitions.blobs)
        if self._setup.guardrails and not self.state.rounds:
            await self._guard.check_input(await self._handed_inputs() or await self.journal.inputs())
        await self._providers.resume()
        return [call for call in self.state.calls if call.status != "done"]

    async def _handed_inputs(self) -> list[Message]:
        """The messages with which a conversation began that another agent handed over."""
        since = self.state.since
        if self.state.handed_from is None:
            return []
        history = await self.journal.history(after=since)
        return [each.message for each in history if each.version > since and each.message and each.role == "user"]

    async def _begin(self, inputs: Sequence[Message]) -> None:
        if self._setup.guardrails:
            await self.journal.write(blobs=self._setup.definitions.blobs)  # a trip must be on the log, too
            await self._guard.check_input(inputs)
        if not self._providers.idle:
            await self._providers.begin(inputs)

    async def _rounds(self, calls: Sequence[CallState]) -> None:
        state = self.journal.state
        left = bool(state.calls) or state.handed_off is not None
        if left and await self._ends_after_calls(pauses=await self._tools.handle(calls, orphaned=True)):
            return
        state = self.journal.state
        if state.answered:
            await self._complete(state.finish_reason)
            return
        if self._thread.kind == "remote":
            await self._models.open_service_thread()
        if state.model_call is not None:
            await self._providers.before_next_call()
        while True:
            answer = await (self._guard.beside(self._models.ask) if self._setup.guardrails else self._models.ask())
            message, index = self._models.record(answer)
            if self._setup.guardrails:
                await self._guard.check_answer(message)
            calls = calls_of(message, 0)
            if not answers_late(self.journal.state.model_call):
                if not calls:
                    await self._complete(answer.finish_reason)
                    return
                pauses = await self._tools.handle(calls, answer=index)
                if await self._ends_after_calls(pauses=pauses):
                    return
            await self._providers.before_next_call()

    async def _ends_after_calls(self, *, pauses: bool) -> bool:
        """Leave the thread or end with a result, if the calls of an answer say so; returns whether it did."""
        if pauses or self._tools.handed_off is not None:
            await self._leave(pauses=pauses)
            return True
        return self._setup.tool_use is not None and await self._ends_with_result(self._setup.tool_use)

    async def _ends_with_result(self, behavior: ToolUseBehavior) -> bool:
        """End the run with the result of a tool as its answer, if the behaviour says so; returns whether it ended."""
        await self.journal.write()
        text = await answer_of(behavior, self.state)
        if text is None:
            return False
        message = Message(role="assistant", author=self._setup.identity.name, contents=(Text(text=text),))
        self.journal.add(message)
        if self._setup.guardrails:
            await self._guard.check_answer(message)
        await self._complete(TOOL_RESULT)
        return True

    async def _leave(self, *, pauses: bool) -> None:
        """Leave the thread to the user, who decides about approvals, or to the agent that gets the conversation."""
        if pauses:
            await self._providers.feed_store()
        elif self._tools.handed_off is not None:
            await self._hand_over(self._tools.handed_off)

    async def _complete(self, finish_reason: str | None) -> None:
        await self._providers.complete(RunCompleted(finish_reason=finish_reason))
        await self.journal.emit_added()

    async def _hand_over(self, handed: HandedOff) -> None:
        """End the run, and begin that of the other agent in the same commit."""
        if self.next_run is None:
            raise RuntimeError("The run has no way to hand the conversation over.")
        self.next, successor = await self.next_run(self, handed)
        try:
            await self._providers.complete(RunCompleted(finish_reason=HANDED_OFF), successor)
            await self.journal.emit_added()
            if self.journal.emit is not None:
                who = handed.agent.name or handed.agent.id
                await self.journal.emit(AgentUpdate("handoff", handed.reason, name=who))
        except BaseException:
            await self.next.give_up(self)
            raise

    async def give_up(self, before: Run, error: Exception | None = None) -> None:
        """Record that this run, which ``before`` may have begun, is not carried out: because of an error, or at all."""
        reason: InterruptReason = "stopped" if before._stopped else "cancelled"  # of this class
        with suppress(ClewError), self._live(None):
            await self.journal.take_over()
            if error is None:
                await self._end(RunAbandoned(reason=reason), reason)
            else:
                await self._fail(error)

    async def _fail(self, error: Exception) -> None:
        if self.state.began:  # the caller may not have given a thread
            error.add_note(f"The log has it: run {self.state.run_id} of thread {self.journal.log.thread_id!r}.")
        await self._end(RunFailed(error=failure(error)), "fault", error)

    async def _end(self, last: RunEvent, reason: InterruptReason, error: Exception | None = None) -> None:
        """Record the end of the run, even if the caller is cancelled once more."""
        _, cancelled = await run_to_end(self._record_end(last, reason, error))
        if cancelled is not None:
            raise cancelled

    async def _record_end(self, last: RunEvent, reason: InterruptReason, error: Exception | None) -> None:
        """Record the calls that were in progress when the run ended, and ``last``."""
        await self._tools.stop()
        if not self.journal.under_way:
            return  # it never began, or all of it is recorded
        self._models.interrupt(reason, error)
        if reason != "fault":
            await self._models.cancel_task()
        await self._providers.fail(error or asyncio.CancelledError())
        await abandon_children(self.journal.log, self.state.calls)
        try:
            if isinstance(error, GuardrailTrippedError):
                await self._guard.record_trip(error, last)
            else:
                self.journal.add(last)
                await self.journal.write(final=True)
        except ThreadStatusError:
            await self.journal.withdraw()
            raise
        await self._providers.feed_store()


async def leave_runs(selected: Callable[[RunLog], bool]) -> None:
    """Leave the runs on ``selected`` logs to other processes, which can continue them at once.

    They are those of this event loop and of ``run_sync``. Waits until those that are ending have recorded their ends.
    A run that the caller runs in is not left.
    """
    await _leave_runs_of_loop(selected)
    loop = background_loop.running_loop()
    if loop is not None and loop is not asyncio.get_running_loop():
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_leave_runs_of_loop(selected), loop))


async def _leave_runs_of_loop(selected: Callable[[RunLog], bool]) -> None:
    # A run that is over may be alive, for example in a traceback. Its task is the caller's again.
    live = [run for run in live_runs.values() if run.in_this_loop and not run.over.is_set()]
    live = [run for run in live if selected(run.journal.log)]
    for run in live:
        if run.journal.under_way and not run.ending and not run.encloses_caller:
            run.end_with(RunInterruptedError(run.journal.log.thread_id, run.state.run_id))
    for run in live:
        if run.ending and not run.encloses_caller:
            await run.over.wait()


async def abandon_children(log: RunLog, calls: Sequence[CallState]) -> None:
    """Abandon the runs of agents that calls of a run began, before it ends itself.

    So whatever finds the run after a crash finds them, too. See ``abandon_children`` of the service.
    """
    for call in calls:
        if call.child is not None and call.status != "done":
            try:
                child = await log.inner(call.place, call.child)
                run = (await child.control(fresh=True)).run
            except (UnknownThreadError, ThreadDeletedError):
                continue  # the process may have ended after the call was recorded, and before the thread began
            if run is None:
                continue
            state = fold(run.id, await child.events(run.began - 1))
            await abandon_children(child, state.calls)
            steps = (*interrupted(run, await child.draft(), "crashed"), RunAbandoned(reason="superseded"))
            ending, holding = [Advance(run.id, run.attempt, steps, state.by)], Holding(holder_of(run), 0)
            with suppress(RunTakenOverError, ThreadStatusError):  # it has ended
                await child.record(ending, holding=holding, drop_draft=run.id)
