"""Answers of OpenAI's Responses API, complete or as events, and the service's items as messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from clew.domain.json_values import Json, JsonObject, storable
from clew.domain.messages import Content, FunctionCall, Media, Message, Raw, Reasoning, Role, Text
from clew.domain.models.chat_answers import as_count, as_json, as_object, as_objects, as_text, refusal_of, refused
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
    other_tier,
    parts_of,
)
from clew.domain.models.client_calls import waits
from clew.domain.models.native import beyond, has_raw, replace, rest_of, unknown, unread, with_native
from clew.domain.models.shapes import OddValues, Shape

WIRE = "openai-responses"
"""The name of the format."""

_KNOWN_REPLY = frozenset({"id", "model", "object", "output", "status", "usage"})
"""Fields that are read. All others are kept in the native JSON of the answer, if they are not those of the request."""

_DEFAULTS: JsonObject = {
    "background": False,
    "parallel_tool_calls": True,
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}, "verbosity": "medium"},
    "tool_choice": "auto",
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
}
"""What the service documents for fields that the request leaves out: a response that says so says nothing new."""

_RESPONSE: Shape = {
    "id": str,
    "model": str,
    "object": frozenset({"response", ""}),
    "output": [dict],
    "status": frozenset({"cancelled", "completed", "failed", "in_progress", "incomplete", "queued"}),
    "usage": dict,
}
_FIELDS: dict[str, Shape] = {
    **dict.fromkeys(("annotation", "item", "part"), dict),
    **dict.fromkeys(("logprobs", "output"), list),
    **dict.fromkeys(("annotation_index", "command_index", "content_index", "output_index"), int),
    **dict.fromkeys(("partial_image_index", "sequence_number", "summary_index"), int),
    "response": _RESPONSE,
}
"""The types of the fields of events. All others are texts."""

_READ_EVENTS: dict[str, dict[str, Shape]] = {
    f"response.{name}": {each: _FIELDS.get(each, str) for each in ("type", "sequence_number", *fields.split())}
    for fields, names in (
        ("response", "completed created failed in_progress incomplete queued"),
        ("item output_index", "output_item.added output_item.done"),
        ("item_id output_index", "code_interpreter_call.completed code_interpreter_call.in_progress"),
        ("item_id output_index", "code_interpreter_call.interpreting compaction.compacting"),
        ("item_id output_index", "file_search_call.completed file_search_call.in_progress file_search_call.searching"),
        ("item_id output_index", "image_generation_call.completed image_generation_call.generating"),
        ("item_id output_index", "image_generation_call.in_progress mcp_call.completed mcp_call.failed"),
        ("item_id output_index", "mcp_call.in_progress mcp_list_tools.completed mcp_list_tools.failed"),
        ("item_id output_index", "mcp_list_tools.in_progress web_search_call.completed web_search_call.in_progress"),
        ("item_id output_index", "web_search_call.searching"),
        ("delta item_id output_index obfuscation", "code_interpreter_call_code.delta custom_tool_call_input.delta"),
        ("delta item_id output_index obfuscation", "function_call_arguments.delta mcp_call_arguments.delta"),
        ("code item_id output_index", "code_interpreter_call_code.done"),
        ("input item_id output_index", "custom_tool_call_input.done"),
        ("arguments item_id name output_index", "function_call_arguments.done"),
        ("arguments item_id output_index", "mcp_call_arguments.done"),
        ("content_index item_id output_index part", "content_part.added content_part.done"),
        ("content_index delta item_id logprobs obfuscation output_index", "output_text.delta"),
        ("content_index item_id logprobs output_index text", "output_text.done"),
        ("annotation annotation_index content_index item_id output_index", "output_text.annotation.added"),
        ("content_index delta item_id obfuscation output_index", "reasoning_text.delta refusal.delta"),
        ("content_index item_id output_index text", "reasoning_text.done"),
        ("content_index item_id output_index refusal", "refusal.done"),
        ("item_id output_index part summary_index", "reasoning_summary_part.added"),
        ("item_id output_index part status summary_index", "reasoning_summary_part.done"),
        ("delta item_id obfuscation output_index summary_index", "reasoning_summary_text.delta"),
        ("item_id output_index summary_index text", "reasoning_summary_text.done"),
        ("command command_index output_index", "shell_call_command.added shell_call_command.done"),
        ("command_index delta obfuscation output_index", "shell_call_command.delta"),
        ("command_index delta item_id obfuscation output_index", "shell_call_output_content.delta"),
        ("command_index item_id output output_index", "shell_call_output_content.done"),
        (
            "background item_id output_format output_index partial_image_b64 partial_image_index quality size",
            "image_generation_call.partial_image",
        ),
    )
    for name in names.split()
}
_READ_EVENTS["response.shell_call_output_content.delta"]["delta"] = dict
"""Events whose content the completed response has, and their fields. All others are kept in the native JSON."""

_TEXT = "response.output_text.delta"
_PLACE = ("type", "output_index", "content_index", "summary_index", "command_index")
"""Fields that say to which text a delta belongs."""

_READ_USAGE = {
    "input_tokens": (),
    "output_tokens": (),
    "input_tokens_details": ("cached_tokens",),
    "output_tokens_details": ("reasoning_tokens",),
}
_REASONS = {"max_output_tokens": "length", "max_tokens": "length"}
_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system", "developer": "developer"}


class ResponsesAnswer:
    """Assembles an answer, and yields the id under which the service stores it.

    ``body`` is the body of the request: it says whether the service stores the answer, and in which conversation.
    Attributes: ``begun``, whether a part of the answer has arrived, and ``failure``, the error that the service sent
    instead.
    """

    def __init__(self, body: JsonObject) -> None:
        self.begun = False
        self.failure: Json = None
        self._is_stored = body.get("store") is not False
        self._in_conversation = body.get("conversation") is not None
        self._bound = self._in_conversation
        self._calls: dict[Json, _Call] = {}
        self._items: list[JsonObject] = []
        self._deltas: dict[tuple[Json, ...], list[str]] = {}
        self._response: JsonObject | None = None
        self._asked = body
        self._events: list[Json] = []
        self._odd = OddValues()

    def take(self, event: JsonObject) -> Iterator[Update]:
        """Read an event of a stream, and yield what it adds."""
        event = self._fitting(event)
        match event:
            case {"type": "error"} | {"type": "response.failed"}:
                self._fail(event)
            case {"type": "response.completed" | "response.incomplete", "response": dict(response)}:
                yield from self._bind(response)
                self._complete(response)
            case {"type": "response.output_text.delta", "delta": str(text)} if text:
                self.begun = True
                yield TextDelta(text)
            case {
                "type": "response.reasoning_summary_text.delta" | "response.reasoning_text.delta",
                "delta": str(text),
            } if text:
                self.begun = True
                yield ReasoningDelta(text)
            case {"type": "response.function_call_arguments.delta", "delta": str(text)}:
                yield from self._call(event, {}, text)
            case {"type": "response.output_item.added", "item": dict(item)}:
                yield from self._call(event, item, "")
            case {"type": "response.output_item.done", "item": dict(item)}:
                self._items.append(item)
                yield from self._call(event, item, None)
            case {"response": dict(response)}:  # created, queued, in progress
                self.begun = self.begun or self._in_conversation  # the conversation may contain the input by now
                yield from self._bind(response)
            case {"type": _}:
                pass
            case _:
                self.failure = event.get("error") or None

    def take_whole(self, response: JsonObject) -> Iterator[Update]:
        """Read a complete response, and yield its contents."""
        response = self._odd.without(response, _RESPONSE)
        yield from self._bind(response)
        if response.get("error") or response.get("status") in {"failed", "cancelled"}:
            self._fail({"response": response})
            return
        if not isinstance(response.get("output"), list) or response.get("status") in {"queued", "in_progress"}:
            return
        self._complete(response)
        number = 0
        for content in _contents(as_objects(response.get("output"))):
            match content:
                case Text(text=text) if text:
                    yield TextDelta(text)
                case Reasoning(text=text) if text:
                    yield ReasoningDelta(text)
                case FunctionCall(call_id=call_id, name=name, arguments=arguments):
                    yield CallDelta(number, call_id, name, arguments)
                    number += 1

    def answer(self) -> Answer | None:
        """The answer; None until the service has completed it."""
        if self._response is None:
            return None
        items = as_objects(storable([*(as_objects(self._response.get("output")) or self._items or self._unlisted())]))
        message = Message(role="assistant", contents=tuple(_contents(items)))
        more = self._unasked(self._response)
        counts = as_object(self._response.get("usage"))
        usage = _usage(counts, self._response.get("service_tier")) if counts else None
        if usage is not None and (left := unread(counts, _READ_USAGE, ("total_tokens", usage.total_tokens))):
            more["usage"] = left
        if more.get("output_text") == message.text:
            more.pop("output_text", None)
        events = [*self._events, *self._unrepeated(items)]
        about: JsonObject = {"reply": more, "events": events, "odd": self._odd.found}
        received: JsonObject = {"output": [*items], **{name: each for name, each in about.items() if each}}
        message = with_native(message, WIRE, {"output": written_items(message)}, received, kept=has_raw(message))
        return Answer(
            message,
            _finish_reason(self._response, message),
            usage,
            as_text(self._response.get("model")) or None,
            as_text(self._response.get("id")) or None,
        )

    def _unlisted(self) -> Iterator[JsonObject]:
        """A text that was streamed and that the complete response has not, as an item: a filter may remove it."""
        pieces = [each for place, texts in self._deltas.items() if place[0] == _TEXT for each in texts]
        if text := joined(pieces):
            part: JsonObject = {"type": "output_text", "text": text, "annotations": []}
            yield {"type": "message", "role": "assistant", "status": "completed", "content": [part]}

    def _unrepeated(self, items: Sequence[JsonObject]) -> Iterator[Json]:
        """The texts that were streamed and that the items have not, each as one event."""
        repeated = set(_texts([*items]))
        for place, pieces in self._deltas.items():
            if (text := joined(pieces)) and text not in repeated:
                names: JsonObject = dict(zip(_PLACE, place, strict=True))
                yield {**{name: each for name, each in names.items() if each is not None}, "delta": text}

    def _fitting(self, event: JsonObject) -> JsonObject:
        """What an event has of the types that are read. What the completed response has not is kept."""
        kind = as_text(event.get("type"))
        if kind == "error":
            return event
        shape = _READ_EVENTS.get(kind)
        if (rest := rest_of(event, shape)) is not None:
            self._events.append(rest)
        event = self._odd.without(event, shape, f"/{kind}")
        if shape is not None and isinstance(delta := event.get("delta"), str):
            self._deltas.setdefault(tuple([event.get(name) for name in _PLACE]), []).append(delta)
        return event

    def _unasked(self, response: JsonObject) -> JsonObject:
        """What a response says that neither the request nor the service's documentation does."""
        more: JsonObject = {}
        for name, value in unknown(response, _KNOWN_REPLY).items():
            asked, default = self._asked.get(name), _DEFAULTS.get(name)
            if isinstance(default, dict):
                asked = {**default, **as_object(asked)}
            elif name == "conversation" and isinstance(asked, str):
                asked = {"id": asked}
            replace(more, {name: beyond(value, default if asked is None else asked)})
        return more

    def _complete(self, response: JsonObject) -> None:
        self.begun = True
        self._response = response

    def _fail(self, event: JsonObject) -> None:
        response = as_object(event.get("response"))
        self.failure = (
            event.get("error") or response.get("error") or {name: event.get(name) for name in ("code", "message")}
        )

    def _bind(self, response: JsonObject) -> Iterator[Update]:
        if self._bound or not self._is_stored or response.get("store") is False:
            return
        if conversation := as_text(as_object(response.get("conversation")).get("id")):
            self._bound = True
            yield ServiceBound(ServiceReference(kind="conversation", id=conversation))
        elif id_ := as_text(response.get("id")):
            self._bound = True
            yield ServiceBound(ServiceReference(kind="response", id=id_))

    def _call(self, event: JsonObject, item: JsonObject, piece: str | None) -> Iterator[Update]:
        """Yield a piece of a call's arguments. None means the rest of them, when the item is complete."""
        self.begun = True
        if item and item.get("type") != "function_call":
            return
        place = event.get("output_index")
        call = self._calls.setdefault(place if isinstance(place, int) else None, _Call(len(self._calls)))
        call.id, call.name = call.id or as_text(item.get("call_id")), call.name or as_text(item.get("name"))
        text = call_arguments(item)[call.yielded :] if piece is None else piece
        call.yielded += len(text)
        if text or piece is not None:
            yield CallDelta(call.number, call.id, call.name, text)


class _Call:
    """A function call of a stream: its number, and how many characters of its arguments were yielded."""

    __slots__ = ("id", "name", "number", "yielded")

    def __init__(self, number: int) -> None:
        self.number, self.id, self.name, self.yielded = number, "", "", 0


def written_items(message: Message) -> list[Json]:
    """The items of an answer as this format has them for the contents alone. Its native JSON is the difference."""
    items: list[Json] = []
    parts: list[Json] = []
    for content in message.contents:
        refusal = refusal_of(content)
        if isinstance(content, Text) or refusal is not None:
            if not parts:
                items.append({"type": "message", "role": "assistant", "status": "completed", "content": parts})
            parts.append(
                {"type": "output_text", "text": content.text, "annotations": []}
                if isinstance(content, Text)
                else {"type": "refusal", "refusal": refusal}
            )
            continue
        parts = []
        match content:
            case FunctionCall(call_id=id_, name=name, arguments=arguments):
                call: JsonObject = {"type": "function_call", "call_id": id_, "name": name, "arguments": arguments}
                items.append({**call, "status": "completed"})
            case Reasoning(data=dict(data)):
                items.append(data)
            case Raw(value=value):
                items.append(value)
    return items


def item_messages(items: Sequence[JsonObject]) -> list[Message]:
    """The messages in the items of a service's history. The items of one answer are one message."""
    messages: list[Message] = []
    answered: list[JsonObject] = []
    for item in items:
        role = _ROLES.get(as_text(item.get("role"))) if item.get("type", "message") == "message" else None
        if role in {None, "assistant"} and not as_text(item.get("type")).endswith("_output"):
            answered.append(item)
            continue
        if answered:
            messages.append(Message(role="assistant", contents=tuple(_contents(answered))))
            answered = []
        if role is not None:
            messages.append(Message(role=role, contents=tuple(_parts(item.get("content")))))
        elif item.get("type") == "function_call_output":
            messages.append(Message.tool(as_text(item.get("call_id")), item.get("output")))
        else:
            messages.append(Message(role="tool", contents=(Raw(value=item),)))
    if answered:
        messages.append(Message(role="assistant", contents=tuple(_contents(answered))))
    return messages


def _contents(items: Sequence[JsonObject]) -> Iterator[Content]:
    """The contents of a model's items: text, reasoning and calls as Clew's types, all others unchanged as Raw."""
    for item in items:
        match item:
            case {"type": "reasoning"}:
                yield Reasoning(text=_thoughts(item), data=item)
            case {"type": "function_call", "name": str(name)}:
                arguments = joined([call_arguments(item)])
                yield FunctionCall(call_id=as_text(item.get("call_id")), name=name, arguments=arguments)
            case {"role": "assistant"} if item.get("type", "message") == "message":
                yield from _parts(item.get("content"))
            case _:
                yield Raw(value=item)


def call_arguments(item: JsonObject) -> str:
    """The arguments of a call as text. A few services send them as an object."""
    arguments = item.get("arguments")
    return arguments if isinstance(arguments, str) else "" if arguments is None else as_json(arguments)


def _thoughts(item: JsonObject) -> str:
    parts = as_objects(item.get("summary")) or as_objects(item.get("content"))
    return joined(["\n\n".join(as_text(part.get("text")) for part in parts)])


def _parts(content: Json) -> Iterator[Content]:
    if isinstance(content, str):
        yield Text(text=joined([content]))
    for part in as_objects(content):
        match part:
            case {"type": "output_text" | "input_text" | "text", "text": str(text)}:
                yield Text(text=joined([text]))
            case {"type": "refusal", "refusal": str(refusal)}:
                yield refused(joined([refusal]))
            case {"type": "input_image", "image_url": str(uri)}:
                yield Media(uri=uri)
            case _:
                yield Raw(value=part)


def _texts(value: Json) -> Iterator[str]:
    """The texts anywhere in a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)


def _finish_reason(response: JsonObject, message: Message) -> str:
    if response.get("status") == "incomplete":
        reason = as_text(as_object(response.get("incomplete_details")).get("reason")) or "incomplete"
        return _REASONS.get(reason, reason)
    if message.calls or any(isinstance(each, Raw) and waits(each.value) for each in message.contents):
        return "tool_calls"
    return "refusal" if any(refusal_of(content) for content in message.contents) else "stop"


def _usage(usage: JsonObject, tier: Json) -> TokenUsage:
    read = as_object(usage.get("input_tokens_details"))
    return TokenUsage(
        input_tokens=as_count(usage.get("input_tokens")),
        output_tokens=as_count(usage.get("output_tokens")),
        cached_tokens=as_count(read.get("cached_tokens")),
        reasoning_tokens=as_count(as_object(usage.get("output_tokens_details")).get("reasoning_tokens")),
        parts=parts_of(cache_write=as_count(read.get("cache_write_tokens"))),
        tier=other_tier(tier),
    )
