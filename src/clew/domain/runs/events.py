"""What happens in a run: the events that an agent leaves on a thread, one for each thing that it does.

They name messages, calls and requests by version, and repeat nothing of their contents: a message is said once.
"""

from __future__ import annotations

from operator import not_
from typing import Literal, TypeAlias, TypeVar

from pydantic import Field

from clew.domain import event_sentences
from clew.domain.event_types import ACTIVE, event_type
from clew.domain.json_values import JsonObject
from clew.domain.messages import Value, is_none
from clew.domain.models.client import ServiceKind, ServiceReference, TokenUsage, WireFormat


class AgentIdentity(Value):
    """Who runs. ``id`` is the same in every process; ``type`` is the name of the agent's class."""

    id: str
    name: str | None = None
    type: str = "Agent"


class Fingerprint(Value):
    """What an agent is made of: the kind of its client, and the SHA-256, in hex, of each of its definitions.

    The definitions themselves are blobs of those digests, and in no event.
    """

    client: str
    instructions: str | None = Field(default=None, exclude_if=is_none)
    tools: tuple[str, ...] = ()
    run_tools: tuple[str, ...] = Field(default=(), exclude_if=not_)
    """Of the tools that were given to this run only."""
    response_format: str | None = Field(default=None, exclude_if=is_none)
    providers: tuple[str, ...] = Field(default=(), exclude_if=not_)
    """The ids of the agent's own context providers."""
    reducer: str | None = Field(default=None, exclude_if=is_none)
    """The name of the reducer, with its limits."""

    @property
    def digests(self) -> tuple[str, ...]:
        """All digests, in a fixed order."""
        return tuple(
            digest
            for digest in (self.instructions, *self.tools, *self.run_tools, self.response_format)
            if digest is not None
        )


class Failure(Value):
    """What went wrong: the class of the error, and what a model service said of it."""

    kind: str
    message: str | None = Field(default=None, exclude_if=is_none)
    status: int | None = Field(default=None, exclude_if=is_none)
    code: str | None = Field(default=None, exclude_if=is_none)


@event_type(
    "run-started",
    headline="A run began",
    sentence=event_sentences.run_started,
    sample={"agent": {"id": "joker"}, "fingerprint": {"client": "scripted"}},
)
class RunStarted(Value):
    """An agent began a run. The messages that it was given come next, in the same commit.

    ``providers`` are the ids of the context providers that serve it as the thread's, ``run_providers`` of those that
    were given to it alone, both beside the agent's own. ``missing`` are those that served the thread before, and that
    nobody supplied.
    """

    agent: AgentIdentity
    fingerprint: Fingerprint
    providers: tuple[str, ...] = Field(default=(), exclude_if=not_)
    run_providers: tuple[str, ...] = Field(default=(), exclude_if=not_)
    missing: tuple[str, ...] = Field(default=(), exclude_if=not_)


@event_type(
    "run-resumed",
    headline="The run was taken up again",
    sentence=event_sentences.run_resumed,
    sample={"attempt": 2, "agent": {"id": "joker"}, "fingerprint": {"client": "scripted"}},
)
class RunResumed(Value):
    """A run that had stopped is gone on with; ``attempt`` counts from 2."""

    attempt: int
    agent: AgentIdentity
    fingerprint: Fingerprint


class ServiceCall(Value):
    """What of the history a service was sent: the messages it had not been sent before.

    ``reference`` is what the request goes on from, None at the first one; ``sent`` is the version of the call up to
    which it had everything, and ``answer`` the version of the message that it had answered then.
    """

    reference: ServiceReference | None = None
    sent: int = 0
    answer: int = 0


@event_type(
    "model-called",
    headline="A model was asked",
    sentence=event_sentences.model_called,
    sample={"definitions": 2, "client": "scripted", "wire": "openai-chat", "model": "m", "digest": "ab" * 32},
)
class ModelCalled(Value):
    """A model is asked. From this, the history and the definitions the request can be rebuilt.

    ``definitions`` is the version of the event with the fingerprint. ``digest`` is the SHA-256, in hex, of the body
    without what only asks for streaming, so that it does not depend on how the answer was transported; ``streamed``
    says how it was.
    """

    definitions: int
    client: str
    wire: WireFormat
    model: str
    options: JsonObject = Field(default_factory=dict)
    digest: str
    service: ServiceCall | None = Field(default=None, exclude_if=is_none)
    streamed: bool = False
    attempt: int = 1
    """Counts the times that this was asked, from 1: more after a fault that may pass."""


@event_type(
    "model-answered",
    headline="The model answered",
    sentence=event_sentences.model_answered,
    sample={"call": 3, "message": 4, "ms": 830},
)
class ModelAnswered(Value):
    """The model has answered ``call``, with the message at version ``message``; times are in milliseconds."""

    call: int
    message: int
    finish_reason: str | None = Field(default=None, exclude_if=is_none)
    usage: TokenUsage | None = Field(default=None, exclude_if=is_none)
    model: str | None = Field(default=None, exclude_if=is_none)
    response_id: str | None = Field(default=None, exclude_if=is_none)
    first_ms: int | None = Field(default=None, exclude_if=is_none)
    """Until the first piece of it came; None when it came whole."""
    ms: int


@event_type(
    "model-failed",
    headline="The model did not answer",
    sentence=event_sentences.model_failed,
    sample={"call": 3, "error": {"kind": "ModelOverloadedError"}, "ms": 1},
)
class ModelFailed(Value):
    """The model did not answer ``call``; with ``retry_in`` it is asked again after so many seconds."""

    call: int
    error: Failure
    retry_in: float | None = Field(default=None, exclude_if=is_none)
    ms: int


@event_type(
    "answer-interrupted",
    headline="The answer was interrupted",
    sentence=event_sentences.answer_interrupted,
    sample={"call": 3, "reason": "crashed"},
)
class AnswerInterrupted(Value):
    """An answer to ``call`` stopped while it was arriving; what had come is the message at ``message``, if anything.

    ``reason`` is ``fault`` (the stream broke), ``cancelled`` (the caller was), ``stopped`` (the caller left the
    stream) or ``crashed`` (the process ended, and somebody else says so).
    """

    call: int
    message: int | None = Field(default=None, exclude_if=is_none)
    reason: Literal["fault", "cancelled", "stopped", "crashed"]
    error: Failure | None = Field(default=None, exclude_if=is_none)


@event_type(
    "tool-started",
    headline="A tool was begun",
    sentence="began the tool call of version {message}, content {index}",
    sample={"message": 4, "index": 0},
)
class ToolStarted(Value):
    """The ``index``-th content of the message at ``message``, a function call, is carried out."""

    message: int
    index: int


@event_type(
    "tool-finished",
    headline="The tool was carried out",
    sentence="finished the tool call of version {message}, content {index} (result: version {result})",
    sample={"message": 4, "index": 0, "result": 6, "ms": 12},
)
class ToolFinished(Value):
    """The call was carried out, with the result in the message at ``result``."""

    message: int
    index: int
    result: int
    ms: int


@event_type(
    "tool-failed",
    headline="The tool was not carried out, or failed",
    sentence=event_sentences.tool_failed,
    sample={"message": 4, "index": 0, "result": 6, "reason": "raised"},
)
class ToolFailed(Value):
    """The call was not carried out, or failed; what the model is told is the message at ``result``.

    ``reason`` is ``raised``, ``timeout``, ``invalid-arguments``, ``unknown-tool``, ``rejected`` or ``stopped``.
    """

    message: int
    index: int
    result: int
    reason: str
    kind: str | None = Field(default=None, exclude_if=is_none)
    """The class of what was raised."""
    ms: int = 0


@event_type(
    "approval-requested",
    headline="An approval was asked for",
    sentence="asked for approval of the tool call of version {message}, content {index}",
    sample={"message": 4, "index": 0, "reason": "approval"},
)
class ApprovalRequested(Value):
    """The call waits for somebody's approval: before it is carried out, or because nobody knows whether it was."""

    message: int
    index: int
    reason: Literal["approval", "outcome-unknown"]


@event_type(
    "approval-given",
    headline="Somebody decided",
    sentence=event_sentences.approval_given,
    sample={"request": 5, "approved": True},
)
class ApprovalGiven(Value):
    """Somebody decided about the request at version ``request``."""

    request: int
    approved: bool
    reason: str | None = Field(default=None, exclude_if=is_none)


@event_type(
    "run-completed",
    headline="The run was completed",
    sentence="completed the run",
    sample={"finish_reason": "stop"},
)
class RunCompleted(Value):
    """The agent has answered."""

    finish_reason: str | None = Field(default=None, exclude_if=is_none)


@event_type(
    "run-failed",
    headline="The run failed",
    sentence=event_sentences.run_failed,
    sample={"error": {"kind": "ModelError"}},
)
class RunFailed(Value):
    """The run ended with an error; what it did before stands."""

    error: Failure


@event_type(
    "run-abandoned",
    headline="The run was given up",
    sentence="gave up the run",
    sample={"reason": "cancelled"},
)
class RunAbandoned(Value):
    """The run was given up.

    ``reason`` is ``cancelled``, ``stopped`` (by leaving its stream), ``crashed``, ``superseded`` (it waited, and
    another was to begin), ``redacted`` (with the calls that it was to carry out) or ``asked`` (by a rewind).
    """

    reason: str


@event_type(
    "service-thread-bound",
    headline="The service named its side of the thread",
    sentence="bound the thread to {kind} {id} of the service",
    sample={"id": "resp_1", "kind": "response"},
    statuses=ACTIVE,
)
class ServiceThreadBound(Value):
    """A service that holds the thread named its side of it."""

    id: str
    kind: ServiceKind


RunEvent: TypeAlias = (
    RunStarted
    | RunResumed
    | ModelCalled
    | ModelAnswered
    | ModelFailed
    | AnswerInterrupted
    | ToolStarted
    | ToolFinished
    | ToolFailed
    | ApprovalRequested
    | ApprovalGiven
    | RunCompleted
    | RunFailed
    | RunAbandoned
    | ServiceThreadBound
)

_REFERENCES = ("definitions", "call", "message", "result", "request", "before")

ValueT = TypeVar("ValueT", bound=Value)


def placed(event: ValueT, version: int) -> ValueT:
    """The event as it is at a version: a reference below 0 counts back from there.

    So a decision can name what is to be recorded with it before it is known where that will lie.
    """
    fields, changes = event.__dict__, {}
    for name in _REFERENCES:
        value = fields.get(name)
        if type(value) is int and value < 0:
            changes[name] = version + value
    return event.model_copy(update=changes) if changes else event
