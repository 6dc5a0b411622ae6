"""Requests to remote agents with the wire of OpenAI's Assistants: what a thread at the service does not have yet.

OpenAI switched this API off on 26 August 2026. Azure's classic agents and compatible servers have it:
https://learn.microsoft.com/azure/ai-foundry/agents.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from urllib.parse import quote

from clew.domain.json_values import JsonObject
from clew.domain.messages import Content, FunctionResult, Media, Message, Text
from clew.domain.models.assistants_answers import WIRE
from clew.domain.models.chat_requests import media_words, result_words, with_options
from clew.domain.models.client import ModelRequest, Question, ServiceReference, WireFormat

MESSAGE_ID = "clew_message"
"""The metadata of a run that names the message which began it."""


def assistants_body(question: Question) -> JsonObject:
    """The body of a request: a new run, results for the run that waits for them, or what is read of a run.

    What the agent and its context providers say is added to the instructions of the assistant. Its tools are those at
    the service. A stream is always requested: without one, the service replies before the agent has answered.
    """
    task, results = question.task, [result for message in question.messages for result in message.results]
    if task is not None and task.reads:
        return {"run_id": task.task_id, "after": [result.call_id for result in results]}
    if task is not None and task.task_id is not None and submits_results(question):
        outputs: list[JsonObject] = [
            {"tool_call_id": result.call_id, "output": result_words(result)} for result in results
        ]
        return {"tool_outputs": [*outputs], "stream": True}
    body: JsonObject = {"assistant_id": question.model, "stream": True}
    messages = [*_messages(question)]
    if question.service is None:
        body["thread"] = {"messages": [*messages]}
        if question.instructions:
            body["instructions"] = question.instructions
    else:
        if question.instructions:
            body["additional_instructions"] = question.instructions
        if messages:
            body["additional_messages"] = [*messages]
    if task is not None:
        body["metadata"] = {MESSAGE_ID: task.message_id}
    return with_options(body, question.options)


def submits_results(question: Question) -> bool:
    """Whether a question has results and nothing else, so that a run that waits for them continues."""
    return bool(question.messages) and all(message.role == "tool" for message in question.messages)


def assistants_path(model: str, streams: bool) -> str:  # noqa: FBT001  # the parameters of every format's function
    """The path of a request that begins a thread."""
    del model, streams
    return "/threads/runs"


def task_path(request: ModelRequest) -> str:
    """The path of a request: that of the runs of a thread, or of the run that is read or gets results."""
    service, task = request.service, request.task
    if service is None:
        return assistants_path(request.model, request.streams)
    if task is not None and task.task_id is not None and "tool_outputs" in request.body:
        return f"{run_path(service, task.task_id)}/submit_tool_outputs"
    if task is not None and task.task_id is not None and task.reads:
        return run_path(service, task.task_id)
    return f"{thread_path(service)}/runs"


def thread_path(service: ServiceReference) -> str:
    """The path of a thread."""
    return f"/threads/{quote(service.id, safe='')}"


def run_path(service: ServiceReference, run_id: str) -> str:
    """The path of a run."""
    return f"{thread_path(service)}/runs/{quote(run_id, safe='')}"


def sends_media(question: Question, message: Message, content: Content) -> bool:
    """Whether a content goes into a request as the media that it is: a thread takes the addresses of images."""
    del question
    return isinstance(content, Media) and message.role in {"user", "assistant"} and _is_address_of_image(content)


def as_held(message: Message) -> list[Message]:
    """A message as the service lists it: without calls and results, which belong to runs."""
    contents = tuple([content for content in message.contents if isinstance(content, Text | Media)])
    if message.role == "tool" or not contents:
        return []
    return [Message(role="assistant" if message.role == "assistant" else "user", contents=contents)]


ASSISTANTS = WireFormat(
    name=WIRE,
    make_body=assistants_body,
    make_path=assistants_path,
    as_held=as_held,
    sends_media=sends_media,
    has_tasks=True,
    takes_results=True,
    answers_in_turn=True,
    make_task_path=task_path,
)
"""The wire of OpenAI's Assistants."""


def _messages(question: Question) -> Iterator[JsonObject]:
    """The messages that are new to the thread. It knows those of users and of assistants, and no authors."""
    for message in question.messages:
        if message.role == "assistant" and message.native is not None and message.native.wire == WIRE:
            continue  # its own
        if parts := [*_parts(message)]:
            is_plain = message.role in {"system", "developer"} or message.author == question.agent
            author = None if is_plain else message.author
            role = "assistant" if message.role == "assistant" and author is None else "user"
            yield {"role": role, "content": [*_named(author, parts)]}


def _parts(message: Message) -> Iterator[JsonObject]:
    for content in message.contents:
        match content:
            case Text(text=text) if text:
                yield {"type": "text", "text": text}
            case Media() if _is_address_of_image(content):
                yield {"type": "image_url", "image_url": {"url": content.uri}}
            case Media():
                yield {"type": "text", "text": media_words(content)}
            case FunctionResult():  # of a call that no run waits for
                yield {"type": "text", "text": f"[Result of {content.name or 'a function'}] {result_words(content)}"}


def _named(author: str | None, parts: list[JsonObject]) -> Iterable[JsonObject]:
    if author is None:
        return parts
    if parts[0]["type"] == "text":
        return [{**parts[0], "text": f"{author}: {parts[0]['text']}"}, *parts[1:]]
    return [{"type": "text", "text": f"{author}:"}, *parts]


def _is_address_of_image(media: Media) -> bool:
    return media.uri.startswith(("https://", "http://")) and (media.media_type or "image/").startswith("image/")
