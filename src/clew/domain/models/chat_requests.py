"""Requests in the format of OpenAI's Chat Completions, and parts that it shares with the other format.

Only contents that this format defines are sent: no reasoning, no approvals, no metadata, and no extra fields of
imported messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from clew.domain.json_values import Json, JsonObject
from clew.domain.messages import (
    Content,
    FunctionCall,
    FunctionResult,
    Media,
    Message,
    Native,
    Raw,
    Role,
    Text,
    only_text,
)
from clew.domain.models.chat_answers import WIRE, as_object, as_objects, refusal_of, written_answer
from clew.domain.models.client import Question, WireFormat
from clew.domain.models.native import foreign_signatures, is_own, received

_SOUNDS = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}


def chat_body(question: Question) -> JsonObject:
    """The body of a request to ``/chat/completions``."""
    body: JsonObject = {"model": question.model, "messages": _messages(question)}
    if question.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    **({"description": tool.description} if tool.description else {}),
                    "parameters": tool.parameters,
                },
            }
            for tool in question.tools
        ]
    if (response_format := question.response_format) is not None:
        schema: JsonObject = {"name": response_format.name, "schema": response_format.json_schema}
        if is_strict(response_format.json_schema):
            schema["strict"] = True
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return with_options(body, question.options)


def chat_path(model: str, streams: bool) -> str:  # noqa: FBT001  # the parameters of every format's function
    """The path of requests."""
    del model, streams
    return "/chat/completions"


def chat_stream(body: JsonObject) -> JsonObject:
    """The body that requests a stream, with the usage at its end."""
    options = body.get("stream_options")
    return {
        **body,
        "stream": True,
        "stream_options": {**(options if isinstance(options, dict) else {}), "include_usage": True},
    }


def sends_media(question: Question, message: Message, content: Content) -> bool:
    """Whether a content goes into a request as the media that it is."""
    del question
    part = _part("user" if message.role == "tool" else message.role, content)
    return part is not None and part["type"] != "text"


def left_out(question: Question, body: JsonObject) -> tuple[int, ...]:
    """The numbers of the answers with signed parts that another model made."""
    own = WIRE, question.provider, question.model
    for message in question.messages:
        native = message.native
        if native is not None and (native.wire, native.provider, native.model) != own:
            return foreign_signatures(question, body, WIRE)
    return ()


OPENAI_CHAT = WireFormat(
    name=WIRE,
    make_body=chat_body,
    make_path=chat_path,
    as_stream=chat_stream,
    prefix_fields=("tools", "messages"),
    left_out=left_out,
    sends_media=sends_media,
)
"""OpenAI's Chat Completions, which most services offer."""


def _messages(question: Question) -> list[Json]:
    sent: list[Json] = []
    if question.instructions:
        sent.append({"role": "system", "content": question.instructions})
    waiting: list[str] = []  # ids of the last calls, for their results
    shown: list[Json] = []  # media of the last results, for a message after all of them
    for message in question.messages:
        if shown and not message.results:
            _show(sent, shown)
        text = None if message.cut else only_text(message)
        if text is not None and (message.native is None or _needs_only_text(message.native)):  # the usual case
            waiting.clear()
            sent.append(_plain_message(message, text, question))
            continue
        results = message.results
        if results:
            _add_results(sent, results, waiting, shown)
        if results and len(results) == len(message.contents):
            continue  # the message contains nothing else
        words = [each for each in message.contents if not isinstance(each, FunctionCall | FunctionResult)]
        if words:
            waiting.clear()
        if message.role == "assistant":
            sent.append(_answer(message, words, question, waiting))
        else:
            sent += _other(message, words, question, waiting)
    if shown:
        _show(sent, shown)
    return _with_reasoning(sent, question)


def _other(message: Message, words: Sequence[Content], question: Question, waiting: list[str]) -> list[Json]:
    """The messages for one that is not an answer, and has more than a text or results."""
    sent: list[Json] = []
    if words or not message.contents:
        content = _content("user" if message.role == "tool" else message.role, words) or ""
        sent.append(_plain_message(message, content, question))
    if message.calls:
        sent.append(_assistant([], message.calls, question, waiting))
    return sent


def _add_results(sent: list[Json], results: Sequence[FunctionResult], waiting: list[str], shown: list[Json]) -> None:
    """Add the messages of results. Their media are added to ``shown``."""
    for result in results:
        if not waiting:  # a result without its call cannot be sent
            break
        text = _contents_text(result) if result.contents else result_text(result.result)
        sent.append({"role": "tool", "tool_call_id": waiting.pop(0), "content": text})
        if result.contents:
            shown += [part for each in result.contents if (part := _result_part(each)) is not None]


def _contents_text(result: FunctionResult) -> str:
    """The contents of a result as text. The media are in a message of the user: one of a tool cannot have them."""
    words = (
        each.text
        if isinstance(each, Text)
        else media_words(each)
        if _result_part(each) is None
        else f"[{media_type(each) or 'media'}, in the next message of the user]"
        for each in result.contents
    )
    return "\n".join(words)


def _result_part(content: Text | Media) -> JsonObject | None:
    """The part for media of a result; None for texts, and for media that the format does not send."""
    part = None if isinstance(content, Text) else _media(content)
    return None if part is None or part["type"] == "text" else part


def _show(sent: list[Json], shown: list[Json]) -> None:
    """Add the media of results: only a message of the user may have them, and none may be between results."""
    sent.append({"role": "user", "content": [{"type": "text", "text": RETURNED}, *shown]})
    shown.clear()


RETURNED = "[Returned by the functions above:]"
"""What a model reads before the media of results, where they are in a message of the user."""


def _with_reasoning(sent: list[Json], question: Question) -> list[Json]:
    """The messages, each call with reasoning if any has it, or if the options ask for thinking.

    A service that wants the reasoning of its calls again refuses calls without any, also those of another model. The
    option ``thinking`` is that of such services; OpenAI itself has another.
    """
    thinking = None if question.options is None or question.edition == 1 else question.options.get("thinking")
    with_calls: list[JsonObject] = []
    wanted = isinstance(thinking, dict) and thinking.get("type") == "enabled"
    for each in sent:
        if isinstance(each, dict):
            wanted = wanted or "reasoning_content" in each
            if "tool_calls" in each:
                with_calls.append(each)
    if wanted:
        for each in with_calls:
            each.setdefault("reasoning_content", "")
    return sent


def _answer(message: Message, words: Sequence[Content], question: Question, waiting: list[str]) -> JsonObject:
    """A message of the model, with what the service that made it needs again."""
    plain = _assistant(words, message.calls, question, waiting)
    if message.native is not None and is_own(message, question, WIRE):
        own = as_object(received(message, {"message": written_answer(message)})).get("message")
        _send_back(plain, as_object(own))
    if message.cut:
        plain["content"] = _joined(plain["content"], CUT_OFF, "\n\n")
    if (author := other_agent(message, question)) is not None:
        _name(plain, author)
    return plain


_WITH_CALLS = ("reasoning_content", "reasoning", "reasoning_details")
"""Reasoning that services need again while the model goes on from its calls."""


def _send_back(plain: JsonObject, own: JsonObject) -> None:
    """Add to a message what the service that made it needs again: reasoning, signatures and the id of its audio."""
    calls = as_objects(plain.get("tool_calls"))
    if calls:
        plain.update({name: own[name] for name in _WITH_CALLS if name in own})
    for call, own_call in zip([plain, *calls], [own, *as_objects(own.get("tool_calls"))], strict=False):
        if "extra_content" in own_call:
            call["extra_content"] = own_call["extra_content"]
        if own_call.get("type") == "custom":
            del call["function"]
            call |= {"type": "custom", "custom": own_call["custom"]}
    if isinstance(id_ := as_object(own.get("audio")).get("id"), str):
        plain["audio"] = {"id": id_}


def _needs_only_text(native: Native) -> bool:
    """Whether the service that made an answer without calls needs nothing of it again but its text."""
    for operation in native.patch:
        path = operation.get("path")
        if not isinstance(path, str) or path == "/json/message" or "audio" in path or "extra_content" in path:
            return False
    return True


def _plain_message(message: Message, content: Json, question: Question) -> JsonObject:
    """A message without calls. The text of a tool that is not a result is sent as the user's."""
    plain: JsonObject = {"role": "user" if message.role == "tool" else message.role, "content": content}
    author = message.author
    if author and message.role != "user":
        author = None if author == question.agent else other_agent(message, question)
    if author and (question.edition > 1 or is_name(author)):
        _name(plain, author)
    return plain


def _name(plain: JsonObject, author: str) -> None:
    """Name the author of a message: in its field, or as a prefix of the text if services refuse the name."""
    if is_name(author):
        plain["name"] = author
    elif plain["content"]:
        plain["content"] = _joined(f"{author}:", plain["content"], " ")


def _joined(first: Json, second: Json, between: str) -> Json:
    """Two contents as one: a text, or parts."""
    if not first or not second:
        return first or second
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}{between}{second}"
    return [*_as_parts(first), *_as_parts(second)]


def _as_parts(content: Json) -> list[Json]:
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


CUT_OFF = "[This answer was cut off.]"
"""What a model reads after an answer that is incomplete."""


BlockKind: TypeAlias = Literal["text", "call", "other"]


def marked(
    blocks: list[JsonObject],
    message: Message,
    question: Question,
    kind: Callable[[JsonObject], BlockKind],
    as_text: Callable[[str], JsonObject],
) -> list[JsonObject]:
    """The blocks of an answer, with its author if another agent gave it, and a mark if it was cut off.

    They are blocks of their own, so that signed blocks stay as they are: the author is before the first text, the mark
    after the last one, and before the calls of an answer without text.
    """
    author = other_agent(message, question)
    if author is None and not message.cut:
        return blocks
    kinds = [kind(block) for block in blocks]
    if message.cut:
        calls = kinds.index("call") if "call" in kinds else len(kinds)
        place = len(kinds) - kinds[::-1].index("text") if "text" in kinds else calls
        blocks = [*blocks[:place], as_text(CUT_OFF), *blocks[place:]]
    if author is not None and "text" in kinds:
        place = kinds.index("text")
        blocks = [*blocks[:place], as_text(f"{author}:"), *blocks[place:]]
    return blocks


def with_author(message: Message, parts: list[JsonObject], of_text: JsonObject) -> list[JsonObject]:
    """The parts of a user's message, its author a prefix of the first text: ``Anna: Hello``.

    ``of_text`` is what a part with a text has besides the text.
    """
    if message.author is None or message.role != "user":
        return parts
    for place, part in enumerate(parts):
        if "text" in part:
            return [*parts[:place], {**part, "text": f"{message.author}: {part['text']}"}, *parts[place + 1 :]]
    return [{**of_text, "text": f"{message.author}:"}, *parts]


def other_agent(message: Message, question: Question) -> str | None:
    """The author of an answer that another agent gave; None for any other message."""
    if question.edition == 1 or message.role != "assistant" or message.author == question.agent:
        return None
    return message.author or None


def _assistant(
    words: Sequence[Content], calls: Sequence[FunctionCall], question: Question, waiting: list[str]
) -> JsonObject:
    plain: JsonObject = {"role": "assistant", "content": _content("assistant", words)}
    refusals = [refusal for each in words if (refusal := refusal_of(each)) is not None]
    if refusals:
        plain["refusal"] = "".join(refusals)
    if calls:
        waiting[:] = unique_ids(calls, set())
        plain["tool_calls"] = [
            {
                "id": id_,
                "type": "function",
                "function": {"name": function_name(call, question), "arguments": arguments_text(call)},
            }
            for id_, call in zip(waiting, calls, strict=True)
        ]
    if plain["content"] is None and not calls and not refusals:
        plain["content"] = ""
    return plain


def _content(role: Role, words: Sequence[Content]) -> Json:
    parts = [part for content in words if (part := _part(role, content)) is not None]
    match parts:
        case []:
            return None
        case [{"type": "text", "text": str(text), **rest}] if not rest:
            return text
        case _:
            return [*parts]


def _part(role: Role, content: Content) -> JsonObject | None:
    match content:
        case Text(text=text):
            return {"type": "text", "text": text}
        case Media() if role == "user":
            return _media(content)
        case Media():
            return {"type": "text", "text": media_words(content)}
        case Raw(value=dict() as value) if _is_part(role, value):
            return value
        case _:
            return None


def _is_part(role: Role, value: Json) -> bool:
    """Whether ``value`` is a content part of this format that a message with this role may contain."""
    match value:
        case {"type": "text", "text": str()}:
            return True
        case {"type": "image_url", "image_url": {"url": str()}}:
            return role == "user"
        case {"type": "input_audio", "input_audio": {"data": str(), "format": str()}}:
            return role == "user"
        case {"type": "file", "file": {"file_id": str()} | {"file_data": str()}}:
            return role == "user"
        case _:
            return False


def _media(media: Media) -> JsonObject:
    if is_picture(media):
        return {"type": "image_url", "image_url": {"url": media.uri}}
    data = inline_base64(media)
    if data is not None and (sound := _SOUNDS.get(media_type(media))) is not None:
        return {"type": "input_audio", "input_audio": {"data": data, "format": sound}}
    if data is not None and not media_type(media).startswith(("audio/", "video/")):
        return {"type": "file", "file": {"filename": file_name(media), "file_data": media.uri}}
    return {"type": "text", "text": media_words(media)}


_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")
_EXTENSIONS = {"application/pdf": "pdf", "text/plain": "txt", "text/markdown": "md", "text/csv": "csv"}


def is_name(text: str) -> bool:
    """Whether services accept ``text`` as the name of a function or an author."""
    return _NAME.fullmatch(text) is not None


def function_name(call: FunctionCall, question: Question) -> str:
    """The name of a called function. In a name that the model made up, characters that services refuse become ``_``."""
    if is_name(call.name) or any(tool.name == call.name for tool in question.tools):
        return call.name
    return _NOT_IN_NAMES.sub("_", call.name)[:64] or "unnamed"


def arguments_text(call: FunctionCall) -> str:
    """The arguments as the model wrote them, ``{}`` for empty ones: some services refuse an empty text."""
    return call.arguments or "{}"


def unique_ids(calls: Sequence[FunctionCall], used: set[str]) -> list[str]:
    """An id for each call: its own, unless that is missing or in ``used``. Adds the ids to ``used``."""
    own_ids = {call.call_id for call in calls}
    ids = []
    for call in calls:
        id_, number = call.call_id, 1
        while not id_ or id_ in used or (number > 1 and id_ in own_ids):
            number += 1
            id_ = f"{call.call_id or 'call'}-{number}"
        used.add(id_)
        ids.append(id_)
    return ids


def result_text(result: Json) -> str:
    """A function's result as text; any other value as JSON."""
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)


def result_words(result: FunctionResult) -> str:
    """A function's result as text: a value as JSON, and of several contents the texts, with words for the media."""
    if not result.contents:
        return result_text(result.result)
    return "\n".join(media_words(each) if isinstance(each, Media) else each.text for each in result.contents)


def in_result(message: Message, content: Content) -> bool:
    """Whether a content of a message is part of a result."""
    return not any(each is content for each in message.contents)


def media_type(media: Media) -> str:
    """The media type, from the media itself or from its ``data:`` URI; empty if neither has one."""
    if media.media_type:
        return media.media_type
    if media.uri.startswith("data:"):
        return media.uri[5:].partition(",")[0].partition(";")[0]
    return ""


def is_picture(media: Media) -> bool:
    """Whether media is a picture that a service can load. A URL without a media type counts as a picture."""
    if media.uri.startswith(("https://", "http://")):
        return media_type(media).startswith("image/") or not media_type(media)
    return media_type(media).startswith("image/") and inline_base64(media) is not None


def inline_base64(media: Media) -> str | None:
    """The data of a ``data:`` URI in base64, None for anything else."""
    head, comma, data = media.uri.partition(",")
    return data if comma and head.startswith("data:") and head.endswith(";base64") else None


def media_words(media: Media) -> str:
    """A description of media for a service that accepts only text: the type and the address, never the data."""
    kind = media_type(media) or "media"
    return f"[{kind}, not shown here]" if media.uri.startswith("data:") else f"[{kind}: {media.uri}]"


def file_name(media: Media) -> str:
    """The name of a file; one for its type if it has none."""
    return media.name or f"file.{_EXTENSIONS.get(media_type(media), 'bin')}"


def with_options(body: JsonObject, options: JsonObject | None) -> JsonObject:
    """The body with the provider's options. Tools in the options come after the functions."""
    if not options:
        return body
    merged = {**body, **options}
    ours, theirs = body.get("tools"), options.get("tools")
    if isinstance(ours, list) and isinstance(theirs, list):
        merged["tools"] = [*ours, *theirs]
    return merged


def is_strict(schema: Json) -> bool:
    """Whether services can enforce a JSON schema: objects are closed, and every property is required."""
    if isinstance(schema, list):
        return all(is_strict(each) for each in schema)
    if not isinstance(schema, dict):
        return True
    if schema.get("type") == "object" or "properties" in schema:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if schema.get("additionalProperties") is not False or not isinstance(properties, dict):
            return False
        if not isinstance(required, list) or any(name not in required for name in properties):
            return False
        return all(map(is_strict, [*properties.values(), schema.get("$defs", {})]))
    return all(is_strict(value) for value in schema.values())
