"""A remote agent on the server of the package a2a-sdk, in a process of its own: ``python -m tests.servers.a2a_agent``.

What it does depends on the words that it gets. It prints its port, and writes the messages that reach it to a file.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path
from typing import Any

import uvicorn
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, Part, Task, TaskState, TaskStatus
from google.protobuf.struct_pb2 import Value
from starlette.applications import Starlette


class Executor(AgentExecutor):
    """Answers by what the message says."""

    def __init__(self, received: Path) -> None:
        self._received = received

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Answer a message."""
        text = context.get_user_input()
        message: Any = context.message
        with self._received.open("a") as file:
            file.write(f"{message.message_id} {text!r}\n")
        if text.startswith("raise"):
            raise RuntimeError("secret of the server")
        task: Any = context.current_task
        if task is None:
            submitted = TaskStatus(state=TaskState.TASK_STATE_SUBMITTED)
            task = Task(id=context.task_id, context_id=context.context_id, status=submitted, history=[message])
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        await updater.start_work()
        if text.startswith("book") and context.current_task is None:
            question = updater.new_agent_message([Part(text="Which day?")])
            await updater.requires_input(question)
            return
        if text.startswith("fail"):
            await updater.failed(updater.new_agent_message([Part(text="The kitchen burns.")]))
            return
        if text.startswith("status"):
            await updater.complete(updater.new_agent_message([Part(text=f"Only in the status: {text}")]))
            return
        if text.startswith("data"):
            number = Value()
            number.struct_value.update({"count": 1})
            file_part = Part(raw=b"hi", media_type="text/plain", filename="a.txt")
            await updater.add_artifact([Part(data=number), file_part], artifact_id="d", name="data")
            await updater.complete()
            return
        words = f"You said: {text}".split(" ")
        for number, word in enumerate(words):
            piece = word if number == 0 else f" {word}"
            await updater.add_artifact([Part(text=piece)], artifact_id="a", append=number > 0)
            if text.startswith("slow"):
                await asyncio.sleep(0.05)
        if text.startswith("hang"):
            await asyncio.sleep(60)
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Cancel a task."""
        with self._received.open("a") as file:
            file.write(f"cancel {context.task_id}\n")
        await TaskUpdater(event_queue, context.task_id or "", context.context_id or "").cancel()


def main(received: str) -> None:
    """Serve on a free port."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    port = listening.getsockname()[1]
    url = f"http://127.0.0.1:{port}/rpc"
    card = AgentCard(
        name="Echo",
        description="Repeats.",
        version="1",
        capabilities=AgentCapabilities(streaming=True),
        supported_interfaces=[AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version="1.0")],
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="echo", name="Echo", description="Repeats.", tags=["test"])],
    )
    handler = DefaultRequestHandler(
        agent_executor=Executor(Path(received)), task_store=InMemoryTaskStore(), agent_card=card
    )
    app = Starlette(routes=[*create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/rpc")])
    sys.stdout.write(f"http://127.0.0.1:{port}\n")
    sys.stdout.flush()
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listening])


if __name__ == "__main__":
    main(sys.argv[1])
