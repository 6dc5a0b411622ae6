"""Requests to send in tests."""

from __future__ import annotations

from clew.domain.json_values import JsonObject
from clew.domain.models.client import ModelClient, ModelRequest
from clew.domain.runs.request_construction import request_bytes, stream_request


def to_send(client: ModelClient, body: JsonObject, *, streams: bool) -> ModelRequest:
    """The request that a run would send for a body."""
    content = request_bytes(body)
    if streams:
        return stream_request(client.wire, body, content, client.model)
    return ModelRequest(body, content, streams=False, model=client.model)
