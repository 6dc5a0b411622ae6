"""The loop of a run: ask the model, carry out the calls in its answer, ask again, until it answers without calls.

Steps wait in the journal and are written together right before an external call (before the model is asked, before
tools are called) and at the end. If the process dies, any other process can continue the run from the log. A run
without tools costs two commits.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Awaitable, Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import cached_property, partial, reduce
from operator import attrgetter
from typing import Any, Literal, NamedTuple
from weakref import WeakValueDictionary

from clew.agents.admission import Admission
from clew.agents.context_assembly import ContextAssembly
from clew.agents.followed_runs import find_run, read_run, read_runs
from clew.agents.guard import Guard
from clew.agents.journal import Emit, Journal, Successor, failure, run_to_end
from clew.agents.middleware import ToolCallContext, compose
from clew.agents.model_calls import InterruptReason, ModelCalls
from clew.agents.response import AgentUpdate
from clew.agents.run_setup import RunSetup
from clew.agents.telemetry import tool_span
from clew.agents.tool_progress import MAX_TEXT, ToolProgress, progressed
from clew.agents.tools import (
    Reported,
    Tool,
    ToolContext,
    ToolOutcome,
    call_tool,
    needs_approval,
    raised_outcome,
    unknown_tool,
)
from clew.domain.decider import Actor, Advance, Intent
from clew.domain.decider_state import CallLocation
from clew.domain.errors import ClewError, StoreError, ThreadStatusError, UnknownThreadError
from clew.domain.history import NotSeen
from clew.domain.json_values import Json
from clew.domain.messages import Content, FunctionResult, Media, Message, Text, check_message
from clew.domain.models.chat_requests import result_words
from clew.domain.models.client import joined
from clew.domain.models.client_calls import approval_result, arguments_for, computer_result, custom_result
from clew.domain.models.prices import recorded
from clew.domain.runs.errors import (
    GuardrailTrippedError,
    RunLimitError,
    RunStoppedError,
    RunTakenOverError,
    ToolFailedError,
    UnansweredCallError,
    UnknownRunError,
)
from clew.domain.runs.events import (
    ApprovalRequested,
    Caller,
    ChildThread,
    GivenBy,
    HandedOff,
    RunAbandoned,
    RunCompleted,
    RunEvent,
    RunFailed,
    RunStarted,
    ToolFailed,
    ToolFinished,
    ToolProgressed,
    ToolStarted,
)
from clew.domain.runs.ports import RunLog, ThreadPort
from clew.domain.runs.request_construction import digest_of_tool
from clew.domain.runs.standing_approvals import standing_approvals
from clew.domain.runs.state import CallState, RunState, calls_of, fold, interrupted, joined_runs, plan_calls

live_runs: WeakValueDictionary[str, Run] = WeakValueDictionary()
"""The runs of this process, by the names under which they hold their leases."""

unrecorded_ends: set[str] = set()
"""The lease holders of ended runs of this process whose end the store did not record."""


class Calling(NamedTuple):
    """The function call in whose tool the current code runs, and the agent that called it."""

    call: Caller
    by: Actor


calling: ContextVar[Calling | None] = ContextVar("clew_calling", default=None)

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
        self.next_run: Callable[[HandedOff], Awaitable[tuple[Run, Successor]]] | None = None
        """Makes the run of the agent to which this one hands the conversation."""
        self.next: Run | None = None
        """That run. It begins when this one ends."""
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
        self._tools = ToolCalls(setup, thread, self.journal, self._providers)

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
            try:
                async with asyncio.timeout(limit) as scope:
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
        await self._tools.stop()
        await self._providers.handle_takeover(error)

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
        pauses = bool(calls) and await self._tools.handle(calls, orphaned=True)
        if pauses or self._tools.handed_off is not None:
            await self._leave(pauses=pauses)
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
            if self._setup.guardrails:
                answer = await self._guard.beside(self._models.ask)
                message, index = self._models.record(answer)
                await self._guard.check_answer(message)
            else:
                answer = await self._models.ask()
                message, index = self._models.record(answer)
            calls = calls_of(message, 0)
            if not calls:
                await self._complete(answer.finish_reason)
                return
            pauses = await self._tools.handle(calls, answer=index)
            if pauses or self._tools.handed_off is not None:
                await self._leave(pauses=pauses)
                return
            await self._providers.before_next_call()

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
        self.next, successor = await self.next_run(handed)
        try:
            await self._providers.complete(RunCompleted(finish_reason=HANDED_OFF), successor)
            await self.journal.emit_added()
            if self.journal.emit is not None:
                who = handed.agent.name or handed.agent.id
                await self.journal.emit(AgentUpdate("handoff", handed.reason, name=who))
        except BaseException:
            await self.next.give_up(self)
            raise

    async def give_up(self, before: Run) -> None:
        """Record that this run, which the cancelled run ``before`` may have begun, is not carried out."""
        reason: InterruptReason = "stopped" if before._stopped else "cancelled"  # of this class
        with suppress(ClewError), self._live(None):
            await self.journal.take_over()
            await self._end(RunAbandoned(reason=reason), reason)

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
        await self._providers.fail(error or asyncio.CancelledError())
        calls = self.state.calls
        try:
            if isinstance(error, GuardrailTrippedError):
                await self._guard.record_trip(error, last)
            else:
                self.journal.add(last)
                await self.journal.write(final=True)
        except ThreadStatusError:
            await self.journal.withdraw()
            raise
        await abandon_children(self.journal.log, calls)
        await self._providers.feed_store()


async def ends_recorded(selected: Callable[[RunLog], bool]) -> None:
    """Wait until the ending runs of this event loop on ``selected`` logs have recorded their ends."""
    for run in list(live_runs.values()):
        if run.in_this_loop and run.ending and selected(run.journal.log):
            await run.over.wait()


async def abandon_children(log: RunLog, calls: Sequence[CallState]) -> None:
    """Abandon the runs of agents that calls of an abandoned run began and that wait for approvals."""
    for call in calls:
        if call.child is not None and call.status != "done":
            child = log.of(call.child)
            try:
                run = (await child.control(fresh=True)).run
            except UnknownThreadError:
                continue  # the call was recorded, and its process ended before the thread began
            if run is None or await child.lease() is not None:
                continue
            state = fold(run.id, await child.events(run.began - 1))
            steps = (*interrupted(run, await child.draft(), "crashed"), RunAbandoned(reason="superseded"))
            await child.record([Advance(run.id, run.attempt, steps, state.by)], drop_draft=run.id)
            await abandon_children(child, state.calls)


async def _with_usage_of(child: RunLog, outcome: ToolOutcome) -> ToolOutcome:
    """The outcome with the tokens and the cost of the newest run on a child's thread, and of those that handed over."""
    try:
        newest = await read_run(child, await find_run(child, None))
        state = reduce(joined_runs, await read_runs(child, newest.since))
    except (UnknownThreadError, UnknownRunError):
        return outcome
    return replace(outcome, usage=state.usage, cost=state.cost)


OUTCOME_UNKNOWN = "The call had been started before a crash. Nobody knows whether it was carried out: outcome unknown."
REJECTED = "The call was rejected"

CHANGED = (
    "Error: the definition of this tool has changed since you called it, so the call was not carried out. Read the new "
    "definition, and call it again if you still want to."
)

STOPPED = "Error: the call was stopped before it gave a result. Nobody knows how far it came."
"""The result that the model receives for a call that was in progress when its run was stopped."""


HANDED_OFF = "handed-off"
"""Why a run ended whose agent handed the conversation to another one."""


_OUTCOMES = ToolFinished | ToolFailed | ApprovalRequested


class Finished(NamedTuple):
    """A call that is over: its outcome, and how long it took."""

    call: CallState
    outcome: ToolOutcome
    milliseconds: int


class ToolCalls:
    """The function calls of one attempt of a run, answer by answer."""

    def __init__(self, setup: RunSetup, thread: ThreadPort, journal: Journal, providers: ContextAssembly) -> None:
        self._setup = setup
        self._thread = thread
        self._journal = journal
        self._providers = providers
        self._tasks: dict[asyncio.Task[Finished], CallState] = {}
        self._answer = 0
        self._child_waits = False
        self._progress: ToolProgress | None = None
        self.handed_off = journal.state.handed_off
        """The handoff that waits to be carried out."""

    async def handle(self, calls: Sequence[CallState], *, answer: int = 0, orphaned: bool = False) -> bool:
        """Carry out, refuse or ask for approval of the calls of an answer; returns whether approvals are pending.

        ``answer`` is the index of the answer among the waiting steps, while it is not recorded. ``orphaned`` says that
        the process that started the calls has ended.
        """
        self._answer, self._child_waits = answer, False
        journal, tools = self._journal, {tool.schema.name: tool for tool in self._providers.tools}
        rules = self._providers.rules
        needs_any = any(map(attrgetter("approval"), rules.values()))
        standing, exempt = await self._without_request(calls, tools) if needs_any else ({}, ())
        plan = plan_calls(calls, rules, orphaned=orphaned, exempt=exempt)
        _check_answerable(calls, tools)
        for call in plan.answer:
            self._answer_service(call)
        for call in plan.refuse:
            self._refuse(call, _rejection(call), "rejected")
        started = set()
        changed = self._providers.changed_tools if orphaned else ()
        for call in plan.start:
            if call.call.name in changed and call.status != "started":
                self._refuse(call, CHANGED, "changed")
            elif call.call.name in tools:
                given = standing.get(call.place)
                journal.add(ToolStarted(message=self._message(call), index=call.place.content, standing=given))
                if tools[call.call.name].runs_agent and call.child is None:
                    child, at = uuid.uuid4().hex[:16], call.place.content
                    journal.add(ChildThread(message=self._message(call), index=at, thread_id=child))
                started.add(call.place.content)
            else:
                outcome = unknown_tool(call.call.name, self._providers.tools)
                self._refuse(call, str(outcome.result), "unknown-tool", outcome.error)
        for call, why in plan.ask:
            self._ask(call, why, tools)
        if started:
            await journal.write()
            await journal.emit_added()
            await self._carry_out([call for call in journal.state.calls if call.place.content in started], tools)
        waits = bool(plan.ask) or self._child_waits or any(call.status == "asked" for call in calls)
        if waits:
            self._providers.pause()
            await journal.write(final=True)
            await journal.emit_added()
        return waits

    async def _without_request(
        self, calls: Sequence[CallState], tools: dict[str, Tool]
    ) -> tuple[dict[CallLocation, GivenBy], Container[CallLocation]]:
        """The calls that a standing approval lets begin, and all that need no approval."""
        standing = await self._standing(calls, tools)
        exempt = await self._exempt([each for each in calls if each.place not in standing], tools)
        return standing, standing.keys() | exempt

    async def _exempt(self, calls: Sequence[CallState], tools: dict[str, Tool]) -> set[CallLocation]:
        """The new calls for which the function of their tool says that they need no approval."""
        exempt = set()
        for call in calls:
            called = tools.get(call.call.name)
            if called is None or call.status != "new" or not callable(called.approval):
                continue
            if not await needs_approval(called, _arguments(call, called), self._context(call)):
                exempt.add(call.place)
        return exempt

    def _ask(self, call: CallState, why: Literal["approval", "outcome-unknown"], tools: dict[str, Tool]) -> None:
        own = None if call.asks else tools.get(call.call.name)
        digest = None if own is None else digest_of_tool(own.schema)
        message, index = self._message(call), call.place.content
        self._journal.add(ApprovalRequested(message=message, index=index, reason=why, tool=digest))

    async def _standing(self, calls: Sequence[CallState], tools: dict[str, Tool]) -> dict[CallLocation, GivenBy]:
        """The new calls that need no approval because of a standing approval, of this thread or one of its callers."""
        rules, wanted = self._providers.rules, dict[str, list[CallLocation]]()
        for call in calls:
            rule = rules.get(call.call.name)
            if call.asks or call.status != "new" or call.call.name not in tools:
                continue
            if rule is not None and rule.approval:
                wanted.setdefault(digest_of_tool(tools[call.call.name].schema), []).append(call.place)
        found: dict[CallLocation, GivenBy] = {}
        outer, log = calling.get(), self._journal.log
        above = None if outer is None else outer.call
        while wanted:
            # Read from the log: an approval may have been revoked since the run began.
            approvals = standing_approvals((await log.history(NotSeen())).context)
            for digest in approvals.keys() & wanted.keys():
                given = approvals[digest]
                by = GivenBy(actor=given.actor, request=given.request, thread_id=given.thread_id)
                found |= dict.fromkeys(wanted.pop(digest), by)
            if above is None:
                break
            log = log.of(above.thread_id)
            run = (await log.control(fresh=True)).run
            began = None if run is None else (await log.event(run.began)).data
            above = began.caller if isinstance(began, RunStarted) else None
        return found

    def _context(self, call: CallState) -> ToolContext:
        setup, run_id = self._setup, self._journal.state.run_id
        return ToolContext(
            deps=setup.deps,
            thread=self._thread,
            actor=setup.actor,
            run_id=run_id,
            call_id=call.call.call_id,
            idempotency_key=f"{run_id}:{call.place.message}:{call.place.content}",
            child_thread_id=call.child,
            _report=partial(self._report, asyncio.get_running_loop(), call),
        )

    def _report(
        self, loop: asyncio.AbstractEventLoop, call: CallState, text: str, fraction: float | None, data: Json
    ) -> Reported:
        """Take what a call reports of its progress, from any thread."""
        event = progressed(call.place, text, fraction, data)
        loop.call_soon_threadsafe(self._reported, call, event)
        return Reported()

    def _reported(self, call: CallState, event: ToolProgressed) -> None:
        if self._progress is None:
            journal = self._journal
            run = journal.state.run_id, journal.attempt
            self._progress = ToolProgress(journal.log, journal.emit, *run, journal.state.by)
        self._progress.take(call, event)

    def _message(self, call: CallState) -> int:
        """The version of the call's message; a reference to it while it waits to be written."""
        return call.place.message or self._journal.reference(self._answer)

    def _answer_service(self, call: CallState) -> None:
        """Record the decision about a call that the service itself carries out."""
        approved, message, index = call.status == "approved", call.place.message, call.place.content
        decision = approval_result(call.call, approved=approved, reason=call.rejection)
        self._journal.add(ToolStarted(message=message, index=index), Message(role="tool", contents=(decision,)))
        about: dict[str, Any] = {"message": message, "index": index, "result": -1}
        self._journal.add(ToolFinished(**about, ms=0) if approved else ToolFailed(**about, reason="rejected"))

    def _refuse(self, call: CallState, text: str, reason: str, kind: str | None = None) -> None:
        self._journal.add(_result(call, text))
        message = self._message(call)
        self._journal.add(ToolFailed(message=message, index=call.place.content, result=-1, reason=reason, kind=kind))

    async def _carry_out(self, calls: Sequence[CallState], tools: dict[str, Tool]) -> None:
        """Call tools in parallel, and record their results as they come, in the order of the calls."""
        self._tasks = {asyncio.create_task(self._timed(call, tools[call.call.name])): call for call in calls}
        while self._tasks:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0)  # calls that end at the same moment are written together
            done = [task for task in self._tasks if task.done()]
            if self._progress is not None:
                await self._progress.settle([self._tasks[task].place for task in done])
            finished = self._take_finished(done)
            for each in finished:
                self._record(each)
            for call, outcome, _ in finished:
                if call.kind == "computer":
                    _check_screenshot(call, _screenshot(outcome.result, outcome.contents), outcome.raised)
                if tools[call.call.name].errors == "raise" and outcome.raised is not None:
                    raise ToolFailedError(call.call.name, outcome.error or "") from outcome.raised
            if self._tasks:
                await self._journal.write()
                await self._journal.emit_added()

    def _take_finished(self, done: Sequence[asyncio.Task[Finished]]) -> list[Finished]:
        finished: list[Finished] = []
        for task in done:
            call = self._tasks.pop(task)
            finished.append(_stopped(call) if task.cancelled() else task.result())
        return finished

    async def _timed(self, call: CallState, tool: Tool) -> Finished:
        began = time.monotonic()
        outcome = await self._call(call, tool)
        if call.child is not None and outcome.error is not None:
            outcome = await _with_usage_of(self._journal.log.of(call.child), outcome)
        return Finished(call, outcome, round((time.monotonic() - began) * 1000))

    async def _call(self, call: CallState, tool: Tool) -> ToolOutcome:
        """Call a tool, within a telemetry span and the middleware."""
        setup, run_id = self._setup, self._journal.state.run_id
        name, call_id, arguments = call.call.name, call.call.call_id, call.call.arguments
        if call.kind != "function":
            arguments = _arguments(call, tool)
        tool_context = self._context(call)
        place, by = call.place, self._journal.state.by
        outer = Caller(thread_id=self._thread.id, run_id=run_id, message=place.message, index=place.content)
        calling.set(Calling(outer, by or Actor(setup.identity.id)))
        if not setup.is_observed:
            return await call_tool(tool, arguments, tool_context)
        thread_id = self._journal.log.thread_id
        with tool_span(
            setup.telemetry,
            name=name,
            call_id=call_id,
            thread_id=thread_id,
            arguments=arguments,
            description=tool.description,
        ) as span:
            if setup.middleware:
                about = setup.about(thread_id, run_id)
                context = ToolCallContext(**about, name=name, call_id=call_id, arguments=arguments)
                try:
                    outcome = await compose(
                        setup.middleware, "tool_call", context, lambda: call_tool(tool, arguments, tool_context)
                    )
                    check_message(
                        _result(call, outcome.result, outcome.contents)
                    )  # the middleware may have returned another outcome
                except Exception as error:  # noqa: BLE001  # middleware that refuses a call fails the call
                    outcome = raised_outcome(error)
            else:
                outcome = await call_tool(tool, arguments, tool_context)
            span.finished(outcome)
            return outcome

    def _record(self, finished: Finished) -> None:
        call, outcome, ms = finished
        message, index = call.place
        if outcome.waits:
            self._child_waits = True
            self._journal.add(ApprovalRequested(message=message, index=index, reason="child"))
            return
        target = self._target(call) if self._setup.handoffs and outcome.error is None else None
        if target is not None and self.handed_off is not None:
            outcome, target = ToolOutcome(ONE_HANDOFF, "HandoffError"), None
        cost = None if outcome.cost is None else recorded(outcome.cost)
        about: dict[str, Any] = {"message": message, "index": index, "result": -1, "ms": ms}
        about |= {"usage": outcome.usage, "cost": cost, "attempts": outcome.attempts}
        self._journal.add(
            _result(call, outcome.result, outcome.contents),
            ToolFinished(**about)
            if outcome.error is None
            else ToolFailed(**about, reason=outcome.reason, kind=outcome.error),
        )
        if target is not None:
            reason = called_reason(call.call.arguments)
            self.handed_off = HandedOff(message=message, index=index, agent=target.identity, reason=reason)
            self._journal.add(self.handed_off)

    def _target(self, call: CallState) -> Any:
        """The agent to which a call hands the conversation, None if it calls another tool."""
        return next((tool.hands_to for tool in self._setup.tools if tool.name == call.call.name), None)

    async def stop(self) -> None:
        """Stop the calls that are in progress, and queue their outcomes to be written.

        Calls whose start is recorded but which have no task are recorded as stopped, too. So no call stays open.
        """
        tasks = list(self._tasks)
        if self._progress is not None:
            await self._progress.stop()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
            for each in self._take_finished(tasks):
                self._record(each)
        journal = self._journal
        recorded = {(step.message, step.index) for step in journal.steps if isinstance(step, _OUTCOMES)}
        for call in journal.state.calls:
            if call.status == "started" and call.place not in recorded:
                self._record(_stopped(call))


ONE_HANDOFF = "Error: the conversation was already handed to another agent."
"""The result of a second handoff in one answer."""


def called_reason(arguments: str) -> str:
    """The reason that a model gave for a handoff, in the arguments of its call."""
    try:
        given = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return ""
    reason = given.get("reason") if isinstance(given, dict) else None
    return joined([reason])[:MAX_TEXT] if isinstance(reason, str) else ""


def _stopped(call: CallState) -> Finished:
    return Finished(call, ToolOutcome(STOPPED, "CancelledError", reason="stopped"), 0)


def _rejection(call: CallState) -> str:
    """What the model receives for a rejected call."""
    if call.why == "outcome-unknown":
        return OUTCOME_UNKNOWN
    return f"{REJECTED}: {call.rejection}" if call.rejection else f"{REJECTED}."


def _result(call: CallState, result: Any, contents: tuple[Text | Media, ...] = ()) -> Message:
    given = {"result": result, "contents": contents} if contents else {"result": result}
    plain = FunctionResult(call_id=call.call.call_id, name=call.call.name, **given)
    content: Content | None
    if call.kind == "custom":
        content = custom_result(call.call, result_words(plain))
    elif call.kind == "computer":
        content = computer_result(call.call, _screenshot(result, contents))
    else:
        content = None
    content = content or plain
    return Message(role="tool", contents=(content,))


def _check_answerable(calls: Sequence[CallState], tools: Mapping[str, Tool]) -> None:
    """Raise UnansweredCallError for an item that waits for the client and cannot be answered."""
    for call in calls:
        if call.kind == "function" or call.status == "done":
            continue
        name = call.call.name
        if call.kind == "other":
            raise UnansweredCallError(name, "Clew has no result for it.")
        if call.kind == "computer" and name not in tools:
            raise UnansweredCallError(name, f"Give tool(function, name={name!r}).")
        if call.kind == "computer" and call.status == "rejected":
            raise UnansweredCallError(name, "The call was rejected, but its result must be an image.")


def _screenshot(result: Any, contents: tuple[Text | Media, ...]) -> Json:
    """The screenshot that a function returned: the address of the only image, or a result in JSON."""
    return contents[0].uri if len(contents) == 1 and isinstance(contents[0], Media) else result


def _check_screenshot(call: CallState, result: Any, error: Exception | None) -> None:
    """Raise UnansweredCallError if the result of a computer call is one that the service would not accept."""
    if computer_result(call.call, result) is None:
        raise UnansweredCallError(call.call.name, "Its result must be an image, or the address of one.") from error


def _arguments(call: CallState, tool: Tool) -> str:
    return arguments_for(call.kind, call.call, tool.schema.parameters)
