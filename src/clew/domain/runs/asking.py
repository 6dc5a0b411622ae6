"""What a model is asked: a function of the call, the definitions and the history, now and whenever it is rebuilt."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from clew.domain.chain import digest
from clew.domain.history import HistoryMessage
from clew.domain.json_values import JsonObject
from clew.domain.messages import Message
from clew.domain.models.client import Question, Wire
from clew.domain.models.requests import request_body, request_bytes, streamed
from clew.domain.runs.definitions import Definitions
from clew.domain.runs.events import ModelCalled, ServiceCall
from clew.domain.view import ModelView, model_view


@dataclass(frozen=True, slots=True)
class Request:
    """The request of a model call, rebuilt from the log.

    ``version`` is that of the call. ``body`` is what was sent, as JSON values, and ``content`` as bytes. ``digest`` is
    the one on the log, in hex; ``verified`` says whether what was rebuilt has it. It does not when a message that was
    sent has been redacted since: ``redacted`` are the versions of those.
    """

    version: int
    client: str
    wire: Wire
    model: str
    body: JsonObject
    content: bytes
    digest: str
    verified: bool
    redacted: tuple[int, ...] = ()


def question_of(call: ModelCalled, definitions: Definitions, history: Iterable[HistoryMessage]) -> Question:
    """What a model is asked, in no provider's words; ``history`` is the path at the call."""
    return Question(
        model=call.model,
        messages=unsent(model_view(history), call.service),
        instructions=definitions.instructions,
        tools=definitions.tools,
        response_format=definitions.response_format,
        options=call.options,
        service=None if call.service is None else call.service.reference,
    )


def body_digest(body: JsonObject) -> str:
    """The SHA-256 of a body as bytes, in hex."""
    return digest(request_bytes(body)).hex()


def rebuilt(version: int, call: ModelCalled, definitions: Definitions, history: Iterable[HistoryMessage]) -> Request:
    """The request of the model call at a version."""
    said = list(history)
    body = request_body(call.wire, question_of(call, definitions, said))
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


def unsent(view: ModelView, service: ServiceCall | None) -> tuple[Message, ...]:
    """What of a view goes into a request: all of it, or what the service that holds the thread has not had.

    It has had what was there when it was called, and it has its answer; but not what came of the calls in that, nor
    that nothing did.
    """
    if service is None:
        return view.messages
    return tuple(
        message
        for version, message in zip(view.versions, view.messages, strict=True)
        if version > service.sent and (version != service.answer or message.role == "tool")
    )


def _is_sent(version: int, service: ServiceCall | None) -> bool:
    return service is None or (version > service.sent and version != service.answer)
