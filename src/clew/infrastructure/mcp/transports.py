"""Bounded transports to MCP servers: a command, whose messages go through its pipes, and an address over HTTP.

The package ``mcp`` reads messages of any length from a command, and JSON of any length over HTTP.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import httpx2

_GRACE = 2.0
"""Seconds that a command has to end after its input ended, and again after SIGTERM."""

_PIECE = 65_536
_ENDS = 200
"""Bytes at the beginning and the end of a message that is too long, which may say what it answers."""

_FIRST_ID = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,9})\s*,')
_LAST_ID = re.compile(rb'"id"\s*:\s*(\d{1,9})\s*\}\s*\Z')

_SHORTEST_SECRET = 6
_NOT_FOUND, _FAILED = 404, 400
_SESSION = "mcp-session-id"


class Trouble:
    """What a transport has noticed, which the package ``mcp`` does not report."""

    def __init__(self) -> None:
        self.ended = False
        """Whether the server has ended the connection."""
        self.too_large = False
        """Whether a message was longer than the limit."""
        self.session_lost = False
        """Whether the server has answered that it does not know the session: it did not carry out the request."""
        self.status: int | None = None
        """The last HTTP status that was an error."""


@dataclass(frozen=True)
class Command:
    """A server that is a command: a process for each event loop, which gets only a few variables and its ``env``."""

    command: str
    arguments: Sequence[str] = field(repr=False)
    env: Mapping[str, str] = field(repr=False)
    cwd: str | Path | None

    @property
    def secrets(self) -> tuple[str, ...]:
        """What errors must not contain."""
        return _longest_first([*self.env.values(), *self.arguments])

    @asynccontextmanager
    async def open(self, trouble: Trouble, max_bytes: int) -> AsyncGenerator[Any]:
        """Start the process, and give the streams of its messages. Raises OSError if it cannot be started."""
        import anyio
        from mcp.client.stdio import get_default_environment

        process = await asyncio.create_subprocess_exec(
            self.command,
            *self.arguments,
            stdin=PIPE,
            stdout=PIPE,
            env={**get_default_environment(), **self.env},
            cwd=self.cwd,
            start_new_session=True,
        )
        to_session, received = anyio.create_memory_object_stream[Any](0)
        sent, to_process = anyio.create_memory_object_stream[Any](0)
        tasks = [
            asyncio.create_task(_read_messages(process, to_session, trouble, max_bytes)),
            asyncio.create_task(_write_messages(process, to_process)),
        ]
        try:
            yield received, sent
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for stream in (to_session, received, sent, to_process):
                stream.close()
            await asyncio.shield(asyncio.ensure_future(_stop(process)))


async def _read_messages(process: Process, to_session: Any, trouble: Trouble, max_bytes: int) -> None:
    """Read a message from each line. A line that is none, such as one that the command prints, is ignored."""
    import anyio
    from mcp.shared.message import SessionMessage
    from mcp_types import JSONRPCError, jsonrpc_message_adapter

    output = process.stdout
    if output is None:
        return
    try:
        async with to_session:
            async for line, is_cut in _lines(output, max_bytes):
                message: Any = None
                if is_cut:
                    if (number := _request_of(line)) is None:
                        trouble.too_large = True
                        return
                    error = {"code": _FAILED, "message": f"the reply exceeded the {max_bytes} byte limit"}
                    message = JSONRPCError.model_validate({"jsonrpc": "2.0", "id": number, "error": error})
                else:
                    with suppress(ValueError):
                        message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                if message is not None:
                    await to_session.send(SessionMessage(message))
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        pass  # the session is over
    finally:
        trouble.ended = True


async def _lines(output: asyncio.StreamReader, max_bytes: int) -> AsyncGenerator[tuple[bytes, bool]]:
    """The lines; of one that is too long only the beginning and the end, with True."""
    line, is_cut = bytearray(), False
    while piece := await output.read(_PIECE):
        *ended, rest = piece.split(b"\n")
        for each in ended:
            line += each
            yield bytes(line), is_cut
            line, is_cut = bytearray(), False
        line += rest
        if len(line) > max_bytes or is_cut:
            is_cut = True
            del line[_ENDS:-_ENDS]


def _request_of(cut: bytes) -> int | None:
    """The number of the request that a message answers, from its beginning and its end; None if they do not say it."""
    found = _FIRST_ID.match(cut) or _LAST_ID.search(cut)
    return None if found is None else int(found[1])


async def _write_messages(process: Process, to_process: Any) -> None:
    pipe = process.stdin
    if pipe is None:
        return
    with suppress(ConnectionError, RuntimeError):
        async for message in to_process:
            pipe.write(message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
            await pipe.drain()


async def _stop(process: Process) -> None:
    """End the input of the process, and kill it with its children if it does not end."""
    if process.stdin is not None:
        process.stdin.close()
    draining = asyncio.ensure_future(_drain(process.stdout))  # a process that cannot write does not end
    try:
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                _kill(process, number)
            with suppress(TimeoutError):
                async with asyncio.timeout(_GRACE):
                    await process.wait()
                    return
    except asyncio.CancelledError:  # the event loop ends
        _kill(process, signal.SIGKILL)
        await process.wait()
        raise
    finally:
        draining.cancel()
        process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001  # only it closes the pipes


async def _drain(output: asyncio.StreamReader | None) -> None:
    while output is not None and await output.read(_PIECE):
        pass


def _kill(process: Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


@dataclass(frozen=True)
class Address:
    """A server that is reached over HTTP, with headers or an ``httpx2.Auth`` object."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    auth: Any = field(repr=False)

    @property
    def secrets(self) -> tuple[str, ...]:
        """What errors must not contain."""
        parts = urlsplit(self.url)
        words = [word for value in self.headers.values() for word in (value, value.rpartition(" ")[2])]
        path = [each for each in parts.path.split("/") if each]
        return _longest_first([self.url, *words, parts.username, parts.password, parts.query, parts.path, *path])

    @asynccontextmanager
    async def open(self, trouble: Trouble, max_bytes: int) -> AsyncGenerator[Any]:
        """Open the transport. It reads no message that is longer than ``max_bytes``."""
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        async def note(response: httpx2.Response) -> None:
            if response.status_code >= _FAILED:
                trouble.status = response.status_code
            if response.status_code == _NOT_FOUND and _SESSION in response.request.headers:
                trouble.session_lost = True
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                response.stream = _bounded(response, max_bytes)

        client = httpx2.AsyncClient(
            # Compressed bytes say nothing about how many there will be.
            headers={**self.headers, "accept-encoding": "identity"},
            auth=self.auth,
            timeout=httpx2.Timeout(None, connect=_CONNECT_SECONDS, write=_CONNECT_SECONDS, pool=_CONNECT_SECONDS),
            event_hooks={"response": [note]},
        )
        async with (
            client,
            streamable_http_client(self.url, http_client=client, max_sse_event_size=max_bytes) as streams,
        ):
            yield streams


_CONNECT_SECONDS = 30.0
"""Seconds to reach a server. How long it may take to answer is limited by those who ask."""


def _bounded(response: httpx2.Response, max_bytes: int) -> Any:
    import httpx2

    class Bounded(httpx2.AsyncByteStream):
        """The bytes of a reply, up to a limit."""

        def __init__(self, stream: Any) -> None:
            self._stream = stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            total = 0
            if response.headers.get("content-encoding", "identity") != "identity":
                raise httpx2.StreamError("the reply is compressed")
            async for piece in self._stream:
                total += len(piece)
                if total > max_bytes:
                    raise httpx2.StreamError(f"the reply exceeded the {max_bytes} byte limit")
                yield piece

        async def aclose(self) -> None:
            await self._stream.aclose()

    return Bounded(response.stream)


Server: TypeAlias = Command | Address


def _longest_first(values: Sequence[str | None]) -> tuple[str, ...]:
    secrets = {value for value in values if value and len(value) >= _SHORTEST_SECRET}
    return tuple(sorted(secrets, key=len, reverse=True))
