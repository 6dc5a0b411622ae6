"""A model client for Anthropic's Messages API, with the ``anthropic`` package: also on Bedrock, Vertex and others."""

from __future__ import annotations

import os
from base64 import b64decode
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from urllib.parse import quote

from clew.domain.json_values import JsonObject, parse_json
from clew.domain.models.anthropic_answers import AnthropicAnswer
from clew.domain.models.anthropic_requests import ANTHROPIC, ANTHROPIC_BEDROCK, ANTHROPIC_VERTEX
from clew.domain.models.client import ModelRequest, ThreadKind, Update, WireFormat
from clew.domain.runs.errors import AgentConfigurationError, MissingExtraError
from clew.domain.runs.request_construction import checked_options
from clew.infrastructure.bedrock.event_stream import FrameDecoder, event_of, named_error
from clew.infrastructure.sdk_connection import (
    TIMEOUT,
    SdkConnection,
    certificates,
    is_address,
    service_name,
    timeout_of,
)

if TYPE_CHECKING:
    import anthropic
    import httpx2

_SERVICES: dict[str, tuple[str, WireFormat]] = {
    "AsyncAnthropicBedrock": ("bedrock", ANTHROPIC_BEDROCK),
    "AsyncAnthropicBedrockMantle": ("bedrock-mantle", ANTHROPIC),
    "AsyncAnthropicVertex": ("vertex", ANTHROPIC_VERTEX),
    "AsyncAnthropicAWS": ("aws", ANTHROPIC),
    "AsyncAnthropicFoundry": ("foundry", ANTHROPIC),
    "AsyncAnthropicGoogleCloud": ("google-cloud", ANTHROPIC),
    "AsyncAnthropic": ("anthropic", ANTHROPIC),
}
"""The package's clients with the service of each and its format. A class is before those that it inherits from."""

_REFUSED = ("temperature", "top_p", "top_k", "system")


class AnthropicClient:
    """A model client for Anthropic's Messages API. Clew holds the history.

    ``api_key`` and ``base_url`` default to ANTHROPIC_API_KEY and ANTHROPIC_BASE_URL. To use your own
    ``AsyncAnthropic``, or the package's client for Bedrock, Vertex or another service, pass it as ``client`` instead;
    its retries are not used. ``timeout`` is the number of seconds in which the service must send something, by default
    600. ``options`` are sent with every request and recorded: ``max_tokens`` (8,192 unless given), ``thinking`` and
    others, but not ``temperature``, ``top_p`` and ``top_k``, which the API refuses. With ``late_context``, what context
    providers give goes into system messages where it first changed, and not into the system prompt: so the thinking of
    earlier answers stays valid, and the service's cache.

    Raises AgentConfigurationError without a key, and MissingExtraError without the package.
    """

    kind: Literal["anthropic"] = "anthropic"
    thread_kinds: tuple[ThreadKind, ...] = ("local",)

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        client: anthropic.AsyncAnthropic
        | anthropic.AsyncAnthropicBedrock
        | anthropic.AsyncAnthropicBedrockMantle
        | anthropic.AsyncAnthropicVertex
        | None = None,
        timeout: float | None = None,
        options: JsonObject | None = None,
        late_context: bool = True,
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
        self.wire = self._connection.wire
        self.options = checked
        self.late_context = late_context

    def __repr__(self) -> str:
        return f"AnthropicClient({self.model!r})"

    def ask(self, request: ModelRequest) -> AsyncGenerator[Update]:
        """Send a request once and yield the answer, in pieces if it is a stream. Raises ModelError."""
        path = self.wire.make_path(request.model, request.streams)
        return self._connection.ask(path, request, AnthropicAnswer())

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
        provider, self.wire = _service_of(self._sdk(), client) or _SERVICES["AsyncAnthropic"]
        if provider != "anthropic":
            return provider
        address = base_url or os.environ.get("ANTHROPIC_BASE_URL")
        return service_name(
            provider, address if client is None else str(getattr(client, "base_url", "")), "anthropic.com"
        )

    def _path(self, client: Any, path: str, request: ModelRequest) -> str:
        del request
        if self.wire is not ANTHROPIC_VERTEX:
            return path
        project, region = quote(client.project_id, safe=""), quote(client.region, safe="")
        return f"/projects/{project}/locations/{region}/publishers/anthropic{path}"

    async def _post(self, client: Any, path: str, request: ModelRequest) -> httpx2.Response:
        try:
            return await super()._post(client, path, request)
        except self._sdk().APIStatusError as error:
            if self.wire is ANTHROPIC_BEDROCK:
                error.body = named_error(error.body, error.response.headers)
            raise

    async def _events(self, response: httpx2.Response) -> AsyncGenerator[JsonObject]:
        if self.wire is not ANTHROPIC_BEDROCK:
            async with aclosing(super()._events(response)) as events:
                async for event in events:
                    yield event
            return
        frames = FrameDecoder()
        async with aclosing(response.aiter_bytes()) as received:
            async for received_bytes in received:
                for frame in frames.feed(received_bytes):
                    yield _event(event_of(frame))

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
                api_key=key,
                base_url=address,
                timeout=wait,
                max_retries=0,
                http_client=sdk.DefaultAsyncHttpxClient(timeout=wait, verify=certificates()),
            )
            return made

        return make

    def _check(self, client: object) -> None:
        if _service_of(self._sdk(), client) is None:
            raise AgentConfigurationError(
                f"client= is {type(client).__name__}. Give an asynchronous client of the anthropic package, such as "
                "AsyncAnthropic or AsyncAnthropicBedrock, or leave it out."
            )
        if self.wire is ANTHROPIC_VERTEX and not getattr(client, "project_id", None):
            raise AgentConfigurationError(
                "client= is an AsyncAnthropicVertex without a project. Give it project_id=, or set "
                "ANTHROPIC_VERTEX_PROJECT_ID."
            )


def _service_of(sdk: Any, client: object) -> tuple[str, WireFormat] | None:
    """The service of a client of the package, and its format; None for anything else."""
    return next((each for name, each in _SERVICES.items() if isinstance(client, getattr(sdk, name, ()))), None)


def _event(event: JsonObject) -> JsonObject:
    """The event of Messages in an event of Bedrock, where it is in base64."""
    match event:
        case {"chunk": {"bytes": str(encoded)}}:
            decoded = parse_json(b64decode(encoded))
            return decoded if isinstance(decoded, dict) else {}
        case {"exception": failure}:
            return {"type": "error", "error": failure}
        case _:
            return event
