"""Runs llmock, a third-party server of the OpenAI wire formats. It injects scripted faults and records requests."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from tests.servers import installation
from tests.servers.aimock_server import Received, ToolCall
from tests.servers.control_api import send_json
from tests.servers.server_process import ServerProcess

# In tokens, at llmock's estimate of four characters each. Real context windows are larger, but slow tests down.
CONTEXT_WINDOW = 4096

# The tool that llmock calls for the fault "unknown tool".
UNKNOWN_TOOL = "llmock_unknown_tool"

Fault = Literal[
    "rate limit",  # 429 with Retry-After
    "server error",  # 500
    "cut",  # closes the connection in the middle of the stream
    "stall",  # stops sending, with the connection open
    "malformed chunk",  # sends a chunk that is not JSON
    "early end",  # ends the stream cleanly, without a finish reason and without a terminator
    "invalid arguments",  # calls a tool with arguments that are not JSON; the request must offer tools
    "unknown tool",  # calls a tool that the request does not offer; the request must offer tools
]


class Llmock:
    """A running llmock: `url` is its root, and `base_url` is for OpenAI clients.

    Without a script, it repeats the prompt. If the request offers tools, it calls one, and answers with text after the
    result. It refuses a request of more than `CONTEXT_WINDOW` tokens like a real model, with both numbers.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.base_url = f"{url}/v1"

    def fault(
        self,
        kind: Fault,
        *,
        times: int | None = 1,
        retry_after: float = 0.01,
        stalled: float = 60,
        after_chunks: int = 5,
    ) -> None:
        """Make the next requests fail.

        Args:
            kind: the fault.
            times: the number of requests that fail; None means all.
            retry_after: seconds, for "rate limit" and "server error".
            stalled: seconds, for "stall". After them, the stream continues.
            after_chunks: the number of complete chunks before the fault. With 5, both APIs have sent some text.
        """
        broken = {"type": "stream_fault", "after_chunks": after_chunks}
        behaviours: dict[Fault, dict[str, Any]] = {
            "rate limit": {"type": "fail", "status": 429, "retry_after": retry_after},
            # By default the server asks for a retry after one second, which slows tests down.
            "server error": {"type": "fail", "status": 500, "retry_after": retry_after},
            "cut": broken | {"kind": "disconnect"},
            "stall": broken | {"kind": "stall", "stall_seconds": stalled},
            "malformed chunk": broken | {"kind": "malformed"},
            "early end": broken | {"kind": "truncate"},
            "invalid arguments": {"type": "tool_fault", "kind": "malformed_arguments"},
            "unknown tool": {"type": "tool_fault", "kind": "unknown_tool"},
        }
        self._queue(behaviours[kind] | {"times": times})

    def reply(self, *, text: str | None = None, tool_calls: Sequence[ToolCall] = (), times: int | None = 1) -> None:
        """Script the next answers. A pending fault applies to the same answers."""
        calls = [{"name": call.name, "arguments": call.arguments} for call in tool_calls]
        self._queue({"type": "reply", "text": text, "tool_calls": calls, "times": times})

    def journal(self) -> list[Received]:
        """The requests since the last reset, in order. The server waits up to two seconds for unfinished answers."""
        return [
            Received(path=entry["path"], headers={}, body=entry["body"], status=entry["status"])
            for entry in send_json("GET", f"{self.url}/_llmock/requests")["requests"]
        ]

    def reset(self) -> None:
        """Clear the journal and all pending faults and replies."""
        send_json("POST", f"{self.url}/_llmock/reset")

    def _queue(self, behaviour: dict[str, Any]) -> None:
        send_json("POST", f"{self.url}/_llmock/scenario", {"behaviors": [behaviour]})


@contextmanager
def llmock_server() -> Iterator[Llmock]:
    """Run llmock on a free port until the block ends."""
    command = [*installation.llmock(), "serve", "--port", "0", "--response-style", "echo"]
    environment = {"LLMOCK_CONTEXT_WINDOW": str(CONTEXT_WINDOW)}
    with ServerProcess(command, ready=r"running on http://127\.0\.0\.1:(\d+)", environment=environment) as server:
        yield Llmock(server.url)


@contextmanager
def refusing_url() -> Iterator[str]:
    """The URL of a port that refuses every connection, and that stays reserved until the block ends."""
    with contextlib.closing(socket.socket()) as bound:
        bound.bind(("127.0.0.1", 0))  # bound, so that the port is reserved, but not listening
        yield f"http://127.0.0.1:{bound.getsockname()[1]}/v1"
