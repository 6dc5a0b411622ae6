"""The function calls of an answer: which are carried out, which somebody is asked about, and what came of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clew.agents.attempt import Attempt
from clew.agents.middleware import ToolCallContext, compose
from clew.agents.tool_round import Carried, ToolRound, stopped
from clew.agents.tools import ToolContext, ToolOutcome, call_tool, raised_outcome, unknown_tool
from clew.domain.json_values import check_json
from clew.domain.messages import FunctionResult, Message
from clew.domain.runs.errors import ToolFailedError
from clew.domain.runs.events import ApprovalRequested, ToolFailed, ToolFinished, ToolStarted
from clew.domain.runs.state import CallPlan, CallState

OUTCOME_UNKNOWN = "The call had been started before a crash. Nobody knows whether it was carried out: outcome unknown."
REJECTED = "The call was rejected"


class ToolCalls:
    """The function calls of an attempt, those of one answer after those of the other."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._setup = attempt.setup
        self._recording = attempt.recording
        self._round: ToolRound | None = None
        self._answer = 0

    async def settle(self, plan: CallPlan, calls: Sequence[CallState], answer: int = 0) -> bool:
        """Do what is to be done about the calls of an answer; true when the run then waits for somebody.

        ``answer`` is the place of the answer among what waits to be written, while it is not recorded.
        """
        self._answer = answer
        recording = self._recording
        for call in plan.refuse:
            self._refuse(call, _rejection(call), "rejected")
        tools = self._attempt.context.tools
        known = {tool.name for tool in tools}
        begins = [call for call in plan.start if call.call.name in known]
        for call in plan.start:
            if call.call.name in known:
                recording.add(ToolStarted(message=self._message(call), index=call.place.content))
            else:
                outcome = unknown_tool(call.call.name, tools)
                self._refuse(call, str(outcome.result), "unknown-tool", outcome.error)
        for call, why in plan.ask:
            recording.add(ApprovalRequested(message=self._message(call), index=call.place.content, reason=why))
        if begins:
            await recording.write()
            await self._attempt.tell_added()
            places = {call.place.content for call in begins}
            await self._carry_out([call for call in self._attempt.state.calls if call.place.content in places])
        waits = bool(plan.ask) or any(call.status == "asked" for call in calls)
        if waits:
            self._attempt.context.pause()
            await recording.write(final=True)
            await self._attempt.tell_added()
        return waits

    def _message(self, call: CallState) -> int:
        """Where the call's message is: among what waits, unless it is recorded."""
        if call.place.message:
            return call.place.message
        return self._recording.back(self._answer)

    def _refuse(self, call: CallState, text: str, reason: str, kind: str | None = None) -> None:
        self._recording.add(_result(call, text))
        at = self._message(call)
        self._recording.add(ToolFailed(message=at, index=call.place.content, result=-1, reason=reason, kind=kind))

    async def _carry_out(self, calls: Sequence[CallState]) -> None:
        self._round = ToolRound(calls, self._carry)
        async for carried, more in self._round.results():
            for each in carried:
                self._record_result(each)
            raised = next((each for each in carried if self._raises(each)), None)
            if raised is not None:
                raise ToolFailedError(raised.call.call.name, raised.outcome.error or "") from raised.outcome.raised
            if more:
                await self._recording.write()
                await self._attempt.tell_added()
        self._round = None

    def _raises(self, carried: Carried) -> bool:
        tool = self._attempt.context.tool(carried.call.call.name)
        return tool is not None and tool.errors == "raise" and carried.outcome.raised is not None

    async def _carry(self, call: CallState) -> ToolOutcome:
        """Call a tool, through what is put around tool calls."""
        setup = self._setup
        name, call_id, arguments = call.call.name, call.call.call_id, call.call.arguments
        tool = next(tool for tool in self._attempt.context.tools if tool.name == name)
        run_id = self._attempt.state.run_id
        given = ToolContext(
            deps=setup.deps,
            thread=self._attempt.thread,
            actor=setup.actor,
            run_id=run_id,
            call_id=call_id,
            idempotency_key=f"{run_id}:{call.place.message}:{call.place.content}",
        )
        with setup.telemetry.tool_call(
            name=name,
            call_id=call_id,
            thread_id=self._recording.log.thread_id,
            arguments=arguments,
            description=tool.description,
        ) as span:
            context = ToolCallContext(**self._attempt.about(), name=name, call_id=call_id, arguments=arguments)
            try:
                outcome = await compose(
                    setup.middleware, "tool_call", context, lambda: call_tool(tool, arguments, given)
                )
                if setup.middleware:
                    check_json(outcome.result, "result")  # what a tool gives is checked, and this may be another
            except Exception as error:  # noqa: BLE001  # middleware that refuses a call is the call's failure
                outcome = raised_outcome(error)
            span.finished(outcome)
            return outcome

    def _record_result(self, carried: Carried) -> None:
        call, outcome, milliseconds = carried
        self._recording.add(_result(call, outcome.result))
        message, index = call.place
        if outcome.error is None:
            self._recording.add(ToolFinished(message=message, index=index, result=-1, ms=milliseconds))
            return
        reason = outcome.reason
        self._recording.add(
            ToolFailed(message=message, index=index, result=-1, reason=reason, kind=outcome.error, ms=milliseconds)
        )

    async def stop(self) -> None:
        """End what is under way; what came of it waits to be written.

        So that no call is left without an outcome, those are told of too whose beginning was all that was recorded.
        """
        if self._round is not None:
            under_way, self._round = self._round, None
            for each in await under_way.stop():
                self._record_result(each)
        told = {
            (step.message, step.index) for step in self._recording.steps if isinstance(step, ToolFinished | ToolFailed)
        }
        for call in self._attempt.state.calls:
            if call.status == "started" and call.place not in told:
                self._record_result(stopped(call))


def _rejection(call: CallState) -> str:
    """What the model is told of a call that somebody rejected."""
    if call.why == "outcome-unknown":
        return OUTCOME_UNKNOWN
    return f"{REJECTED}: {call.said}" if call.said else f"{REJECTED}."


def _result(call: CallState, result: Any) -> Message:
    content = FunctionResult(call_id=call.call.call_id, name=call.call.name, result=result)
    return Message(role="tool", contents=(content,))
