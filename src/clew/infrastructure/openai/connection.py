"""Sends requests to a model service with the ``openai`` package."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from clew.domain.models.client import ModelRequest
from clew.domain.runs.errors import AgentConfigurationError
from clew.infrastructure.sdk_connection import TIMEOUT, SdkConnection, certificates, host_of, is_address, timeout_of

if TYPE_CHECKING:
    import httpx2
    import openai

_CHAT_PATH = "/chat/completions"


class OpenAIConnection(SdkConnection):
    """The connections of OpenAI's clients. The provider is the host of the service, without a port."""

    options: ClassVar[dict[str, Any]] = {**SdkConnection.options, "security": {"bearer_auth": True}}
    key = "OPENAI_API_KEY"

    def _sdk(self) -> Any:
        import openai

        return openai

    def _provider(self, base_url: str | None, client: Any) -> str:
        if client is not None:
            return str(getattr(getattr(client, "base_url", ""), "host", ""))
        address = base_url or os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com"
        return host_of(address)

    def _factory(self, api_key: str | None, base_url: str | None, timeout: float | None) -> Callable[[], Any]:
        return _client_factory(api_key, base_url, timeout)

    def _check(self, client: object) -> None:
        _check_client(client)

    def _path(self, client: Any, path: str, request: ModelRequest) -> str:
        import openai

        is_azure = isinstance(client, openai.AsyncAzureOpenAI) and "/deployments" not in client.base_url.path
        if is_azure and path == _CHAT_PATH:  # the package reads the deployment from a body, but not from bytes
            return f"/deployments/{request.body['model']}{path}"
        return path


def _client_factory(
    api_key: str | None, base_url: str | None, timeout: float | None
) -> Callable[[], openai.AsyncOpenAI]:
    """A function that makes clients. The key is in a closure, where no repr shows it."""
    import openai  # takes half a second, which would block an event loop

    address = base_url or os.environ.get("OPENAI_BASE_URL") or None
    if address is not None and not is_address(address):
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
        url, headers = without_password(address) if address is not None else (None, None)
        wait = timeout_of(TIMEOUT if timeout is None else timeout)
        http = openai.DefaultAsyncHttpxClient(timeout=wait, verify=certificates())
        return openai.AsyncOpenAI(
            api_key=key, base_url=url, timeout=wait, max_retries=0, default_headers=headers, http_client=http
        )

    return make


def without_password(address: str) -> tuple[httpx2.URL, dict[str, str] | None]:
    """The address without user and password, which the HTTP client would log, and the header that carries them."""
    import httpx2

    url = httpx2.URL(address)
    if not url.userinfo:
        return url, None
    encoded = base64.b64encode(f"{url.username}:{url.password}".encode()).decode()
    return url.copy_with(userinfo=b""), {"Authorization": f"Basic {encoded}"}


def _check_client(client: object) -> None:
    import openai

    if not isinstance(client, openai.AsyncOpenAI):
        raise AgentConfigurationError(
            f"client= is {type(client).__name__}. Give an openai.AsyncOpenAI or AsyncAzureOpenAI, or leave it out."
        )
