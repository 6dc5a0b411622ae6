"""Sends requests over plain HTTP, to services whose own packages lose what they do not know."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from clew.domain.json_values import JsonObject
from clew.domain.models.client import ModelRequest
from clew.domain.runs.errors import ModelStreamError
from clew.domain.runs.request_construction import request_bytes
from clew.infrastructure.sdk_connection import SdkConnection, certificates
from clew.infrastructure.sent_requests import SentRequests

if TYPE_CHECKING:
    import httpx2


class _RequestError(Exception):
    """The base of the errors below, as the packages of other services have one."""


class _ServiceError(_RequestError):
    """The service did not answer."""


class StatusError(_ServiceError):
    """The service answered with an error. The fields are those of the other packages' errors."""

    def __init__(self, response: httpx2.Response, body: Any) -> None:
        super().__init__(response.status_code)
        self.status_code = response.status_code
        self.response = response
        self.request = response.request
        self.body = body


class PlainHttp:
    """An HTTP client with what a connection uses of the packages' clients.

    ``secrets`` are hidden in errors, next to those in the headers.
    """

    secrets: tuple[str, ...] = ()

    def __init__(self, address: str, headers: Mapping[str, str], timeout: httpx2.Timeout) -> None:
        import httpx2

        self.base_url = httpx2.URL(address)
        self.default_headers = dict(headers)
        self._client = httpx2.AsyncClient(headers=self.default_headers, timeout=timeout, verify=certificates())

    async def send(
        self,
        path: str,
        content: bytes | None,
        headers: Mapping[str, str] | None = None,
        *,
        method: str = "POST",
        params: Mapping[str, str] | None = None,
    ) -> httpx2.Response:
        """Send the bytes, and return the response before its body. Raises StatusError."""
        request = self._client.build_request(
            method, self.url(path), content=content, headers=headers, params=params or None
        )
        response = await self._client.send(request, stream=True)
        if response.is_success:  # a redirect is not followed, and is an error
            return response
        try:
            received = await response.aread()
        finally:
            await response.aclose()
        try:
            body = json.loads(received)
        except ValueError:
            body = received.decode(errors="replace")
        raise StatusError(response, body)

    def url(self, path: str) -> str:
        """The address of a path."""
        return str(self.base_url).rstrip("/") + path

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


class PlainConnection(SdkConnection):
    """The connections of a client that takes no client of the caller."""

    def _sdk(self) -> Any:
        import httpx2

        return SimpleNamespace(
            APIError=_ServiceError,
            APIStatusError=StatusError,
            APITimeoutError=httpx2.TimeoutException,
            APIConnectionError=httpx2.RequestError,
        )

    def _check(self, client: object) -> None:
        raise AssertionError(client)  # there is none

    async def _post(self, client: Any, path: str, request: ModelRequest) -> httpx2.Response:
        http: PlainHttp = client
        return await http.send(path, request.content)

    async def _call(
        self, client: Any, method: str, path: str, body: JsonObject | None, options: dict[str, Any]
    ) -> httpx2.Response:
        http: PlainHttp = client
        content = None if body is None else request_bytes(body)
        response = await http.send(path, content, method=method.upper(), params=options["params"])
        try:
            await response.aread()
        finally:
            await response.aclose()
        return response


class AgentConnection(PlainConnection):
    """The connections to a remote agent. A model may be asked again; an agent may have begun to act."""

    async def _pieces(
        self, client: Any, path: str, request: ModelRequest, sent: SentRequests
    ) -> AsyncGenerator[tuple[bool, JsonObject]]:
        """The pieces of a reply. A request that may have arrived is not repeated, unless it only reads."""
        import httpx2

        try:
            async with aclosing(super()._pieces(client, path, request, sent)) as pieces:
                async for whole, piece in pieces:
                    yield whole, piece
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout):
            raise
        except httpx2.RequestError as error:
            if request.task is not None and request.task.reads:
                raise
            lost = type(error).__name__
        else:
            return
        raise ModelStreamError(
            f"{self._model!r} may have received the message, but the connection was lost ({lost}). Run again to "
            "send the message once more."
        )
