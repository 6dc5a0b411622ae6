"""Serves an agent over A2A 1.0 (JSON-RPC): a context is a thread, and a task is a run. The log is the store of tasks.

This room needs the extra ``a2a``.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import reduce
from inspect import isawaitable
from typing import Any

from clew.agents.agent import Agent
from clew.agents.followed_runs import find_run, read_runs
from clew.agents.response import Approval, pending_approvals
from clew.domain.errors import ClewError, IdempotencyKeyReusedError, ThreadExistsError, UnknownThreadError
from clew.domain.json_values import JsonObject
from clew.domain.messages import Content, Media, Message, Text
from clew.domain.runs.errors import (
    ApprovalNotPendingError,
    ApprovalPendingError,
    MissingExtraError,
    NoOpenRunError,
    RunInProgressError,
    RunNotCompletedError,
    UnknownRunError,
)
from clew.domain.runs.events import RunCompleted, RunFailed
from clew.domain.runs.state import RunState, joined_runs
from clew.domain.streams import digest

try:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response, StreamingResponse
    from starlette.routing import Route
except ModuleNotFoundError:
    raise MissingExtraError("clew.a2a", "starlette", "a2a") from None

__all__ = ["a2a_app", "a2a_routes"]

CARD = "/.well-known/agent-card.json"
_LOG = logging.getLogger(__name__)
_LARGEST_BODY = 16 * 1024 * 1024
_YES = frozenset({"yes", "ok", "approve", "approved", "approved."})

Authenticate = Callable[[Request], "str | Awaitable[str | None] | None"]
"""Gives the actor of a request; None refuses it."""


class _RpcError(Exception):
    """An error of JSON-RPC, which the caller gets."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def _task_not_found() -> _RpcError:
    return _RpcError(-32001, "The task is unknown.")


def _refused(method: str) -> _RpcError:
    """The error for a method that is not served."""
    if method in {"ListTasks", "GetExtendedAgentCard"}:
        return _RpcError(-32004, f"This agent does not offer {method}.")
    if "PushNotification" in method:
        return _RpcError(-32003, "This agent sends no push notifications.")
    return _RpcError(-32601, "The method is unknown.")


def a2a_app(
    agent: Agent[Any, Any],
    *,
    url: str,
    authenticate: Authenticate,
    card: Mapping[str, Any] | None = None,
    may_use: Callable[[str, str], bool] | None = None,
) -> Starlette:
    """An application that serves an agent at ``url``, its public address. Runs that a crash interrupted continue.

    The parameters are those of ``a2a_routes``.
    """

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        continuing = asyncio.create_task(agent.continue_runs())
        yield
        continuing.cancel()
        await asyncio.gather(continuing, return_exceptions=True)

    routes = a2a_routes(agent, url=url, authenticate=authenticate, card=card, may_use=may_use)
    return Starlette(routes=routes, lifespan=lifespan)


def a2a_routes(
    agent: Agent[Any, Any],
    *,
    url: str,
    authenticate: Authenticate,
    card: Mapping[str, Any] | None = None,
    may_use: Callable[[str, str], bool] | None = None,
) -> list[Route]:
    """The routes that serve an agent: its card, and JSON-RPC at ``/``. Mount them where ``url`` points.

    ``authenticate`` gives the actor of a request, or None to refuse it. ``card`` replaces fields of the card. A caller
    may use the contexts that it began; ``may_use`` decides by actor and thread id instead. The texts of errors stay in
    the log. A service that mounts these routes also calls ``agent.continue_runs()`` when it starts.
    """
    served = _Server(agent, authenticate, may_use or _is_own)
    shown = {**_card(agent, url), **(card or {})}

    async def show_card(_: Request) -> Response:
        return JSONResponse(shown)

    return [Route(CARD, show_card, methods=["GET"]), Route("/", served.receive, methods=["POST"])]


def _card(agent: Agent[Any, Any], url: str) -> dict[str, Any]:
    name = agent.name or agent.id
    description = agent.description or name
    return {
        "name": name,
        "description": description,
        "version": "1",
        "supportedInterfaces": [{"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}],
        "capabilities": {"streaming": True, "pushNotifications": False},
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
        "skills": [{"id": "talk", "name": name, "description": description, "tags": ["chat"]}],
    }


def _owner(actor: str) -> str:
    return f"a2a-{digest(actor.encode()).hex()[:24]}-"


def _is_own(actor: str, thread_id: str) -> bool:
    return thread_id.startswith(_owner(actor))


class _Server:
    """Answers the requests of JSON-RPC. It holds nothing: all that it says is read from the log."""

    def __init__(self, agent: Agent[Any, Any], authenticate: Authenticate, may_use: Callable[[str, str], bool]) -> None:
        self._agent = agent
        self._authenticate = authenticate
        self._may_use = may_use

    async def receive(self, request: Request) -> Response:
        """Answer a request."""
        id_: Any = None
        try:
            actor = self._authenticate(request)
            actor = await actor if isawaitable(actor) else actor
            if actor is None:
                return JSONResponse({"error": {"message": "Not authenticated."}}, 401)
            call = await _parsed(request)
            id_ = call.get("id")
            result = await self._call(str(call.get("method")), call.get("params"), actor)
        except Exception as error:  # noqa: BLE001  # its text must not reach the caller
            return JSONResponse(_failure(id_, error))
        else:
            if isinstance(result, dict):
                return JSONResponse({"jsonrpc": "2.0", "id": id_, "result": result})
            return StreamingResponse(_sent(id_, result), media_type="text/event-stream")

    async def _call(self, method: str, params: Any, actor: str) -> dict[str, Any] | AsyncIterator[dict[str, Any]]:
        if not isinstance(params, dict):
            raise _RpcError(-32602, "params must be an object.")
        match method:
            case "SendMessage" | "SendStreamingMessage":
                task = await self._send(params, actor)
                if method == "SendStreamingMessage":
                    return task.updates()
                if not (params.get("configuration") or {}).get("returnImmediately"):
                    await task.over()
                return {"task": await task.shown()}
            case "GetTask":
                return await (await self._task(params, actor)).shown()
            case "SubscribeToTask":
                task = await self._task(params, actor)
                await task.check_open()
                return task.updates()
            case "CancelTask":
                task = await self._task(params, actor)
                await task.cancel(actor)
                return await task.shown()
            case _:
                raise _refused(method)

    async def _send(self, params: dict[str, Any], actor: str) -> _Task:
        """Begin the run that a message asks for, or answer the task that waits. A repeated message does neither."""
        message = params.get("message")
        if not isinstance(message, dict) or not isinstance(id_ := message.get("messageId"), str) or not id_:
            raise _RpcError(-32602, "params.message must have a messageId.")
        contents = tuple(_contents(message.get("parts")))
        if not contents:
            raise _RpcError(-32602, "params.message must have parts with text, data or files.")
        question = Message(role="user", contents=contents)
        if task_id := message.get("taskId"):
            task = await self._task({"id": task_id}, actor)
            if (context := message.get("contextId")) and context != task.thread.id:
                raise _RpcError(-32602, "The task belongs to another context.")
            await task.answer(question.text, actor)
            return task
        thread = await self._thread(message.get("contextId"), id_, actor)
        key = digest(id_.encode()).hex()
        try:
            run = await self._agent.run(question, thread=thread, actor=actor, idempotency_key=key, background=True)
        except (ApprovalPendingError, RunInProgressError):
            raise _RpcError(-32004, "Another task of this context is not over. Answer it, or cancel it.") from None
        except IdempotencyKeyReusedError:
            raise _RpcError(-32602, "Another message has this messageId.") from None
        return _Task(self._agent, thread, run.run_id)

    async def _thread(self, context: Any, message_id: str, actor: str) -> Any:
        engine = self._agent.engine
        if context:
            if not isinstance(context, str) or not self._may_use(actor, context):
                raise _RpcError(-32602, "The context is unknown.")
            try:
                return await self._agent.thread(context)
            except ClewError:
                raise _RpcError(-32602, "The context is unknown.") from None
        # The same message begins the same thread, in any process.
        thread_id = f"{_owner(actor)}{digest(json.dumps([actor, message_id]).encode()).hex()[:24]}"
        start: Any = engine.start_thread
        with suppress(ThreadExistsError):
            await start(thread_id=thread_id, labels={"owner": actor}, actor=actor)
        return await self._agent.thread(thread_id)

    async def _task(self, params: dict[str, Any], actor: str) -> _Task:
        """The task of a request. That of another caller is like one that does not exist."""
        id_ = params.get("id")
        thread_id, _, run_id = id_.rpartition(".") if isinstance(id_, str) else ("", "", "")
        if not thread_id or not run_id or not self._may_use(actor, thread_id):
            raise _task_not_found()
        try:
            task = _Task(self._agent, await self._agent.thread(thread_id), run_id)
            await task.state()
        except (UnknownThreadError, UnknownRunError):
            raise _task_not_found() from None
        return task


class _Task:
    """A run, as A2A sees it."""

    def __init__(self, agent: Agent[Any, Any], thread: Any, run_id: str) -> None:
        self.thread = thread
        self.run_id = run_id
        self._agent = agent

    @property
    def _ids(self) -> dict[str, Any]:
        return {"taskId": f"{self.thread.id}.{self.run_id}", "contextId": self.thread.id}

    async def state(self) -> RunState:
        """What the log has of the run."""
        log = self.thread.runs
        return reduce(joined_runs, await read_runs(log, await find_run(log, self.run_id)))

    async def over(self) -> None:
        """Wait until the run ends or waits."""
        with suppress(RunNotCompletedError):
            await self.thread.follow(self.run_id, continue_run=True).response()

    async def check_open(self) -> None:
        """Raise the error for a task that is over."""
        if (await self.state()).ended:
            raise _RpcError(-32004, "The task is over. Use GetTask.")

    async def cancel(self, actor: str) -> None:
        """Stop the run, and wait until that is recorded."""
        if not await self.thread.stop_run(self.run_id, actor=actor):
            raise _RpcError(-32002, "The task is over.")
        with suppress(ClewError):
            await self.over()

    async def answer(self, text: str, actor: str) -> None:
        """Give the input that the run waits for."""
        state = await self.state()
        waiting = [] if state.ended else await pending_approvals(self.thread.runs, state)
        if state.ended:
            raise _RpcError(-32004, "The task is over. Send the message without its taskId.")
        for each in waiting:
            with suppress(ApprovalNotPendingError):  # another message has answered it
                if text.strip().casefold() in _YES:
                    await each.approve(actor=actor)
                else:
                    await each.reject(text, actor=actor)
        if waiting:
            with suppress(RunInProgressError, NoOpenRunError):
                await self._agent.continue_run(self.thread, background=True)

    async def shown(self, *, begins: bool = False) -> dict[str, Any]:
        """The task with its answer; one whose updates follow has none yet."""
        state = await self.state()
        status = await self._status(state)
        answers = [each.message for each in state.added if each.message is not None and each.role == "assistant"]
        parts = [part for message in answers if not message.cut for part in _parts(message.contents)]
        artifacts = [{"artifactId": "answer", "parts": parts}] if parts and not begins else []
        if begins:
            status = {"state": "TASK_STATE_WORKING"}
        ids = self._ids
        task = {"id": ids["taskId"], "contextId": ids["contextId"], "status": status}
        return {**task, "artifacts": artifacts} if artifacts else task

    async def _status(self, state: RunState) -> dict[str, Any]:
        match state.ended:
            case RunCompleted():
                return {"state": "TASK_STATE_COMPLETED"}
            case RunFailed():
                return {"state": "TASK_STATE_FAILED", "message": self._said("The agent failed.", "failed")}
            case None:
                waiting = await pending_approvals(self.thread.runs, state)
                if not waiting:
                    return {"state": "TASK_STATE_WORKING"}
                return {"state": "TASK_STATE_INPUT_REQUIRED", "message": self._said(_question(waiting), "asked")}
            case _:
                return {"state": "TASK_STATE_CANCELED"}

    def _said(self, text: str, name: str) -> dict[str, Any]:
        named = f"{self._ids['taskId']}.{name}"
        return {**self._ids, "messageId": named, "role": "ROLE_AGENT", "parts": [{"text": text}]}

    async def updates(self) -> AsyncIterator[dict[str, Any]]:
        """The updates of the task from its beginning, until it ends or waits. The run continues without a reader."""
        yield {"task": await self.shown(begins=True)}
        append, whole = False, list[dict[str, Any]]()
        with suppress(RunNotCompletedError):
            async for update in self.thread.follow(self.run_id, continue_run=True):
                parts: list[dict[str, Any]] = []
                answer = None if update.message is None else update.message.message
                if update.type == "text":
                    parts = [{"text": update.text}]
                elif update.type == "answer" and answer is not None and answer.cut:
                    append, parts = False, [*whole]  # what was cut off is answered again
                elif update.type == "answer" and answer is not None:
                    whole += _parts(answer.contents)
                    parts = [each for each in _parts(answer.contents) if "text" not in each]
                if parts:
                    artifact = {"artifactId": "answer", "parts": parts}
                    yield {"artifactUpdate": {**self._ids, "artifact": artifact, "append": append}}
                    append = True
        yield {"statusUpdate": {**self._ids, "status": await self._status(await self.state())}}


def _question(waiting: Sequence[Approval]) -> str:
    asked = "; ".join(f"{each.call.name} {each.call.arguments}" for each in waiting)
    return f'May the agent call {asked}? Answer "yes", or say why not.'


def _parts(contents: Sequence[Content]) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for content in contents:
        if isinstance(content, Text) and content.text:
            parts.append({"text": content.text})
        elif isinstance(content, Media):
            head, comma, data = content.uri.partition(";base64,")
            kind = {"mediaType": content.media_type} if content.media_type else {}
            parts.append({**({"raw": data} if comma and head.startswith("data:") else {"url": content.uri}), **kind})
    return parts


def _contents(parts: Any) -> list[Content]:
    contents: list[Content] = []
    for part in parts if isinstance(parts, list) else ():
        match part:
            case {"text": str(text)} if text:
                contents.append(Text(text=text))
            case {"raw": str(data)}:
                kind = str(part.get("mediaType") or "application/octet-stream")
                contents.append(Media(uri=f"data:{kind};base64,{data}", media_type=kind, name=part.get("filename")))
            case {"url": str(url)}:
                contents.append(Media(uri=url, media_type=part.get("mediaType"), name=part.get("filename")))
            case {"data": data}:
                contents.append(Text(text=json.dumps(data, ensure_ascii=False)))
    return contents


async def _parsed(request: Request) -> dict[str, Any]:
    if not (request.headers.get("a2a-version") or "1.0").startswith("1."):
        raise _RpcError(-32009, "This agent speaks A2A 1.0.")
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > _LARGEST_BODY:
            raise _RpcError(-32600, f"A request has at most {_LARGEST_BODY} bytes.")
    try:
        call = json.loads(body)
    except (ValueError, RecursionError):
        raise _RpcError(-32700, "The body is not JSON.") from None
    if not isinstance(call, dict) or call.get("jsonrpc") != "2.0" or not isinstance(call.get("method"), str):
        raise _RpcError(-32600, "The body is not a request of JSON-RPC 2.0.")
    return call


def _failure(id_: Any, error: Exception) -> JsonObject:
    if not isinstance(error, _RpcError):
        _LOG.error("A request over A2A failed.", exc_info=error)
        error = _RpcError(-32603, "The agent failed.")
    return {"jsonrpc": "2.0", "id": id_, "error": {"code": error.code, "message": str(error)}}


async def _sent(id_: Any, updates: AsyncIterator[dict[str, Any]]) -> AsyncIterator[bytes]:
    """The updates as server-sent events."""
    try:
        async for update in updates:
            yield _event({"jsonrpc": "2.0", "id": id_, "result": update})
    except Exception as error:  # noqa: BLE001  # its text must not reach the caller
        yield _event(_failure(id_, error))


def _event(value: Any) -> bytes:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n".encode()
