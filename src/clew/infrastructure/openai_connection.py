"""The way to a service over the ``openai`` package: one request, no retries, the bytes that Clew decided on."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, Protocol, cast

from clew.domain.json_values import Json, JsonObject
from clew.domain.models.client import Answer, Update
from clew.domain.runs.errors import AgentConfigurationError, ModelError
from clew.infrastructure.openai_errors import (
    Asked,
    model_error,
    no_answer,
    secrets_of,
    service_error,
    unfinished,
)
from clew.infrastructure.server_sent_events import EventDecoder

if TYPE_CHECKING:
    import httpx2
    import openai

_TIMEOUT = 600.0
_CONNECTING = 10.0
_ENDING = 0.5
"""Seconds that a stream may take to end when it has said that it is done."""

_JSON = json.JSONDecoder(parse_constant=lambda _: None)
"""Numbers that are none, which some services write, become null."""

_ONCE = {"max_retries": 0, "security": {"bearer_auth": True}}
"""The run retries, and says so on the log; a package that retries by itself would do so behind its back."""


class AnswerReader(Protocol):
    """Puts an answer together from what a service sends: see ``clew.domain.models.chat_answers``."""

    begun: bool
    failure: Json

    def take(self, event: JsonObject) -> Iterator[Update]:
        """Take in the next piece of a stream."""
        ...

    def take_whole(self, body: JsonObject) -> Iterator[Update]:
        """Take in an answer that came whole."""
        ...

    def answer(self) -> Answer | None:
        """The answer, None while it is not complete."""
        ...


class OpenAIConnection:
    """Sends requests with the caller's own client, or with one of its own for each event loop.

    Connections belong to the loop that they were made in. A client of our own is closed with its loop, as
    ``asyncio.run`` ends it, or with ``aclose()``.
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
            raise AgentConfigurationError("A client was given no model. Name the one to ask: model='…'.")
        self._model = model
        self._given = client
        self._timeout = timeout
        self._clients: dict[asyncio.AbstractEventLoop, tuple[AsyncGenerator[Any], openai.AsyncOpenAI]] = {}
        if client is None:
            self._make = _maker(api_key, base_url, timeout)
        elif api_key is not None or base_url is not None:
            raise AgentConfigurationError(
                "A client= of one's own was given together with api_key= or base_url=. Say them to that client."
            )
        else:
            _check_client(client)

    async def ask(self, path: str, body: JsonObject, reader: AnswerReader) -> AsyncGenerator[Update]:
        """Send a body and give what ``reader`` makes of the reply; whether it streams is said in the body."""
        client = await self._client()
        failed: ModelError | None = None
        try:
            async with aclosing(self._pieces(client, path, body)) as pieces:
                async for whole, piece in pieces:
                    for update in reader.take_whole(piece) if whole else reader.take(piece):
                        yield update
                    if reader.failure is not None:
                        failed = service_error(reader.failure, self._asked(client, body), begun=reader.begun)
                        break
        except Exception as raised:  # noqa: BLE001  # all become errors of Clew's, without the request that they hold
            if reader.answer() is None:  # what is complete needs nothing more
                failed = model_error(raised, self._asked(client, body, raised), begun=reader.begun)
        answer = reader.answer()
        if failed is None and answer is None:
            failed = unfinished(self._asked(client, body)) if _streams(body) else no_answer(self._asked(client, body))
        if failed is not None:
            raise failed
        yield cast("Answer", answer)

    async def call(
        self, method: str, path: str, body: JsonObject | None = None, params: dict[str, str] | None = None
    ) -> JsonObject:
        """Send any other request and give the object that it is answered with. Raises ModelError."""
        client = await self._client()
        options = {**self._options(), "params": params or {}}
        failed: ModelError
        try:
            response = await _send(client, method, path, body, options)
            found = _parsed(response.content or b"{}")
            if isinstance(found, dict):
                return found
            failed = no_answer(self._asked(client, body or {}))
        except Exception as raised:  # noqa: BLE001  # the same
            failed = model_error(raised, self._asked(client, body or {}, raised), begun=False)
        raise failed

    async def aclose(self) -> None:
        """Close the connections of this event loop; a client of the caller's own is theirs to close."""
        if (held := self._clients.pop(asyncio.get_running_loop(), None)) is not None:
            await held[0].aclose()

    async def _pieces(
        self, client: openai.AsyncOpenAI, path: str, body: JsonObject
    ) -> AsyncGenerator[tuple[bool, JsonObject]]:
        """The objects that a reply consists of, and whether it is one whole."""
        response = await _send(client, "post", path, body, self._options(), stream=True)
        try:
            kind = response.headers.get("content-type", "")
            if not _streams(body) or "json" in kind or "html" in kind:  # a page for people is no answer, and said so
                if isinstance(whole := _parsed(await response.aread()), dict):
                    yield True, whole
                return
            events = EventDecoder()
            async with aclosing(response.aiter_bytes()) as received:
                async for some in received:
                    for data in events.feed(some):
                        if data.startswith("[DONE]"):
                            await _to_its_end(received)
                            return
                        if isinstance(piece := _parsed(data), dict):
                            yield False, piece
            for data in events.finish():
                if not data.startswith("[DONE]") and isinstance(piece := _parsed(data), dict):
                    yield False, piece
        finally:
            await response.aclose()

    def _options(self) -> dict[str, Any]:
        if self._given is None or self._timeout is None:
            return _ONCE
        return {**_ONCE, "timeout": _timeout(self._timeout)}

    async def _client(self) -> openai.AsyncOpenAI:
        if self._given is not None:
            return self._given
        loop = asyncio.get_running_loop()
        if (held := self._clients.get(loop)) is None:
            for other in list(self._clients):  # the loops of other threads may add theirs meanwhile
                if other.is_closed():
                    self._clients.pop(other, None)
            holder = _held(self._make)
            held = self._clients[loop] = holder, await anext(holder)
        return held[1]

    def _asked(self, client: openai.AsyncOpenAI, body: JsonObject, raised: BaseException | None = None) -> Asked:
        model = body.get("model")
        url = client.base_url
        host = url.host if url.port is None else f"{url.host}:{url.port}"
        return Asked(model if isinstance(model, str) else self._model, host, secrets_of(client, raised), body)


async def _held(make: Callable[[], openai.AsyncOpenAI]) -> AsyncGenerator[openai.AsyncOpenAI]:
    """Holds a client until it is closed, or until the event loop closes the generators that it has left."""
    client = make()
    try:
        yield client
    finally:
        await client.close()


def _maker(api_key: str | None, base_url: str | None, timeout: float | None) -> Callable[[], openai.AsyncOpenAI]:
    """Makes clients; the key is in a closure, where no repr shows it."""
    import openai  # takes half a second: better here than in an event loop

    address = base_url or os.environ.get("OPENAI_BASE_URL") or None
    if address is not None and not _is_address(address):
        raise AgentConfigurationError(
            "The address of the model service (base_url= or OPENAI_BASE_URL) is none. Give one that begins with "
            "https:// or http://, without a ? or # in it."
        )
    key = api_key or os.environ.get("OPENAI_API_KEY")
    if not key:
        raise AgentConfigurationError(
            "There is no key for the model service. Set OPENAI_API_KEY, or give api_key=; for a service that needs "
            "none, any word will do."
        )
    if not isinstance(key, str) or not key.isascii() or not key.isprintable() or " " in key:
        raise AgentConfigurationError(
            "The key for the model service (api_key= or OPENAI_API_KEY) has a line end, a space or another character "
            "that no key has. Was it read from a file? Give it without."
        )

    def make() -> openai.AsyncOpenAI:
        url, headers = _without_password(address) if address is not None else (None, None)
        wait = _timeout(_TIMEOUT if timeout is None else timeout)
        return openai.AsyncOpenAI(api_key=key, base_url=url, timeout=wait, max_retries=0, default_headers=headers)

    return make


def _without_password(address: str) -> tuple[httpx2.URL, dict[str, str] | None]:
    """An address without user and password, which the HTTP client would log, and the header that says them."""
    import httpx2

    url = httpx2.URL(address)
    if not url.userinfo:
        return url, None
    said = base64.b64encode(f"{url.username}:{url.password}".encode()).decode()
    return url.copy_with(userinfo=b""), {"Authorization": f"Basic {said}"}


def _is_address(text: str) -> bool:
    import httpx2

    try:
        url = httpx2.URL(text)
    except httpx2.InvalidURL:
        return False
    return url.scheme in {"https", "http"} and bool(url.host) and "?" not in text and "#" not in text


def _timeout(seconds: float) -> httpx2.Timeout:
    import httpx2

    return httpx2.Timeout(seconds, connect=min(seconds, _CONNECTING))


def _check_client(client: object) -> None:
    import openai

    if not isinstance(client, openai.AsyncOpenAI):
        raise AgentConfigurationError(
            f"client= is {type(client).__name__}. Give an openai.AsyncOpenAI or AsyncAzureOpenAI, or none at all."
        )


async def _send(
    client: openai.AsyncOpenAI,
    method: str,
    path: str,
    body: JsonObject | None,
    options: dict[str, Any],
    *,
    stream: bool = False,
) -> httpx2.Response:
    """Send a request as the package does, Azure's paths and tokens included, and take the reply as it is."""
    import httpx2
    import openai

    send: Any = getattr(client, method)
    more: dict[str, Any] = {} if method == "get" else {"body": body}
    if stream:
        more |= {"stream": True, "stream_cls": openai.AsyncStream[object]}
    return cast("httpx2.Response", await send(path, cast_to=httpx2.Response, options=options, **more))


async def _to_its_end(received: AsyncIterator[bytes]) -> None:
    """Read what ends a reply, after which its connection serves the next request; it is not waited for for long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_ENDING):
            async for _ in received:
                pass


def _parsed(text: str | bytes) -> Json:
    """What JSON says."""
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    return cast("Json", _JSON.decode(text))


def _streams(body: JsonObject) -> bool:
    return body.get("stream") is True
