"""A connection to an MCP server in each event loop: with deadlines, made again when the server has ended it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from clew.domain.models.client import joined
from clew.domain.runs.errors import MCPServerError, MCPToolError
from clew.infrastructure.mcp.offers import parts_of
from clew.infrastructure.mcp.transports import Server, Trouble

if TYPE_CHECKING:
    from mcp import Client

T = TypeVar("T")

MCPProtocol: TypeAlias = Literal["auto", "2026-07-28", "2025-11-25"]
"""The protocol that is spoken; ``auto`` asks the server."""

_QUOTED = 300
"""Characters of an error that a server sends, which are quoted."""

_TOO_LONG = "byte limit"
"""In the error of a message that is too long, over HTTP."""

_WITHOUT_REASON = frozenset({"", "Not Found", "Server returned an error response"})
"""What the package says if an HTTP error has no reason."""

_SIGN_IN = "headers={'Authorization': 'Bearer …'}, or an OAuth client of the package mcp as auth="
_ADVICE: dict[int, str] = {
    HTTPStatus.UNAUTHORIZED: f" It wants to know who asks: give MCPTools.http {_SIGN_IN}.",
    HTTPStatus.FORBIDDEN: f" What was given does not allow it: give MCPTools.http another token in {_SIGN_IN}.",
}
"""What to do after an HTTP status."""

_UNFIT = "Its answer does not fit the protocol, or the schema that it has declared."
_REASONS = {
    "ValidationError": _UNFIT,
    "RuntimeError": _UNFIT,
    "InputRequiredRoundsExceededError": "It did not finish: it wanted to be called again and again.",
}
"""What errors of the package mean, by their names."""

_INPUT = re.compile(r"elicitation|sampling|roots", re.IGNORECASE)
"""What a server can ask its client for, in the error that it or the package then has."""

_END_SECONDS = 1.0
_LISTEN_SECONDS = 2.0
"""Seconds that a server has to accept that it is listened to, before it is used without."""

_LISTEN_AGAIN_SECONDS = 1.0
_SETTLE_SECONDS = 0.1
"""Seconds that a connection gets to end after an error: its own error says more."""


class Connections:
    """The connections to one server, by event loop. Errors name the server, and contain nothing secret."""

    def __init__(
        self, name: str, server: Server, *, protocol: MCPProtocol, connect_timeout: float, max_bytes: int
    ) -> None:
        self.name = name
        self._server = server
        self._protocol = protocol
        self._connect_timeout = connect_timeout
        self._max_bytes = max_bytes
        self._open: WeakKeyDictionary[asyncio.AbstractEventLoop, Connection] = WeakKeyDictionary()
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    async def request(self, send: Callable[[Client], Awaitable[T]]) -> T:
        """Send a request, over a new connection if the server has ended the last one.

        It is sent again only if the server did not get it. Raises MCPServerError.
        """
        connection = await self.connected()
        try:
            return await connection.carry_out(send)
        except _NotSentError:
            connection = await self.connected()
        try:
            return await connection.carry_out(send)
        except _NotSentError as error:
            raise self.error(connection.trouble, error.__cause__) from None

    async def connected(self) -> Connection:
        """The open connection of this event loop, or a new one. Raises MCPServerError."""
        loop = asyncio.get_running_loop()
        async with self._locks.setdefault(loop, asyncio.Lock()):
            connection = self._open.get(loop)
            if connection is None or connection.is_over:
                connection = Connection(self)
                await connection.wait(self._connect_timeout)
                self._open[loop] = connection
            return connection

    def has_changed(self, listed: Connection | None, changes: int) -> bool:
        """Whether the tools may have changed since a connection listed them: after that number of changes.

        A server that has ended the connection says nothing: its tools are listed again when it is reached again.
        """
        now = self._open.get(asyncio.get_running_loop())
        return now is not None and not now.is_over and (now is not listed or now.changes != changes)

    async def aclose(self) -> None:
        """Close the connection of this event loop."""
        connection = self._open.pop(asyncio.get_running_loop(), None)
        if connection is not None:
            await connection.aclose()

    def client(self, trouble: Trouble, on_message: Any) -> Client:
        """A client of the package that is not connected yet."""
        from mcp import Client

        mode = "legacy" if self._protocol == "2025-11-25" else "auto"
        transport = self._server.open(trouble, self._max_bytes)
        return Client(transport, mode=mode, message_handler=on_message, cache=None)

    def check(self, client: Client) -> None:
        """Raise MCPServerError if another version of the protocol is spoken than the one that was asked for."""
        if self._protocol not in {"auto", client.protocol_version}:
            reason = f"It speaks version {client.protocol_version} of the protocol, and not {self._protocol}."
            raise MCPServerError(self.name, reason)

    def error(self, trouble: Trouble, error: BaseException | None) -> MCPServerError:
        """The error for callers, without anything secret."""
        cause = _leaf(error)
        return cause if isinstance(cause, MCPServerError) else MCPServerError(self.name, self._reason(trouble, cause))

    def _reason(self, trouble: Trouble, error: BaseException | None) -> str:
        message = getattr(error, "message", None)
        text = message if isinstance(message, str) else ""
        if _asks_for_input(error, text):
            return f"It asks for input while a tool runs, and gets none: {self.quoted(text)}"
        if trouble.too_large or _TOO_LONG in text:
            return f"It sent more than max_bytes={self._max_bytes:,} in one message, which was not read."
        if isinstance(error, TimeoutError):
            return f"It gave no answer in {self._connect_timeout:g} s."
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            return "The command or its working directory does not exist."
        if isinstance(error, PermissionError):
            return "The command may not be executed."
        if trouble.status is not None and text in _WITHOUT_REASON:
            return f"It answered with the HTTP status {trouble.status}.{_ADVICE.get(trouble.status, '')}"
        if trouble.ended:
            return "It ended the connection."
        if text:
            return f"It answered: {self.quoted(text)}"
        kind = type(error).__name__
        if kind in _REASONS:
            return _REASONS[kind]
        return "It cannot be reached." if "Connect" in kind else f"Its answer cannot be used ({kind})."

    def scrubbed(self, text: str) -> str:
        """A text of the server, without what was given to reach it."""
        for secret in self._server.secrets:
            text = text.replace(secret, "…")
        return joined([text])

    def quoted(self, text: str) -> str:
        """The beginning of a text of the server."""
        text = self.scrubbed(text)
        return text if len(text) <= _QUOTED else text[: _QUOTED - 1] + "…"


class _NotSentError(Exception):
    """The server did not get the request."""


class Connection:
    """A connection, which a task of its own opens and closes: the package wants both in one task."""

    def __init__(self, connections: Connections) -> None:
        self.trouble = Trouble()
        self.changes = 0
        """How often the server has sent notice that its tools have changed."""
        self.parts: frozenset[str] = frozenset()
        """Which of resources and prompts the server had when it was connected."""
        self._connections = connections
        self._client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(_retrieve)

    @property
    def is_over(self) -> bool:
        """Whether no request can be sent any more."""
        return self._task.done() or self.trouble.ended or self.trouble.session_lost or self._closing.is_set()

    @property
    def client(self) -> Client:
        """The client, once it is connected."""
        return self._client.result()

    async def wait(self, seconds: float) -> None:
        """Wait until it is connected. Raises MCPServerError."""
        try:
            ends: list[asyncio.Future[Any]] = [self._client, self._task]
            await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._task.cancel()
            raise
        if self._client.done() and not self._client.cancelled() and self._client.exception() is None:
            return
        error: BaseException = TimeoutError()
        if self._task.done():
            error = self._task.exception() or ConnectionError()
        self._task.cancel()
        raise self._connections.error(self.trouble, error) from None

    async def carry_out(self, send: Callable[[Client], Awaitable[T]]) -> T:
        """Send a request. Raises MCPServerError; _NotSentError if the server did not get it."""
        request = asyncio.ensure_future(send(self.client))
        try:
            await asyncio.wait({request, self._task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not request.done():
                request.cancel()
                await asyncio.wait({request}, timeout=_END_SECONDS)
        error: BaseException | None
        if request.done() and not request.cancelled():
            if (error := request.exception()) is None:
                return request.result()
        else:
            error = None
        if isinstance(error, MCPToolError):
            raise error
        if not _is_answer(error):
            await asyncio.wait([self._task], timeout=_SETTLE_SECONDS)
        ended_with = _leaf(self._task.exception()) if self._task.done() and not self._task.cancelled() else None
        if self.trouble.session_lost or type(ended_with).__name__ in {"ConnectError", "ConnectTimeout"}:
            raise _NotSentError from (ended_with or error)
        if error is None or self._task.done():
            self.trouble.ended = True
        raise self._connections.error(self.trouble, error or ended_with) from None

    async def aclose(self) -> None:
        """Close it, and wait until it is closed."""
        self._closing.set()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        async with self._connections.client(self.trouble, self._on_message) as client:
            self._connections.check(client)
            self.parts = await parts_of(client)
            listening = asyncio.Event()
            watching = asyncio.create_task(self._watch(client, listening))
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LISTEN_SECONDS):
                        await listening.wait()
                self._client.set_result(client)
                await self._closing.wait()
            finally:
                watching.cancel()
                with suppress(asyncio.CancelledError):
                    await watching

    async def _on_message(self, message: Any) -> None:
        from mcp_types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self.changes += 1

    async def _watch(self, client: Client, listening: asyncio.Event) -> None:
        """Listen for changes of the tools, where the protocol has a request for it. Runs read the list anyway."""
        try:
            await self._listen(client, listening)
        finally:
            listening.set()

    async def _listen(self, client: Client, listening: asyncio.Event) -> None:
        from mcp.client.subscriptions import SubscriptionLost

        tools = client.server_capabilities.tools
        if tools is None or not tools.list_changed:
            return
        while not self.is_over:
            try:
                async with client.listen(tools_list_changed=True) as events:
                    listening.set()
                    async for _ in events:
                        self.changes += 1
            except SubscriptionLost:
                self.changes += 1  # some may have been missed
            except Exception:  # noqa: BLE001  # the protocol, or the server, has no such request
                return
            await asyncio.sleep(_LISTEN_AGAIN_SECONDS)


def _retrieve(task: asyncio.Task[None]) -> None:
    """Keep asyncio from logging the error of a connection that nobody waits for."""
    if not task.cancelled():
        task.exception()


def _is_answer(error: BaseException | None) -> bool:
    """Whether an error is what the server answered, over a connection that still works."""
    from mcp import MCPError
    from mcp_types import CONNECTION_CLOSED

    return isinstance(error, MCPError) and error.code != CONNECTION_CLOSED


def _asks_for_input(error: BaseException | None, text: str) -> bool:
    """Whether a server has asked for input of a user or a model: Clew declares that it has none."""
    from mcp_types import INVALID_REQUEST, MISSING_REQUIRED_CLIENT_CAPABILITY, URL_ELICITATION_REQUIRED

    code = getattr(error, "code", None)
    if code == INVALID_REQUEST:
        return _INPUT.search(text) is not None
    return code in {MISSING_REQUIRED_CLIENT_CAPABILITY, URL_ELICITATION_REQUIRED}


def _leaf(error: BaseException | None) -> BaseException | None:
    """The first error in a group: the package raises groups within groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
