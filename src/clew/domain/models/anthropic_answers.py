"""Answers of Anthropic's Messages, complete or as events: the message is the same either way."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

from clew.domain.json_values import Json, JsonObject, parse_json, storable
from clew.domain.messages import Content, FunctionCall, Message, Raw, Reasoning, Text
from clew.domain.models.chat_answers import as_count, as_object, as_objects, as_text
from clew.domain.models.client import (
    Answer,
    CallDelta,
    ReasoningDelta,
    TextDelta,
    TokenUsage,
    Update,
    joined,
    other_tier,
    parts_of,
)
from clew.domain.models.native import add_counts, has_raw, merge, replace, rest_of, unknown, unread, with_native
from clew.domain.models.shapes import OddValues, Shape

WIRE = "anthropic-messages"
"""The name of the format."""

SIGNED = frozenset({"thinking", "redacted_thinking"})
"""Types of blocks that are bound to what came before them."""

_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
}
_KNOWN_REPLY = frozenset({"id", "model", "role", "stop_reason", "type"})
_CONTENT = frozenset({"content"})
_READ_USAGE = {
    "input_tokens": (),
    "output_tokens": (),
    "cache_read_input_tokens": (),
    "output_tokens_details": ("thinking_tokens",),
}
"""Fields that are read. All others are kept in the native JSON of the answer."""
_MESSAGE: dict[str, Shape] = {
    "content": [dict],
    "id": str,
    "model": str,
    "role": frozenset({"assistant", ""}),
    "stop_reason": str,
    "type": frozenset({"message"}),
    "usage": dict,
}
_BLOCK: Shape = {"citations": list, "signature": str, "text": str, "thinking": str}
_READ_EVENTS: dict[str, dict[str, Shape]] = {
    "content_block_delta": {"type": str, "index": int, "delta": dict},
    "content_block_start": {"type": str, "index": int, "content_block": _BLOCK},
    "content_block_stop": {"type": str, "index": int},
    "message_delta": {"delta": {name: each for name, each in _MESSAGE.items() if name != "content"}, "usage": dict},
    "message_start": {"type": str, "message": _MESSAGE},
    "message_stop": {"type": str},
    "ping": {"type": str},
}
_READ_DELTAS: dict[str, dict[str, Shape]] = {
    "citations_delta": {"type": str, "citation": dict},
    "compaction_delta": {"type": str, "content": str, "encrypted_content": str},
    "input_json_delta": {"type": str, "partial_json": str},
    "signature_delta": {"type": str, "signature": str},
    "text_delta": {"type": str, "text": str},
    "thinking_delta": {"type": str, "thinking": str},
}
"""Fields of events and of their deltas that are read. An event with others is kept, with these others."""
_PIECE_FIELDS = ("text", "thinking", "signature", "input")
_PIECES = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}


class AnthropicAnswer:
    """Assembles an answer.

    Attributes: ``begun``, whether a part of it has arrived, and ``failure``, the error that the service sent instead.
    """

    def __init__(self) -> None:
        self.begun = False
        self.failure: Json = None
        self._is_complete = False
        self._reply: JsonObject = {}
        self._usage: JsonObject = {}
        self._blocks: dict[Json, JsonObject] = {}
        self._pieces: dict[tuple[Json, str], list[str]] = {}
        self._events: list[Json] = []
        self._earlier: list[Json] = []
        self._odd = OddValues()

    def take(self, event: JsonObject) -> Iterator[Update]:
        """Read an event of a stream, and yield what it adds."""
        kind = as_text(event.get("type"))
        shape = _READ_EVENTS.get(kind)
        if kind != "message_delta" and (rest := rest_of(event, shape)) is not None:
            self._events.append(rest)  # all fields of a message_delta are the answer's
        match self._odd.without(event, shape, f"/{kind}"):
            case {"type": "content_block_delta", "delta": dict(delta), **rest}:
                yield from self._delta(rest.get("index"), delta)
            case {"type": "content_block_start", "content_block": dict(block), **rest}:
                self.begun = True
                self._start(rest.get("index"), block)
            case {"type": "message_start", "message": dict(message)}:
                self._about(unknown(message, _CONTENT))
                for place, block in enumerate(as_objects(message.get("content"))):
                    self._start(place, block)
            case {"type": "message_delta", **rest}:
                self._about(unknown(rest, frozenset({"delta"})))
                self._about(as_object(rest.get("delta")))
            case {"type": "message_stop"}:
                self._is_complete = True
            case {"type": "error"} | {"error": dict() | str()}:
                self.failure = event.get("error") or event

    def take_whole(self, message: JsonObject) -> Iterator[Update]:
        """Read a complete reply, and yield its contents."""
        if message.get("type") == "error" or not isinstance(message.get("content"), list):
            self.failure = message.get("error")
            return
        message = self._odd.without(message, _MESSAGE)
        self._about(unknown(message, _CONTENT))
        self._blocks = dict(enumerate(as_objects(message.get("content"))))
        self.begun = True
        self._is_complete = message.get("stop_reason") is not None
        calls = 0
        for content in _contents(self._ended()):
            match content:
                case Text(text=text) if text:
                    yield TextDelta(text)
                case Reasoning(text=text) if text:
                    yield ReasoningDelta(text)
                case FunctionCall(call_id=id_, name=name, arguments=arguments):
                    yield CallDelta(calls, id_, name, arguments)
                    calls += 1

    def answer(self) -> Answer | None:
        """The answer; None until the service has completed it."""
        if not self._is_complete:
            return None
        blocks = [*self._ended()]
        message = Message(role="assistant", contents=tuple(_contents(blocks)))
        usage = _usage(self._usage) if self._usage else None
        more: JsonObject = {}
        replace(more, unknown(self._reply, _KNOWN_REPLY))
        replace(more, {"usage": unread(self._usage, _READ_USAGE)})
        reason = as_text(self._reply.get("stop_reason"))
        if reason == "stop_sequence":  # as finish reason it is "stop", as the usual end is
            more["stop_reason"] = reason
        about: JsonObject = {"reply": more, "events": self._events, "earlier": self._earlier, "odd": self._odd.found}
        received: JsonObject = {"content": [*blocks], **{name: each for name, each in about.items() if each}}
        signed = any(as_text(block.get("type")) in SIGNED for block in blocks)
        written: JsonObject = {"content": [*written_blocks(message)]}
        return Answer(
            with_native(message, WIRE, written, received, signed=signed, kept=has_raw(message)),
            _REASONS.get(reason, reason) or None,
            usage,
            as_text(self._reply.get("model")) or None,
            as_text(self._reply.get("id")) or None,
        )

    def _about(self, message: JsonObject) -> None:
        """Read what a message has besides its content. Later values replace earlier ones, of which counts say less."""
        if earlier := replace(self._reply, unknown(message, frozenset({"usage"}))):
            self._earlier.append(earlier)
        add_counts(self._usage, as_object(message.get("usage")), self._earlier)

    def _start(self, place: Json, block: JsonObject) -> None:
        """Begin a block. It replaces one with the same index, which no service should send."""
        if place in self._blocks:
            self._earlier.append({"content_block": self._block(place)})
            for name in _PIECE_FIELDS:
                self._pieces.pop((place, name), None)
        self._blocks[place] = dict(block)
        for name in ("text", "thinking", "signature"):
            if isinstance(begin := block.get(name), str):
                self._pieces[place, name] = [begin]

    def _delta(self, place: Json, delta: JsonObject) -> Iterator[Update]:
        self.begun = True
        block = self._blocks.setdefault(place, {})
        kind = as_text(delta.get("type"))
        shape = _READ_DELTAS.get(kind)
        if (rest := rest_of(delta, shape)) is not None:
            self._events.append({"type": "content_block_delta", "index": place, "delta": rest})
        delta = self._odd.without(delta, shape, f"/content_block_delta/{kind}")
        if (name := _PIECES.get(kind)) is not None:
            text = as_text(delta.get(name))
            self._pieces.setdefault((place, name), []).append(text)
            if text and kind == "text_delta":
                yield TextDelta(text)
            elif text and kind == "thinking_delta":
                yield ReasoningDelta(text)
        elif kind == "input_json_delta":
            text = as_text(delta.get("partial_json"))
            if text and (begun := block.get("input")):
                self._earlier.append({"path": f"/json/content/{place}/input", "value": begun})
                block["input"] = None
            self._pieces.setdefault((place, "input"), []).append(text)
            if block.get("type") == "tool_use":
                yield CallDelta(self._number(place), as_text(block.get("id")), as_text(block.get("name")), text)
        elif kind == "citations_delta":
            if (citation := delta.get("citation")) is not None:
                block["citations"] = [*_listed(block.get("citations")), citation]
        else:
            merge(block, unknown(delta, frozenset({"type"})), self._earlier, f"/json/content/{place}")

    def _number(self, place: Json) -> int:
        """The number of a function call among those of the answer."""
        calls = [each for each, block in self._blocks.items() if block.get("type") == "tool_use"]
        return calls.index(place)

    def _ended(self) -> Iterator[JsonObject]:
        """The blocks with the pieces that have arrived."""
        return map(self._block, self._blocks)

    def _block(self, place: Json) -> JsonObject:
        ended = dict(self._blocks[place])
        for name in ("text", "thinking", "signature"):
            if (pieces := self._pieces.get((place, name))) is not None:
                ended[name] = joined(pieces)
        if text := "".join(self._pieces.get((place, "input"), ())):
            ended["input"] = _parsed(text)
        return as_object(storable(_without_none(ended)))


def _contents(blocks: Iterable[JsonObject]) -> Iterator[Content]:
    for block in blocks:
        match block:
            case {"type": "text", "text": str(text)}:
                yield Text(text=text)
            case {"type": "thinking", "thinking": str(text)}:
                yield Reasoning(text=text)
            case {"type": "tool_use", "name": str(name)}:
                yield FunctionCall(call_id=as_text(block.get("id")), name=name, arguments=_text(block.get("input")))
            case _:
                yield Raw(value=block)


def written_blocks(message: Message) -> Iterator[Json]:
    """The blocks of an answer as this format has them for the contents alone. Its native JSON is the difference."""
    for content in message.contents:
        match content:
            case Text(text=text):
                yield {"type": "text", "text": text}
            case Reasoning(text=text):
                yield {"type": "thinking", "thinking": text}
            case FunctionCall(call_id=id_, name=name, arguments=arguments):
                yield {"type": "tool_use", "id": id_, "name": name, "input": call_input(arguments)}
            case Raw(value=value):
                yield value


def call_input(arguments: str) -> JsonObject:
    """The arguments of a call as an object, which the service requires; what is none goes in one."""
    value = _parsed(arguments or "{}")
    return value if isinstance(value, dict) else {"arguments": value}


def _parsed(text: str) -> Json:
    try:
        return parse_json(text)
    except (ValueError, RecursionError):
        return text


def _text(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps({} if value is None else value, ensure_ascii=False)


def _listed(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _without_none(fields: Mapping[str, Json]) -> JsonObject:
    return {name: value for name, value in fields.items() if value is not None}


def _usage(usage: JsonObject) -> TokenUsage:
    """The tokens. The service counts those that its cache read and wrote apart from its input."""
    cached = as_count(usage.get("cache_read_input_tokens"))
    written = as_count(usage.get("cache_creation_input_tokens"))
    return TokenUsage(
        input_tokens=as_count(usage.get("input_tokens")) + cached + written,
        output_tokens=as_count(usage.get("output_tokens")),
        cached_tokens=cached,
        reasoning_tokens=as_count(as_object(usage.get("output_tokens_details")).get("thinking_tokens")),
        parts=parts_of(
            cache_write=written,
            cache_write_1h=as_count(as_object(usage.get("cache_creation")).get("ephemeral_1h_input_tokens")),
            web_searches=as_count(as_object(usage.get("server_tool_use")).get("web_search_requests")),
        ),
        tier=other_tier(usage.get("speed")) or other_tier(usage.get("service_tier")),
    )
