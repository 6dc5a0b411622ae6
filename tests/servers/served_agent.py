"""An agent of Clew over A2A, and at /ag-ui over AG-UI, in a process of its own.

``python -m tests.servers.served_agent clew.db port later``

``later`` is how many microseconds its clock is ahead.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any

import uvicorn
from starlette.requests import Request

from clew import Agent, Engine, ScriptedChatClient, tool
from clew.a2a import a2a_app
from clew.agui import agui_routes
from clew.infrastructure import clock
from clew.testing import call


@tool(approval="always")
def refund(order: int) -> str:
    """Pay money back."""
    return f"refunded {order}"


def script(body: Any) -> Any:
    """Answer like a model."""
    last = body["messages"][-1]
    if last["role"] == "tool":
        return f"Done: {last['content']}"
    if "fail" in str(last["content"]):
        raise RuntimeError("secret of the agent")
    if "refund" in str(last["content"]):
        return call("refund", order=7)
    return f"You said: {last['content']} ({len(body['messages'])})"


def actor_of(request: Request) -> str | None:
    """The user that a request names. This is a stub."""
    return request.headers.get("x-user")


async def serve(path: str, port: int, later: int) -> None:
    """Serve until the process ends."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", port))
    listening.listen()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    opened = Engine.open(f"sqlite:///{path}", embedded=False, now=lambda: clock.now() + later)
    async with opened as engine:
        client = ScriptedChatClient(script, delay=0.02)
        agent = Agent(client, engine=engine, id="desk", name="Desk", tools=[refund])
        sys.stdout.write(f"{url}\n")
        sys.stdout.flush()
        app = a2a_app(agent, url=f"{url}/", authenticate=actor_of)
        app.routes.extend(agui_routes(agent, authenticate=actor_of, path="/ag-ui"))
        await uvicorn.Server(uvicorn.Config(app, log_level="critical")).serve(sockets=[listening])


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
