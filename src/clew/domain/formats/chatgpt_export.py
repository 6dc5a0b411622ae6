"""The conversations of ChatGPT's data export (``conversations.json``).

OpenAI publishes no schema. A conversation has a ``mapping`` of nodes, each with its parent, its children and a message
or null; an edit and a repeated answer add a node beside the old one, and ``current_node`` is the last one that is
shown.

A call of a tool is a message of the assistant with a ``recipient`` other than ``all``; the messages of tools that
follow it are its results. Messages have no ids of calls: the id of the calling message is used. Files are named by
``asset_pointer`` and in ``metadata.attachments``.
"""

from __future__ import annotations

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
from clew.domain.messages import Content, FunctionCall, FunctionResult, Media, Message, Raw, Reasoning, Role, Text

FORMAT = "chatgpt"

_EVERYBODY = (None, "", "all")
"""The recipients of messages that are not calls."""

_SPOKEN: tuple[Role, ...] = ("user", "assistant", "system")
_CONTEXT = ("user_editable_context", "model_editable_context", "reasoning_recap")
"""Kinds of content that are neither said nor thought: they are kept as records."""


def is_chatgpt(value: object) -> bool:
    """Whether parsed JSON is a conversation of ChatGPT's export."""
    return isinstance(value, dict) and isinstance(value.get("mapping"), dict)


def read_chatgpt(value: JsonObject, files: Files) -> Transcript:
    """The conversation. Raises ImportFormatError, and InvalidContentError for JSON that cannot be stored."""
    mapping: Any = value["mapping"]
    parents, ranks = _tree(mapping)
    id_ = identifier(value.get("conversation_id") or value.get("id") or next(iter(mapping), ""), "A conversation")
    shown = text_or_none(value.get("current_node"))
    fields = checked_fields(value, {"mapping", "title", "id", "conversation_id", "format"})
    # Versions of a message follow one another in the order of their parent's list.
    empty = {name: Node(name, parents[name], ()) for name in sorted(mapping, key=lambda name: ranks.get(name, 0))}
    title = text_or_none(value.get("title"))
    bare = Transcript(FORMAT, id_, title, fields, empty, shown, branches=True)
    calls: dict[str | None, str | None] = {}
    nodes = dict(empty)
    pending = list(bare.children.get(None, ()))
    while pending:
        name = pending.pop()
        entries, calls[name] = _entries(name, mapping[name].get("message"), calls.get(parents[name]), files)
        nodes[name] = Node(name, parents[name], tuple(entries))
        pending += bare.children.get(name, ())
    return Transcript(FORMAT, id_, title, fields, nodes, shown, branches=True)


def _tree(mapping: dict[str, Any]) -> tuple[dict[str, str | None], dict[str, int]]:
    """The parent of each node, and its place among the children of its parent."""
    parents: dict[str, str | None] = {}
    ranks: dict[str, int] = {}
    for name, node in mapping.items():
        if not isinstance(node, dict):
            raise ImportFormatError(f"A node of its mapping is {type(node).__name__}, but it must be an object.")
        parent, children = node.get("parent"), node.get("children")
        parents[name] = parent if isinstance(parent, str) else None
        listed = enumerate(children if isinstance(children, list) else ())
        ranks |= {child: rank for rank, child in listed if isinstance(child, str)}
    return parents, ranks


def _entries(name: str, given: Any, call: str | None, files: Files) -> tuple[list[Entry], str | None]:
    """The entries of a message, and the call that later results belong to. ``call`` is that of its parent."""
    if given is None:
        return [], call
    if not isinstance(given, dict):
        raise ImportFormatError(f"A message of its mapping is {type(given).__name__}, but it must be an object.")
    check_json(given, "a message")
    said = microseconds(given.get("create_time"))
    role, author = _author(given)
    content: Any = given.get("content")
    content = content if isinstance(content, dict) else {}
    kind, recipient = content.get("content_type"), given.get("recipient")
    if kind in _CONTEXT or (role != "tool" and recipient in _EVERYBODY and _is_hidden(given)):
        return [record(FORMAT, kind if kind in _CONTEXT else "hidden", given, name, said)], call
    contents = list(_contents(content, files))
    contents += _attachments(given, content, files)
    source: JsonObject = {FORMAT: _rest(given, contents)}
    if role == "tool":
        return list(_result(call or name, author, content, contents, source, said)), call
    if role not in _SPOKEN:
        return [record(FORMAT, "item", given, name, said)], call
    if role == "assistant" and recipient not in _EVERYBODY:
        arguments = "".join(each.text for each in contents if isinstance(each, Text))
        others = [each for each in contents if not isinstance(each, Text)]
        called = FunctionCall(call_id=name, name=str(recipient), arguments=arguments)
        return [message(Message(role=role, contents=(*others, called), source=source), said)], name
    if not contents:
        return [record(FORMAT, "empty" if kind in ("text", "multimodal_text", None) else kind, given, name, said)], call
    after = None if role == "user" else call
    spoken = Message(role=role, author=author if role == "user" else None, contents=tuple(contents), source=source)
    return [message(spoken, said)], after


def _author(given: JsonObject) -> tuple[Any, str | None]:
    author: Any = given.get("author")
    author = author if isinstance(author, dict) else {}
    return author.get("role"), text_or_none(author.get("name"))


def _is_hidden(given: JsonObject) -> bool:
    metadata = given.get("metadata")
    return isinstance(metadata, dict) and metadata.get("is_visually_hidden_from_conversation") is True


def _contents(content: Any, files: Files) -> Iterator[Content]:
    match content:
        case {"content_type": "thoughts", "thoughts": [*thoughts]}:
            if text := "\n\n".join(filter(None, map(_thought, thoughts))):
                yield Reasoning(text=text)
        case {"parts": [*parts]}:
            for part in parts:
                if part != "":
                    yield _part(part, files)
        case {"text": str(text)} | {"result": str(text)}:
            if text:
                yield Text(text=text)


def _thought(thought: Any) -> str:
    match thought:
        case {"summary": str(summary), "content": str(text)}:
            return f"{summary}\n{text}" if summary and text else summary or text
        case {"content": str(text)} | str(text):
            return text
        case _:
            return ""


def _part(part: Json, files: Files) -> Content:
    match part:
        case str(text):
            return Text(text=text)
        case {"content_type": "audio_transcription", "text": str(text)}:
            return Text(text=text)
        case {"asset_pointer": str(pointer)} | {"audio_asset_pointer": {"asset_pointer": str(pointer)}}:
            return media(pointer, files(_file_id(pointer)))
        case _:
            return Raw(value=part)


def _file_id(pointer: str) -> str:
    """The id in ``file-service://file-abc`` and in ``sediment://file_abc#page``."""
    return pointer.partition("://")[2].partition("#")[0] or pointer


def _attachments(given: JsonObject, content: Any, files: Files) -> Iterator[Content]:
    """The attached files that its content does not name: images are named in both places."""
    metadata: Any = given.get("metadata")
    attachments = metadata.get("attachments") if isinstance(metadata, dict) else None
    named = set(_pointers(content))
    for each in attachments if isinstance(attachments, list) else ():
        match each:
            case {"id": str(id_)} if id_ not in named:
                type_ = each.get("mime_type") or each.get("mimeType")
                yield media(f"file-service://{id_}", files(id_), type_, each.get("name"))


def _pointers(content: Any) -> Iterator[str]:
    parts = content.get("parts")
    for part in parts if isinstance(parts, list) else ():
        match part:
            case {"asset_pointer": str(pointer)} | {"audio_asset_pointer": {"asset_pointer": str(pointer)}}:
                yield _file_id(pointer)


def _rest(given: JsonObject, contents: list[Content]) -> JsonObject:
    """What the contents do not have. A content that is one text needs nothing else."""
    rest = {name: value for name, value in given.items() if name not in {"author", "create_time"}}
    match given.get("content"), contents:
        case {"content_type": "text", "parts": [str()], **more}, _ if not more:
            del rest["content"]
    return rest


def _result(
    call: str, author: str | None, content: JsonObject, contents: list[Content], source: JsonObject, said: int | None
) -> Iterator[Entry]:
    """The result of a tool. Images that it made follow as a message of the assistant."""
    texts = [each.text for each in contents if isinstance(each, Text)]
    made = [each for each in contents if isinstance(each, Media)]
    has_only_text = len(texts) == len(contents) and content.keys() <= {"content_type", "parts", "text"}
    is_plain = bool(made) or has_only_text
    result: Json = "".join(texts) if is_plain else content
    done = FunctionResult(call_id=call, name=author, result=result)
    yield message(Message(role="tool", contents=(done,), source=source), said)
    if made:
        yield message(Message(role="assistant", author=author, contents=tuple(made)), said)
