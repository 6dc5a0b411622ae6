"""The wire format of requests to model services: the same question gives the same bytes, without a client."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from clew.domain.json_values import JsonObject, check_json
from clew.domain.models.chat_requests import chat_body
from clew.domain.models.client import Question, WireFormat
from clew.domain.models.responses_requests import responses_body
from clew.domain.runs.errors import AgentConfigurationError

_SET_BY_RUN = frozenset({"model", "messages", "input", "stream", "previous_response_id", "conversation"})
"""Fields that the question sets, so options must not."""

_NOT_SENT = frozenset({"api_key", "extra_body", "extra_headers", "extra_query", "timeout"})
"""Settings of the client, not fields of the body. Some are secret, and options are recorded."""


def checked_options(options: Mapping[str, Any] | None) -> JsonObject:
    """The options, which go into the bodies of requests and are recorded in the log.

    Raises AgentConfigurationError for names that are not options, and InvalidContentError for values that are not JSON.
    """
    checked: JsonObject = dict(options or {})
    check_json(checked, "options")
    if set_by_run := sorted(_SET_BY_RUN & set(checked)):
        raise AgentConfigurationError(f"options has {', '.join(set_by_run)}, which the run sets itself. Leave it out.")
    if client_settings := sorted(_NOT_SENT & set(checked)):
        raise AgentConfigurationError(
            f"options has {', '.join(client_settings)}. Options are fields of a request's body, and are "
            "recorded. Set the others on the client, as in client=AsyncOpenAI(default_headers=…)."
        )
    return checked


def request_body(wire: WireFormat, question: Question) -> JsonObject:
    """The body of the request for a question; see ``streamed`` for one that requests a stream."""
    return chat_body(question) if wire == "openai-chat" else responses_body(question)


def streamed(wire: WireFormat, body: JsonObject) -> JsonObject:
    """The body that requests a stream, with the usage at its end."""
    sent: JsonObject = {**body, "stream": True}
    if wire == "openai-chat":
        options = body.get("stream_options")
        sent["stream_options"] = {**(options if isinstance(options, dict) else {}), "include_usage": True}
    return sent


def request_bytes(body: JsonObject) -> bytes:
    """The bytes of a body as the ``openai`` package sends them: JSON without spaces, in UTF-8."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
