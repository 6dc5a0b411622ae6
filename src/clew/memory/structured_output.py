"""Structured answers: a model is asked outside any thread, and must answer with a JSON object."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from clew.domain.json_values import JsonObject
from clew.domain.messages import Message, explain
from clew.domain.models.client import Answer, ModelClient, ModelRequest, Question, ResponseFormat
from clew.domain.runs.errors import AgentConfigurationError, AnswerFormatError, ModelStreamError
from clew.domain.runs.request_construction import request_bytes


def _close(schema: dict[str, Any]) -> None:
    """Require all properties of an object, and allow no others: strict answers take only such schemas."""
    properties = schema.get("properties", {})
    for each in properties.values():
        each.pop("default", None)
    schema["additionalProperties"] = False
    schema["required"] = list(properties)


MOST_ANSWER_CHARACTERS = 1_000_000
"""Characters of an answer; a longer one is an error."""


class Reply(BaseModel):
    """A JSON object that a model must answer with.

    The model is asked for exactly these fields. Additional fields are ignored, and missing ones take their default. The
    name of the class, without underscores around it, is the name of the format.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", json_schema_extra=_close)


ReplyT = TypeVar("ReplyT", bound=Reply)


def checked_client(owner: object, client: Any) -> None:
    """Raise AgentConfigurationError for anything but a model client."""
    if not callable(getattr(client, "ask", None)) or not isinstance(getattr(client, "model", None), str):
        raise AgentConfigurationError(
            f"{type(owner).__name__}: client: {type(client).__name__} is not a model client. "
            "Give OpenAIChatClient(model=…) or another client."
        )


async def ask(
    client: ModelClient, instructions: str, data: JsonObject, reply: type[ReplyT], *, model: str | None = None
) -> ReplyT:
    """Ask a model once, and return its reply. ``data`` is sent as JSON, so that the model takes it as data.

    The service is asked to store nothing. Raises ModelError, and AnswerFormatError if the answer is not such a reply.
    """
    model_name = model or client.model
    wire = client.wire
    question = Question(
        model=model_name,
        messages=(Message.user(json.dumps(data, ensure_ascii=False)),),
        instructions=instructions,
        response_format=ResponseFormat(name=reply.__name__.strip("_").lower(), json_schema=reply.model_json_schema()),
        options=wire.unstored(client.options),
    )
    answer: Answer | None = None
    body = wire.make_body(question)
    async for update in client.ask(ModelRequest(body, request_bytes(body), streams=False, model=model_name)):
        if isinstance(update, Answer):
            answer = update
    if answer is None:
        raise ModelStreamError(f"The model {model_name!r} ended without an answer. Run again.", retryable=True)
    return _read(answer.message.text, reply, model_name)


def _read(text: str, reply: type[ReplyT], model: str) -> ReplyT:
    """The reply in a text, which may have reasoning before it and words or a code fence around it."""
    if len(text) > MOST_ANSWER_CHARACTERS:
        raise AnswerFormatError(
            f"The model {model!r} answered with {len(text):,} characters, and {MOST_ANSWER_CHARACTERS:,} are read "
            "at most. It was not used.",
            text[:MOST_ANSWER_CHARACTERS],
        )
    answer = text.rpartition("</think>")[2]
    document = answer[answer.find("{") : answer.rfind("}") + 1]
    try:
        return reply.model_validate_json(document)
    except ValidationError as error:
        fields = ", ".join(reply.model_fields)
        raise AnswerFormatError(
            f"The model {model!r} was asked for a JSON object with {fields}, and answered something else. "
            f"{explain('It', error)} It was not used.",
            text,
        ) from None
