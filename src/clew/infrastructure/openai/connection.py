"""Sends requests to a model service with the `openai` package: without retries, and with exactly the recorded bytes."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from clew.domain.json_values import Json, JsonObject
from clew.domain.models.client import Answer, ModelRequest, Update
from clew.domain.runs.errors import AgentConfigurationError, ModelError, RequestAlteredError
from clew.infrastructure.model_streams import AnswerReader, EventDecoder
from clew.infrastructure.openai.errors import (
    RequestContext,
    incomplete_answer_error,
    invalid_reply_error,
    model_error,
    secrets_of,
    service_error,
)

if TYPE_CHECKING:
    import httpx2
    import openai


_TIMEOUT = 600.0
_CONNECT_TIMEOUT = 10.0
_END_TIMEOUT = 0.5
"""Seconds to wait for the end of a stream after its last event."""

_JSON = json.JSONDecoder(parse_constant=lambda _: None)
"""NaN and Infinity, which some services write, become null."""

_NO_RETRIES = {"max_retries": 0, "security": {"bearer_auth": True}}
"""Runs retry, and record each attempt. Retries of the package would not be recorded."""


class OpenAIConnection:
    """Sends requests with the caller's client, or with a separate client for each event loop.

    Connections belong to the event loop that made them. ``aclose()`` closes the client of the current loop; otherwise
    it is closed when ``asyncio.run`` ends the loop.
    """

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None,
        base_url: str | None,
        client: openai.AsyncOpenAI | None,
        timeout: float | None,
    ) -> None:
        if not isinstance(model, str) or not model:
            raise AgentConfigurationError("The client has no model. Name one: model='…'.")
        self._model = model
        self._caller_client = client
        self._timeout = timeout
        self._clients: dict[asyncio.AbstractEventLoop, tuple[AsyncGenerator[Any], openai.AsyncOpenAI]] = {}
        self.provider = _host(base_url, client)
        """The host of the service, without a port: what its answers are sent back to."""
        if client is None:
            self._make = _client_factory(api_key, base_url, timeout)
        elif api_key is not None or base_url is not None:
            raise AgentConfigurationError(
                "client= cannot be combined with api_key= or base_url=. Set them on that client."
            )
        else:
            _check_client(client)

    async def ask(self, path: str, request: ModelRequest, reader: AnswerReader) -> AsyncGenerator[Update]:
        """Send a request and yield the updates that ``reader`` makes of the reply."""
        client, body = await self._client(), request.body
        failed: ModelError | None = None
        try:
            async with aclosing(self._pieces(client, path, request)) as pieces:
                async for whole, piece in pieces:
                    for update in reader.take_whole(piece) if whole else reader.take(piece):
                        yield update
                    if reader.failure is not None:
                        failed = service_error(reader.failure, self._request_context(client, body), begun=reader.begun)
                        break
        except Exception as raised:  # noqa: BLE001  # becomes Clew's error, without the request
            if reader.answer() is None:  # a complete answer needs nothing more
                failed = model_error(raised, self._request_context(client, body, raised), begun=reader.begun)
        answer = reader.answer()
        if failed is None and answer is None:
            failed = (
                incomplete_answer_error(self._request_context(client, body))
                if request.streams
                else invalid_reply_error(self._request_context(client, body))
            )
        if failed is not None:
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
            response = await _call(client, method, path, body, options)
            parsed = _parse_json(response.content or b"{}")
            if isinstance(parsed, dict):
                return parsed
            failed = invalid_reply_error(self._request_context(client, body or {}))
        except Exception as raised:  # noqa: BLE001  # as in ask()
            failed = model_error(raised, self._request_context(client, body or {}, raised), begun=False)
        raise failed

    async def aclose(self) -> None:
        """Close the connections of this event loop. The caller's own client stays open."""
        if (entry := self._clients.pop(asyncio.get_running_loop(), None)) is not None:
            await entry[0].aclose()

    async def _pieces(
        self, client: openai.AsyncOpenAI, path: str, request: ModelRequest
    ) -> AsyncGenerator[tuple[bool, JsonObject]]:
        """The JSON objects of a reply. Each comes with True if the reply was not streamed."""
        response = await _post(client, path, request, self._options())
        try:
            if response.request.content != request.content:
                raise RequestAlteredError(
                    "The HTTP client sent other bytes than those on the log. Does it have a hook that changes "
                    "requests? Change them with Middleware.model_request, which is recorded."
                )
            kind = response.headers.get("content-type", "")
            if not request.streams or "json" in kind or "html" in kind:  # HTML is not an answer, and fails to parse
                if isinstance(whole := _parse_json(await response.aread()), dict):
                    yield True, whole
                return
            events = EventDecoder()
            async with aclosing(response.aiter_bytes()) as received:
                async for received_bytes in received:
                    for data in events.feed(received_bytes):
                        if data.startswith("[DONE]"):
                            await _read_to_end(received)
                            return
                        if isinstance(piece := _parse_json(data), dict):
                            yield False, piece
            for data in events.finish():
                if not data.startswith("[DONE]") and isinstance(piece := _parse_json(data), dict):
                    yield False, piece
        finally:
            await response.aclose()

    def _options(self) -> dict[str, Any]:
        if self._caller_client is None or self._timeout is None:
            return _NO_RETRIES
        return {**_NO_RETRIES, "timeout": _timeout(self._timeout)}

    async def _client(self) -> openai.AsyncOpenAI:
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
        self, client: openai.AsyncOpenAI, body: JsonObject, raised: BaseException | None = None
    ) -> RequestContext:
        model = body.get("model")
        url = client.base_url
        host = url.host if url.port is None else f"{url.host}:{url.port}"
        return RequestContext(model if isinstance(model, str) else self._model, host, secrets_of(client, raised), body)


async def _open_client(make: Callable[[], openai.AsyncOpenAI]) -> AsyncGenerator[openai.AsyncOpenAI]:
    """Keep a client open until this generator is closed, at the latest when the event loop shuts down."""
    client = make()
    try:
        yield client
    finally:
        await client.close()


def _client_factory(
    api_key: str | None, base_url: str | None, timeout: float | None
) -> Callable[[], openai.AsyncOpenAI]:
    """A function that makes clients. The key is in a closure, where no repr shows it."""
    import openai  # takes half a second, which would block an event loop

    address = base_url or os.environ.get("OPENAI_BASE_URL") or None
    if address is not None and not _is_address(address):
        raise AgentConfigurationError(
            "The address of the model service (base_url= or OPENAI_BASE_URL) is not valid. Give one that begins with "
            "https:// or http:// and contains no ? or #."
        )
    key = api_key or os.environ.get("OPENAI_API_KEY")
    if not key:
        raise AgentConfigurationError(
            "There is no key for the model service. Set OPENAI_API_KEY, or give api_key=. If the service needs no key, "
            "give any text."
        )
    if not isinstance(key, str) or not key.isascii() or not key.isprintable() or " " in key:
        raise AgentConfigurationError(
            "The key for the model service (api_key= or OPENAI_API_KEY) contains a line end, a space or a character "
            "that is not allowed in a key. Was it read from a file? Remove the character."
        )

    def make() -> openai.AsyncOpenAI:
        url, headers = _without_password(address) if address is not None else (None, None)
        wait = _timeout(_TIMEOUT if timeout is None else timeout)
        return openai.AsyncOpenAI(api_key=key, base_url=url, timeout=wait, max_retries=0, default_headers=headers)

    return make


def _host(base_url: str | None, client: openai.AsyncOpenAI | None) -> str:
    if client is not None:
        return str(getattr(getattr(client, "base_url", ""), "host", ""))
    address = base_url or os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com"
    return urlsplit(address).hostname or "" if isinstance(address, str) else ""


def _without_password(address: str) -> tuple[httpx2.URL, dict[str, str] | None]:
    """The address without user and password, which the HTTP client would log, and the header that carries them."""
    import httpx2

    url = httpx2.URL(address)
    if not url.userinfo:
        return url, None
    encoded = base64.b64encode(f"{url.username}:{url.password}".encode()).decode()
    return url.copy_with(userinfo=b""), {"Authorization": f"Basic {encoded}"}


def _is_address(text: str) -> bool:
    import httpx2

    try:
        url = httpx2.URL(text)
    except httpx2.InvalidURL:
        return False
    return url.scheme in {"https", "http"} and bool(url.host) and "?" not in text and "#" not in text


def _timeout(seconds: float) -> httpx2.Timeout:
    import httpx2

    return httpx2.Timeout(seconds, connect=min(seconds, _CONNECT_TIMEOUT))


def _check_client(client: object) -> None:
    import openai

    if not isinstance(client, openai.AsyncOpenAI):
        raise AgentConfigurationError(
            f"client= is {type(client).__name__}. Give an openai.AsyncOpenAI or AsyncAzureOpenAI, or leave it out."
        )


async def _post(
    client: openai.AsyncOpenAI, path: str, request: ModelRequest, options: dict[str, Any]
) -> httpx2.Response:
    """Send the bytes of a request as the package sends a body, and return the raw response."""
    import httpx2
    import openai

    if (
        path == _CHAT_PATH
        and isinstance(client, openai.AsyncAzureOpenAI)
        and "/deployments" not in client.base_url.path
    ):
        # The package reads the deployment from a body, but not from bytes.
        path = f"/deployments/{request.body['model']}{path}"
    response = await client.post(
        path,
        cast_to=httpx2.Response,
        content=request.content,
        options=cast("Any", options),
        stream=True,
        stream_cls=openai.AsyncStream[object],
    )
    return cast("httpx2.Response", response)


_CHAT_PATH = "/chat/completions"


async def _call(
    client: openai.AsyncOpenAI, method: str, path: str, body: JsonObject | None, options: dict[str, Any]
) -> httpx2.Response:
    """Send any other request as the package does, and return the raw response."""
    import httpx2

    send: Any = getattr(client, method)
    more: dict[str, Any] = {} if method == "get" else {"body": body}
    return cast("httpx2.Response", await send(path, cast_to=httpx2.Response, options=options, **more))


async def _read_to_end(received: AsyncIterator[bytes]) -> None:
    """Read the rest of a reply, so that its connection can be reused. Give up after ``_END_TIMEOUT``."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_END_TIMEOUT):
            async for _ in received:
                pass


def _parse_json(text: str | bytes) -> Json:
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    return cast("Json", _JSON.decode(text))
