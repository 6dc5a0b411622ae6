"""Answers of OpenAI's Chat Completions, complete or in chunks: the message is the same either way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from clew.domain.json_values import Json, JsonObject
from clew.domain.messages import Content, FunctionCall, Message, Raw, Reasoning, Text
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
from clew.domain.models.native import add_counts, merge, replace, unknown, unread, with_native
from clew.domain.models.shapes import OddValues, Shape

WIRE = "openai-chat"
"""The name of the format."""

_MESSAGE: dict[str, Shape] = {
    "role": frozenset({"assistant", ""}),
    "content": (str, list),
    "refusal": str,
    "tool_calls": [{"index": int, "id": str, "function": {"name": str}, "custom": {"name": str}}],
    "reasoning_content": str,
    "reasoning": str,
}
_REPLY: Shape = {
    "id": str,
    "object": frozenset({"chat.completion", "chat.completion.chunk", ""}),
    "model": str,
    "choices": [{"index": int, "delta": _MESSAGE, "message": _MESSAGE, "finish_reason": str}],
    "usage": dict,
    "obfuscation": str,
}
_KNOWN_REPLY = frozenset({"object", "choices", "usage", "obfuscation"})
_KNOWN_CHOICE = frozenset({"index", "delta", "message", "finish_reason"})
_KNOWN_MESSAGE = frozenset({*_MESSAGE})
_KNOWN_CALL = frozenset({"index", "id", "type"})
_AT = "/json/message"
_CALL_TYPES = (None, "function", "custom")
"""Fields that are read into the message and the answer, and padding. All others are kept in its native JSON."""

_READ_USAGE = {
    "prompt_tokens": (),
    "completion_tokens": (),
    "prompt_tokens_details": ("cached_tokens",),
    "completion_tokens_details": ("reasoning_tokens",),
}

_THOUGHTS = ("reasoning_content", "reasoning")
"""The fields that hold the reasoning in compatible services. A service that sends both usually sends the same text."""


@dataclass(slots=True)
class _Call:
    """The part of a function call that has arrived."""

    place: Json
    id: str
    name: str
    arguments: list[str] = field(default_factory=list)
    is_custom: bool = False
    """Whether its arguments are free text."""
    fields: JsonObject = field(default_factory=dict)
    inner: JsonObject = field(default_factory=dict)
    """What it has beyond these, and what the function in it has beyond its name and arguments."""


class ChatAnswer:
    """Assembles an answer. If the service gives several, the first is the answer, and the others are kept beside it.

    Attributes: ``begun``, whether a part of it has arrived, and ``failure``, the error that the service sent instead.
    """

    def __init__(self) -> None:
        self.begun = False
        self.failure: Json = None
        self._is_complete = False
        self._choice = _Choice()
        self._others: dict[int, _Choice] = {}
        self._usage: JsonObject | None = None
        self._reply: JsonObject = {}
        self._earlier: list[Json] = []
        self._odd = OddValues()

    def take(self, chunk: JsonObject) -> Iterator[Update]:
        """Read a chunk of a stream, and yield what it adds."""
        self.failure = chunk.get("error") or None
        if self.failure is not None:
            return
        chunk = self._odd.without(chunk, _REPLY)
        if earlier := replace(self._reply, unknown(chunk, _KNOWN_REPLY)):
            self._earlier.append(earlier)
        if isinstance(usage := chunk.get("usage"), dict):
            self._usage = self._usage or {}
            add_counts(self._usage, usage, self._earlier)
        for choice in as_objects(chunk.get("choices")):
            if number := as_count(choice.get("index")):
                for _ in self._others.setdefault(number, _Choice()).take(choice):
                    pass
                continue
            for update in self._choice.take(choice):
                self.begun = True
                yield update

    def take_whole(self, completion: JsonObject) -> Iterator[Update]:
        """Read a complete reply, and yield its contents."""
        completion = self._odd.without(completion, _REPLY)
        choices: list[Json] = []
        for number, choice in enumerate(as_objects(completion.get("choices"))):
            index = choice.get("index", number)
            if not as_count(index):
                self._is_complete = isinstance(choice.get("message"), dict)
            delta = as_object(choice.get("message"))
            calls = [{**call, "index": place} for place, call in enumerate(as_objects(delta.get("tool_calls")))]
            choices.append({**choice, "index": index, "delta": {**delta, "tool_calls": [*calls]}})
        yield from self.take({**completion, "choices": choices})

    def answer(self) -> Answer | None:
        """The answer; None until the service has completed it."""
        if self._choice.finish_reason is None and not self._is_complete:
            return None
        message = self._choice.message()
        usage = None if self._usage is None else _usage(self._usage, self._reply.get("service_tier"))
        reply = unknown(self._reply, frozenset({"id", "model"}))
        if self._usage and usage and (left := unread(self._usage, _READ_USAGE, ("total_tokens", usage.total_tokens))):
            reply["usage"] = left
        kept: JsonObject = {
            "choice": self._choice.more,
            "reply": reply,
            "choices": [{"index": number, **choice.json()} for number, choice in sorted(self._others.items())],
            "earlier": [*self._earlier, *self._choice.earlier],
            "odd": self._odd.found,
        }
        received: JsonObject = {"message": self._choice.received(message)}
        received |= {name: each for name, each in kept.items() if each}
        return Answer(
            with_native(message, WIRE, {"message": written_answer(message)}, received, kept=self._choice.has_thoughts),
            self._choice.outcome,
            usage,
            as_text(self._reply.get("model")) or None,
            as_text(self._reply.get("id")) or None,
        )


class _Choice:
    """Assembles one of the answers that a service gives to a request.

    ``more`` is what it has beyond its message, and ``earlier`` what pieces of it said of the whole before the last did.
    """

    def __init__(self) -> None:
        self.finish_reason: str | None = None
        self.more: JsonObject = {}
        self.earlier: list[Json] = []
        self._text: list[str] = []
        self._thoughts: list[str] = []
        self._refusal: list[str] = []
        self._calls: list[_Call] = []
        self._thoughts_field = ""
        self._message: JsonObject = {}

    def take(self, choice: JsonObject) -> Iterator[Update]:
        """Read a piece of the choice, and yield what it adds."""
        if choice.keys() - _KNOWN_CHOICE:
            fields = unknown(choice, _KNOWN_CHOICE)
            merge(
                self.more, {"logprobs": fields.pop("logprobs", None)}, self.earlier, "/json/choice"
            )  # those of its tokens come in pieces
            if earlier := replace(self.more, fields):
                self.earlier.append({"choice": earlier})
        yield from self._delta(as_object(choice.get("delta")))
        if reason := as_text(choice.get("finish_reason")):
            if self.finish_reason not in {None, reason}:
                self.earlier.append({"choice": {"finish_reason": self.finish_reason}})
            self.finish_reason = reason

    @property
    def has_thoughts(self) -> bool:
        """Whether the model has sent its reasoning."""
        return bool(self._thoughts)

    @property
    def outcome(self) -> str | None:
        """The reason of its end. A refusal is one."""
        return "refusal" if self._refusal and self.finish_reason in {None, "stop"} else self.finish_reason

    def message(self) -> Message:
        """The message, without its native JSON."""
        contents: list[Content] = []
        if self._thoughts:
            contents.append(Reasoning(text=joined(self._thoughts)))
        if self._text:
            contents.append(Text(text=joined(self._text)))
        if self._refusal:
            contents.append(refused(joined(self._refusal)))
        contents += [
            FunctionCall(call_id=each.id, name=each.name, arguments=joined(each.arguments)) for each in self._calls
        ]
        return Message(role="assistant", contents=tuple(contents))

    def received(self, message: Message) -> JsonObject:
        """The message as the service has sent it."""
        written = written_answer(message)
        received = {**written, **self._message}
        if self._thoughts_field == "reasoning":
            received["reasoning"] = received.pop("reasoning_content")
        if self._calls:
            received["tool_calls"] = [
                _with_fields(call, own)
                for call, own in zip(as_objects(written["tool_calls"]), self._calls, strict=True)
            ]
        return received

    def json(self) -> JsonObject:
        """The choice as the service has sent it."""
        earlier: JsonObject = {"earlier": self.earlier} if self.earlier else {}
        return {"message": self.received(self.message()), "finish_reason": self.finish_reason, **self.more, **earlier}

    def _delta(self, delta: JsonObject) -> Iterator[Update]:
        if delta.keys() - _KNOWN_MESSAGE:
            merge(self._message, unknown(delta, _KNOWN_MESSAGE), self.earlier, _AT)
        for name in _THOUGHTS:
            if thought := as_text(delta.get(name)):
                self._thoughts_field = name
                self._thoughts.append(thought)
                yield ReasoningDelta(thought)
                if name != "reasoning" and (other := delta.get("reasoning")) != thought:
                    merge(self._message, {"reasoning": other}, self.earlier, _AT)
                break
        if isinstance(parts := delta.get("content"), list):
            merge(self._message, {"content": parts}, self.earlier, _AT)
        if text := _words(delta.get("content")):
            self._text.append(text)
            yield TextDelta(text)
        if refusal := as_text(delta.get("refusal")):
            self._refusal.append(refusal)
        for call in as_objects(delta.get("tool_calls")):
            yield self._call(call)

    def _call(self, piece: JsonObject) -> CallDelta:
        kind = "custom" if "custom" in piece and not piece.get("function") else "function"
        function = as_object(piece.get(kind))
        given = "input" if "input" in function and function.get("arguments") is None else "arguments"
        arguments = function.get(given)
        text = arguments if isinstance(arguments, str) else "" if arguments is None else as_json(arguments)
        name = as_text(function.get("name"))
        number = self._number(piece, begins=bool(name))
        call = self._calls[number]
        call.id = call.id or as_text(piece.get("id"))
        at = f"{_AT}/tool_calls/{number}"
        if name and call.name not in {"", name}:
            self.earlier.append({"path": f"{at}/{kind}/name", "value": name})
        call.name = call.name or name
        call.is_custom = call.is_custom or kind == "custom"
        call.arguments.append(text)
        if more := unknown(piece, _KNOWN_CALL | {kind}):
            merge(call.fields, more, self.earlier, at)
        if (type_ := piece.get("type")) not in _CALL_TYPES:
            merge(call.fields, {"type": type_}, self.earlier, at)
        if more := unknown(function, frozenset({"name", given})):
            merge(call.inner, more, self.earlier, f"{at}/{kind}")
        return CallDelta(number, call.id, call.name, text)

    def _number(self, piece: JsonObject, *, begins: bool) -> int:
        """The number of the call that a piece belongs to; ``begins`` is True if the piece names a function.

        Some services omit or repeat the index: then a new id begins another call. Some of them also omit ids: then a
        name begins another call if the arguments of the call before are complete.
        """
        place, id_ = piece.get("index"), as_text(piece.get("id"))
        for number in reversed(range(len(self._calls))):
            call = self._calls[number]
            if call.place == place:
                same = call.id == id_ if id_ and call.id else not (begins and _is_object("".join(call.arguments)))
                if same:
                    return number
                break
        self._calls.append(_Call(place, id_, ""))
        return len(self._calls) - 1


def written_answer(message: Message) -> JsonObject:
    """An answer as this format writes it for the contents alone. Its native JSON is kept as the difference from it."""
    written: JsonObject = {"role": "assistant", "content": message.text or None}
    if thoughts := "".join([each.text for each in message.contents if isinstance(each, Reasoning)]):
        written["reasoning_content"] = thoughts
    refusals = [refusal for each in message.contents if (refusal := refusal_of(each)) is not None]
    if refusals:
        written["refusal"] = "".join(refusals)
    if message.calls:
        written["tool_calls"] = [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.calls
        ]
    return written


def _with_fields(call: JsonObject, own: _Call) -> JsonObject:
    """A function call with what the service has sent beyond it. The input of a custom tool is a free text."""
    function = as_object(call["function"])
    if not own.is_custom:
        return {**call, "function": {**function, **own.inner}, **own.fields}
    custom: JsonObject = {"name": function["name"], "input": function["arguments"], **own.inner}
    return {"id": call["id"], "type": "custom", "custom": custom, **own.fields}


def _is_object(text: str) -> bool:
    """Whether a text is a complete JSON object."""
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _words(content: Json) -> str:
    """The text of a content, which a few services send in parts."""
    if isinstance(content, list):
        return "".join(as_text(part.get("text")) for part in as_objects(content) if part.get("type") == "text")
    return as_text(content)


def as_json(arguments: Json) -> str:
    """The JSON of arguments that a service did not send as text."""
    return json.dumps(arguments, ensure_ascii=False)


def _usage(usage: JsonObject, tier: Json = None) -> TokenUsage:
    read, written = as_object(usage.get("prompt_tokens_details")), as_object(usage.get("completion_tokens_details"))
    return TokenUsage(
        input_tokens=as_count(usage.get("prompt_tokens")),
        output_tokens=as_count(usage.get("completion_tokens")),
        cached_tokens=as_count(read.get("cached_tokens")),
        reasoning_tokens=as_count(written.get("reasoning_tokens")),
        parts=parts_of(
            cache_write=as_count(read.get("cache_write_tokens")),
            input_audio=as_count(read.get("audio_tokens")),
            output_audio=as_count(written.get("audio_tokens")),
        ),
        tier=other_tier(tier),
    )


def as_object(value: Json) -> JsonObject:
    """``value`` if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_objects(value: Json) -> list[JsonObject]:
    """The objects in ``value``, if it is a list."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def as_text(value: Json) -> str:
    """``value`` if it is a string, else an empty one."""
    return value if isinstance(value, str) else ""


def as_count(value: Json) -> int:
    """``value`` if it counts something, else 0."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def refusal_of(content: Content) -> str | None:
    """The text of a model's refusal, None for any other content."""
    match content:
        case Raw(value={"type": "refusal", "refusal": str(refusal)}):
            return refusal
        case _:
            return None


def refused(text: str) -> Raw:
    """A model's refusal as a content."""
    return Raw(value={"type": "refusal", "refusal": text})
