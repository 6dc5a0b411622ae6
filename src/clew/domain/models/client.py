"""The port to model services: what is asked, and what comes back while an answer is being said."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from operator import not_
from typing import Literal, Protocol, TypeAlias

from pydantic import Field

from clew.domain.json_values import JsonObject
from clew.domain.messages import Message
from clew.domain.values import Value

ThreadKind: TypeAlias = Literal["local", "remote"]
"""Who holds the history of a thread: Clew, or a service."""

Wire: TypeAlias = Literal["openai-chat", "openai-responses"]
"""The form in which requests are written: see ``clew.domain.models.requests``."""

ServiceKind: TypeAlias = Literal["response", "conversation"]
"""What a service's id names: an answer that the next request goes on from, or a conversation that grows."""


class ToolSchema(Value):
    """What a model is told of a tool; ``parameters`` is a JSON schema of an object."""

    name: str
    description: str = ""
    parameters: JsonObject


class ResponseFormat(Value):
    """The JSON that a model is to answer with."""

    name: str
    json_schema: JsonObject


class ServiceReference(Value):
    """Where a service's own history is gone on from."""

    kind: ServiceKind
    id: str


class Usage(Value):
    """Tokens, as the service counted them."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = Field(default=0, exclude_if=not_)
    """Those of the input that were read from the service's cache."""
    reasoning_tokens: int = Field(default=0, exclude_if=not_)
    """Those of the output that the model thought with."""

    @property
    def total_tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
        )


@dataclass(frozen=True, slots=True)
class Question:
    """What a model is asked, in no provider's words.

    ``messages`` is the model view, every call with its result right after it; of a remote thread only what the service
    has not been sent. ``options`` are the provider's own (``temperature``, ``max_tokens``…), written as they are.
    """

    model: str
    messages: tuple[Message, ...]
    instructions: str | None = None
    tools: tuple[ToolSchema, ...] = ()
    response_format: ResponseFormat | None = None
    options: JsonObject | None = None
    service: ServiceReference | None = None


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Some more words of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """Some more of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class CallDelta:
    """Some more of a function call: the ``index``-th of the answer, from 0."""

    index: int
    call_id: str
    name: str
    arguments: str
    """The piece of the arguments' text that just came."""


@dataclass(frozen=True, slots=True)
class ServiceBound:
    """The service has named its side of the conversation; it comes as soon as that is known."""

    service: ServiceReference


@dataclass(frozen=True, slots=True)
class Answer:
    """The whole answer: the last thing that comes, and only when it is complete.

    The message of a streamed answer equals that of one that came whole. ``finish_reason`` is ``stop``, ``tool_calls``,
    ``length``, ``content_filter`` or the service's own word.
    """

    message: Message
    finish_reason: str | None = None
    usage: Usage | None = None
    model: str | None = None
    response_id: str | None = None


Update: TypeAlias = TextDelta | ReasoningDelta | CallDelta | ServiceBound | Answer


class ModelClient(Protocol):
    """A way to a model service. It holds no conversation, and may be used by many runs at once."""

    @property
    def kind(self) -> str:
        """A short stable name of the kind of client, which events record: ``openai-chat``."""
        ...

    @property
    def wire(self) -> Wire:
        """The form in which its requests are written, so that they can be rebuilt without it."""
        ...

    @property
    def model(self) -> str:
        """The model that is asked unless a run names another."""
        ...

    @property
    def thread_kinds(self) -> tuple[ThreadKind, ...]:
        """The kinds of thread that it can run on, first the one that it starts."""
        ...

    @property
    def options(self) -> JsonObject:
        """What it asks of the service with every request: recorded, so without secrets."""
        ...

    def ask(self, body: JsonObject, *, stream: bool) -> AsyncIterator[Update]:
        """Send a request body, once, and give what comes back; an :class:`Answer` last.

        The body is sent as it is, but for what the service needs to stream. Closing the iterator closes the
        connection. Raises ModelError, and nothing else: also for an answer that ends without being complete.
        """
        ...


class ServiceThreads(Protocol):
    """What a service that holds threads can tell of them."""

    async def service_history(self, service: ServiceReference) -> list[Message]:
        """The messages that the service holds, oldest first. Raises ModelError."""
        ...

    async def delete_service_thread(self, service: ServiceReference) -> None:
        """Delete it at the service. Raises ModelError."""
        ...
