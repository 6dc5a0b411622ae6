"""A chat backend with Clew inside: retries that never double, writes that never overwrite, events as they happen.

    pip install fastapi uvicorn
    CLEW_DB=sqlite:///chat.db uvicorn --app-dir examples fastapi_service:app --timeout-graceful-shutdown 5

docs/how-to/embed.md goes through it.
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
    errors.ConflictError: 412,  # Clew itself decides again, unless If-Match forbids it
    errors.InvalidContentError: 422,
    errors.InvalidNameError: 422,
    errors.InvalidTimeError: 422,
    errors.IdempotencyKeyReusedError: 422,
    errors.StoreUnavailableError: 503,
    ClewError: 500,
}


class NewThread(BaseModel):
    """What a thread is begun with."""

    title: str | None = None
    thread_id: str | None = None


class ThreadOut(BaseModel):
    """A thread without its messages."""

    thread_id: str
    title: str | None
    status: Status
    version: int
    parent_id: str | None


class MessageOut(BaseModel):
    """A message in its place; ``message`` is null when it was redacted."""

    version: int
    role: Role
    message: Message | None
    actor: str | None
    time: datetime


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """One engine for all requests, closed when the last of them is answered."""
    async with Engine.open(os.environ.get("CLEW_DB", "sqlite:///clew.db")) as app.state.engine:
        yield


async def acting_engine(request: Request, x_actor: Annotated[str | None, Header()] = None) -> Engine:
    """The engine, with the caller as the actor of every event. Take the actor from your authentication."""
    engine: Engine = request.app.state.engine
    return engine.acting_as(x_actor)


async def named_thread(engine: TheEngine, thread_id: str) -> Thread:
    """The thread of the path; one that is not there is answered before anything else is done."""
    return await engine.thread(thread_id)


At = Annotated[int | datetime | str | None, Query(), Field(union_mode="left_to_right")]
TheEngine = Annotated[Engine, Depends(acting_engine)]
TheThread = Annotated[Thread, Depends(named_thread)]
IfMatch = Annotated[int | None, Header(), BeforeValidator(lambda text: text and text.strip('"'))]

app = FastAPI(title="Chat", lifespan=lifespan)


@app.exception_handler(ClewError)
async def refuse(_request: Request, error: ClewError) -> JSONResponse:
    """Every error of Clew's, with the status code of the nearest class that has one."""
    code = next(STATUS_CODES[kind] for kind in type(error).__mro__ if kind in STATUS_CODES)
    return JSONResponse({"error": {"type": type(error).__name__, "message": str(error)}}, code)


@app.post("/threads", status_code=201, response_model=ThreadOut)
async def start(engine: TheEngine, new: NewThread) -> ThreadSummary:
    """Begin a thread."""
    return await (await engine.start_thread(new.title, thread_id=new.thread_id)).summary()


@app.post("/threads/{thread_id}/messages", status_code=201, response_model=MessageOut)
async def append(
    thread: TheThread,
    message: Message,
    response: Response,
    idempotency_key: Annotated[str | None, Header()] = None,
    if_match: IfMatch = None,
) -> HistoryMessage:
    """Append a message; it is durable when this is answered."""
    said = await thread.append(message, expected_version=if_match, idempotency_key=idempotency_key)
    response.headers["ETag"] = f'"{said.version}"'
    return said


@app.get("/threads/{thread_id}", response_model=list[MessageOut])
async def history(thread: TheThread, response: Response, at: At = None) -> tuple[HistoryMessage, ...]:
    """The messages as they are, or as they were at a version, a checkpoint or a time."""
    found = await thread.history(at=at)
    response.headers["ETag"] = f'"{found.version}"'
    return found.messages


@app.post("/threads/{thread_id}/fork", status_code=201, response_model=ThreadOut)
async def fork(thread: TheThread, new: NewThread, at: At = None) -> ThreadSummary:
    """Begin a thread whose past is this one's up to a version, a checkpoint or a time."""
    return await (await thread.fork(at=at, title=new.title, thread_id=new.thread_id)).summary()


@app.get("/threads/{thread_id}/events", response_class=EventSourceResponse)
async def events(thread: TheThread, last_event_id: Annotated[int, Header()] = 0) -> AsyncIterator[ServerSentEvent]:
    """The thread's events, and then those that come. A browser that connects again goes on where it was."""
    async with thread.subscribe(after=last_event_id) as subscription:
        async for event in subscription:
            data = event.data.model_dump() if isinstance(event.data, BaseModel) else None
            yield ServerSentEvent(id=str(event.version), event=event.type, data={"actor": event.actor, "data": data})
