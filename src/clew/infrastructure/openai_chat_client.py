"""Chat Completions: the API that OpenAI, Azure and most other services and servers offer."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Literal

from clew.domain.json_values import JsonObject
from clew.domain.models.chat_answers import ChatAnswer
from clew.domain.models.client import ThreadKind, Update, WireFormat
from clew.domain.models.request_encoding import checked_options, streamed
from clew.infrastructure.openai_connection import OpenAIConnection

if TYPE_CHECKING:
    import openai


class OpenAIChatClient:
    """A model client for the Chat Completions API. Clew holds the history.

    ``api_key`` and ``base_url`` default to OPENAI_API_KEY and OPENAI_BASE_URL. To use your own ``AsyncOpenAI`` or
    ``AsyncAzureOpenAI``, pass it as ``client`` instead; its retries are not used. ``timeout`` is the number of seconds
    in which the service must send something, by default 600. ``options`` are sent with every request and recorded.

    Raises AgentConfigurationError without a key.
    """

    kind: Literal["openai-chat"] = "openai-chat"
    wire: WireFormat = "openai-chat"
    thread_kinds: tuple[ThreadKind, ...] = ("local",)

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        client: openai.AsyncOpenAI | None = None,
        timeout: float | None = None,
        options: JsonObject | None = None,
    ) -> None:
        self._connection = OpenAIConnection(model, api_key=api_key, base_url=base_url, client=client, timeout=timeout)
        self.model = model
        self.options = checked_options(options)

    def __repr__(self) -> str:
        return f"OpenAIChatClient({self.model!r})"

    def ask(self, body: JsonObject, *, stream: bool) -> AsyncGenerator[Update]:
        """Send a body once and yield the answer, in pieces with ``stream``. Raises ModelError."""
        sent = streamed(self.wire, body) if stream else body
        return self._connection.ask("/chat/completions", sent, ChatAnswer())

    async def aclose(self) -> None:
        """Close the connections that this event loop has to the service."""
        await self._connection.aclose()
