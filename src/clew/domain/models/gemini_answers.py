"""Answers of Gemini's generateContent, complete or in pieces: the message is the same either way."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from clew.domain.json_values import Json, JsonObject
from clew.domain.messages import Content, FunctionCall, Message, Raw, Reasoning, Text
from clew.domain.models.chat_answers import as_count, as_object, as_objects, as_text
from clew.domain.models.client import Answer, CallDelta, ReasoningDelta, TextDelta, TokenUsage, Update, joined
from clew.domain.models.native import has_raw, replace, unknown, unread, with_native

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
_KNOWN_REPLY = frozenset({"candidates", "modelVersion", "responseId", "usageMetadata"})
_READ_USAGE = {
    "cachedContentTokenCount": (),
    "candidatesTokenCount": (),
    "promptTokenCount": (),
    "thoughtsTokenCount": (),
}
_KNOWN_CANDIDATE = frozenset({"content", "finishReason", "index"})
"""Fields that are read. All others are kept in the native JSON of the answer."""


class GeminiAnswer:
    """Assembles an answer. Each piece of a stream is a whole response with new parts.

    Attributes: ``begun``, whether a part of it has arrived, and ``failure``, the error that the service sent instead.
    """

    def __init__(self) -> None:
        self.begun = False
        self.failure: Json = None
        self._reason = ""
        self._is_blocked = False
        self._parts: list[JsonObject] = []
        self._texts: list[list[str]] = []
        self._usage: JsonObject = {}
        self._model: str | None = None
        self._id: str | None = None
        self._more: dict[str, JsonObject] = {"candidate": {}, "reply": {}}
        self._calls = 0

    def take(self, reply: JsonObject) -> Iterator[Update]:
        """Read a piece of a stream, and yield what it adds."""
        if (failure := reply.get("error")) is not None:
            self.failure = failure
            return
        self._model = as_text(reply.get("modelVersion")) or self._model
        self._id = as_text(reply.get("responseId")) or self._id
        if isinstance(usage := reply.get("usageMetadata"), dict):
            self._usage = usage
        if blocked := as_text(as_object(reply.get("promptFeedback")).get("blockReason")):
            self._reason = blocked
            self._is_blocked = self.begun = True
        if reply.keys() - _KNOWN_REPLY:
            replace(self._more["reply"], unknown(reply, _KNOWN_REPLY))
        for candidate in as_objects(reply.get("candidates")):
            if not as_count(candidate.get("index")):  # only the first of several answers
                yield from self._candidate(candidate)

    def take_whole(self, reply: JsonObject) -> Iterator[Update]:
        """Read a complete reply, and yield its contents."""
        return self.take(reply)

    def answer(self) -> Answer | None:
        """The answer; None until the service has completed it."""
        if not self._reason:
            return None
        parts = [
            {**part, "text": joined(texts)} if texts else part
            for part, texts in zip(self._parts, self._texts, strict=True)
        ]
        message = Message(role="assistant", contents=tuple(_contents(parts)))
        usage = _usage(self._usage) if self._usage else None
        more = {name: fields for name, fields in self._about(usage).items() if fields}
        written: JsonObject = {"parts": [*written_parts(message)]}
        message = with_native(message, WIRE, written, {"parts": [*parts], **more}, kept=has_raw(message))
        reason = "content_filter" if self._is_blocked else _REASONS.get(self._reason, self._reason)
        return Answer(
            message, "tool_calls" if message.calls and reason == "stop" else reason, usage, self._model, self._id
        )

    def _about(self, usage: TokenUsage | None) -> dict[str, JsonObject]:
        """What the reply has besides its parts, and what neither the finish reason nor the tokens tell."""
        candidate, reply = dict(self._more["candidate"]), dict(self._more["reply"])
        if _REASONS.get(self._reason) == "content_filter" and not self._is_blocked:  # of several reasons
            candidate["finishReason"] = self._reason
        if usage is not None:
            left = unread(self._usage, _READ_USAGE, ("totalTokenCount", usage.total_tokens))
            reply |= {"usageMetadata": left} if left else {}
        return {"candidate": candidate, "reply": reply}

    def _candidate(self, candidate: JsonObject) -> Iterator[Update]:
        self._reason = as_text(candidate.get("finishReason")) or self._reason
        if candidate.keys() - _KNOWN_CANDIDATE:
            replace(self._more["candidate"], unknown(candidate, _KNOWN_CANDIDATE))
        for part in as_objects(as_object(candidate.get("content")).get("parts")):
            self.begun = True
            yield from self._part(part)

    def _part(self, part: JsonObject) -> Iterator[Update]:
        text = part.get("text")
        if isinstance(text, str):
            if part == {"text": ""}:  # many streams end with one
                return
            if text:
                yield ReasoningDelta(text) if part.get("thought") else TextDelta(text)
            if self._continues(part):
                self._texts[-1].append(text)
                return
            self._texts.append([text])
        else:
            self._texts.append([])
        if isinstance(call := part.get("functionCall"), dict):
            arguments = _arguments(call)
            yield CallDelta(self._calls, _call_id(call, self._calls), as_text(call.get("name")), arguments)
            self._calls += 1
        self._parts.append(part)

    def _continues(self, part: JsonObject) -> bool:
        """Whether a text goes on in this part. A part with a signature is one of its own."""
        if not self._parts:
            return False
        last = self._parts[-1]
        return (
            isinstance(last.get("text"), str)
            and SIGNATURE not in last
            and part.keys() == last.keys()
            and part.get("thought") == last.get("thought")
            and part.keys() <= {"text", "thought"}
        )


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
    )
