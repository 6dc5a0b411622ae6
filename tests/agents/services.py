"""Model services that tests script alike: Clew's own, and a server of bytes that OpenAI's clients speak to."""

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
from clew.domain.runs.requests import Request, body_digest
from clew.infrastructure.openai.clients import OpenAIChatClient, OpenAIResponsesClient
from clew.infrastructure.scripted_client import Line, ScriptedChatClient, fault

CANARY = "sk-canary0123456789"
"""The key that must be nowhere."""

USAGE = TokenUsage(input_tokens=9, output_tokens=4)
BEGUN = "Halfway"
"""What has come of an answer when it breaks off."""

_PATIENCE = 60.0
_STALLED = 1.0
"""Seconds that a client waits for a service that stalls; what comes before has to be there in that time."""


class Trouble(Enum):
    """What a service may do in place of answering."""

    OVERLOADED = "overloaded"
    SERVER_ERROR = "server-error"
    REFUSED = "refused"
    CONTEXT_WINDOW = "context-window"
    CUT = "cut"
    STALL = "stall"
    MALFORMED = "malformed"
    EARLY_END = "early-end"
    DENIED = "denied"
    """The service shows the key that it does not take."""
    BROKEN_WITH_WORDS = "broken, with words"
    """The service says in the stream what went wrong, and shows the key."""
    SILENCE = "silence"
    """It says nothing more until the client has gone."""


@dataclass(frozen=True)
class Calls:
    """Function calls of one answer: id, name and arguments as the model wrote them; perhaps with words before."""

    calls: tuple[tuple[str, str, str], ...]
    text: str = ""


Said: TypeAlias = str | Calls | Trouble


def calls(*made: tuple[str, str], text: str = "") -> Calls:
    """Calls by name and arguments; their ids are the same in every answer."""
    return Calls(tuple((f"call_{number}", *each) for number, each in enumerate(made)), text)


class Service(Protocol):
    """A model service as a test sees it."""

    def client(self, *, trouble: Trouble | None = None, streams: bool = False) -> ModelClient:
        """A client of it, and one that it refuses, or that has little patience, where the trouble is of that kind."""
        ...

    def add_replies(self, *said: Said, streams: bool) -> None:
        """Say what the next requests are answered with."""
        ...

    def received(self, requests: Sequence[Request]) -> bool:
        """Whether what it received are these requests, in this order."""
        ...

    async def silent(self) -> None:
        """Wait until a request came that nothing is answered to."""
        ...


class Scripted:
    """Clew's own client, which needs no server."""

    kind = "scripted"

    def __init__(self) -> None:
        self._lines: deque[Said] = deque()
        self._bodies: list[JsonObject] = []
        self._silent = asyncio.Event()

    def client(self, *, trouble: Trouble | None = None, streams: bool = False) -> ModelClient:  # noqa: ARG002  # as all
        return ScriptedChatClient(self._line)

    def add_replies(self, *said: Said, streams: bool) -> None:  # noqa: ARG002  # as all
        self._lines.extend(said)

    def received(self, requests: Sequence[Request]) -> bool:
        return [body_digest(body) for body in self._bodies] == [each.digest for each in requests]

    async def silent(self) -> None:
        await self._silent.wait()

    def _line(self, body: JsonObject) -> Line:
        said = self._lines.popleft()
        if said is not Trouble.REFUSED:  # that would never have come
            self._bodies.append(body)
        if isinstance(said, Trouble):
            return self._trouble(said)
        return Answer(_message(said), _finish(said), USAGE, "m-1")

    def _trouble(self, trouble: Trouble) -> Line:
        if trouble is Trouble.SILENCE:
            self._silent.set()
            return fault("stall", after=BEGUN)
        if trouble is Trouble.STALL:
            return fault("stall", after=BEGUN, seconds=0.001)
        if trouble is Trouble.CONTEXT_WINDOW:
            return fault("context-window", tokens=9000, limit=8192)
        if trouble is Trouble.OVERLOADED:
            return fault("overloaded", retry_after=0.001)
        if trouble is Trouble.DENIED:
            return ModelAccessError("No.", status=401, code="invalid_api_key")
        if trouble is Trouble.BROKEN_WITH_WORDS:
            return fault("cut", after=BEGUN)
        after = BEGUN if trouble in {Trouble.CUT, Trouble.MALFORMED, Trouble.EARLY_END} else ""
        return fault(trouble.value, after=after)


class OverHttp:
    """A server that says what it is told byte by byte, in one of the two forms."""

    def __init__(self, kind: str, server: RawServer, refusing: str) -> None:
        self.kind = kind
        self.server = server
        self._refusing = refusing

    def client(self, *, trouble: Trouble | None = None, streams: bool = False) -> ModelClient:
        timeout = _PATIENCE if trouble is not Trouble.STALL else _STALLED if streams else 0.3
        url = self._refusing if trouble is Trouble.REFUSED else self.server.url
        made = OpenAIChatClient if self.kind == "chat" else OpenAIResponsesClient
        return made("m-1", api_key=CANARY, base_url=url, timeout=timeout)

    def add_replies(self, *said: Said, streams: bool) -> None:
        self.server.add_replies(*(self._reply(each, streams) for each in said if each is not Trouble.REFUSED))

    def received(self, requests: Sequence[Request]) -> bool:
        return [each.body for each in self.server.requests] == [each.content for each in requests]

    async def silent(self) -> None:
        await asyncio.to_thread(self.server.stalled.wait)

    def _reply(self, said: Said, streams: bool) -> Reply:  # noqa: FBT001  # one of two
        if isinstance(said, Trouble):
            return self._trouble(said, streams)
        if self.kind == "chat":
            return stream(*_chunks(said)) if streams else whole(_completion(said))
        return stream(*_events(said), done=False) if streams else whole(_response(said))

    def _trouble(self, trouble: Trouble, streams: bool) -> Reply:  # noqa: FBT001  # the same
        if trouble is Trouble.OVERLOADED:
            return whole({"error": {"message": f"Slow, {CANARY}."}}, status=429, headers={"retry-after-ms": "1"})
        if trouble is Trouble.DENIED:
            said = {"message": f"Incorrect API key provided: {CANARY}.", "code": "invalid_api_key", "param": CANARY}
            return whole({"error": said}, status=401)
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
        begins = _chunks(BEGUN)[:2] if self.kind == "chat" else _events(BEGUN)[:2]
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
    """The service of a kind of client, while the block lasts."""
    if kind == "scripted":
        yield Scripted()
        return
    with RawServer() as server, contextlib.closing(socket.socket()) as bound:
        server.stalled = threading.Event()
        bound.bind(("127.0.0.1", 0))  # bound, and not listening
        yield OverHttp(kind, server, f"http://127.0.0.1:{bound.getsockname()[1]}/v1")


_TOO_LARGE = {
    "error": {
        "message": "This model's maximum context length is 8192 tokens, and your messages resulted in 9000 tokens.",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }
}


def _message(said: str | Calls) -> Message:
    text, made = (said, ()) if isinstance(said, str) else (said.text, said.calls)
    words = (Text(text=text),) if text else ()
    asked = (FunctionCall(call_id=id_, name=name, arguments=arguments) for id_, name, arguments in made)
    return Message(role="assistant", contents=(*words, *asked))


def _finish(said: str | Calls) -> str:
    return "tool_calls" if isinstance(said, Calls) else "stop"


def _pieces(text: str) -> list[str]:
    half = len(text) // 2
    return [piece for piece in (text[:half], text[half:]) if piece]


# Chat Completions

_TOKENS = {"prompt_tokens": 9, "completion_tokens": 4}


def _completion(said: str | Calls) -> Any:
    message: JsonObject = {"role": "assistant", "content": (said if isinstance(said, str) else said.text) or None}
    if isinstance(said, Calls):
        message["tool_calls"] = [
            {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
            for id_, name, arguments in said.calls
        ]
    choice = {"index": 0, "message": message, "finish_reason": _finish(said)}
    return {"id": "c1", "model": "m-1", "choices": [choice], "usage": _TOKENS}


def _chunks(said: str | Calls) -> list[Any]:
    """The role, the words in one piece when they break off and else in two, the calls, the end, the tokens."""
    text = said if isinstance(said, str) else said.text
    deltas: list[Any] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": piece} for piece in ([text] if text == BEGUN else _pieces(text))]
    for index, (id_, name, arguments) in enumerate(said.calls if isinstance(said, Calls) else ()):
        begun = {"index": index, "id": id_, "type": "function", "function": {"name": name, "arguments": ""}}
        deltas.append({"tool_calls": [begun]})
        deltas += [{"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in _pieces(arguments)]
    chunks = [_chunk(delta) for delta in deltas]
    return [*chunks, _chunk({}, _finish(said)), {"id": "c1", "model": "m-1", "choices": [], "usage": _TOKENS}]


def _chunk(delta: Any, finish_reason: str | None = None) -> Any:
    return {"id": "c1", "model": "m-1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}


# Responses


def _response(said: str | Calls) -> Any:
    return {
        "id": "resp_1",
        "object": "response",
        "model": "m-1",
        "status": "completed",
        "output": _items(said),
        "usage": {"input_tokens": 9, "output_tokens": 4},
    }


def _items(said: str | Calls) -> list[Any]:
    text = said if isinstance(said, str) else said.text
    items: list[Any] = []
    if text:
        part = {"type": "output_text", "text": text, "annotations": []}
        items.append({"type": "message", "id": "m1", "role": "assistant", "status": "completed", "content": [part]})
    for id_, name, arguments in said.calls if isinstance(said, Calls) else ():
        made = {"type": "function_call", "id": f"fc_{id_}", "call_id": id_, "name": name, "arguments": arguments}
        items.append({**made, "status": "completed"})
    return items


def _events(said: str | Calls) -> list[Any]:
    done = _response(said)
    events: list[Any] = [{"type": "response.created", "response": {**done, "status": "in_progress", "output": []}}]
    for number, item in enumerate(done["output"]):
        at = {"output_index": number}
        if item["type"] == "message":
            text = item["content"][0]["text"]
            events += [
                {"type": "response.output_text.delta", **at, "delta": piece}
                for piece in ([text] if text == BEGUN else _pieces(text))
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
    """Arguments as a model writes them."""
    return json.dumps(arguments)
