"""Requests in the format of Gemini's generateContent.

The answers of the model go back part by part as the service sent them, with their signatures. A call of another model
has none: its first part gets the value that the service documents for such calls.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from itertools import takewhile
from urllib.parse import quote

from clew.domain.json_values import Json, JsonObject
from clew.domain.messages import Content, FunctionCall, FunctionResult, Media, Message, Raw, Text
from clew.domain.models.chat_answers import as_object, as_objects, refusal_of
from clew.domain.models.chat_requests import (
    BlockKind,
    function_name,
    inline_base64,
    marked,
    media_type,
    media_words,
    with_author,
    with_options,
)
from clew.domain.models.client import Question, WireFormat
from clew.domain.models.gemini_answers import SIGNATURE, WIRE, call_args, written_parts
from clew.domain.models.native import foreign_signatures, is_own, received

NO_SIGNATURE = "skip_thought_signature_validator"
"""The signature of a call that no Gemini model made."""

_TOP = frozenset(
    {"cachedContent", "generationConfig", "labels", "safetySettings", "serviceTier", "store", "toolConfig", "tools"}
)
"""Options that are fields of the body. All others are fields of ``generationConfig``."""


def gemini_body(question: Question) -> JsonObject:
    """The body of a request to ``:generateContent``; that for a stream is the same."""
    leading = list(takewhile(_is_system, question.messages))
    contents: list[JsonObject] = []
    for message in question.messages[len(leading) :]:
        _add(contents, message, question)
    body: JsonObject = {"contents": [*contents]}
    texts = [question.instructions, *(message.text for message in leading)]
    if system := "\n\n".join(text for text in texts if text):
        body["systemInstruction"] = {"parts": [{"text": system}]}
    if question.tools:
        declared: list[Json] = [
            {
                "name": tool.name,
                **({"description": tool.description} if tool.description else {}),
                "parametersJsonSchema": tool.parameters,
            }
            for tool in question.tools
        ]
        body["tools"] = [{"functionDeclarations": declared}]
    options = question.options or {}
    config = {name: value for name, value in options.items() if name not in _TOP}
    config = {**as_object(options.get("generationConfig")), **config}
    if (wanted := question.response_format) is not None:
        config |= {"responseMimeType": "application/json", "responseJsonSchema": wanted.json_schema}
    if config:
        body["generationConfig"] = config
    others = {name: value for name, value in options.items() if name in _TOP and name != "generationConfig"}
    return with_options(body, others)


def gemini_path(model: str, streams: bool) -> str:  # noqa: FBT001  # the parameters of every format's function
    """The path of requests, which names the model."""
    method = "streamGenerateContent?alt=sse" if streams else "generateContent"
    return f"/models/{quote(model, safe='')}:{method}"


def sends_media(question: Question, message: Message, content: Content) -> bool:
    """Whether a content goes into a request as the media that it is."""
    if message.role == "assistant":
        return is_own(message, question, WIRE)
    part = None if _is_system(message) else _user_part(content)
    return part is not None and "text" not in part


GEMINI = WireFormat(
    name=WIRE,
    make_body=gemini_body,
    make_path=gemini_path,
    prefix_fields=("systemInstruction", "tools", "cachedContent", "contents"),
    sends_media=sends_media,
    left_out=partial(foreign_signatures, wire=WIRE),
)
"""Gemini's generateContent."""


def _is_system(message: Message) -> bool:
    return message.role in {"system", "developer"}


def _add(contents: list[JsonObject], message: Message, question: Question) -> None:
    """Add the parts of a message to the last content, if that has the same role."""
    role = "model" if message.role == "assistant" else "user"
    fields: JsonObject = {}
    if role == "model":
        parts, fields = _answer(message, question)
        parts = marked(parts, message, question, _kind, lambda text: {"text": text})
    else:
        parts = _user_parts(message, contents, question)
    if not parts:
        return
    last = contents[-1] if contents else {}
    if last.get("role") == role and isinstance(before := last.get("parts"), list):
        before += parts
        last.update(fields)
    else:
        contents.append({"role": role, **fields, "parts": [*parts]})


def _kind(part: JsonObject) -> BlockKind:
    said = bool(part.get("text")) and not part.get("thought")
    return "text" if said else "call" if "functionCall" in part else "other"


def _answer(message: Message, question: Question) -> tuple[list[JsonObject], JsonObject]:
    """The parts of an answer, and what its content has besides. The service may refuse an empty text."""
    if is_own(message, question, WIRE):
        own = as_object(received(message, {"parts": [*written_parts(message)]}))
        return [part for part in as_objects(own.get("parts")) if part != {"text": ""}], as_object(own.get("content"))
    parts: list[JsonObject] = []
    for content in message.contents:
        refusal = refusal_of(content)
        match content:
            case Text(text=text) if text:
                parts.append({"text": text})
            case FunctionCall(arguments=arguments):
                call: JsonObject = {"name": function_name(content, question), "args": call_args(arguments)}
                unsigned = not any("functionCall" in part for part in parts)
                parts.append({"functionCall": call, **({SIGNATURE: NO_SIGNATURE} if unsigned else {})})
            case Media():
                parts.append({"text": media_words(content)})
            case _ if refusal:
                parts.append({"text": refusal})
    return parts, {}


def _user_parts(message: Message, contents: Sequence[JsonObject], question: Question) -> list[JsonObject]:
    """The parts of a message that is not the model's. Its author is a prefix of the first text: ``Anna: Hello``."""
    if _is_system(message):  # the service has no place for a later one
        return [{"text": f"[System] {message.text}"}] if message.text else []
    parts = _results(message.results, contents, question)
    return parts + with_author(
        message, [part for each in message.contents if (part := _user_part(each)) is not None], {}
    )


def _results(results: Sequence[FunctionResult], contents: Sequence[JsonObject], question: Question) -> list[JsonObject]:
    """The results of calls, in the order of the calls, each with the name and the id of its call; then their media."""
    made: list[JsonObject] = []
    answered = 0
    for content in reversed(contents):
        parts = as_objects(content.get("parts"))
        if content.get("role") == "model":
            made = [as_object(part["functionCall"]) for part in parts if "functionCall" in part]
            break
        answered += sum("functionResponse" in part for part in parts)
    responses: list[JsonObject] = []
    beside: list[JsonObject] = []
    for number, result in enumerate(results, start=answered):
        call = made[number] if number < len(made) else {}
        named: JsonObject = {"id": call["id"]} if "id" in call else {}
        name = call.get("name") or result.name or "unknown"
        inside, after = _result_media(result, question.model)
        response: JsonObject = {**named, "name": name, "response": _response(result)}
        responses.append({"functionResponse": {**response, "parts": [*inside]} if inside else response})
        beside += after
    return responses + beside


def _response(result: FunctionResult) -> JsonObject:
    """The object of a result, with words for media that the service cannot be sent."""
    if not result.contents:
        return result.result if isinstance(result.result, dict) else {"output": result.result}
    texts = [each.text if isinstance(each, Text) else _media(each).get("text") for each in result.contents]
    return {"output": "\n".join([text for text in texts if isinstance(text, str)])}


_WITH_PARTS = re.compile(r"gemini-(?:[3-9]|\d\d)")
"""The models that take media inside of a result. Others get them after the results."""

_INSIDE = frozenset({"application/pdf", "image/jpeg", "image/png", "image/webp", "text/plain"})
"""The types of such media, which must be in the request."""


def _result_media(result: FunctionResult, model: str) -> tuple[list[JsonObject], list[JsonObject]]:
    """The media of a result: those inside of it, and those after it."""
    inside: list[JsonObject] = []
    after: list[JsonObject] = []
    for each in result.contents:
        part = None if isinstance(each, Text) else _media(each)
        if part is None or "text" in part:
            continue
        takes = _WITH_PARTS.match(model) and as_object(part.get("inlineData")).get("mimeType") in _INSIDE
        (inside if takes else after).append(part)
    return inside, after


def _user_part(content: Content) -> JsonObject | None:
    match content:
        case Text(text=text):
            return {"text": text} if text else None
        case Media():
            return _media(content)
        case Raw(value={"type": "text" | "input_text", "text": str(text)}) if text:
            return {"text": text}
        case Raw(value=dict(value)) if value.keys() & {"inlineData", "fileData"}:
            return value
        case _:
            return None


def _media(media: Media) -> JsonObject:
    kind, data = media_type(media), inline_base64(media)
    if data is not None:
        return {"inlineData": {"mimeType": kind, "data": data}}
    if media.uri.startswith(("https://", "gs://")):
        return {"fileData": {**({"mimeType": kind} if kind else {}), "fileUri": media.uri}}
    return {"text": media_words(media)}
