"""Sends requests with a package of a service: without retries, and with exactly the recorded bytes."""

from __future__ import annotations

import asyncio
import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, cast
from urllib.parse import urlsplit

from clew.domain.json_values import Json, JsonObject, parse_json
from clew.domain.models.client import Answer, ModelRequest, Update
from clew.domain.runs.errors import AgentConfigurationError, ModelError, RequestAlteredError
from clew.infrastructure.model_streams import AnswerReader, EventDecoder
from clew.infrastructure.openai.errors import (
    RequestContext,
    incomplete_answer_error,
    invalid_reply_error,
    model_error,
    repetition_error,
    secrets_of,
    service_error,
)
from clew.infrastructure.sent_requests import SentRequests

if TYPE_CHECKING:
    import ssl

    import httpx2

TIMEOUT = 600.0
"""Seconds in which a service must send something."""
_CONNECT_TIMEOUT = 10.0
_END_TIMEOUT = 0.5
"""Seconds to wait for the end of a stream after its last event."""


class SdkConnection(ABC):
    """Sends requests with the caller's client, or with a separate client for each event loop.

    The packages ``openai`` and ``anthropic`` have the same clients; a subclass says what differs.

    Connections belong to the event loop that made them. ``aclose()`` closes the client of the current loop; otherwise
    it is closed when this object is no longer used, or when ``asyncio.run`` ends the loop.
    """

    options: ClassVar[dict[str, Any]] = {"max_retries": 0, "follow_redirects": False}
    """Options of each request. Runs retry, and record each attempt: what a package repeats would not be recorded."""
    key: ClassVar[str]
    """The variable of the environment with the key."""

    @abstractmethod
    def _sdk(self) -> Any:
        """The package."""

    @abstractmethod
    def _provider(self, base_url: str | None, client: Any) -> str:
        """The name of the service."""

    @abstractmethod
    def _factory(self, api_key: str | None, base_url: str | None, timeout: float | None) -> Callable[[], Any]:
        """A function that makes clients. Raises AgentConfigurationError without a key."""

    @abstractmethod
    def _check(self, client: object) -> None:
        """Raise AgentConfigurationError for anything but a client of the package."""

    def _path(self, client: Any, path: str, request: ModelRequest) -> str:
        """The path of a request, where the client uses another."""
        del client, request
        return path

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None,
        base_url: str | None,
        client: Any,
        timeout: float | None,
    ) -> None:
        if not isinstance(model, str) or not model:
            raise AgentConfigurationError("The client has no model. Name one: model='…'.")
        self._model = model
        self._caller_client = client
        self._timeout = timeout
        self.secrets: tuple[str, ...] = ()
        """What requests contain that errors must not contain."""
        self._clients: dict[asyncio.AbstractEventLoop, tuple[AsyncGenerator[Any], Any]] = {}
        # In a cycle of references, the garbage collector would finalize the sockets before a client could close them.
        # Held from outside the cycle until this object is gone, the clients are closed by their event loops.
        weakref.finalize(self, self._clients.clear).atexit = False
        self.provider = self._provider(base_url, client)
        """The service that made an answer: it is sent back to no other."""
        if client is None:
            self._make = self._factory(api_key, base_url, timeout)
        elif api_key is not None or base_url is not None:
            raise AgentConfigurationError(
                "client= cannot be combined with api_key= or base_url=. Set them on that client."
            )
        else:
            self._check(client)

    async def ask(self, path: str, request: ModelRequest, reader: AnswerReader) -> AsyncGenerator[Update]:
        """Send a request and yield the updates that ``reader`` makes of the reply."""
        client = await self._client()
        context = partial(self._request_context, client, request.body, model=request.model)
        failed: ModelError | None = None
        answer: Answer | None = None
        sent = SentRequests(request.content)
        try:
            async with aclosing(self._pieces(client, path, request, sent)) as pieces:
                async for whole, piece in pieces:
                    for update in reader.take_whole(piece) if whole else reader.take(piece):
                        yield update
                    if reader.failure is not None:
                        failed = service_error(reader.failure, context(), begun=reader.begun)
                        break
            answer = reader.answer()
        except Exception as raised:  # noqa: BLE001  # becomes Clew's error, without the request
            if sent.prevented:
                failed = repetition_error(sent.status, context())
            elif (answer := _complete(reader)) is None:  # a complete answer needs nothing more
                failed = _altered(raised, sent) or model_error(
                    raised, context(raised=raised), begun=reader.begun, sdk=self._sdk()
                )
            if failed is not None:
                failed.sent = sent.reached(raised)
        if failed is None and answer is None:
            failed = incomplete_answer_error(context()) if request.streams else invalid_reply_error(context())
        if failed is not None:
            failed.sent = sent.reached() if failed.sent is None else failed.sent
            raise failed
        yield cast("Answer", answer)

    async def call(
        self, method: str, path: str, body: JsonObject | None = None, params: dict[str, str] | None = None
    ) -> JsonObject:
        """Send any other request and return the JSON object of the reply. Raises ModelError."""
        client = await self._client()
        options = {**self._options(), "params": params or {}}
        failed: ModelError
        try:
            response = await self._call(client, method, path, body, options)
            parsed = parse_json(response.content or b"{}")
            if isinstance(parsed, dict):
                return parsed
            failed = invalid_reply_error(self._request_context(client, body or {}))
        except Exception as raised:  # noqa: BLE001  # as in ask()
            failed = model_error(
                raised, self._request_context(client, body or {}, raised), begun=False, sdk=self._sdk()
            )
        raise failed

    async def aclose(self) -> None:
        """Close the connections of this event loop. The caller's own client stays open."""
        if (entry := self._clients.pop(asyncio.get_running_loop(), None)) is not None:
            await entry[0].aclose()

    async def _pieces(
        self, client: Any, path: str, request: ModelRequest, sent: SentRequests
    ) -> AsyncGenerator[tuple[bool, JsonObject]]:
        """The JSON objects of a reply. Each comes with True if the reply was not streamed."""
        http_client = client._client  # noqa: SLF001  # the packages have no other name for it
        with sent.watch(http_client):
            response = await self._post(client, path, request)
        try:
            sent.check(response)
            kind = response.headers.get("content-type", "")
            if not request.streams or "json" in kind or "html" in kind:  # HTML is not an answer, and fails to parse
                if (whole := self._object(parse_json(await response.aread()))) is not None:
                    yield True, whole
                return
            async with aclosing(self._events(response)) as events:
                async for event in events:
                    yield False, event
        finally:
            await response.aclose()

    def _object(self, reply: Json) -> JsonObject | None:
        """The JSON object of a reply that is not a stream; None if it is not one."""
        return reply if isinstance(reply, dict) else None

    async def _post(self, client: Any, path: str, request: ModelRequest) -> httpx2.Response:
        """Send the bytes of a request as the package sends a body, and return the raw response."""
        import httpx2

        response = await client.post(
            self._path(client, path, request),
            cast_to=httpx2.Response,
            content=request.content,
            options=self._options(),
            stream=True,
            stream_cls=self._sdk().AsyncStream[object],
        )
        return cast("httpx2.Response", response)

    async def _events(self, response: httpx2.Response) -> AsyncGenerator[JsonObject]:
        """The events of a stream."""
        events = EventDecoder()
        async with aclosing(response.aiter_bytes()) as received:
            async for received_bytes in received:
                for data in events.feed(received_bytes):
                    if data.startswith("[DONE]"):
                        await _read_to_end(received)
                        return
                    if isinstance(piece := parse_json(data), dict):
                        yield piece
        for data in events.finish():
            if not data.startswith("[DONE]") and isinstance(piece := parse_json(data), dict):
                yield piece

    async def _call(
        self, client: Any, method: str, path: str, body: JsonObject | None, options: dict[str, Any]
    ) -> httpx2.Response:
        """Send any other request as the package does, and return the raw response."""
        import httpx2

        send: Any = getattr(client, method)
        more: dict[str, Any] = {} if method == "get" else {"body": body}
        return cast("httpx2.Response", await send(path, cast_to=httpx2.Response, options=options, **more))

    def _options(self) -> dict[str, Any]:
        if self._caller_client is None or self._timeout is None:
            return self.options
        return {**self.options, "timeout": timeout_of(self._timeout)}

    async def _client(self) -> Any:
        if self._caller_client is not None:
            return self._caller_client
        loop = asyncio.get_running_loop()
        if (entry := self._clients.get(loop)) is None:
            for other in list(self._clients):  # loops in other threads may add theirs at the same time
                if other.is_closed():
                    self._clients.pop(other, None)
            holder = _open_client(self._make)
            entry = self._clients[loop] = holder, await anext(holder)
        return entry[1]

    def _request_context(
        self, client: Any, body: JsonObject, raised: BaseException | None = None, model: str = ""
    ) -> RequestContext:
        named = body.get("model", model)
        url = client.base_url
        host = url.host if url.port is None else f"{url.host}:{url.port}"
        return RequestContext(
            named if isinstance(named, str) and named else self._model,
            host,
            (*self.secrets, *secrets_of(client, raised)),
            body,
            self.key,
        )


def _altered(raised: Exception, sent: SentRequests) -> RequestAlteredError | None:
    """The error for an altered request, if the service has answered it with an error."""
    import httpx2

    response = getattr(raised, "response", None)
    if isinstance(response, httpx2.Response):
        try:
            sent.check(response)
        except RequestAlteredError as error:
            return error
    return None


def _complete(reader: AnswerReader) -> Answer | None:
    """The answer, None if it is not complete, or is nested too deep."""
    try:
        return reader.answer()
    except RecursionError:
        return None


async def _open_client(make: Callable[[], Any]) -> AsyncGenerator[Any]:
    """Keep a client open until this generator is closed, at the latest when the event loop shuts down."""
    client = make()
    try:
        yield client
    finally:
        await client.close()


def host_of(address: object) -> str:
    """The host of an address, empty if it has none."""
    try:
        return urlsplit(address).hostname or "" if isinstance(address, str) else ""
    except ValueError:
        return ""


def service_name(name: str, address: object, own: str) -> str:
    """The name of the service at an address: ``name`` at its ``own`` hosts, else the host.

    Another host may have models with the same names, and accepts no signature of this service.
    """
    host = host_of(address)
    return name if not host or host == own or host.endswith(f".{own}") else host


def is_address(text: str) -> bool:
    """Whether a text is the address of a service."""
    import httpx2

    try:
        url = httpx2.URL(text)
    except httpx2.InvalidURL:
        return False
    return url.scheme in {"https", "http"} and bool(url.host) and "?" not in text and "#" not in text


def timeout_of(seconds: float) -> httpx2.Timeout:
    """The timeouts of an HTTP client."""
    import httpx2

    return httpx2.Timeout(seconds, connect=min(seconds, _CONNECT_TIMEOUT))


def certificates() -> ssl.SSLContext:
    """The trusted certificates, for all clients of the process: to read them takes 20 ms."""
    return _certificates(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@cache
def _certificates(_file: str | None, _directory: str | None) -> ssl.SSLContext:
    import httpx2

    return httpx2.create_ssl_context()


async def _read_to_end(received: AsyncIterator[bytes]) -> None:
    """Read the rest of a reply, so that its connection can be reused. Give up after ``_END_TIMEOUT``."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_END_TIMEOUT):
            async for _ in received:
                pass
