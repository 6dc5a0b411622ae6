"""A model client for Amazon Bedrock's Converse API, over plain HTTP: boto3 loses what it does not know."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, ClassVar, Literal

from clew.domain.json_values import JsonObject
from clew.domain.models.bedrock_answers import BedrockAnswer
from clew.domain.models.bedrock_requests import BEDROCK
from clew.domain.models.client import ModelRequest, ThreadKind, Update
from clew.domain.runs.errors import AgentConfigurationError
from clew.domain.runs.request_construction import checked_options
from clew.infrastructure.bedrock.connection import SignedConnection
from clew.infrastructure.bedrock.event_stream import FrameDecoder, event_of
from clew.infrastructure.bedrock.signing import checked_key, region_of, session_of

if TYPE_CHECKING:
    import botocore.session
    import httpx2


class BedrockClient:
    """A model client for Bedrock's Converse API. Clew holds the history.

    ``api_key`` defaults to AWS_BEARER_TOKEN_BEDROCK. Without a key, requests are signed with the credentials of
    ``session``, by default a new botocore session, which needs the extra ``bedrock``. ``region`` defaults to that of
    the session, or AWS_REGION; ``base_url`` to the service's address there. ``timeout`` is the number of seconds in
    which the service must send something, by default 600. ``options`` are fields of a request, such as
    ``inferenceConfig``; they are sent with every request and recorded.

    Raises AgentConfigurationError without a region, and MissingExtraError.
    """

    kind: Literal["bedrock"] = "bedrock"
    wire = BEDROCK
    thread_kinds: tuple[ThreadKind, ...] = ("local",)

    def __init__(
        self,
        model: str,
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
        if "system" in checked:
            raise AgentConfigurationError("options has system, which the run sets itself. Leave it out.")
        key = checked_key(api_key or (os.environ.get("AWS_BEARER_TOKEN_BEDROCK") if session is None else None))
        signing = session_of(session, "BedrockClient without a key") if key is None else None
        self._connection = _BedrockConnection(model, region_of(region, signing), signing, key, base_url, timeout)
        self.model = model
        self.provider = self._connection.provider
        self.options = checked

    def __repr__(self) -> str:
        return f"BedrockClient({self.model!r})"

    def ask(self, request: ModelRequest) -> AsyncGenerator[Update]:
        """Send a request once and yield the answer, in pieces if it is a stream. Raises ModelError."""
        return self._connection.ask(BEDROCK.make_path(request.model, request.streams), request, BedrockAnswer())

    async def aclose(self) -> None:
        """Close the connections that this event loop has to the service."""
        await self._connection.aclose()


class _BedrockConnection(SignedConnection):
    host: ClassVar[str] = "bedrock-runtime"

    def _headers(self, request: ModelRequest) -> dict[str, str]:
        return {"accept": "application/vnd.amazon.eventstream" if request.streams else "application/json"}

    async def _events(self, response: httpx2.Response) -> AsyncGenerator[JsonObject]:
        frames = FrameDecoder()
        async with aclosing(response.aiter_bytes()) as received:
            async for received_bytes in received:
                for frame in frames.feed(received_bytes):
                    yield event_of(frame)
