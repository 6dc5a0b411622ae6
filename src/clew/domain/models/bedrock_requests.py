"""Requests in the format of Amazon Bedrock's Converse API.

Answers of the same model go back as the blocks that it sent. Signed blocks among them are bound to all that came
before, so they go back only while that is unchanged. The prefix of a request is a chain of SHA-256 digests in hex: of
``system`` and the tools, then of each message with the digest before it. Cache points and ``toolChoice`` do not count:
https://docs.aws.amazon.com/bedrock/latest/userguide/claude-messages-thinking-block-binding.html.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import takewhile
from typing import Any, TypeGuard, cast
from urllib.parse import quote

from clew.domain.errors import InvalidContentError
from clew.domain.json_values import Json, JsonObject, canonical, check_json
from clew.domain.messages import Content, FunctionCall, FunctionResult, Media, Message, Raw, Reasoning, Text
from clew.domain.models.chat_answers import as_object, as_objects, as_text
from clew.domain.models.chat_requests import (
    BlockKind,
    function_name,
    in_result,
    inline_base64,
    marked,
    media_type,
    media_words,
)
from clew.domain.models.client import Question, WireFormat
from clew.domain.models.native import is_own, native_json, unsent_signatures, without_unbound

NAME = "bedrock-converse"
"""The name of the format in the log."""

SYSTEM_PREFIX = "[Instructions of the system] "
"""What precedes a system message that is not at the beginning: it is sent as text of the user."""

LEFT_OUT_BEGINNING = "[The beginning of the conversation is left out.]"
"""The user's first message if the history does not begin with one: the service requires it."""

INVALID_ARGUMENTS = "INVALID_JSON"
"""The field of a call's input that holds arguments that are not a JSON object: the service accepts only objects."""

_IMAGES = {"image/png": "png", "image/jpeg": "jpeg", "image/jpg": "jpeg", "image/gif": "gif", "image/webp": "webp"}
_DOCUMENTS = {
    "application/pdf": "pdf",
    "text/csv": "csv",
    "application/msword": "doc",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
    "application/vnd.ms-excel": "xls",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
    "text/html": "html",
    "text/plain": "txt",
    "text/markdown": "md",
}
_VIDEOS = {
    "video/x-matroska": "mkv",
    "video/quicktime": "mov",
    "video/mp4": "mp4",
    "video/webm": "webm",
    "video/x-flv": "flv",
    "video/mpeg": "mpeg",
    "video/x-ms-wmv": "wmv",
    "video/3gpp": "three_gp",
}
_SOUNDS = {
    "audio/mpeg": "mp3",
    "audio/mp3": "mp3",
    "audio/opus": "opus",
    "audio/wav": "wav",
    "audio/x-wav": "wav",
    "audio/aac": "aac",
    "audio/flac": "flac",
    "audio/mp4": "mp4",
    "audio/ogg": "ogg",
    "audio/webm": "webm",
}
_FORMATS = {"image": _IMAGES, "document": _DOCUMENTS, "video": _VIDEOS, "audio": _SOUNDS}

_OF_SYSTEM = frozenset({"cachePoint", "guardContent"})
_OF_USER = frozenset({"audio", "cachePoint", "document", "guardContent", "image", "searchResult", "video"})
_OF_ASSISTANT = frozenset({"cachePoint"})
"""The kinds of blocks that a message with this role may contain as Raw."""

_ID = re.compile(r"[a-zA-Z0-9_.:-]{1,64}")
_NOT_IN_IDS = re.compile(r"[^a-zA-Z0-9_.:-]")
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")


def bedrock_body(question: Question) -> JsonObject:
    """The body of a request to ``/model/…/converse`` or ``/model/…/converse-stream``: the same for both."""
    return _Writer(question).body()


def bedrock_path(model: str, streams: bool) -> str:  # noqa: FBT001  # the parameters of every format's function
    """The path of requests to a model, which is not in the body."""
    return f"/model/{quote(model, safe='')}/{'converse-stream' if streams else 'converse'}"


def bedrock_prefix(body: JsonObject) -> str:
    """The digest of the part of a body that signed blocks of the answer are bound to."""
    link = _first_link(body.get("system"), _without_choice(body.get("toolConfig")))
    return _chained(link, as_objects(body.get("messages")))


def bedrock_left_out(question: Question, body: JsonObject) -> tuple[int, ...]:
    """The numbers of the messages whose signed blocks are not in the body."""
    if all(message.native is None for message in question.messages):
        return ()
    answers = [each for each in as_objects(body.get("messages")) if each.get("role") == "assistant"]
    signed = [block for each in answers for block in as_objects(each.get("content")) if is_signed(block)]
    return unsent_signatures(question, NAME, [_signature(block) for block in signed])


def _signature(block: JsonObject) -> str:
    reasoning = as_object(block.get("reasoningContent"))
    return as_text(as_object(reasoning.get("reasoningText")).get("signature") or reasoning.get("redactedContent"))


def bedrock_rebound(before: JsonObject, after: JsonObject) -> JsonObject:
    """A body that middleware changed, without the signed blocks whose prefix it changed."""
    return without_unbound(before, after, ("system", "toolConfig"), _bound, is_signed)


def bedrock_sends_media(question: Question, message: Message, content: Content) -> bool:
    """Whether a content goes into a request as the media that it is."""
    if message.role == "assistant":
        return is_own(message, question, NAME)
    if isinstance(content, Media):
        block = _media_block(content)
        is_taken = block is not None and not ("audio" in block and in_result(message, content))
        return is_taken and not _is_leading(question, message)
    return isinstance(content, Raw) and _is_block(content.value, _OF_USER) and not _is_leading(question, message)


BEDROCK = WireFormat(
    name=NAME,
    make_body=bedrock_body,
    make_path=bedrock_path,
    prefix_of=bedrock_prefix,
    left_out=bedrock_left_out,
    rebound=bedrock_rebound,
    sends_media=bedrock_sends_media,
)
"""Amazon Bedrock's Converse API."""


def written_blocks_of(message: Message) -> list[Json]:
    """The blocks that this format writes for the contents of an answer: the base of its native patch."""
    return [block for content in message.contents if (block := _written(content)) is not None]


def call_input(arguments: str) -> JsonObject:
    """The input of a call whose arguments the model wrote as text."""
    try:
        value = json.loads(arguments or "{}")
        check_json(value, "arguments")
    except (ValueError, RecursionError, InvalidContentError):
        value = None
    return value if isinstance(value, dict) else {INVALID_ARGUMENTS: arguments}


def is_signed(block: Json) -> bool:
    """Whether a block is bound to what came before it."""
    match block:
        case {"reasoningContent": {"reasoningText": {"signature": str(signature)}}}:
            return bool(signature)
        case {"reasoningContent": {"redactedContent": _}}:
            return True
        case _:
            return False


def _written(content: Content) -> JsonObject | None:
    match content:
        case Text(text=text):
            return {"text": text}
        case Reasoning(text=text):
            return {"reasoningContent": {"reasoningText": {"text": text}}}
        case FunctionCall():
            return _tool_use(content.call_id, content.name, content)
        case Raw(value=dict() as value):
            return value
        case _:
            return None


def _tool_use(id_: str, name: str, call: FunctionCall) -> JsonObject:
    return {"toolUse": {"toolUseId": id_, "name": name, "input": call_input(call.arguments)}}


def _is_call(block: JsonObject) -> bool:
    """Whether a block calls a function of the client, and not one of the service."""
    use = block.get("toolUse")
    return isinstance(use, dict) and "type" not in use


@dataclass(slots=True)
class _Writer:
    """Writes the messages of a question, and compares signed answers with what was written before them."""

    question: Question
    _sent: list[JsonObject] = field(default_factory=list)
    _waiting: list[str] = field(default_factory=list)  # ids of the last calls, for their results
    _used: set[str] = field(default_factory=set)
    _documents: int = 0
    _link: str = ""  # of the first _linked messages
    _linked: int = 0

    def body(self) -> JsonObject:
        question = self.question
        begin = next(
            (number for number, each in enumerate(question.messages) if not _is_system(each)), len(question.messages)
        )
        system = _system(question, question.messages[:begin])
        tools = _tool_config(question)
        self._link = _first_link(system or None, tools if question.edition < 3 else _without_choice(tools))  # noqa: PLR2004  # see EDITION
        for message in question.messages[begin:]:
            self._add_message(message)
        self._begin()
        body: JsonObject = {}
        if system:
            body["system"] = system
        body["messages"] = [*self._sent]
        if tools is not None:
            body["toolConfig"] = tools
        if output := _output_config(question):
            body["outputConfig"] = output
        options = question.options or {}
        return body | {name: value for name, value in options.items() if name not in _NOT_OPTIONS}

    def _add_message(self, message: Message) -> None:
        results = [
            self._result(self._waiting.pop(0), result)
            for result in message.results
            if self._waiting  # a result without its call cannot be sent
        ]
        self._add("user", results)
        contents = [each for each in message.contents if not isinstance(each, FunctionResult)]
        if not contents:
            return
        if message.role == "assistant":
            self._waiting = []
            answer, fields = self._answer(message, contents)
            blocks = marked(answer, message, self.question, _kind, lambda text: {"text": text})
            self._add("assistant", blocks, fields)
            return
        words = [each for each in contents if not isinstance(each, FunctionCall)]
        if words:
            self._waiting = []
            self._add("user", self._user(message, words))
        if message.calls:
            self._waiting = []
            self._add("assistant", self._foreign(message.calls))

    def _add(self, role: str, blocks: Sequence[JsonObject], fields: JsonObject | None = None) -> None:
        """Add blocks and other fields of a message, to the last one if it has the same role."""
        if not blocks:
            return
        if role != "user":
            self._begin()
        if self._sent and self._sent[-1]["role"] == role:
            cast("list[Json]", self._sent[-1]["content"]).extend(blocks)
            self._sent[-1].update(fields or {})
        else:
            self._sent.append({"role": role, **(fields or {}), "content": [*blocks]})

    def _begin(self) -> None:
        if not self._sent:
            self._sent.append({"role": "user", "content": [{"text": LEFT_OUT_BEGINNING}]})

    def _answer(self, message: Message, contents: Sequence[Content]) -> tuple[list[JsonObject], JsonObject]:
        """The blocks of an answer, and what its message has besides if it goes back as it came."""
        if not is_own(message, self.question, NAME):
            return self._foreign(contents), {}
        own = native_json(message, written_blocks_of(message))
        blocks = as_objects(own.get("json"))
        calls = [str(as_object(each["toolUse"]).get("toolUseId")) for each in blocks if _is_call(each)]
        if len(calls) != len(message.calls):  # the message was changed
            return self._foreign(contents), {}
        if any(map(is_signed, blocks)) and not self._is_bound(message):
            blocks = [each for each in blocks if not is_signed(each)]
        self._waiting = calls
        self._used.update(calls)
        output = as_object(as_object(own.get("reply")).get("output"))
        return [each for each in blocks if is_signed(each) or not _is_empty(each)], as_object(output.get("message"))

    def _is_bound(self, message: Message) -> bool:
        """Whether all that was written so far is what the signed blocks of an answer are bound to."""
        self._begin()
        # The last message may still grow.
        self._link = _chained(self._link, self._sent[self._linked : -1])
        self._linked = len(self._sent) - 1
        return message.native is not None and message.native.prefix == _chained(self._link, self._sent[-1:])

    def _foreign(self, contents: Sequence[Content]) -> list[JsonObject]:
        """The blocks of an answer of another model, or of none."""
        blocks: list[JsonObject] = []
        for content in contents:
            match content:
                case FunctionCall():
                    id_ = self._id(content.call_id)
                    self._waiting.append(id_)
                    blocks.append(_tool_use(id_, function_name(content, self.question), content))
                case Media():
                    blocks.append({"text": media_words(content)})
                case Text(text=text):
                    blocks.append({"text": text})
                case Raw(value=value) if _is_block(value, _OF_ASSISTANT):
                    blocks.append(value)
                case _:
                    pass
        return [each for each in blocks if not _is_empty(each)]

    def _user(self, message: Message, contents: Sequence[Content]) -> list[JsonObject]:
        blocks: list[JsonObject] = []
        for content in contents:
            match content:
                case Text(text=text):
                    blocks.append({"text": text})
                case Media():
                    blocks.append(self._media(content))
                case Raw(value=value) if _is_block(value, _OF_USER):
                    blocks.append(value)
                case _:
                    pass
        blocks = [each for each in blocks if not _is_empty(each)]
        prefix = SYSTEM_PREFIX if _is_system(message) else f"{message.author}: " if message.author else ""
        if blocks and prefix:
            at = next((number for number, each in enumerate(blocks) if "text" in each), None)
            if at is None:
                blocks.insert(0, {"text": prefix.rstrip()})
            else:
                blocks[at] = {"text": f"{prefix}{blocks[at]['text']}"}
        if any("document" in each for each in blocks) and not any("text" in each for each in blocks):
            blocks.append({"text": "[document]"})  # the service refuses a document without a text
        return blocks

    def _result(self, id_: str, result: FunctionResult) -> JsonObject:
        if not result.contents:
            return _tool_result(id_, result)
        blocks: list[JsonObject] = []
        for each in result.contents:
            block: JsonObject = self._media(each) if isinstance(each, Media) else {"text": each.text}
            blocks.append({"text": media_words(each)} if isinstance(each, Media) and "audio" in block else block)
        return {"toolResult": {"toolUseId": id_, "content": [each for each in blocks if not _is_empty(each)]}}

    def _media(self, media: Media) -> JsonObject:
        """A block with the media; words if the service cannot load it, or does not know its type."""
        block = _media_block(media)
        if block is None:
            return {"text": media_words(media)}
        if (document := block.get("document")) is not None:
            self._documents += 1
            block["document"] = {**as_object(document), "name": f"Document {self._documents}"}  # names must differ
        return block

    def _id(self, call_id: str) -> str:
        """An id that the service accepts, and that no earlier call has."""
        base = call_id if _ID.fullmatch(call_id) else _NOT_IN_IDS.sub("_", call_id)[:48] or "call"
        id_, number = base, 1
        while id_ in self._used:
            number += 1
            id_ = f"{base[:48]}-{number}"
        self._used.add(id_)
        return id_


def _kind(block: JsonObject) -> BlockKind:
    return "text" if "text" in block else "call" if "toolUse" in block else "other"


_NOT_OPTIONS = frozenset({"messages", "modelId", "outputConfig", "system", "toolConfig"})
"""Fields that are not taken from the options as they are: they are the question's, or are merged with it."""


def _is_system(message: Message) -> bool:
    return message.role in {"system", "developer"}


def _system(question: Question, messages: Sequence[Message]) -> list[Json]:
    blocks: list[JsonObject] = [{"text": question.instructions or ""}]
    for message in messages:
        for content in message.contents:
            match content:
                case Text(text=text):
                    blocks.append({"text": text})
                case Media():
                    blocks.append({"text": media_words(content)})
                case Raw(value=value) if _is_block(value, _OF_SYSTEM):
                    blocks.append(value)
                case _:
                    pass
    return [each for each in blocks if not _is_empty(each)]


def _tool_config(question: Question) -> JsonObject | None:
    """The tools, with those of the options after them. A history with calls requires some, whatever they are."""
    given = as_object((question.options or {}).get("toolConfig"))
    tools = [_tool(each.name, each.description, each.parameters) for each in question.tools]
    tools += as_objects(given.get("tools"))
    if not tools:
        calls = [call for message in question.messages for call in message.calls]
        names = dict.fromkeys(function_name(call, question) for call in calls)
        tools = [_tool(name, "", {"type": "object"}) for name in names]
    return {**given, "tools": [*tools]} if tools else None


def _tool(name: str, description: str, parameters: JsonObject) -> JsonObject:
    about = {"description": description} if description.strip() else {}
    return {"toolSpec": {"name": name, **about, "inputSchema": {"json": parameters}}}


def _output_config(question: Question) -> JsonObject:
    """The schema of the answer, which the service takes as text, with the other fields of the options."""
    given = as_object((question.options or {}).get("outputConfig"))
    if question.response_format is None:
        return given
    asked = question.response_format
    schema: JsonObject = {"schema": json.dumps(asked.json_schema, ensure_ascii=False), "name": asked.name}
    return {**given, "textFormat": {"type": "json_schema", "structure": {"jsonSchema": schema}}}


def _tool_result(id_: str, result: FunctionResult) -> JsonObject:
    content: JsonObject
    match result.result:
        case str(text) if text.strip():
            content = {"text": text}
        case str(text):  # the service refuses a blank text
            content = {"json": {"result": text}}
        case dict(value):
            content = {"json": value}
        case value:
            content = {"text": json.dumps(value, ensure_ascii=False)}
    return {"toolResult": {"toolUseId": id_, "content": [content]}}


def _is_leading(question: Question, message: Message) -> bool:
    """Whether a message is in ``system``, which has no media."""
    return any(each is message for each in takewhile(_is_system, question.messages))


def _media_block(media: Media) -> JsonObject | None:
    """A block with the media, without the name of a document. None if the service cannot load it."""
    source = _source(media)
    for kind, formats in _FORMATS.items():
        if source is not None and (name := formats.get(media_type(media).lower())) is not None:
            return {kind: {"format": name, "source": source}}
    return None


def _source(media: Media) -> JsonObject | None:
    """Where the service finds the data of media: in the request, or in S3."""
    if media.uri.startswith("s3://"):
        return {"s3Location": {"uri": media.uri}}
    data = inline_base64(media)
    return {"bytes": data} if data and _BASE64.fullmatch(data) else None


def _is_block(value: Json, kinds: frozenset[str]) -> TypeGuard[JsonObject]:
    return isinstance(value, dict) and len(value) == 1 and not kinds.isdisjoint(value)


def _is_empty(block: JsonObject) -> bool:
    """Whether the service refuses a block: a blank text, or reasoning without a signature."""
    text = block.get("text")
    return (isinstance(text, str) and not text.strip()) or ("reasoningContent" in block and not is_signed(block))


def _first_link(system: Json, tools: Json) -> str:
    return _digest(canonical(_without_cache_points({"system": system, "toolConfig": tools})))


def _without_choice(tools: Json) -> Json:
    """The configuration of tools without the choice among them: a call that is forced once changes no prefix."""
    return {name: each for name, each in tools.items() if name != "toolChoice"} if isinstance(tools, dict) else tools


def _bound(value: Json) -> Json:
    """The part of a field or a message that signed blocks are bound to."""
    return cast("Json", _without_cache_points(_without_choice(value)))


def _chained(link: str, messages: Iterable[JsonObject]) -> str:
    for message in messages:
        link = _digest(link + canonical(_without_cache_points(message)))
    return link


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def _without_cache_points(value: Any) -> Any:
    """A value of the format's own levels without cache points: they are not part of what a model reads."""
    if isinstance(value, list):
        return [_without_cache_points(each) for each in value if not _is_block(each, _CACHE_POINT)]
    if isinstance(value, dict):
        return {
            name: _without_cache_points(each) if name in _LEVELS else each
            for name, each in value.items()
            if each is not None
        }
    return value


_CACHE_POINT = frozenset({"cachePoint"})
_LEVELS = frozenset({"system", "toolConfig", "tools", "content"})
