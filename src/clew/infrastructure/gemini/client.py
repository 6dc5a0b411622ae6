"""A model client for Gemini's generateContent, over plain HTTP: the service's package loses what it does not know."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable
from typing import Any, ClassVar, Literal

from clew.domain.json_values import JsonObject
from clew.domain.models.client import ModelRequest, ThreadKind, Update
from clew.domain.models.gemini_answers import GeminiAnswer
from clew.domain.models.gemini_requests import GEMINI
from clew.domain.runs.errors import AgentConfigurationError
from clew.domain.runs.request_construction import checked_options
from clew.infrastructure.plain_connection import PlainConnection, PlainHttp
from clew.infrastructure.sdk_connection import TIMEOUT, is_address, timeout_of

ADDRESS = "https://generativelanguage.googleapis.com/v1beta"
"""The service. For another version of its API, give another ``base_url``."""

_SET_BY_RUN = ("contents", "systemInstruction")


class GeminiClient:
    """A model client for Gemini's generateContent. Clew holds the history.

    ``api_key`` defaults to GEMINI_API_KEY or GOOGLE_API_KEY, and ``base_url`` to version ``v1beta`` of the API.
    ``timeout`` is the number of seconds in which the service must send something, by default 600. ``options`` are sent
    with every request and recorded: ``safetySettings``, ``toolConfig``, ``cachedContent`` and other fields of the body,
    and the fields of ``generationConfig``, such as ``temperature``. Raises AgentConfigurationError without a key.
    """

    kind: Literal["gemini"] = "gemini"
    wire = GEMINI
    thread_kinds: tuple[ThreadKind, ...] = ("local",)
    provider: Literal["gemini"] = "gemini"

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        timeout: float | None = None,
        options: JsonObject | None = None,
    ) -> None:
        checked = checked_options(options)
        if set_by_run := [name for name in _SET_BY_RUN if name in checked]:
            raise AgentConfigurationError(
                f"options has {', '.join(set_by_run)}, which the run sets itself. Leave it out."
            )
        self._connection = _GeminiConnection(model, api_key=api_key, base_url=base_url, client=None, timeout=timeout)
        self.model = model
        self.options = checked

    def __repr__(self) -> str:
        return f"GeminiClient({self.model!r})"

    def ask(self, request: ModelRequest) -> AsyncGenerator[Update]:
        """Send a request once and yield the answer, in pieces if it is a stream. Raises ModelError."""
        path = GEMINI.make_path(request.model, request.streams)
        return self._connection.ask(path, request, GeminiAnswer())

    async def aclose(self) -> None:
        """Close the connections that this event loop has to the service."""
        await self._connection.aclose()


class _GeminiConnection(PlainConnection):
    key: ClassVar[str] = "GEMINI_API_KEY"

    def _provider(self, base_url: str | None, client: Any) -> str:
        del base_url, client
        return "gemini"

    def _factory(self, api_key: str | None, base_url: str | None, timeout: float | None) -> Callable[[], Any]:
        address = base_url or ADDRESS
        if not is_address(address):
            raise AgentConfigurationError(
                "The address of the model service (base_url=) is not valid. Give one that begins with https:// or "
                "http:// and contains no ? or #."
            )
        key = api_key or os.environ.get("GEMINI_API_KEY") or os.environ.get("GOOGLE_API_KEY")
        if not key:
            raise AgentConfigurationError(
                "There is no key for the model service. Set GEMINI_API_KEY or GOOGLE_API_KEY, or give api_key=."
            )
        if not isinstance(key, str) or not key.isascii() or not key.isprintable() or " " in key:
            raise AgentConfigurationError(
                "The key for the model service (api_key= or GEMINI_API_KEY) contains a line end, a space or a "
                "character that is not allowed in a key. Was it read from a file? Remove the character."
            )
        headers = {"x-goog-api-key": key, "content-type": "application/json"}
        return lambda: PlainHttp(address, headers, timeout_of(TIMEOUT if timeout is None else timeout))
