"""Serves an agent over AG-UI: a request begins or continues a run, and its events are read from the log."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import reduce
from inspect import isawaitable
from typing import Any, NamedTuple

from ag_ui import core
from ag_ui.core.version import PROTOCOL_VERSION
from ag_ui.encoder import EventEncoder
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from clew.agents.agent import Agent
from clew.agents.followed_runs import FollowedRun, Position, find_run, read_runs
from clew.agents.response import pending_approvals
from clew.agents.run_setup import ContinueOptions
from clew.agui.events import EventMapper
from clew.agui.log_reads import compared, first_run, open_run, run_of_interrupt, waiting
from clew.agui.messages import UnsupportedContentError, agui_messages, usage_of
from clew.agui.requests import Plan, known_lengths, planned
from clew.agui.waiting import (
    NO_RESULT,
    ClientTools,
    InvalidAnswerError,
    WaitingCall,
    decision,
    outcome_of,
    waiting_calls,
)
from clew.domain.errors import (
    IdempotencyKeyReusedError,
    ThreadDeletedError,
    ThreadExistsError,
    ThreadStatusError,
    UnknownThreadError,
)
from clew.domain.messages import explain
from clew.domain.runs.errors import (
    ApprovalNotPendingError,
    ApprovalPendingError,
    InvalidToolError,
    NoOpenRunError,
    RunNotCompletedError,
)
from clew.domain.runs.events import RunAbandoned, RunCompleted
from clew.domain.runs.ports import RunKey
from clew.domain.runs.state import RunState, joined_runs
from clew.domain.streams import digest

_LOG = logging.getLogger(__name__)
_LARGEST_BODY = 64 * 1024 * 1024
_CODER = EventEncoder()

Authenticate = Callable[[Request], "str | Awaitable[str | None] | None"]
"""Gives the actor of a request; None refuses it."""

ThreadOf = Callable[[str, str], "str | None"]
"""Gives the id of the thread for an actor and the ``threadId`` of a client; None refuses it."""

MakeOptions = Callable[[core.RunAgentInput, str], "Mapping[str, Any]"]
"""Gives more options of a run, for a request and its actor."""


Usage = list[core.TokenUsage] | None


class _RefusedError(Exception):
    """A request that is refused. Its text is for the client."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def _pending() -> _RefusedError:
    return _RefusedError("interrupts-pending", "The thread waits for answers. Send all of them as resume.")


def _unknown_interrupt() -> _RefusedError:
    return _RefusedError("unknown-interrupt", "The thread does not wait for an answer that resume has.")


def agui_app(
    agent: Agent[Any, Any],
    *,
    authenticate: Authenticate,
    path: str = "/",
    thread_of: ThreadOf | None = None,
    options: MakeOptions | None = None,
) -> Starlette:
    """An application that serves an agent over AG-UI. Runs that a crash interrupted continue.

    The parameters are those of ``agui_routes``.
    """

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        continuing = asyncio.create_task(agent.continue_runs())
        yield
        continuing.cancel()
        await asyncio.gather(continuing, return_exceptions=True)

    routes = agui_routes(agent, authenticate=authenticate, path=path, thread_of=thread_of, options=options)
    return Starlette(routes=routes, lifespan=lifespan)


def agui_routes(
    agent: Agent[Any, Any],
    *,
    authenticate: Authenticate,
    path: str = "/",
    thread_of: ThreadOf | None = None,
    options: MakeOptions | None = None,
) -> list[Route]:
    """The route that serves an agent over AG-UI, at ``path``: a ``RunAgentInput`` is answered with events.

    ``authenticate`` gives the actor of a request, or None to refuse it. ``thread_of`` gives the id of the thread for an
    actor and a ``threadId``, or None to refuse it; without it, every actor has threads of its own. ``options`` gives
    more options of ``agent.run`` for a request and its actor, such as ``deps`` or ``context_providers``. The texts of
    errors stay in the log. A service that mounts this route also calls ``agent.continue_runs()`` when it starts.
    """
    served = _Server(agent, authenticate, thread_of or _own_thread, options or _no_options)
    return [Route(path, served.receive, methods=["POST"])]


def _own_thread(actor: str, thread_id: str) -> str:
    return f"agui-{digest(json.dumps([actor, thread_id]).encode()).hex()[:32]}"


def _no_options(given: core.RunAgentInput, actor: str) -> Mapping[str, Any]:
    del given, actor
    return {}


class _Turn(NamedTuple):
    """What a request is answered with: the run of a thread, and before it the history if the client has lost it.

    ``began`` is the version of the run, None without one.
    """

    thread: Any
    began: int | None = None
    shows_history: bool = False


class _Server:
    """Answers requests. It holds nothing: all that it says is read from the log."""

    def __init__(
        self, agent: Agent[Any, Any], authenticate: Authenticate, thread_of: ThreadOf, options: MakeOptions
    ) -> None:
        self._agent = agent
        self._authenticate = authenticate
        self._thread_of = thread_of
        self._options = options

    async def receive(self, request: Request) -> Response:
        """Answer a request."""
        actor = self._authenticate(request)
        actor = await actor if isawaitable(actor) else actor
        if actor is None:
            return JSONResponse({"error": "Not authenticated."}, 401)
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > _LARGEST_BODY:
                return JSONResponse({"error": f"A request has at most {_LARGEST_BODY} bytes."}, 413)
        try:
            given = core.RunAgentInput.model_validate_json(body)
        except ValidationError as error:
            return JSONResponse({"error": f"The body is not valid: {explain('RunAgentInput', error)}"}, 422)
        thread_id = self._thread_of(actor, given.thread_id)
        options = {} if thread_id is None else self._options(given, actor)
        return StreamingResponse(
            _Answer(self._agent, given, actor, options).sent(thread_id),
            media_type=_CODER.get_content_type(),
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
        )


class _Answer:
    """The answer to one request."""

    def __init__(
        self, agent: Agent[Any, Any], given: core.RunAgentInput, actor: str, options: Mapping[str, Any]
    ) -> None:
        self._agent = agent
        self._given = given
        self._actor = actor
        self._options = options
        self._tools = ClientTools(given)
        self._key = digest(given.run_id.encode()).hex()
        self._any_key = RunKey(self._key, b"")

    async def sent(self, thread_id: str | None) -> AsyncIterator[str]:
        """The events, as server-sent events."""
        async for event in self._events(thread_id):
            yield _CODER.encode(event)

    async def _events(self, thread_id: str | None) -> AsyncIterator[core.BaseEvent]:
        given = self._given
        yield core.RunStartedEvent(thread_id=given.thread_id, run_id=given.run_id, protocol_version=PROTOCOL_VERSION)
        try:
            turn = await self._begun(thread_id)
            known = known_lengths(given.messages)
            if turn.shows_history:
                messages = [] if turn.thread is None else await agui_messages(turn.thread)
                known = known_lengths(messages)
                yield core.MessagesSnapshotEvent(messages=messages)
            if turn.began is None:
                yield self._finished(core.RunFinishedSuccessOutcome())
                return
            async for event in self._followed(turn.thread, turn.began, known):
                yield event
        except _RefusedError as error:
            yield core.RunErrorEvent(message=str(error), code=error.code)
        except InvalidAnswerError as error:
            yield core.RunErrorEvent(message=str(error), code="invalid-answer")
        except Exception as error:  # noqa: BLE001  # its text must not reach the client
            _LOG.error("A request over AG-UI failed.", exc_info=error)
            yield _failure()

    def _finished(self, outcome: Any, usage: Usage = None) -> core.RunFinishedEvent:
        given = self._given
        return core.RunFinishedEvent(thread_id=given.thread_id, run_id=given.run_id, outcome=outcome, usage=usage)

    async def _begun(self, thread_id: str | None) -> _Turn:
        """Begin or continue the run that the request asks for. A repeated request does neither."""
        if thread_id is None:
            raise _RefusedError("unknown-thread", "The thread is unknown.")
        thread, calls = await self._thread(thread_id), list[WaitingCall]()
        if thread is not None:
            if (began := await thread.runs.repeated(self._any_key)) is not None:
                return _Turn(thread, await first_run(thread, began))
            since, calls = await waiting(thread)
            if (turn := await self._continued(thread, since, calls)) is not None:
                return turn
        try:
            plan = planned(self._given.messages, *await compared(thread, self._given.messages))
        except UnsupportedContentError as error:
            raise _RefusedError("unsupported-content", str(error)) from None
        if not plan.answers:
            return _Turn(thread, None if thread is None else await open_run(thread), shows_history=True)
        if any(not self._tools.carries_out(each) for each in calls):
            raise _pending()
        return await self._new_run(thread or await self._new_thread(thread_id), plan, abandon=bool(calls))

    async def _new_run(self, thread: Any, plan: Plan, *, abandon: bool) -> _Turn:
        options: Any = {**self._options, "thread": thread, "actor": self._actor, "idempotency_key": self._key}
        options |= {"rewind_to": plan.rewind_to, "on_conflict": "wait", "abandon_run": abandon}
        try:
            options["tools"] = [*self._options.get("tools", ()), *self._tools.tools()]
            run = await self._agent.run(plan.new or None, background=True, **options)
        except InvalidToolError as error:
            raise _RefusedError("invalid-tool", str(error)) from None
        except ApprovalPendingError:
            raise _pending() from None
        except IdempotencyKeyReusedError:  # an equal request was faster
            return _Turn(thread, await first_run(thread, await thread.runs.repeated(self._any_key)))
        except ThreadStatusError:
            raise _RefusedError("thread-closed", "The thread takes no more messages.") from None
        return _Turn(thread, await find_run(thread.runs, run.run_id))

    async def _thread(self, thread_id: str) -> Any:
        """The thread, None if there is none."""
        try:
            return await self._agent.thread(thread_id)
        except UnknownThreadError:
            return None
        except ThreadDeletedError:
            raise _RefusedError("thread-closed", "The thread was deleted.") from None

    async def _new_thread(self, thread_id: str) -> Any:
        start: Any = self._agent.engine.start_thread
        with suppress(ThreadExistsError):
            await start(thread_id=thread_id, labels={"owner": self._actor}, actor=self._actor)
        return await self._agent.thread(thread_id)

    async def _continued(self, thread: Any, began: int, calls: Sequence[WaitingCall]) -> _Turn | None:
        """Give the run that waits what the request has for it, and continue it; None if it has nothing."""
        entries = {each.interrupt_id: each for each in self._given.resume or ()}
        if entries and not calls:  # they are answered already, or unknown
            answered = await run_of_interrupt(thread, next(iter(entries)))
            if answered is None:
                raise _unknown_interrupt()
            return _Turn(thread, answered)
        if not entries and not any(map(self._tools.has_result, calls)):
            return None
        decisions: list[tuple[WaitingCall, bool, str | None]] = []
        for each in calls:
            if self._tools.carries_out(each):
                given = self._tools.has_result(each)
                decisions.append((each, given, None if given else NO_RESULT))
            elif each.interrupt_id not in entries:
                raise _pending()
            else:
                decisions.append((each, *decision(entries.pop(each.interrupt_id))))
        if not all(each.startswith(f"{calls[0].run}:") for each in entries):  # others are answered already
            raise _unknown_interrupt()
        for each, approved, reason in decisions:
            with suppress(ApprovalNotPendingError):  # another request has decided it
                if approved:
                    await each.approval.approve(actor=self._actor, reason=reason)
                else:
                    await each.approval.reject(reason, actor=self._actor)
        await self._continue(thread, began)
        return _Turn(thread, began)

    async def _continue(self, thread: Any, began: int) -> None:
        """Continue the open run in the background, with the results of the client's tools."""
        states = await read_runs(thread.runs, began)
        options: Any = {name: value for name, value in self._options.items() if name in ContinueOptions.__annotations__}
        tools = self._tools.tools(reduce(joined_runs, states), states[0].run_id)
        options |= {"actor": self._actor, "tools": [*options.get("tools", ()), *tools], "on_conflict": "wait"}
        with suppress(NoOpenRunError, ApprovalPendingError):  # another request continues it, or it waits again
            await self._agent.continue_run(thread, background=True, **options)

    async def _followed(self, thread: Any, began: int, known: Mapping[str, int]) -> AsyncIterator[core.BaseEvent]:
        """The events of a run, without what the client has, until it ends or waits."""
        log = thread.runs
        run_id = (await log.event(began)).run_id
        mapper, position = EventMapper(run_id, known), Position()

        async def continue_lost() -> None:
            await self._continue(thread, began)

        while True:
            version, is_executed = (await log.control(fresh=True)).version, await log.lease() is not None
            with suppress(RunNotCompletedError):
                async for update in FollowedRun(thread, run_id, position, continue_lost):
                    position = Position.parsed(update.position)
                    for event in mapper.events(update):
                        yield event
            states = await read_runs(log, began)
            state = reduce(joined_runs, states)
            calls = waiting_calls(run_id, state, await pending_approvals(log, state), thread.id)
            if state.ended is None and is_executed:
                await log.changed(version, 1.0)  # other calls of the answer are still carried out
            elif state.ended is None and not calls:
                await continue_lost()
            elif (await log.control(fresh=True)).version == version:
                break  # nothing came after what was followed
        for event in mapper.close():
            yield event
        # The tokens of a run that was continued are not those of this request alone.
        usage = usage_of(state.usage) if all(each.attempt == 1 for each in states) else None
        yield self._end(state, calls, usage)

    def _end(self, state: RunState, calls: Sequence[WaitingCall], usage: Usage) -> core.BaseEvent:
        """The last event of a run."""
        match state.ended:
            case None:
                return self._finished(outcome_of(calls, self._tools), usage)
            case RunCompleted():
                return self._finished(core.RunFinishedSuccessOutcome(), usage)
            case RunAbandoned():
                return self._finished(core.RunFinishedCancelledOutcome(), usage)
            case _:
                return _failure(usage)


def _failure(usage: Usage = None) -> core.RunErrorEvent:
    return core.RunErrorEvent(message="The agent failed.", code="failed", usage=usage)
