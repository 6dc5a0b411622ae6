"""Strict checks of the rules of OpenAI's services for requests."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from clew.domain.models.chat_requests import OPENAI_CHAT
from clew.domain.models.client import Question, WireFormat
from clew.domain.runs.request_construction import request_bytes

NAME = re.compile(r"^[a-zA-Z0-9_-]{1,64}$")
PARTS = {
    "user": {"text", "image_url", "input_audio", "file"},
    "assistant": {"text", "refusal"},
    "system": {"text"},
    "developer": {"text"},
    "tool": {"text"},
}
CALL_KEYS = {"type", "id", "status", "call_id", "name", "arguments", "namespace", "caller"}
ANSWER_KEYS = {"type", "id", "status", "role", "content", "phase"}
INPUT_PARTS = {"input_text", "input_image", "input_file"}
KEYS = {
    "user": {"role", "content", "name"},
    "assistant": {"role", "content", "name", "refusal", "tool_calls"},
    "system": {"role", "content"},
    "developer": {"role", "content"},
    "tool": {"role", "content", "tool_call_id"},
}


def checked(wire: WireFormat, question: Question) -> dict[str, Any]:
    """Return the request body of a question after checking that it is valid."""
    sent: dict[str, Any] = json.loads(request_bytes(wire.make_body(question)))
    assert sent["model"] == question.model
    if wire is OPENAI_CHAT:
        check_chat(sent["messages"], {tool.name for tool in question.tools})
    else:
        check_items(sent["input"], {tool.name for tool in question.tools}, remote=question.service is not None)
    return sent


def check_chat(messages: list[dict[str, Any]], tools: Iterable[str] = ()) -> None:
    due: list[str] = []
    for message in messages:
        role = message["role"]
        assert set(message) <= KEYS[role], set(message)
        if role == "tool":
            assert due, "a result without its call"
            assert message["tool_call_id"] == due.pop(0)
            assert isinstance(message["content"], str)
            continue
        assert not due, "a call without its result"
        if "name" in message:
            assert NAME.match(message["name"])
        _check_content(message, role)
        if "tool_calls" in message:
            due = [_checked_call(call, tools) for call in message["tool_calls"]]
            assert due, "an empty list of calls is refused"
            assert len(set(due)) == len(due)
    assert not due, "a call without its result"


def _check_content(message: dict[str, Any], role: str) -> None:
    content = message["content"]
    if content is None:
        assert role == "assistant"
        assert message.get("tool_calls") or message.get("refusal") is not None
    elif not isinstance(content, str):
        assert content, "an empty list of parts is refused"
        for part in content:
            assert part["type"] in PARTS[role]
            assert isinstance(part[part["type"]], str if part["type"] in {"text", "refusal"} else dict)


def _checked_call(call: dict[str, Any], tools: Iterable[str]) -> str:
    assert set(call) == {"id", "type", "function"}
    assert call["type"] == "function"
    assert set(call["function"]) == {"name", "arguments"}
    assert NAME.match(call["function"]["name"]) or call["function"]["name"] in tools
    assert isinstance(call["function"]["arguments"], str)
    assert call["function"]["arguments"]
    id_ = call["id"]
    assert isinstance(id_, str)
    assert id_
    return id_


def check_items(items: list[dict[str, Any]], tools: Iterable[str] = (), *, remote: bool = False) -> None:
    """Check the items; on a remote thread results may come without their calls, which the service has."""
    called: list[str] = []
    answered: list[str] = []
    for number, item in enumerate(items):
        kind = item.get("type", "message")
        if kind == "message":
            _check_message_item(item)
        elif kind == "function_call":
            assert {"type", "call_id", "name", "arguments"} <= set(item) <= CALL_KEYS
            assert NAME.match(item["name"]) or item["name"] in tools
            assert isinstance(item["arguments"], str)
            assert item["arguments"]
            assert item["call_id"]
            assert item["call_id"] not in called, "a repeated call id"
            called.append(item["call_id"])
        elif kind == "function_call_output":
            assert set(item) == {"type", "call_id", "output"}
            if not isinstance(item["output"], str):
                assert {part["type"] for part in item["output"]} <= {"input_text", "input_image", "input_file"}
            assert remote or item["call_id"] in called, "a result without its call"
            assert item["call_id"] not in answered, "a second result of a call"
            answered.append(item["call_id"])
        elif kind == "reasoning":
            assert number + 1 < len(items), "reasoning without an answer"
        else:
            assert kind not in {"text", "image_url", "input_text", "output_text", "tool_use"}
    assert remote or called == answered, "a call without its result"


def _check_message_item(item: dict[str, Any]) -> None:
    if "type" in item:  # an answer as the service sent it
        assert {"type", "id", "status", "role", "content"} <= set(item) <= ANSWER_KEYS
        assert item["role"] == "assistant"
        assert isinstance(item["content"], list)
    else:
        assert set(item) == {"role", "content"}
    assert item["role"] in {"user", "assistant", "system", "developer"}
    if isinstance(item["content"], str):
        return
    assert item["content"], "an empty list of parts is refused"
    allowed = {"output_text", "refusal"} if item["role"] == "assistant" else INPUT_PARTS
    assert {part["type"] for part in item["content"]} <= allowed
    if item["role"] != "user":
        assert not {"input_image", "input_file"} & {part["type"] for part in item["content"]}
