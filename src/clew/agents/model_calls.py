"""Asking the model: what it is asked is recorded first, and what it answers last."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from clew.agents.attempt import Attempt
from clew.agents.failing import failure
from clew.agents.middleware import ModelCallContext, compose
from clew.agents.response import AgentUpdate
from clew.agents.run_setup import MOST_WAIT
from clew.domain.errors import ConflictError, InvalidContentError
from clew.domain.history import HistoryMessage
from clew.domain.json_values import JsonObject
from clew.domain.messages import Message, check_message
from clew.domain.models.client import Answer, CallDelta, Question, ReasoningDelta, ServiceBound, TextDelta, Update
from clew.domain.models.requests import request_body
from clew.domain.runs.definitions import blobs
from clew.domain.runs.errors import (
    ModelError,
    ModelStreamError,
    RunInProgressError,
    RunLimitError,
    RunTakenOverError,
    ServiceCannotForkError,
)
from clew.domain.runs.events import (
    AnswerInterrupted,
    ModelAnswered,
    ModelCalled,
    ModelFailed,
    RunResumed,
    RunStarted,
    ServiceThreadBound,
)
from clew.domain.runs.request_building import body_digest, question_of

Reason: TypeAlias = Literal["fault", "cancelled", "stopped"]
"""Why an answer stopped while it was arriving."""


_OF_SERVICE = ServiceThreadBound | ModelAnswered | ModelFailed
"""What says what the service has had, and what it calls that."""


class Asked(NamedTuple):
    """What a model is asked: in no provider's words, and as the body of the request."""

    question: Question
    body: JsonObject


class ModelCalls:
    """The model calls of an attempt, one after the other."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._setup = attempt.setup
        self._recording = attempt.recording
        self._began = 0.0
        self._first: float | None = None

    async def open_service_thread(self) -> None:
        """Where the service wants its side begun before the first request, begin it."""
        opening = getattr(self._setup.client, "open_service_thread", None)
        if opening is None or (await self._attempt.thread.runs.control(fresh=True)).service_thread_id is not None:
            return
        recording = self._recording
        if not self._attempt.state.began:
            await recording.write(blobs=blobs(self._setup.definitions))
        reference = await opening()
        if reference is not None:
            # What was given for the request waits on: it is recorded with the call, or given again after a crash.
            waiting, recording.steps = recording.steps, [ServiceThreadBound(id=reference.id, kind=reference.kind)]
            try:
                await recording.write()
            finally:
                recording.steps += waiting

    async def call(self) -> Asked:
        """Record that the model is asked; returns what it is asked, on the thread as it is at that moment."""
        recording = self._recording
        self._check_rounds()
        if self._attempt.thread.kind == "remote" and any(isinstance(step, _OF_SERVICE) for step in recording.steps):
            await recording.write()  # what the service has had is read from the log
        while True:
            call, asked = await self._called(await recording.history())
            self._check_asked(asked)
            waiting = list(recording.steps)
            recording.add(call)
            before = self._attempt.state
            began = before.began
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
            except asyncio.CancelledError:
                if self._attempt.state is before:
                    recording.steps = waiting  # nothing was written: what waits is for the end of the run to write
                raise
            else:
                await self._attempt.tell_added()
                return asked

    def _check_rounds(self) -> None:
        limit = self._setup.limits.rounds
        if self._attempt.state.rounds >= limit:
            raise RunLimitError(
                f"The run has asked the model {limit} times, the most that it may (max_rounds). "
                "What it did is on the log."
            )

    def _check_asked(self, asked: Asked) -> None:
        """Nothing is recorded of a run that would ask nothing."""
        if not self._attempt.state.began and not asked.question.messages:
            thread_id = self._recording.log.thread_id
            raise InvalidContentError(f"run: there is nothing to answer on thread {thread_id!r}. Give some input.")

    async def _called(self, history: Sequence[HistoryMessage]) -> tuple[ModelCalled, Asked]:
        setup = self._setup
        client = setup.client
        service = None
        if self._attempt.thread.kind == "remote":
            side = await self._attempt.thread.runs.service_side()
            if side.left:
                id_ = side.bound[-1].reference.id
                raise ServiceCannotForkError("run", self._recording.log.thread_id, id_)
            service = side.call
        call = ModelCalled.model_construct(
            definitions=self._definitions(),
            client=client.kind,
            wire=client.wire,
            model=setup.model,
            options=setup.options,
            digest="",
            service=service,
            streamed=self._attempt.streamed,
            attempt=self._attempt.state.tries + 1,
        )
        context = self._attempt.context
        question = question_of(call, setup.definitions, history, context.given(), context.reduction)
        body = request_body(call.wire, question)
        return call.model_copy(update={"digest": body_digest(body)}), Asked(question, body)

    def _definitions(self) -> int:
        """Where the fingerprint is: when it waits to be written, counted back from what comes next."""
        steps = self._recording.steps
        for place, step in enumerate(steps):
            if isinstance(step, RunStarted | RunResumed):
                return self._recording.back(place)
        return self._attempt.state.definitions

    async def ask(self, asked: Asked) -> Answer:
        """The answer; after a fault that may pass, asked for again."""
        while True:
            self._began, self._first = time.monotonic(), None
            try:
                return await self._through(asked)
            except ModelError as error:
                wait = self._wait(error)
                if wait is None:
                    raise
                failed = ModelFailed(
                    call=self._attempt.state.called, error=failure(error), retry_in=wait, ms=_since(self._began)
                )
                self._recording.add(failed)
                await self._recording.write()
                await asyncio.sleep(wait)
                asked = await self.call()

    async def _through(self, asked: Asked) -> Answer:
        """Ask once, through what is put around model calls."""
        setup = self._setup
        stream = self._attempt.streamed
        with setup.telemetry.model_call(
            asked.question, client_kind=setup.client.kind, thread_id=self._recording.log.thread_id, stream=stream
        ) as span:
            context = ModelCallContext(
                **self._attempt.about(), round=self._attempt.state.rounds + 1, request=asked.body
            )
            answer = await compose(setup.middleware, "model_call", context, lambda: self._receive(asked.body))
            span.answered(answer)
            return answer

    async def _receive(self, body: JsonObject) -> Answer:
        arriving = self._recording.arriving(self._setup.identity.name)
        updates = self._setup.client.ask(body, stream=self._attempt.streamed)
        try:
            async for update in updates:
                if isinstance(update, Answer):
                    return update
                if self._first is None and not isinstance(update, ServiceBound):
                    self._first = time.monotonic() - self._began
                arriving.take(update)
                await self._told(update)
        finally:
            close = getattr(updates, "aclose", None)
            if close is not None:
                await close()
        raise ModelStreamError("The client ended without an answer, and without an error.")

    async def _told(self, update: Update) -> None:
        match update:
            case TextDelta(text=text):
                await self._attempt.tell(AgentUpdate("text", text))
            case ReasoningDelta(text=text):
                await self._attempt.tell(AgentUpdate("reasoning", text))
            case CallDelta(call_id=call_id, name=name, arguments=arguments):
                await self._attempt.tell(AgentUpdate("call", arguments, call_id, name))
            case ServiceBound(service=service):
                self._recording.add(ServiceThreadBound(id=service.id, kind=service.kind))
                if self._attempt.streamed:
                    await self._recording.write()  # the answer may still be cut off
            case _:
                pass

    def _wait(self, error: ModelError) -> float | None:
        """How long to wait before the same is asked again, None when it is not to be."""
        arrived = self._recording.arrived
        tries = self._attempt.state.tries
        if not error.retryable or tries > self._setup.limits.retries or (arrived is not None and arrived.begun):
            return None
        if error.retry_after is not None:
            return error.retry_after if error.retry_after <= MOST_WAIT else None
        # Runs that failed together are not to come back together: the run's own id spreads them.
        spread = 1 - int(self._attempt.state.run_id[-2:], 16) / 1024
        return min(0.5 * 2.0 ** (tries - 1), 8.0) * spread

    def record(self, answer: Answer) -> tuple[Message, int]:
        """Let the answer wait to be written; returns its message with its place there.

        Raises InvalidContentError for one that cannot be: what has arrived of it is kept then.
        """
        message = self._signed(answer.message)
        check_message(message)
        place = self._recording.add(message)
        self._recording.add(
            ModelAnswered(
                call=self._attempt.state.called,
                message=-1,
                finish_reason=answer.finish_reason,
                usage=answer.usage,
                model=answer.model,
                response_id=answer.response_id,
                first_ms=None if not self._attempt.streamed or self._first is None else round(self._first * 1000),
                ms=_since(self._began),
            )
        )
        return message, place

    def _signed(self, message: Message) -> Message:
        """The answer with its author and, when it calls nothing more, with what it rests on."""
        changes: dict[str, object] = {}
        name, citations = self._setup.identity.name, self._attempt.context.citations
        if name is not None and message.author is None:
            changes["author"] = name
        if citations and not message.calls:
            changes["metadata"] = {**message.metadata, "citations": citations}
        return message.model_copy(update=changes) if changes else message

    def interrupt(self, reason: Reason, error: Exception | None) -> None:
        """Say of the call that is not answered that it will not be, with what has come of the answer."""
        recording = self._recording
        arrived = recording.arrived
        said = failure(error) if error is not None else None
        if isinstance(error, ModelError) and said is not None and not (arrived is not None and arrived.begun):
            recording.add(ModelFailed(call=self._attempt.state.called, error=said, ms=_since(self._began)))
            return
        part = None if arrived is None else arrived.message()
        if part is not None:
            recording.add(part)
        recording.add(
            AnswerInterrupted(
                call=self._attempt.state.called, message=None if part is None else -1, reason=reason, error=said
            )
        )


def _since(began: float) -> int:
    return round((time.monotonic() - began) * 1000)
