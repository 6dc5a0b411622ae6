"""The function calls of an answer: which are carried out, which wait for approval, and their outcomes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from clew.agents.context_assembly import ContextAssembly
from clew.agents.journal import Journal
from clew.agents.middleware import ToolCallContext, compose
from clew.agents.run_setup import RunSetup
from clew.agents.tools import Tool, ToolContext, ToolOutcome, call_tool, raised_outcome, unknown_tool
from clew.domain.json_values import check_json
from clew.domain.messages import FunctionResult, Message
from clew.domain.runs.errors import ToolFailedError
from clew.domain.runs.events import ApprovalRequested, ToolFailed, ToolFinished, ToolStarted
from clew.domain.runs.ports import ThreadPort
from clew.domain.runs.state import CallState, plan_calls

OUTCOME_UNKNOWN = "The call had been started before a crash. Nobody knows whether it was carried out: outcome unknown."
REJECTED = "The call was rejected"

STOPPED = "Error: the call was stopped before it gave a result. Nobody knows how far it came."
"""What the model is sent for a call that was under way when its run was stopped."""


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

    async def handle(self, calls: Sequence[CallState], *, answer: int = 0, orphaned: bool = False) -> bool:
        """Carry out, refuse or ask for approval of the calls of an answer; returns whether the run now waits.

        ``answer`` is the index of the answer among the waiting steps, while it is not recorded. ``orphaned`` says that
        the process that started calls is gone.
        """
        self._answer = answer
        journal, tools = self._journal, {tool.schema.name: tool for tool in self._providers.tools}
        plan = plan_calls(calls, self._providers.rules, orphaned=orphaned)
        for call in plan.refuse:
            self._refuse(call, _rejection(call), "rejected")
        started = set()
        for call in plan.start:
            if call.call.name in tools:
                journal.add(ToolStarted(message=self._message(call), index=call.place.content))
                started.add(call.place.content)
            else:
                outcome = unknown_tool(call.call.name, self._providers.tools)
                self._refuse(call, str(outcome.result), "unknown-tool", outcome.error)
        for call, why in plan.ask:
            journal.add(ApprovalRequested(message=self._message(call), index=call.place.content, reason=why))
        if started:
            await journal.write()
            await journal.emit_added()
            await self._carry_out([call for call in journal.state.calls if call.place.content in started], tools)
        waits = bool(plan.ask) or any(call.status == "asked" for call in calls)
        if waits:
            self._providers.pause()
            await journal.write(final=True)
            await journal.emit_added()
        return waits

    def _message(self, call: CallState) -> int:
        """The version of the call's message; a reference to it while it waits to be written."""
        return call.place.message or self._journal.reference(self._answer)

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
            finished = self._take_finished()
            for each in finished:
                self._record(each)
            for call, outcome, _ in finished:
                if tools[call.call.name].errors == "raise" and outcome.raised is not None:
                    raise ToolFailedError(call.call.name, outcome.error or "") from outcome.raised
            if self._tasks:
                await self._journal.write()
                await self._journal.emit_added()

    def _take_finished(self) -> list[Finished]:
        finished: list[Finished] = []
        for task in [task for task in self._tasks if task.done()]:
            call = self._tasks.pop(task)
            finished.append(_stopped(call) if task.cancelled() else task.result())
        return finished

    async def _timed(self, call: CallState, tool: Tool) -> Finished:
        began = time.monotonic()
        outcome = await self._call(call, tool)
        return Finished(call, outcome, round((time.monotonic() - began) * 1000))

    async def _call(self, call: CallState, tool: Tool) -> ToolOutcome:
        """Call a tool, within a telemetry span and the middleware."""
        setup, run_id = self._setup, self._journal.state.run_id
        name, call_id, arguments = call.call.name, call.call.call_id, call.call.arguments
        given = ToolContext(
            deps=setup.deps,
            thread=self._thread,
            actor=setup.actor,
            run_id=run_id,
            call_id=call_id,
            idempotency_key=f"{run_id}:{call.place.message}:{call.place.content}",
        )
        if not setup.middleware and setup.telemetry.instruments is None:
            return await call_tool(tool, arguments, given)
        thread_id = self._journal.log.thread_id
        with setup.telemetry.tool_call(
            name=name, call_id=call_id, thread_id=thread_id, arguments=arguments, description=tool.description
        ) as span:
            about = setup.about(thread_id, run_id)
            context = ToolCallContext(**about, name=name, call_id=call_id, arguments=arguments)
            try:
                outcome = await compose(
                    setup.middleware, "tool_call", context, lambda: call_tool(tool, arguments, given)
                )
                if setup.middleware:
                    check_json(outcome.result, "result")  # the middleware may have returned another outcome
            except Exception as error:  # noqa: BLE001  # middleware that refuses a call fails the call
                outcome = raised_outcome(error)
            span.finished(outcome)
            return outcome

    def _record(self, finished: Finished) -> None:
        call, outcome, ms = finished
        message, index = call.place
        self._journal.add(
            _result(call, outcome.result),
            ToolFinished(message=message, index=index, result=-1, ms=ms)
            if outcome.error is None
            else ToolFailed(message=message, index=index, result=-1, reason=outcome.reason, kind=outcome.error, ms=ms),
        )

    async def stop(self) -> None:
        """Stop the calls that are under way, and let their outcomes wait to be written.

        Calls whose start was written but which have no task are recorded as stopped, too: no call is left open.
        """
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
            for each in self._take_finished():
                self._record(each)
        journal = self._journal
        recorded = {(step.message, step.index) for step in journal.steps if isinstance(step, ToolFinished | ToolFailed)}
        for call in journal.state.calls:
            if call.status == "started" and call.place not in recorded:
                self._record(_stopped(call))


def _stopped(call: CallState) -> Finished:
    return Finished(call, ToolOutcome(STOPPED, "CancelledError", reason="stopped"), 0)


def _rejection(call: CallState) -> str:
    """What the model receives for a rejected call."""
    if call.why == "outcome-unknown":
        return OUTCOME_UNKNOWN
    return f"{REJECTED}: {call.rejection}" if call.rejection else f"{REJECTED}."


def _result(call: CallState, result: Any) -> Message:
    content = FunctionResult(call_id=call.call.call_id, name=call.call.name, result=result)
    return Message(role="tool", contents=(content,))
