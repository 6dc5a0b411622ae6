"""The conversations of Claude's data export (``conversations.json``).

Anthropic publishes no schema. A conversation has ``chat_messages``; newer exports name the ``parent_message_uuid`` of
each, so that edits and repeated answers are branches. One message of the assistant can have several rounds of thinking,
text, calls and results in its ``content``: each result ends a message here, as in Clew.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

from clew.domain.errors import ImportFormatError
from clew.domain.formats.conversation_import import microseconds
from clew.domain.formats.transcripts import (
    Entry,
    Files,
    Node,
    Transcript,
    checked_fields,
    identifier,
    media,
    message,
    record,
    text_or_none,
)
from clew.domain.json_values import Json, JsonObject, check_json
from clew.domain.messages import Content, FunctionCall, FunctionResult, Media, Message, Reasoning, Role, Text

FORMAT = "claude"

_SENDERS: dict[str, Role] = {"human": "user", "user": "user", "assistant": "assistant"}
_SAID_IN_BLOCKS = {"type", "text", "thinking", "id", "name", "input", "tool_use_id", "content"}


def is_claude(value: object) -> bool:
    """Whether parsed JSON is a conversation of Claude's export."""
    return isinstance(value, dict) and isinstance(value.get("chat_messages"), list)


def read_claude(value: JsonObject, files: Files) -> Transcript:
    """The conversation. Raises ImportFormatError, and InvalidContentError for JSON that cannot be stored."""
    given: Any = value["chat_messages"]
    nodes: dict[str, Node] = {}
    before: str | None = None
    has_parents = any(isinstance(each, dict) and each.get("parent_message_uuid") for each in given)
    for number, each in enumerate(given, start=1):
        if not isinstance(each, dict):
            raise ImportFormatError(f"message {number}: {type(each).__name__} is not an object.")
        check_json(each, f"message {number}")
        uuid = identifier(each.get("uuid"), f"message {number}")
        if uuid in nodes:
            raise ImportFormatError(f"message {number}: another message has its id. The file may be damaged.")
        parent = text_or_none(each.get("parent_message_uuid")) if has_parents else before
        nodes[uuid] = Node(uuid, parent, tuple(_entries(each, uuid, number, files)))
        before = uuid
    shown = text_or_none(value.get("current_leaf_message_uuid")) or before
    id_ = identifier(value.get("uuid"), "A conversation")
    fields = checked_fields(value, {"chat_messages", "uuid", "name", "format"})
    return Transcript(FORMAT, id_, text_or_none(value.get("name")), fields, nodes, shown, branches=True)


def _entries(given: JsonObject, uuid: str, number: int, files: Files) -> list[Entry]:
    """The messages and records of a message. The first of them has the fields that its contents do not have."""
    sender = given.get("sender")
    role = _SENDERS.get(sender) if isinstance(sender, str) else None
    if role is None:
        raise ImportFormatError(f"message {number}: its sender is neither human nor assistant.")
    source: JsonObject = {name: item for name, item in given.items() if name not in {"content", "text", "sender"}}
    said = microseconds(given.get("created_at"))
    turn, entries = _Turn(role, uuid, said, source), list[Entry]()
    blocks: Any = given.get("content")
    if not isinstance(blocks, list) or not blocks:
        blocks = [{"type": "text", "text": given.get("text")}]
    for block in blocks:
        entries += turn.add(block)
    turn.contents += _attached(given, files)
    entries += turn.finished()
    return entries or [record(FORMAT, "empty", given, uuid, said)]


class _Turn:
    """One message of an export, which becomes several of Clew's if tools answered in it."""

    def __init__(self, role: Role, uuid: str, said: int | None, source: JsonObject) -> None:
        self.contents: list[Content] = []
        self._role, self._uuid, self._said, self._source = role, uuid, said, source
        self._time: int | None = None
        self._blocks: list[Json] = []
        self._records: list[Entry] = []
        self._calls: list[tuple[str, str]] = []
        self._number = 0

    def add(self, block: Any) -> Iterator[Entry]:
        """Add a block. A result ends the message before it."""
        self._number += 1
        place = f"{self._uuid}:{self._number}"
        time = microseconds(block.get("start_timestamp")) if isinstance(block, dict) else None
        match block:
            case {"type": "thinking", "thinking": str(text)}:
                self._say(Reasoning(text=text), block, time)
            case {"type": "tool_use", "name": str(name)}:
                id_ = text_or_none(block.get("id")) or place
                self._calls.append((id_, name))
                arguments = json.dumps(block.get("input"), ensure_ascii=False)
                self._say(FunctionCall(call_id=id_, name=name, arguments=arguments), block, time)
            case {"type": "tool_result"}:
                yield from self.finished()
                yield self._result(block, place, time)
            case {"text": str(text)}:
                if text:
                    self._say(Text(text=text), block, time)
            case {"type": "text"}:
                pass
            case _:
                kind = block.get("type") if isinstance(block, dict) else None
                self._records.append(record(FORMAT, kind, block, place, time))

    def finished(self) -> Iterator[Entry]:
        """The message of the contents so far, and the records after it."""
        if self.contents:
            spoken = Message(role=self._role, contents=tuple(self.contents), source=self._taken(self._blocks))
            yield message(spoken, self._time or self._said)
        yield from self._records
        self.contents, self._blocks, self._records, self._time = [], [], [], None

    def _say(self, content: Content, block: JsonObject, time: int | None) -> None:
        self.contents.append(content)
        self._blocks.append(_rest(block))
        self._time = time if self._time is None else self._time

    def _result(self, block: JsonObject, place: str, time: int | None) -> Entry:
        given, name = text_or_none(block.get("tool_use_id")), text_or_none(block.get("name"))
        call = next((each for each in self._calls if each[0] == given or (given is None and each[1] == name)), None)
        if call is not None:
            self._calls.remove(call)
        id_ = given or (place if call is None else call[0])
        content = block.get("content")
        match content:
            case [{"type": "text", "text": str(text)}]:
                result: Json = text
            case _:
                result = content
        done = FunctionResult(call_id=id_, name=name, result=result)
        return message(Message(role="tool", contents=(done,), source=self._taken([_rest(block)])), time or self._said)

    def _taken(self, blocks: list[Json]) -> JsonObject:
        """What the contents of the next message do not have."""
        rest, self._source = self._source, {"uuid": self._uuid}
        return {FORMAT: {**rest, "blocks": blocks} if any(blocks) else rest}


def _rest(block: JsonObject) -> JsonObject:
    """The fields of a block that a content does not have, without those that are null or empty."""
    return {name: item for name, item in block.items() if name not in _SAID_IN_BLOCKS and item not in (None, [], {})}


def _attached(given: JsonObject, files: Files) -> Iterator[Media]:
    """The attached files: of some the export has the text, of others the name."""
    attachments: Any = given.get("attachments")
    named: Any = given.get("files")
    for each in attachments if isinstance(attachments, list) else ():
        match each:
            case {"extracted_content": str(text)} if text:
                encoded = b64encode(text.encode()).decode()
                name = text_or_none(each.get("file_name"))
                yield Media(uri=f"data:text/plain;base64,{encoded}", media_type="text/plain", name=name)
            case {"file_name": str(name)} if name:
                yield media(f"claude-file:{name}", files(name), each.get("file_type"), name)
    for each in named if isinstance(named, list) else ():
        match each:
            case {"file_name": str(name)}:
                id_ = text_or_none(each.get("file_uuid")) or name
                yield media(f"claude-file:{id_}", files(id_) or files(name), None, name)
