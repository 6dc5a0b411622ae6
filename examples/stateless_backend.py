"""A chat backend without state between requests: a new process can handle each request.

    pip install fastapi uvicorn
    CLEW_DB=sqlite:///chat.db uvicorn --app-dir examples stateless_backend:app

Every request opens the engine, creates the agent, gets the thread by the host's id and saves it at the end. It runs
offline with a scripted model, or with a real one if OPENAI_API_KEY is set. docs/how-to/hosting.md explains it.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Query, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from clew import Agent, ClewError, Engine, OpenAIChatClient, ScriptedChatClient, ThreadStore, errors, tool
from clew.testing import call
from clew.types import AgentResponse, HostedThread

STATUS_CODES: dict[type[ClewError], int] = {
    errors.ApprovalPendingError: 409,
    errors.NoOpenRunError: 409,
    errors.ThreadAheadError: 409,
    errors.ThreadDivergedError: 409,
    errors.ThreadDeletedError: 410,
    errors.ThreadDocumentError: 422,
    ClewError: 500,
}


class UserMessage(BaseModel):
    """A user's message in a chat; ``chat`` is the host's id."""

    chat: str
    text: str


class Decision(BaseModel):
    """A decision about the call that waits in a chat."""

    chat: str
    approved: bool


class Answer(BaseModel):
    """The answer, or the calls that wait for approval."""

    text: str
    waits_for: list[str]


@tool(approval="always")
def book(seat: str) -> str:
    """Book a seat."""
    return f"Seat {seat} is booked."


def script(body: dict[str, Any]) -> Any:
    """Return an answer like a model's."""
    last = body["messages"][-1]
    if last["role"] == "tool":
        return f"Done. {last['content']}"
    count = sum(message["role"] == "user" for message in body["messages"])
    return call("book", seat="7A") if "book" in last["content"] else f"That was message {count}."


def agent_in(engine: Engine) -> Agent:
    """Return the agent. It holds no chat."""
    online = bool(os.environ.get("OPENAI_API_KEY"))
    return Agent(
        OpenAIChatClient(model="gpt-5.4-mini") if online else ScriptedChatClient(script),
        engine=engine,
        name="Host",
        instructions="You book seats.",
        tools=[book],
    )


async def opened() -> AsyncIterator[tuple[Agent, ThreadStore]]:
    """Open the resources of a request and close them after it."""
    async with Engine.open(os.environ.get("CLEW_DB", "sqlite:///clew.db")) as engine:
        agent = agent_in(engine)
        yield agent, ThreadStore(engine, agent)


Opened = Annotated[tuple[Agent, ThreadStore], Depends(opened)]

app = FastAPI(title="Hosted chats")


@app.exception_handler(ClewError)
async def refuse(_request: Request, error: ClewError) -> JSONResponse:
    """Answer Clew's errors with the status code of the nearest class in the table."""
    code = next(STATUS_CODES[kind] for kind in type(error).__mro__ if kind in STATUS_CODES)
    return JSONResponse({"error": {"type": type(error).__name__, "message": str(error)}}, code)


@app.post("/messages")
async def say(opened: Opened, message: UserMessage) -> Answer:
    """Send a message to a chat. The first message starts it."""
    _, store = opened
    while True:
        thread = await store.get(message.chat)
        try:
            return answer(await thread.run(message.text, on_conflict="wait"))
        except errors.ThreadStatusError as error:
            if error.status != "suspended":  # another request has just suspended it: get it again
                raise
        finally:
            await store.save(thread)


@app.post("/decisions")
async def decide(opened: Opened, decision: Decision) -> Answer:
    """Approve or reject the waiting call of a chat, and continue the run."""
    _, store = opened
    thread = await store.get(decision.chat)
    try:
        for approval in await thread.approvals():
            await (approval.approve() if decision.approved else approval.reject())
        return answer(await thread.continue_run(on_conflict="wait"))
    finally:
        await store.save(thread)


@app.get("/document")
async def document(opened: Opened, chat: Annotated[str, Query()]) -> dict[str, Any]:
    """Return a chat with its complete history as a document."""
    _, store = opened
    thread = await store.get(chat)
    try:
        return await thread.serialize()
    finally:
        await store.save(thread)


@app.put("/document")
async def restore(opened: Opened, document: dict[str, Any]) -> dict[str, str]:
    """Restore the chat of a document. A changed document is refused, and nothing is stored."""
    agent, _ = opened
    return {"thread_id": (await agent.deserialize_thread(document)).id}


def answer(response: AgentResponse[HostedThread]) -> Answer:
    """Return the answer for the host."""
    calls = (approval.call for approval in response.approvals)
    return Answer(text=response.text, waits_for=[f"{each.name}({each.arguments})" for each in calls])
