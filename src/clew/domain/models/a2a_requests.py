"""Requests to remote agents over A2A 1.0, in its binding to JSON-RPC.

The agent keeps its own history, so a request has only what is new: one message with all its parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from uuid import NAMESPACE_URL, uuid5

from clew.domain.json_values import Json, JsonObject, canonical
from clew.domain.messages import Content, Media, Message, Raw, Text
from clew.domain.models.chat_requests import inline_base64, media_type, media_words, result_text
from clew.domain.models.client import Question, WireFormat
from clew.domain.models.client_calls import A2A as WIRE

_PARAMS = frozenset({"metadata", "tenant"})
"""Options that are fields beside the message. All others, but ``streaming``, are fields of its configuration."""


def a2a_body(question: Question) -> JsonObject:
    """The body of a request: a message, or the question how a task stands."""
    options, task = question.options or {}, question.task
    tenant = {name: options[name] for name in ("tenant",) if name in options}
    if task is not None and task.reads:
        return _call("GetTask", {**tenant, "id": task.task_id}, task.message_id)
    parts: list[Json] = [*_parts(question)]
    # Without a run there is nothing that could be sent twice.
    id_ = str(uuid5(NAMESPACE_URL, canonical(parts))) if task is None else task.message_id
    message: JsonObject = {"messageId": id_, "role": "ROLE_USER", "parts": parts}
    if question.service is not None:
        message["contextId"] = question.service.id
    if task is not None and task.task_id is not None:
        message["taskId"] = task.task_id
    params: JsonObject = {"message": message, **{name: options[name] for name in sorted(_PARAMS & options.keys())}}
    configuration = {name: each for name, each in options.items() if name not in _PARAMS and name != "streaming"}
    if configuration:
        params["configuration"] = configuration
    return _call("SendStreamingMessage" if options.get("streaming", True) else "SendMessage", params, id_)


def _call(method: str, params: JsonObject, id_: str) -> JsonObject:
    return {"jsonrpc": "2.0", "id": id_, "method": method, "params": params}


def a2a_path(model: str, streams: bool) -> str:  # noqa: FBT001  # the parameters of every format's function
    """The path of requests: all go to the address of the agent."""
    del model, streams
    return ""


def sends_media(question: Question, message: Message, content: Content) -> bool:
    """Whether a content goes into a request as the media that it is."""
    del question
    return message.role != "assistant" and isinstance(content, Media) and "text" not in _media(content)


A2A = WireFormat(name=WIRE, make_body=a2a_body, make_path=a2a_path, sends_media=sends_media, has_tasks=True)
"""Remote agents over A2A."""


def _parts(question: Question) -> Iterator[JsonObject]:
    """The parts of the message: the instructions, and all that the agent has not heard."""
    if question.instructions:
        yield {"text": question.instructions}
    for message in question.messages:
        parts = [part for content in message.contents for part in _content(content)]
        parts += [{"text": result_text(each.result)} for each in message.results]
        author = message.author
        if message.role == "assistant":
            if message.cut or (message.native is not None and message.native.wire == WIRE):
                continue  # its own
            author = author or "Assistant"
        elif message.role in {"system", "developer"}:
            author = None
        if author is not None and parts:
            first = parts[0].get("text")
            parts = [{"text": f"{author}:" if first is None else f"{author}: {first}"}, *parts[first is not None :]]
        yield from parts


def _content(content: Content) -> Iterator[JsonObject]:
    match content:
        case Text(text=text) if text:
            yield {"text": text}
        case Media():
            yield _media(content)
        case Raw(value={"a2a": "input", "approved": bool(approved), "text": text}):
            yield {"text": text if isinstance(text, str) and text else "Approved." if approved else "Rejected."}
        case Raw(value=dict(value)) if "data" in value and value.keys() <= {"data", "metadata", "mediaType"}:
            yield value


def _media(media: Media) -> JsonObject:
    type_, data = media_type(media), inline_base64(media)
    described: JsonObject = {"mediaType": type_} if type_ else {}
    if data is not None:
        return {"raw": data, **described}
    if media.uri.startswith(("https://", "http://")):
        return {"url": media.uri, **described}
    return {"text": media_words(media)}
