"""Replies of a model service in Chat Completions, for the tests of `clew chat`."""

from __future__ import annotations

from typing import Any

from tests.servers.raw_server import STALL, Reply, stream, whole


def reply(*pieces: str) -> Reply:
    """An answer in these pieces, of nine tokens in and four out."""
    usage = {"id": "c1", "choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}}
    return stream(*(_chunk({"content": piece}) for piece in pieces), _chunk({}, "stop"), usage)


def unfinished(*pieces: str) -> Reply:
    """An answer that stalls after these pieces, until the client disconnects."""
    return stream(*(_chunk({"content": piece}) for piece in pieces), end=STALL)


def calling(name: str, arguments: str) -> Reply:
    """An answer that calls a function."""
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}
    return stream(_chunk({"tool_calls": [call]}), _chunk({}, "tool_calls"))


def unknown_model(name: str) -> Reply:
    """The error of a service for an unknown model."""
    return whole({"error": {"message": f"The model {name} does not exist", "code": "model_not_found"}}, status=404)


def _chunk(delta: Any, finish_reason: str | None = None) -> Any:
    return {"id": "c1", "model": "m-1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}
