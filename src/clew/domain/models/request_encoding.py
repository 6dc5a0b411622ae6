"""Requests to model services as what goes over the wire: from a question, without a client, always the same bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from clew.domain.json_values import JsonObject, check_json
from clew.domain.models.chat_requests import chat_body
from clew.domain.models.client import Question, Wire
from clew.domain.models.responses_requests import responses_body
from clew.domain.runs.errors import AgentConfigurationError

_OURS = frozenset({"model", "messages", "input", "stream", "previous_response_id", "conversation"})
"""What a question says, and so no option may."""

_NOT_SENT = frozenset({"api_key", "extra_body", "extra_headers", "extra_query", "timeout"})
"""What a client is told, and is no part of a request's body. Some of it is secret, and options are recorded."""


def checked_options(options: Mapping[str, Any] | None) -> JsonObject:
    """Options that go into the bodies of requests, and onto the log.

    Raises AgentConfigurationError for what is no such option, and InvalidContentError for what is no JSON.
    """
    checked: JsonObject = dict(options or {})
    check_json(checked, "options")
    if said := sorted(_OURS & set(checked)):
        raise AgentConfigurationError(f"options has {', '.join(said)}, which a run says itself. Leave it out.")
    if told := sorted(_NOT_SENT & set(checked)):
        raise AgentConfigurationError(
            f"options has {', '.join(told)}. Options are what goes into a request's body, by its own name, and are "
            "recorded: say the rest to the client, as in client=AsyncOpenAI(default_headers=…)."
        )
    return checked


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
