"""Answers of remote agents with the wire of OpenAI's Assistants: the events of a run, and the messages of a thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from clew.domain.json_values import Json, JsonObject, storable
from clew.domain.messages import Content, FunctionCall, Media, Message, Raw, Text
from clew.domain.models.chat_answers import as_count, as_object, as_objects, as_text
from clew.domain.models.client import (
    Answer,
    CallDelta,
    ServiceBound,
    ServiceReference,
    TextDelta,
    TokenUsage,
    Update,
    joined,
)
from clew.domain.models.native import with_native

WIRE = "openai-assistants"
"""The name of the format."""

RUNNING = frozenset({"queued", "in_progress", "cancelling"})
"""Statuses of a run that has not ended, and does not wait."""

_ENDED = frozenset({"completed", "requires_action", "incomplete"})
_FAILED = frozenset({"failed", "cancelled", "expired"})
_LENGTH = frozenset({"max_completion_tokens", "max_prompt_tokens"})
_READ = frozenset({"required_action", "instructions", "tools", "usage", "id", "model", "object", "thread_id"})


@dataclass(slots=True)
class _Arriving:
    """A message of a run: the pieces of its texts, and the message itself when it is complete."""

    pieces: dict[int, list[str]] = field(default_factory=dict)
    whole: JsonObject | None = None

    def parts(self) -> list[JsonObject]:
        if self.whole is not None:
            return parts_of(self.whole)
        return [{"type": "text", "text": {"value": joined(self.pieces[index])}} for index in sorted(self.pieces)]


class AssistantsAnswer:
    """Assembles an answer from the events of a run, whose type is their ``object`` and ``status``.

    ``outcome`` says how a run ended without an answer.
    """

    def __init__(self) -> None:
        self.begun = False
        self.failure: Json = None
        self.outcome: str | None = None
        self._messages: dict[str, _Arriving] = {}
        self._steps: dict[str, JsonObject] = {}
        self._run: JsonObject = {}

    @property
    def status(self) -> str:
        """The status of the run, empty before it is known."""
        return as_text(self._run.get("status"))

    def take(self, event: JsonObject) -> Iterator[Update]:
        """Read an event, and yield what it adds."""
        match event.get("object"):
            case "thread.run":
                yield from self._take_run(event)
            case "thread.run.step":
                self._steps[as_text(event.get("id"))] = event
            case "thread.message.delta":
                arriving = self._messages.setdefault(as_text(event.get("id")), _Arriving())
                for part in as_objects(as_object(event.get("delta")).get("content")):
                    if value := as_text(as_object(part.get("text")).get("value")):
                        arriving.pieces.setdefault(as_count(part.get("index")), []).append(value)
                        self.begun = True
                        yield TextDelta(value)
            case "thread.message":
                yield from self._take_message(event)
            case None if (error := event.get("error")) is not None:
                self.failure = error

    def take_whole(self, run: JsonObject) -> Iterator[Update]:
        """Read a reply that is not a stream: the run as it stands. Its answer is in other replies."""
        if as_text(run.get("status")) in _ENDED:
            run = {**run, "status": "in_progress"}
        return self.take(run)

    def answer(self) -> Answer | None:
        """The answer; None until the run has ended, or waits for results."""
        run = self._run
        if self.status not in _ENDED:
            return None
        parts = [part for each in self._messages.values() for part in each.parts()]
        contents = [_content(part) for part in parts]
        calls = calls_of_run(run) if self.status == "requires_action" else []
        wholes = [each.whole for each in self._messages.values() if each.whole is not None]
        rests: list[Json] = [{name: value for name, value in each.items() if name != "content"} for each in wholes]
        reply: JsonObject = {
            "run": {name: value for name, value in run.items() if name not in _READ and value not in (None, [], {})},
            "messages": rests,
            "steps": [*self._steps.values()],
        }
        written: list[Json] = [_written(content) for content in contents]
        message = with_native(
            Message(role="assistant", contents=(*contents, *calls)),
            WIRE,
            written,
            [*parts],
            reply={name: value for name, value in reply.items() if value},
            kept=True,
        )
        return Answer(
            message,
            finish_reason=self._finish_reason(),
            usage=_usage(as_object(run.get("usage"))),
            model=as_text(run.get("model")) or None,
            response_id=as_text(run.get("id")) or None,
        )

    def _finish_reason(self) -> str:
        if self.status == "incomplete":
            reason = as_text(as_object(self._run.get("incomplete_details")).get("reason"))
            return "length" if reason in _LENGTH else reason or "length"
        return "tool_calls" if self.status == "requires_action" else "stop"

    def _take_run(self, run: JsonObject) -> Iterator[Update]:
        thread_id, id_ = as_text(run.get("thread_id")), as_text(run.get("id"))
        if not self._run and thread_id and id_:
            yield ServiceBound(ServiceReference(kind="conversation", id=thread_id), id_)
        self._run = run
        if self.status in _FAILED:
            self.outcome = self.status
            ended: JsonObject = {"message": f"The run has ended: {self.status}."}
            self.failure = as_object(run.get("last_error")) or ended
        elif self.status == "requires_action":
            for index, call in enumerate(calls_of_run(run)):
                self.begun = True
                yield CallDelta(index, call.call_id, call.name, call.arguments)

    def _take_message(self, message: JsonObject) -> Iterator[Update]:
        parts = parts_of(message)
        if message.get("status") == "in_progress" and not parts:
            return
        arriving = self._messages.setdefault(as_text(message.get("id")), _Arriving())
        is_new = arriving.whole is None and not arriving.pieces
        arriving.whole = message
        if text := "".join(_text(part) for part in parts) if is_new else "":
            self.begun = True
            yield TextDelta(text)


def calls_of_run(run: JsonObject) -> list[FunctionCall]:
    """The calls whose results a run waits for."""
    waiting = as_object(as_object(run.get("required_action")).get("submit_tool_outputs"))
    calls: list[FunctionCall] = []
    for each in as_objects(waiting.get("tool_calls")):
        function = as_object(each.get("function"))
        name, arguments = as_text(function.get("name")), as_text(function.get("arguments"))
        calls.append(FunctionCall(call_id=as_text(each.get("id")), name=name, arguments=arguments))
    return calls


def thread_messages(messages: Iterable[JsonObject]) -> list[Message]:
    """The messages of a thread at the service, oldest first."""
    return [
        Message(
            role="assistant" if each.get("role") == "assistant" else "user",
            contents=tuple([_content(part) for part in parts_of(each)]),
        )
        for each in messages
    ]


def parts_of(message: JsonObject) -> list[JsonObject]:
    """The contents of a message. Some servers send a text instead."""
    content = message.get("content")
    return [{"type": "text", "text": {"value": content}}] if isinstance(content, str) else as_objects(content)


def _usage(usage: JsonObject) -> TokenUsage | None:
    if not usage:
        return None
    details = as_object(usage.get("prompt_token_details") or usage.get("prompt_tokens_details"))
    return TokenUsage(
        input_tokens=as_count(usage.get("prompt_tokens")),
        output_tokens=as_count(usage.get("completion_tokens")),
        cached_tokens=as_count(details.get("cached_tokens")),
    )


def _text(part: JsonObject) -> str:
    content = _content(part)
    return content.text if isinstance(content, Text) else ""


def _content(part: JsonObject) -> Content:
    match part:
        case {"type": "text", "text": {"value": str(text)}} | {"type": "text", "text": str(text)}:
            return Text(text=joined([text]))
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            return Media(uri=url)
        case _:
            return Raw(value=storable(part))


def _written(content: Content) -> Json:
    match content:
        case Text(text=text):
            return {"type": "text", "text": {"value": text}}
        case Media(uri=uri):
            return {"type": "image_url", "image_url": {"url": uri}}
        case Raw(value=value):
            return value
        case _:
            return None
