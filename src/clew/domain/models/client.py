"""The port to model services: the question, and the updates of the answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import not_
from typing import Literal, Protocol, TypeAlias

from pydantic import Field

from clew.domain.json_values import JsonObject
from clew.domain.messages import Content, Message, Value, is_none

ThreadKind: TypeAlias = Literal["local", "remote"]
"""Who holds the history of a thread: Clew, or a service."""

ServiceKind: TypeAlias = Literal["response", "conversation"]
"""What a service's id names: an answer from which the next request continues, or a conversation that grows.

A client says which of the two its service's ids are: the first can be forked and rewound, the second cannot.
"""


class ToolSchema(Value):
    """A tool as a model sees it; ``parameters`` is a JSON schema of an object."""

    name: str
    description: str = ""
    parameters: JsonObject


class ResponseFormat(Value):
    """The JSON schema of the answer that a model must give."""

    name: str
    json_schema: JsonObject


class ServiceReference(Value):
    """The point in a service's own history from which the next request continues."""

    kind: ServiceKind
    id: str

    @classmethod
    def named(cls, id_: str) -> ServiceReference:
        """What an id without a kind names: a conversation if it begins with ``conv``, as OpenAI's ids do."""
        return cls(kind="conversation" if id_.startswith("conv") else "response", id=id_)


class RemoteTask(Value):
    """What a request to a remote agent says of its tasks.

    ``message_id`` names the message: it is the same each time that the message is sent again. ``task_id`` is the task
    that waits for this message. With ``reads`` no message is sent: the request asks how the task stands. ``late`` says
    that an earlier run began the task: its answer comes late, and the message of this run is sent after it.
    """

    message_id: str
    task_id: str | None = Field(default=None, exclude_if=is_none)
    reads: bool = Field(default=False, exclude_if=not_)
    late: bool = Field(default=False, exclude_if=not_)


TokenPart: TypeAlias = Literal[
    "cache_write",
    "cache_write_1h",
    "input_audio",
    "input_image",
    "input_video",
    "cache_audio_read",
    "cache_image_read",
    "cache_video_read",
    "output_audio",
    "output_image",
    "output_video",
    "web_searches",
]
"""A part of the tokens that may have a price of its own, or a number of searches."""


class TokenUsage(Value):
    """Tokens, as the service counted them."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = Field(default=0, exclude_if=not_)
    """Input tokens that were read from the service's cache."""
    reasoning_tokens: int = Field(default=0, exclude_if=not_)
    """Output tokens of the model's reasoning."""
    parts: dict[str, int] = Field(default_factory=dict, exclude_if=not_)
    """How many of the input and output tokens are of a kind with another price, such as ``input_audio``."""
    tier: str | None = Field(default=None, exclude_if=is_none)
    """The service tier or speed, if the service says that it charged another than the standard one."""

    @property
    def total_tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: TokenUsage) -> TokenUsage:
        tier = self.tier if self.tier == other.tier else None
        if not (self.input_tokens or self.output_tokens):  # the beginning of a sum has no tier of its own
            tier = other.tier
        return TokenUsage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            parts=_added(self.parts, other.parts) if self.parts and other.parts else self.parts or other.parts,
            tier=tier,
        )


def _added(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}


def parts_of(**counts: int) -> dict[str, int]:
    """The ``parts`` of a usage: those that are not 0, by the names of ``TokenPart``."""
    return {name: count for name, count in counts.items() if count}


def other_tier(tier: object) -> str | None:
    """The ``tier`` of a usage, from what a service names."""
    return tier if isinstance(tier, str) and tier not in {"", "default", "standard", "auto"} else None


EDITION = 3
"""How requests are written today. The log names the edition of each request, so that an old one gets its old bytes.

Since edition 2, authors are named in every format, and Responses gets no reasoning that it cannot read. Since edition
3, the choice of a tool is not a part of what Converse's signed blocks are bound to, and Responses gets no item without
the result that it waits for.
"""


@dataclass(frozen=True, slots=True)
class Question:
    """A request to a model, in no provider's format.

    ``messages`` is the model view, with each call followed by its result; for a remote thread, only those that the
    service does not have yet. ``options`` are the provider's own (``temperature``, ``max_tokens``…), unchanged.
    ``provider`` is the service that is asked, if the client names it. ``agent`` is the name of the agent that asks:
    answers of others are sent with their authors. ``edition`` says by which rules the request is written. ``versions``
    are those of the messages on their thread, 0 for a message of a context provider. ``task`` is for formats that have
    tasks.
    """

    model: str
    messages: tuple[Message, ...]
    instructions: str | None = None
    tools: tuple[ToolSchema, ...] = ()
    response_format: ResponseFormat | None = None
    options: JsonObject | None = None
    service: ServiceReference | None = None
    provider: str | None = None
    agent: str | None = None
    edition: int = EDITION
    versions: tuple[int, ...] = ()
    task: RemoteTask | None = None


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A request that is on the log, and is about to be sent.

    ``content`` are its bytes, which the service must receive. ``body`` is the same as JSON values, without the fields
    that request a stream; ``streams`` says whether the bytes request one. ``model`` is the model that is asked. For a
    remote agent, ``service`` is the conversation, and ``task`` what the request says of its tasks.
    """

    body: JsonObject
    content: bytes
    streams: bool
    model: str = ""
    service: ServiceReference | None = None
    task: RemoteTask | None = None


def _unchanged(body: JsonObject) -> JsonObject:
    return body


@dataclass(frozen=True, slots=True, kw_only=True)
class WireFormat:
    """How requests to a service are written: pure functions, with a name that the log keeps for ever.

    ``make_body`` gives the body of the request for a question. ``make_path`` gives the path below the address of the
    service, from the model and whether a stream is requested. ``as_stream`` adds to a body what requests a stream, and
    ``unstored`` to options what asks the service to store nothing. A request is rebuilt from the log with the format of
    its name, so the functions must give the same bytes in every later version. ``options_on`` gives the options of a
    request on a local or a remote thread; they are recorded.

    The prefix of a request is what the model reads: system, tools and messages. ``prefix_fields`` are the fields of a
    body that hold it, the messages last; the log has the SHA-256 of their JSON. If signed parts of the answer are bound
    to the prefix, ``prefix_of`` gives the digest that they are bound to instead. ``left_out`` gives the numbers, from
    0, of the messages of a question whose signed parts are not in its body, because another model made them, or because
    what came before them is not what they are bound to. ``rebound`` gives a body that middleware changed, without the
    signed parts after the first change of the prefix, from the bodies before and after it.

    ``as_held`` gives a message as a service that holds its thread lists it, without what it does not keep.

    ``sends_media`` says whether the body for a question has a content of one of its messages, ``Media`` or a service's
    own part for media, as what it is: neither words in its place nor nothing. Without it, all media count as sent.

    ``has_tasks`` says that the service is a remote agent. It answers a message with a task, which continues when the
    connection is cut: a run then reads the task and does not send the message again. Such an agent has its own tools.
    With ``takes_results``, it may also call functions of the caller. ``answers_in_turn`` says that it takes no message
    before it has answered the one before: a run first reads what an earlier run did not wait for. ``make_task_path``
    gives the path of a request to its conversation.
    """

    name: str
    make_body: Callable[[Question], JsonObject]
    make_path: Callable[[str, bool], str]
    as_stream: Callable[[JsonObject], JsonObject] = _unchanged
    unstored: Callable[[JsonObject], JsonObject] = _unchanged
    prefix_fields: tuple[str, ...] = ()
    prefix_of: Callable[[JsonObject], str] | None = None
    left_out: Callable[[Question, JsonObject], tuple[int, ...]] | None = None
    rebound: Callable[[JsonObject, JsonObject], JsonObject] | None = None
    options_on: Callable[[ThreadKind, JsonObject], JsonObject] | None = None
    as_held: Callable[[Message], Sequence[Message]] | None = None
    sends_media: Callable[[Question, Message, Content], bool] | None = None
    has_tasks: bool = False
    takes_results: bool = False
    answers_in_turn: bool = False
    make_task_path: Callable[[ModelRequest], str] | None = None

    def path_of(self, request: ModelRequest) -> str:
        """The path of a request below the address of the service."""
        if self.make_task_path is not None and request.service is not None:
            return self.make_task_path(request)
        return self.make_path(request.model, request.streams)


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """A piece of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class CallDelta:
    """A piece of the ``index``-th function call of the answer, from 0."""

    index: int
    call_id: str
    name: str
    arguments: str
    """The new piece of the arguments' text."""


@dataclass(frozen=True, slots=True)
class ServiceBound:
    """The service has sent its id of the conversation or response. It is sent as soon as the id is known.

    ``task`` is the id of the task of a remote agent that answers.
    """

    service: ServiceReference
    task: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The complete answer. It is the last update, and is sent only when the answer is complete.

    A streamed answer has the same message as one that was not streamed. ``finish_reason`` is ``stop``, ``tool_calls``,
    ``length``, ``refusal`` (the model declined), ``content_filter`` (the service stopped it), or the service's own
    value.
    """

    message: Message
    finish_reason: str | None = None
    usage: TokenUsage | None = None
    model: str | None = None
    response_id: str | None = None


CUT = frozenset({"length", "model_context_window_exceeded"})
"""Finish reasons of answers that are incomplete."""

Update: TypeAlias = TextDelta | ReasoningDelta | CallDelta | ServiceBound | Answer


def joined(pieces: Sequence[str]) -> str:
    """The text of pieces that arrived one by one. A character may be split between two pieces."""
    text = "".join(pieces)
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


class ModelClient(Protocol):
    """A client of a model service. It holds no conversation, and many runs may use it at once."""

    @property
    def kind(self) -> str:
        """A short stable name of the kind of client, which events record: ``openai-chat``."""
        ...

    @property
    def wire(self) -> WireFormat:
        """The format of its requests. With it, they can be rebuilt without the client."""
        ...

    @property
    def model(self) -> str:
        """The model, unless a run names another."""
        ...

    @property
    def thread_kinds(self) -> tuple[ThreadKind, ...]:
        """The kinds of thread that it can run on; the first is the one that it starts."""
        ...

    @property
    def options(self) -> JsonObject:
        """Options for every request. They are recorded, so they must not hold secrets."""
        ...

    def ask(self, request: ModelRequest) -> AsyncIterator[Update]:
        """Send a request once, and yield the updates; the last one is an :class:`Answer`.

        Exactly ``request.content`` is sent. Closing the iterator closes the connection. Raises only ModelError, also
        for an answer that ends before it is complete.
        """
        ...


class ServiceThreads(Protocol):
    """The requests to a service about the threads that it holds."""

    @property
    def wire(self) -> WireFormat:
        """The format of its requests, which says how the service lists a message."""
        ...

    async def service_history(self, service: ServiceReference) -> list[Message]:
        """The messages that the service holds, oldest first. Raises ModelError."""
        ...

    async def delete_service_thread(self, service: ServiceReference) -> None:
        """Delete the conversation or response at the service. Raises ModelError."""
        ...
