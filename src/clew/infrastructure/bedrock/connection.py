"""Connections to services of Amazon: signed with AWS credentials, or with a bearer token."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from clew.domain.models.client import ModelRequest
from clew.domain.runs.errors import AgentConfigurationError
from clew.infrastructure.bedrock.event_stream import named_error
from clew.infrastructure.bedrock.signing import signed_headers
from clew.infrastructure.plain_connection import PlainConnection, PlainHttp, StatusError
from clew.infrastructure.sdk_connection import TIMEOUT, is_address, service_name, timeout_of

if TYPE_CHECKING:
    import botocore.session
    import httpx2


class SignedConnection(PlainConnection, ABC):
    """The connections to a service in a region. Requests without a key are signed with the session's credentials."""

    key: ClassVar[str] = "AWS_BEARER_TOKEN_BEDROCK"
    host: ClassVar[str]
    """The service in the address: ``https://HOST.REGION.amazonaws.com``."""
    signed_as: ClassVar[str] = "bedrock"
    """The service in signatures."""

    def __init__(
        self,
        model: str,
        region: str,
        session: botocore.session.Session | None,
        key: str | None,
        base_url: str | None,
        timeout: float | None,
    ) -> None:
        self._region = region
        self._session = session
        super().__init__(model, api_key=key, base_url=base_url, client=None, timeout=timeout)

    @abstractmethod
    def _headers(self, request: ModelRequest) -> dict[str, str]:
        """The headers of a request besides those of its signature."""

    def _provider(self, base_url: str | None, client: Any) -> str:
        del client
        return service_name("bedrock", base_url, "amazonaws.com")

    def _factory(self, api_key: str | None, base_url: str | None, timeout: float | None) -> Callable[[], Any]:
        domain = "amazonaws.com.cn" if self._region.startswith("cn-") else "amazonaws.com"
        address = base_url or f"https://{self.host}.{self._region}.{domain}"
        if not is_address(address):
            raise AgentConfigurationError(
                "The address of the model service (base_url=) is not valid. Give one that begins with https:// or "
                "http:// and contains no ? or #."
            )
        headers = {"content-type": "application/json"}
        if api_key is not None:
            headers["authorization"] = f"Bearer {api_key}"
        return lambda: PlainHttp(address, headers, timeout_of(TIMEOUT if timeout is None else timeout))

    async def _post(self, client: Any, path: str, request: ModelRequest) -> httpx2.Response:
        http: PlainHttp = client
        headers = self._headers(request)
        if self._session is not None:
            headers |= signed_headers(
                self._session, http, path, request.content, service=self.signed_as, region=self._region
            )
        try:
            return await http.send(path, request.content, headers)
        except StatusError as error:
            error.body = named_error(error.body, error.response.headers)
            raise
