"""A chat backend: streamed answers that survive disconnects and crashes, edits, variants, approvals and files.

    pip install fastapi uvicorn
    CLEW_DB=sqlite:///chat.db uvicorn --app-dir examples chat_service:app --timeout-graceful-shutdown 5

It runs offline with a scripted model, or with a real one if OPENAI_API_KEY is set.
docs/how-to/chat-backend.md explains it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hmac import compare_digest
from typing import Annotated, Any

from fastapi import Body, Depends, FastAPI, Header, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBasic, HTTPBasicCredentials
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import Base64Bytes, BaseModel, Field

from clew import (
    Agent,
    ClewError,
    Engine,
    File,
    Message,
    OpenAIChatClient,
    Price,
    PriceTable,
    ScriptedChatClient,
    errors,
    tool,
)
from clew.testing import call
from clew.types import FollowedRun, HistoryMessage, Media, Thread, ThreadFilter, Variant

PASSWORD = os.environ.get("CHAT_PASSWORD", "demo")
SERVICE = "service"  # the actor that continues runs after a crash; users are "user:…"
LARGEST_BODY = 16 * 1024 * 1024
# US dollars for a million tokens. Use your own prices: what is recorded with an answer stays.
PRICES = PriceTable({"scripted": Price(input=1, output=2), "gpt-5.4-mini": Price(input="0.75", output="4.50")})
STATUS_CODES = {
    404: (errors.NotAuthorizedError, errors.UnknownThreadError, errors.UnknownVersionError, errors.UnknownRunError,
          errors.NotRedactableError, errors.ThreadDeletedError),
    409: (errors.ConflictError, errors.ApprovalPendingError, errors.ApprovalNotPendingError, errors.NoOpenRunError,
          errors.RunNotCompletedError),
    422: (errors.InvalidContentError, errors.InvalidNameError, errors.IdempotencyKeyReusedError),
}  # fmt: skip


class Turn(BaseModel):
    """A user's message: its text, and files by their names, in base64."""

    text: str = Field(min_length=1, max_length=100_000)
    files: dict[str, Base64Bytes] = Field(default={}, max_length=10)

    def message(self) -> Message:
        """The message for the model."""
        return Message.user(self.text, *(File(data, name=name) for name, data in self.files.items()))


@tool(approval="always")
def refund(order: int, cents: int) -> str:
    """Pay money back."""
    return f"{cents} cents for order {order} are on their way."


def script(body: dict[str, Any]) -> Any:
    """Return an answer like a model's."""
    last = body["messages"][-1]
    if last["role"] == "tool":
        return f"Done: {last['content']}"
    return call("refund", order=7, cents=4800) if "money" in str(last["content"]) else f"That was: {last['content']}"


def own_chats(actor: str | None, _action: str, _thread: str | None) -> bool | ThreadFilter:
    """Return which chats an actor may see. Labels are in an index: a list does not read the chats of others."""
    return actor == SERVICE or (actor is not None and ThreadFilter({"owner": actor}))


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """One engine and one agent for all requests. Runs that a crash has interrupted are continued."""
    url = os.environ.get("CLEW_DB", "sqlite:///clew.db")
    async with Engine.open(url, authorize=own_chats, prices=PRICES) as engine:
        online = bool(os.environ.get("OPENAI_API_KEY"))
        client = OpenAIChatClient(model="gpt-5.4-mini") if online else ScriptedChatClient(script, delay=0.01)
        app.state.engine = engine
        app.state.agent = Agent(client, engine=engine.acting_as(SERVICE), name="Support", tools=[refund])
        continuing = asyncio.create_task(app.state.agent.continue_runs())
        yield
        continuing.cancel()


app = FastAPI(title="Chats", lifespan=lifespan, max_body_size=LARGEST_BODY)


@app.exception_handler(ClewError)
async def refuse(_: Request, error: ClewError) -> JSONResponse:
    """Answer Clew's errors with their status code."""
    code = next((code for code, kinds in STATUS_CODES.items() if isinstance(error, kinds)), 500)
    return JSONResponse({"error": {"type": type(error).__name__, "message": str(error)}}, code)


@app.exception_handler(RequestValidationError)
async def refuse_input(_: Request, error: RequestValidationError) -> JSONResponse:
    """Name the invalid fields. Their values are not repeated: they may be long, or no valid text."""
    return JSONResponse({"error": {"type": "InvalidRequest", "fields": [each["loc"] for each in error.errors()]}}, 422)


async def users_engine(request: Request, login: Annotated[HTTPBasicCredentials, Depends(HTTPBasic())]) -> Engine:
    """The engine of a signed-in user. This is a stub: all users have the same password. Use your own sign-in."""
    if not compare_digest(login.password.encode(), PASSWORD.encode()):
        raise HTTPException(401)
    engine: Engine = request.app.state.engine
    return engine.acting_as(f"user:{login.username}")


Mine = Annotated[Engine, Depends(users_engine)]
Approved = Annotated[bool, Body()]
Reason = Annotated[str | None, Body(max_length=1_000)]
Key = Annotated[str, Header(alias="Idempotency-Key", min_length=1, max_length=200)]


async def users_chat(request: Request, chat_id: str, mine: Mine) -> Thread:
    """The chat, bound to the agent. That of another user is like one that does not exist."""
    return (await mine.thread(chat_id)).bound_to(request.app.state.agent)


Chat = Annotated[Thread, Depends(users_chat)]


async def one_variant(chat: Chat, version: int) -> Variant:
    """A message of the chat, which may be on another branch than the one that is shown."""
    for variant in await chat.variants(version):
        if variant.message.version == version:
            return variant
    raise HTTPException(404)


Found = Annotated[Variant, Depends(one_variant)]


async def begin(chat: Thread, key: str, turn: Turn | None = None, rewind_to: int | None = None) -> dict[str, str]:
    """Begin a run that continues without its client. The same key gives the same run."""
    message = None if turn is None else turn.message()
    run = await chat.run(message, background=True, idempotency_key=key, rewind_to=rewind_to)
    return {"chat": chat.id, "run": run.run_id}


def shown(message: HistoryMessage) -> dict[str, Any]:
    """A message as clients see it."""
    calls = [{"name": call.name, "arguments": call.arguments} for call in message.calls]
    files = [{"index": n, "name": each.name} for n, each in enumerate(message.contents) if isinstance(each, Media)]
    return {"version": message.version, "role": message.role, "text": message.text, "calls": calls, "files": files}


@app.get("/chats")
async def chats(mine: Mine, after: str | None = None) -> list[dict[str, Any]]:
    """The user's chats, the last changed first."""
    page = mine.threads(status="active", order="updated", newest_first=True, limit=50, after=after)
    return [{"id": each.id, "title": each.title, "updated_at": each.updated_at} async for each in page]


@app.post("/chats", status_code=202)
async def start(request: Request, mine: Mine, turn: Turn, key: Key) -> dict[str, str]:
    """Start a chat with its first turn."""
    chat = await mine.start_thread(turn.text[:60], labels={"owner": mine.actor}, idempotency_key=key)
    return await begin(chat.bound_to(request.app.state.agent), key, turn)


@app.get("/chats/{chat_id}")
async def read(chat: Chat, before: int | None = None) -> dict[str, Any]:
    """The newest messages, or those before one; the open run; and the calls that wait for approval."""
    earlier = None if before is None else (await one_variant(chat, before)).message
    messages = [shown(each) for each in await chat.history(last=50, before=earlier)]
    waiting = [{"version": each.version, "call": each.call.model_dump()} for each in await chat.approvals()]
    return {"messages": messages, "run": await chat.open_run, "approvals": waiting}


@app.get("/costs")
async def costs(mine: Mine, chat_id: str | None = None) -> list[dict[str, Any]]:
    """What the user's chats, or one chat, cost by day. The variants count, too: they were paid for."""
    return [
        {
            "day": each.of,
            "input": each.input_tokens,
            "output": each.output_tokens,
            "dollars": None if each.cost is None else f"{each.cost:f}",
            "unpriced": each.unpriced_calls,
        }
        for each in await mine.costs(thread=chat_id, by="day")
    ]


@app.delete("/chats/{chat_id}", status_code=204)
async def delete(chat: Chat) -> None:
    """Destroy the chat with all of its texts and files."""
    await chat.stop_run()
    await chat.purge()


@app.post("/chats/{chat_id}/messages", status_code=202)
async def send(chat: Chat, turn: Turn, key: Key) -> dict[str, str]:
    """Send the next message."""
    return await begin(chat, key, turn)


@app.put("/chats/{chat_id}/messages/{version}", status_code=202)
async def edit(chat: Chat, found: Found, turn: Turn, key: Key) -> dict[str, str]:
    """Replace a message. The old one, and what followed it, become a variant."""
    return await begin(chat, key, turn, rewind_to=found.message.version - 1)


@app.post("/chats/{chat_id}/messages/{version}/answers", status_code=202)
async def regenerate(chat: Chat, found: Found, key: Key) -> dict[str, str]:
    """Answer a message once more. The old answer becomes a variant."""
    return await begin(chat, key, rewind_to=found.message.version)


@app.get("/chats/{chat_id}/messages/{version}/variants")
async def variants(chat: Chat, version: int) -> list[dict[str, Any]]:
    """The variants of a message, the oldest first."""
    return [shown(each.message) for each in await chat.variants(version)]


@app.post("/chats/{chat_id}/messages/{version}/show", status_code=204)
async def show(chat: Chat, found: Found) -> None:
    """Continue with this variant of a message, and with what followed it."""
    await chat.rewind(to=found.newest)


@app.get("/chats/{chat_id}/messages/{version}/files/{index}")
async def download(found: Found, index: int) -> Response:
    """Download a file, which the browser must not open: a user has made it."""
    file = dict(enumerate(found.message.contents)).get(index)
    if not isinstance(file, Media) or file.data is None:
        raise HTTPException(404)
    headers = {"Content-Disposition": "attachment", "X-Content-Type-Options": "nosniff"}
    return Response(file.data, media_type=file.media_type, headers=headers)


@app.post("/chats/{chat_id}/runs/{run_id}/stop", status_code=204)
async def stop(chat: Chat, run_id: str) -> None:
    """Stop a run. What has arrived of the answer is kept."""
    await chat.stop_run(run_id)


@app.post("/chats/{chat_id}/approvals/{version}", status_code=204)
async def decide(chat: Chat, version: int, approved: Approved, reason: Reason = None) -> None:
    """Approve or reject a call. After the last decision the run continues."""
    waiting = await chat.approvals()
    if waiting and all(each.version != version for each in waiting):
        raise HTTPException(404)
    for each in waiting:
        if each.version == version:
            await (each.approve(reason=reason) if approved else each.reject(reason))
    if not await chat.approvals():
        await chat.continue_run(background=True)


async def users_run(chat: Chat, run_id: str, last_event_id: Annotated[str, Header()] = "") -> FollowedRun[Thread]:
    """The updates of a run after the last one that the client has seen; 404 for an unknown run."""
    return await chat.follow(run_id, after=last_event_id, continue_run=True)


@app.get("/chats/{chat_id}/runs/{run_id}", response_class=EventSourceResponse)
async def follow(run: Annotated[FollowedRun[Thread], Depends(users_run)]) -> AsyncIterator[ServerSentEvent]:
    """Stream the updates of a run, and at its end how it ended. The run continues if the client disconnects."""
    try:
        async for update in run:
            data = {"text": update.text} if update.message is None else shown(update.message)
            yield ServerSentEvent(id=update.position, event=update.type, data=data)
        response = await run.response()
        yield ServerSentEvent(event="end", data="waits" if response.approvals else response.finish_reason)
    except errors.RunNotCompletedError as error:
        yield ServerSentEvent(event="end", data=error.outcome)
