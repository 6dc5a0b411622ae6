"""Requests to agents on Amazon Bedrock AgentCore (InvokeAgentRuntime), and their answers.

What such an agent takes and gives is its own: JSON, or server-sent events. Options say which fields have the texts:
https://docs.aws.amazon.com/bedrock-agentcore/latest/APIReference/API_InvokeAgentRuntime.html.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import quote

from clew.domain.json_values import Json, JsonObject, storable
from clew.domain.messages import Message, Text
from clew.domain.models.bedrock_agents import ENDED, RECEIVED, input_text
from clew.domain.models.chat_answers import as_object, as_objects, as_text
from clew.domain.models.client import (
    Answer,
    ModelRequest,
    Question,
    ServiceBound,
    TextDelta,
    Update,
    WireFormat,
    joined,
)
from clew.domain.models.native import with_native

WIRE = "bedrock-agentcore"

FIELDS = {"prompt_field": "prompt", "answer_field": "result", "text_field": "data"}
"""The options with the names of fields, and their defaults: of the payload, of a whole answer, and of an event."""


def agentcore_body(question: Question) -> JsonObject:
    """The payload: the text of all new messages, and the other options."""
    options = question.options or {}
    fields = {name: each for name, each in options.items() if name not in FIELDS}
    return {**fields, as_text(options.get("prompt_field")) or FIELDS["prompt_field"]: input_text(question, WIRE)}


def agentcore_path(model: str, streams: bool) -> str:  # noqa: FBT001  # the parameters of every format's function
    """The path of a request to an agent, by its ARN."""
    del streams
    return f"/runtimes/{quote(model, safe='')}/invocations"


AGENTCORE = WireFormat(
    name=WIRE,
    make_body=agentcore_body,
    make_path=agentcore_path,
    sends_media=lambda _, __, ___: False,
    has_tasks=True,
)
"""Agents on Amazon Bedrock AgentCore."""


class AgentCoreAnswer:
    """Assembles an answer from whole JSON, or from events."""

    def __init__(self, request: ModelRequest, options: JsonObject) -> None:
        self.begun = False
        self.failure: Json = None
        self.received = False
        self._request = request
        self._fields = {name: as_text(options.get(name)) or default for name, default in FIELDS.items()}
        self._texts: list[str] = []
        self._others: list[Json] = []
        self._ended = False

    def take(self, event: JsonObject) -> Iterator[Update]:
        """Read an event: its JSON is in the field ``event``."""
        service, task = self._request.service, self._request.task
        if RECEIVED in event:
            self.received = True
            if service is not None and task is not None:
                yield ServiceBound(service, task.message_id)
        elif ENDED in event:
            self._ended = True
        else:
            yield from self._piece(event.get("event"))

    def take_whole(self, body: JsonObject) -> Iterator[Update]:
        """Read a whole answer: its JSON is in the field ``whole``."""
        value, self._ended = body.get("whole"), True
        text = _words(as_object(value).get(self._fields["answer_field"])) or _words(value)
        if not isinstance(value, str):
            self._others.append(storable(value))
        yield from self._text(text or json.dumps(storable(value), ensure_ascii=False))

    def answer(self) -> Answer | None:
        """The answer; None until the agent has closed it. One without a text is not complete."""
        if not self._ended or not self._texts:
            return None
        message = Message(role="assistant", contents=(Text(text=joined(self._texts)),))
        reply: JsonObject = {"events": self._others} if self._others else {}
        task = self._request.task
        return Answer(
            with_native(message, WIRE, {}, {}, reply=reply, kept=True),
            finish_reason="stop",
            response_id=None if task is None else task.message_id,
        )

    def _piece(self, value: Json) -> Iterator[Update]:
        if isinstance(value, str):
            yield from self._text(value)
            return
        event = as_object(value)
        if (error := event.get("error")) is not None:
            self.failure = {"message": as_text(error) or as_text(event.get("message"))}
            return
        text = event.get(self._fields["text_field"])
        if isinstance(text, str):
            yield from self._text(text)
        else:
            self._others.append(storable(value))

    def _text(self, text: str) -> Iterator[Update]:
        if text:
            self.begun = True
            self._texts.append(text)
            yield TextDelta(text)


def _words(value: Json) -> str:
    """A text, or the texts of a message with contents."""
    if isinstance(value, str):
        return value
    return "".join(as_text(each.get("text")) for each in as_objects(as_object(value).get("content")))
