"""Chats and chat histories of Microsoft's Semantic Kernel, as its serializers write them.

These are the chats of ``AgentChatSerializer`` in .NET (participants, history, and the state of each channel), a
``ChatHistory`` of .NET as a JSON array, and ``ChatHistory.serialize()`` of Python. Programs of .NET choose the casing
of the names. None of these has an id or times. Participants and channels, with the ids of threads that a service holds,
are records at the beginning of the thread.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from clew.domain.errors import ImportFormatError
from clew.domain.formats.transcripts import Entry, Node, Transcript, checked_fields, message, record, text_or_none
from clew.domain.json_values import JsonObject, canonical, check_json
from clew.domain.messages import Content, FunctionCall, FunctionResult, Media, Message, Raw, Reasoning, Role, Text
from clew.domain.streams import digest

FORMAT = "semantic-kernel"

_ROLES: dict[str, Role] = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "developer": "developer",
    "tool": "tool",
}
_OF_MESSAGE = {"role", "items", "content", "contenttype", "authorname", "name"}


def is_semantic_kernel(value: object) -> bool:
    """Whether parsed JSON is a chat or a chat history."""
    if isinstance(value, list):
        return bool(value) and all(_is_message(each) for each in value)
    if not isinstance(value, dict) or "format" in value:
        return False
    fields = _folded(value)
    if isinstance(fields.get("history"), list | str):  # a chat has no parts that are empty
        return any(isinstance(fields.get(name), list) for name in ("participants", "channels"))
    messages = value.get("messages")
    return isinstance(messages, list) and bool(messages) and all(map(_is_message, messages))


def read_semantic_kernel(value: Any) -> Transcript:
    """The conversation. Raises ImportFormatError, and InvalidContentError for JSON that cannot be stored."""
    check_json(value, "the chat")
    fields: JsonObject = {} if isinstance(value, list) else value
    folded = _folded(fields)
    history = value if isinstance(value, list) else folded.get("history", folded.get("messages"))
    entries = [
        record(FORMAT, kind, each, f"{kind} {number}")
        for kind in ("participant", "channel")
        for number, each in enumerate(_list(folded.get(f"{kind}s")), start=1)
    ]
    if isinstance(history, str):  # a channel's form of a history that is not a list
        entries.append(record(FORMAT, "history", history, "history"))
    for number, each in enumerate(_list(history), start=1):
        entries += _entries(each, number)
    known = {name for name in fields if name.lower() in {"participants", "channels", "history", "messages"}}
    nodes = {
        str(number): Node(str(number), str(number - 1) if number else None, (entry,))
        for number, entry in enumerate(entries)
    }
    id_ = digest(canonical(value).encode()).hex()
    return Transcript(FORMAT, id_, None, checked_fields(fields, known), nodes)


def _folded(value: JsonObject) -> dict[str, Any]:
    """The fields by their names in lower case and without underscores."""
    return {name.replace("_", "").lower(): each for name, each in value.items()}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_message(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    fields = _folded(value)
    return "role" in fields and isinstance(fields.get("items"), list)


def _entries(given: Any, number: int) -> Iterator[Entry]:
    """A message; one with several results becomes several."""
    fields = _folded(given) if isinstance(given, dict) else {}
    role = _role(fields.get("role"))
    if role is None:
        raise ImportFormatError(
            f"message {number}: it has no role that is known. It must be one of {', '.join(_ROLES)}."
        )
    contents = [_content(each) for each in _list(fields.get("items"))]
    if not contents and isinstance(fields.get("content"), str):
        contents = [Text(text=fields["content"])]
    rest = {
        name: each
        for name, each in given.items()
        if name.replace("_", "").lower() not in _OF_MESSAGE and each not in (None, {}, [])
    }
    source: JsonObject = {FORMAT: rest} if rest else {}
    author = text_or_none(fields.get("authorname")) or text_or_none(fields.get("name"))
    groups = [(each,) for each in contents] if role == "tool" and contents else [tuple(contents)]
    for group in groups:
        yield message(Message(role=role, author=author, contents=group, source=source))


def _role(given: Any) -> Role | None:
    """The role, which .NET writes as an object with a label."""
    label = _folded(given).get("label") if isinstance(given, dict) else given
    return _ROLES.get(label.lower()) if isinstance(label, str) else None


def _content(given: Any) -> Content:
    """A content. The kind is ``$type`` in .NET and ``content_type`` in Python; others stay as they are."""
    if not isinstance(given, dict):
        return Raw(value=given)
    fields = _folded(given)
    kind = fields.get("$type", fields.get("contenttype"))
    match str(kind).removesuffix("Content").lower():
        case "text" if isinstance(fields.get("text"), str):
            return Text(text=fields["text"])
        case "reasoning" if isinstance(fields.get("text"), str):
            return Reasoning(text=fields["text"])
        case "functioncall" | "function_call":
            arguments: Any = fields.get("arguments")
            text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
            return FunctionCall(call_id=str(fields.get("id") or ""), name=_function(fields), arguments=text)
        case "functionresult" | "function_result":
            call_id = fields.get("callid") or fields.get("id") or ""
            return FunctionResult(call_id=str(call_id), name=_function(fields) or None, result=fields.get("result"))
        case "image" | "audio" | "binary":
            return _media(fields) or Raw(value=given)
        case _:
            return Raw(value=given)


def _function(fields: dict[str, Any]) -> str:
    """The name of a function as a model has it: with that of its plugin."""
    names = [text for name in ("pluginname", "functionname") if (text := text_or_none(fields.get(name)))]
    return "-".join(names) or str(fields.get("name") or "")


def _media(fields: dict[str, Any]) -> Media | None:
    """The bytes, which are a data URI or base64, or else the address."""
    type_ = text_or_none(fields.get("mimetype"))
    data, uri = fields.get("data"), fields.get("datauri") or fields.get("uri")
    if isinstance(uri, str) and uri:
        return Media(uri=uri, media_type=type_)
    if isinstance(data, str) and data:
        return Media(uri=f"data:{type_ or 'application/octet-stream'};base64,{data}", media_type=type_)
    return None
