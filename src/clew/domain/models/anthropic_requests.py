"""Requests in the format of Anthropic's Messages, and in those of Bedrock and Vertex for the same models.

The answers of the model go back as the service sent them. Signed blocks (thinking) are bound to what came before them:
system, tools and messages. They go back only if all of that is what it was; otherwise they are left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any
from urllib.parse import quote

from clew.domain.json_values import Json, JsonObject, canonical
from clew.domain.messages import Content, FunctionCall, FunctionResult, Media, Message, Raw, Text
from clew.domain.models.anthropic_answers import SIGNED, WIRE, call_input, written_blocks
from clew.domain.models.chat_answers import as_object, as_objects, as_text, refusal_of
from clew.domain.models.chat_requests import (
    BlockKind,
    function_name,
    inline_base64,
    is_picture,
    marked,
    media_type,
    media_words,
    result_text,
    unique_ids,
    with_author,
    with_options,
)
from clew.domain.models.client import Question, WireFormat
from clew.domain.models.native import is_own, received, unsent_signatures, without_unbound
from clew.domain.streams import digest

MAX_TOKENS = 8192
"""The limit of an answer that the service requires, unless the options have another."""

_BEGIN = "(The conversation begins with the assistant.)"
"""The first message must be the user's: this comes before an answer without one."""

_NOT_IN_IDS = re.compile(r"[^a-zA-Z0-9_-]")
_USER_BLOCKS = frozenset({"image", "document", "search_result", "container_upload"})


def anthropic_body(question: Question) -> JsonObject:
    """The body of a request to ``/v1/messages``."""
    return _Writer(question).body()


def anthropic_path(model: str, streams: bool) -> str:  # noqa: FBT001  # the parameters of every format's function
    """The path of requests."""
    del model, streams
    return "/v1/messages"


def anthropic_stream(body: JsonObject) -> JsonObject:
    """The body that requests a stream."""
    return {**body, "stream": True}


def prefix_of(body: JsonObject) -> str:
    """The SHA-256, in hex, of what the signed blocks of the answer are bound to. Marks for the cache do not count."""
    return _chain(_head(body), as_objects(body.get("messages"))).hex()


def left_out(question: Question, body: JsonObject) -> tuple[int, ...]:
    """The numbers of the messages whose signed blocks are not in the body."""
    if all(message.native is None for message in question.messages):
        return ()
    answers = [each for each in as_objects(body.get("messages")) if each.get("role") == "assistant"]
    signed = [block for each in answers for block in as_objects(each.get("content")) if is_signed(block)]
    sent = [as_text(block.get("signature") or block.get("data") or block.get("thinking")) for block in signed]
    return unsent_signatures(question, WIRE, sent)


def rebound(before: JsonObject, after: JsonObject) -> JsonObject:
    """A body that middleware changed, without the signed blocks whose prefix it changed."""
    body = without_unbound(before, after, ("system", "tools"), _unmarked, is_signed)
    said = [message for message in as_objects(body.get("messages")) if message.get("role") != "system"]
    if _is_enabled(body) and _lacks_thinking(said):
        del body["thinking"]
    return body


def is_signed(block: Json) -> bool:
    """Whether a block is bound to what came before it."""
    return as_text(as_object(block).get("type")) in SIGNED


def sends_media(question: Question, message: Message, content: Content) -> bool:
    """Whether a content goes into a request as the media that it is."""
    if message.role == "assistant":
        return is_own(message, question, WIRE)
    block = None if _is_system(message) else _user_block(content)
    return block is not None and block["type"] != "text"


ANTHROPIC = WireFormat(
    name=WIRE,
    make_body=anthropic_body,
    make_path=anthropic_path,
    as_stream=anthropic_stream,
    prefix_of=prefix_of,
    left_out=left_out,
    rebound=rebound,
    sends_media=sends_media,
)
"""Anthropic's Messages."""


VERSION = "2026-10-21"
"""The version of the API, which Bedrock and Vertex take in the body."""


def platform_body(question: Question) -> JsonObject:
    """The body of a request to Bedrock or Vertex: the path names the model, and the body the version."""
    body = anthropic_body(question)
    del body["model"]
    return {"anthropic_version": VERSION, **body}


def bedrock_path(model: str, streams: bool) -> str:  # noqa: FBT001  # the parameters of every format's function
    """The path of requests to Bedrock."""
    return f"/model/{quote(model, safe=':;')}/{'invoke-with-response-stream' if streams else 'invoke'}"


def vertex_path(model: str, streams: bool) -> str:  # noqa: FBT001  # the parameters of every format's function
    """The path of requests to Vertex, below the project, the location and the publisher."""
    return f"/models/{quote(model, safe=_SEGMENT)}:{'streamRawPredict' if streams else 'rawPredict'}"


_SEGMENT = "!$&'()*+,=:@"
"""Characters that a segment of a path may have (RFC 3986), except for ``;``, where some servers end it."""

ANTHROPIC_BEDROCK = WireFormat(
    name="anthropic-bedrock",
    make_body=platform_body,
    make_path=bedrock_path,
    prefix_of=prefix_of,
    left_out=left_out,
    rebound=rebound,
    sends_media=sends_media,
)
"""Anthropic's Messages through Bedrock's InvokeModel. The path requests a stream, not the body."""

ANTHROPIC_VERTEX = WireFormat(
    name="anthropic-vertex",
    make_body=platform_body,
    make_path=vertex_path,
    as_stream=anthropic_stream,
    prefix_of=prefix_of,
    left_out=left_out,
    rebound=rebound,
    sends_media=sends_media,
)
"""Anthropic's Messages on Vertex. Both the path and the body request a stream."""


def _head(body: JsonObject) -> bytes:
    return digest(canonical(_unmarked([body.get("system"), body.get("tools")])).encode())


def _chain(head: bytes, messages: Sequence[JsonObject]) -> bytes:
    """The digest of messages after others with the digest ``head``."""
    for message in messages:
        head = digest(head + canonical(_unmarked(message)).encode())
    return head


def _unmarked(value: Any) -> Any:
    """The value without marks for the cache, which are a choice of the request and not a part of it."""
    if isinstance(value, dict):
        return {name: _unmarked(each) for name, each in value.items() if name != "cache_control"}
    return [_unmarked(each) for each in value] if isinstance(value, list) else value


@dataclass
class _Writer:
    """Writes the body of one request, message by message."""

    question: Question
    messages: list[JsonObject] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    waiting: list[str] = field(default_factory=list)
    container: Json = None
    head: bytes = b""
    hashed: int = 0

    def body(self) -> JsonObject:
        question = self.question
        options = dict(question.options or {})
        body: JsonObject = {"model": question.model, "max_tokens": options.pop("max_tokens", MAX_TOKENS)}
        leading = list(takewhile(_is_system, question.messages))
        texts = [question.instructions, *(message.text for message in leading)]
        if system := "\n\n".join(text for text in texts if text):
            body["system"] = system
        if question.tools:
            body["tools"] = [
                {
                    "name": tool.name,
                    **({"description": tool.description} if tool.description else {}),
                    "input_schema": tool.parameters,
                }
                for tool in question.tools
            ]
        if (wanted := question.response_format) is not None:
            form: JsonObject = {"type": "json_schema", "schema": wanted.json_schema}
            body["output_config"] = {**as_object(options.pop("output_config", None)), "format": form}
        self.head = _head(with_options(dict(body), options))
        for message in question.messages[len(leading) :]:
            self._add(message)
        body["messages"] = [*self.messages]
        if self.container is not None:
            body["container"] = self.container
        said = self.messages if question.edition == 1 else [each for each in self.messages if each["role"] != "system"]
        if _is_enabled(options) and _lacks_thinking(said):
            del options["thinking"]  # the service refuses thinking after calls that were made without it
        return with_options(body, options)

    def _add(self, message: Message) -> None:
        if _is_system(message):
            if message.text:
                self.messages.append({"role": "system", "content": message.text})
            return
        results = [self._result(result) for result in message.results]
        rest = [each for each in message.contents if not isinstance(each, FunctionResult)]
        if message.role == "assistant":
            self._answer(message)
        else:
            self._user([*results, *_user_blocks(message, rest)])

    def _result(self, result: FunctionResult) -> JsonObject:
        id_ = self.waiting.pop(0) if self.waiting else _NOT_IN_IDS.sub("_", result.call_id)
        return {"type": "tool_result", "tool_use_id": id_, "content": _result_content(result)}

    def _user(self, blocks: list[JsonObject]) -> None:
        """Add blocks of the user to their last message: all results of a round must be in one message."""
        if not blocks:
            return
        last = self.messages[-1] if self.messages else {}
        content = last.get("content")
        if last.get("role") == "user" and isinstance(content, list):
            content += blocks
        else:
            self.messages.append({"role": "user", "content": [*blocks]})

    def _answer(self, message: Message) -> None:
        if not self.messages:
            self._user([{"type": "text", "text": _BEGIN}])
        blocks = self._own_blocks(message)
        if blocks is None:
            blocks = [block for block in self._written(message) if as_text(block.get("type")) not in SIGNED]
        blocks = marked(blocks, message, self.question, _kind, lambda text: {"type": "text", "text": text})
        if message.calls:
            named = [call.model_copy(update={"call_id": _NOT_IN_IDS.sub("_", call.call_id)}) for call in message.calls]
            self.waiting = unique_ids(named, self.used)
            ids = iter(self.waiting)
            blocks = [{**each, "id": next(ids)} if each.get("type") == "tool_use" else each for each in blocks]
        if blocks:
            self.messages.append({"role": "assistant", "content": [*blocks]})

    def _own_blocks(self, message: Message) -> list[JsonObject] | None:
        """The blocks of an answer as the service sent them; None for the answer of another model."""
        native = message.native
        if native is None or not is_own(message, self.question, WIRE):
            return None
        own = as_object(received(message, {"content": [*written_blocks(message)]}))
        blocks = [_accepted(block) for block in as_objects(own.get("content")) if not _is_refused(block)]
        container = as_object(as_object(own.get("reply")).get("container")).get("id")
        if isinstance(container, str):
            self.container = container
        if native.prefix is None:
            return blocks
        self.head, self.hashed = _chain(self.head, self.messages[self.hashed :]), len(self.messages)
        if native.prefix == self.head.hex():
            return blocks
        return [block for block in blocks if as_text(block.get("type")) not in SIGNED]

    def _written(self, message: Message) -> list[JsonObject]:
        """The blocks of an answer of another model."""
        written: list[JsonObject] = []
        for content in message.contents:
            refusal = refusal_of(content)
            match content:
                case Text(text=text) if text.strip():
                    written.append({"type": "text", "text": text})
                case FunctionCall(arguments=arguments):
                    name = function_name(content, self.question)
                    written.append({"type": "tool_use", "id": "", "name": name, "input": call_input(arguments)})
                case Media():
                    written.append({"type": "text", "text": media_words(content)})
                case _ if refusal:
                    written.append({"type": "text", "text": refusal})
        return written


def _kind(block: JsonObject) -> BlockKind:
    kind = block.get("type")
    return "text" if kind == "text" else "call" if kind == "tool_use" else "other"


def _is_refused(block: JsonObject) -> bool:
    """Whether a block does not go back: a text without words, which the service makes, or a call without a name.

    The latter has no result, for it is not a call.
    """
    text = block.get("text")
    if block.get("type") == "tool_use":
        return not isinstance(block.get("name"), str)
    return block.get("type") == "text" and isinstance(text, str) and not text.strip()


def _accepted(block: JsonObject) -> JsonObject:
    """A block that the service takes: the input of a call that was cut off is no object."""
    if block.get("type") != "tool_use" or isinstance(block.get("input"), dict):
        return block
    return {**block, "input": {"arguments": block.get("input")}}


def _is_system(message: Message) -> bool:
    return message.role in {"system", "developer"}


def _lacks_thinking(said: Sequence[JsonObject]) -> bool:
    """Whether the calls that the model goes on from are without the thinking that came before them."""
    answers = [message for message in said if message.get("role") == "assistant"]
    blocks = as_objects(answers[-1].get("content")) if answers else []
    goes_on = bool(said) and any(block.get("type") == "tool_result" for block in as_objects(said[-1].get("content")))
    return goes_on and bool(blocks) and not is_signed(blocks[0])


def _is_enabled(options: JsonObject) -> bool:
    return as_object(options.get("thinking")).get("type") == "enabled"


def _user_blocks(message: Message, contents: Sequence[Content]) -> list[JsonObject]:
    """The blocks of a user's message. Its author is a prefix of the first text: ``Anna: Hello``."""
    blocks = [block for content in contents if (block := _user_block(content)) is not None]
    return with_author(message, blocks, {"type": "text"})


def _user_block(content: Content) -> JsonObject | None:
    match content:
        case Text(text=text):
            return {"type": "text", "text": text} if text.strip() else None
        case Media():
            return _media(content)
        case Raw(value=dict(value)) if as_text(value.get("type")) in _USER_BLOCKS:
            return value
        case Raw(value={"type": "text" | "input_text", "text": str(text)}) if text.strip():
            return {"type": "text", "text": text}
        case _:
            return None


def _result_content(result: FunctionResult) -> Json:
    """A result: a text, or blocks as in a message of the user."""
    if not result.contents:
        return result_text(result.result)
    return [block for each in result.contents if (block := _user_block(each)) is not None]


_PICTURES = frozenset({"", "image/gif", "image/jpeg", "image/png", "image/webp"})
"""The types of pictures that the service takes; that of an address may be unknown."""


def _media(media: Media) -> JsonObject:
    kind, data = media_type(media), inline_base64(media)
    is_address = media.uri.startswith(("https://", "http://"))
    source: JsonObject = {"type": "url", "url": media.uri}
    if data is not None:
        source = {"type": "base64", "media_type": kind, "data": data}
    if is_picture(media) and kind in _PICTURES:
        return {"type": "image", "source": source}
    if kind == "application/pdf" and (data is not None or is_address):
        return {"type": "document", "source": source, **({"title": media.name} if media.name else {})}
    return {"type": "text", "text": media_words(media)}
