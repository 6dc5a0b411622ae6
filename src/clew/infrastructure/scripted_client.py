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
from clew.domain.models.client import (
    Answer,
    CallDelta,
    ReasoningDelta,
    ServiceBound,
    ServiceReference,
    TextDelta,
    ThreadKind,
    Update,
    Usage,
    Wire,
)
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
_NUMBERED = ""
"""The call id of a call that is numbered when it is answered."""


_BROKEN_OFF: dict[str, str] = {
    "cut": "The connection was cut before the answer was complete. Run again.",
    "stall": "Nothing more of the answer came. Run again.",
    "malformed": "What came was no part of an answer. Run again.",
    "early-end": "The answer ended before it was complete. Run again.",
}
_NO_ANSWER = ("refused", "overloaded", "server-error", "context-window")


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong in place of an answer; made by :func:`fault`, which says what the fields mean."""

    kind: FaultKind
    after: str = ""
    seconds: float | None = None
    retry_after: float | None = None
    tokens: int | None = None
    limit: int | None = None

    def error(self) -> ModelError:
        """What the client raises."""
        if self.kind in _BROKEN_OFF:
            return ModelStreamError(_BROKEN_OFF[self.kind], retryable=True)
        if self.kind == "refused":
            return ModelUnavailableError("The connection was refused. Is the service running?", retryable=True)
        if self.kind == "overloaded":
            message = "The service takes no more requests for now (HTTP 429)."
            return ModelOverloadedError(message, status=429, retryable=True, retry_after=self.retry_after)
        if self.kind == "server-error":
            return ModelUnavailableError("The service failed (HTTP 500). Try again.", status=500, retryable=True)
        size = "" if self.tokens is None else f": {self.tokens} tokens"
        most = "" if self.limit is None else f" (limit: {self.limit})"
        return ContextWindowError(
            f"The request is larger than the model's context window{size}{most}. Shorten the history.",
            tokens=self.tokens,
            limit=self.limit,
            status=400,
            code="context_length_exceeded",
        )


Spoken: TypeAlias = str | FunctionCall | Message | Sequence[str | FunctionCall]
"""An answer in short: words, calls, words and calls together, or a message of the assistant."""

Line: TypeAlias = Spoken | Answer | Fault | Exception
"""One answer of a script: in short, as a whole, or what goes wrong."""

LineFunction: TypeAlias = Callable[[JsonObject], Line | Awaitable[Line]]
"""Gives an answer for the body of the request, async or not."""


def call(name: str, /, **arguments: Json) -> FunctionCall:
    """A function call for a script: ``call("lookup", order=7)``.

    It gets its call id when it is answered: ``call_1`` for the first call of a conversation, and so on.
    """
    check_json(arguments, name)
    return FunctionCall(call_id=_NUMBERED, name=name, arguments=json.dumps(arguments, ensure_ascii=False))


def fault(
    kind: FaultKind,
    *,
    after: str = "",
    retry_after: float | None = None,
    seconds: float | None = None,
    tokens: int | None = None,
    limit: int | None = None,
) -> Fault:
    """Something that goes wrong in place of an answer.

    ``refused`` (no connection), ``overloaded`` (HTTP 429, with ``retry_after`` in seconds), ``server-error`` (HTTP 500)
    and ``context-window`` (with ``tokens`` of the request and the model's ``limit``) come before any answer. ``cut``,
    ``stall`` (nothing more comes, for ``seconds`` or until the caller gives up), ``malformed`` and ``early-end`` come
    ``after`` the words that a stream has given by then.
    """
    if kind not in _BROKEN_OFF and kind not in _NO_ANSWER:
        known = ", ".join([*_BROKEN_OFF, *_NO_ANSWER])
        raise AgentConfigurationError(f"There is no fault {kind!r}. There are: {known}.")
    if kind in _NO_ANSWER and after:
        raise AgentConfigurationError(f"fault({kind!r}) comes before any answer: leave out after=.")
    if kind != "stall" and seconds is not None:
        raise AgentConfigurationError(f"fault({kind!r}) takes no time: leave out seconds=, which is for a stall.")
    return Fault(kind, after, seconds, retry_after, tokens, limit)


class ScriptedChatClient:
    """Answers from a script, the same way every time.

    ``script`` is an answer, a sequence of answers, one a request in the order in which they come, or a function that
    is given each request's body and gives an answer; an item of a sequence may be such a function too. Answers are
    words, function calls (see :func:`call`), both in a list, a :class:`Message`, an :class:`Answer`, a :func:`fault` or
    an exception. With ``loop`` a sequence starts again when it is at its end; without, the next request is refused.

    A stream gives the answer word by word, ``delay`` seconds apart. Tokens are counted in words. ``thread_kinds`` with
    ``remote`` in it makes it a client of the Responses API, which names its answers ``resp_1``, ``resp_2``… unless a
    request says ``store=False``; the threads themselves it does not keep. ``requests`` are the bodies of the requests
    that came, oldest first.
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
        self.wire: Wire = "openai-responses" if "remote" in self.thread_kinds else "openai-chat"
        self.options: JsonObject = dict(options or {})
        self.requests: list[JsonObject] = []
        self._delay = delay
        self._lines: Iterator[Line | LineFunction] = _lines(script, loop=loop)

    async def ask(self, body: JsonObject, *, stream: bool) -> AsyncIterator[Update]:
        """Give the next answer of the script. Raises what the script says, else ModelError at its end."""
        self.requests.append(copy.deepcopy(body))
        number = len(self.requests)
        line = next(self._lines, None)
        if callable(line):
            said = line(copy.deepcopy(body))
            line = await said if inspect.isawaitable(said) else said
        if line is None:
            raise ModelRequestError(
                f"The script is at its end: this is request {number}. Give it more answers, or loop=True."
            )
        if isinstance(line, Exception):
            raise line
        kept = self.wire == "openai-responses" and body.get("store") is not False
        service = ServiceReference(kind="response", id=f"resp_{number}") if kept else None
        end = line if isinstance(line, Fault) else self._answer(line, body, service)
        begun = isinstance(end, Answer) or end.kind in _BROKEN_OFF
        if service is not None and begun and stream:
            yield ServiceBound(service)
        for delta in _deltas(end.message if isinstance(end, Answer) else Message.assistant(end.after)):
            await asyncio.sleep(self._delay)
            if stream:
                yield delta
        if isinstance(end, Fault):
            if end.kind == "stall":
                await _nothing_for(end.seconds)
            raise end.error()
        if service is not None and not stream:
            yield ServiceBound(service)
        yield end

    def _answer(self, line: Spoken | Answer, body: JsonObject, service: ServiceReference | None) -> Answer:
        if isinstance(line, Answer):
            return line
        model = body.get("model")
        message = _numbered(_message(line), body, service)
        return Answer(
            message=message,
            finish_reason="tool_calls" if message.calls else "stop",
            usage=Usage(
                input_tokens=_count_words(body.get("messages", body.get("input"))),
                output_tokens=_count_words(_texts(message)),
            ),
            model=model if isinstance(model, str) else self.model,
            response_id=None if service is None else service.id,
        )


def _lines(script: Line | LineFunction | Sequence[Line | LineFunction], *, loop: bool) -> Iterator[Line | LineFunction]:
    if callable(script):
        return itertools.repeat(script)
    single = isinstance(script, str | FunctionCall | Message | Answer | Fault | Exception)
    # mypy does not follow from ``single`` what a script is.
    items: list[Line | LineFunction] = [script] if single else list(script)  # type: ignore[list-item,arg-type]  # single says which
    for item in items:
        if not callable(item) and not isinstance(item, Answer | Fault | Exception):
            _message(item)  # what is no answer is told at once
    return itertools.cycle(items) if loop else iter(items)


async def _nothing_for(seconds: float | None) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.Event().wait()


def _message(line: Spoken) -> Message:
    if isinstance(line, Message):
        if line.role != "assistant":
            raise AgentConfigurationError(f"A script's message is the {line.role}'s. Give Message.assistant(…).")
        return line
    parts = [line] if isinstance(line, str | FunctionCall) else line
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str | FunctionCall) for part in parts):
        raise AgentConfigurationError(
            f"{line!r} is no answer of a script. Give words, call(…), a list of both, a message, an answer, fault(…), "
            "an exception, or a function that gives one of them."
        )
    contents = [Text(text=part) if isinstance(part, str) else part for part in parts]
    return Message(role="assistant", contents=tuple(contents))


def _numbered(message: Message, body: JsonObject, service: ServiceReference | None) -> Message:
    """The calls that have no id yet get one, which in a conversation is used once."""
    calls = message.calls
    if not calls or all(each.call_id for each in calls):
        return message
    before = body.get("messages", body.get("input"))
    numbers = itertools.count(_calls(before) + 1)
    prefix = "call" if service is None else f"call_{service.id}"
    contents = tuple(
        each.model_copy(update={"call_id": f"{prefix}_{next(numbers)}"})
        if isinstance(each, FunctionCall) and not each.call_id
        else each
        for each in message.contents
    )
    return message.model_copy(update={"contents": contents})


def _calls(asked: Json) -> int:
    """The function calls in the messages of a request, in either form."""
    items = [each for each in asked if isinstance(each, dict)] if isinstance(asked, list) else []
    in_messages = sum(len(calls) for each in items if isinstance(calls := each.get("tool_calls"), list))
    return in_messages + sum(each.get("type") == "function_call" for each in items)


def _count_words(value: Json) -> int:
    """The number of words in all texts of a JSON value."""
    count, rest = 0, [value]
    while rest:
        part = rest.pop()
        if isinstance(part, str):
            count += len(part.split())
        elif isinstance(part, dict):
            rest += part.values()
        elif isinstance(part, list):
            rest += part
    return count


def _texts(message: Message) -> list[Json]:
    texts: list[Json] = []
    for content in message.contents:
        if isinstance(content, Text | Reasoning):
            texts.append(content.text)
        elif isinstance(content, FunctionCall):
            texts += [content.name, content.arguments]
    return texts


def _deltas(message: Message) -> Iterator[TextDelta | ReasoningDelta | CallDelta]:
    """The message word by word, as a stream gives it."""
    index = itertools.count()
    for content in message.contents:
        if isinstance(content, Text):
            yield from map(TextDelta, _WORDS.findall(content.text))
        elif isinstance(content, Reasoning):
            yield from map(ReasoningDelta, _WORDS.findall(content.text))
        elif isinstance(content, FunctionCall):
            at = next(index)
            for piece in _WORDS.findall(content.arguments) or [""]:
                yield CallDelta(at, content.call_id, content.name, piece)
