"""Answers of Amazon Bedrock's Converse API, complete or in events: the message is the same either way."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

from clew.domain.errors import InvalidContentError
from clew.domain.json_values import Json, JsonObject, check_json
from clew.domain.messages import Content, FunctionCall, Message, Raw, Reasoning, Text
from clew.domain.models.bedrock_requests import NAME, call_input, is_signed, written_blocks_of
from clew.domain.models.chat_answers import as_count, as_object, as_objects, as_text
from clew.domain.models.client import Answer, CallDelta, ReasoningDelta, TextDelta, TokenUsage, Update, joined
from clew.domain.models.native import has_raw, unknown, unread, with_native

_FINISH_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "guardrail_intervened": "content_filter",
    "content_filtered": "content_filter",
}
_SHARED_REASONS = frozenset({"content_filtered", "guardrail_intervened", "stop_sequence"})
"""Reasons of which the finish reason is also that of another one: they are kept."""
_KNOWN_REPLY = frozenset({"output", "stopReason", "usage"})
"""Fields of a reply that are read. All others are kept in the native JSON of the answer."""
_READ_USAGE = {"inputTokens": (), "outputTokens": (), "cacheReadInputTokens": ()}
_DATA = frozenset({"bytes", "redactedContent"})
"""Fields with data in base64, which may arrive in pieces that are each encoded by themselves."""


class BedrockAnswer:
    """Assembles an answer.

    Attributes: ``begun``, whether a part of it has arrived, and ``failure``, the error that the service sent instead.
    """

    def __init__(self) -> None:
        self.begun = False
        self.failure: Json = None
        self._blocks: dict[int, _Block] = {}
        self._calls: dict[int, int] = {}
        self._stopped: JsonObject | None = None
        self._metadata: JsonObject | None = None
        self._answer: Answer | None = None

    def take(self, event: JsonObject) -> Iterator[Update]:
        """Read an event of a stream, ``{type: payload}``, and yield what it adds.

        Raises ValueError if the answer cannot be written as JSON.
        """
        for kind, value in event.items():
            payload = as_object(value)
            if kind.lower().endswith("exception"):
                self.failure = {"code": kind, **payload}
                return
            for update in self._event(kind, payload):
                self.begun = True
                yield update
        if self._answer is None and self._stopped is not None and self._metadata is not None:
            blocks = [block for _, each in sorted(self._blocks.items()) if (block := each.assembled())]
            self._answer = _answer(blocks, self._stopped, self._metadata)

    def take_whole(self, reply: JsonObject) -> Iterator[Update]:
        """Read a complete reply, and yield its contents. Raises ValueError if it cannot be written as JSON."""
        message = as_object(reply.get("output")).get("message")
        if not isinstance(message, dict):
            return
        blocks = [_whole(_cleaned(block)) for block in as_objects(message.get("content"))]
        self._answer = _answer(blocks, reply, reply)
        calls = 0
        for content in self._answer.message.contents:
            self.begun = True
            match content:
                case Text(text=text):
                    yield TextDelta(text)
                case Reasoning(text=text):
                    yield ReasoningDelta(text)
                case FunctionCall():
                    yield CallDelta(calls, content.call_id, content.name, content.arguments)
                    calls += 1
                case _:
                    pass

    def answer(self) -> Answer | None:
        """The answer; None until the service has completed it."""
        return self._answer

    def _event(self, kind: str, payload: JsonObject) -> Iterator[Update]:
        number = as_count(payload.get("contentBlockIndex"))
        match kind:
            case "contentBlockStart":
                yield from self._started(number, as_object(payload.get("start")))
            case "contentBlockDelta":
                yield from self._delta(number, as_object(payload.get("delta")))
            case "messageStop":
                self._stopped = payload
            case "metadata":
                self._metadata = payload
            case _:  # messageStart, contentBlockStop, and kinds that say nothing of the message
                pass

    def _started(self, number: int, start: JsonObject) -> Iterator[Update]:
        block = self._blocks.setdefault(number, _Block())
        block.add(start)
        use = start.get("toolUse")
        if isinstance(use, dict) and "type" not in use:
            self._calls[number] = len(self._calls)
            yield CallDelta(self._calls[number], as_text(use.get("toolUseId")), as_text(use.get("name")), "")

    def _delta(self, number: int, delta: JsonObject) -> Iterator[Update]:
        block = self._blocks.setdefault(number, _Block())
        block.add(delta)
        match delta:
            case {"text": str(text)} if text:
                yield TextDelta(text)
            case {"reasoningContent": {"text": str(text)}} if text:
                yield ReasoningDelta(text)
            case {"toolUse": {"input": str(text)}} if text and number in self._calls:
                use = block.fields("toolUse")
                id_, name = as_text(use.get("toolUseId")), as_text(use.get("name"))
                yield CallDelta(self._calls[number], id_, name, text)
            case _:
                pass


@dataclass(slots=True)
class _Block:
    """The part of a block that has arrived: the pieces of each kind, in the order of their arrival."""

    pieces: dict[str, list[Json]] = field(default_factory=dict)

    def add(self, piece: JsonObject) -> None:
        for kind, value in piece.items():
            self.pieces.setdefault(kind, []).append(value)

    def fields(self, kind: str) -> JsonObject:
        """What the start of the block says."""
        return as_object(next(iter(self.pieces.get(kind, ())), None))

    def assembled(self) -> JsonObject:
        """The block as it is in an answer that was not streamed. Empty if nothing has arrived."""
        pieces = self.pieces
        if "citation" in pieces:
            texts: list[Json] = [{"text": _joined(pieces["text"])}] if "text" in pieces else []
            return {
                "citationsContent": {"content": texts, "citations": [_cleaned(each) for each in pieces["citation"]]}
            }
        return {kind: self._value(kind) for kind in pieces}

    def _value(self, kind: str) -> Json:
        pieces = self.pieces[kind]
        match kind:
            case "text":
                return _joined(pieces)
            case "toolUse":
                use = _merged(pieces)
                return {**use, "input": call_input(as_text(use.get("input")))}
            case "toolResult":
                return _tool_result(pieces)
            case "reasoningContent":
                reasoning = _merged(pieces)
                text = {name: value for name, value in reasoning.items() if name in {"text", "signature"}}
                rest = {name: value for name, value in reasoning.items() if name not in text}
                return {"reasoningText": {"text": "", **text}, **rest} if text or not rest else rest
            case _:
                whole = pieces[0]
                return _merged(pieces) if isinstance(whole, dict) else _cleaned(whole if len(pieces) == 1 else pieces)


def _tool_result(pieces: list[Json]) -> JsonObject:
    """The result of a tool of the service: its start, then lists of parts. A text may arrive in several parts."""
    content: list[Json] = []
    texts: list[Json] = []
    for part in [part for piece in pieces for part in as_objects(piece)] + [{}]:
        if isinstance(part.get("text"), str):
            texts.append(part["text"])
            continue
        if texts:
            content.append({"text": _joined(texts)})
            texts = []
        if part:
            content.append(_cleaned(part))
    return {**_merged([each for each in pieces if isinstance(each, dict)]), "content": content}


def _merged(pieces: list[Json]) -> JsonObject:
    """The fields of all pieces. Texts are joined, lists are appended, and other values replace those before them."""
    gathered: dict[str, list[Json]] = {}
    for piece in pieces:
        for name, value in as_object(piece).items():
            gathered.setdefault(name, []).append(value)
    return {joined([name]): _one(name, values) for name, values in gathered.items()}


def _one(name: str, values: list[Json]) -> Json:
    if all(isinstance(each, str) for each in values):
        return _data(cast("list[str]", values)) if name in _DATA else _joined(values)
    if all(isinstance(each, dict) for each in values):
        return _merged(values)
    if all(isinstance(each, list) for each in values):
        return [_cleaned(each) for value in cast("list[list[Json]]", values) for each in value]
    return _cleaned(values[-1])


def _data(pieces: list[str]) -> str:
    """The base64 of data in pieces, each of which is base64 by itself."""
    if len(pieces) == 1:
        return joined(pieces)
    try:
        return b64encode(b"".join(b64decode(each, validate=True) for each in pieces)).decode()
    except ValueError:
        return joined(pieces)


def _joined(pieces: list[Json]) -> str:
    return joined([as_text(each) for each in pieces])


def _cleaned(value: Json) -> Json:
    """The value without lone surrogates, which no text may contain."""
    if isinstance(value, str):
        return joined([value])
    if isinstance(value, list):
        return [_cleaned(each) for each in value]
    if isinstance(value, dict):
        return {joined([name]): _cleaned(each) for name, each in value.items()}
    return value


def _whole(block: Json) -> JsonObject:
    """A block of an answer that was not streamed, with an input of a call that is an object."""
    whole = as_object(block)
    use = whole.get("toolUse")
    if isinstance(use, dict) and not isinstance(value := use.get("input"), dict):
        return {**whole, "toolUse": {**use, "input": call_input(_text(value))}}
    return whole


def _text(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _answer(blocks: list[JsonObject], stopped: JsonObject, metadata: JsonObject) -> Answer:
    try:
        check_json(blocks, "content")
    except InvalidContentError as error:
        raise ValueError(str(error)) from None
    message = Message(role="assistant", contents=tuple(map(_content, blocks)))
    reason = as_text(stopped.get("stopReason")) or None
    counts = as_object(metadata.get("usage"))
    usage = _usage(counts) if counts else None
    about = as_object(_cleaned(unknown({**stopped, **metadata}, _KNOWN_REPLY)))
    if reason in _SHARED_REASONS:
        about["stopReason"] = reason
    if usage is not None and (left := unread(counts, _READ_USAGE, ("totalTokens", usage.total_tokens))):
        about["usage"] = _cleaned(left)
    signed = any(map(is_signed, blocks))
    message = with_native(
        message, NAME, written_blocks_of(message), [*blocks], reply=about, signed=signed, kept=has_raw(message)
    )
    return Answer(
        message,
        None if reason is None else _FINISH_REASONS.get(reason, reason),
        usage,
    )


def _content(block: JsonObject) -> Content:
    match block:
        case {"text": str(text)}:
            return Text(text=text)
        case {"citationsContent": {"content": list(parts)}} if parts and all(map(_is_text, parts)):
            return Text(text="".join(as_text(as_object(part)["text"]) for part in parts))
        case {"reasoningContent": {"reasoningText": {"text": str(text)}}}:
            return Reasoning(text=text)
        case {"toolUse": {"toolUseId": str(id_), "name": str(name), "input": dict(value), **rest}} if (
            "type" not in rest
        ):
            return FunctionCall(call_id=id_, name=name, arguments=_arguments(value))
        case _:
            return Raw(value=block)


def _is_text(part: Json) -> bool:
    return isinstance(part, dict) and isinstance(part.get("text"), str)


def _arguments(value: JsonObject) -> str:
    """The arguments as text: the model's own if they are not an object."""
    match value:
        case {"INVALID_JSON": str(text)} if call_input(text) == value:
            return text
        case _:
            return json.dumps(value, ensure_ascii=False)


def _usage(usage: JsonObject) -> TokenUsage:
    """The tokens. The service does not count those of its cache as input tokens."""
    cached = as_count(usage.get("cacheReadInputTokens"))
    return TokenUsage(
        input_tokens=as_count(usage.get("inputTokens")) + cached + as_count(usage.get("cacheWriteInputTokens")),
        output_tokens=as_count(usage.get("outputTokens")),
        cached_tokens=cached,
    )
