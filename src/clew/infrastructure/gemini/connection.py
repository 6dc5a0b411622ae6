"""The connections to Gemini: its address, and the key."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, ClassVar

from clew.domain.runs.errors import AgentConfigurationError
from clew.infrastructure.plain_connection import PlainConnection, PlainHttp
from clew.infrastructure.sdk_connection import TIMEOUT, is_address, service_name, timeout_of

ADDRESS = "https://generativelanguage.googleapis.com/v1beta"
"""The service. For another version of its API, give another ``base_url``."""


class GeminiConnection(PlainConnection):
    """The connections of Gemini's clients."""

    key: ClassVar[str] = "GEMINI_API_KEY"
    headers: ClassVar[dict[str, str]] = {}

    def _provider(self, base_url: str | None, client: Any) -> str:
        del client
        return service_name("gemini", base_url, "googleapis.com")

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
        headers = {"x-goog-api-key": key, "content-type": "application/json", **self.headers}
        return lambda: PlainHttp(address, headers, timeout_of(TIMEOUT if timeout is None else timeout))
