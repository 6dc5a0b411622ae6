"""Model services with one scripting interface: Clew's scripted client, and a raw HTTP server for the others."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from tests.agents.scripted_wires import PARTIAL_ANSWER, WIRES, Calls, ScriptedReply, Trouble
from tests.servers.raw_server import RawServer

from clew.domain.json_values import JsonObject
from clew.domain.messages import FunctionCall, Message, Text
from clew.domain.models.client import Answer, ModelClient, TokenUsage
from clew.domain.runs.errors import ModelAccessError
from clew.domain.runs.request_construction import Request, request_bytes
from clew.domain.streams import digest
from clew.infrastructure.scripted_client import Line, ScriptedChatClient, fault

USAGE = TokenUsage(input_tokens=9, output_tokens=4)

PATIENCE = 60.0
"""Seconds that a client waits for a service."""


def calls(*made: tuple[str, str], text: str = "") -> Calls:
    """Return calls by name and arguments; their ids are the same in each answer."""
    return Calls(tuple((f"call_{number}", *each) for number, each in enumerate(made)), text)


class Service(Protocol):
    """The interface of a model service for tests."""

    @property
    def kind(self) -> str:
        """The kind of client."""
        ...

    @property
    def codes(self) -> Mapping[Trouble, str]:
        """The service's codes of its errors."""
        ...

    def client(self, *, trouble: Trouble | None = None) -> ModelClient:
        """Return a client; for some faults the service refuses it."""
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

    async def left(self) -> None:
        """Wait until the client has left the request that the service left unanswered, if there is one."""
        ...


class Scripted:
    """Clew's scripted client, which needs no server."""

    kind = "scripted"
    codes: Mapping[Trouble, str] = {
        Trouble.CONTEXT_WINDOW: "context_length_exceeded",
        Trouble.DENIED: "invalid_api_key",
    }

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

    async def left(self) -> None:
        pass

    def _line(self, body: JsonObject) -> Line:
        reply = self._lines.popleft()
        if reply is not Trouble.REFUSED:  # a refused request does not arrive
            self._bodies.append(body)
        if isinstance(reply, Trouble):
            return self._trouble(reply)
        return Answer(_message(reply), _finish(reply), USAGE, "m-1")

    def _trouble(self, trouble: Trouble) -> Line:
        if trouble in {Trouble.SILENCE, Trouble.STALL}:
            self._silent.set()
            return fault("stall", after=PARTIAL_ANSWER, seconds=None if trouble is Trouble.SILENCE else PATIENCE)
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
    """A server that sends scripted bytes, in one of the wire formats."""

    def __init__(self, kind: str, server: RawServer, refusing: str) -> None:
        self.kind = kind
        self.server = server
        self.codes = WIRES[kind].codes
        self._wire = WIRES[kind]
        self._refusing = refusing

    def client(self, *, trouble: Trouble | None = None) -> ModelClient:
        url = self._refusing if trouble is Trouble.REFUSED else self.server.url
        return self._wire.client(url, PATIENCE)

    def add_replies(self, *replies: ScriptedReply, streams: bool) -> None:
        sent = [each for each in replies if each is not Trouble.REFUSED]
        self.server.add_replies(*(self._wire.reply(each, streams=streams) for each in sent))

    def received(self, requests: Sequence[Request]) -> bool:
        arrived = self.server.requests
        return [each.body for each in arrived] == [each.content for each in requests] and all(
            got.method == "POST" and got.path.endswith(each.path) for got, each in zip(arrived, requests, strict=True)
        )

    async def silent(self) -> None:
        assert await asyncio.to_thread(self.server.stalled.wait, PATIENCE)

    async def left(self) -> None:
        if self.server.stalled.is_set():
            assert await asyncio.to_thread(self.server.disconnected.wait, PATIENCE)


KINDS = ("scripted", *WIRES)


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


def _message(reply: str | Calls) -> Message:
    text, made = (reply, ()) if isinstance(reply, str) else (reply.text, reply.calls)
    words = (Text(text=text),) if text else ()
    calls = (FunctionCall(call_id=id_, name=name, arguments=arguments) for id_, name, arguments in made)
    return Message(role="assistant", contents=(*words, *calls))


def _finish(reply: str | Calls) -> str:
    return "tool_calls" if isinstance(reply, Calls) else "stop"


def as_json(**arguments: Any) -> str:
    """Return arguments as a model writes them."""
    return json.dumps(arguments)
