"""A model client of another package, for a service that repeats the last message word by word."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx2

from clew import Message
from clew.domain.json_values import JsonObject
from clew.domain.models.client import Answer, ModelRequest, Question, TextDelta, ThreadKind, Update, WireFormat
from clew.domain.runs.errors import ModelError, ModelRequestError, ModelStreamError, ModelUnavailableError


def parrot_body(question: Question) -> JsonObject:
    """The body of a request."""
    said: list[Any] = [message.text for message in question.messages]
    return {**(question.options or {}), "model": question.model, "said": said}


PARROT = WireFormat(
    name="parrot",
    make_body=parrot_body,
    make_path=lambda model, streams: "/repeat",  # noqa: ARG005  # it is the same for all
    as_stream=lambda body: {**body, "stream": True},
)


class ParrotClient:
    """Asks the service, and turns its errors into Clew's."""

    kind = "parrot"
    wire = PARROT
    thread_kinds: tuple[ThreadKind, ...] = ("local",)

    def __init__(self, model: str, *, base_url: str, options: JsonObject | None = None) -> None:
        self.model = model
        self.options: JsonObject = dict(options or {})
        self.http = httpx2.AsyncClient(base_url=base_url, timeout=60)

    async def ask(self, request: ModelRequest) -> AsyncGenerator[Update]:
        """Send a request once, and yield the answer."""
        pieces: list[str] = []
        complete = not request.streams
        try:
            async with self.http.stream("POST", "/repeat", content=request.content) as response:
                if response.status_code >= 400:
                    raise refused(response)
                async for line in response.aiter_lines():
                    event = json.loads(line.removeprefix("data: ") or "{}")
                    complete = complete or "end" in event
                    pieces.append(event.get("text", ""))
                    if request.streams and pieces[-1]:
                        yield TextDelta(pieces[-1])
        except (httpx2.TransportError, ValueError) as error:
            kind = ModelStreamError if pieces else ModelUnavailableError
            raise kind(f"The parrot broke off: {type(error).__name__}.", retryable=not pieces) from None
        if not complete or not pieces:
            raise ModelStreamError("The parrot fell asleep.")
        yield Answer(Message.assistant("".join(pieces)), finish_reason="stop")

    async def aclose(self) -> None:
        """Close the connections."""
        await self.http.aclose()


def refused(response: httpx2.Response) -> ModelError:
    """The error for a status of HTTP."""
    status, words = response.status_code, f"The parrot refused (HTTP {response.status_code})."
    if status == 429 or status >= 500:
        wait = float(response.headers.get("retry-after", 1))
        return ModelUnavailableError(words, status=status, retryable=True, retry_after=wait)
    return ModelRequestError(words, status=status)


WHOLE: JsonObject = {"text": "Hello there."}
PIECES: tuple[JsonObject, ...] = ({"text": "Hello"}, {"text": " there."}, {"end": True})
"""An answer of the service, whole and streamed."""
