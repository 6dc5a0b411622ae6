"""A model client that answers from a script, with faults on demand: for tests, demos and work without a network."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
import itertools
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from clew.domain.json_values import Json, JsonObject, check_json
from clew.domain.messages import FunctionCall, Message, Reasoning, Text
from clew.domain.models.chat_requests import OPENAI_CHAT
from clew.domain.models.client import (
    Answer,
    CallDelta,
    ModelRequest,
    ReasoningDelta,
    ServiceBound,
    ServiceReference,
    TextDelta,
    ThreadKind,
    TokenUsage,
    Update,
)
from clew.domain.models.responses_requests import OPENAI_RESPONSES
from clew.domain.runs.errors import (
    AgentConfigurationError,
    ContextWindowError,
    ModelError,
    ModelOverloadedError,
    ModelRequestError,
    ModelStreamError,
    ModelUnavailableError,
)

FaultKind: TypeAlias = Literal[
    "refused", "overloaded", "server-error", "cut", "stall", "malformed", "early-end", "context-window"
]

_WORDS = re.compile(r"\S+\s*|\s+")
_NO_ID = ""
"""The call id of a call that has no number yet."""


_BROKEN_OFF: dict[str, str] = {
    "cut": "The connection was cut before the answer was complete. Run again.",
    "stall": "The answer stalled: no more of it arrived. Run again.",
    "malformed": "The service sent something that is not part of an answer. Run again.",
    "early-end": "The answer ended before it was complete. Run again.",
}
_WITHOUT_ANSWER = ("cut", "stall")
"""The faults that can be retried before the answer has begun, as with other clients."""
_BEFORE_ANSWER = ("refused", "overloaded", "server-error", "context-window")


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault instead of an answer. :func:`fault` makes one and documents the fields."""

    kind: FaultKind
    after: str = ""
    seconds: float | None = None
    retry_after: float | None = None
    tokens: int | None = None
    limit: int | None = None

    def error(self, *, begun: bool) -> ModelError:
        """The error that the client raises; ``begun`` is True if a part of the answer was shown."""
        if self.kind in _BROKEN_OFF:
            words = _BROKEN_OFF[self.kind]
            if not begun and self.kind in _WITHOUT_ANSWER:
                return ModelUnavailableError(words, retryable=True, sent=None if self.kind == "stall" else True)
            return ModelStreamError(words, sent=True)
        if self.kind == "refused":
            words = "The connection was refused. Is the service running?"
            return ModelUnavailableError(words, retryable=True, sent=False)
        if self.kind == "overloaded":
            message = "The service accepts no more requests for now (HTTP 429)."
            return ModelOverloadedError(message, status=429, retryable=True, retry_after=self.retry_after)
        if self.kind == "server-error":
            return ModelUnavailableError("The service failed (HTTP 500). Try again.", status=500, retryable=True)
        size = "" if self.tokens is None else f": {self.tokens} tokens"
        limit = "" if self.limit is None else f" (limit: {self.limit})"
        return ContextWindowError(
            f"The request is larger than the model's context window{size}{limit}. Shorten the history.",
            tokens=self.tokens,
            limit=self.limit,
            status=400,
            code="context_length_exceeded",
        )


Spoken: TypeAlias = str | FunctionCall | Message | Sequence[str | FunctionCall]
"""The short form of an answer: text, a call, a list of both, or a message of the assistant."""

Line: TypeAlias = Spoken | Answer | Fault | Exception
"""One answer of a script: in short form, complete, or a fault."""

LineFunction: TypeAlias = Callable[[JsonObject], Line | Awaitable[Line]]
"""Returns an answer for the body of a request. It may be async."""


def call(name: str, /, **arguments: Json) -> FunctionCall:
    """A function call for a script: ``call("lookup", order=7)``.

    The client sets its call id: ``call_1`` for the first call of a conversation, and so on.
    """
    check_json(arguments, name)
    return FunctionCall(call_id=_NO_ID, name=name, arguments=json.dumps(arguments, ensure_ascii=False))


def fault(
    kind: FaultKind,
    *,
    after: str = "",
    retry_after: float | None = None,
    seconds: float | None = None,
    tokens: int | None = None,
    limit: int | None = None,
) -> Fault:
    """A fault instead of an answer.

    ``refused`` (no connection), ``overloaded`` (HTTP 429, with ``retry_after`` in seconds), ``server-error`` (HTTP 500)
    and ``context-window`` (with ``tokens`` of the request and the model's ``limit``) happen before the answer begins.
    ``cut``, ``stall`` (the stream stops, for ``seconds`` or until the caller gives up), ``malformed`` and ``early-end``
    happen after the stream has sent the text ``after``. An answer that breaks off is not retried. Without text before,
    ``cut`` and ``stall`` are: then no answer has begun, and the error is a ModelUnavailableError.
    """
    if kind not in _BROKEN_OFF and kind not in _BEFORE_ANSWER:
        known = ", ".join([*_BROKEN_OFF, *_BEFORE_ANSWER])
        raise AgentConfigurationError(f"{kind!r} is not a fault. The faults are: {known}.")
    if kind in _BEFORE_ANSWER and after:
        raise AgentConfigurationError(f"fault({kind!r}) happens before the answer begins: leave out after=.")
    if kind != "stall" and seconds is not None:
        raise AgentConfigurationError(f"fault({kind!r}) has no duration: leave out seconds=, which is for a stall.")
    return Fault(kind, after, seconds, retry_after, tokens, limit)


class ScriptedChatClient:
    """Answers from a script, the same way every time.

    ``script`` is an answer, a sequence of answers (one for each request, in order), or a function that gets the body of
    each request and returns an answer. An item of a sequence may also be such a function. An answer is text, a function
    call (see :func:`call`), a list of both, a :class:`Message`, an :class:`Answer`, a :func:`fault` or an exception.
    With ``loop`` a sequence starts again at its end; without it, later requests are refused.

    A stream sends the answer word by word, ``delay`` seconds apart. Tokens are counted in words. With ``remote`` in
    ``thread_kinds``, it acts as a client of the Responses API, which names its answers ``resp_1``, ``resp_2``… unless a
    request has ``store=False``. It does not store the threads themselves. ``requests`` are the bodies of all requests,
    oldest first, without the fields that request a stream.
    """

    kind = "scripted"

    def __init__(
        self,
        script: Line | LineFunction | Sequence[Line | LineFunction],
        *,
        model: str = "scripted",
        thread_kinds: Sequence[ThreadKind] = ("local",),
        loop: bool = False,
        delay: float = 0.0,
        options: JsonObject | None = None,
    ) -> None:
        self.model = model
        self.thread_kinds = tuple(thread_kinds)
        self.wire = OPENAI_RESPONSES if "remote" in self.thread_kinds else OPENAI_CHAT
        self.options: JsonObject = dict(options or {})
        self.requests: list[JsonObject] = []
        self._delay = delay
        self._lines: Iterator[Line | LineFunction] = _lines(script, loop=loop)

    async def ask(self, request: ModelRequest) -> AsyncIterator[Update]:
        """Yield the next answer of the script. Raises the script's fault or exception, and ModelError at its end."""
        body, stream = request.body, request.streams
        self.requests.append(copy.deepcopy(body))
        number = len(self.requests)
        line = next(self._lines, None)
        if callable(line):
            result = line(copy.deepcopy(body))
            line = await result if inspect.isawaitable(result) else result
        if line is None:
            raise ModelRequestError(
                f"The script is at its end: this is request {number}. Add answers to the script, or set loop=True."
            )
        if isinstance(line, Exception):
            raise line
        is_stored = self.wire is OPENAI_RESPONSES and body.get("store") is not False
        service = ServiceReference(kind="response", id=f"resp_{number}") if is_stored else None
        end = line if isinstance(line, Fault | Answer) else self._answer(_message(line), body, service)
        begun = isinstance(end, Answer) or end.kind in _BROKEN_OFF
        if service is not None and begun and stream:
            yield ServiceBound(service)
        for delta in _deltas(end.message if isinstance(end, Answer) else Message.assistant(end.after)):
            await asyncio.sleep(self._delay)
            if stream:
                yield delta
        if isinstance(end, Fault):
            if end.kind == "stall":
                await _stall(end.seconds)
            raise end.error(begun=stream and bool(end.after))
        if service is not None and not stream:
            yield ServiceBound(service)
        yield end

    def _answer(self, message: Message, body: JsonObject, service: ServiceReference | None) -> Answer:
        model, calls = body.get("model"), message.calls
        if calls:
            message = _with_call_ids(message, body, service)
        return Answer(
            message=message,
            finish_reason="tool_calls" if calls else "stop",
            usage=TokenUsage(
                input_tokens=_count_words(body.get("messages", body.get("input"))),
                output_tokens=_count_words(_texts(message)),
            ),
            model=model if isinstance(model, str) else self.model,
            response_id=None if service is None else service.id,
        )


def _lines(script: Line | LineFunction | Sequence[Line | LineFunction], *, loop: bool) -> Iterator[Line | LineFunction]:
    if callable(script):
        return itertools.repeat(script)
    several = [script] if isinstance(script, str | FunctionCall | Message | Answer | Fault | Exception) else script
    items = [
        each if callable(each) or isinstance(each, Answer | Fault | Exception) else _message(each) for each in several
    ]
    return itertools.cycle(items) if loop else iter(items)


async def _stall(seconds: float | None) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.Event().wait()


def _message(line: Spoken) -> Message:
    if isinstance(line, Message):
        if line.role != "assistant":
            raise AgentConfigurationError(f"A message in a script has the role {line.role}. Use Message.assistant(…).")
        return line
    parts = [line] if isinstance(line, str | FunctionCall) else line
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str | FunctionCall) for part in parts):
        raise AgentConfigurationError(
            f"{line!r} is not an answer. Give text, call(…), a list of both, a Message, an Answer, fault(…), "
            "an exception, or a function that returns one of them."
        )
    contents = [Text(text=part) if isinstance(part, str) else part for part in parts]
    return Message(role="assistant", contents=tuple(contents))


def _with_call_ids(message: Message, body: JsonObject, service: ServiceReference | None) -> Message:
    """The message, in which each call without an id gets one that is unique in the conversation."""
    number = _count_calls(body.get("messages", body.get("input")))
    prefix = "call" if service is None else f"call_{service.id}"
    contents = list(message.contents)
    for index, content in enumerate(contents):
        if isinstance(content, FunctionCall) and not content.call_id:
            number += 1
            contents[index] = content.model_copy(update={"call_id": f"{prefix}_{number}"})
    return message.model_copy(update={"contents": tuple(contents)})


def _count_calls(messages: Json) -> int:
    """The number of function calls in the messages of a request, in either format."""
    count = 0
    for item in messages if isinstance(messages, list) else ():
        if isinstance(item, dict):
            calls = item.get("tool_calls")
            count += len(calls) if isinstance(calls, list) else item.get("type") == "function_call"
    return count


def _count_words(value: Json) -> int:
    """The number of words in all texts of a JSON value."""
    count, pending = 0, [value]
    while pending:
        part = pending.pop()
        if isinstance(part, str):
            count += len(part.split())
        elif isinstance(part, dict):
            pending += part.values()
        elif isinstance(part, list):
            pending += part
    return count


def _texts(message: Message) -> list[Json]:
    texts: list[Json] = []
    for content in message.contents:
        if isinstance(content, Text | Reasoning):
            texts.append(content.text)
        elif isinstance(content, FunctionCall):
            texts += [content.name, content.arguments]
    return texts


def _deltas(message: Message) -> list[TextDelta | ReasoningDelta | CallDelta]:
    """The message word by word, as a stream sends it."""
    deltas: list[TextDelta | ReasoningDelta | CallDelta] = []
    index = 0
    for content in message.contents:
        if isinstance(content, Text):
            deltas += map(TextDelta, _WORDS.findall(content.text))
        elif isinstance(content, Reasoning):
            deltas += map(ReasoningDelta, _WORDS.findall(content.text))
        elif isinstance(content, FunctionCall):
            pieces = _WORDS.findall(content.arguments) or [""]
            deltas += [CallDelta(index, content.call_id, content.name, piece) for piece in pieces]
            index += 1
    return deltas
