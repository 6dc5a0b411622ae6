"""Messages in the form in which OpenTelemetry's GenAI conventions put them on spans."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from clew.domain.json_values import Json, JsonObject
from clew.domain.messages import Content, FunctionCall, FunctionResult, Media, Message, Reasoning, Text
from clew.domain.models.client import ToolSchema

_MODALITIES = {"image": "image", "audio": "audio", "video": "video"}


def messages_attribute(messages: Iterable[Message], finish_reason: str | None = None) -> str:
    """``gen_ai.input.messages``, or with the reason that they ended for ``gen_ai.output.messages``, as JSON text."""
    return _json([_message(each, finish_reason) for each in messages])


def instructions_attribute(instructions: str) -> str:
    """``gen_ai.system_instructions`` as JSON text."""
    return _json([{"type": "text", "content": instructions}])


def tools_attribute(tools: Sequence[ToolSchema]) -> str:
    """``gen_ai.tool.definitions`` as JSON text."""
    return _json([{"type": "function", **tool.model_dump()} for tool in tools])


def value_attribute(value: Json) -> str:
    """A value as JSON text; text stays as it is."""
    return value if isinstance(value, str) else _json(value)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _message(message: Message, finish_reason: str | None) -> JsonObject:
    said: JsonObject = {"role": message.role, "parts": [_part(content) for content in message.contents]}
    if message.author is not None:
        said["name"] = message.author
    if finish_reason is not None:
        said["finish_reason"] = finish_reason
    return said


def _part(content: Content) -> JsonObject:
    if isinstance(content, Text):
        return {"type": "text", "content": content.text}
    if isinstance(content, Reasoning):
        return {"type": "reasoning", "content": content.text}
    if isinstance(content, FunctionCall):
        return {
            "type": "tool_call",
            "id": content.call_id,
            "name": content.name,
            "arguments": _parsed(content.arguments),
        }
    if isinstance(content, FunctionResult):
        return {"type": "tool_call_response", "id": content.call_id, "response": content.result}
    return _media(content) if isinstance(content, Media) else content.model_dump(mode="json")


def _media(media: Media) -> JsonObject:
    """What a ``data:`` URI holds goes as it is: base64 for all but the odd text."""
    head, comma, data = media.uri.partition(",")
    inline = bool(comma) and head.startswith("data:")
    kind = media.media_type or (head[len("data:") :].partition(";")[0] if inline else "")
    part: JsonObject = {"type": "blob", "content": data} if inline else {"type": "uri", "uri": media.uri}
    part["modality"] = _MODALITIES.get(kind.partition("/")[0], "document")
    if kind:
        part["mime_type"] = kind
    return part


def _parsed(arguments: str) -> Json:
    try:
        parsed: Json = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return parsed
