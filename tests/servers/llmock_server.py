"""llmock, a server of the OpenAI wire formats that others wrote: it fails as told, and keeps what it is asked."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from tests.servers import installation
from tests.servers.aimock_server import Received, ToolCall
from tests.servers.control import ask
from tests.servers.server_process import ServerProcess

# Tokens, by its estimate of four characters each. Real models have larger ones, and tests would wait for them.
CONTEXT_WINDOW = 4096

# The tool that it calls when it is to call one that nobody offered.
UNKNOWN_TOOL = "llmock_unknown_tool"

Fault = Literal[
    "rate limit",  # 429 with Retry-After
    "server error",  # 500
    "cut",  # of the connection, mid-stream
    "stall",  # the stream stands still
    "malformed chunk",  # not JSON
    "early end",  # of the stream: clean, without a reason to finish and without a terminator
    "invalid arguments",  # of a tool call: not JSON. The request must offer tools
    "unknown tool",  # called, and never offered. The request must offer tools
]


class Llmock:
    """An llmock that runs; `url` is its root and `base_url` what an OpenAI client is given.

    Told nothing, it repeats the prompt; offered tools, it calls one, and answers in text when the result is there. A
    request of more than `CONTEXT_WINDOW` tokens is refused as a real model refuses it, with both numbers.
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
        """Let the next requests fail.

        Args:
            kind: how.
            times: how many requests; all from now on if None.
            retry_after: seconds, of "rate limit".
            stalled: seconds, of "stall"; after them the stream goes on.
            after_chunks: chunks of a stream that come whole before it breaks; 5 have some text in them, on both APIs.
        """
        broken = {"type": "stream_fault", "after_chunks": after_chunks}
        told: dict[Fault, dict[str, Any]] = {
            "rate limit": {"type": "fail", "status": 429, "retry_after": retry_after},
            # Without a time the server names one second, which a test would sit through.
            "server error": {"type": "fail", "status": 500, "retry_after": retry_after},
            "cut": broken | {"kind": "disconnect"},
            "stall": broken | {"kind": "stall", "stall_seconds": stalled},
            "malformed chunk": broken | {"kind": "malformed"},
            "early end": broken | {"kind": "truncate"},
            "invalid arguments": {"type": "tool_fault", "kind": "malformed_arguments"},
            "unknown tool": {"type": "tool_fault", "kind": "unknown_tool"},
        }
        self._queue(told[kind] | {"times": times})

    def reply(self, *, text: str | None = None, tool_calls: Sequence[ToolCall] = (), times: int | None = 1) -> None:
        """Answer the next requests so; a fault that waits strikes the same answer."""
        calls = [{"name": call.name, "arguments": call.arguments} for call in tool_calls]
        self._queue({"type": "reply", "text": text, "tool_calls": calls, "times": times})

    def journal(self) -> list[Received]:
        """What it received since the last reset, in sequence; it waits two seconds for answers that are under way."""
        return [
            Received(path=entry["path"], headers={}, body=entry["body"], status=entry["status"])
            for entry in ask("GET", f"{self.url}/_llmock/requests")["requests"]
        ]

    def reset(self) -> None:
        """Forget the journal, and the faults and replies that wait."""
        ask("POST", f"{self.url}/_llmock/reset")

    def _queue(self, behaviour: dict[str, Any]) -> None:
        ask("POST", f"{self.url}/_llmock/scenario", {"behaviors": [behaviour]})


@contextmanager
def llmock_server() -> Iterator[Llmock]:
    """Run llmock on a free port while the block lasts."""
    command = [*installation.llmock(), "serve", "--port", "0", "--response-style", "echo"]
    environment = {"LLMOCK_CONTEXT_WINDOW": str(CONTEXT_WINDOW)}
    with ServerProcess(command, ready=r"running on http://127\.0\.0\.1:(\d+)", environment=environment) as server:
        yield Llmock(server.url)


@contextmanager
def refusing_url() -> Iterator[str]:
    """The URL of a port that refuses every connection, and that nobody else gets while the block lasts."""
    with contextlib.closing(socket.socket()) as bound:
        bound.bind(("127.0.0.1", 0))  # bound, so that it is taken, and not listening
        yield f"http://127.0.0.1:{bound.getsockname()[1]}/v1"
