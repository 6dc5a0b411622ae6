"""The events of a run: an agent records one for each step.

They refer to messages, calls and requests by version and do not repeat their contents.
"""

from __future__ import annotations

from functools import partial
from operator import eq, not_
from typing import Literal, TypeAlias, TypeVar

from pydantic import Field

from clew.domain import event_sentences
from clew.domain.event_types import ACTIVE, event_type, without
from clew.domain.json_values import Json, JsonObject
from clew.domain.messages import Value, is_none
from clew.domain.models.client import RemoteTask, ServiceKind, ServiceReference, TokenUsage
from clew.domain.models.prices import Cost

ValueT = TypeVar("ValueT", bound=Value)

is_one = partial(eq, 1)
"""Whether a field is 1, for ``exclude_if``."""


class AgentIdentity(Value):
    """The agent of a run. ``id`` is the same in every process; ``type`` is the name of the agent's class."""

    id: str
    name: str | None = None
    type: str = "Agent"


class Fingerprint(Value):
    """An agent's configuration: the kind of its client, and the SHA-256, in hex, of each of its definitions.

    The definitions themselves are stored as blobs with these digests, not in events.
    """

    client: str
    instructions: str | None = Field(default=None, exclude_if=is_none)
    tools: tuple[str, ...] = ()
    run_tools: tuple[str, ...] = Field(default=(), exclude_if=not_)
    """The tools of this run only."""
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
    """An error: its class, and what a model service reported."""

    kind: str
    message: str | None = Field(default=None, exclude_if=is_none)
    status: int | None = Field(default=None, exclude_if=is_none)
    code: str | None = Field(default=None, exclude_if=is_none)


def without_quotes(data: ValueT) -> ValueT:
    """The data of an event with an ``error``, without what the service reported: it may quote a message."""
    error: Failure | None = data.__dict__["error"]
    if error is None:
        return data
    return data.model_copy(update={"error": Failure(kind=error.kind, status=error.status)})


class Caller(Value):
    """The function call whose tool began a run: the ``index``-th content of the message at ``message`` of a thread."""

    thread_id: str
    run_id: str
    message: int
    index: int


class HandedFrom(Value):
    """The run of another agent that handed the conversation over.

    ``since`` is the version at which the first of such runs began, and ``rounds`` the number of model calls of all of
    them.
    """

    run_id: str
    since: int
    rounds: int = 0


@event_type(
    "run-started",
    headline="A run began",
    sentence=event_sentences.run_started,
    sample={"agent": {"id": "joker"}, "fingerprint": {"client": "scripted"}},
)
class RunStarted(Value):
    """An agent began a run. Its input messages follow in the same commit.

    Next to the agent's own context providers, ``providers`` are the ids of the thread's, and ``run_providers`` the ids
    of those for this run only. ``missing`` are the ids of providers that the thread used before and that are missing
    now. ``caller`` is set for a run that a tool of another run began, and ``handed_from`` for one that continues the
    conversation of another agent's run.
    """

    agent: AgentIdentity
    fingerprint: Fingerprint
    providers: tuple[str, ...] = Field(default=(), exclude_if=not_)
    run_providers: tuple[str, ...] = Field(default=(), exclude_if=not_)
    missing: tuple[str, ...] = Field(default=(), exclude_if=not_)
    caller: Caller | None = Field(default=None, exclude_if=is_none)
    handed_from: HandedFrom | None = Field(default=None, exclude_if=is_none)


@event_type(
    "run-resumed",
    headline="The run was resumed",
    sentence=event_sentences.run_resumed,
    sample={"attempt": 2, "agent": {"id": "joker"}, "fingerprint": {"client": "scripted"}},
)
class RunResumed(Value):
    """A run that had stopped continues; ``attempt`` counts from 2."""

    attempt: int
    agent: AgentIdentity
    fingerprint: Fingerprint


class ServiceCall(Value):
    """The part of the history that a service already had when it was called.

    ``reference`` is the response or conversation that the request continues, None for the first request. The service
    had all messages up to the call at version ``sent``, and its own answer, the message at version ``answer``. ``task``
    is what the request says of the tasks of a remote agent, None for other services.
    """

    reference: ServiceReference | None = None
    sent: int = 0
    answer: int = 0
    task: RemoteTask | None = Field(default=None, exclude_if=is_none)


@event_type(
    "model-called",
    headline="A model was called",
    sentence=event_sentences.model_called,
    sample={"definitions": 2, "client": "scripted", "wire": "openai-chat", "model": "m", "digest": "ab" * 32},
)
class ModelCalled(Value):
    """A model is called. The request can be rebuilt from this event, the history and the definitions.

    ``definitions`` is the version of the event with the fingerprint. ``digest`` is the SHA-256, in hex, of the body as
    the log determines it: before middleware changes it, and without the fields that request a stream. ``as_sent`` is
    that of the bytes that were sent; None in logs from before it was recorded. ``streamed`` is True if a stream was
    requested. ``changes`` is the number of ``request-changed`` events that follow.

    ``provider`` is the service, as the client names it. ``prefix`` is the SHA-256, in hex, of what the model reads of
    the request: system, tools and messages; signed parts of the answer are bound to it. It is None in logs from before
    it was recorded, and for formats that do not name their fields. ``left_out`` are the numbers of the messages of the
    request, from 0, whose signed parts were not sent: another model made them, or what came before them is another.
    """

    definitions: int
    client: str
    wire: str
    """The name of the format of the request."""
    model: str
    options: JsonObject = Field(default_factory=dict)
    digest: str
    service: ServiceCall | None = Field(default=None, exclude_if=is_none)
    streamed: bool = False
    attempt: int = 1
    """The number of this attempt, from 1. A temporary error leads to another attempt."""
    as_sent: str | None = Field(default=None, exclude_if=is_none)
    changes: int = Field(default=0, exclude_if=not_)
    provider: str | None = Field(default=None, exclude_if=is_none)
    prefix: str | None = Field(default=None, exclude_if=is_none)
    left_out: tuple[int, ...] = Field(default=(), exclude_if=not_)
    late: tuple[int, ...] | None = Field(default=None, exclude_if=is_none)
    """The versions of the ``context-provided`` events that are in the request at their own places, oldest first.

    They are also those of earlier runs. None if the agent's instructions contain what providers gave to the run.
    """
    edition: int = Field(default=1, exclude_if=partial(eq, 1))
    """By which rules the format writes the request. Each is kept, so that an old request gets its old bytes."""
    disabled: tuple[str, ...] = Field(default=(), exclude_if=not_)
    """The names of the tools of the run that the request does not offer, because they were not enabled."""


@event_type(
    "request-changed",
    headline="Middleware changed the request",
    sentence="changed the request of version {call} ({by})",
    sample={"call": 3, "by": "Redactor", "patch": [{"op": "replace", "path": "/model", "value": "m-2"}]},
    remains=without("patch"),
)
class RequestChanged(Value):
    """Middleware changed the request of the model call at version ``call`` before it was sent.

    ``by`` is the class of the middleware, and ``patch`` what it changed, as operations of RFC 6902.
    """

    call: int
    by: str
    patch: tuple[JsonObject, ...] = ()


@event_type(
    "request-withheld",
    headline="Middleware did not send the request",
    sentence="did not send the request of version {call} ({by})",
    sample={"call": 3, "by": "Cache"},
)
class RequestWithheld(Value):
    """The request of the model call at version ``call`` was not sent: the middleware ``by`` did not proceed."""

    call: int
    by: str


@event_type(
    "model-answered",
    headline="The model answered",
    sentence=event_sentences.model_answered,
    sample={"call": 3, "message": 4, "ms": 830},
)
class ModelAnswered(Value):
    """The model has answered ``call`` with the message at version ``message``. Times are in milliseconds.

    ``answered_by`` names the middleware that gave this answer instead of the model; None if the model gave it. Then
    ``sent`` says whether the service has received the request, None if that is not known.
    ``cost`` is by the price list of that time; None if it had no price, or there was no list.
    """

    call: int
    message: int
    finish_reason: str | None = Field(default=None, exclude_if=is_none)
    usage: TokenUsage | None = Field(default=None, exclude_if=is_none)
    model: str | None = Field(default=None, exclude_if=is_none)
    response_id: str | None = Field(default=None, exclude_if=is_none)
    first_ms: int | None = Field(default=None, exclude_if=is_none)
    """Time to the first piece of the answer; None if it was not streamed."""
    ms: int
    answered_by: str | None = Field(default=None, exclude_if=is_none)
    cost: Cost | None = Field(default=None, exclude_if=is_none)
    sent: bool | None = Field(default=None, exclude_if=is_none)


@event_type(
    "model-failed",
    headline="The model did not answer",
    sentence=event_sentences.model_failed,
    sample={"call": 3, "error": {"kind": "ModelOverloadedError"}, "ms": 1},
    remains=without_quotes,
)
class ModelFailed(Value):
    """The model did not answer ``call``. With ``retry_in`` it is called again after that many seconds.

    ``sent`` says whether the service has received the request: False if it could not be reached, or nothing could be
    sent. None if that is not known.
    """

    call: int
    error: Failure
    retry_in: float | None = Field(default=None, exclude_if=is_none)
    ms: int
    sent: bool | None = Field(default=None, exclude_if=is_none)


@event_type(
    "answer-interrupted",
    headline="The answer was interrupted",
    sentence=event_sentences.answer_interrupted,
    sample={"call": 3, "reason": "crashed"},
    remains=without_quotes,
)
class AnswerInterrupted(Value):
    """The answer to ``call`` was cut off. The part that arrived is the message at ``message``, None if there is none.

    ``reason`` is ``fault`` (the stream broke), ``cancelled`` (the caller was cancelled), ``stopped`` (the caller left
    the stream) or ``crashed`` (the process ended, and another process recorded this event). ``sent`` says whether the
    service has received the request; None if that is not known.
    """

    call: int
    message: int | None = Field(default=None, exclude_if=is_none)
    reason: Literal["fault", "cancelled", "stopped", "crashed"]
    error: Failure | None = Field(default=None, exclude_if=is_none)
    sent: bool | None = Field(default=None, exclude_if=is_none)


def was_sent(ended: RequestWithheld | ModelAnswered | ModelFailed | AnswerInterrupted) -> bool | None:
    """Whether the service has received the request of a call, from the event that ends it; None if it is not known."""
    match ended:
        case RequestWithheld():
            return False
        case ModelAnswered(answered_by=None):
            return True
        case AnswerInterrupted(message=int()) | ModelFailed(error=Failure(status=int())):
            return True
        case _:
            return ended.sent


class GivenBy(Value):
    """Who gave a standing approval, with the decision on which request; ``thread_id`` is None for the same thread."""

    actor: str | None = Field(default=None, exclude_if=is_none)
    request: int
    thread_id: str | None = Field(default=None, exclude_if=is_none)


@event_type(
    "tool-started",
    headline="A tool call was started",
    sentence=event_sentences.tool_started,
    sample={"message": 4, "index": 0},
)
class ToolStarted(Value):
    """The execution of a function call begins: the ``index``-th content of the message at ``message``.

    ``standing`` says which standing approval let it begin; None if it needed none, or was approved itself.
    """

    message: int
    index: int
    standing: GivenBy | None = Field(default=None, exclude_if=is_none)


@event_type(
    "child-thread",
    headline="The tool call got a thread of its own",
    sentence=event_sentences.child_thread,
    sample={"message": 4, "index": 0, "thread_id": "child"},
)
class ChildThread(Value):
    """The function call runs an agent on another thread. That thread begins with the run."""

    message: int
    index: int
    thread_id: str


@event_type(
    "tool-progressed",
    headline="The tool call reported its progress",
    sentence=event_sentences.tool_progressed,
    sample={"message": 4, "index": 0, "text": "half", "fraction": 0.5},
    remains=without("text", "data"),
)
class ToolProgressed(Value):
    """The function of a call reported how far it has come. Not every report is recorded.

    ``fraction`` is the finished part of the work, from 0 to 1, and ``data`` the tool's own JSON.
    """

    message: int
    index: int
    text: str = ""
    fraction: float | None = Field(default=None, exclude_if=is_none)
    data: Json = Field(default=None, exclude_if=is_none)


@event_type(
    "tool-finished",
    headline="The tool call finished",
    sentence="finished the tool call of version {message}, content {index} (result: version {result})",
    sample={"message": 4, "index": 0, "result": 6, "ms": 12},
)
class ToolFinished(Value):
    """The function call has a result, in the message at ``result``.

    ``usage`` are the tokens of the runs of agents on the call's own thread, and ``cost`` what they cost, None if that
    is not known. They are counted there, too. ``attempts`` is how often the function was called.
    """

    message: int
    index: int
    result: int
    ms: int
    usage: TokenUsage | None = Field(default=None, exclude_if=is_none)
    attempts: int = Field(default=1, exclude_if=is_one)
    cost: Cost | None = Field(default=None, exclude_if=is_none)


@event_type(
    "tool-failed",
    headline="The tool call failed or was refused",
    sentence=event_sentences.tool_failed,
    sample={"message": 4, "index": 0, "result": 6, "reason": "raised"},
)
class ToolFailed(Value):
    """The function call failed or was not executed. The message at ``result`` reports this to the model.

    ``reason`` is ``raised``, ``timeout``, ``invalid-arguments``, ``unknown-tool``, ``rejected``, ``stopped``,
    ``changed`` (the tool of an approved call is another one now), or ``limit`` (the run has called it as often as it
    may, or it has failed as often as it may).
    """

    message: int
    index: int
    result: int
    reason: str
    kind: str | None = Field(default=None, exclude_if=is_none)
    """The class of the exception."""
    ms: int = 0
    usage: TokenUsage | None = Field(default=None, exclude_if=is_none)
    """As in ToolFinished."""
    attempts: int = Field(default=1, exclude_if=is_one)
    cost: Cost | None = Field(default=None, exclude_if=is_none)


@event_type(
    "handed-off",
    headline="The conversation was handed to another agent",
    sentence=event_sentences.handed_off,
    sample={"message": 4, "index": 0, "agent": {"id": "refunds"}},
    remains=without("reason"),
)
class HandedOff(Value):
    """The function call hands the conversation to another agent, for a reason that the model gave.

    When all calls of the answer are over, the run is completed, and a run of that agent begins in the same commit.
    """

    message: int
    index: int
    agent: AgentIdentity
    reason: str = Field(default="", exclude_if=not_)


@event_type(
    "approval-requested",
    headline="An approval was requested",
    sentence="asked for approval of the tool call of version {message}, content {index}",
    sample={"message": 4, "index": 0, "reason": "approval"},
)
class ApprovalRequested(Value):
    """The function call needs an approval, before it is executed or because it is unknown whether it was executed.

    With the reason ``child``, the agent that the call runs waits for an approval on its own thread. When that is given,
    this request is approved with it. ``tool`` is the SHA-256, in hex, of the tool's schema.
    """

    message: int
    index: int
    reason: Literal["approval", "outcome-unknown", "child"]
    tool: str | None = Field(default=None, exclude_if=is_none)


@event_type(
    "approval-given",
    headline="The request was approved or rejected",
    sentence=event_sentences.approval_given,
    sample={"request": 5, "approved": True},
    remains=without("reason"),
)
class ApprovalGiven(Value):
    """The request at version ``request`` was approved or rejected.

    ``always`` says that the approval also holds for later calls of the tool in the thread.
    """

    request: int
    approved: bool
    reason: str | None = Field(default=None, exclude_if=is_none)
    always: bool = Field(default=False, exclude_if=not_)


GuardrailStage: TypeAlias = Literal["before", "beside", "after"]
"""When a guardrail checks: before the first model call, beside it, or after each answer."""


@event_type(
    "guardrail-tripped",
    headline="A guardrail stopped the run",
    sentence="stopped the run ({guardrail}, {stage} the model)",
    sample={"guardrail": "no_cards", "stage": "before", "reason": "a card number"},
    remains=without("reason"),
)
class GuardrailTripped(Value):
    """A guardrail stopped the run, for a reason.

    A rewind after the end of the run removes from the history what was stopped.
    """

    guardrail: str
    stage: GuardrailStage
    reason: str = ""


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
    remains=without_quotes,
)
class RunFailed(Value):
    """The run ended with an error. Everything recorded before stays valid."""

    error: Failure


@event_type(
    "run-abandoned",
    headline="The run was abandoned",
    sentence="gave up the run",
    sample={"reason": "cancelled"},
)
class RunAbandoned(Value):
    """The run was abandoned.

    ``reason`` is ``cancelled``, ``stopped`` (the caller left its stream), ``crashed``, ``superseded`` (it waited for an
    approval when another run began), ``redacted`` (its pending calls were redacted) or ``asked`` (by a rewind).
    """

    reason: str


@event_type(
    "service-thread-bound",
    headline="The service sent its id of the thread",
    sentence="bound the thread to {kind} {id} of the service",
    sample={"id": "resp_1", "kind": "response"},
    statuses=ACTIVE,
)
class ServiceThreadBound(Value):
    """The service that holds the thread has sent its id of the conversation or response.

    ``task`` is the id of the task with which a remote agent answers the call, None for other services.
    """

    id: str
    kind: ServiceKind
    task: str | None = Field(default=None, exclude_if=is_none)


RunEvent: TypeAlias = (
    RunStarted
    | RunResumed
    | ModelCalled
    | RequestChanged
    | RequestWithheld
    | ModelAnswered
    | ModelFailed
    | AnswerInterrupted
    | ToolStarted
    | ChildThread
    | ToolProgressed
    | ToolFinished
    | ToolFailed
    | HandedOff
    | ApprovalRequested
    | ApprovalGiven
    | GuardrailTripped
    | RunCompleted
    | RunFailed
    | RunAbandoned
    | ServiceThreadBound
)

QUOTING = frozenset(
    {
        *("model-failed", "answer-interrupted", "run-failed", "context-failed", "request-changed", "guardrail-tripped"),
        *("tool-progressed", "handed-off"),
    }
)
"""The types of events that may quote a message: those with an error or a reason, changes of requests, and progress."""

REFERENCES = ("definitions", "call", "message", "result", "request", "before")
"""The fields of steps of runs that name versions of their thread."""


def placed(event: ValueT, version: int) -> ValueT:
    """The event at a version. A reference below 0 counts back from this version.

    So an event can refer to another event of the same commit before their versions are known.
    """
    fields = event.__dict__
    changes: dict[str, object] = {}
    for name in REFERENCES:
        value = fields.get(name)
        if type(value) is int and value < 0:
            changes[name] = version + value
    if fields.get("late"):
        changes["late"] = tuple(version + each if each < 0 else each for each in fields["late"])
    return event.model_copy(update=changes) if changes else event
