"""Runs aimock, a third-party server of the OpenAI wire formats. It gives scripted answers and records requests."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.servers import installation
from tests.servers.control_api import send_json
from tests.servers.server_process import ServerProcess

MCP_TOOL = {
    "name": "lookup",
    "description": "Look a word up.",
    "inputSchema": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    "result": "Of tree bark.",
}
"""The tool of the MCP server, at ``/mcp``."""


@dataclass(frozen=True)
class ToolCall:
    """A tool call that the model makes. Without an id, the server generates one."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    id: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The call in aimock's format."""
        return {"name": self.name, "arguments": self.arguments} | ({"id": self.id} if self.id else {})


@dataclass(frozen=True)
class Received:
    """A request that a server received.

    Args:
        path: the path of the URL.
        headers: by lower-case name. Only aimock records them, including `content-length`.
        body: the JSON body. aimock converts a Responses request to the chat format, and records a note instead of a
            body larger than 64 KiB. llmock records bodies unchanged, up to 256 KiB.
        status: the status code of the answer.
    """

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    status: int


class Aimock:
    """A running aimock: `url` is its root, and `base_url` is for OpenAI clients."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.base_url = f"{url}/v1"

    def reply(
        self,
        prompt_contains: str = "",
        *,
        text: str | None = None,
        tool_calls: Sequence[ToolCall] = (),
        reasoning: str | None = None,
        after_tools: bool | None = None,
        turn: int | None = None,
        nth: int | None = None,
        usage: tuple[int, int] | None = None,
        finish_reason: str | None = None,
        piece: int | None = None,
        delay: float = 0,
        cut_after: int | None = None,
    ) -> None:
        """Script an answer. If several replies match a request, the server uses the one that was added first.

        Args:
            prompt_contains: a part of the last user message; "" matches all requests.
            text: the text of the answer.
            tool_calls: the tool calls, all in one answer.
            reasoning: the reasoning before the answer.
            after_tools: match only if the turn has tool results (True) or has none (False).
            turn: match only if the request has this number of assistant messages.
            nth: match only the nth of the otherwise matching requests, counted from 0.
            usage: input and output tokens, instead of the server's estimate.
            finish_reason: a finish reason of Chat Completions, such as "length".
            piece: characters in a chunk of the stream; 20 by default.
            delay: seconds before each chunk.
            cut_after: the number of chunks after which the server closes the connection.
        """
        match: dict[str, Any] = {"userMessage": prompt_contains or None, "hasToolResult": after_tools}
        match |= {"turnIndex": turn, "sequenceIndex": nth}
        response: dict[str, Any] = {"content": text, "reasoning": reasoning, "finishReason": finish_reason}
        if tool_calls:
            response["toolCalls"] = [call.as_json() for call in tool_calls]
        if usage:
            tokens = zip(
                ("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens"), usage * 2, strict=True
            )
            response["usage"] = dict(tokens) | {"total_tokens": sum(usage)}
        # Without a pause, the server closes the connection before it sends the first chunk.
        latency = round(delay * 1000) or (10 if cut_after else None)
        self._add(match, response, {"chunkSize": piece, "latency": latency, "truncateAfterChunks": cut_after})

    def fail(
        self,
        status: int,
        *,
        message: str = "Scripted failure",
        code: str | None = None,
        kind: str = "server_error",
        nth: int | None = None,
        retry_after: int | None = None,
        prompt_contains: str = "",
    ) -> None:
        """Script an error. `nth` and `prompt_contains` are as in `reply`; `retry_after` is in whole seconds."""
        error = {"message": message, "type": kind} | ({"code": code} if code else {})
        response = {"error": error, "status": status, "retryAfter": retry_after}
        self._add({"userMessage": prompt_contains or None, "sequenceIndex": nth}, response, {})

    def journal(self) -> list[Received]:
        """The requests since the last reset, in order; at most the newest thousand."""
        return [
            Received(
                path=entry["path"],
                headers=entry["headers"],
                # Names that start with an underscore are aimock's own notes.
                body={name: value for name, value in (entry["body"] or {}).items() if not name.startswith("_")},
                status=entry["response"]["status"],
            )
            for entry in send_json("GET", f"{self.url}/__aimock/journal")
        ]

    def reset(self) -> None:
        """Remove all replies, counts and the journal."""
        send_json("POST", f"{self.url}/__aimock/reset")

    def _add(self, match: dict[str, Any], response: dict[str, Any], options: dict[str, Any]) -> None:
        entry = {"match": _without_none(match), "response": _without_none(response), **_without_none(options)}
        send_json("POST", f"{self.url}/__aimock/fixtures", {"fixtures": [entry]})


@contextmanager
def aimock_server(folder: Path) -> Iterator[Aimock]:
    """Run aimock on a free port until the block ends. The folder gets its settings file."""
    settings = folder / "aimock.json"
    given = {"host": "127.0.0.1", "llm": {"logLevel": "warn"}, "mcp": {"tools": [MCP_TOOL]}}
    settings.write_text(json.dumps(given), encoding="utf-8")
    command = [*installation.aimock(), "--config", str(settings), "--port", "0"]
    # Without this setting, `turn` is only a preference.
    environment = {"AIMOCK_STRICT_TURN_INDEX": "1"}
    ready = r"listening on http://127\.0\.0\.1:(\d+)"
    with ServerProcess(command, ready=ready, environment=environment) as server:
        yield Aimock(server.url)


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
