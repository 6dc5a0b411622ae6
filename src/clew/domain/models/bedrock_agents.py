"""Requests to Amazon Bedrock's agents (InvokeAgent), and their answers.

The service holds the session, and has no list of its messages:
https://docs.aws.amazon.com/bedrock/latest/APIReference/API_agent-runtime_InvokeAgent.html.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator
from urllib.parse import quote

from clew.domain.json_values import Json, JsonObject, canonical, storable
from clew.domain.messages import FunctionCall, FunctionResult, Media, Message, Raw, Text
from clew.domain.models.chat_answers import as_count, as_object, as_objects, as_text
from clew.domain.models.chat_requests import media_words, result_words
from clew.domain.models.client import (
    Answer,
    CallDelta,
    ModelRequest,
    Question,
    ReasoningDelta,
    ServiceBound,
    ServiceReference,
    TextDelta,
    TokenUsage,
    Update,
    WireFormat,
    joined,
)
from clew.domain.models.native import with_native

WIRE = "bedrock-agent"

RECEIVED = "clew.received"
"""The event that begins an answer: the service has the message. It has the ids of the session and of the request."""

ENDED = "clew.ended"
"""The event after the last one: the service has closed the answer. It sends no end marker."""

_CONFIRMATION = "USER_CONFIRMATION"


def agent_body(question: Question) -> JsonObject:
    """The body of a request: the text of all new messages, or the results of calls."""
    options = dict(question.options or {})
    state = as_object(options.pop("sessionState", None))
    results = [result for message in question.messages for result in message.results]
    waits = question.task is not None and question.task.task_id is not None
    if waits and results and all(message.role == "tool" for message in question.messages):
        read = [(as_object(_json(result.call_id)), result) for result in results]
        outcomes: list[Json] = [_result(call, result) for call, result in read]
        state = {**state, "invocationId": read[0][0].get("invocationId"), "returnControlInvocationResults": outcomes}
        return {"sessionState": state, **options}
    body: JsonObject = {"inputText": input_text(question, WIRE)}
    return {**body, **({"sessionState": state} if state else {}), **options}


def agent_path(model: str, streams: bool) -> str:  # noqa: FBT001  # the parameters of every format's function
    """The path of a request without a session."""
    del streams
    return _path(model, "-")


def session_path(request: ModelRequest) -> str:
    """The path of a request to a session."""
    return _path(request.model, "-" if request.service is None else request.service.id)


BEDROCK_AGENT = WireFormat(
    name=WIRE,
    make_body=agent_body,
    make_path=agent_path,
    sends_media=lambda _, __, ___: False,
    has_tasks=True,
    takes_results=True,
    make_task_path=session_path,
)
"""Agents of Amazon Bedrock."""


class BedrockAgentAnswer:
    """Assembles an answer from the events of a session."""

    def __init__(self, request: ModelRequest) -> None:
        self.begun = False
        self.failure: Json = None
        self.received = False
        self._request = request
        self._id: str | None = None
        self._ended = False
        self._texts: list[str] = []
        self._citations: list[Json] = []
        self._files: list[JsonObject] = []
        self._traces: list[Json] = []
        self._calls: list[FunctionCall] = []
        self._others: dict[str, Json] = {}

    def take(self, event: JsonObject) -> Iterator[Update]:
        """Read an event, and yield what it adds."""
        for kind, value in event.items():
            payload = as_object(value)
            match kind:
                case "clew.received":
                    self.received = True
                    yield from self._bound(payload)
                case "clew.ended":
                    self._ended = True
                case "exception":
                    self.failure = value
                case "chunk":
                    yield from self._chunk(payload)
                case "returnControl":
                    yield from self._control(payload)
                case "files":
                    self._files += as_objects(payload.get("files"))
                case "trace":
                    self._traces.append(storable(value))
                    if text := _rationale(payload):
                        yield ReasoningDelta(text)
                case _:
                    self._others[kind] = storable(value)

    def take_whole(self, body: JsonObject) -> Iterator[Update]:
        """Read a reply that is not a stream of events: there is no such answer."""
        del body
        return iter(())

    def answer(self) -> Answer | None:
        """The answer; None until the service has closed it. An empty one is not complete."""
        if not self._ended or not (self._texts or self._calls or self._files):
            return None
        contents = [Text(text=text)] if (text := joined(self._texts)) else []
        files = [_file(each) for each in self._files]
        message = Message(role="assistant", contents=(*contents, *files, *self._calls))
        reply: JsonObject = {"citations": self._citations, "traces": self._traces, **self._others}
        kept: JsonObject = {name: value for name, value in reply.items() if value}
        return Answer(
            with_native(message, WIRE, {}, {}, reply=kept, kept=True),
            finish_reason="tool_calls" if self._calls else "stop",
            usage=self._usage(),
            response_id=self._id,
        )

    def _bound(self, ids: JsonObject) -> Iterator[Update]:
        service, task = self._request.service, self._request.task
        if service is not None and task is not None:
            self._id = as_text(ids.get("request")) or task.message_id
            session = as_text(ids.get("session")) or service.id
            yield ServiceBound(ServiceReference(kind="conversation", id=session), self._id)

    def _chunk(self, payload: JsonObject) -> Iterator[Update]:
        if payload.get("attribution"):
            self._citations.append(storable(payload["attribution"]))
        text = b64decode(as_text(payload.get("bytes"))).decode(errors="replace")
        if text:
            self.begun = True
            self._texts.append(text)
            yield TextDelta(text)

    def _control(self, payload: JsonObject) -> Iterator[Update]:
        for given in as_objects(payload.get("invocationInputs")):
            call = _call(as_text(payload.get("invocationId")), len(self._calls), given)
            self.begun = True
            yield CallDelta(len(self._calls), call.call_id, call.name, call.arguments)
            self._calls.append(call)

    def _usage(self) -> TokenUsage | None:
        """The tokens that traces name; None without traces."""
        counts = [usage for trace in self._traces for usage in _counts(trace)]
        if not counts:
            return None
        return TokenUsage(
            input_tokens=sum(as_count(each.get("inputTokens")) for each in counts),
            output_tokens=sum(as_count(each.get("outputTokens")) for each in counts),
        )


def _path(model: str, session: str) -> str:
    agent, _, alias = model.partition("/")
    named = [quote(each, safe="") for each in (agent, alias, session)]
    return f"/agents/{named[0]}/agentAliases/{named[1]}/sessions/{named[2]}/text"


def input_text(question: Question, wire: str) -> str:
    """What an agent has not heard, as one text: the instructions and the new messages."""
    texts = [question.instructions, *(_words(message, question, wire) for message in question.messages)]
    return "\n\n".join(text for text in texts if text)


def _words(message: Message, question: Question, wire: str) -> str:
    """A message as text. The agent has its own messages."""
    if message.role == "assistant" and message.native is not None and message.native.wire == wire:
        return ""
    texts: list[str] = []
    for content in message.contents:
        match content:
            case Text(text=text):
                texts.append(text)
            case Media():
                texts.append(media_words(content))
            case FunctionResult():
                texts.append(f"[Result of {content.name or 'a function'}] {result_words(content)}")
    author = None if message.role in {"system", "developer"} or message.author == question.agent else message.author
    if message.role == "assistant":
        author = author or "Assistant"
    text = "\n".join(text for text in texts if text)
    return f"{author}: {text}" if author and text else text


def _call(invocation: str, number: int, given: JsonObject) -> FunctionCall:
    """A call. What its result has to name is in its id, because the service takes it from there."""
    about: JsonObject = {"invocationId": invocation, "n": number}
    function, api = as_object(given.get("functionInvocationInput")), as_object(given.get("apiInvocationInput"))
    source = function or api
    for name in ("actionGroup", "actionInvocationType", "agentId", "function", "httpMethod", "apiPath"):
        if source.get(name) is not None:
            about[name] = source[name]
    arguments = _arguments(source.get("parameters"))
    if api:
        content = as_object(as_object(api.get("requestBody")).get("content"))
        for body in content.values():
            arguments |= _arguments(as_object(body).get("properties"))
    path = f"{as_text(api.get('httpMethod')).lower()}_{as_text(api.get('apiPath'))}"
    api_name = "_".join("".join(each if each.isalnum() else " " for each in path).split())
    name = as_text(function.get("function")) or api_name or as_text(source.get("actionGroup"))
    return FunctionCall(call_id=canonical(about), name=name, arguments=json.dumps(arguments, ensure_ascii=False))


def _arguments(parameters: Json) -> JsonObject:
    """Parameters, whose values are texts, as JSON of their types."""
    arguments: JsonObject = {}
    for each in as_objects(parameters):
        value = as_text(each.get("value"))
        read = _json(value) if each.get("type") in {"integer", "number", "boolean", "array", "object"} else None
        arguments[as_text(each.get("name"))] = value if read is None else read
    return arguments


def _result(call: JsonObject, result: FunctionResult) -> JsonObject:
    about: JsonObject = {name: call[name] for name in ("actionGroup", "agentId") if name in call}
    body: JsonObject = {"TEXT": {"body": result_words(result)}}
    asks = as_text(call.get("actionInvocationType"))
    if asks.startswith(_CONFIRMATION):
        confirms = result.result is True if asks == _CONFIRMATION else result.result is not False
        about["confirmationState"] = "CONFIRM" if confirms else "DENY"
    if "apiPath" in call:
        named: JsonObject = {name: call[name] for name in ("apiPath", "httpMethod") if name in call}
        api_body: JsonObject = {"application/json": body["TEXT"]}
        return {"apiResult": {**about, **named, "httpStatusCode": 200, "responseBody": api_body}}
    return {"functionResult": {**about, "function": call.get("function"), "responseBody": body}}


def _json(text: str) -> Json:
    try:
        read: Json = json.loads(text)
    except ValueError:
        return None
    return read


def _file(file: JsonObject) -> Media | Raw:
    data, kind = as_text(file.get("bytes")), as_text(file.get("type"))
    if not data or "/" not in kind:
        return Raw(value=storable(file))
    return Media(uri=f"data:{kind};base64,{data}", media_type=kind, name=as_text(file.get("name")) or None)


def _rationale(trace: JsonObject) -> str:
    steps = as_object(as_object(trace.get("trace")).get("orchestrationTrace"))
    return as_text(as_object(steps.get("rationale")).get("text"))


def _counts(value: Json) -> Iterator[JsonObject]:
    """The usage of each model call of a trace: each is in the output of its step."""
    trace = as_object(as_object(value).get("trace"))
    for step in trace.values():
        output = as_object(as_object(step).get("modelInvocationOutput"))
        if usage := as_object(as_object(output.get("metadata")).get("usage")):
            yield usage
