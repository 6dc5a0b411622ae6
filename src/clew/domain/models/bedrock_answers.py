"""Answers of Amazon Bedrock's Converse API, complete or in events: the message is the same either way."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

from clew.domain.json_patch import escaped
from clew.domain.json_values import Json, JsonObject, storable
from clew.domain.messages import Content, FunctionCall, Message, Raw, Reasoning, Text
from clew.domain.models.bedrock_requests import NAME, call_input, is_signed, written_blocks_of
from clew.domain.models.chat_answers import as_count, as_object, as_objects, as_text
from clew.domain.models.client import (
    Answer,
    CallDelta,
    ReasoningDelta,
    TextDelta,
    TokenUsage,
    Update,
    joined,
    parts_of,
)
from clew.domain.models.native import add_counts, gather, has_raw, rest_of, unknown, unread, with_native
from clew.domain.models.shapes import OddValues, Shape

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
_READ_USAGE = {"inputTokens": (), "outputTokens": (), "cacheReadInputTokens": ()}
_ENDS = frozenset({"messageStop", "metadata"})
"""The events at the end of an answer: they say what a reply that was not streamed says of the whole answer."""
_PADDING = frozenset({"p"})
"""Random letters that hide the length of an event."""
_REPLY: Shape = {"output": {"message": {"content": [dict]}}, "stopReason": str, "usage": dict}
_USE: dict[str, Shape] = {"name": str, "toolUseId": str}
_REASONING: Shape = {"redactedContent": str, "signature": str, "text": str}
_DELTA: Shape = {
    "citation": dict,
    "image": dict,
    "reasoningContent": _REASONING,
    "text": str,
    "toolResult": [dict],
    "toolUse": {**_USE, "input": str},
}
_READ_EVENTS: dict[str, dict[str, Shape]] = {
    "contentBlockStart": {"contentBlockIndex": int, "start": {"image": dict, "toolResult": dict, "toolUse": _USE}},
    "contentBlockDelta": {"contentBlockIndex": int, "delta": _DELTA},
    "contentBlockStop": {"contentBlockIndex": int},
    "messageStart": {},
}
_END: Shape = {"stopReason": str, "usage": dict}
"""Fields of events that are read. All others, and all other events, are kept in the native JSON of the answer."""
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
        self._ends: set[str] = set()
        self._reply: JsonObject = {}
        self._usage: JsonObject = {}
        self._events: list[Json] = []
        self._earlier: list[Json] = []
        self._odd = OddValues()
        self._answer: Answer | None = None

    def take(self, event: JsonObject) -> Iterator[Update]:
        """Read an event of a stream, ``{type: payload}``, and yield what it adds."""
        for kind, value in event.items():
            if kind.lower().endswith("exception"):
                self.failure = {"code": kind, **as_object(value)}
                return
            if not isinstance(value, dict):
                self._events.append({kind: value})
                continue
            for update in self._event(kind, unknown(value, _PADDING) if isinstance(value.get("p"), str) else value):
                self.begun = True
                yield update
        if self._ends == _ENDS:
            earlier = [*self._earlier]
            blocks = [
                block for number, each in sorted(self._blocks.items()) if (block := each.assembled(number, earlier))
            ]
            self._answer = self._made(blocks, earlier)

    def take_whole(self, reply: JsonObject) -> Iterator[Update]:
        """Read a complete reply, and yield its contents."""
        reply = self._odd.without(reply, _REPLY)
        output = as_object(reply.get("output"))
        message = output.get("message")
        if not isinstance(message, dict):
            return
        fields = _unrepeated(unknown(message, frozenset({"content"})))
        output = {**output, "message": fields} if fields else unknown(output, frozenset({"message"}))
        self._about({**unknown(reply, frozenset({"output"})), **({"output": output} if output else {})})
        self._answer = self._made([_whole(block) for block in as_objects(message.get("content"))], self._earlier)
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
        if kind in _ENDS:
            self._ends.add(kind)
            self._about(self._odd.without(payload, _END, f"/{kind}"))
            return
        shape = _READ_EVENTS.get(kind)
        if (rest := rest_of(_unrepeated(payload), shape)) is not None:
            self._events.append({kind: rest})
        payload = self._odd.without(payload, shape, f"/{kind}")
        number = as_count(payload.get("contentBlockIndex"))
        if kind == "contentBlockStart":
            yield from self._started(number, as_object(payload.get("start")))
        elif kind == "contentBlockDelta":
            yield from self._delta(number, as_object(payload.get("delta")))

    def _about(self, fields: JsonObject) -> None:
        """Read what the service sends about the whole answer."""
        add_counts(self._usage, as_object(fields.get("usage")), self._earlier)
        gather(self._reply, unknown(fields, frozenset({"usage"})), self._earlier, path="/reply")

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

    def _made(self, blocks: Sequence[JsonObject], earlier: list[Json]) -> Answer:
        blocks = as_objects(storable([*blocks]))
        message = Message(role="assistant", contents=tuple(map(_content, blocks)))
        reason = as_text(self._reply.get("stopReason")) or None
        usage = _usage(self._usage) if self._usage else None
        reply: JsonObject = {name: value for name, value in self._reply.items() if value is not None}
        if reason not in _SHARED_REASONS:
            reply.pop("stopReason", None)
        if usage is not None and (left := unread(self._usage, _READ_USAGE, ("totalTokens", usage.total_tokens))):
            reply["usage"] = left
        about: JsonObject = {"events": self._events, "earlier": earlier, "odd": self._odd.found}
        reply |= {name: each for name, each in about.items() if each}
        signed = any(map(is_signed, blocks))
        written = written_blocks_of(message)
        return Answer(
            with_native(message, NAME, written, [*blocks], reply=reply, signed=signed, kept=has_raw(message)),
            None if reason is None else _FINISH_REASONS.get(reason, reason),
            usage,
        )


def _unrepeated(fields: JsonObject) -> JsonObject:
    """The fields of a message without its role, which every answer has."""
    return {name: value for name, value in fields.items() if (name, value) != ("role", "assistant")}


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

    def assembled(self, number: int, earlier: list[Json]) -> JsonObject:
        """The block as it is in an answer that was not streamed. Empty if nothing has arrived.

        ``earlier`` gets values that others replaced, each with its path.
        """
        values = {kind: _value(kind, each, earlier, f"/json/{number}") for kind, each in self.pieces.items()}
        if "citation" not in values:
            return values
        text, citations = values.pop("text", None), values.pop("citation")
        texts: list[Json] = [] if text is None else [{"text": text}]
        return {"citationsContent": {"content": texts, "citations": citations}, **values}


def _value(kind: str, pieces: list[Json], earlier: list[Json], path: str) -> Json:
    match kind:
        case "citation":
            return [*pieces]
        case "toolUse":
            use = as_object(_one(kind, pieces, earlier, path))
            given = use.get("input")
            return {**use, "input": given if isinstance(given, dict) else call_input(_text(given or ""))}
        case "toolResult":
            return _tool_result(pieces, earlier, path)
        case "reasoningContent":
            reasoning = as_object(_one(kind, pieces, earlier, path))
            text = {name: value for name, value in reasoning.items() if name in {"text", "signature"}}
            rest = {name: value for name, value in reasoning.items() if name not in text}
            return {"reasoningText": {"text": "", **text}, **rest} if text or not rest else rest
        case _:
            return _one(kind, pieces, earlier, path)


def _tool_result(pieces: list[Json], earlier: list[Json], path: str) -> JsonObject:
    """The result of a tool of the service: its start, then lists of parts. A text may arrive in several parts."""
    content: list[Json] = []
    texts: list[str] = []
    for part in [part for piece in pieces for part in as_objects(piece)] + [{}]:
        if part.keys() == {"text"} and isinstance(text := part["text"], str):
            texts.append(text)
            continue
        if texts:
            content.append({"text": joined(texts)})
            texts = []
        if part:
            content.append(part)
    begun = as_objects(pieces)
    start = as_object(_one("toolResult", [*begun], earlier, path)) if begun else {}
    if (before := start.get("content")) is not None:
        earlier.append({"path": f"{path}/toolResult/content", "value": before})
    return {**start, "content": content}


def _one(name: str, values: list[Json], earlier: list[Json], path: str) -> Json:
    """One value of several pieces: texts are joined, lists are appended, and objects are joined field by field.

    Of others the last one holds; those before go to ``earlier``.
    """
    at = f"{path}/{escaped(name)}"
    if all(isinstance(each, str) for each in values):
        texts = cast("list[str]", values)
        return _data(texts) if name in _DATA else joined(texts)
    if all(isinstance(each, list) for each in values):
        return [each for value in cast("list[list[Json]]", values) for each in value]
    if all(isinstance(each, dict) for each in values):
        gathered: dict[str, list[Json]] = {}
        for piece in cast("list[JsonObject]", values):
            for field_name, value in piece.items():
                gathered.setdefault(field_name, []).append(value)
        return {field_name: _one(field_name, each, earlier, at) for field_name, each in gathered.items()}
    *before, last = values
    earlier += [{"path": at, "value": value} for value in before if value != last]
    return last


def _data(pieces: list[str]) -> str:
    """The base64 of data in pieces, each of which is base64 by itself."""
    if len(pieces) == 1:
        return joined(pieces)
    try:
        return b64encode(b"".join(b64decode(each, validate=True) for each in pieces)).decode()
    except ValueError:
        return joined(pieces)


def _whole(block: Json) -> JsonObject:
    """A block of an answer that was not streamed, with an input of a call that is an object."""
    whole = as_object(block)
    use = whole.get("toolUse")
    if isinstance(use, dict) and not isinstance(value := use.get("input"), dict):
        return {**whole, "toolUse": {**use, "input": call_input(_text(value))}}
    return whole


def _text(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


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
    cached, written = as_count(usage.get("cacheReadInputTokens")), as_count(usage.get("cacheWriteInputTokens"))
    for_an_hour = (each for each in as_objects(usage.get("cacheDetails")) if each.get("ttl") == "1h")
    return TokenUsage(
        input_tokens=as_count(usage.get("inputTokens")) + cached + written,
        output_tokens=as_count(usage.get("outputTokens")),
        cached_tokens=cached,
        parts=parts_of(
            cache_write=written, cache_write_1h=sum(as_count(each.get("inputTokens")) for each in for_an_hour)
        ),
    )
