"""Answers of Gemini's generateContent, complete or in pieces: the message is the same either way."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import get_args

from clew.domain.json_values import Json, JsonObject, storable
from clew.domain.messages import Content, FunctionCall, Message, Raw, Reasoning, Text
from clew.domain.models.chat_answers import as_count, as_object, as_objects, as_text
from clew.domain.models.client import (
    Answer,
    CallDelta,
    ReasoningDelta,
    TextDelta,
    TokenPart,
    TokenUsage,
    Update,
    joined,
    parts_of,
)
from clew.domain.models.native import add_counts, gather, has_raw, unknown, unread, with_native
from clew.domain.models.shapes import OddValues, Shape

WIRE = "gemini"
"""The name of the format."""

SIGNATURE = "thoughtSignature"
"""The field of a part that the service must get back as it sent it."""

_REASONS = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    **dict.fromkeys(
        (
            *("BLOCKLIST", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION", "IMAGE_SAFETY", "LANGUAGE"),
            *("MODEL_ARMOR", "PROHIBITED_CONTENT", "RECITATION", "SAFETY", "SPII"),
        ),
        "content_filter",
    ),
}
_PARTS = frozenset(get_args(TokenPart))
_REPLY: Shape = {
    "candidates": [{"content": {"parts": [dict]}, "finishReason": str, "index": int}],
    "modelVersion": str,
    "responseId": str,
    "usageMetadata": dict,
}
_READ_REPLY = frozenset({"candidates", "usageMetadata"})
_ABOUT = frozenset({"modelVersion", "responseId"})
_READ_USAGE = {
    "cachedContentTokenCount": (),
    "candidatesTokenCount": (),
    "promptTokenCount": (),
    "thoughtsTokenCount": (),
}
_READ_CANDIDATE = frozenset({"content", "finishReason", "index"})
_READ_CONTENT = frozenset({"parts"})
"""Fields that are read. All others are kept in the native JSON of the answer."""
_PIECES = frozenset({"chosenCandidates", "topCandidates"})
"""Lists of which each piece of a stream has the items of its own tokens, which may equal those before."""


@dataclass(slots=True)
class _Candidate:
    """One of the answers of a reply, as far as it has arrived: the service may be asked for several."""

    earlier: list[Json]
    parts: list[JsonObject] = field(default_factory=list)
    texts: list[list[str]] = field(default_factory=list)
    """The pieces of each part's text; none for a part of another kind."""
    content: JsonObject = field(default_factory=dict)
    """What its content has beyond the parts."""
    more: JsonObject = field(default_factory=dict)
    """What it has beyond the content and the reason of its end."""
    reason: str = ""

    def add(self, candidate: JsonObject) -> Iterator[JsonObject]:
        """Add what a piece of a stream has, or a whole reply, and yield the parts that say something.

        A text continues only in the first part of the next piece: two texts in one piece are two parts.
        """
        if reason := as_text(candidate.get("finishReason")):
            if self.reason not in {"", reason}:
                self.earlier.append({"path": "/json/candidate/finishReason", "value": self.reason})
            self.reason = reason
        if candidate.keys() - _READ_CANDIDATE:
            gather(self.more, unknown(candidate, _READ_CANDIDATE), self.earlier, _PIECES, "/json/candidate")
        content = as_object(candidate.get("content"))
        if content.keys() - _READ_CONTENT:
            gather(self.content, unknown(content, _READ_CONTENT), self.earlier, path="/json/content")
        goes_on = bool(self.parts)
        for part in as_objects(content.get("parts")):
            text = part.get("text")
            if goes_on and isinstance(text, str) and self._continues(part):
                self.texts[-1].append(text)
            elif goes_on and part == {"text": ""}:  # many streams end with one
                continue
            else:
                self.parts.append(part)
                self.texts.append([text] if isinstance(text, str) else [])
            goes_on = False
            yield part

    def ended(self) -> list[JsonObject]:
        """The parts with all pieces of their texts."""
        pieces = zip(self.parts, self.texts, strict=True)
        return as_objects(storable([{**part, "text": joined(texts)} if texts else part for part, texts in pieces]))

    def _continues(self, part: JsonObject) -> bool:
        """Whether the last text continues in this part. A part with a signature is one of its own."""
        last = self.parts[-1]
        return (
            isinstance(last.get("text"), str)
            and SIGNATURE not in last
            and part.keys() == last.keys()
            and part.get("thought") == last.get("thought")
            and part.keys() <= {"text", "thought"}
        )


class GeminiAnswer:
    """Assembles an answer. Each piece of a stream is a whole response with new parts.

    The answer is the first of several candidates; the others are kept, and never sent. Attributes: ``begun``, whether a
    part of it has arrived, and ``failure``, the error that the service sent instead.
    """

    def __init__(self) -> None:
        self.begun = False
        self.failure: Json = None
        self._blocked = ""
        self._earlier: list[Json] = []
        self._candidates: dict[int, _Candidate] = {}
        self._usage: JsonObject = {}
        self._more: JsonObject = {}
        self._odd = OddValues()
        self._calls = 0

    def take(self, reply: JsonObject) -> Iterator[Update]:
        """Read a piece of a stream, and yield what it adds."""
        if (failure := reply.get("error")) is not None:
            self.failure = failure
            return
        reply = self._odd.without(reply, _REPLY)
        if isinstance(usage := reply.get("usageMetadata"), dict):
            add_counts(self._usage, usage, self._earlier)
        if blocked := as_text(as_object(reply.get("promptFeedback")).get("blockReason")):
            self._blocked = blocked
            self.begun = True
        gather(self._more, unknown(reply, _READ_REPLY), self._earlier, path="/json/reply")
        for place, candidate in enumerate(as_objects(reply.get("candidates"))):
            number = as_count(candidate.get("index", place))
            if (found := self._candidates.get(number)) is None:
                found = self._candidates[number] = _Candidate(self._earlier)
            for part in found.add(candidate):
                if not number:
                    self.begun = True
                    yield from self._updates(part)

    def take_whole(self, reply: JsonObject) -> Iterator[Update]:
        """Read a complete reply, and yield its contents."""
        return self.take(reply)

    def answer(self) -> Answer | None:
        """The answer; None until the service has completed it."""
        first = self._candidates.get(0) or _Candidate(self._earlier)
        reason = self._blocked or first.reason
        if not reason:
            return None
        parts = first.ended()
        message = Message(role="assistant", contents=tuple(_contents(parts)))
        usage = _usage(self._usage) if self._usage else None
        more = {name: fields for name, fields in self._about(first, usage).items() if fields}
        message = with_native(
            message,
            WIRE,
            {"parts": [*written_parts(message)]},
            {"parts": [*parts], **more},
            kept=has_raw(message) or bool(message.calls),  # without it, calls get the signature of foreign ones
        )
        outcome = "content_filter" if self._blocked else _REASONS.get(reason, reason)
        outcome = "tool_calls" if message.calls and outcome == "stop" else outcome
        model, id_ = (as_text(self._more.get(name)) or None for name in ("modelVersion", "responseId"))
        return Answer(message, outcome, usage, model, id_)

    def _about(self, first: _Candidate, usage: TokenUsage | None) -> dict[str, Json]:
        """What the reply has besides its parts, and what neither the finish reason nor the tokens say."""
        candidate, reply = dict(first.more), unknown(self._more, _ABOUT)
        if first.reason and (self._blocked or _REASONS.get(first.reason) == "content_filter"):  # of several reasons
            candidate["finishReason"] = first.reason
        if usage is not None and (left := unread(self._usage, _READ_USAGE, ("totalTokenCount", usage.total_tokens))):
            reply["usageMetadata"] = left
        if others := [_whole(number, each) for number, each in sorted(self._candidates.items()) if number]:
            reply["candidates"] = [*others]
        content = {name: value for name, value in first.content.items() if (name, value) != ("role", "model")}
        kept: dict[str, Json] = {"content": content, "candidate": candidate, "reply": reply}
        return {**kept, "earlier": self._earlier, "odd": self._odd.found}

    def _updates(self, part: JsonObject) -> Iterator[Update]:
        text = part.get("text")
        if isinstance(text, str) and text:
            yield ReasoningDelta(text) if part.get("thought") else TextDelta(text)
        elif isinstance(call := part.get("functionCall"), dict):
            arguments = _arguments(call)
            yield CallDelta(self._calls, _call_id(call, self._calls), as_text(call.get("name")), arguments)
            self._calls += 1


def _whole(number: int, candidate: _Candidate) -> JsonObject:
    """A candidate as it is in a reply that was not streamed."""
    reason: JsonObject = {"finishReason": candidate.reason} if candidate.reason else {}
    content: JsonObject = {**candidate.content, "parts": [*candidate.ended()]}
    return {"index": number, "content": content, **reason, **candidate.more}


def written_parts(message: Message) -> Iterator[Json]:
    """The parts of an answer as this format has them for the contents alone. Its native JSON is the difference."""
    for content in message.contents:
        match content:
            case Text(text=text):
                yield {"text": text}
            case Reasoning(text=text):
                yield {"text": text, "thought": True}
            case FunctionCall(name=name, arguments=arguments):
                yield {"functionCall": {"name": name, "args": call_args(arguments)}}
            case Raw(value=value):
                yield value


def call_args(arguments: str) -> JsonObject:
    """The arguments of a call as an object, which the service requires; what is none goes in one."""
    try:
        value = json.loads(arguments or "{}", parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        value = arguments
    return value if isinstance(value, dict) else {"arguments": value}


def _contents(parts: Sequence[JsonObject]) -> Iterator[Content]:
    calls = 0
    for part in parts:
        match part:
            case {"text": str(text), "thought": True}:
                yield Reasoning(text=text)
            case {"text": str(text)}:
                yield Text(text=text)
            case {"functionCall": dict(call)}:
                yield FunctionCall(
                    call_id=_call_id(call, calls), name=as_text(call.get("name")), arguments=_arguments(call)
                )
                calls += 1
            case _:
                yield Raw(value=part)


def _call_id(call: JsonObject, number: int) -> str:
    """The id of a call. Some models send none."""
    return as_text(call.get("id")) or f"call_{number + 1}"


def _arguments(call: JsonObject) -> str:
    return json.dumps(call.get("args") or {}, ensure_ascii=False)


def _usage(usage: JsonObject) -> TokenUsage:
    thoughts = as_count(usage.get("thoughtsTokenCount"))
    return TokenUsage(
        input_tokens=as_count(usage.get("promptTokenCount")) + as_count(usage.get("toolUsePromptTokenCount")),
        output_tokens=as_count(usage.get("candidatesTokenCount")) + thoughts,
        cached_tokens=as_count(usage.get("cachedContentTokenCount")),
        reasoning_tokens=thoughts,
        parts=modalities(
            usage, "promptTokensDetails", "cacheTokensDetails", "candidatesTokensDetails", count="tokenCount"
        ),
    )


def modalities(usage: JsonObject, read: str, cached: str, written: str, *, count: str) -> dict[str, int]:
    """The tokens that are not text, from the three lists with these names."""
    parts: dict[str, int] = {}
    for direction, name in (("input_{}", read), ("cache_{}_read", cached), ("output_{}", written)):
        for each in as_objects(usage.get(name)):
            modality = as_text(each.get("modality")).lower()
            part = direction.format("image" if modality == "document" else modality)
            if part in _PARTS:
                parts[part] = parts.get(part, 0) + as_count(each.get(count))
    return parts_of(**parts)
