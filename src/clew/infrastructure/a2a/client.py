"""A model client for remote agents over A2A 1.0, over plain HTTP: the package of A2A loses what it does not know."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

from clew.domain.json_values import JsonObject
from clew.domain.models.a2a_answers import A2AAnswer, ends
from clew.domain.models.a2a_requests import A2A
from clew.domain.models.chat_answers import as_object, as_objects, as_text
from clew.domain.models.client import ModelRequest, ServiceReference, ThreadKind, Update
from clew.domain.runs.errors import (
    AgentConfigurationError,
    ModelError,
    ModelStreamError,
    RemoteTaskError,
)
from clew.domain.runs.request_construction import checked_options, request_bytes
from clew.infrastructure.plain_connection import AgentConnection, PlainHttp
from clew.infrastructure.sdk_connection import TIMEOUT, is_address, timeout_of
from clew.infrastructure.sent_requests import SentRequests

CARD = "/.well-known/agent-card.json"
"""Where an agent has its card, below its address."""

_HEADERS = {"content-type": "application/json", "accept": "application/json, text/event-stream", "a2a-version": "1.0"}
_UNKNOWN_TASK = "a2a-32001"
_POLL_SECONDS = 1.0
"""Seconds between two looks at a task that works and cannot be followed."""


class A2AClient:
    """A model client for a remote agent over A2A 1.0 (JSON-RPC), on remote threads: the agent keeps its own history.

    ``url`` is the address of its JSON-RPC interface; ``A2AClient.from_card`` reads it from the agent's card. The thread
    is bound to the agent's ``contextId``, and each answer to its ``taskId``. ``name`` is what events call the agent.
    ``headers`` are sent with each request and are not recorded. ``timeout`` is the number of seconds in which the agent
    must send something, by default 600. ``streaming`` is whether it can stream. ``options`` are recorded: ``tenant``,
    ``metadata``, and fields of the configuration of a message such as ``acceptedOutputModes``.
    """

    kind: Literal["a2a"] = "a2a"
    wire = A2A
    thread_kinds: tuple[ThreadKind, ...] = ("remote",)

    def __init__(
        self,
        url: str,
        *,
        name: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        streaming: bool = True,
        options: JsonObject | None = None,
    ) -> None:
        parts = urlsplit(url) if isinstance(url, str) else urlsplit("")
        self.provider = f"{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
        self.model = name or self.provider or "a2a"
        self._connection = _A2AConnection(self.model, url, headers or {}, timeout)
        self.options = {**checked_options(options), **({} if streaming else {"streaming": False})}

    def __repr__(self) -> str:
        return f"A2AClient({self.model!r})"

    @classmethod
    async def from_card(
        cls,
        address: str,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  # that of the client
        options: JsonObject | None = None,
    ) -> Self:
        """The client of the agent at an address, from its card.

        Raises AgentConfigurationError for a card without a JSON-RPC interface of A2A 1.0, or with one on another server
        while ``headers`` are given, and ModelError if there is no card.
        """
        reading = _A2AConnection(address, address, headers or {}, timeout)
        try:
            card = await reading.call("get", CARD)
        finally:
            await reading.aclose()
        interfaces = as_objects(card.get("supportedInterfaces"))
        usable = [
            each
            for each in interfaces
            if each.get("protocolBinding") == "JSONRPC" and as_text(each.get("protocolVersion")).startswith("1.")
        ]
        if not usable:
            found = ", ".join(f"{each.get('protocolBinding')} {each.get('protocolVersion')}" for each in interfaces)
            raise AgentConfigurationError(
                f"The agent at {urlsplit(address).netloc} has no JSON-RPC interface of A2A 1.0, but {found or 'none'}."
            )
        url = as_text(usable[0].get("url"))
        if headers and urlsplit(url)[:2] != urlsplit(address)[:2]:
            raise AgentConfigurationError(
                f"The card at {urlsplit(address).netloc} names another server, {urlsplit(url).netloc}, which would get "
                "the headers. If you trust it, use A2AClient(url, headers=…)."
            )
        given = dict(options or {})
        if (tenant := as_text(usable[0].get("tenant"))) and "tenant" not in given:
            given["tenant"] = tenant
        streaming = as_object(card.get("capabilities")).get("streaming") is True
        name = as_text(card.get("name")) or None
        return cls(url, name=name, headers=headers, timeout=timeout, streaming=streaming, options=given)

    async def ask(self, request: ModelRequest) -> AsyncGenerator[Update]:
        """Send a request once and yield the answer. Raises ModelError.

        A request that reads a task waits until the task answers: it follows the task, which changes nothing there.
        """
        reader = A2AAnswer()
        read: list[Update] = []  # of a task that works, which is read once more
        try:
            async with aclosing(self._connection.ask("", replace(request, streams=True), reader)) as updates:
                async for update in updates:
                    if _reads(request):
                        read.append(update)
                    else:
                        yield update
        except ModelError as raised:
            if not (_reads(request) and reader.failure is None and reader.state):
                raise _settled(raised, reader, request) from None
        else:
            for update in read:
                yield update
            return
        async with aclosing(self._follow(request)) as updates:
            async for update in updates:
                yield update

    async def cancel_task(self, service: ServiceReference, task_id: str) -> None:
        """Ask the agent to cancel a task. Raises ModelError."""
        del service
        await self._connection.call("post", "", {**_rpc("CancelTask", task_id), "params": {"id": task_id}})

    async def aclose(self) -> None:
        """Close the connections that this event loop has to the agent."""
        await self._connection.aclose()

    async def _follow(self, read: ModelRequest) -> AsyncGenerator[Update]:
        """Wait for the answer of a task that works: its updates as a stream, or else by looking again."""
        content = request_bytes({**read.body, "method": "SubscribeToTask"})
        follows = True
        while True:
            reader = A2AAnswer()
            request = replace(read, content=content if follows else read.content, streams=True)
            looked: list[Update] = []
            try:
                async with aclosing(self._connection.ask("", request, reader)) as updates:
                    async for update in updates:
                        if follows:
                            yield update
                        else:
                            looked.append(update)
            except ModelError as raised:
                refused = follows and reader.failure is not None and reader.outcome is None
                works = not follows and reader.failure is None and bool(reader.state)
                if not refused and not works:
                    raise _settled(raised, reader, read) from None
                if works:
                    await asyncio.sleep(_POLL_SECONDS)
                follows = False
            else:
                for update in looked:
                    yield update
                return


def _rpc(method: str, id_: str) -> JsonObject:
    return {"jsonrpc": "2.0", "id": id_, "method": method}


def _reads(request: ModelRequest) -> bool:
    return request.body.get("method") == "GetTask"


def _settled(raised: ModelError, reader: A2AAnswer, request: ModelRequest) -> ModelError:
    """The error for a task: that it ended without an answer, or that its answer can still be read."""
    if reader.outcome is not None:
        return RemoteTaskError(str(raised), status=raised.status, code=raised.code, sent=raised.sent)
    if _reads(request) and as_object(reader.failure).get("code") == _UNKNOWN_TASK:
        words = f"{raised} The agent does not have the task any more."
        return RemoteTaskError(words, code=raised.code, sent=raised.sent)
    passes = raised.status is None or raised.retryable
    if passes and (_reads(request) or (reader.failure is None and reader.task_id is not None)):
        wait = raised.retry_after
        return ModelStreamError(str(raised), status=raised.status, retryable=True, retry_after=wait, sent=raised.sent)
    return raised


class _A2AConnection(AgentConnection):
    """The connections to an agent."""

    key: ClassVar[str] = "headers="

    def __init__(self, model: str, url: str, headers: Mapping[str, str], timeout: float | None) -> None:
        self._headers = {**_HEADERS, **headers}
        super().__init__(model, api_key=None, base_url=url, client=None, timeout=timeout)

    def _provider(self, base_url: str | None, client: Any) -> str:
        del client
        return urlsplit(base_url or "").netloc

    def _factory(self, api_key: str | None, base_url: str | None, timeout: float | None) -> Callable[[], Any]:
        del api_key
        if base_url is None or not is_address(base_url):
            raise AgentConfigurationError(
                "The address of the agent is not valid. Give one that begins with https:// or http:// and contains no "
                "? or #."
            )
        return lambda: PlainHttp(base_url, self._headers, timeout_of(TIMEOUT if timeout is None else timeout))

    async def _pieces(
        self, client: Any, path: str, request: ModelRequest, sent: SentRequests
    ) -> AsyncGenerator[tuple[bool, JsonObject]]:
        """The responses, up to that with which the answer ends: an agent may keep the stream open after it."""
        async with aclosing(super()._pieces(client, path, request, sent)) as pieces:
            async for whole, piece in pieces:
                yield whole, piece
                if ends(piece):
                    return
