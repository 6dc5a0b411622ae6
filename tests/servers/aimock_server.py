"""aimock, a server of the OpenAI wire formats that others wrote: it answers as told, and keeps what it is asked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.servers import installation
from tests.servers.control import ask
from tests.servers.server_process import ServerProcess


@dataclass(frozen=True)
class ToolCall:
    """A call that the model makes; without an id, the server makes one up."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    id: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The call in the form that aimock is told."""
        return {"name": self.name, "arguments": self.arguments} | ({"id": self.id} if self.id else {})


@dataclass(frozen=True)
class Received:
    """A request that a server received.

    Args:
        path: the path of the URL.
        headers: by name in lower case; only aimock keeps them, `content-length` among them.
        body: the JSON body as it came. aimock keeps a Responses request in the chat form that it makes of it, and
            instead of a body of more than 64 KiB a note; llmock keeps all bodies as they came, up to 256 KiB.
        status: what it was answered with.
    """

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    status: int


class Aimock:
    """An aimock that runs; `url` is its root and `base_url` what an OpenAI client is given."""

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
        """Answer requests so. Of the replies that fit a request, the one that was given first is taken.

        Args:
            prompt_contains: what the last message of the user contains; "" fits any.
            text: what the model says.
            tool_calls: what it calls, all in one answer.
            reasoning: what it thinks before.
            after_tools: fits only if the turn has tool results (True) or has none (False).
            turn: fits only if the request has so many messages of the assistant.
            nth: fits only the nth request that fits otherwise, from 0.
            usage: tokens in and out, instead of the server's estimate.
            finish_reason: in the words of Chat Completions, such as "length".
            piece: characters a chunk of the stream; 20 unless given.
            delay: seconds before each chunk.
            cut_after: chunks, after which the connection is cut.
        """
        match: dict[str, Any] = {"userMessage": prompt_contains or None, "hasToolResult": after_tools}
        match |= {"turnIndex": turn, "sequenceIndex": nth}
        response: dict[str, Any] = {"content": text, "reasoning": reasoning, "finishReason": finish_reason}
        if tool_calls:
            response["toolCalls"] = [call.as_json() for call in tool_calls]
        if usage:
            spent = zip(("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens"), usage * 2, strict=True)
            response["usage"] = dict(spent) | {"total_tokens": sum(usage)}
        # Without a pause, a stream that is cut is cut before its first chunk is on the wire.
        latency = round(delay * 1000) or (10 if cut_after else None)
        self._add(match, response, {"chunkSize": piece, "latency": latency, "truncateAfterChunks": cut_after})

    def fail(
        self,
        status: int,
        *,
        message: str = "Told to fail",
        code: str | None = None,
        kind: str = "server_error",
        nth: int | None = None,
        retry_after: int | None = None,
        prompt_contains: str = "",
    ) -> None:
        """Answer requests with an error; `nth` and `prompt_contains` as of `reply`, `retry_after` in whole seconds."""
        error = {"message": message, "type": kind} | ({"code": code} if code else {})
        response = {"error": error, "status": status, "retryAfter": retry_after}
        self._add({"userMessage": prompt_contains or None, "sequenceIndex": nth}, response, {})

    def journal(self) -> list[Received]:
        """What it received since the last reset, in sequence: the newest thousand."""
        return [
            Received(
                path=entry["path"],
                headers=entry["headers"],
                # The names with an underline are its own notes.
                body={name: value for name, value in (entry["body"] or {}).items() if not name.startswith("_")},
                status=entry["response"]["status"],
            )
            for entry in ask("GET", f"{self.url}/__aimock/journal")
        ]

    def reset(self) -> None:
        """Forget all replies, counts and the journal."""
        ask("POST", f"{self.url}/__aimock/reset")

    def _add(self, match: dict[str, Any], response: dict[str, Any], options: dict[str, Any]) -> None:
        entry = {"match": _given(match), "response": _given(response), **_given(options)}
        ask("POST", f"{self.url}/__aimock/fixtures", {"fixtures": [entry]})


@contextmanager
def aimock_server(folder: Path) -> Iterator[Aimock]:
    """Run aimock on a free port while the block lasts; its settings are written to the folder."""
    settings = folder / "aimock.json"
    settings.write_text(json.dumps({"host": "127.0.0.1", "llm": {"logLevel": "warn"}}), encoding="utf-8")
    command = [*installation.aimock(), "--config", str(settings), "--port", "0"]
    # Otherwise `turn` is only a preference.
    environment = {"AIMOCK_STRICT_TURN_INDEX": "1"}
    ready = r"listening on http://127\.0\.0\.1:(\d+)"
    with ServerProcess(command, ready=ready, environment=environment) as server:
        yield Aimock(server.url)


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
