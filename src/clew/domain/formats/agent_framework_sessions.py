"""The sessions of Microsoft's Agent Framework, as its serializers write them.

These are ``AgentSession.to_dict()`` and, before 1.0, ``AgentThread.serialize()``. The history providers of a session
have their messages in its ``state``: those of the first one are the conversation. The rest of the state is a field of
the conversation. A session whose service holds the messages has none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from clew.domain.errors import ImportFormatError
from clew.domain.formats.conversation_import import microseconds
from clew.domain.formats.transcripts import (
    Entry,
    Node,
    Transcript,
    checked_fields,
    message,
    text_or_none,
)
from clew.domain.json_values import Json, JsonObject, canonical, check_json
from clew.domain.messages import Content, FunctionCall, FunctionResult, Media, Message, Raw, Reasoning, Role, Text
from clew.domain.streams import digest

FORMAT = "agent-framework"

_ROLES: dict[str, Role] = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "developer": "developer",
    "tool": "tool",
}


def is_agent_framework(value: object) -> bool:
    """Whether parsed JSON is a session, or a thread of before 1.0."""
    match value:
        case {"type": "session", "session_id": _, "state": dict()}:
            return True
        case {"chat_message_store_state": dict() | None, **rest}:
            return rest.keys() <= {"service_thread_id", "conversation_id"}
        case _:
            return False


def is_message(value: object) -> bool:
    """Whether parsed JSON is one message: FileHistoryProvider writes one on a line."""
    return isinstance(value, dict) and isinstance(value.get("contents"), list) and "role" in value


def session_of(messages: list[Any], session_id: str) -> JsonObject:
    """The session of the messages in a file."""
    return {"type": "session", "session_id": session_id, "state": {"file": {"messages": messages}}}


def read_agent_framework(value: JsonObject) -> Transcript:
    """The session. Raises ImportFormatError, and InvalidContentError for JSON that cannot be stored."""
    state: Any = value.get("state")
    if not isinstance(state, dict):
        state = {"store": value.get("chat_message_store_state")}
    check_json(state, "state")
    source = next((name for name, each in state.items() if _messages(each)), None)
    entries: list[Entry] = []
    for number, each in enumerate(() if source is None else _messages(state[source]), start=1):
        entries += _entries(each, number)
    id_ = text_or_none(value.get("session_id")) or digest(canonical(value).encode()).hex()
    fields = checked_fields(value, {"type", "session_id", "state", "chat_message_store_state", "format"})
    rest = {name: _without_messages(each) if name == source else each for name, each in state.items()}
    fields["state"] = {name: each for name, each in rest.items() if each}
    nodes = {}
    for number, entry in enumerate(entries):
        nodes[str(number)] = Node(str(number), str(number - 1) if number else None, (entry,))
    return Transcript(FORMAT, id_, None, fields, nodes)


def _without_messages(state: JsonObject) -> JsonObject:
    return {name: item for name, item in state.items() if name != "messages"}


def _messages(state: Any) -> list[Any]:
    messages = state.get("messages") if isinstance(state, dict) else None
    return messages if isinstance(messages, list) else []


def _entries(given: Any, number: int) -> Iterator[Entry]:
    """A message; one with several results becomes several."""
    role = _role(given)
    if role is None:
        raise ImportFormatError(
            f"message {number}: it has no role that is known. It must be one of {', '.join(_ROLES)}."
        )
    said = microseconds(given.get("created_at"))
    given_contents = given.get("contents")
    contents = [_content(each) for each in given_contents] if isinstance(given_contents, list) else []
    if not contents and isinstance(given.get("text"), str):
        contents = [Text(text=given["text"])]
    known = {"role", "contents", "type", "author_name", "text"}
    rest = {key: item for key, item in given.items() if key not in known and item not in (None, {}, [])}
    source: JsonObject = {FORMAT: rest} if rest else {}
    author = text_or_none(given.get("author_name"))
    groups = [(each,) for each in contents] if role == "tool" and contents else [tuple(contents)]
    for group in groups:
        yield message(Message(role=role, author=author, contents=group, source=source), said)


def _role(given: Any) -> Role | None:
    match given:
        case {"role": str(role)} | {"role": {"value": str(role)}}:
            return _ROLES.get(role)
        case _:
            return None


def _content(given: Any) -> Content:
    match given:
        case {"type": "text", "text": str(text)}:
            return Text(text=text)
        case {"type": "text_reasoning", "text": str(text)}:
            return Reasoning(text=text)
        case {"type": "data" | "uri", "uri": str(uri)}:
            return Media(uri=uri, media_type=text_or_none(given.get("media_type")))
        case {"type": "function_call", "call_id": str(id_), "name": str(name)}:
            arguments: Json = given.get("arguments")
            text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
            return FunctionCall(call_id=id_, name=name, arguments=text)
        case {"type": "function_result", "call_id": str(id_)}:
            return FunctionResult(call_id=id_, result=given.get("result"))
        case _:
            return Raw(value=given)
