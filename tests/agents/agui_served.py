"""An agent that is served over AG-UI, and the package @ag-ui/client, which checks each event that it gets."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import subprocess
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from tests.servers.installation import agui_client, node

from clew import Engine
from clew.agui import agui_messages

PROGRAM = Path(__file__).with_name("agui_client.mjs")
_numbers = itertools.count(1)


class JavaScript:
    """A process of Node with the client."""

    def __init__(self) -> None:
        command = [*node().node, str(PROGRAM), str(agui_client())]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def close(self) -> None:
        """End the process."""
        with self._process as process:
            process.kill()

    async def run(self, command: Any) -> Any:
        """Carry out a command; returns what the client has then."""
        return await asyncio.to_thread(self._run, command)

    def _run(self, command: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        watchdog = threading.Timer(10, self._process.kill)  # a reply that never comes must not stop the tests
        watchdog.start()
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())
        finally:
            watchdog.cancel()


class Window:
    """A client with the messages of one thread, such as a page in a browser."""

    def __init__(self, javascript: JavaScript, url: str, thread_id: str = "t1", user: str = "user:1") -> None:
        self._javascript = javascript
        self._name = f"window {next(_numbers)}"
        self._config: Any = {"url": url, "threadId": thread_id, "headers": {"x-user": user}}
        self.messages: list[Any] = []

    async def run(self, *texts: str, complains: bool = False, **command: Any) -> Any:
        """Send a request with new messages; returns the events, the messages and more."""
        add = [user(text) for text in texts]
        given = {"name": self._name, "config": self._config, "add": [*add, *command.pop("add", ())], **command}
        reply = await self._javascript.run(given)
        self._config = None
        if not complains:
            assert (reply["error"], reply["said"]) == (None, []), reply
        self.messages = reply["messages"]
        return reply

    @property
    def contents(self) -> list[Any]:
        """The contents of its messages."""
        return [message.get("content") for message in self.messages]


def user(text: str) -> Any:
    """A new message of a user."""
    return {"id": f"message {next(_numbers)}", "role": "user", "content": text}


@asynccontextmanager
async def listening(app: Starlette) -> AsyncIterator[str]:
    """Serve an application; gives its address."""
    with socket.create_server(("127.0.0.1", 0)) as opened:
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical"))
        serving = asyncio.create_task(server.serve(sockets=[opened]))
        yield f"http://127.0.0.1:{opened.getsockname()[1]}/"
        server.should_exit = True
        await serving
        await asyncio.sleep(0.01)  # the connections that it has closed are closed in the next rounds of the loop


def types(reply: Any) -> list[str]:
    """The types of the events of a reply, each once if it repeats."""
    return [type_ for type_, _ in itertools.groupby(event["type"] for event in reply["events"])]


async def the_history(engine: Engine) -> list[Any]:
    """The messages of the only thread."""
    [thread] = [each async for each in engine.threads()]
    messages = await agui_messages(await engine.thread(thread.id))
    return [json.loads(each.model_dump_json(by_alias=True)) for each in messages]
