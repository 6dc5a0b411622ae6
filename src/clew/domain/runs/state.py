"""The state of a run from its events, and the plan for its calls: the same for a new and a continued run."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Literal, NamedTuple, TypeAlias

from clew.domain.context.events import ContextProvided
from clew.domain.decider import Actor
from clew.domain.decider_state import CallLocation, OpenRun
from clew.domain.events import MESSAGE_APPENDED, Event
from clew.domain.history import HistoryMessage, as_message
from clew.domain.messages import Content, FunctionCall, Message, Reasoning, Text
from clew.domain.models.client import TokenUsage, joined
from clew.domain.models.client_calls import CallKind, client_calls
from clew.domain.models.prices import BROKEN_OFF, plus
from clew.domain.ports import Draft
from clew.domain.runs.events import (
    AnswerInterrupted,
    ApprovalGiven,
    ApprovalRequested,
    ChildThread,
    Fingerprint,
    GuardrailTripped,
    HandedFrom,
    HandedOff,
    ModelAnswered,
    ModelCalled,
    ModelFailed,
    RunAbandoned,
    RunCompleted,
    RunFailed,
    RunResumed,
    RunStarted,
    ToolFailed,
    ToolFinished,
    ToolStarted,
)

TOOL_RESULT = "tool-result"
"""Why a run ended whose answer is the result of a tool."""

CallStatus: TypeAlias = Literal["new", "asked", "approved", "rejected", "started", "done"]


class CallState(NamedTuple):
    """A function call of the newest answer, and its status.

    ``request`` is the version of the approval request, ``why`` its reason, and ``rejection`` the reason of a rejection.
    ``child`` is the id of the thread on which the call runs an agent. ``kind`` is another than ``function`` for an item
    of the service that waits for the client, and ``asks`` says that it needs an approval whatever the rules are.
    ``tool`` is the digest of the schema of its tool, as its request has it. ``failed`` is set for one that is done and
    has no result of its tool.
    """

    place: CallLocation
    call: FunctionCall
    status: CallStatus = "new"
    request: int = 0
    why: Literal["approval", "outcome-unknown", "child"] = "approval"
    rejection: str | None = None
    child: str | None = None
    kind: CallKind = "function"
    asks: bool = False
    tool: str | None = None
    failed: bool = False


_Move: TypeAlias = ToolStarted | ChildThread | ToolFinished | ToolFailed | ApprovalRequested | ApprovalGiven


@dataclass(frozen=True, slots=True)
class RunState:
    """What a run has done so far.

    ``definitions`` is the version of the event with its ``fingerprint``; ``called`` that of the model call without an
    answer, 0 if there is none, and ``tries`` the number of its attempts. ``added`` are the messages that the run added,
    without its input and without an answer that a guardrail stopped. ``model_call`` is the last model call.
    ``answered`` is true if the newest answer calls no function; ``lost`` if it was redacted, so that its calls are
    unknown. ``provided`` is what context providers gave, and ``ended`` how the run ended, None while it is open. ``by``
    is the agent, on behalf of the caller who started the run. ``cost`` is what the model calls cost in US dollars, also
    those of agents that the run asked; None if that is not known of all.
    ``handed_off`` is the handoff to another agent, and ``handed_from`` the run whose conversation it continues.
    ``failures`` are the names of the tools that have raised or given no result in time, one for each such call.
    """

    run_id: str
    attempt: int = 1
    began: int = 0
    definitions: int = 0
    fingerprint: Fingerprint | None = None
    called: int = 0
    tries: int = 0
    rounds: int = 0
    calls: tuple[CallState, ...] = ()
    added: tuple[HistoryMessage, ...] = ()
    usage: TokenUsage = field(default_factory=TokenUsage)
    cost: Decimal | None = Decimal(0)
    finish_reason: str | None = None
    answered: bool = False
    model_call: ModelCalled | None = None
    lost: bool = False
    provided: tuple[ContextProvided, ...] = ()
    ended: RunCompleted | RunFailed | RunAbandoned | None = None
    by: Actor | None = None
    agent: str = ""
    handed_off: HandedOff | None = None
    handed_from: HandedFrom | None = None
    failures: tuple[str, ...] = ()

    @property
    def since(self) -> int:
        """The version at which it began, or the first of the runs that handed the conversation over."""
        return self.began if self.handed_from is None else self.handed_from.since

    @property
    def all_rounds(self) -> int:
        """Its answers, and those of the runs that handed the conversation over."""
        return self.rounds if self.handed_from is None else self.rounds + self.handed_from.rounds


def joined_runs(first: RunState, second: RunState) -> RunState:
    """The second run, with what the first one added and used before it handed the conversation over."""
    cost = None if first.cost is None or second.cost is None else first.cost + second.cost
    return replace(second, added=(*first.added, *second.added), usage=first.usage + second.usage, cost=cost)


def fold(run_id: str, events: Iterable[Event]) -> RunState:
    """The state of a run after events of its thread, from its start on. Events of other runs are skipped."""
    state = RunState(run_id)
    for event in events:
        if event.run_id == run_id:
            state = after(state, event)
    return state


def after(state: RunState, event: Event) -> RunState:
    """The state after one more event of the run."""
    if event.type == MESSAGE_APPENDED:
        message = None if state.model_call is None else as_message(event)
        return state if message is None else replace(state, added=(*state.added, message))
    data = event.data
    match data:
        case RunStarted():
            at, by = event.version, Actor(data.agent.id, event.on_behalf_of or event.actor)
            began = replace(state, began=at, definitions=at, fingerprint=data.fingerprint, by=by)
            return replace(began, agent=data.agent.id, handed_from=data.handed_from)
        case RunResumed():
            behalf = None if state.by is None else state.by.on_behalf_of
            by = Actor(data.agent.id, behalf or event.on_behalf_of or event.actor)
            resumed = replace(state, attempt=data.attempt, tries=0, definitions=event.version, by=by)
            return replace(resumed, fingerprint=data.fingerprint)
        case ModelCalled():
            tries = data.attempt
            return replace(
                state, called=event.version, tries=tries, answered=False, calls=(), model_call=data, lost=False
            )
        case ModelFailed() | AnswerInterrupted():
            refused = isinstance(data, ModelFailed) and data.error.kind != BROKEN_OFF
            return replace(state, called=0, cost=state.cost if refused else None)
        case ModelAnswered():
            return _answered(state, data)
        case GuardrailTripped() | RunCompleted() | RunFailed() | RunAbandoned():
            return _ending(state, data)
        case ContextProvided():
            return replace(state, provided=with_newest(state.provided, data))
        case (
            ToolStarted()
            | ChildThread()
            | ToolFinished()
            | ToolFailed()
            | HandedOff()
            | ApprovalRequested()
            | ApprovalGiven()
        ):
            return _after_call_step(state, event.version, data)
        case _:
            return state


def _ending(state: RunState, data: GuardrailTripped | RunCompleted | RunFailed | RunAbandoned) -> RunState:
    if isinstance(data, RunCompleted) and data.finish_reason == TOOL_RESULT:
        return replace(state, ended=data, finish_reason=TOOL_RESULT)
    if not isinstance(data, GuardrailTripped):
        return replace(state, ended=data)
    return replace(state, added=state.added[:-1]) if data.stage == "after" else state


def _answered(state: RunState, data: ModelAnswered) -> RunState:
    calls: tuple[CallState, ...] = ()
    for added in reversed(state.added):
        if added.version == data.message:
            calls = () if added.message is None else calls_of(added.message, data.message)
            break
    return replace(
        state,
        called=0,
        tries=0,
        rounds=state.rounds + 1,
        calls=calls,
        answered=not calls and not answers_late(state.model_call),
        finish_reason=data.finish_reason,
        usage=state.usage if data.usage is None else state.usage + data.usage,
        cost=None if data.cost is None else plus(state.cost, data.cost),
    )


def answers_late(call: ModelCalled | None) -> bool:
    """Whether the answer to a call belongs to an earlier run, so that the run has to ask for its own."""
    return call is not None and call.service is not None and call.service.task is not None and call.service.task.late


def calls_of(message: Message, version: int) -> tuple[CallState, ...]:
    """The function calls of an answer at a version, and what else waits for the client, none of them started."""
    calls = [
        CallState(CallLocation(version, index), content)
        for index, content in enumerate(message.contents)
        if isinstance(content, FunctionCall)
    ]
    if message.native is not None:
        waiting = client_calls(message)
        calls += [
            CallState(CallLocation(version, at), each.call, kind=each.kind, asks=each.asks) for at, each in waiting
        ]
        calls.sort(key=_place)
    return tuple(calls)


def _after_call_step(state: RunState, version: int, data: _Move | HandedOff) -> RunState:
    if isinstance(data, HandedOff):
        return replace(state, handed_off=data)
    moved = replace(state, calls=_moved(state.calls, version, data), lost=not state.calls)
    if isinstance(data, ToolFailed) and data.reason in {"raised", "timeout"}:
        failed = [each.call.name for each in state.calls if each.place == (data.message, data.index)]
        moved = replace(moved, failures=(*moved.failures, *failed))
    if not isinstance(data, ToolFinished | ToolFailed) or data.usage is None:
        return moved
    return replace(moved, usage=moved.usage + data.usage, cost=plus(moved.cost, data.cost))


def _moved(calls: tuple[CallState, ...], version: int, data: _Move) -> tuple[CallState, ...]:
    """The calls after a step of one of them. An answer may have thousands: the call is found by bisection."""
    if isinstance(data, ApprovalGiven):
        at = next((at for at, call in enumerate(calls) if call.request == data.request), len(calls))
    else:
        place = CallLocation(data.message, data.index)
        at = bisect_left(calls, place, key=_place)
        if at < len(calls) and calls[at].place != place:
            return calls
    return (*calls[:at], *(_after(call, version, data) for call in calls[at : at + 1]), *calls[at + 1 :])


def _place(call: CallState) -> CallLocation:
    return call.place


def _after(call: CallState, version: int, data: _Move) -> CallState:
    match data:
        case ApprovalGiven(approved=approved, reason=reason):
            return call._replace(status="approved" if approved else "rejected", rejection=reason)
        case ToolStarted():
            return call._replace(status="started")
        case ChildThread(thread_id=thread_id):
            return call._replace(child=thread_id)
        case ApprovalRequested(reason=why, tool=tool):
            return call._replace(status="asked", request=version, why=why, tool=tool)
        case ToolFailed():
            return call._replace(status="done", failed=True)
        case _:
            return call._replace(status="done")


class Rule(NamedTuple):
    """The rules of a tool: whether its calls need approval, and whether they may be repeated."""

    approval: bool = False
    idempotent: bool = False


class CallPlan(NamedTuple):
    """A plan for function calls: which to carry out, which to request approval for, and which to refuse.

    ``answer`` are those whose decision is their result: the service carries them out.
    """

    start: tuple[CallState, ...] = ()
    ask: tuple[tuple[CallState, Literal["approval", "outcome-unknown"]], ...] = ()
    refuse: tuple[CallState, ...] = ()
    answer: tuple[CallState, ...] = ()


def plan_calls(
    calls: Iterable[CallState],
    rules: Mapping[str, Rule],
    *,
    orphaned: bool = False,
    exempt: Container[CallLocation] = (),
) -> CallPlan:
    """Plan the calls of an answer. ``exempt`` are calls that need no approval, although those of their tool may.

    ``orphaned`` says that the process that started calls is gone. A started call is then repeated if its tool is
    idempotent; for any other an approval is requested, because its outcome is unknown. An unknown tool has no rule: its
    call is started, and fails.
    """
    start: list[CallState] = []
    ask: list[tuple[CallState, Literal["approval", "outcome-unknown"]]] = []
    refuse: list[CallState] = []
    answer: list[CallState] = []
    for call in calls:
        rule = rules.get(call.call.name, Rule())
        if call.status in {"approved", "rejected"} and call.kind in {"approval", "input"}:
            answer.append(call)
        elif call.status == "new" and (call.asks or (rule.approval and call.place not in exempt)):
            ask.append((call, "approval"))
        elif call.status in {"new", "approved"} or (call.status == "started" and orphaned and rule.idempotent):
            start.append(call)
        elif call.status == "started" and orphaned:
            ask.append((call, "outcome-unknown"))
        elif call.status == "rejected":
            refuse.append(call)
    return CallPlan(tuple(start), tuple(ask), tuple(refuse), tuple(answer))


MAX_PARTIAL = 1_000_000
"""Characters of text, and of reasoning, that are kept of a partial answer: they fit into any event."""


def draft_of(call: int, message: Message | None) -> bytes:
    """The draft of the answer to a call, as bytes."""
    dumped = None if message is None else message.model_dump()
    return json.dumps({"call": call, "message": dumped}, ensure_ascii=False).encode()


def drafted(data: bytes, call: int) -> Message | None:
    """The message of a draft; None if it belongs to another call, or has no text."""
    draft = json.loads(data)
    if draft["call"] != call or draft["message"] is None:
        return None
    return Message.model_validate({**draft["message"], "cut": True})


def partial(text: Sequence[str], reasoning: Sequence[str], author: str | None) -> Message | None:
    """The message of a partial answer from its pieces; None without text."""
    contents: list[Content] = []
    if thoughts := joined(reasoning)[:MAX_PARTIAL]:
        contents.append(Reasoning(text=thoughts))
    if words := joined(text)[:MAX_PARTIAL]:
        contents.append(Text(text=words))
    return Message(role="assistant", author=author, contents=tuple(contents), cut=True) if words else None


def interrupted(
    run: OpenRun, draft: Draft | None, reason: Literal["stopped", "crashed"]
) -> tuple[Message | AnswerInterrupted, ...]:
    """What to record of an answer that was arriving, when another process ends or continues the run."""
    if not run.call:
        return ()
    part = None
    if draft is not None and draft.run_id == run.id and draft.data is not None:
        part = drafted(draft.data, run.call)
    happened = AnswerInterrupted(call=run.call, message=None if part is None else -1, reason=reason)
    return (happened,) if part is None else (part, happened)


def with_newest(provided: tuple[ContextProvided, ...], newest: ContextProvided) -> tuple[ContextProvided, ...]:
    """What providers gave, with the newest contribution of one of them in place of its earlier one."""
    if any(each.provider == newest.provider for each in provided):
        return tuple(newest if each.provider == newest.provider else each for each in provided)
    return (*provided, newest)


def provided_to(run_id: str, events: Iterable[Event]) -> tuple[ContextProvided, ...]:
    """What providers gave to a run, from the events of its thread."""
    provided: tuple[ContextProvided, ...] = ()
    for event in events:
        if event.run_id == run_id and isinstance(event.data, ContextProvided):
            provided = with_newest(provided, event.data)
    return provided
