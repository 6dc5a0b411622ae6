"""A run: it asks the model, carries out what that wants done, and records each thing before the next one happens.

What waits to be recorded is written together right before something happens outside: before the model is asked, before
tools are called, and at the end. So a process that dies leaves a log from which any other can go on, and a run without
tools costs two commits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from clew.agents.middleware import ModelCallContext, ToolCallContext, compose
from clew.agents.recording import Emit, Recording
from clew.agents.response import AgentUpdate
from clew.agents.setup import MOST_WAIT, Setup
from clew.agents.tool_round import Carried, ToolRound
from clew.agents.tools import ToolContext, ToolOutcome, call_tool, raised_outcome, unknown_tool
from clew.domain.agent_ports import ThreadPort
from clew.domain.asking import body_digest, question_of
from clew.domain.definitions import blobs
from clew.domain.errors import ClewError, ConflictError
from clew.domain.history import HistoryMessage
from clew.domain.json_values import JsonObject
from clew.domain.messages import FunctionResult, Message
from clew.domain.model_client import Answer, CallDelta, Question, ReasoningDelta, ServiceBound, TextDelta, Update
from clew.domain.requests import request_body
from clew.domain.run_errors import (
    ModelError,
    ModelStreamError,
    RunInProgressError,
    RunLimitError,
    RunTakenOverError,
    ToolFailedError,
    UnsupportedThreadError,
)
from clew.domain.run_events import (
    AnswerInterrupted,
    ApprovalRequested,
    Failure,
    ModelAnswered,
    ModelCalled,
    ModelFailed,
    RunAbandoned,
    RunCompleted,
    RunEvent,
    RunFailed,
    RunResumed,
    RunStarted,
    ServiceThreadBound,
    ToolFailed,
    ToolFinished,
    ToolStarted,
)
from clew.domain.run_state import CallPlan, CallState, RunState, calls_of, plan_calls

Reason = Literal["fault", "cancelled", "stopped"]

_REASONS = {"InvalidArgumentsError": "invalid-arguments", "UnknownToolError": "unknown-tool", "TimeoutError": "timeout"}

OUTCOME_UNKNOWN = "The call had been started before a crash. Nobody knows whether it was carried out: outcome unknown."
REJECTED = "The call was rejected"


class Asked(NamedTuple):
    """What a model is asked: in no provider's words, and as the body of the request."""

    question: Question
    body: JsonObject


class Run:
    """One attempt of a run on a thread, from its first commit to its last."""

    def __init__(self, setup: Setup, thread: ThreadPort, state: RunState, emit: Emit | None, attempt: int = 1) -> None:
        self._setup = setup
        self._thread = thread
        self._emit = emit
        self._round: ToolRound | None = None
        self._answered_at: int | None = None
        self.stopped = False
        self.task: asyncio.Task[Any] | None = None
        self._told_messages = 0
        self._first: float | None = None
        self._ms = 0
        self.recording = Recording(thread.runs, state, setup.actor, attempt)

    @property
    def state(self) -> RunState:
        """What the run has done, as far as it is recorded."""
        return self.recording.state

    async def go(self, calls: Sequence[CallState] = ()) -> None:
        """Carry out the run to its end, or until it waits for somebody.

        ``calls`` are those of the newest answer that a run which is gone on with left undone; without any, the model is
        asked first.
        """
        self.task = asyncio.current_task()
        limit = self._setup.limits.seconds
        try:
            async with asyncio.timeout(limit) as scope:
                await self._rounds(calls)
        except TimeoutError as error:
            if not scope.expired():
                await self._end(error)
                raise
            too_long = RunLimitError(
                f"The run took longer than {limit:g} s, the most that it may (max_seconds). What it did is on the log."
            )
            await self._end(too_long)
            raise too_long from None
        except asyncio.CancelledError:
            reason: Reason = "stopped" if self.stopped else "cancelled"
            await self._close(RunAbandoned(reason=reason), reason)
            raise
        except (RunTakenOverError, RunInProgressError):
            await self._stop_tools()
            raise  # it is not this caller's to record any more
        except Exception as error:
            await self._end(error)
            raise
        finally:
            self.recording.let_go()

    # Rounds

    async def _rounds(self, calls: Sequence[CallState]) -> None:
        if calls and await self._settle(plan_calls(calls, self._setup.rules, orphaned=True), calls):
            return
        if self.state.answered:
            await self._complete(self.state.finish_reason)
            return
        if self._thread.kind == "remote":
            await self._open_service_thread()
        while True:
            answer = await self._ask(await self._call())
            asked = calls_of(self._record_answer(answer), 0)
            if not asked:
                await self._complete(answer.finish_reason)
                return
            if await self._settle(plan_calls(asked, self._setup.rules), asked):
                return

    async def _complete(self, finish_reason: str | None) -> None:
        self.recording.add(RunCompleted(finish_reason=finish_reason))
        await self.recording.write(final=True)
        await self._tell_added()

    # Asking the model

    async def _open_service_thread(self) -> None:
        """Where the service wants its side begun before the first request, begin it."""
        opening = getattr(self._setup.client, "open_service_thread", None)
        if opening is None or (await self._thread.runs.service_side()).bound:
            return
        if self.recording.steps:
            await self.recording.write(blobs=blobs(self._setup.definitions))
        reference = await opening()
        if reference is not None:
            self.recording.add(ServiceThreadBound(id=reference.id, kind=reference.kind))
            await self.recording.write()

    async def _call(self) -> Asked:
        """Record that the model is asked; returns what it is asked, on the thread as it is at that moment."""
        recording = self.recording
        limit = self._setup.limits.rounds
        if self.state.rounds >= limit:
            raise RunLimitError(
                f"The run has asked the model {limit} times, the most that it may (max_rounds). "
                "What it did is on the log."
            )
        if self._thread.kind == "remote" and self.state.began and recording.steps:
            await recording.write()  # what the service has had is read from the log
        while True:
            call, asked = await self._called(await recording.history())
            waiting = list(recording.steps)
            recording.add(call)
            began = self.state.began
            try:
                await recording.write(
                    expected_version=recording.version, blobs=() if began else blobs(self._setup.definitions)
                )
            except (RunInProgressError, RunTakenOverError):
                raise
            except ConflictError:
                if not began:
                    raise  # nothing is recorded yet: whether it may begin at all is to be looked at again
                # Others only appended: it is asked on the new tail.
                recording.steps = waiting
                recording.lose_history()
            else:
                return asked

    async def _called(self, history: Sequence[HistoryMessage]) -> tuple[ModelCalled, Asked]:
        setup = self._setup
        client = setup.client
        service = None
        if self._thread.kind == "remote":
            side = await self._thread.runs.service_side()
            if side.left:
                raise UnsupportedThreadError(
                    "The service's conversation",
                    "forked or rewound",
                    ("straight",),
                    "It cannot go back. Fork into a local thread, from the record: thread.fork(kind='local').",
                )
            service = side.call
        call = ModelCalled.model_construct(
            definitions=self._definitions(),
            client=client.kind,
            wire=client.wire,
            model=setup.model,
            options=setup.options,
            digest="",
            service=service,
            streamed=self._emit is not None,
            attempt=self.state.tries + 1,
        )
        question = question_of(call, setup.definitions, history)
        body = request_body(call.wire, question)
        return call.model_copy(update={"digest": body_digest(body)}), Asked(question, body)

    def _definitions(self) -> int:
        """Where the fingerprint is: when it waits to be written, counted back from what comes next."""
        steps = self.recording.steps
        for place, step in enumerate(steps):
            if isinstance(step, RunStarted | RunResumed):
                return self.recording.back(place)
        return self.state.definitions

    async def _ask(self, asked: Asked) -> Answer:
        """The answer; after a fault that may pass, asked for again."""
        while True:
            began = time.monotonic()
            self._first = None
            try:
                answer = await self._through(asked)
            except ModelError as error:
                wait = self._wait(error)
                if wait is None:
                    raise
                failed = ModelFailed(call=self.state.called, error=failure(error), retry_in=wait, ms=_since(began))
                self.recording.add(failed)
                await self.recording.write()
                await asyncio.sleep(wait)
                asked = await self._call()
            else:
                self._ms = _since(began)
                return answer

    async def _through(self, asked: Asked) -> Answer:
        """Ask once, through what is put around model calls."""
        setup = self._setup
        stream = self._emit is not None
        with setup.telemetry.model_call(
            asked.question, client_kind=setup.client.kind, thread_id=self.recording.log.thread_id, stream=stream
        ) as span:
            context = ModelCallContext(**self._about(), round=self.state.rounds + 1, request=asked.body)
            answer = await compose(setup.middleware, "model_call", context, lambda: self._receive(asked.body))
            span.answered(answer)
            return answer

    async def _receive(self, body: JsonObject) -> Answer:
        arriving = self.recording.arriving()
        updates = self._setup.client.ask(body, stream=self._emit is not None)
        began = time.monotonic()
        try:
            async for update in updates:
                if isinstance(update, Answer):
                    return update
                if self._first is None and not isinstance(update, ServiceBound):
                    self._first = time.monotonic() - began
                arriving.take(update)
                await self._told(update)
        finally:
            close = getattr(updates, "aclose", None)
            if close is not None:
                await close()
        raise ModelStreamError("The client ended without an answer, and without an error.")

    def _about(self) -> dict[str, Any]:
        """What middleware is told of the run."""
        identity = self._setup.identity
        return {
            "agent_id": identity.id,
            "agent_name": identity.name,
            "thread_id": self.recording.log.thread_id,
            "run_id": self.state.run_id,
            "actor": self._setup.actor,
        }

    async def _told(self, update: Update) -> None:
        match update:
            case TextDelta(text=text):
                await self._tell(AgentUpdate("text", text))
            case ReasoningDelta(text=text):
                await self._tell(AgentUpdate("reasoning", text))
            case CallDelta(call_id=call_id, name=name, arguments=arguments):
                await self._tell(AgentUpdate("call", arguments, call_id, name))
            case ServiceBound(service=service):
                self.recording.add(ServiceThreadBound(id=service.id, kind=service.kind))
                if self._emit is not None:
                    await self.recording.write()  # the answer may still be cut off
            case _:
                pass

    def _wait(self, error: ModelError) -> float | None:
        """How long to wait before the same is asked again, None when it is not to be."""
        arrived = self.recording.arrived
        tries = self.state.tries
        if not error.retryable or tries > self._setup.limits.retries or (arrived is not None and arrived.begun):
            return None
        if error.retry_after is not None:
            return error.retry_after if error.retry_after <= MOST_WAIT else None
        # Runs that failed together are not to come back together: the run's own id spreads them.
        spread = 1 - int(self.state.run_id[-2:], 16) / 1024
        return min(0.5 * 2.0 ** (tries - 1), 8.0) * spread

    def _record_answer(self, answer: Answer) -> Message:
        message = answer.message
        name = self._setup.identity.name
        if name is not None and message.author is None:
            message = message.model_copy(update={"author": name})
        self._answered_at = self.recording.add(message)
        self.recording.add(
            ModelAnswered(
                call=self.state.called,
                message=-1,
                finish_reason=answer.finish_reason,
                usage=answer.usage,
                model=answer.model,
                response_id=answer.response_id,
                first_ms=None if self._emit is None or self._first is None else round(self._first * 1000),
                ms=self._ms,
            )
        )
        return message

    # Function calls

    async def _settle(self, plan: CallPlan, calls: Sequence[CallState]) -> bool:
        """Do what is to be done about the calls of an answer; true when the run then waits for somebody."""
        recording = self.recording
        for call in plan.refuse:
            self._refuse(call, _rejection(call), "rejected")
        known = {tool.name for tool in self._setup.tools}
        begins = [call for call in plan.start if call.call.name in known]
        for call in plan.start:
            if call.call.name in known:
                recording.add(ToolStarted(message=self._message(call), index=call.place.content))
            else:
                outcome = unknown_tool(call.call.name, self._setup.tools)
                self._refuse(call, str(outcome.result), "unknown-tool", outcome.error)
        for call, why in plan.ask:
            recording.add(ApprovalRequested(message=self._message(call), index=call.place.content, reason=why))
        if begins:
            await recording.write()
            await self._tell_added()
            places = {call.place.content for call in begins}
            await self._carry_out([call for call in self.state.calls if call.place.content in places])
        waits = bool(plan.ask) or any(call.status == "asked" for call in calls)
        if waits:
            await recording.write(final=True)
            await self._tell_added()
        return waits

    def _message(self, call: CallState) -> int:
        """Where the call's message is: among what waits, unless it is recorded."""
        if call.place.message:
            return call.place.message
        return self.recording.back(self._answered_at or 0)

    def _refuse(self, call: CallState, text: str, reason: str, kind: str | None = None) -> None:
        self.recording.add(_result(call, text))
        at = self._message(call)
        self.recording.add(ToolFailed(message=at, index=call.place.content, result=-1, reason=reason, kind=kind))

    async def _carry_out(self, calls: Sequence[CallState]) -> None:
        self._round = ToolRound(calls, self._carry)
        async for carried, more in self._round.results():
            for each in carried:
                self._record_result(each)
            raised = next((each for each in carried if self._raises(each)), None)
            if raised is not None:
                raise ToolFailedError(raised.call.call.name, raised.outcome.error or "") from raised.outcome.raised
            if more:
                await self.recording.write()
                await self._tell_added()
        self._round = None

    def _raises(self, carried: Carried) -> bool:
        tool = self._setup.tool(carried.call.call.name)
        return tool is not None and tool.errors == "raise" and carried.outcome.raised is not None

    async def _carry(self, call: CallState) -> ToolOutcome:
        """Call a tool, through what is put around tool calls."""
        setup = self._setup
        name, call_id, arguments = call.call.name, call.call.call_id, call.call.arguments
        tool = next(tool for tool in setup.tools if tool.name == name)
        run_id = self.state.run_id
        given = ToolContext(
            deps=setup.deps,
            thread=self._thread,
            actor=setup.actor,
            run_id=run_id,
            call_id=call_id,
            idempotency_key=f"{run_id}:{call.place.message}:{call.place.content}",
        )
        with setup.telemetry.tool_call(
            name=name,
            call_id=call_id,
            thread_id=self.recording.log.thread_id,
            arguments=arguments,
            description=tool.description,
        ) as span:
            context = ToolCallContext(**self._about(), name=name, call_id=call_id, arguments=arguments)
            try:
                outcome = await compose(
                    setup.middleware, "tool_call", context, lambda: call_tool(tool, arguments, given)
                )
            except Exception as error:  # noqa: BLE001  # middleware that refuses a call is the call's failure
                outcome = raised_outcome(error)
            span.finished(outcome)
            return outcome

    def _record_result(self, carried: Carried) -> None:
        call, outcome, milliseconds = carried
        self.recording.add(_result(call, outcome.result))
        message, index = call.place
        if outcome.error is None:
            self.recording.add(ToolFinished(message=message, index=index, result=-1, ms=milliseconds))
            return
        reason = "stopped" if outcome.error == "CancelledError" else _REASONS.get(outcome.error, "raised")
        if outcome.error == "TimeoutError" and not isinstance(outcome.raised, TimeoutError):
            reason = "raised"
        self.recording.add(
            ToolFailed(message=message, index=index, result=-1, reason=reason, kind=outcome.error, ms=milliseconds)
        )

    # The end, when it is not a good one

    async def _end(self, error: Exception) -> None:
        await self._close(RunFailed(error=failure(error)), "fault", error)

    async def _close(self, last: RunEvent, reason: Reason, error: Exception | None = None) -> None:
        """Record what was under way when the run ended, and that it did."""
        await self._stop_tools()
        recording = self.recording
        if not self.state.began or self.state.ended:
            return  # it never began, or all of it is recorded
        told = any(isinstance(step, ModelAnswered | ModelFailed | AnswerInterrupted) for step in recording.steps)
        if self.state.called and not told:
            self._interrupt(reason, error)
        recording.add(last)
        await recording.write(final=True)

    def _interrupt(self, reason: Reason, error: Exception | None) -> None:
        recording = self.recording
        arrived = recording.arrived
        said = failure(error) if error is not None else None
        if isinstance(error, ModelError) and said is not None and not (arrived is not None and arrived.begun):
            recording.add(ModelFailed(call=self.state.called, error=said, ms=0))
            return
        part = None if arrived is None else arrived.message(self._setup.identity.name)
        if part is not None:
            recording.add(part)
        recording.add(
            AnswerInterrupted(call=self.state.called, message=None if part is None else -1, reason=reason, error=said)
        )

    async def _stop_tools(self) -> None:
        if self._round is not None:
            under_way, self._round = self._round, None
            for each in await under_way.stop():
                self._record_result(each)

    # Telling whoever follows

    async def _tell(self, update: AgentUpdate) -> None:
        if self._emit is not None:
            await self._emit(update)

    async def _tell_added(self) -> None:
        """The messages that were recorded since this was called last."""
        if self._emit is None:
            return
        told, self._told_messages = self._told_messages, len(self.state.added)
        for message in self.state.added[told:]:
            await self._emit(AgentUpdate("answer" if message.role == "assistant" else "result", message=message))


def failure(error: BaseException) -> Failure:
    """What an error is recorded as: of a model service what it said, of any other only what it is."""
    if isinstance(error, ModelError):
        return Failure(kind=type(error).__name__, message=str(error), status=error.status, code=error.code)
    if isinstance(error, ClewError):
        return Failure(kind=type(error).__name__, message=str(error))
    return Failure(kind=type(error).__name__)


def _rejection(call: CallState) -> str:
    """What the model is told of a call that somebody rejected."""
    if call.why == "outcome-unknown":
        return OUTCOME_UNKNOWN
    return f"{REJECTED}: {call.said}" if call.said else f"{REJECTED}."


def _result(call: CallState, result: Any) -> Message:
    content = FunctionResult(call_id=call.call.call_id, name=call.call.name, result=result)
    return Message(role="tool", contents=(content,))


def _since(began: float) -> int:
    return round((time.monotonic() - began) * 1000)
