"""An HTTP server that sends scripted replies, byte by byte, and records the requests."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Self


class Step(Enum):
    """A step of a reply that sends nothing."""

    CUT = "reset the connection"
    STALL = "send nothing more until the client disconnects"


CUT, STALL = Step.CUT, Step.STALL


@dataclass(frozen=True)
class Reply:
    """A reply: the steps after a request has arrived, in order. Bytes are sent as they are."""

    steps: tuple[bytes | Step, ...]


@dataclass(frozen=True)
class Request:
    """A received request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The value of the body."""
        return json.loads(self.body)


def whole(value: object, *, status: int = 200, headers: dict[str, str] | None = None) -> Reply:
    """A complete reply of JSON, or of bytes that are not JSON."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return Reply((_head(status, {"content-length": str(len(body)), **(headers or {})}), body))


def stream(*events: object, end: Step | None = None, done: bool = True, kind: str = "text/event-stream") -> Reply:
    """A reply of server-sent events: values as JSON, bytes unchanged. It ends with ``end``, or cleanly."""
    parts = [each if isinstance(each, bytes | Step) else f"data: {json.dumps(each)}\n\n".encode() for each in events]
    if done and end is None:
        parts.append(b"data: [DONE]\n\n")
    head = _head(200, {"content-type": kind, "transfer-encoding": "chunked"})
    pieces = [each if isinstance(each, Step) else b"%x\r\n%s\r\n" % (len(each), each) for each in parts]
    return Reply((head, *pieces, b"0\r\n\r\n" if end is None else end))


def _head(status: int, headers: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} Status", *(f"{name}: {value}" for name, value in headers.items())]
    if "content-type" not in headers:
        lines.append("content-type: application/json")
    return "\r\n".join([*lines, "", ""]).encode()


@dataclass
class RawServer:
    """Sends its ``replies`` in order. ``disconnected`` is set when a client disconnects from a stalled reply.

    ``connections`` is the number of connections so far.
    """

    replies: deque[Reply] = field(default_factory=deque)
    requests: list[Request] = field(default_factory=list)
    disconnected: threading.Event = field(default_factory=threading.Event)
    stalled: threading.Event = field(default_factory=threading.Event)
    port: int = 0
    connections: int = 0

    def __enter__(self) -> Self:
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), daemon=True)
        self._thread.start()
        ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()

    @property
    def url(self) -> str:
        """The address, with the path that most services have."""
        return f"http://127.0.0.1:{self.port}/v1"

    def add_replies(self, *replies: Reply) -> None:
        """Script the replies to the next requests."""
        self.replies.extend(replies)

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        self._writers: dict[asyncio.Task[object], asyncio.StreamWriter] = {}
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        await self._ended.wait()
        server.close()
        for writer in self._writers.values():
            writer.transport.abort()
        await asyncio.gather(*self._writers, return_exceptions=True)  # asyncio would report each that is cancelled
        await server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task: Any = asyncio.current_task()
        self._writers[task] = writer
        self.connections += 1
        try:
            while (request := await _read(reader)) is not None:
                self.requests.append(request)
                if not await self._send(self.replies.popleft(), reader, writer):
                    break
        except ConnectionError:
            self.disconnected.set()
        finally:
            del self._writers[task]
            writer.close()

    async def _send(self, reply: Reply, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        for step in reply.steps:
            if step is CUT:
                writer.transport.abort()
                return False
            if step is STALL:
                self.stalled.set()
                await reader.read()
                self.disconnected.set()
                return False
            writer.write(step)  # type: ignore[arg-type]  # all other steps are bytes
            await writer.drain()
        return True


async def _read(reader: asyncio.StreamReader) -> Request | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    except asyncio.IncompleteReadError:
        return None
    method, path, _ = head[0].split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Request(method, path, headers, body)
