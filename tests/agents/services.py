"""Model services with one scripting interface: Clew's scripted client, and a raw HTTP server for OpenAI's clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, TypeAlias

from tests.servers.raw_server import CUT, STALL, RawServer, Reply, stream, whole

from clew.domain.json_values import JsonObject
from clew.domain.messages import FunctionCall, Message, Text
from clew.domain.models.client import Answer, ModelClient, TokenUsage
from clew.domain.runs.errors import ModelAccessError
from clew.domain.runs.request_construction import Request, request_bytes
from clew.domain.streams import digest
from clew.infrastructure.openai.clients import OpenAIChatClient, OpenAIResponsesClient
from clew.infrastructure.scripted_client import Line, ScriptedChatClient, fault

CANARY = "sk-canary0123456789"
"""An API key that must not appear anywhere."""

USAGE = TokenUsage(input_tokens=9, output_tokens=4)
PARTIAL_ANSWER = "Halfway"
"""The text of an answer that breaks off."""

_PATIENCE = 60.0
_STALLED = 3.0
"""Seconds that a client waits for a stalled service; earlier parts and later answers must arrive within them."""


class Trouble(Enum):
    """Faults of a service."""

    OVERLOADED = "overloaded"
    SERVER_ERROR = "server-error"
    REFUSED = "refused"
    CONTEXT_WINDOW = "context-window"
    CUT = "cut"
    STALL = "stall"
    MALFORMED = "malformed"
    EARLY_END = "early-end"
    DENIED = "denied"
    """The service refuses the key and repeats it in the error."""
    BROKEN_WITH_WORDS = "broken, with words"
    """The service sends an error in the stream and repeats the key."""
    SILENCE = "silence"
    """The service stops sending until the client disconnects."""


@dataclass(frozen=True)
class Calls:
    """Function calls of one answer: id, name and arguments as the model wrote them, with an optional text before."""

    calls: tuple[tuple[str, str, str], ...]
    text: str = ""


ScriptedReply: TypeAlias = str | Calls | Trouble


def calls(*made: tuple[str, str], text: str = "") -> Calls:
    """Return calls by name and arguments; their ids are the same in each answer."""
    return Calls(tuple((f"call_{number}", *each) for number, each in enumerate(made)), text)


class Service(Protocol):
    """The interface of a model service for tests."""

    def client(self, *, trouble: Trouble | None = None) -> ModelClient:
        """Return a client; for some faults the service refuses it or its timeout is short."""
        ...

    def add_replies(self, *replies: ScriptedReply, streams: bool) -> None:
        """Script the answers to the next requests."""
        ...

    def received(self, requests: Sequence[Request]) -> bool:
        """Return whether the service received exactly these requests in this order."""
        ...

    async def silent(self) -> None:
        """Wait until the service leaves a request unanswered."""
        ...


class Scripted:
    """Clew's scripted client, which needs no server."""

    kind = "scripted"

    def __init__(self) -> None:
        self._lines: deque[ScriptedReply] = deque()
        self._bodies: list[JsonObject] = []
        self._silent = asyncio.Event()

    def client(self, *, trouble: Trouble | None = None) -> ModelClient:  # noqa: ARG002  # the protocol's parameter
        return ScriptedChatClient(self._line)

    def add_replies(self, *replies: ScriptedReply, streams: bool) -> None:  # noqa: ARG002  # the protocol's parameters
        self._lines.extend(replies)

    def received(self, requests: Sequence[Request]) -> bool:
        return [digest(request_bytes(body)).hex() for body in self._bodies] == [each.digest for each in requests]

    async def silent(self) -> None:
        await self._silent.wait()

    def _line(self, body: JsonObject) -> Line:
        reply = self._lines.popleft()
        if reply is not Trouble.REFUSED:  # a refused request does not arrive
            self._bodies.append(body)
        if isinstance(reply, Trouble):
            return self._trouble(reply)
        return Answer(_message(reply), _finish(reply), USAGE, "m-1")

    def _trouble(self, trouble: Trouble) -> Line:
        if trouble is Trouble.SILENCE:
            self._silent.set()
            return fault("stall", after=PARTIAL_ANSWER)
        if trouble is Trouble.STALL:
            return fault("stall", after=PARTIAL_ANSWER, seconds=0.001)
        if trouble is Trouble.CONTEXT_WINDOW:
            return fault("context-window", tokens=9000, limit=8192)
        if trouble is Trouble.OVERLOADED:
            return fault("overloaded", retry_after=0.001)
        if trouble is Trouble.DENIED:
            return ModelAccessError("No.", status=401, code="invalid_api_key")
        if trouble is Trouble.BROKEN_WITH_WORDS:
            return fault("cut", after=PARTIAL_ANSWER)
        after = PARTIAL_ANSWER if trouble in {Trouble.CUT, Trouble.MALFORMED, Trouble.EARLY_END} else ""
        return fault(trouble.value, after=after)


class OverHttp:
    """A server that sends scripted bytes, in one of the two wire formats."""

    def __init__(self, kind: str, server: RawServer, refusing: str) -> None:
        self.kind = kind
        self.server = server
        self._refusing = refusing

    def client(self, *, trouble: Trouble | None = None) -> ModelClient:
        timeout = _STALLED if trouble is Trouble.STALL else _PATIENCE
        url = self._refusing if trouble is Trouble.REFUSED else self.server.url
        made = OpenAIChatClient if self.kind == "chat" else OpenAIResponsesClient
        return made("m-1", api_key=CANARY, base_url=url, timeout=timeout)

    def add_replies(self, *replies: ScriptedReply, streams: bool) -> None:
        self.server.add_replies(*(self._reply(each, streams) for each in replies if each is not Trouble.REFUSED))

    def received(self, requests: Sequence[Request]) -> bool:
        return [each.body for each in self.server.requests] == [each.content for each in requests]

    async def silent(self) -> None:
        await asyncio.to_thread(self.server.stalled.wait)

    def _reply(self, reply: ScriptedReply, streams: bool) -> Reply:  # noqa: FBT001  # private
        if isinstance(reply, Trouble):
            return self._trouble(reply, streams)
        if self.kind == "chat":
            return stream(*_chunks(reply)) if streams else whole(_completion(reply))
        return stream(*_events(reply), done=False) if streams else whole(_response(reply))

    def _trouble(self, trouble: Trouble, streams: bool) -> Reply:  # noqa: FBT001  # private
        if trouble is Trouble.OVERLOADED:
            return whole({"error": {"message": f"Slow, {CANARY}."}}, status=429, headers={"retry-after-ms": "1"})
        if trouble is Trouble.DENIED:
            error = {"message": f"Incorrect API key provided: {CANARY}.", "code": "invalid_api_key", "param": CANARY}
            return whole({"error": error}, status=401)
        if trouble is Trouble.SERVER_ERROR:
            return whole({"error": {"message": f"Broken, {CANARY}."}}, status=500)
        if trouble is Trouble.CONTEXT_WINDOW:
            return whole(_TOO_LARGE, status=400)
        if streams:
            return self._broken(trouble)
        if trouble is Trouble.CUT:
            return Reply((*whole({}, headers={"content-length": "99"}).steps, CUT))
        if trouble in {Trouble.STALL, Trouble.SILENCE}:
            return Reply((STALL,))
        return whole(b'{"id": ' if trouble is Trouble.MALFORMED else {"id": "c1", "model": "m-1"})

    def _broken(self, trouble: Trouble) -> Reply:
        begins = _chunks(PARTIAL_ANSWER)[:2] if self.kind == "chat" else _events(PARTIAL_ANSWER)[:2]
        if trouble is Trouble.BROKEN_WITH_WORDS:
            error = {"message": f"No more of {CANARY}.", "code": "server_error"}
            return stream(*begins, {"error": error} if self.kind == "chat" else {"type": "error", **error})
        if trouble is Trouble.MALFORMED:
            return stream(*begins, b"data: {broken\n\n")
        if trouble is Trouble.EARLY_END:
            return stream(*begins, done=False)
        return stream(*begins, end=CUT if trouble is Trouble.CUT else STALL)


KINDS = ("scripted", "chat", "responses")


@contextmanager
def service_of(kind: str) -> Iterator[Service]:
    """Run the service of a kind of client."""
    if kind == "scripted":
        yield Scripted()
        return
    with RawServer() as server, contextlib.closing(socket.socket()) as bound:
        server.stalled = threading.Event()
        bound.bind(("127.0.0.1", 0))  # bound but not listening
        yield OverHttp(kind, server, f"http://127.0.0.1:{bound.getsockname()[1]}/v1")


_TOO_LARGE = {
    "error": {
        "message": "This model's maximum context length is 8192 tokens, and your messages resulted in 9000 tokens.",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }
}


def _message(reply: str | Calls) -> Message:
    text, made = (reply, ()) if isinstance(reply, str) else (reply.text, reply.calls)
    words = (Text(text=text),) if text else ()
    calls = (FunctionCall(call_id=id_, name=name, arguments=arguments) for id_, name, arguments in made)
    return Message(role="assistant", contents=(*words, *calls))


def _finish(reply: str | Calls) -> str:
    return "tool_calls" if isinstance(reply, Calls) else "stop"


def _pieces(text: str) -> list[str]:
    half = len(text) // 2
    return [piece for piece in (text[:half], text[half:]) if piece]


# Chat Completions

_TOKENS = {"prompt_tokens": 9, "completion_tokens": 4}


def _completion(reply: str | Calls) -> Any:
    message: JsonObject = {"role": "assistant", "content": (reply if isinstance(reply, str) else reply.text) or None}
    if isinstance(reply, Calls):
        message["tool_calls"] = [
            {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
            for id_, name, arguments in reply.calls
        ]
    choice = {"index": 0, "message": message, "finish_reason": _finish(reply)}
    return {"id": "c1", "model": "m-1", "choices": [choice], "usage": _TOKENS}


def _chunks(reply: str | Calls) -> list[Any]:
    """Return the chunks of an answer; the text is one piece if the answer breaks off, otherwise two."""
    text = reply if isinstance(reply, str) else reply.text
    deltas: list[Any] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": piece} for piece in ([text] if text == PARTIAL_ANSWER else _pieces(text))]
    for index, (id_, name, arguments) in enumerate(reply.calls if isinstance(reply, Calls) else ()):
        started = {"index": index, "id": id_, "type": "function", "function": {"name": name, "arguments": ""}}
        deltas.append({"tool_calls": [started]})
        deltas += [{"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in _pieces(arguments)]
    chunks = [_chunk(delta) for delta in deltas]
    return [*chunks, _chunk({}, _finish(reply)), {"id": "c1", "model": "m-1", "choices": [], "usage": _TOKENS}]


def _chunk(delta: Any, finish_reason: str | None = None) -> Any:
    return {"id": "c1", "model": "m-1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}


# Responses


def _response(reply: str | Calls) -> Any:
    return {
        "id": "resp_1",
        "object": "response",
        "model": "m-1",
        "status": "completed",
        "output": _items(reply),
        "usage": {"input_tokens": 9, "output_tokens": 4},
    }


def _items(reply: str | Calls) -> list[Any]:
    text = reply if isinstance(reply, str) else reply.text
    items: list[Any] = []
    if text:
        part = {"type": "output_text", "text": text, "annotations": []}
        items.append({"type": "message", "id": "m1", "role": "assistant", "status": "completed", "content": [part]})
    for id_, name, arguments in reply.calls if isinstance(reply, Calls) else ():
        made = {"type": "function_call", "id": f"fc_{id_}", "call_id": id_, "name": name, "arguments": arguments}
        items.append({**made, "status": "completed"})
    return items


def _events(reply: str | Calls) -> list[Any]:
    done = _response(reply)
    events: list[Any] = [{"type": "response.created", "response": {**done, "status": "in_progress", "output": []}}]
    for number, item in enumerate(done["output"]):
        at = {"output_index": number}
        if item["type"] == "message":
            text = item["content"][0]["text"]
            events += [
                {"type": "response.output_text.delta", **at, "delta": piece}
                for piece in ([text] if text == PARTIAL_ANSWER else _pieces(text))
            ]
            continue
        events.append({"type": "response.output_item.added", **at, "item": {**item, "arguments": ""}})
        events += [
            {"type": "response.function_call_arguments.delta", **at, "delta": piece}
            for piece in _pieces(item["arguments"])
        ]
        events.append({"type": "response.output_item.done", **at, "item": item})
    return [*events, {"type": "response.completed", "response": done}]


def as_json(**arguments: Any) -> str:
    """Return arguments as a model writes them."""
    return json.dumps(arguments)
