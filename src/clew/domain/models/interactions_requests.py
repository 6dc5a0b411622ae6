"""Requests in the format of Gemini's Interactions: the history as a flat list of steps.

The steps of the model's own answers go back as the service sent them, with the signatures of their thoughts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import takewhile

from clew.domain.json_values import Json, JsonObject
from clew.domain.messages import Content, FunctionCall, FunctionResult, Media, Message, Raw, Text
from clew.domain.models.chat_answers import as_object, as_objects, as_text, refusal_of
from clew.domain.models.chat_requests import (
    BlockKind,
    function_name,
    inline_base64,
    is_picture,
    marked,
    media_type,
    media_words,
    result_text,
    unique_ids,
    with_author,
    with_options,
)
from clew.domain.models.client import Question, ThreadKind, WireFormat
from clew.domain.models.interactions_answers import MEDIA, WIRE, step_messages, written_steps
from clew.domain.models.native import foreign_signatures, is_own, received

_TOP = frozenset(
    {
        *("cached_content", "environment", "generation_config", "labels", "response_modalities", "safety_settings"),
        *("response_format", "service_tier", "store", "tools", "webhook_config"),
    }
)
"""Options that are fields of the body. All others are fields of ``generation_config``."""


def interactions_body(question: Question) -> JsonObject:
    """The body of a request to ``/interactions``."""
    options = question.options or {}
    # The service forgets the instructions of an interaction: where it holds the history, system messages are input.
    leading = [] if options.get("store") is True else list(takewhile(_is_system, question.messages))
    body: JsonObject = {"model": question.model, "input": [*_steps(question, question.messages[len(leading) :])]}
    texts = [question.instructions, *(message.text for message in leading)]
    if system := "\n\n".join(text for text in texts if text):
        body["system_instruction"] = system
    if question.tools:
        body["tools"] = [
            {
                "type": "function",
                "name": tool.name,
                **({"description": tool.description} if tool.description else {}),
                "parameters": tool.parameters,
            }
            for tool in question.tools
        ]
    if (wanted := question.response_format) is not None:
        form: JsonObject = {"type": "text", "mime_type": "application/json", "schema": wanted.json_schema}
        body["response_format"] = form
    config = {name: value for name, value in options.items() if name not in _TOP}
    if config := {**as_object(options.get("generation_config")), **config}:
        body["generation_config"] = config
    if question.service is not None:
        body["previous_interaction_id"] = question.service.id
    others = {name: value for name, value in options.items() if name in _TOP and name != "generation_config"}
    return with_options(body, others)


def interactions_path(model: str, streams: bool) -> str:  # noqa: FBT001  # the parameters of every format's function
    """The path of requests."""
    del model, streams
    return "/interactions"


def interactions_stream(body: JsonObject) -> JsonObject:
    """The body that requests a stream."""
    return {**body, "stream": True}


def unstored(options: JsonObject) -> JsonObject:
    """The options that ask the service to store nothing."""
    return {**options, "store": False}


def options_on(kind: ThreadKind, options: JsonObject) -> JsonObject:
    """The options with ``store``, unless they have it: a service stores only the threads that it holds."""
    return options if "store" in options else {**options, "store": kind == "remote"}


def sends_media(question: Question, message: Message, content: Content) -> bool:
    """Whether a content goes into a request as the media that it is."""
    if message.role == "assistant":
        return is_own(message, question, WIRE)
    part = None if _is_system(message) else _user_part(content)
    return part is not None and part["type"] != "text"


def as_held(message: Message) -> list[Message]:
    """A message as the service lists it."""
    is_answer = message.role == "assistant"
    steps = as_objects(written_steps(message)) if is_answer else _steps(Question("", ()), (message,))
    return step_messages(steps)


INTERACTIONS = WireFormat(
    name=WIRE,
    make_body=interactions_body,
    make_path=interactions_path,
    as_stream=interactions_stream,
    unstored=unstored,
    prefix_fields=("system_instruction", "tools", "previous_interaction_id", "input"),
    left_out=partial(foreign_signatures, wire=WIRE),
    sends_media=sends_media,
    options_on=options_on,
    as_held=as_held,
)
"""Gemini's Interactions."""


def _is_system(message: Message) -> bool:
    return message.role in {"system", "developer"}


def _steps(question: Question, messages: Sequence[Message]) -> list[JsonObject]:
    steps: list[JsonObject] = []
    used: set[str] = set()  # unique in the whole list: a repeated id would match two results
    waiting: list[str] = []
    for message in messages:
        # If the service holds the history, the calls are not among the messages: then a result's own id is right.
        steps += [_result(each, waiting.pop(0) if waiting else each.call_id) for each in message.results]
        if message.role == "assistant":
            if message.calls:
                waiting = unique_ids(message.calls, used)
            steps += marked(list(_answer(message, waiting, question)), message, question, _kind, _as_step)
        elif parts := _user_parts(message):
            steps.append({"type": "user_input", "content": [*parts]})
    return steps


def _result(result: FunctionResult, id_: str) -> JsonObject:
    """The result of a call: an object, a text, or a list of contents. A list as a value goes as text."""
    value = result.result
    taken: Json = value if isinstance(value, dict) else result_text(value)
    if result.contents:
        taken = [part for each in result.contents if (part := _user_part(each)) is not None]
    named: JsonObject = {} if result.name is None else {"name": result.name}
    return {"type": "function_result", "call_id": id_, **named, "result": taken}


def _answer(message: Message, ids: Sequence[str], question: Question) -> Iterator[JsonObject]:
    """The steps of an answer, with the ids that the results of its calls will have."""
    if is_own(message, question, WIRE):
        steps = as_objects(as_object(received(message, {"steps": written_steps(message)})).get("steps"))
    else:
        steps = as_objects(written_steps(message.model_copy(update={"contents": tuple(_sendable(message, question))})))
    call_ids = iter(ids)
    for step in steps:
        if step.get("type") != "function_call":
            yield step
        elif isinstance(step.get("name"), str):  # one without a name is not a call, and has no result
            yield {**step, "id": next(call_ids)}


def _kind(step: JsonObject) -> BlockKind:
    kinds: dict[str, BlockKind] = {"model_output": "text", "function_call": "call"}
    return kinds.get(as_text(step.get("type")), "other")


def _as_step(text: str) -> JsonObject:
    return {"type": "model_output", "content": [{"type": "text", "text": text}]}


def _sendable(message: Message, question: Question) -> Iterator[Content]:
    """The contents of an answer of another model that this one can read."""
    for content in message.contents:
        refusal = refusal_of(content)
        match content:
            case Text(text=text) if text:
                yield content
            case FunctionCall():
                yield content.model_copy(update={"name": function_name(content, question)})
            case Media():
                yield Text(text=media_words(content))
            case _ if refusal:
                yield Text(text=refusal)


def _user_parts(message: Message) -> list[JsonObject]:
    """The parts of a message that is not the model's. Its author is a prefix of the first text: ``Anna: Hello``."""
    if _is_system(message):
        return [{"type": "text", "text": f"[System] {message.text}"}] if message.text else []
    parts = [part for content in message.contents if (part := _user_part(content)) is not None]
    return with_author(message, parts, {"type": "text"})


def _user_part(content: Content) -> JsonObject | None:
    match content:
        case Text(text=text):
            return {"type": "text", "text": text} if text else None
        case Media():
            return _media(content)
        case Raw(value={"type": "text" | "input_text", "text": str(text)}) if text:
            return {"type": "text", "text": text}
        case Raw(value=dict(value)) if value.get("type") in MEDIA and value.keys() & {"data", "uri"}:
            return value
        case _:
            return None


def _media(media: Media) -> JsonObject:
    type_, data = media_type(media), inline_base64(media)
    name = type_.partition("/")[0]
    kind = "image" if is_picture(media) else name if name in MEDIA else "document"
    described: JsonObject = {"mime_type": type_} if type_ else {}
    if data is not None:
        return {"type": kind, "data": data, **described}
    if media.uri.startswith(("https://", "gs://")):
        return {"type": kind, "uri": media.uri, **described}
    return {"type": "text", "text": media_words(media)}
