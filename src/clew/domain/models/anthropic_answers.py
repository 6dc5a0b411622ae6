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
from clew.domain.models.native import has_raw, merge, replace, rest_of, unknown, unread, with_native

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
_KNOWN_REPLY = frozenset({"content", "id", "model", "role", "stop_reason", "type", "usage"})
_READ_APART = frozenset({"content", "usage"})
_READ_USAGE = {
    "input_tokens": (),
    "output_tokens": (),
    "cache_read_input_tokens": (),
    "output_tokens_details": ("thinking_tokens",),
}
"""Fields that are read. All others are kept in the native JSON of the answer."""
_READ_EVENTS = {
    "content_block_delta": frozenset({"type", "index", "delta"}),
    "content_block_start": frozenset({"type", "index", "content_block"}),
    "content_block_stop": frozenset({"type", "index"}),
    "message_start": frozenset({"type", "message"}),
    "message_stop": frozenset({"type"}),
    "ping": frozenset({"type"}),
}
_READ_DELTAS = {
    "citations_delta": frozenset({"type", "citation"}),
    "compaction_delta": frozenset({"type", "content", "encrypted_content"}),
    "input_json_delta": frozenset({"type", "partial_json"}),
    "signature_delta": frozenset({"type", "signature"}),
    "text_delta": frozenset({"type", "text"}),
    "thinking_delta": frozenset({"type", "thinking"}),
}
"""Fields of events and of their deltas that are read. An event with others is kept, with these others."""
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

    def take(self, event: JsonObject) -> Iterator[Update]:
        """Read an event of a stream, and yield what it adds."""
        kind = as_text(event.get("type"))
        if kind != "message_delta" and (rest := rest_of(event, _READ_EVENTS.get(kind))) is not None:
            self._events.append(rest)  # all fields of a message_delta are the answer's
        match event:
            case {"type": "content_block_delta", "delta": dict(delta)}:
                yield from self._delta(event.get("index"), delta)
            case {"type": "content_block_start", "content_block": dict(block)}:
                self.begun = True
                place = event.get("index")
                self._blocks[place] = dict(block)
                for name in ("text", "thinking", "signature"):
                    if isinstance(begin := block.get(name), str):
                        self._pieces[place, name] = [begin]
            case {"type": "message_start", "message": dict(message)}:
                self._about(message)
                self._blocks.update(enumerate(as_objects(message.get("content"))))
            case {"type": "message_delta", "delta": dict(delta)}:
                self._about({name: value for name, value in event.items() if name not in {"type", "delta"}})
                self._about(delta)
            case {"type": "message_stop"}:
                self._is_complete = True
            case {"type": "error"} | {"error": _}:
                self.failure = event.get("error") or event

    def take_whole(self, message: JsonObject) -> Iterator[Update]:
        """Read a complete reply, and yield its contents."""
        if message.get("type") == "error" or not isinstance(message.get("content"), list):
            self.failure = message.get("error")
            return
        self._about(message)
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
        received: JsonObject = {"content": [*blocks], **({"reply": more} if more else {})}
        if self._events:
            received["events"] = self._events
        if self._earlier:
            received["earlier"] = self._earlier
        signed = any(block.get("type") in SIGNED for block in blocks)
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
        earlier = replace(self._reply, {name: each for name, each in message.items() if name not in _READ_APART})
        used = replace(self._usage, as_object(message.get("usage")))
        if said := {name: value for name, value in used.items() if not _is_count(value)}:
            earlier["usage"] = said
        if earlier:
            self._earlier.append(earlier)

    def _delta(self, place: Json, delta: JsonObject) -> Iterator[Update]:
        self.begun = True
        block = self._blocks.setdefault(place, {})
        kind = as_text(delta.get("type"))
        if (name := _PIECES.get(kind)) is not None:
            text = as_text(delta.get(name))
            self._pieces.setdefault((place, name), []).append(text)
            if text and kind == "text_delta":
                yield TextDelta(text)
            elif text and kind == "thinking_delta":
                yield ReasoningDelta(text)
        elif kind == "input_json_delta":
            text = as_text(delta.get("partial_json"))
            self._pieces.setdefault((place, "input"), []).append(text)
            if block.get("type") == "tool_use":
                yield CallDelta(self._number(place), as_text(block.get("id")), as_text(block.get("name")), text)
        elif kind == "citations_delta":
            block["citations"] = [*_listed(block.get("citations")), delta.get("citation")]
        else:
            merge(block, {name: value for name, value in delta.items() if name != "type"})
        if (rest := rest_of(delta, _READ_DELTAS.get(kind))) is not None:
            self._events.append({"type": "content_block_delta", "index": place, "delta": rest})

    def _number(self, place: Json) -> int:
        """The number of a function call among those of the answer."""
        calls = [each for each, block in self._blocks.items() if block.get("type") == "tool_use"]
        return calls.index(place)

    def _ended(self) -> Iterator[JsonObject]:
        """The blocks with the pieces that have arrived."""
        for place, block in self._blocks.items():
            ended = dict(block)
            for name in ("text", "thinking", "signature"):
                if (pieces := self._pieces.get((place, name))) is not None:
                    ended[name] = joined(pieces)
            if text := "".join(self._pieces.get((place, "input"), ())):
                ended["input"] = _parsed(text)
            yield as_object(storable(_without_none(ended)))


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


def _is_count(value: Json) -> bool:
    return isinstance(value, int) or (isinstance(value, dict) and all(map(_is_count, value.values())))


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
