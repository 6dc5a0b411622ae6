"""A chat backend with Clew: safe retries, no lost updates, live events.

    pip install fastapi uvicorn
    CLEW_DB=sqlite:///chat.db uvicorn --app-dir examples fastapi_service:app --timeout-graceful-shutdown 5

docs/how-to/embed.md explains it.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Annotated

from fastapi import Depends, FastAPI, Header, Query, Request, Response
from fastapi.responses import JSONResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel, BeforeValidator, Field

from clew import ClewError, Engine, Message, errors
from clew.types import HistoryMessage, Role, Status, Thread, ThreadSummary

STATUS_CODES: dict[type[ClewError], int] = {
    errors.UnknownThreadError: 404,
    errors.UnknownVersionError: 404,
    errors.UnknownCheckpointError: 404,
    errors.ThreadExistsError: 409,
    errors.ThreadStatusError: 409,
    errors.ThreadDeletedError: 410,
    errors.ConflictError: 412,  # only with If-Match; otherwise Clew retries by itself
    errors.InvalidContentError: 422,
    errors.InvalidNameError: 422,
    errors.InvalidTimeError: 422,
    errors.IdempotencyKeyReusedError: 422,
    errors.StoreUnavailableError: 503,
    ClewError: 500,
}


class NewThread(BaseModel):
    """The parameters of a new thread."""

    title: str | None = None
    thread_id: str | None = None


class ThreadOut(BaseModel):
    """A thread without its messages."""

    id: str
    title: str | None
    status: Status
    version: int
    parent_id: str | None


class MessageOut(BaseModel):
    """A message with its version; ``message`` is null if it was redacted."""

    version: int
    role: Role
    message: Message | None
    actor: str | None
    time: datetime


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """One engine for all requests, closed after the last answer."""
    async with Engine.open(os.environ.get("CLEW_DB", "sqlite:///clew.db")) as app.state.engine:
        yield


async def acting_engine(request: Request, x_actor: Annotated[str | None, Header()] = None) -> Engine:
    """The engine with the caller as the actor of every event. Take the actor from your authentication."""
    engine: Engine = request.app.state.engine
    return engine.acting_as(x_actor)


async def named_thread(engine: TheEngine, thread_id: str) -> Thread:
    """The thread in the path. A request for an unknown thread is refused first."""
    return await engine.thread(thread_id)


At = Annotated[int | datetime | str | None, Query(), Field(union_mode="left_to_right")]
TheEngine = Annotated[Engine, Depends(acting_engine)]
TheThread = Annotated[Thread, Depends(named_thread)]
IfMatch = Annotated[int | None, Header(), BeforeValidator(lambda text: text and text.strip('"'))]

app = FastAPI(title="Chat", lifespan=lifespan)


@app.exception_handler(ClewError)
async def refuse(_request: Request, error: ClewError) -> JSONResponse:
    """Answer Clew's errors with the status code of the nearest class in the table."""
    code = next(STATUS_CODES[kind] for kind in type(error).__mro__ if kind in STATUS_CODES)
    return JSONResponse({"error": {"type": type(error).__name__, "message": str(error)}}, code)


@app.post("/threads", status_code=201, response_model=ThreadOut)
async def start(engine: TheEngine, new: NewThread) -> ThreadSummary:
    """Start a thread."""
    return await (await engine.start_thread(new.title, thread_id=new.thread_id)).summary()


@app.post("/threads/{thread_id}/messages", status_code=201, response_model=MessageOut)
async def append(
    thread: TheThread,
    message: Message,
    response: Response,
    idempotency_key: Annotated[str | None, Header()] = None,
    if_match: IfMatch = None,
) -> HistoryMessage:
    """Append a message. It is durable when the request returns."""
    appended = await thread.append(message, expected_version=if_match, idempotency_key=idempotency_key)
    response.headers["ETag"] = f'"{appended.version}"'
    return appended


@app.get("/threads/{thread_id}", response_model=list[MessageOut])
async def history(thread: TheThread, response: Response, at: At = None) -> tuple[HistoryMessage, ...]:
    """The messages now, or at a version, a checkpoint or a time."""
    past = await thread.history(at=at)
    response.headers["ETag"] = f'"{past.version}"'
    return past.messages


@app.post("/threads/{thread_id}/fork", status_code=201, response_model=ThreadOut)
async def fork(thread: TheThread, new: NewThread, at: At = None) -> ThreadSummary:
    """Start a thread that shares this thread's past up to a version, a checkpoint or a time."""
    return await (await thread.fork(at=at, title=new.title, thread_id=new.thread_id)).summary()


@app.get("/threads/{thread_id}/events", response_class=EventSourceResponse)
async def events(thread: TheThread, last_event_id: Annotated[int, Header()] = 0) -> AsyncIterator[ServerSentEvent]:
    """The thread's events, then new ones. A browser that reconnects continues where it stopped."""
    async with thread.subscribe(after=last_event_id) as subscription:
        async for event in subscription:
            data = event.data.model_dump() if isinstance(event.data, BaseModel) else None
            yield ServerSentEvent(id=str(event.version), event=event.type, data={"actor": event.actor, "data": data})
