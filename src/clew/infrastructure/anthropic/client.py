"""A model client for Anthropic's Messages API, with the ``anthropic`` package."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from clew.domain.json_values import JsonObject
from clew.domain.models.anthropic_answers import AnthropicAnswer
from clew.domain.models.anthropic_requests import ANTHROPIC
from clew.domain.models.client import ModelRequest, ThreadKind, Update
from clew.domain.runs.errors import AgentConfigurationError, MissingExtraError
from clew.domain.runs.request_construction import checked_options
from clew.infrastructure.sdk_connection import TIMEOUT, SdkConnection, is_address, timeout_of

if TYPE_CHECKING:
    import anthropic

_REFUSED = ("temperature", "top_p", "top_k", "system")


class AnthropicClient:
    """A model client for Anthropic's Messages API. Clew holds the history.

    ``api_key`` and ``base_url`` default to ANTHROPIC_API_KEY and ANTHROPIC_BASE_URL. To use your own
    ``AsyncAnthropic``, pass it as ``client`` instead; its retries are not used. ``timeout`` is the number of seconds in
    which the service must send something, by default 600. ``options`` are sent with every request and recorded:
    ``max_tokens`` (8,192 unless given), ``thinking`` and others, but not ``temperature``, ``top_p`` and ``top_k``,
    which the API refuses.

    Raises AgentConfigurationError without a key, and MissingExtraError without the package.
    """

    kind: Literal["anthropic"] = "anthropic"
    wire = ANTHROPIC
    thread_kinds: tuple[ThreadKind, ...] = ("local",)

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        client: anthropic.AsyncAnthropic | None = None,
        timeout: float | None = None,
        options: JsonObject | None = None,
    ) -> None:
        checked = checked_options(options)
        if refused := [name for name in _REFUSED if name in checked]:
            raise AgentConfigurationError(
                f"options has {', '.join(refused)}, which the API refuses or the run sets itself. Leave it out."
            )
        self._connection = _AnthropicConnection(
            model, api_key=api_key, base_url=base_url, client=client, timeout=timeout
        )
        self.model = model
        self.provider = self._connection.provider
        self.options = checked

    def __repr__(self) -> str:
        return f"AnthropicClient({self.model!r})"

    def ask(self, request: ModelRequest) -> AsyncGenerator[Update]:
        """Send a request once and yield the answer, in pieces if it is a stream. Raises ModelError."""
        return self._connection.ask("/v1/messages", request, AnthropicAnswer())

    async def aclose(self) -> None:
        """Close the connections that this event loop has to the service."""
        await self._connection.aclose()


class _AnthropicConnection(SdkConnection):
    key: ClassVar[str] = "ANTHROPIC_API_KEY"

    def _sdk(self) -> Any:
        try:
            import anthropic
        except ImportError:
            raise MissingExtraError("AnthropicClient", "anthropic", "anthropic") from None
        return anthropic

    def _provider(self, base_url: str | None, client: Any) -> str:
        del base_url, client
        return "anthropic"

    def _factory(self, api_key: str | None, base_url: str | None, timeout: float | None) -> Callable[[], Any]:
        sdk = self._sdk()
        address = base_url or os.environ.get("ANTHROPIC_BASE_URL") or None
        if address is not None and not is_address(address):
            raise AgentConfigurationError(
                "The address of the model service (base_url= or ANTHROPIC_BASE_URL) is not valid. Give one that begins "
                "with https:// or http:// and contains no ? or #."
            )
        key = api_key or os.environ.get("ANTHROPIC_API_KEY")
        if not key:
            raise AgentConfigurationError(
                "There is no key for the model service. Set ANTHROPIC_API_KEY, or give api_key=."
            )
        if not isinstance(key, str) or not key.isascii() or not key.isprintable() or " " in key:
            raise AgentConfigurationError(
                "The key for the model service (api_key= or ANTHROPIC_API_KEY) contains a line end, a space or a "
                "character that is not allowed in a key. Was it read from a file? Remove the character."
            )

        def make() -> anthropic.AsyncAnthropic:
            wait = timeout_of(TIMEOUT if timeout is None else timeout)
            made: anthropic.AsyncAnthropic = sdk.AsyncAnthropic(
                api_key=key, base_url=address, timeout=wait, max_retries=0
            )
            return made

        return make

    def _check(self, client: object) -> None:
        if not isinstance(client, self._sdk().AsyncAnthropic):
            raise AgentConfigurationError(
                f"client= is {type(client).__name__}. Give an anthropic.AsyncAnthropic, or leave it out. The objects "
                "for Bedrock and Vertex write another body than the one on the log, so they are refused."
            )
