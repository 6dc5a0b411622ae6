"""Requests in the format of OpenAI's Responses: the history as a flat list of items.

Items of this service that Clew has no type for are sent back unchanged: reasoning, and the items in ``Raw``. Parts in
the formats of other services are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from clew.domain.json_values import Json, JsonObject
from clew.domain.messages import Content, FunctionCall, FunctionResult, Media, Message, Raw, Reasoning, Role, Text
from clew.domain.models.chat_answers import as_object, as_objects, refusal_of
from clew.domain.models.chat_requests import (
    CUT_OFF,
    arguments_text,
    file_name,
    function_name,
    in_result,
    inline_base64,
    is_picture,
    is_strict,
    media_type,
    media_words,
    other_agent,
    result_text,
    unique_ids,
    with_options,
)
from clew.domain.models.client import Question, ThreadKind, WireFormat
from clew.domain.models.client_calls import client_names, paired
from clew.domain.models.native import has_signed_parts, is_own, received
from clew.domain.models.responses_answers import WIRE, call_arguments, item_messages, written_items

_ITEMS = frozenset(
    {
        "additional_tools",
        "compaction",
        "compaction_trigger",
        "configuration_update",
        "item_reference",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_list_tools",
        "program",
        "program_output",
        "tool_search_output",
    }
)
"""Types of the service's items that do not end with ``_call`` or ``_call_output``."""
_OTHERS = frozenset(
    {
        "custom",
        "file",
        "function",
        "image",
        "image_url",
        "input_audio",
        "input_file",
        "input_image",
        "input_text",
        "mcp_tool_use",
        "message",
        "output_text",
        "refusal",
        "server_tool_call",
        "server_tool_use",
        "text",
        "tool_call",
        "tool_use",
    }
)
"""Types that are not items: content parts, and parts of other services that also have an id."""


def responses_body(question: Question) -> JsonObject:
    """The body of a request to ``/responses``."""
    items, options = _items(question), question.options or {}
    tools = question.tools
    if question.edition > 2:  # noqa: PLR2004  # the edition that does so first
        items = paired(items, question.messages)
        tools = tuple([each for each in tools if each.name not in client_names(options.get("tools"))])
    body: JsonObject = {"model": question.model, "input": items}
    if "agent_reference" in options:
        del body["model"]  # Foundry refuses both: the agent has its model
    if question.instructions:
        body["instructions"] = question.instructions
    if tools:
        body["tools"] = [
            {
                "type": "function",
                "name": tool.name,
                **({"description": tool.description} if tool.description else {}),
                "parameters": tool.parameters,
                "strict": is_strict(tool.parameters),
            }
            for tool in tools
        ]
    if (response_format := question.response_format) is not None:
        schema: JsonObject = {
            "type": "json_schema",
            "name": response_format.name,
            "schema": response_format.json_schema,
            "strict": is_strict(response_format.json_schema),
        }
        more = options.get("text")
        body["text"] = {**(more if isinstance(more, dict) else {}), "format": schema}
        options = {name: value for name, value in options.items() if name != "text"}
    if (service := question.service) is not None:
        body["previous_response_id" if service.kind == "response" else "conversation"] = service.id
    return with_options(body, options)


def responses_path(model: str, streams: bool) -> str:  # noqa: FBT001  # the parameters of every format's function
    """The path of requests."""
    del model, streams
    return "/responses"


def responses_stream(body: JsonObject) -> JsonObject:
    """The body that requests a stream."""
    return {**body, "stream": True}


def unstored(options: JsonObject) -> JsonObject:
    """The options that ask the service to store nothing."""
    return {**options, "store": False}


def as_held(message: Message) -> list[Message]:
    """A message as the service lists it: without an author, and results as text."""
    return item_messages(as_objects(responses_body(Question("", (message,)))["input"]))


ENCRYPTED = "reasoning.encrypted_content"


def options_on(kind: ThreadKind, options: JsonObject) -> JsonObject:
    """The options with ``store``, unless they have it: a service stores only the threads that it holds.

    A service that stores nothing sends its reasoning encrypted, so that it can be sent back.
    """
    if "store" in options:
        return options
    if kind == "remote":
        return {**options, "store": True}
    include = options.get("include", [])
    included: list[Json] = [each for each in include if each != ENCRYPTED] if isinstance(include, list) else []
    return {**options, "store": False, "include": [ENCRYPTED, *included]}


def left_out(question: Question, body: JsonObject) -> tuple[int, ...]:
    """The numbers of the messages whose reasoning is not sent."""
    del body
    return tuple(
        number
        for number, message in enumerate(question.messages)
        if _leaves_out(message, question)
        or (message.native is not None and isinstance(message.contents[-1], Reasoning))
    )


def _leaves_out(message: Message, question: Question) -> bool:
    """Whether the service cannot read the reasoning of an answer.

    Another model made it, or it was stored at the service, and the request holds the whole history: then the service
    needs the content itself, encrypted or not.
    """
    if message.native is None:
        return False
    items = [as_object(each.data) for each in message.contents if isinstance(each, Reasoning)]
    if not is_own(message, question, WIRE):
        return any(items) or has_signed_parts(message)
    return any(not item.get("encrypted_content") and not item.get("content") for item in items)


def sends_media(question: Question, message: Message, content: Content) -> bool:
    """Whether a content goes into a request as the media that it is."""
    if is_own(message, question, WIRE):
        return True
    part = _part("user" if in_result(message, content) else message.role, content)
    return part is not None and part["type"] in {"input_image", "input_file"}


OPENAI_RESPONSES = WireFormat(
    name=WIRE,
    make_body=responses_body,
    make_path=responses_path,
    as_stream=responses_stream,
    prefix_fields=("instructions", "tools", "previous_response_id", "conversation", "input"),
    left_out=left_out,
    unstored=unstored,
    options_on=options_on,
    as_held=as_held,
    sends_media=sends_media,
)
"""OpenAI's Responses."""


def is_item(value: Json) -> bool:
    """Whether ``value`` has the shape of an item of this service that Clew has no type for."""
    match value:
        case {"type": str(kind)} if kind in _OTHERS:
            return False
        case {"type": str(kind)} if kind in _ITEMS or kind.endswith(("_call", "_call_output")):
            return True
        case {"type": str(kind), "id": str()}:  # a newer type: items of the service have an id
            return bool(kind)
        case _:
            return False


def _items(question: Question) -> list[Json]:
    items: list[Json] = []
    used: set[str] = set()  # unique in the whole list: a repeated id would match two results
    waiting: list[str] = []
    for message in question.messages:
        for result in message.results:
            # If the service holds the history, the calls are not among the messages: then the result's own id is right.
            id_ = waiting.pop(0) if waiting else result.call_id
            items.append({"type": "function_call_output", "call_id": id_, "output": _output(result)})
        rest = [each for each in message.contents if not isinstance(each, FunctionResult)]
        if message.contents and not rest:
            continue
        if message.calls:
            waiting = unique_ids(message.calls, used)
        if (author := other_agent(message, question)) is not None and message.text:
            items.append({"role": "assistant", "content": f"{author}:"})
        leaves_out = question.edition > 1 and _leaves_out(message, question)
        if is_own(message, question, WIRE) and not leaves_out:
            items += _own_items(message, waiting)
        else:
            if leaves_out:
                rest = [each for each in rest if not _depends(each)]
            sent = list(_message_items(message, rest, waiting, question))
            sent = sent or [_words(message.role, [])]
            if message.author and message.role == "user" and question.edition > 1:
                _name(sent, message.author)
            items += sent
        if message.cut:
            items.append({"role": "assistant", "content": CUT_OFF})
    return items


def _output(result: FunctionResult) -> Json:
    """A result: a text, or parts as in a message of the user."""
    if not result.contents:
        return result_text(result.result)
    return [
        _media(each) if isinstance(each, Media) else {"type": "input_text", "text": each.text}
        for each in result.contents
    ]


def _name(items: Sequence[Json], author: str) -> None:
    """Name the author before the first words of a message of the user: the format has no field for it."""
    words = next((each for each in as_objects([*items]) if "role" in each), {})
    content = words.get("content")
    if isinstance(content, str):
        words["content"] = f"{author}: {content}"
    elif isinstance(content, list):
        content.insert(0, {"type": "input_text", "text": f"{author}:"})


def _depends(content: Content) -> bool:
    """Whether a content is reasoning, or an item that the service accepts only with the reasoning before it."""
    return isinstance(content, Reasoning) or (isinstance(content, Raw) and is_item(content.value))


def _own_items(message: Message, ids: Sequence[str]) -> list[Json]:
    """The items of an answer as the service sent them, with the ids that the results of its calls will have."""
    own = as_objects(as_object(received(message, {"output": written_items(message)})).get("output"))
    while own and own[-1].get("type") == "reasoning":
        own.pop()  # the service refuses reasoning without anything after it
    call_ids = iter(ids)
    items: list[Json] = []
    for item in own:
        if item.get("type") != "function_call":
            items.append(item)
        elif isinstance(item.get("name"), str):  # one without a name is not a call, and has no result
            arguments = call_arguments(item) or "{}"
            items.append({**item, "call_id": next(call_ids), "arguments": arguments})
    return items


def _message_items(
    message: Message, contents: Sequence[Content], ids: Sequence[str], question: Question
) -> Iterator[Json]:
    """The items of a message in order. Adjacent text and media are one item."""
    call_ids = iter(ids)
    words: list[Content] = []
    last = max((n for n, each in enumerate(contents) if _is_followed(each)), default=-1)
    for number, content in enumerate(contents):
        if (item := _item(content, call_ids, question)) is None:
            if _part(message.role, content) is not None:
                words.append(content)
            continue
        if isinstance(content, Reasoning) and number > last:
            continue  # the service refuses reasoning without anything after it
        if words:
            yield _words(message.role, words)
            words = []
        yield item
    if words:
        yield _words(message.role, words)


def _is_followed(content: Content) -> bool:
    return isinstance(content, Text | FunctionCall) or (
        isinstance(content, Raw) and (is_item(content.value) or refusal_of(content) is not None)
    )


def _item(content: Content, ids: Iterator[str], question: Question) -> Json:
    """The separate item for a content; None for text and media, and for contents that cannot be sent."""
    match content:
        case FunctionCall():
            name = function_name(content, question)
            return {"type": "function_call", "call_id": next(ids), "name": name, "arguments": arguments_text(content)}
        case Reasoning(data={"type": "reasoning"} as data):
            return data
        case Raw(value=value) if is_item(value):
            return value
        case _:
            return None


def _words(role: Role, words: Sequence[Content]) -> JsonObject:
    speaker: Role = "user" if role == "tool" else role
    parts = [part for content in words if (part := _part(role, content)) is not None]
    match parts:
        case []:
            return {"role": speaker, "content": ""}
        case [{"type": "input_text" | "output_text", "text": str(text), **rest}] if not rest:
            return {"role": speaker, "content": text}
        case _:
            return {"role": speaker, "content": [*parts]}


def _part(role: Role, content: Content) -> JsonObject | None:
    kind = "output_text" if role == "assistant" else "input_text"
    match content:
        case Text(text=text):
            return {"type": kind, "text": text}
        case Media() if role == "user":
            return _media(content)
        case Media():
            return {"type": kind, "text": media_words(content)}
        case Raw(value=value) if role == "assistant":
            refusal = refusal_of(content)
            return {"type": "refusal", "refusal": refusal} if refusal is not None else _text_of(kind, value)
        case Raw(value=value):
            return _text_of(kind, value) or (_input_part(value) if role == "user" else None)
        case _:
            return None


def _text_of(kind: str, value: Json) -> JsonObject | None:
    match value:
        case {"type": "text" | "input_text" | "output_text", "text": str(text)}:
            return {"type": kind, "text": text}
        case _:
            return None


def _input_part(value: Json) -> JsonObject | None:
    """A content part of this format, or one of Chat Completions converted to it."""
    if not isinstance(value, dict):
        return None
    match value:
        case {"type": "input_image", "image_url": str()} | {"type": "input_image", "file_id": str()}:
            return value
        case {"type": "input_file", "file_id": str()} | {"type": "input_file", "file_data": str()}:
            return value
        case {"type": "input_file", "file_url": str()}:
            return value
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            return {"type": "input_image", "image_url": url}
        case {"type": "file", "file": {"file_id": str(id_)}}:
            return {"type": "input_file", "file_id": id_}
        case {"type": "file", "file": {"file_data": str(data), "filename": str(name)}}:
            return {"type": "input_file", "filename": name, "file_data": data}
        case {"type": "file", "file": {"file_data": str(data)}}:
            return {"type": "input_file", "filename": "file", "file_data": data}
        case _:
            return None


def _media(media: Media) -> JsonObject:
    if is_picture(media):
        return {"type": "input_image", "image_url": media.uri}
    if media_type(media).startswith(("audio/", "video/")):
        return {"type": "input_text", "text": media_words(media)}
    if inline_base64(media) is not None:
        return {"type": "input_file", "filename": file_name(media), "file_data": media.uri}
    if media.uri.startswith(("https://", "http://")):
        return {"type": "input_file", "file_url": media.uri}
    return {"type": "input_text", "text": media_words(media)}
