"""Requests to model services as what goes over the wire: from a question, without a client, always the same bytes."""

from __future__ import annotations

import json

from clew.domain.chat_requests import chat_body
from clew.domain.json_values import JsonObject
from clew.domain.model_client import Question, Wire
from clew.domain.responses_requests import responses_body


def request_body(wire: Wire, question: Question) -> JsonObject:
    """The body of the request that asks ``question``; ``streamed`` gives the one that asks for a stream."""
    return chat_body(question) if wire == "openai-chat" else responses_body(question)


def streamed(wire: Wire, body: JsonObject) -> JsonObject:
    """A body that asks for the answer piece by piece, and for its usage at the end."""
    asked: JsonObject = {**body, "stream": True}
    if wire == "openai-chat":
        options = body.get("stream_options")
        asked["stream_options"] = {**(options if isinstance(options, dict) else {}), "include_usage": True}
    return asked


def request_bytes(body: JsonObject) -> bytes:
    """The bytes of a body as the ``openai`` package sends them: JSON without spaces, in UTF-8."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
