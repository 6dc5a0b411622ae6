"""Calls that wait for the client: approvals as interrupts of AG-UI, and tools that the client carries out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ag_ui import core

from clew.agents.response import Approval
from clew.agents.tools import Tool, ToolContext, tool
from clew.agui.messages import call_id, message_id, part_content
from clew.domain.messages import FunctionCall
from clew.domain.runs.state import CallState, RunState

ANSWER: dict[str, Any] = {
    "type": "object",
    "properties": {"approved": {"type": "boolean"}, "reason": {"type": "string"}},
    "required": ["approved"],
}
"""The JSON Schema of an answer to an interrupt."""

NO_RESULT = "The client gave no result."
CANCELLED = "The user gave no answer."


class ClientToolError(Exception):
    """A tool failed at the client."""


class InvalidAnswerError(Exception):
    """The payload of an answer to an interrupt is not a decision."""

    def __init__(self) -> None:
        super().__init__('The payload of an answer must be {"approved": true} or {"approved": false, "reason": "…"}.')


class WaitingCall(NamedTuple):
    """A call for which the ``run`` waits. ``call_id`` is its id at the client, None if the client does not see it."""

    run: str
    approval: Approval
    call_id: str | None

    @property
    def interrupt_id(self) -> str:
        """The id of its interrupt: it begins with the id of the run."""
        return f"{self.run}:{self.approval.thread_id}:{self.approval.version}"


def call_ids(run: str, state: RunState) -> dict[int, tuple[str, CallState]]:
    """The calls of the newest answer and their ids at the client, by their place among the contents.

    ``state`` is that of the run, joined with those that continue its conversation with other agents.
    """
    ids: dict[int, tuple[str, CallState]] = {}
    if not state.calls:
        return ids
    answer = state.calls[0].place.message
    for number, message in enumerate(state.added):
        if message.version == answer:
            places = [at for at, each in enumerate(message.contents) if isinstance(each, FunctionCall)]
            shown = {at: call_id(message_id(run, number), index) for index, at in enumerate(places)}
            ids = {at: (shown[at], each) for each in state.calls if (at := each.place.content) in shown}
    return ids


def waiting_calls(run: str, state: RunState, approvals: Iterable[Approval], thread_id: str) -> list[WaitingCall]:
    """The calls for which a run waits."""
    requests = {each.request: id_ for id_, each in call_ids(run, state).values()}
    return [
        WaitingCall(run, each, requests.get(each.version) if each.thread_id == thread_id else None)
        for each in approvals
    ]


class ClientTools:
    """The tools that a request declares. The client carries their calls out, and its next request has the results."""

    def __init__(self, given: core.RunAgentInput) -> None:
        self._declared = {each.name: each for each in given.tools or ()}
        self._results = {each.tool_call_id: each for each in given.messages if isinstance(each, core.ToolMessage)}

    def carries_out(self, waiting: WaitingCall) -> bool:
        """Whether the client carries out a call."""
        return waiting.call_id is not None and waiting.approval.call.name in self._declared

    def has_result(self, waiting: WaitingCall) -> bool:
        """Whether the request has the result of a call."""
        return waiting.call_id in self._results

    def tools(self, state: RunState | None = None, run: str = "") -> list[Tool]:
        """The tools, which give the results of the request for the calls of a run."""
        given: dict[str, core.ToolMessage] = {}
        if state is not None:
            for id_, call in call_ids(run, state).values():
                if id_ in self._results:
                    given[f"{state.run_id}:{call.place.message}:{call.place.content}"] = self._results[id_]
        return [_tool(each, given) for each in self._declared.values()]


def _tool(declared: core.Tool, results: Mapping[str, core.ToolMessage]) -> Tool:
    async def answer(clew_context: ToolContext, **arguments: Any) -> Any:
        del arguments
        result = results.get(clew_context.idempotency_key)
        if result is None or result.error is not None:
            raise ClientToolError(NO_RESULT if result is None else result.error)
        return result.content if isinstance(result.content, str) else [part_content(each) for each in result.content]

    schema = declared.parameters or {"type": "object", "properties": {}}
    # Its approval is that the client has sent the result. A repeated call has no effect: it gives the result again.
    return tool(
        answer,
        name=declared.name,
        description=declared.description,
        schema=schema,
        approval="always",
        idempotent=True,
    )


def outcome_of(calls: Sequence[WaitingCall], tools: ClientTools) -> Any:
    """The outcome of a run that waits: interrupted, or over for the client if only its own tools are to be called."""
    interrupts = [_interrupt(each) for each in calls if not tools.carries_out(each)]
    if interrupts:
        return core.RunFinishedInterruptOutcome(interrupts=interrupts)
    pending = [each.call_id for each in calls if each.call_id is not None]
    return core.RunFinishedSuccessOutcome(pending_tool_call_ids=pending)


def _interrupt(waiting: WaitingCall) -> core.Interrupt:
    approval, call = waiting.approval, waiting.approval.call
    reason, asks = "confirmation" if waiting.call_id is None else "tool_call", "May the agent call this"
    if approval.reason == "outcome-unknown":
        reason, asks = "clew:outcome-unknown", "Nobody knows whether this call was carried out. May the agent repeat it"
    return core.Interrupt(
        id=waiting.interrupt_id,
        reason=reason,
        message=f"{asks}: {call.name} {call.arguments}?",
        tool_call_id=waiting.call_id,
        response_schema=ANSWER,
        metadata={"clew": {"name": call.name, "arguments": call.arguments}},
    )


def decision(entry: core.ResumeEntry) -> tuple[bool, str | None]:
    """Whether an interrupt is approved, and why. Raises InvalidAnswerError."""
    if entry.status == "cancelled":
        return False, CANCELLED
    match entry.payload:
        case bool(approved) | {"approved": bool(approved), "reason": None}:
            return approved, None
        case {"approved": bool(approved), "reason": str(reason)}:
            return approved, reason
        case {"approved": bool(approved), **rest} if "reason" not in rest:
            return approved, None
        case _:
            raise InvalidAnswerError
