"""Requests to models: a pure function of the call, the definitions and the history, so that they can be rebuilt."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from clew.domain.context.contributions import NO_CONTRIBUTIONS, Contributions
from clew.domain.context.events import HistoryReduced
from clew.domain.history import HistoryMessage
from clew.domain.json_values import JsonObject
from clew.domain.messages import Message
from clew.domain.model_view import ModelView, model_view
from clew.domain.models.client import Question, WireFormat
from clew.domain.models.request_encoding import request_body, request_bytes, streamed
from clew.domain.reducers.history_reduction import reduced
from clew.domain.runs.definitions import Definitions
from clew.domain.runs.events import ModelCalled, ServiceCall
from clew.domain.streams import digest


@dataclass(frozen=True, slots=True)
class Request:
    """The request of a model call, rebuilt from the log.

    ``version`` is the version of the call. ``body`` is the request as JSON values, ``content`` as bytes. ``digest`` is
    the one on the log, in hex; ``verified`` says whether the rebuilt request has it. It does not if a message in it was
    redacted since; ``redacted`` are the versions of such messages.
    """

    version: int
    client: str
    wire: WireFormat
    model: str
    body: JsonObject
    content: bytes
    digest: str
    verified: bool
    redacted: tuple[int, ...] = ()


def question_of(
    call: ModelCalled,
    definitions: Definitions,
    history: Iterable[HistoryMessage],
    given: Contributions = NO_CONTRIBUTIONS,
    reduction: HistoryReduced | None = None,
) -> Question:
    """The request to a model, in no provider's format.

    ``history`` is the path at the call, ``given`` what context providers gave to the run, ``reduction`` the current
    reduction of the history, None for all of it.
    """
    remote = call.service is not None
    said = unsent(model_view(history if reduction is None else reduced(history, reduction, 0)), call.service)
    return Question(
        model=call.model,
        messages=tuple(message for _, message in said) if remote else given.messages(said),
        instructions=given.instructions(definitions.instructions, with_messages=remote),
        tools=(*definitions.tools, *given.tools),
        response_format=definitions.response_format,
        options=call.options,
        service=None if call.service is None else call.service.reference,
    )


def body_digest(body: JsonObject) -> str:
    """The SHA-256 of a body as bytes, in hex."""
    return digest(request_bytes(body)).hex()


def rebuilt(
    version: int,
    call: ModelCalled,
    definitions: Definitions,
    history: Iterable[HistoryMessage],
    given: Contributions = NO_CONTRIBUTIONS,
    reduction: HistoryReduced | None = None,
) -> Request:
    """The request of the model call at a version."""
    said = list(history)
    body = request_body(call.wire, question_of(call, definitions, said, given, reduction))
    found = body_digest(body)
    sent = streamed(call.wire, body) if call.streamed else body
    return Request(
        version=version,
        client=call.client,
        wire=call.wire,
        model=call.model,
        body=sent,
        content=request_bytes(sent),
        digest=call.digest,
        verified=found == call.digest,
        redacted=tuple(each.version for each in said if each.redacted and _is_sent(each.version, call.service)),
    )


def unsent(view: ModelView, service: ServiceCall | None) -> list[tuple[int, Message]]:
    """The messages of a view that go into a request, with their versions.

    For a remote thread these are the messages that the service does not have. It has those up to its last call, and its
    own answer, but not the results of the calls in that answer.
    """
    said = list(zip(view.versions, view.messages, strict=True))
    if service is None:
        return said
    return [
        (version, message)
        for version, message in said
        if version > service.sent and (version != service.answer or message.role == "tool")
    ]


def _is_sent(version: int, service: ServiceCall | None) -> bool:
    return service is None or (version > service.sent and version != service.answer)
