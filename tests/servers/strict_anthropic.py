"""A server with the strict rules of Anthropic's Messages: signed thinking, paired tool results, required fields.

It speaks the API as Anthropic, Bedrock and Vertex do, and answers each turn with ``rounds`` tool calls, each with
thinking before it, and then with a text. A signature is bound to the request before it, as the service documents it
for its newest models.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from typing import Any
from urllib.parse import unquote

from tests.servers.strict_bedrock import frame
from tests.servers.strict_server import RecordingServer


class RefusedError(Exception):
    """A rule was broken."""


class StrictAnthropic(RecordingServer):
    """Answers with that many ``rounds`` of calls before each text."""

    base = ""

    def reply(self, path: str, content: bytes) -> tuple[int, str, bytes]:
        body = json.loads(content)
        try:
            path, body, framed = _as_anthropics(path, body)
            check(path, body)
        except RefusedError as refused:
            self.refused.append(str(refused))
            error = {"type": "error", "error": {"type": "invalid_request_error", "message": str(refused)}}
            return 400, "application/json", json.dumps(error).encode()
        message = self._message(body)
        if framed:
            return 200, "application/vnd.amazon.eventstream", b"".join(frames(message))
        if body.get("stream"):
            return 200, "text/event-stream", b"".join(events(message))
        return 200, "application/json", json.dumps(message).encode()

    def _message(self, body: Any) -> Any:
        done = 0
        for message in reversed(body["messages"]):
            if message["role"] == "user":
                if not any(block["type"] == "tool_result" for block in message["content"]):
                    break
                done += 1
        number = len(self.requests)
        thinking = {
            "type": "thinking",
            "thinking": f"Thought {number}.",
            "signature": signature(body, body["messages"]),
        }
        redacted = {"type": "redacted_thinking", "data": f"data-{number}"}
        if done < self.rounds and body.get("tools"):
            call = {
                "type": "tool_use",
                "id": f"toolu_{number}",
                "name": body["tools"][0]["name"],
                "input": {"order": done},
            }
            blocks: list[Any] = [thinking, redacted, {"type": "text", "text": f"Step {done}."}, call]
        else:
            citation = {"type": "char_location", "cited_text": "x", "document_index": 0}
            blocks = [thinking, {"type": "text", "text": f"Done {number}.", "citations": [citation]}]
        reason = "tool_use" if blocks[-1]["type"] == "tool_use" else "end_turn"
        usage = {"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 2}
        about = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": body["model"]}
        return {**about, "content": blocks, "stop_reason": reason, "stop_sequence": None, "usage": usage}


_BEDROCK = re.compile(r"/model/([^/]+)/invoke(-with-response-stream)?")
_VERTEX = re.compile(r"/v1/projects/p-1/locations/eu/publishers/anthropic/models/([^/:]+):(r|streamR)awPredict")


def _as_anthropics(path: str, body: Any) -> tuple[str, Any, bool]:
    """The path and the body as Anthropic has them, and whether the answer is a stream of frames."""
    on_bedrock, on_vertex = _BEDROCK.fullmatch(path), _VERTEX.fullmatch(path)
    if (named := on_bedrock or on_vertex) is None:
        return path, body, False
    if "model" in body or body.get("anthropic_version") != "2026-10-21":
        raise RefusedError("the path names the model, and the body the version")
    streams = bool(on_bedrock and on_bedrock[2]) or bool(on_vertex and on_vertex[2] == "streamR")
    if body.pop("stream", False) is not (streams and on_bedrock is None):
        raise RefusedError("stream: Vertex has it in the body and the path, Bedrock only in the path")
    del body["anthropic_version"]
    wanted = {"model": unquote(named[1]), **body, **({"stream": True} if streams else {})}
    return "/v1/messages", wanted, streams and on_bedrock is not None


def signature(body: Any, before: Any) -> str:
    """The signature of thinking after these messages."""
    bound = json.dumps([body["model"], body.get("system"), body.get("tools"), before], sort_keys=True)
    return sha256(bound.encode()).hexdigest()


def check(path: str, body: Any) -> None:
    """Raise RefusedError for a request that breaks a rule."""
    if path != "/v1/messages":
        raise RefusedError(f"path {path}")
    for name in ("model", "max_tokens", "messages"):
        if name not in body:
            raise RefusedError(f"{name}: field required")
    if found := {"temperature", "top_p", "top_k"} & set(body):
        raise RefusedError(f"{sorted(found)}: not supported")
    messages = body["messages"]
    if messages[0]["role"] != "user":
        raise RefusedError("the first message must be the user's")
    for number, message in enumerate(messages):
        if message["role"] == "system":
            continue
        if not message["content"]:
            raise RefusedError(f"messages.{number}: empty content")
        _check_blocks(body, number)
        _check_pairs(messages, number)
    _check_thinking(body)


def _check_blocks(body: Any, number: int) -> None:
    message = body["messages"][number]
    for block in message["content"]:
        kind = block["type"]
        if kind == "text" and not block["text"].strip():
            raise RefusedError(f"messages.{number}: text content blocks must be non-empty")
        if kind == "text" and message["role"] == "user" and block.get("citations"):
            raise RefusedError(f"messages.{number}: citations in a user's text")
        if kind == "thinking" and block.get("signature") != signature(body, body["messages"][:number]):
            raise RefusedError(f"messages.{number}: the thinking block is bound to another prefix")


def _check_pairs(messages: Any, number: int) -> None:
    calls = [block["id"] for block in messages[number]["content"] if block["type"] == "tool_use"]
    if not calls:
        return
    following = messages[number + 1]["content"] if number + 1 < len(messages) else []
    results = [block["tool_use_id"] for block in following[: len(calls)] if block["type"] == "tool_result"]
    if results != calls:
        raise RefusedError(f"messages.{number}: tool_use ids without tool_result blocks immediately after")


def _check_thinking(body: Any) -> None:
    if body.get("thinking", {}).get("type") != "enabled":
        return
    last = body["messages"][-1]
    if last["role"] == "user" and any(block["type"] == "tool_result" for block in last["content"]):
        answer = [message for message in body["messages"] if message["role"] == "assistant"][-1]
        if answer["content"][0]["type"] not in {"thinking", "redacted_thinking"}:
            raise RefusedError("when thinking is enabled, the last assistant message must start with a thinking block")


def events(message: Any) -> Iterator[bytes]:
    """The events of a streamed answer, each text in two pieces."""
    begin = {**message, "content": [], "stop_reason": None, "usage": {**message["usage"], "output_tokens": 1}}
    yield _event({"type": "message_start", "message": begin})
    yield _event({"type": "ping"})
    for index, block in enumerate(message["content"]):
        at = {"index": index}
        begun, deltas = _pieces(block)
        yield _event({"type": "content_block_start", **at, "content_block": begun})
        for delta in deltas:
            yield _event({"type": "content_block_delta", **at, "delta": delta})
        yield _event({"type": "content_block_stop", **at})
    delta = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield _event(
        {"type": "message_delta", "delta": delta, "usage": {"output_tokens": message["usage"]["output_tokens"]}}
    )
    yield _event({"type": "message_stop"})


def frames(message: Any) -> Iterator[bytes]:
    """The events of a streamed answer as Bedrock sends them."""
    for event in events(message):
        data = event.partition(b"data: ")[2].strip()
        yield frame("chunk", {"bytes": b64encode(data).decode(), "p": "abcdefgh"})


def _pieces(block: Any) -> tuple[Any, list[Any]]:
    """The start of a block, and its deltas."""
    if block["type"] == "text":
        cited = [{"type": "citations_delta", "citation": each} for each in block.get("citations") or []]
        return {"type": "text", "text": ""}, [
            {"type": "text_delta", "text": each} for each in _halves(block["text"])
        ] + cited
    if block["type"] == "thinking":
        deltas: list[Any] = [{"type": "thinking_delta", "thinking": each} for each in _halves(block["thinking"])]
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
        return {"type": "thinking", "thinking": "", "signature": ""}, deltas
    if block["type"] in {"tool_use", "server_tool_use"}:
        halves = ["", *_halves(json.dumps(block["input"]))]
        return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": each} for each in halves]
    return block, []


def _halves(text: str) -> list[str]:
    return [text[: len(text) // 2], text[len(text) // 2 :]]


def _event(event: Any) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
