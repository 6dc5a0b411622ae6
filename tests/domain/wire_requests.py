"""Requests to send in tests."""

from __future__ import annotations

from clew.domain.json_values import JsonObject
from clew.domain.models.client import ModelClient, ModelRequest
from clew.domain.runs.request_construction import as_sent, request_bytes


def to_send(client: ModelClient, body: JsonObject, *, streams: bool) -> ModelRequest:
    """The request that a run would send for a body."""
    return as_sent(client.wire, body, request_bytes(body), streams=streams)
