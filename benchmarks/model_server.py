"""A model service without delay: Chat Completions, whole or streamed, in a separate process.

If a request offers a tool and ends with a user's message, it calls the tool; otherwise it answers with 200 characters.
For Gemini, it streams a long answer, with each event in an HTTP chunk of its own. ``GET /`` returns and resets the
counts of requests, to check that all contenders send the same. Standard library only.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any, cast

WORDS = "It is of no use to ask a model that knows nothing, but it answers at once. " * 3
ANSWER = WORDS[:200]
PIECE = 5
"""Characters per chunk: about a token, as with real services."""

USAGE = {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150}
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bergen"}'}}


class RequestCounts:
    """Counts of requests, messages and characters of messages."""

    def __init__(self) -> None:
        self.requests = self.messages = self.characters = 0

    def add(self, body: dict[str, Any]) -> None:
        """Count a request."""
        self.requests += 1
        self.messages += len(body["messages"])
        self.characters += sum(len(_words(message.get("content"))) for message in body["messages"])


def _words(content: Any) -> str:
    """The text of a content; some clients send a list of parts."""
    return "".join(part["text"] for part in content) if isinstance(content, list) else content or ""


class Service(asyncio.Protocol):
    """One connection."""

    def __init__(self, counts: RequestCounts) -> None:
        self._counts = counts
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport for answers."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Answer each request as soon as it is complete."""
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = self._received[:end].lower()
            _, has_body, after = head.partition(b"\r\ncontent-length:")
            length = int(after.partition(b"\r\n")[0]) if has_body else 0
            if len(self._received) < end + 4 + length:
                return
            body, self._received = self._received[end + 4 : end + 4 + length], self._received[end + 4 + length :]
            is_gemini = b":streamgeneratecontent" in head.partition(b"\r\n")[0]
            self._transport.write(LONG_STREAM if is_gemini else self._completion(body) if body else self._report())

    def _report(self) -> bytes:
        counts = dict(vars(self._counts))
        self._counts.__init__()  # type: ignore[misc]  # resets the counts
        return _reply("application/json", json.dumps(counts).encode())

    def _completion(self, data: bytes) -> bytes:
        body = json.loads(data)
        self._counts.add(body)
        calls = bool(body.get("tools")) and body["messages"][-1]["role"] == "user"
        return (CALLS if calls else ANSWERS)[bool(body.get("stream"))]


def _reply(kind: str, content: bytes) -> bytes:
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len(content)}\r\n\r\n"
    return head.encode() + content


def _whole(message: dict[str, Any], reason: str) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": reason}
    completion = {**_about("chat.completion"), "choices": [choice], "usage": USAGE}
    return _reply("application/json", json.dumps(completion).encode())


def _streamed(deltas: list[dict[str, Any]], reason: str) -> bytes:
    chunks: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": delta, "finish_reason": None}], "usage": None}
        for delta in ({"role": "assistant", "content": ""}, *deltas)
    ]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}], "usage": None})
    chunks.append({"choices": [], "usage": USAGE})
    events = [b"data: " + json.dumps({**_about("chat.completion.chunk"), **chunk}).encode() for chunk in chunks]
    return _reply("text/event-stream", b"\n\n".join([*events, b"data: [DONE]", b""]))


def _gemini_stream(events: int) -> bytes:
    """The events of an answer as Gemini sends them, each with the tokens so far."""
    pieces = [b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"]
    for number in range(1, events + 1):
        content = {"role": "model", "parts": [{"text": WORDS[number % 100 :][:PIECE]}]}
        end = {"finishReason": "STOP"} if number == events else {}
        usage = {"promptTokenCount": 100, "candidatesTokenCount": number, "totalTokenCount": 100 + number}
        about = {"modelVersion": "instant-1", "responseId": "response-1", "usageMetadata": usage}
        event = json.dumps({"candidates": [{"content": content, "index": 0, **end}], **about}).encode()
        pieces.append(b"%x\r\ndata: %s\r\n\r\n\r\n" % (len(event) + 10, event))
    return b"".join([*pieces, b"0\r\n\r\n"])


def _about(kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": kind, "created": 1_700_000_000, "model": "instant-1"}


ANSWERS = (
    _whole({"content": ANSWER}, "stop"),
    _streamed([{"content": ANSWER[at : at + PIECE]} for at in range(0, len(ANSWER), PIECE)], "stop"),
)
EVENTS = 3_000
LONG_STREAM = _gemini_stream(EVENTS)
CALLS = (
    _whole({"content": None, "tool_calls": [CALL]}, "tool_calls"),
    _streamed([{"tool_calls": [{"index": 0, **CALL}]}], "tool_calls"),
)


async def main() -> None:
    """Serve on a free port, which is printed, until the standard input ends."""
    counts = RequestCounts()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Service(counts), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(main())
