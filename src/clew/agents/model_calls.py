"""The model calls of a run: the request is recorded before it is sent, the answer before the run acts on it."""

from __future__ import annotations

import asyncio
import copy
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from typing import Literal, TypeAlias
from uuid import NAMESPACE_URL, uuid5

from clew.agents.context_assembly import ContextAssembly
from clew.agents.journal import MANY_MESSAGES, Journal, failure
from clew.agents.middleware import Intervention, ModelCallContext, compose
from clew.agents.response import AgentUpdate
from clew.agents.run_setup import RunSetup
from clew.agents.telemetry import model_span
from clew.domain.errors import ConflictError, InvalidContentError
from clew.domain.history import HistoryMessage
from clew.domain.json_patch import difference, patched
from clew.domain.json_values import JsonObject, check_json
from clew.domain.messages import Message, check_message, may_have_media
from clew.domain.models.client import (
    CUT,
    EDITION,
    Answer,
    CallDelta,
    ModelRequest,
    Question,
    ReasoningDelta,
    RemoteTask,
    ServiceBound,
    ServiceReference,
    TextDelta,
    Update,
    WireFormat,
)
from clew.domain.models.media import UnsentMedia
from clew.domain.models.native import has_signed_parts, signatures
from clew.domain.models.prices import Cost, recorded
from clew.domain.models.tool_choice import without_forced_call
from clew.domain.runs.errors import (
    AgentConfigurationError,
    MediaNotSentError,
    MediaNotSentWarning,
    ModelError,
    ModelStreamError,
    RemoteTaskError,
    RunInProgressError,
    RunLimitError,
    RunTakenOverError,
    ServiceCannotForkError,
    ServiceThreadExpiredError,
    unsent_words,
)
from clew.domain.runs.events import (
    AnswerInterrupted,
    ModelAnswered,
    ModelCalled,
    ModelFailed,
    RequestChanged,
    RequestWithheld,
    RunResumed,
    RunStarted,
    ServiceCall,
    ServiceThreadBound,
)
from clew.domain.runs.ports import ThreadPort
from clew.domain.runs.remote_threads import ServiceState
from clew.domain.runs.request_construction import lost_media, prefix_of, request_bytes, request_of, stream_request
from clew.domain.runs.state import answers_late
from clew.domain.streams import digest

InterruptReason: TypeAlias = Literal["fault", "cancelled", "stopped"]
"""Why an answer stopped while it was arriving."""

MAX_RETRY_SECONDS = 60.0
"""The longest wait before a retry that a service may request. If it requests more, the run fails."""

CANCEL_SECONDS = 5.0
"""The longest wait for a remote agent to confirm that it cancels a task."""

_NOTHING = TextDelta("")

_SERVICE_STEPS = ServiceThreadBound | ModelAnswered | ModelFailed
"""Steps from which the state of the service's thread is computed."""


class ModelCalls:
    """The model calls of one attempt of a run, one after the other."""

    def __init__(self, setup: RunSetup, thread: ThreadPort, journal: Journal, providers: ContextAssembly) -> None:
        self._setup = setup
        self._thread = thread
        self._journal = journal
        self._providers = providers
        self._sent = 0.0
        self._first: float | None = None
        self._reseeds = False
        self._task: str | None = None
        self._service: ServiceReference | None = None
        self._shown = 0
        self._lost_media: set[UnsentMedia] = set()
        self._intervention = Intervention()
        self._arrived: bool | None = None
        """Whether the service has received the request of the open call; None if that is not known."""
        self._cost: Cost | None = None
        if setup.client.wire.has_tasks:
            journal.keeps_drafts = False  # the agent has the whole answer, and the run reads it there
        prices = journal.log.prices
        is_named = getattr(setup.client, "provider", None) is not None or not getattr(prices, "needs_provider", False)
        self._may_cost = bool(setup.middleware) or (prices is not None and is_named)
        """Whether the cost of a call may be known: from the price list, or because middleware withholds the request."""

    async def open_service_thread(self) -> None:
        """Create the thread at the service before the first request, if the client requires it."""
        opening = getattr(self._setup.client, "open_service_thread", None)
        if opening is None or (await self._thread.runs.control(fresh=True)).service_thread_id is not None:
            return
        journal = self._journal
        if not journal.state.began:
            await journal.write(blobs=self._setup.definitions.blobs)
        reference = await opening()
        if reference is not None:
            await self._write_first(ServiceThreadBound(id=reference.id, kind=reference.kind))

    async def _write_first(self, bound: ServiceThreadBound) -> None:
        """Write an id of the service now. Other steps keep waiting: they are recorded with the call, or made again."""
        journal = self._journal
        waiting, journal.steps = journal.steps, [bound]
        try:
            await journal.write()
        finally:
            journal.steps += waiting

    async def _find_task(self) -> None:
        """Look at a remote agent for the task of a message that may have arrived, and record that it has."""
        find, journal = getattr(self._setup.client, "find_task", None), self._journal
        if find is None:
            return
        if any(isinstance(step, _SERVICE_STEPS) for step in journal.steps):
            await journal.write()
        state = await self._thread.runs.service_state()
        reference, lost = state.call.reference, state.tasks.lost
        if reference is None or lost is None or state.diverged:
            return
        run = journal.state
        if not self._setup.client.wire.answers_in_turn and (
            state.tasks.lost_run != run.run_id or run.attempt == 1 or run.tries
        ):
            return  # a request is repeated only if it did not arrive, and a new run is the caller's decision
        if not journal.state.began:
            await journal.write(blobs=self._setup.definitions.blobs)
        if (task := await find(reference, lost)) is not None:
            await self._write_first(ServiceThreadBound(id=reference.id, kind=reference.kind, task=task))

    async def ask(self) -> Answer:
        """Ask the model about the current thread, and retry after a temporary fault; returns its answer."""
        limit = self._setup.limits.rounds
        if self._journal.state.all_rounds >= limit:
            raise RunLimitError(
                f"The run made as many model calls as max_rounds allows: {limit}. The log has its steps so far."
            )
        self._shown = 0
        while True:
            if self._thread.kind == "remote":
                await self._find_task()
            question, request = await self._record_call()
            self._sent, self._first, self._intervention = time.monotonic(), None, Intervention()
            self._arrived = None
            try:
                if self._setup.is_observed:
                    return await self._observed(question, request)
                answer = await self._send(request)
                if self._may_cost:
                    await self._price(answer)
            except ModelError as error:
                wait = self._retry_seconds(error)
                if wait is None and isinstance(error, RemoteTaskError) and request.task and request.task.late:
                    wait = 0.0  # the task of an earlier run has ended without an answer
                if wait is None:
                    raise
                self._journal.add(self._failed(error, retry_in=wait))
                await self._journal.write()
                await asyncio.sleep(wait)
            else:
                return answer

    async def _record_call(self) -> tuple[Question, ModelRequest]:
        """Record the model call; returns the question and the request."""
        journal = self._journal
        if self._thread.kind == "remote" and any(isinstance(step, _SERVICE_STEPS) for step in journal.steps):
            await journal.write()  # the state of the service's thread is read from the log
        await self._write_media()
        while True:
            history = await (journal.whole_history() if self._reseeds else journal.history())
            call, changes, question, request = await self._next_call(history)
            before = journal.state
            if not before.began and not question.messages:
                thread_id = journal.log.thread_id
                raise InvalidContentError(f"run: there is nothing to answer on thread {thread_id!r}. Give some input.")
            waiting = list(journal.steps)
            journal.add(call, *changes)
            blobs = () if before.began else self._setup.definitions.blobs
            try:
                await journal.write(expected_version=journal.version, blobs=blobs)
            except (RunInProgressError, RunTakenOverError):
                raise
            except ConflictError:
                if not before.began:
                    raise  # nothing is recorded yet: the run is admitted again
                # Other clients only appended: ask again, with their messages.
                journal.steps = waiting
                journal.discard_history()
            except asyncio.CancelledError:
                if journal.state is before:
                    journal.steps = waiting  # nothing was written: the end of the run writes it
                raise
            else:
                await journal.emit_added()
                return question, request

    async def _write_media(self) -> None:
        """Write the waiting steps if they have media: what cannot be sent is reported with its version."""
        journal = self._journal
        if not may_have_media(journal.steps):
            return
        if journal.state.began:
            await journal.write()
        else:
            await journal.write(expected_version=journal.version, blobs=self._setup.definitions.blobs)

    async def _next_call(
        self, history: Sequence[HistoryMessage]
    ) -> tuple[ModelCalled, Sequence[RequestChanged], Question, ModelRequest]:
        """The call, what middleware changed in its request, the question and the request."""
        setup, journal, providers = self._setup, self._journal, self._providers
        wire, streams = setup.client.wire, journal.emit is not None
        service = None
        if self._thread.kind == "remote":
            service = await self._service_call(wire)
        options = setup.options
        if options and journal.state.rounds and setup.resets_tool_choice:
            options = without_forced_call(options)
        call = ModelCalled.model_construct(
            definitions=self._definitions_version(),
            client=setup.client.kind,
            wire=wire.name,
            model=setup.model,
            options=options if wire.options_on is None else wire.options_on(self._thread.kind, options),
            digest="",
            provider=getattr(setup.client, "provider", None),
            late=providers.late_versions(),
            edition=EDITION,
            service=service,
            streamed=streams,
            attempt=journal.state.tries + 1,
            disabled=await providers.disabled(),
        )
        contributions = providers.contributions()
        parts = wire, call, setup.definitions, history, contributions, providers.reduction
        if len(history) > MANY_MESSAGES:
            question, body, content = await asyncio.to_thread(request_of, *parts)
        else:
            question, body, content = request_of(*parts)
        _check_sendable(wire, question)
        if lost := lost_media(wire, call, question, contributions):
            self._report_lost_media(lost)
        unchanged = content
        fields: dict[str, object] = {"digest": digest(content).hex()}
        changes: Sequence[RequestChanged] = ()
        if setup.middleware:
            body, changes = await self._changed(body)
        if changes:
            content = request_bytes(body)
            fields["changes"] = len(changes)
        request = self._request(wire, body, content, service, streams=streams)
        fields["as_sent"] = fields["digest"] if request.content is unchanged else digest(request.content).hex()
        fields["prefix"] = prefix_of(wire, body, content)
        if wire.left_out is not None:
            fields["left_out"] = wire.left_out(question, body)
            if changes and wire.rebound is not None:
                fields["left_out"] = _not_in(content, question)
        return call.model_copy(update=fields), changes, question, request

    def _request(
        self, wire: WireFormat, body: JsonObject, content: bytes, service: ServiceCall | None, *, streams: bool
    ) -> ModelRequest:
        model = self._setup.model
        request = ModelRequest(body, content, streams=False, model=model)
        if streams:
            request = stream_request(wire, body, content, model)
        if service is None or service.task is None:
            return request
        self._service = service.reference
        return replace(request, service=service.reference, task=service.task)

    def _report_lost_media(self, lost: Sequence[UnsentMedia]) -> None:
        """Warn once of each media that the model does not receive, or raise MediaNotSentError."""
        setup, thread_id = self._setup, self._journal.log.thread_id
        if setup.strict_media:
            raise MediaNotSentError(thread_id, setup.client.kind, lost)
        news = [each for each in lost if each not in self._lost_media]
        if news:
            self._lost_media.update(news)
            warnings.warn(unsent_words(thread_id, setup.client.kind, news), MediaNotSentWarning, stacklevel=2)

    async def _service_call(self, wire: WireFormat) -> ServiceCall:
        """What the service has of the thread; nothing if all of it is sent again."""
        state = ServiceState() if self._reseeds else await self._thread.runs.service_state()
        if state.diverged:
            raise ServiceCannotForkError("run", self._journal.log.thread_id, state.bound[-1].reference.id)
        if not wire.has_tasks:
            return state.call
        run, tasks = self._journal.state, state.tasks
        # The same each time that a message is sent again, so that the agent can recognise it.
        named = str(uuid5(NAMESPACE_URL, f"{run.run_id}:{run.rounds}:{tasks.failed or ''}"))
        task = RemoteTask(message_id=named, task_id=tasks.waiting)
        call, late = state.call, tasks.run_id != run.run_id
        if tasks.open is not None and (wire.answers_in_turn or not late):
            task = RemoteTask(message_id=named, task_id=tasks.open, reads=True, late=late)
            self._task = None if late else tasks.open
        elif late:
            call = call.model_copy(update={"sent": max(call.sent, tasks.heard)})  # the agent has what another run sent
        return call.model_copy(update={"task": task})

    async def _changed(self, body: JsonObject) -> tuple[JsonObject, list[RequestChanged]]:
        """The body after all middleware, and what each has changed.

        Signed parts of answers are bound to what came before them. If that was changed, Clew removes them.
        """
        changes: list[RequestChanged] = []
        unchanged = body
        for middleware in self._setup.middleware:
            by = type(middleware).__name__
            returned = await middleware.model_request(self._context(body))
            if returned is None:
                continue
            if not isinstance(returned, dict) or ("stream" in returned and "stream" not in body):
                what = "a body with stream" if isinstance(returned, dict) else type(returned).__name__
                raise AgentConfigurationError(
                    f"{by}.model_request returned {what}. Return the body as a dict, without stream, or None."
                )
            check_json(returned, f"{by}.model_request")
            patch = tuple(difference(body, returned))
            if patch:
                changes.append(RequestChanged(call=-len(changes) - 1, by=by, patch=copy.deepcopy(patch)))
                body = patched(body, changes[-1].patch)
        rebound = self._setup.client.wire.rebound
        if changes and rebound is not None and (patch := tuple(difference(body, valid := rebound(unchanged, body)))):
            changes.append(RequestChanged(call=-len(changes) - 1, by="Clew", patch=patch))
            body = valid
        return body, changes

    def _context(self, body: JsonObject) -> ModelCallContext:
        state = self._journal.state
        about = self._setup.about(self._journal.log.thread_id, state.run_id)
        return ModelCallContext(**about, round=state.rounds + 1, request=copy.deepcopy(body))

    def _definitions_version(self) -> int:
        """The version of the event with the fingerprint, or a reference to that event while it waits to be written."""
        for index, step in enumerate(self._journal.steps):
            if isinstance(step, RunStarted | RunResumed):
                return self._journal.reference(index)
        return self._journal.state.definitions

    async def _observed(self, question: Question, request: ModelRequest) -> Answer:
        """Send the request within a telemetry span and the middleware."""
        setup, thread_id = self._setup, self._journal.log.thread_id
        with model_span(
            setup.telemetry,
            question,
            client_kind=setup.client.kind,
            thread_id=thread_id,
            stream=request.streams,
        ) as span:
            answer = await (self._intercepted(request) if setup.middleware else self._send(request))
            if self._may_cost:
                await self._price(answer)
            span.answered(answer, self._cost)
            return answer

    async def _intercepted(self, request: ModelRequest) -> Answer:
        """Send the request within the middleware, which may answer instead."""
        middleware, context = self._setup.middleware, self._context(request.body)
        try:
            return await compose(middleware, "model_call", context, lambda: self._send(request), self._intervention)
        finally:
            if (by := self._intervention.withheld_by) is not None:
                self._journal.add(RequestWithheld(call=self._journal.state.called, by=by))

    async def _price(self, answer: Answer) -> None:
        """Look up what the answer costs, at the time when it arrives. One that was not asked for costs nothing."""
        usage, call, self._cost = answer.usage, self._journal.state.model_call, None
        if self._intervention.withheld_by is not None:
            self._cost = recorded(Decimal(0))
        elif usage is not None and call is not None:
            model = answer.model or call.model
            self._cost = await self._journal.log.cost(usage, model=model, provider=call.provider)

    async def _send(self, request: ModelRequest) -> Answer:
        partial = self._journal.begin_answer(self._setup.identity.name)
        repeated, has_tasks = self._shown, self._setup.client.wire.has_tasks
        emit = self._journal.emit
        updates = self._setup.client.ask(request)
        try:
            async for update in updates:
                self._arrived = True
                if isinstance(update, Answer):
                    return update
                if isinstance(update, ServiceBound):
                    await self._bind(update)
                    continue
                if self._first is None:
                    self._first = time.monotonic() - self._sent
                partial.add(update)
                new = update
                if has_tasks and isinstance(update, TextDelta):
                    # A task that is read after a cut gives its text from the beginning.
                    repeated, new = max(0, repeated - len(update.text)), TextDelta(update.text[repeated:])
                    self._shown += len(new.text)
                if emit is not None and new != _NOTHING:
                    await emit(_as_agent_update(new))
        except ModelError as error:
            self._arrived = self._arrived or error.sent
            raise
        finally:
            close = getattr(updates, "aclose", None)
            if close is not None:
                await close()
        raise ModelStreamError("The client ended without an answer, and without an error.")

    async def _bind(self, update: ServiceBound) -> None:
        service = update.service
        call = self._journal.state.model_call
        if update.task is not None and (update.task == self._task or answers_late(call)):
            return  # it was read, and is on the log
        self._task, self._service = update.task, service
        self._journal.add(ServiceThreadBound(id=service.id, kind=service.kind, task=update.task))
        if self._journal.emit is not None or update.task is not None:
            await self._journal.write()  # now, because the rest of the answer may never arrive

    async def cancel_task(self) -> None:
        """Ask a remote agent to cancel the task that has not answered. What it replies does not matter."""
        cancel = getattr(self._setup.client, "cancel_task", None)
        if self._task is not None and self._service is not None and cancel is not None:
            with suppress(ModelError, TimeoutError):
                async with asyncio.timeout(CANCEL_SECONDS):
                    await cancel(self._service, self._task)

    def _retry_seconds(self, error: ModelError) -> float | None:
        """The seconds to wait before a retry; None if the run fails instead."""
        state, partial = self._journal.state, self._journal.answer
        if isinstance(error, ServiceThreadExpiredError) and self._setup.on_expired == "reseed" and not self._reseeds:
            self._reseeds = True
            return 0.0
        begun = partial is not None and partial.begun and not self._setup.client.wire.has_tasks
        if not error.retryable or state.tries > self._setup.limits.retries or begun or self._may_be_held(error):
            return None
        if error.retry_after is not None:
            return error.retry_after if error.retry_after <= MAX_RETRY_SECONDS else None
        # Runs that failed together must not retry together: the run's id spreads them.
        spread = 1 - int(state.run_id[-2:], 16) / 1024
        return min(0.5 * 2.0 ** (state.tries - 1), 8.0) * spread

    def _may_be_held(self, error: ModelError) -> bool:
        """Whether the service may have put the request into its conversation, where a retry would repeat it."""
        call = self._journal.state.model_call
        into = None if call is None or call.service is None else call.service.reference
        if into is None or into.kind != "conversation" or self._setup.client.wire.has_tasks:
            return False
        return error.status is None and self._arrived is not False

    def record(self, answer: Answer) -> tuple[Message, int]:
        """Queue the answer to be written; returns its message, and its index among the waiting steps.

        Raises InvalidContentError for an answer that cannot be recorded; then its partial text is recorded.
        """
        journal, self._reseeds, self._task = self._journal, False, None
        message = self._signed(answer.message, is_cut=answer.finish_reason in CUT)
        check_message(message)
        index = journal.add(message)
        journal.add(
            ModelAnswered(
                call=journal.state.called,
                message=-1,
                finish_reason=answer.finish_reason,
                usage=answer.usage,
                model=answer.model,
                response_id=answer.response_id,
                answered_by=(by := self._intervention.answered_by),
                sent=None if by is None or self._intervention.withheld_by is not None else self._arrived,
                first_ms=None if journal.emit is None or self._first is None else round(self._first * 1000),
                ms=round((time.monotonic() - self._sent) * 1000),
                cost=self._cost,
            )
        )
        return message, index

    def _signed(self, message: Message, *, is_cut: bool) -> Message:
        """The answer with its author, who made its native parts and, if it calls no more functions, its citations."""
        changes: dict[str, object] = {"cut": True} if is_cut else {}
        name, citations = self._setup.identity.name, self._providers.citations
        if name is not None and message.author is None:
            changes["author"] = name
        if citations and not message.calls:
            changes["metadata"] = {**message.metadata, "citations": citations}
        native, call = message.native, self._journal.state.model_call
        if native is not None and call is not None:
            prefix = None if native.prefix is None else call.prefix
            made_by = {"provider": call.provider, "model": call.model, "prefix": prefix}
            changes["native"] = native.model_copy(update=made_by)
        return message.model_copy(update=changes) if changes else message

    def interrupt(self, reason: InterruptReason, error: Exception | None) -> None:
        """Queue the end of an open call to be written, with the part of its answer that has arrived."""
        journal = self._journal
        if not journal.state.called or any(
            isinstance(step, ModelAnswered | ModelFailed | AnswerInterrupted) for step in journal.steps
        ):
            return
        partial = journal.answer
        if isinstance(error, ModelError) and not (partial is not None and partial.begun):
            journal.add(self._failed(error))
            return
        message = None if partial is None else partial.message()
        if message is not None:
            journal.add(message)
        journal.add(
            AnswerInterrupted(
                call=journal.state.called,
                message=None if message is None else -1,
                reason=reason,
                error=None if error is None else failure(error),
                sent=self._arrived,
            )
        )

    def _failed(self, error: ModelError, retry_in: float | None = None) -> ModelFailed:
        ms = round((time.monotonic() - self._sent) * 1000)
        return ModelFailed(
            call=self._journal.state.called,
            error=failure(error),
            retry_in=retry_in,
            ms=ms,
            sent=None if error.status is not None else self._arrived,  # a status says that it was
        )


def _check_sendable(wire: WireFormat, question: Question) -> None:
    """Raise AgentConfigurationError for what a remote agent cannot receive."""
    if wire.has_tasks and ((question.tools and not wire.takes_results) or question.response_format):
        raise AgentConfigurationError(
            "A remote agent has its own tools, and answers in its own format. Leave out tools, handoffs and "
            "response_format, or give them to an agent with a model."
        )


def _not_in(content: bytes, question: Question) -> tuple[int, ...]:
    """The numbers of the messages with signed parts that are not among the bytes of a request."""
    text = content.decode()
    return tuple(
        number
        for number, message in enumerate(question.messages)
        if has_signed_parts(message) and not all(each in text for each in signatures(message))
    )


def _as_agent_update(update: Update) -> AgentUpdate:
    match update:
        case TextDelta(text=text):
            return AgentUpdate("text", text)
        case ReasoningDelta(text=text):
            return AgentUpdate("reasoning", text)
        case CallDelta(call_id=call_id, name=name, arguments=arguments):
            return AgentUpdate("call", arguments, call_id, name)
        case _:
            raise AssertionError(update)  # an answer or a binding is not a piece of an answer
