"""A model client for the agents of Amazon Bedrock (InvokeAgent), over plain HTTP."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from uuid import uuid4

from clew.domain.json_values import JsonObject
from clew.domain.models.bedrock_agents import BEDROCK_AGENT, ENDED, RECEIVED, BedrockAgentAnswer
from clew.domain.models.client import ModelRequest, RemoteTask, ServiceReference, ThreadKind, Update
from clew.domain.runs.errors import AgentConfigurationError, ModelError, RemoteTaskError
from clew.domain.runs.request_construction import checked_options
from clew.infrastructure.bedrock.event_stream import FrameDecoder, event_of, named_error
from clew.infrastructure.bedrock.signing import checked_key, region_of, session_of, signed_headers
from clew.infrastructure.plain_connection import AgentConnection, PlainHttp, StatusError
from clew.infrastructure.sdk_connection import TIMEOUT, is_address, service_name, timeout_of
from clew.infrastructure.sent_requests import SentRequests

if TYPE_CHECKING:
    import botocore.session
    import httpx2

_SESSION = "x-amz-bedrock-agent-session-id"
_SET_BY_RUN = ("inputText", "endSession")


class BedrockAgentClient:
    """A model client for an agent of Amazon Bedrock (InvokeAgent), on remote threads: the service holds the session.

    ``alias_id`` names the alias of the agent. Credentials are those of ``BedrockClient``: ``api_key``, or AWS
    credentials of ``session``, which need the extra ``bedrock``. So are ``region``, ``base_url`` and ``timeout``.
    ``options`` are fields of a request, such as ``enableTrace``, ``sessionState`` or ``streamingConfigurations``; they
    are recorded. Raises AgentConfigurationError and MissingExtraError.
    """

    kind: Literal["bedrock-agent"] = "bedrock-agent"
    wire = BEDROCK_AGENT
    thread_kinds: tuple[ThreadKind, ...] = ("remote",)

    def __init__(
        self,
        agent_id: str,
        alias_id: str,
        *,
        region: str | None = None,
        api_key: str | None = None,
        session: botocore.session.Session | None = None,
        base_url: str | None = None,
        timeout: float | None = None,
        options: JsonObject | None = None,
    ) -> None:
        if api_key is not None and session is not None:
            raise AgentConfigurationError("api_key= cannot be combined with session=. Give one of them.")
        checked = checked_options(options)
        if set_by_run := [name for name in _SET_BY_RUN if name in checked]:
            raise AgentConfigurationError(
                f"options has {', '.join(set_by_run)}, which the run sets itself. Leave it out."
            )
        key = checked_key(api_key or (os.environ.get("AWS_BEARER_TOKEN_BEDROCK") if session is None else None))
        signing = session_of(session, "BedrockAgentClient without a key") if key is None else None
        self.model = f"{agent_id}/{alias_id}"
        self._connection = _Connection(self.model, region_of(region, signing), signing, key, base_url, timeout)
        self.provider = self._connection.provider
        self.options = checked

    def __repr__(self) -> str:
        return f"BedrockAgentClient({self.model!r})"

    async def ask(self, request: ModelRequest) -> AsyncGenerator[Update]:
        """Send a request once and yield the answer in pieces. Raises ModelError."""
        if request.task is not None and request.task.reads:
            raise RemoteTaskError(
                f"The answer of {self.model!r} broke off, and the service keeps no answers that could be read. Run "
                "again with a new message: the agent has the one before.",
                sent=False,
            )
        reader = BedrockAgentAnswer()
        path, sent = BEDROCK_AGENT.path_of(request), replace(request, streams=True)
        try:
            async with aclosing(self._connection.ask(path, sent, reader)) as updates:
                async for update in updates:
                    yield update
        except ModelError as raised:
            if not reader.received or request.task is None:
                raise
            raise RemoteTaskError(
                f"{raised} The agent has the message, and the service keeps no answers that could be read.",
                status=raised.status,
                code=raised.code,
            ) from None

    async def open_service_thread(self) -> ServiceReference:
        """A new session: it begins at the service with the first message."""
        return ServiceReference(kind="conversation", id=uuid4().hex)

    async def find_task(self, service: ServiceReference, sent: RemoteTask) -> str | None:
        """Refuse to continue a run whose message may have arrived: the service cannot be asked. Raises ModelError."""
        del sent
        raise RemoteTaskError(
            f"The message may have reached {self.model!r} (session {service.id}), which cannot be asked. Run again to "
            "send it once more.",
            sent=False,
        )

    async def aclose(self) -> None:
        """Close the connections that this event loop has to the service."""
        await self._connection.aclose()


class _Connection(AgentConnection):
    key: ClassVar[str] = "AWS_BEARER_TOKEN_BEDROCK"

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

    def _provider(self, base_url: str | None, client: Any) -> str:
        del client
        return service_name("bedrock", base_url, "amazonaws.com")

    def _factory(self, api_key: str | None, base_url: str | None, timeout: float | None) -> Callable[[], Any]:
        address = base_url or f"https://bedrock-agent-runtime.{self._region}.amazonaws.com"
        if not is_address(address):
            raise AgentConfigurationError(
                "The address of the service (base_url=) is not valid. Give one that begins with https:// or http:// "
                "and contains no ? or #."
            )
        headers = {"content-type": "application/json"}
        if api_key is not None:
            headers["authorization"] = f"Bearer {api_key}"
        return lambda: PlainHttp(address, headers, timeout_of(TIMEOUT if timeout is None else timeout))

    async def _post(self, client: Any, path: str, request: ModelRequest) -> httpx2.Response:
        http: PlainHttp = client
        headers = {"accept": "application/vnd.amazon.eventstream"}
        if self._session is not None:
            headers |= signed_headers(
                self._session, http, path, request.content, service="bedrock", region=self._region
            )
        try:
            return await http.send(path, request.content, headers)
        except StatusError as error:
            error.body = named_error(error.body, error.response.headers)
            raise

    async def _pieces(
        self, client: Any, path: str, request: ModelRequest, sent: SentRequests
    ) -> AsyncGenerator[tuple[bool, JsonObject]]:
        """The events, after one that says that the agent has the message."""
        async with aclosing(super()._pieces(client, path, request, sent)) as pieces:
            async for whole, piece in pieces:
                if (received := piece.get(RECEIVED)) is None:
                    yield whole, piece
                elif request.service is not None and request.task is not None and isinstance(received, dict):
                    named = received.get("request") or request.task.message_id
                    yield (
                        False,
                        {RECEIVED: {"session": received.get("session") or request.service.id, "request": named}},
                    )

    async def _events(self, response: httpx2.Response) -> AsyncGenerator[JsonObject]:
        """The events of a reply, with one before and one after them: the service sends no end marker."""
        headers = response.headers
        ids: JsonObject = {"session": headers.get(_SESSION), "request": headers.get("x-amzn-requestid")}
        yield {RECEIVED: ids}
        frames = FrameDecoder()
        async with aclosing(response.aiter_bytes()) as received:
            async for received_bytes in received:
                for frame in frames.feed(received_bytes):
                    yield event_of(frame)
        if frames.is_complete:
            yield {ENDED: {}}
