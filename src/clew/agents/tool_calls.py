"""The function calls of a run: which are carried out, which wait for an approval, and what is recorded of each."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Container, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from functools import partial, reduce
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from clew.agents.call_approvals import calls_without_request
from clew.agents.context_assembly import ContextAssembly
from clew.agents.followed_runs import find_run, read_run, read_runs
from clew.agents.handoffs import ONE_HANDOFF, called_reason
from clew.agents.journal import Journal
from clew.agents.middleware import ToolCallContext, compose
from clew.agents.run_setup import RunSetup
from clew.agents.telemetry import tool_span
from clew.agents.tool_progress import ToolProgress, progressed
from clew.agents.tools import Reported, Tool, ToolContext, ToolOutcome, call_tool, raised_outcome, unknown_tool
from clew.domain.decider import Actor
from clew.domain.decider_state import CallLocation
from clew.domain.errors import ConflictError, ThreadDeletedError, UnknownThreadError
from clew.domain.json_values import Json
from clew.domain.messages import Content, FunctionResult, Media, Message, Text, check_message
from clew.domain.models.chat_requests import result_words
from clew.domain.models.client_calls import arguments_for, computer_result, custom_result, decision_of
from clew.domain.models.prices import recorded
from clew.domain.runs.errors import (
    RunInProgressError,
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
    ToolFailed,
    ToolFinished,
    ToolProgressed,
    ToolStarted,
)
from clew.domain.runs.ports import RunLog, ThreadPort
from clew.domain.runs.request_construction import digest_of_tool
from clew.domain.runs.state import CallState, joined_runs, plan_calls


class Calling(NamedTuple):
    """The function call in whose tool the current code runs, and the agent that called it."""

    call: Caller
    by: Actor


calling: ContextVar[Calling | None] = ContextVar("clew_calling", default=None)

OUTCOME_UNKNOWN = "The call had been started before a crash. Nobody knows whether it was carried out: outcome unknown."
REJECTED = "The call was rejected"

CHANGED = (
    "Error: the definition of this tool has changed since you called it, so the call was not carried out. Read the new "
    "definition, and call it again if you still want to."
)

STOPPED = "Error: the call was stopped before it gave a result. Nobody knows how far it came."
"""The result that the model receives for a call that was in progress when its run was stopped."""


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
        the process that started the calls has ended. What is decided while other calls are carried out counts, too.
        """
        waits = await self._carry_out_decided(calls, answer=answer, orphaned=orphaned)
        while waits and not await self._pause():
            await self._journal.write()
            left = [call for call in self._journal.state.calls if call.status != "done"]
            waits = await self._carry_out_decided(left)
        return waits

    async def _pause(self) -> bool:
        """Leave the run to whoever decides; returns False if a decision, or another append, was first."""
        journal, version = self._journal, None
        if any(call.status == "asked" for call in journal.state.calls):
            known = journal.state
            version = await journal.read_decisions()
            if journal.state is not known:
                return False
        self._providers.pause()
        waiting = list(journal.steps)
        try:
            await journal.write(final=True, expected_version=version)
        except (RunInProgressError, RunTakenOverError):
            raise
        except ConflictError:
            journal.steps = waiting
            return False
        await journal.emit_added()
        return True

    async def _carry_out_decided(self, calls: Sequence[CallState], *, answer: int = 0, orphaned: bool = False) -> bool:
        """Carry out, refuse or ask for approval of calls; returns whether approvals are pending."""
        self._answer, self._child_waits = answer, False
        journal, offered = self._journal, self._providers.offered
        tools = {tool.schema.name: tool for tool in offered}
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
        refused = self._refusals(plan.start, calls, tools, orphaned=orphaned)
        for call in plan.start:
            if call.place.content in refused:
                self._refuse(call, *refused[call.place.content])
            elif call.call.name in tools:
                given = standing.get(call.place)
                journal.add(ToolStarted(message=self._message(call), index=call.place.content, standing=given))
                if tools[call.call.name].runs_agent and call.child is None:
                    child, at = uuid.uuid4().hex[:16], call.place.content
                    journal.add(ChildThread(message=self._message(call), index=at, thread_id=child))
                started.add(call.place.content)
            else:
                outcome = unknown_tool(call.call.name, offered)
                self._refuse(call, str(outcome.result), "unknown-tool", outcome.error)
        for call, why in plan.ask:
            self._ask(call, why, tools)
        if started:
            await journal.write()
            await journal.emit_added()
            await self._carry_out([call for call in journal.state.calls if call.place.content in started], tools)
        return bool(plan.ask) or self._child_waits or any(call.status == "asked" for call in calls)

    def _refusals(
        self, starting: Sequence[CallState], calls: Sequence[CallState], tools: Mapping[str, Tool], *, orphaned: bool
    ) -> dict[int, tuple[str, str]]:
        """What the model receives for calls that do not start, and why, by their places in the answer.

        Their tool is another one now, or the model has called it, or it has failed, as often as a run allows: the log
        says how often.
        """
        refused: dict[int, tuple[str, str]] = {}
        changed = self._providers.changed_tools if orphaned else ()
        for call in starting:
            name, called = call.call.name, tools.get(call.call.name)
            if call.status == "started":
                continue
            if name in changed:
                refused[call.place.content] = CHANGED, "changed"
            elif called is not None and (problem := self._limit(called, call, calls)):
                refused[call.place.content] = f"Error: {name} {problem} as often as a run allows.", "limit"
        return refused

    def _limit(self, called: Tool, call: CallState, calls: Sequence[CallState]) -> str | None:
        """What the tool has done as often as a run allows, None if its call may start."""
        state, name = self._journal.state, call.call.name
        if called.max_invocations is not None:
            added = [each.message for each in state.added if each.version != call.place.message]
            names = [made.call.name for made in state.calls or calls if made.place < call.place]
            names += [made.name for message in added if message is not None for made in message.calls]
            if names.count(name) >= called.max_invocations:
                return "was called"
        most = called.max_invocation_exceptions
        return "has failed" if most is not None and state.failures.count(name) >= most else None

    async def _without_request(
        self, calls: Sequence[CallState], tools: Mapping[str, Tool]
    ) -> tuple[Mapping[CallLocation, GivenBy], Container[CallLocation]]:
        """The calls that a standing approval lets begin, and all that need no approval."""
        outer = calling.get()
        above = None if outer is None else outer.call
        log, rules = self._journal.log, self._providers.rules
        return await calls_without_request(calls, tools, rules, log, above, self._context)

    def _ask(self, call: CallState, why: Literal["approval", "outcome-unknown"], tools: dict[str, Tool]) -> None:
        own = None if call.asks else tools.get(call.call.name)
        digest = None if own is None else digest_of_tool(own.schema)
        message, index = self._message(call), call.place.content
        self._journal.add(ApprovalRequested(message=message, index=index, reason=why, tool=digest))

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
        decision = decision_of(call.kind, call.call, approved=approved, reason=call.rejection)
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
            outcome = await _with_usage_of(self._journal.log, call.place, call.child, outcome)
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

    async def finish(self, seconds: float) -> None:
        """Let the calls in progress end, at most that long, and record their results. Others are cancelled.

        Calls that run an agent are cancelled at once: their own runs are left open, too.
        """
        ending = [task for task, call in self._tasks.items() if call.child is None]
        if ending:
            await asyncio.wait(ending, timeout=seconds)
        done = [task for task in ending if task.done()]
        left = [task for task in self._tasks if task not in done]
        for each in self._take_finished(done):
            self._record(each)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)
        if self._progress is not None:
            await self._progress.stop()
        if done:
            await self._journal.write()

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


async def _with_usage_of(log: RunLog, place: CallLocation, child_id: str, outcome: ToolOutcome) -> ToolOutcome:
    """The outcome with the tokens and the cost of the newest run on a child's thread, and of those that handed over."""
    try:
        child = await log.inner(place, child_id)
        newest = await read_run(child, await find_run(child, None))
        state = reduce(joined_runs, await read_runs(child, newest.since))
    except (UnknownThreadError, ThreadDeletedError, UnknownRunError):
        return outcome
    return replace(outcome, usage=state.usage, cost=state.cost)


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
