"""A model client for Gemini's generateContent, over plain HTTP: the service's package loses what it does not know."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Literal

from clew.domain.json_values import JsonObject
from clew.domain.models.client import ModelRequest, ThreadKind, Update
from clew.domain.models.gemini_answers import GeminiAnswer
from clew.domain.models.gemini_requests import GEMINI
from clew.domain.runs.errors import AgentConfigurationError
from clew.domain.runs.request_construction import checked_options
from clew.infrastructure.gemini.connection import GeminiConnection

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
        self._connection = GeminiConnection(model, api_key=api_key, base_url=base_url, client=None, timeout=timeout)
        self.model = model
        self.provider = self._connection.provider
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
