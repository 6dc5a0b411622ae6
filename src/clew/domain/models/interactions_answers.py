"""Answers of Gemini's Interactions, complete or as events, and the service's steps as messages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from clew.domain.json_values import Json, JsonObject
from clew.domain.messages import Content, FunctionCall, Media, Message, Raw, Reasoning, Text
from clew.domain.models.chat_answers import as_count, as_object, as_objects, as_text
from clew.domain.models.client import (
    Answer,
    CallDelta,
    ReasoningDelta,
    ServiceBound,
    ServiceReference,
    TextDelta,
    TokenUsage,
    Update,
    joined,
)
from clew.domain.models.gemini_answers import call_args
from clew.domain.models.native import merge, replace, unknown, with_native

WIRE = "gemini-interactions"
"""The name of the format."""

SIGNATURE = "signature"
"""The field of a step that the service must get back as it sent it."""

MEDIA = frozenset({"image", "audio", "video", "document"})
"""Types of contents other than text."""

_INPUT = frozenset({"user_input", "function_result"})
"""Types of steps that are the caller's."""

_REASONS = {"completed": "stop", "requires_action": "tool_calls", "incomplete": "length"}
_FAILED = frozenset({"failed", "cancelled"})
_UNFINISHED = frozenset({"", "queued", "in_progress"})
_KNOWN_REPLY = frozenset(
    {
        *("cached_content", "created", "environment", "errors", "generation_config", "id", "input", "labels", "model"),
        *("object", "output_text", "previous_interaction_id", "response_format", "response_mime_type"),
        *("response_modalities", "role", "safety_settings", "status", "steps", "store", "stream"),
        *("system_instruction", "tools", "updated", "usage", "webhook_config"),
    }
)
"""Fields that are read, and fields that repeat the request. All others are kept in the native JSON of the answer."""


@dataclass(slots=True)
class _Step:
    """A step of a stream, as far as it has arrived. Texts and signatures are joined when it is complete."""

    fields: JsonObject
    number: int
    """That of the step among the function calls."""
    parts: list[tuple[JsonObject, list[str]]] = field(default_factory=list)
    """Its contents, or those of the summary of a thought: each with the pieces of its text."""
    arguments: list[str] = field(default_factory=list)
    signature: list[str] = field(default_factory=list)

    def add_text(self, text: str) -> None:
        """Add a piece to the last text."""
        if not self.parts or self.parts[-1][0].get("type") != "text":
            self.parts.append(({"type": "text"}, []))
        self.parts[-1][1].append(text)

    def add(self, delta: JsonObject) -> None:
        """Add a piece that is neither a text nor arguments."""
        match delta:
            case {"type": "thought_signature", "signature": str(signature)}:
                self.signature.append(signature)
            case {"type": "thought_summary", "content": dict(part)}:
                self.parts.append((part, []))
            case {"type": "text_annotation_delta", "annotations": list(annotations)} if self.parts:
                part = self.parts[-1][0]
                part["annotations"] = [*as_objects(part.get("annotations")), *annotations]
            case {"type": str(kind)} if kind in MEDIA:
                self.parts.append((delta, []))
            case _:
                merge(self.fields, {name: value for name, value in delta.items() if name != "type"})

    def ended(self) -> JsonObject:
        """The step with all its pieces."""
        step = dict(self.fields)
        if self.parts:
            step["summary" if step.get("type") == "thought" else "content"] = [
                {**part, "text": joined(pieces)} if pieces else part for part, pieces in self.parts
            ]
        if self.arguments:
            step["arguments"] = _parsed(joined(self.arguments) or "{}")
        if self.signature:
            step[SIGNATURE] = "".join(self.signature)
        return step


class InteractionsAnswer:
    """Assembles an answer, and yields the id under which the service stores it.

    ``body`` is the body of the request: it says whether the service stores the answer. Attributes: ``begun``, whether a
    part of the answer has arrived, and ``failure``, the error that the service sent instead.
    """

    def __init__(self, body: JsonObject) -> None:
        self.begun = False
        self.failure: Json = None
        self._bound = body.get("store") is False
        self._reply: JsonObject = {}
        self._status = ""
        self._steps: dict[Json, _Step] = {}
        self._calls = 0

    def take(self, event: JsonObject) -> Iterator[Update]:
        """Read an event of a stream, and yield what it adds."""
        match event:
            case {"event_type": "step.delta", "delta": dict(delta)}:
                yield from self._delta(event.get("index"), delta)
            case {"event_type": "step.start", "step": dict(step)}:
                yield from self._start(event.get("index"), step)
            case {"event_type": "interaction.created", "interaction": dict(interaction)}:
                yield from self._about(interaction)
            case {"event_type": "interaction.completed", "interaction": dict(interaction)}:
                yield from self._about(interaction)
                self._end(interaction)
            case {"event_type": "error"} | {"error": _}:
                self.failure = event.get("error") or event

    def take_whole(self, interaction: JsonObject) -> Iterator[Update]:
        """Read a complete interaction, and yield its contents."""
        yield from self._about(interaction)
        if "error" in interaction:
            self.failure = interaction["error"]
            return
        for number, step in enumerate(_model_steps(interaction)):
            yield from self._start(number, step)
        self._end(interaction)

    def answer(self) -> Answer | None:
        """The answer; None until the service has completed it."""
        if self._status in _UNFINISHED:
            return None
        steps = [step.ended() for step in self._steps.values()] or _model_steps(self._reply)
        message = Message(role="assistant", contents=tuple(_contents(steps)))
        sent = [_with_object(step) for step in steps]
        more: JsonObject = {}
        replace(more, unknown(self._reply, _KNOWN_REPLY))
        received: JsonObject = {"steps": [*sent], **({"reply": more} if more else {})}
        kept = any(isinstance(content, Raw | Reasoning) for content in message.contents)
        usage = self._reply.get("usage")
        return Answer(
            with_native(message, WIRE, {"steps": written_steps(message)}, received, kept=kept),
            _REASONS.get(self._status, self._status),
            _usage(usage) if isinstance(usage, dict) else None,
            as_text(self._reply.get("model")) or None,
            as_text(self._reply.get("id")) or None,
        )

    def _about(self, interaction: JsonObject) -> Iterator[Update]:
        """Read what an interaction has besides its steps. Later values replace earlier ones."""
        self._reply.update({name: value for name, value in interaction.items() if value is not None})
        if not self._bound and (id_ := as_text(interaction.get("id"))):
            self._bound = True
            yield ServiceBound(ServiceReference(kind="response", id=id_))

    def _end(self, interaction: JsonObject) -> None:
        status = as_text(interaction.get("status"))
        if status in _FAILED:
            errors = as_objects(self._reply.get("errors"))
            self.failure = errors[0] if errors else {"message": f"The interaction has the status {status}."}
            return
        self.begun = self.begun or status not in _UNFINISHED
        self._status = status

    def _start(self, place: Json, fields: JsonObject) -> Iterator[Update]:
        """Begin a step. Some steps arrive whole, and with no more pieces."""
        self.begun = True
        fields = {name: value for name, value in fields.items() if value is not None}
        name = "summary" if fields.get("type") == "thought" else "content"
        step = self._steps[place] = _Step(fields, self._calls)
        for part in as_objects(fields.pop(name, None)):
            text = part.get("text")
            pieces = [text] if part.get("type") == "text" and isinstance(text, str) else []
            step.parts.append((dict(part), pieces))
            if pieces and pieces[0]:
                yield ReasoningDelta(pieces[0]) if name == "summary" else TextDelta(pieces[0])
        if fields.get("type") == "function_call":
            self._calls += 1
            yield self._call(step, _text(fields.get("arguments")) if fields.get("arguments") else "")

    def _delta(self, place: Json, delta: JsonObject) -> Iterator[Update]:
        self.begun = True
        if (step := self._steps.get(place)) is None:
            step = self._steps[place] = _Step({"type": "model_output"}, self._calls)
        match delta:
            case {"type": "text", "text": str(text)}:
                step.add_text(text)
                if text:
                    yield TextDelta(text)
            case {"type": "thought_summary", "content": {"type": "text", "text": str(text)}}:
                step.add_text(text)
                if text:
                    yield ReasoningDelta(text)
            case {"type": "arguments_delta", "arguments": str(text)}:
                step.arguments.append(text)
                if text and step.fields.get("type") == "function_call":
                    yield self._call(step, text)
            case _:
                step.add(delta)

    def _call(self, step: _Step, text: str) -> CallDelta:
        return CallDelta(step.number, as_text(step.fields.get("id")), as_text(step.fields.get("name")), text)


def written_steps(message: Message) -> list[Json]:
    """The steps of an answer as this format has them for the contents alone. Its native JSON is the difference."""
    steps: list[Json] = []
    parts: list[Json] = []
    for content in message.contents:
        part: Json = {"type": "text", "text": content.text} if isinstance(content, Text) else None
        if isinstance(content, Raw) and as_object(content.value).get("type") in MEDIA:
            part = content.value
        if part is not None:
            if not parts:
                steps.append({"type": "model_output", "content": parts})
            parts.append(part)
            continue
        parts = []
        match content:
            case Reasoning(text=text):
                summary: JsonObject = {"summary": [{"type": "text", "text": text}]} if text else {}
                steps.append({"type": "thought", **summary})
            case FunctionCall(call_id=id_, name=name, arguments=arguments):
                steps.append({"type": "function_call", "id": id_, "name": name, "arguments": call_args(arguments)})
            case Raw(value=value):
                steps.append(value)
    return steps


def interaction_steps(interaction: JsonObject) -> list[JsonObject]:
    """All steps of a stored interaction: its input, in any form that the service accepts, and the model's."""
    given = interaction.get("input")
    contents: list[JsonObject] = [{"type": "text", "text": given}] if isinstance(given, str) else as_objects(given)
    if isinstance(given, dict):
        contents = [given]
    if contents and contents[0].get("type") in {"text", *MEDIA}:
        contents = [{"type": "user_input", "content": [*contents]}]
    return [*contents, *_model_steps(interaction)]


def step_messages(steps: Iterable[JsonObject]) -> list[Message]:
    """The messages in the steps of a service's history. The steps of one answer are one message."""
    messages: list[Message] = []
    answered: list[JsonObject] = []
    for step in steps:
        if step.get("type") not in _INPUT:
            answered.append(step)
            continue
        if answered:
            messages.append(Message(role="assistant", contents=tuple(_contents(answered))))
            answered = []
        if step.get("type") == "user_input":
            messages.append(Message(role="user", contents=tuple(_user_contents(step))))
        else:
            messages.append(Message.tool(as_text(step.get("call_id")), step.get("result")))
    if answered:
        messages.append(Message(role="assistant", contents=tuple(_contents(answered))))
    return messages


def _model_steps(interaction: JsonObject) -> list[JsonObject]:
    return [step for step in as_objects(interaction.get("steps")) if step.get("type") not in _INPUT]


def _contents(steps: Sequence[JsonObject]) -> Iterator[Content]:
    """The contents of a model's steps: text, thoughts and calls as Clew's types, all others unchanged as Raw."""
    for step in steps:
        match step:
            case {"type": "thought"}:
                texts = [as_text(part.get("text")) for part in as_objects(step.get("summary"))]
                yield Reasoning(text=joined(["\n\n".join(texts)]))
            case {"type": "function_call", "name": str(name)}:
                arguments = _text(step.get("arguments"))
                yield FunctionCall(call_id=as_text(step.get("id")), name=name, arguments=arguments)
            case {"type": "model_output"}:
                for part in as_objects(step.get("content")):
                    text = part.get("text")
                    yield Text(text=joined([text])) if isinstance(text, str) else Raw(value=part)
            case _:
                yield Raw(value=step)


def _user_contents(step: JsonObject) -> Iterator[Content]:
    for part in as_objects(step.get("content")):
        kind = as_text(part.get("mime_type"))
        match part:
            case {"type": "text", "text": str(text)}:
                yield Text(text=text)
            case {"type": str(name), "data": str(data)} if name in MEDIA:
                yield Media(uri=f"data:{kind};base64,{data}")
            case {"type": str(name), "uri": str(uri)} if name in MEDIA:
                yield Media(uri=uri, media_type=kind or None)
            case _:
                yield Raw(value=part)


def _with_object(step: JsonObject) -> JsonObject:
    """The step with the arguments of its call as an object, as the service requires them."""
    if step.get("type") != "function_call":
        return step
    return {**step, "arguments": call_args(_text(step.get("arguments")))}


def _parsed(text: str) -> Json:
    try:
        value: Json = json.loads(text, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return text
    return value


def _text(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps({} if value is None else value, ensure_ascii=False)


def _usage(usage: JsonObject) -> TokenUsage:
    """The tokens. The service counts thoughts apart from its output."""
    thoughts = as_count(usage.get("total_thought_tokens"))
    return TokenUsage(
        input_tokens=as_count(usage.get("total_input_tokens")) + as_count(usage.get("total_tool_use_tokens")),
        output_tokens=as_count(usage.get("total_output_tokens")) + thoughts,
        cached_tokens=as_count(usage.get("total_cached_tokens")),
        reasoning_tokens=thoughts,
    )
