"""Answers of Gemini's Interactions, complete or as events, and the service's steps as messages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from clew.domain.json_values import Json, JsonObject, parse_json, storable
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
from clew.domain.models.gemini_answers import call_args, modalities
from clew.domain.models.native import add_counts, copied, gather, replace, rest_of, unknown, unread, with_native
from clew.domain.models.shapes import OddValues, Shape

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
_READ_REPLY = frozenset({"id", "model", "status", "steps", "usage"})
_EARLIER_FIELDS = frozenset({"id", "model", "steps"})
_READ_USAGE = {
    "total_cached_tokens": (),
    "total_input_tokens": (),
    "total_output_tokens": (),
    "total_thought_tokens": (),
}
_STATES = frozenset({*_REASONS, *_FAILED, *_UNFINISHED, "budget_exceeded"})
_STEP: Shape = {"content": [dict], "summary": [dict], "type": str}
_INTERACTION: dict[str, Shape] = {"id": str, "model": str, "status": str, "steps": [_STEP], "usage": dict}
_READ_EVENTS: dict[str, dict[str, Shape]] = {
    "interaction.completed": {"event_type": str, "interaction": _INTERACTION},
    "interaction.created": {"event_type": str, "interaction": {**_INTERACTION, "status": _STATES}},
    "step.delta": {"delta": {"type": str}, "event_type": str, "index": int},
    "step.start": {"event_type": str, "index": int, "step": _STEP},
    "step.stop": {"event_type": str, "index": int},
}
_ENVELOPE: dict[str, Shape] = {"event_id": str, "metadata": {"total_usage": dict}}
_SHAPES: dict[str, Shape] = {
    "interaction.status_update": {"interaction_id": str, "status": _STATES, "usage": dict, **_ENVELOPE},
    **{kind: {**fields, **_ENVELOPE} for kind, fields in _READ_EVENTS.items()},
}
_STATUS = frozenset({"event_id", "event_type", "interaction_id", "status"})
"""Fields that are read. All others, and all other events, are kept in the native JSON of the answer.

The id of an event serves only to read the stream again from there. Its metadata have the tokens that were used so far.
"""
_TEXT = frozenset({"text", "type"})
_PIECE_TYPES = frozenset({"arguments_delta", "text", "text_annotation_delta", "thought_signature", "thought_summary"})
"""Types of deltas that are not the type of their step."""
_PIECES = frozenset({"code", "result"})
"""Texts of a step that may arrive in several deltas. All others arrive as a whole."""


@dataclass(slots=True)
class _Step:
    """A step of a stream, as far as it has arrived. Texts and signatures are joined when it is complete."""

    number: int
    """That of the step among the function calls."""
    path: str
    earlier: list[Json]
    """Values of steps that others have replaced."""
    fields: JsonObject = field(default_factory=dict)
    parts: list[tuple[JsonObject, list[str]]] = field(default_factory=list)
    """Its contents, or those of the summary of a thought: each with the pieces of its text."""
    arguments: list[str] = field(default_factory=list)
    signature: list[str] = field(default_factory=list)

    def add_part(self, part: JsonObject, pieces: list[str]) -> None:
        """Begin another content, or another part of a summary."""
        self.parts.append((as_object(copied(part)), pieces))

    def add_text(self, text: str, more: JsonObject) -> None:
        """Add a piece to the last text, and what the piece says besides."""
        if not self.parts or self.parts[-1][0].get("type") != "text":
            self.add_part({"type": "text"}, [])
        part, pieces = self.parts[-1]
        if not pieces and (begun := part.pop("text", None)) is not None:  # of another type
            self.earlier.append({"path": f"{self.path}/{len(self.parts) - 1}/text", "value": begun})
        pieces.append(text)
        if more:
            gather(part, more, self.earlier, path=f"{self.path}/{len(self.parts) - 1}")

    def add_piece(self, name: str, pieces: list[str], text: str) -> None:
        """Add a piece of a field that the beginning of the step may have, too: the pieces hold."""
        if not pieces and (begun := self.fields.pop(name, None)):
            self.earlier.append({"path": f"{self.path}/{name}", "value": begun})
        pieces.append(text)

    def add(self, delta: JsonObject) -> None:
        """Add a piece that is neither a text nor arguments."""
        read = {"type"}
        match delta:
            case {"type": "thought_signature", "signature": str(signature)}:
                self.add_piece(SIGNATURE, self.signature, signature)
                read.add("signature")
            case {"type": "thought_summary", "content": dict(part)}:
                self.add_part(part, [])
                read.add("content")
            case {"type": "text_annotation_delta", "annotations": list(annotations)} if self.parts:
                part = self.parts[-1][0]
                gather(part, {"annotations": annotations}, self.earlier, {"annotations"}, f"{self.path}/content")
                read.add("annotations")
            case {"type": str(kind)} if kind in MEDIA:
                self.add_part(delta, [])
                return
            case {"type": str(kind)} if kind not in _PIECE_TYPES and kind != self.fields.get("type"):
                self.earlier.append({"path": f"{self.path}/delta/type", "value": kind})
        self.add_fields(unknown(delta, frozenset(read)))

    def add_fields(self, fields: JsonObject) -> None:
        """Add fields of the step itself."""
        gather(self.fields, _without_nulls(fields), self.earlier, _PIECES, self.path)

    def ended(self) -> JsonObject:
        """The step with all its pieces."""
        step = dict(self.fields)
        for name, pieces in (("arguments", self.arguments), (SIGNATURE, self.signature)):
            if pieces and name in step:
                self.earlier.append({"path": f"{self.path}/{name}", "value": step[name]})
        if self.parts:
            step[_parts_of(step)] = [
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
        self._body = body
        self._reply: JsonObject = {}
        self._status = ""
        self._usage: JsonObject = {}
        self._events: list[Json] = []
        self._earlier: list[Json] = []
        self._odd = OddValues()
        self._steps: list[_Step] = []
        self._at: dict[Json, _Step] = {}
        self._calls = 0

    def take(self, event: JsonObject) -> Iterator[Update]:
        """Read an event of a stream, and yield what it adds."""
        kind = as_text(event.get("event_type"))
        if kind not in _READ_EVENTS and (kind == "error" or event.get("error") is not None):
            self.failure = event.get("error") or event
            return
        event = self._odd.without(event, _SHAPES.get(kind), f"/{kind}")
        if metadata := as_object(event.get("metadata")):
            add_counts(self._usage, as_object(metadata.get("total_usage")), self._earlier)
            more = unknown(metadata, frozenset({"total_usage"}))
            event = {**unknown(event, frozenset({"metadata"})), **({"metadata": more} if more else {})}
        if kind == "interaction.status_update":
            yield from self._about(unknown(event, _STATUS))
            return
        if (rest := rest_of(unknown(event, frozenset({"event_id"})), _READ_EVENTS.get(kind))) is not None:
            self._events.append(rest)
        if kind == "step.delta":
            yield from self._delta(event.get("index"), as_object(event.get("delta")))
        elif kind == "step.start":
            yield from self._start(event.get("index"), as_object(event.get("step")))
        elif kind in {"interaction.created", "interaction.completed"}:
            interaction = as_object(event.get("interaction"))
            yield from self._about(interaction)
            if kind == "interaction.completed":
                self._end(interaction)

    def take_whole(self, interaction: JsonObject) -> Iterator[Update]:
        """Read a complete interaction, and yield its contents."""
        if (failure := interaction.get("error")) is not None:
            self.failure = failure
            return
        interaction = self._odd.without(interaction, _INTERACTION)
        steps = as_objects(interaction.get("steps"))
        yield from self._about(
            {**interaction, "steps": [step for step in steps if as_text(step.get("type")) in _INPUT]}
        )
        for number, step in enumerate(_model_steps(interaction)):
            yield from self._start(number, step)
        self._end(interaction)

    def answer(self) -> Answer | None:
        """The answer; None until the service has completed it."""
        if self._status in _UNFINISHED:
            return None
        final = as_objects(self._reply.get("steps"))
        steps = as_objects(storable([step.ended() for step in self._steps])) or final
        made = [step for step in steps if as_text(step.get("type")) not in _INPUT]
        message = Message(role="assistant", contents=tuple(_contents(made)))
        usage = _usage(self._usage) if self._usage else None
        kept = any(isinstance(content, Raw | Reasoning) for content in message.contents)
        reply = self._rest(
            [*(step for step in steps if step not in made), *(step for step in final if step not in steps)]
        )
        if usage is not None and (left := unread(self._usage, _READ_USAGE, ("total_tokens", usage.total_tokens))):
            reply["usage"] = left
        about: JsonObject = {"reply": reply, "events": self._events, "earlier": self._earlier, "odd": self._odd.found}
        received: JsonObject = {"steps": [*map(_with_object, made)]}
        received |= {name: each for name, each in about.items() if each}
        return Answer(
            with_native(message, WIRE, {"steps": written_steps(message)}, received, kept=kept),
            _REASONS.get(self._status, self._status),
            usage,
            as_text(self._reply.get("model")) or None,
            as_text(self._reply.get("id")) or None,
        )

    def _rest(self, steps: Sequence[JsonObject]) -> JsonObject:
        """What the interaction has besides the answer. What repeats the request is on the log already."""
        sent = interaction_steps(self._body)
        rest = unknown(self._reply, _READ_REPLY)
        others: JsonObject = {"steps": [step for step in steps if step not in sent]}
        rest |= others if others["steps"] else {}
        repeated = {"object": "interaction", "role": "model", **self._body}
        return {name: value for name, value in rest.items() if name not in repeated or repeated[name] != value}

    def _about(self, interaction: JsonObject) -> Iterator[Update]:
        """Read what an interaction has besides its steps. Later values replace earlier ones."""
        add_counts(self._usage, as_object(interaction.get("usage")), self._earlier)
        newer = {name: value for name, value in interaction.items() if name in _EARLIER_FIELDS}
        if earlier := replace(self._reply, newer):
            self._earlier.append(earlier)
        gather(self._reply, _without_nulls(unknown(interaction, _READ_REPLY)), self._earlier, path="/json/reply")
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
        step = self._new_step(place, fields)
        name = _parts_of(step.fields)
        for part in as_objects(step.fields.get(name)):
            text = part.get("text")
            pieces = [text] if part.get("type") == "text" and isinstance(text, str) else []
            step.add_part(part, pieces)
            if pieces and pieces[0]:
                yield ReasoningDelta(pieces[0]) if name == "summary" else TextDelta(pieces[0])
        if step.fields.get("type") == "function_call":
            self._calls += 1
            arguments = step.fields.get("arguments")
            yield self._call(step, _text(arguments) if arguments else "")

    def _new_step(self, place: Json, fields: JsonObject) -> _Step:
        step = self._at[place] = _Step(self._calls, f"/json/steps/{len(self._steps)}", self._earlier)
        step.add_fields(fields)
        self._steps.append(step)
        return step

    def _delta(self, place: Json, delta: JsonObject) -> Iterator[Update]:
        self.begun = True
        step = self._at.get(place) or self._new_step(place, {"type": "model_output"})
        match delta:
            case {"type": "text", "text": str(text)}:
                step.add_text(text, unknown(delta, _TEXT))
                if text:
                    yield TextDelta(text)
            case {"type": "thought_summary", "content": {"type": "text", "text": str(text)}}:
                step.add_text(text, unknown(as_object(delta["content"]), _TEXT))
                step.add_fields(unknown(delta, frozenset({"type", "content"})))
                if text:
                    yield ReasoningDelta(text)
            case {"type": "arguments_delta", "arguments": str(text)}:
                step.add_piece("arguments", step.arguments, text)
                step.add_fields(unknown(delta, frozenset({"type", "arguments"})))
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
        if isinstance(content, Raw) and as_text(as_object(content.value).get("type")) in MEDIA:
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
    if contents and as_text(contents[0].get("type")) in {"text", *MEDIA}:
        contents = [{"type": "user_input", "content": [*contents]}]
    return [*contents, *_model_steps(interaction)]


def step_messages(steps: Iterable[JsonObject]) -> list[Message]:
    """The messages in the steps of a service's history. The steps of one answer are one message."""
    messages: list[Message] = []
    answered: list[JsonObject] = []
    for step in steps:
        if as_text(step.get("type")) not in _INPUT:
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
    return [step for step in as_objects(interaction.get("steps")) if as_text(step.get("type")) not in _INPUT]


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


def _parts_of(step: JsonObject) -> str:
    """The field of a step with its parts."""
    return "summary" if step.get("type") == "thought" else "content"


def _without_nulls(fields: JsonObject) -> JsonObject:
    return {name: value for name, value in fields.items() if value is not None}


def _parsed(text: str) -> Json:
    try:
        return parse_json(text)
    except (ValueError, RecursionError):
        return text


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
        parts=modalities(
            usage,
            "input_tokens_by_modality",
            "cached_tokens_by_modality",
            "output_tokens_by_modality",
            count="tokens",
        ),
    )
