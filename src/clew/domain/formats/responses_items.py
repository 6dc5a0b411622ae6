"""The sessions of the OpenAI Agents SDK: lists of items of the Responses API, as ``SQLiteSession`` stores them.

Each item is one message, so that a session that grows item by item continues its thread.
"""

from __future__ import annotations

import json
from typing import Any

from clew.domain.errors import ImportFormatError
from clew.domain.formats.conversation_import import microseconds
from clew.domain.formats.transcripts import (
    Entry,
    Node,
    Transcript,
    checked_fields,
    identifier,
    message,
    text_or_none,
)
from clew.domain.json_values import Json, JsonObject, canonical, check_json
from clew.domain.messages import Content, FunctionCall, FunctionResult, Media, Message, Raw, Reasoning, Role, Text
from clew.domain.streams import digest

FORMAT = "openai-agents"

_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system", "developer": "developer"}
_CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
_RESULTS = ("function_call_output", "custom_tool_call_output")
_OTHERS = ("message", "reasoning", "item_reference", "compaction", "mcp_list_tools", "mcp_approval_request")
_ENDINGS = ("_call", "_call_output", "_response")


def is_session(value: object) -> bool:
    """Whether parsed JSON is a list of items, or an object that has one in ``items``.

    Messages of Chat Completions have no type. A list without any is read as such messages.
    """
    if isinstance(value, dict):
        return isinstance(value.get("items"), list) and isinstance(value.get("session_id"), str)
    return isinstance(value, list) and any(map(_is_item, value))


def read_session(value: Any) -> Transcript:
    """The session: a list of items, or an object with ``session_id`` and ``items``.

    The object may have lists as long as the items: their ``times``, their ``ids`` and, for a session with branches, the
    ids of the items before them, ``parents``; then ``shown`` is the last item of the main branch. Without a
    ``session_id``, equal lists are the same conversation. Raises ImportFormatError, and InvalidContentError for JSON
    that cannot be stored.
    """
    session: JsonObject = value if isinstance(value, dict) else {"items": value}
    items: Any = session["items"]
    numbers: list[Json] = [str(number) for number in range(1, len(items) + 1)]
    times, ids = _column(session, "times", [None] * len(items)), _column(session, "ids", numbers)
    parents = _column(session, "parents", [None, *ids][: len(items)])
    nodes: dict[str, Node] = {}
    for number, (item, time, each, parent) in enumerate(zip(items, times, ids, parents, strict=True), start=1):
        entry = _entry(item, number, microseconds(time))
        nodes[identifier(each, f"item {number}")] = Node(str(each), text_or_none(parent), (entry,))
    if len(nodes) < len(items):
        raise ImportFormatError("Two items of the session have the same id. The file may be damaged.")
    session_id = session.get("session_id")
    if session_id is None:
        session_id = digest(canonical(items).encode()).hex()
    fields = checked_fields(session, {"session_id", "items", "times", "ids", "parents", "shown", "format"})
    id_, shown = identifier(session_id, "A session"), text_or_none(session.get("shown"))
    return Transcript(FORMAT, id_, None, fields, nodes, shown, branches="parents" in session)


def _column(session: JsonObject, name: str, default: list[Json]) -> list[Json]:
    given = session.get(name)
    return given if isinstance(given, list) and len(given) == len(default) else default


def _is_item(value: object) -> bool:
    match value:
        case {"type": str(kind)}:
            return kind in _OTHERS or kind.endswith(_ENDINGS)
        case _:
            return False


def _entry(item: Any, number: int, said: int | None) -> Entry:
    if not isinstance(item, dict):
        raise ImportFormatError(f"item {number}: {type(item).__name__} is not an object.")
    check_json(item, f"item {number}")
    kind = item.get("type")
    match item:
        case {"role": str(role)} if role in _ROLES and kind in (None, "message"):
            contents, source = tuple(_contents(item.get("content"))), _without(item, "role")
            if [_plain(each) for each in contents] == [item.get("content")]:
                source = _without(source, "content")
            author = text_or_none(item.get("name"))
            return message(_message(_ROLES[role], contents, source, author), said)
        case {"call_id": str(id_), "name": str(name)} if kind in _CALLS:
            given = item.get(_CALLS[kind])
            arguments = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
            call = FunctionCall(call_id=id_, name=name, arguments=arguments)
            return message(_message("assistant", (call,), _without(item, "call_id", "name", _CALLS[kind])), said)
        case {"call_id": str(id_)} if kind in _RESULTS:
            result = FunctionResult(call_id=id_, result=item.get("output"))
            return message(_message("tool", (result,), _without(item, "call_id", "output")), said)
        case {"type": "reasoning"}:
            return message(_message("assistant", (Reasoning(text=_reasoning(item), data=item),), {}), said)
        case {"type": "image_generation_call", "result": str(encoded)} if encoded:
            type_ = f"image/{text_or_none(item.get('output_format')) or 'png'}"
            made = Media(uri=f"data:{type_};base64,{encoded}", media_type=type_)
            return message(_message("assistant", (Raw(value=_without(item, "result")), made), {}), said)
        case {"type": str()}:
            return message(_message("assistant", (Raw(value=item),), {}), said)
    raise ImportFormatError(
        f"item {number}: it has neither a type nor a known role. Give the items of a session of the OpenAI Agents SDK."
    )


def _message(role: Role, contents: tuple[Content, ...], source: JsonObject, author: str | None = None) -> Message:
    rest = {name: value for name, value in source.items() if value != "message" or name != "type"}
    return Message(role=role, author=author, contents=contents, source={FORMAT: rest} if rest else {})


def _without(item: JsonObject, *names: str) -> JsonObject:
    return {name: value for name, value in item.items() if name not in names}


def _contents(content: Json) -> list[Content]:
    if isinstance(content, str):
        return [Text(text=content)]
    return [_part(part) for part in content] if isinstance(content, list) else []


def _part(part: Any) -> Content:
    match part:
        case {"type": "input_text" | "output_text" | "text", "text": str(text)}:
            return Text(text=text)
        case {"type": "input_image", "image_url": str(url)}:
            return Media(uri=url)
        case {"type": "input_file", "file_data": str(data)} if data.startswith("data:"):
            return Media(
                uri=data, media_type=data[5:].partition(";")[0] or None, name=text_or_none(part.get("filename"))
            )
        case {"type": "input_file", "file_url": str(url)}:
            return Media(uri=url, name=text_or_none(part.get("filename")))
        case _:
            return Raw(value=part)


def _plain(content: Content) -> Json:
    return content.text if isinstance(content, Text) else None


def _reasoning(item: JsonObject) -> str:
    parts = item.get("summary") or item.get("content")
    texts = [part.get("text") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    return "\n\n".join(text for text in texts if isinstance(text, str))
