"""Model clients for agents of Amazon Bedrock (InvokeAgent) and on AgentCore, over plain HTTP."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol
from urllib.parse import quote
from uuid import uuid4

from clew.domain.json_values import Json, JsonObject, parse_json
from clew.domain.models.agentcore import AGENTCORE, AgentCoreAnswer
from clew.domain.models.bedrock_agents import BEDROCK_AGENT, ENDED, RECEIVED, BedrockAgentAnswer
from clew.domain.models.client import ModelRequest, RemoteTask, ServiceReference, ThreadKind, Update, WireFormat
from clew.domain.runs.errors import AgentConfigurationError, ModelError, RemoteTaskError
from clew.domain.runs.request_construction import checked_options
from clew.infrastructure.bedrock.connection import SignedConnection
from clew.infrastructure.bedrock.event_stream import FrameDecoder, event_of
from clew.infrastructure.bedrock.signing import checked_key, region_of, session_of
from clew.infrastructure.model_streams import AnswerReader, EventDecoder
from clew.infrastructure.plain_connection import AgentConnection

if TYPE_CHECKING:
    import botocore.session
    import httpx2

_SESSION = "x-amz-bedrock-agent-session-id"
_RUNTIME_SESSION = "x-amzn-bedrock-agentcore-runtime-session-id"
_ARN_COLONS = 4
_SET_BY_RUN = ("inputText", "endSession")


class _Reader(AnswerReader, Protocol):
    @property
    def received(self) -> bool: ...


class _AgentClient(ABC):
    """A client of agents whose service keeps no answers: what is lost is not asked for again."""

    wire: WireFormat
    model: str
    _connection: _Connection

    @abstractmethod
    def _reader(self, request: ModelRequest) -> _Reader:
        """What assembles the answer to a request."""

    async def ask(self, request: ModelRequest) -> AsyncGenerator[Update]:
        """Send a request once and yield the answer in pieces. Raises ModelError."""
        if request.task is not None and request.task.reads:
            raise RemoteTaskError(
                f"The answer of {self.model!r} broke off, and the service keeps no answers that could be read. Run "
                "again with a new message: the agent has the one before.",
                sent=False,
            )
        reader = self._reader(request)
        path, sent = self.wire.path_of(request), replace(request, streams=True)
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


class BedrockAgentClient(_AgentClient):
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

    def _reader(self, request: ModelRequest) -> BedrockAgentAnswer:
        return BedrockAgentAnswer(request)

    async def open_service_thread(self) -> ServiceReference:
        """A new session: it begins at the service with the first message."""
        return ServiceReference(kind="conversation", id=uuid4().hex)


class _Connection(SignedConnection, AgentConnection):
    host: ClassVar[str] = "bedrock-agent-runtime"

    def _headers(self, request: ModelRequest) -> dict[str, str]:
        del request
        return {"accept": "application/vnd.amazon.eventstream"}

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


class AgentCoreClient(_AgentClient):
    """A model client for an agent on Amazon Bedrock AgentCore, on remote threads: the agent holds the session.

    ``arn`` is that of the runtime, and ``qualifier`` its version or endpoint. With ``api_key``, a bearer token, the
    agent's own identity provider decides; else requests are signed with the AWS credentials of ``session``, which need
    the extra ``bedrock``. ``options`` are further fields of the payload, and are recorded. ``prompt_field``,
    ``answer_field`` and ``text_field`` among them name the fields with the texts: of the payload, of a whole answer,
    and of an event. By default they are ``prompt``, ``result`` and ``data``. Raises AgentConfigurationError and
    MissingExtraError.
    """

    kind: Literal["bedrock-agentcore"] = "bedrock-agentcore"
    wire = AGENTCORE
    thread_kinds: tuple[ThreadKind, ...] = ("remote",)

    def __init__(
        self,
        arn: str,
        *,
        qualifier: str | None = None,
        region: str | None = None,
        api_key: str | None = None,
        session: botocore.session.Session | None = None,
        base_url: str | None = None,
        timeout: float | None = None,
        options: JsonObject | None = None,
    ) -> None:
        if api_key is not None and session is not None:
            raise AgentConfigurationError("api_key= cannot be combined with session=. Give one of them.")
        self.options = checked_options(options)
        key = checked_key(api_key)
        signing = session_of(session, "AgentCoreClient without a key") if key is None else None
        self.model = arn
        where = region or arn.split(":")[3] if arn.count(":") > _ARN_COLONS else region
        self._connection = _AgentCoreConnection(arn, region_of(where, signing), signing, key, base_url, timeout)
        self._connection.qualifier = qualifier
        self.provider = self._connection.provider

    def __repr__(self) -> str:
        return f"AgentCoreClient({self.model!r})"

    def _reader(self, request: ModelRequest) -> AgentCoreAnswer:
        return AgentCoreAnswer(request, self.options)

    async def open_service_thread(self) -> ServiceReference:
        """A new session: it begins at the agent with the first message. Ids have at least 33 characters."""
        return ServiceReference(kind="conversation", id=f"clew-{uuid4().hex}")


class _AgentCoreConnection(_Connection):
    host: ClassVar[str] = "bedrock-agentcore"
    signed_as: ClassVar[str] = "bedrock-agentcore"
    qualifier: str | None = None

    async def _post(self, client: Any, path: str, request: ModelRequest) -> httpx2.Response:
        query = "" if self.qualifier is None else f"?qualifier={quote(self.qualifier, safe='')}"
        return await super()._post(client, f"{path}{query}", request)

    def _headers(self, request: ModelRequest) -> dict[str, str]:
        accepted = {"accept": "text/event-stream, application/json"}
        return accepted if request.service is None else {**accepted, _RUNTIME_SESSION: request.service.id}

    def _object(self, reply: Json) -> JsonObject | None:
        return {"whole": reply}

    async def _events(self, response: httpx2.Response) -> AsyncGenerator[JsonObject]:
        """The events of a reply, with one before and one after them: the agent sends no end marker."""
        yield {RECEIVED: {}}
        events = EventDecoder()
        async with aclosing(response.aiter_bytes()) as received:
            async for received_bytes in received:
                for data in events.feed(received_bytes):
                    yield {"event": parse_json(data)}
        for data in events.finish():
            yield {"event": parse_json(data)}
        yield {ENDED: {}}
