"""OpenTelemetry spans and metrics of runs, model calls and tool calls, named by its GenAI conventions.

See https://opentelemetry.io/docs/specs/semconv/gen-ai/. Nothing is measured if ``opentelemetry`` is not installed.
"""

from __future__ import annotations

import functools
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

from clew.agents.tools import ToolOutcome
from clew.domain.json_values import Json, JsonObject
from clew.domain.messages import Content, FunctionCall, FunctionResult, Media, Message, Reasoning, Text
from clew.domain.models.client import Answer, Question, TokenUsage, ToolSchema
from clew.domain.models.prices import Cost

if TYPE_CHECKING:
    from contextvars import Token
    from typing import Self

    from opentelemetry.context import Context
    from opentelemetry.metrics import Histogram, MeterProvider
    from opentelemetry.trace import Span, Tracer, TracerProvider
    from opentelemetry.util.types import AttributeValue

_SCOPE = "clew"
_MODALITIES = {"image": "image", "audio": "audio", "video": "video"}
_TOKEN_BUCKETS = [float(4**power) for power in range(14)]
_SECOND_BUCKETS = [0.01 * 2**power for power in range(14)]
_OPTIONS = {
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "max_output_tokens": "gen_ai.request.max_tokens",
    "max_tokens": "gen_ai.request.max_tokens",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "seed": "gen_ai.request.seed",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
}


class Telemetry:
    """The telemetry of an agent, for OpenTelemetry.

    With ``content=True`` spans also contain messages, instructions, tool arguments and results, and the messages of
    exceptions. Otherwise they contain none of these. The default providers are the application's global ones.
    """

    def __init__(
        self,
        *,
        content: bool = False,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        self.content = content
        self._providers = (tracer_provider, meter_provider)

    @functools.cached_property
    def _instruments(self) -> _Instruments | None:
        """The tracer and the histograms; None if ``opentelemetry`` is not installed."""
        try:
            from opentelemetry import metrics, trace
        except ImportError:
            return None
        meter = metrics.get_meter(_SCOPE, meter_provider=self._providers[1])
        return _Instruments(
            tracer=trace.get_tracer(_SCOPE, tracer_provider=self._providers[0]),
            duration=meter.create_histogram(
                "gen_ai.client.operation.duration",
                unit="s",
                description="GenAI operation duration.",
                explicit_bucket_boundaries_advisory=_SECOND_BUCKETS,
            ),
            tokens=meter.create_histogram(
                "gen_ai.client.token.usage",
                unit="{token}",
                description="Number of input and output tokens used.",
                explicit_bucket_boundaries_advisory=_TOKEN_BUCKETS,
            ),
        )


@dataclass(frozen=True, slots=True)
class _Instruments:
    tracer: Tracer
    duration: Histogram
    tokens: Histogram


class _Operation(ABC):
    """A span that is current inside its ``with`` block. An exception marks it as failed."""

    operation: ClassVar[str]

    def __init__(self, telemetry: Telemetry, about: str, attributes: dict[str, AttributeValue]) -> None:
        self._instruments = telemetry._instruments  # noqa: SLF001  # private to Clew
        self._content = telemetry.content
        self._has_content = False
        """Whether the span is to contain texts."""
        self._name = f"{self.operation} {about}"
        self._attributes = {"gen_ai.operation.name": self.operation, **attributes}
        self._span: Span | None = None
        self._token: Token[Context] | None = None
        self._began = 0.0
        self._error: str | None = None

    def __enter__(self) -> Self:
        instruments = self._instruments
        if instruments is None:
            return self
        from opentelemetry import context, trace

        kind = trace.SpanKind.CLIENT if self.operation == "chat" else trace.SpanKind.INTERNAL
        self._span = instruments.tracer.start_span(self._name, kind=kind, attributes=self._attributes)
        self._token = context.attach(trace.set_span_in_context(self._span))
        self._began = time.perf_counter()
        self._has_content = self._content and self._span.is_recording()
        if self._has_content:
            self._span.set_attributes(self._content_attributes())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._span is None or self._token is None:
            return
        from opentelemetry import context, trace

        if error is not None:
            self.failed(error)
        self._record_metrics(time.perf_counter() - self._began)
        self._span.end()
        # A generator may be closed in another context than the one that it began in: then there is nothing to detach.
        if trace.get_current_span() is self._span:
            context.detach(self._token)

    def failed(self, error: BaseException | str) -> None:
        """Mark the span as failed, with an exception or the name of an error. The message counts as content."""
        if self._span is None:
            return
        from opentelemetry.trace import StatusCode

        self._error = error if isinstance(error, str) else type(error).__name__
        self._span.set_attribute("error.type", self._error)
        self._span.set_status(StatusCode.ERROR)
        if self._has_content and isinstance(error, Exception):
            self._span.record_exception(error)

    def _set(self, attributes: dict[str, AttributeValue | None]) -> None:
        if self._span is not None:
            self._span.set_attributes({name: value for name, value in attributes.items() if value is not None})

    @abstractmethod
    def _content_attributes(self) -> dict[str, AttributeValue]:
        """The content of the request, as attributes."""

    def _record_metrics(self, seconds: float) -> None:
        """Record the metrics of a finished operation; only model calls have some."""
        del seconds


class RunSpan(_Operation):
    """The span of a run: ``invoke_agent {name}``."""

    operation = "invoke_agent"
    inputs: Sequence[Message] = ()

    def answered(
        self,
        messages: Sequence[Message],
        *,
        usage: TokenUsage | None = None,
        cost: Decimal | None = None,
        finish_reason: str | None = None,
    ) -> None:
        """Set the messages that the run added to the thread, and the usage and the cost of all its model calls."""
        if self._span is None:
            return
        reasons = [finish_reason] if finish_reason else None
        self._set({"gen_ai.response.finish_reasons": reasons, **_usage(usage, cost)})
        if self._has_content:
            self._set({"gen_ai.output.messages": messages_attribute(messages, finish_reason or "stop")})

    def _content_attributes(self) -> dict[str, AttributeValue]:
        return {"gen_ai.input.messages": messages_attribute(self.inputs)}


class ModelSpan(_Operation):
    """The span of a model call: ``chat {model}``. Its duration and tokens are metrics too."""

    operation = "chat"
    question: Question
    _answer: Answer | None = None

    def answered(self, answer: Answer, cost: Cost | None = None) -> None:
        """Set the answer of the model, and what it cost."""
        self._answer = answer
        if self._span is None:
            return
        reason = answer.finish_reason
        self._set(
            {
                "gen_ai.response.finish_reasons": [reason] if reason else None,
                "gen_ai.response.id": answer.response_id,
                "gen_ai.response.model": answer.model,
                **_usage(answer.usage, None if cost is None else cost.amount),
            }
        )
        if self._has_content:
            self._set({"gen_ai.output.messages": messages_attribute([answer.message], reason or "stop")})

    def _content_attributes(self) -> dict[str, AttributeValue]:
        attributes: dict[str, AttributeValue] = {"gen_ai.input.messages": messages_attribute(self.question.messages)}
        if self.question.instructions:
            attributes["gen_ai.system_instructions"] = instructions_attribute(self.question.instructions)
        if self.question.tools:
            attributes["gen_ai.tool.definitions"] = tools_attribute(self.question.tools)
        return attributes

    def _record_metrics(self, seconds: float) -> None:
        instruments = self._instruments
        if instruments is None:
            return
        common = {
            name: self._attributes[name]
            for name in ("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model")
        }
        if self._answer is not None and self._answer.model is not None:
            common["gen_ai.response.model"] = self._answer.model
        failed = {} if self._error is None else {"error.type": self._error}
        instruments.duration.record(seconds, {**common, **failed})
        if self._answer is not None and self._answer.usage is not None:
            usage = self._answer.usage
            instruments.tokens.record(usage.input_tokens, {**common, "gen_ai.token.type": "input"})
            instruments.tokens.record(usage.output_tokens, {**common, "gen_ai.token.type": "output"})


class ToolSpan(_Operation):
    """The span of a tool call: ``execute_tool {name}``."""

    operation = "execute_tool"
    arguments = ""

    def finished(self, outcome: ToolOutcome) -> None:
        """Set the outcome of the call. An error that is reported to the model marks the span as failed."""
        if outcome.error is not None:
            self.failed(outcome.raised or outcome.error)
        if self._has_content:
            self._set({"gen_ai.tool.call.result": value_attribute(_result_value(outcome))})

    def _content_attributes(self) -> dict[str, AttributeValue]:
        return {"gen_ai.tool.call.arguments": self.arguments}


def run_span(
    telemetry: Telemetry,
    *,
    agent_id: str,
    agent_name: str | None,
    thread_id: str,
    run_id: str,
    description: str | None = None,
    messages: Sequence[Message] = (),
) -> RunSpan:
    """The span of a run, from its inputs to its outcome."""
    attributes: dict[str, AttributeValue] = {
        "gen_ai.agent.id": agent_id,
        "gen_ai.conversation.id": thread_id,
        "clew.run.id": run_id,
    }
    if agent_name:
        attributes["gen_ai.agent.name"] = agent_name
    if description:
        attributes["gen_ai.agent.description"] = description
    span = RunSpan(telemetry, agent_name or agent_id, attributes)
    span.inputs = messages
    return span


def model_span(
    telemetry: Telemetry, question: Question, *, client_kind: str, thread_id: str, stream: bool = False
) -> ModelSpan:
    """The span of one request to a model, until its answer is complete."""
    attributes: dict[str, AttributeValue] = {
        "gen_ai.provider.name": "openai" if client_kind.startswith("openai-") else client_kind,
        "gen_ai.request.model": question.model,
        "gen_ai.conversation.id": thread_id,
    }
    if stream:
        attributes["gen_ai.request.stream"] = True
    if question.response_format is not None:
        attributes["gen_ai.output.type"] = "json"
    for option, value in (question.options or {}).items():
        if option in _OPTIONS and isinstance(value, int | float):
            attributes[_OPTIONS[option]] = value
    span = ModelSpan(telemetry, question.model, attributes)
    span.question = question
    return span


def tool_span(
    telemetry: Telemetry, *, name: str, call_id: str, thread_id: str, arguments: str = "", description: str = ""
) -> ToolSpan:
    """The span of one call of a tool."""
    attributes: dict[str, AttributeValue] = {
        "gen_ai.tool.name": name,
        "gen_ai.tool.call.id": call_id,
        "gen_ai.tool.type": "function",
        "gen_ai.conversation.id": thread_id,
    }
    if description:
        attributes["gen_ai.tool.description"] = description
    span = ToolSpan(telemetry, name, attributes)
    span.arguments = arguments
    return span


def _usage(usage: TokenUsage | None, cost: Decimal | None) -> dict[str, Any]:
    """The tokens. The conventions have no attribute for costs: it is Clew's own, in US dollars."""
    if usage is None:
        return {}
    return {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens or None,
        "gen_ai.usage.cache_creation.input_tokens": usage.parts.get("cache_write"),
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens or None,
        "clew.usage.cost": None if cost is None else float(cost),
    }


# Content, in the form of OpenTelemetry's GenAI conventions


def messages_attribute(messages: Iterable[Message], finish_reason: str | None = None) -> str:
    """``gen_ai.input.messages``, or with a finish reason ``gen_ai.output.messages``, as JSON text."""
    return _json([_message(each, finish_reason) for each in messages])


def instructions_attribute(instructions: str) -> str:
    """``gen_ai.system_instructions`` as JSON text."""
    return _json([{"type": "text", "content": instructions}])


def tools_attribute(tools: Sequence[ToolSchema]) -> str:
    """``gen_ai.tool.definitions`` as JSON text."""
    return _json([{"type": "function", **tool.model_dump()} for tool in tools])


def value_attribute(value: Json) -> str:
    """A value as JSON text; text stays as it is."""
    return value if isinstance(value, str) else _json(value)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _message(message: Message, finish_reason: str | None) -> JsonObject:
    converted: JsonObject = {"role": message.role, "parts": [_part(content) for content in message.contents]}
    if message.author is not None:
        converted["name"] = message.author
    if finish_reason is not None:
        converted["finish_reason"] = finish_reason
    return converted


def _part(content: Content) -> JsonObject:
    if isinstance(content, Text):
        return {"type": "text", "content": content.text}
    if isinstance(content, Reasoning):
        return {"type": "reasoning", "content": content.text}
    if isinstance(content, FunctionCall):
        return {
            "type": "tool_call",
            "id": content.call_id,
            "name": content.name,
            "arguments": _parsed(content.arguments),
        }
    if isinstance(content, FunctionResult):
        return {"type": "tool_call_response", "id": content.call_id, "response": _result_value(content)}
    return _media(content) if isinstance(content, Media) else content.model_dump(mode="json")


def _result_value(result: FunctionResult | ToolOutcome) -> Json:
    return [_part(each) for each in result.contents] if result.contents else result.result


def _media(media: Media) -> JsonObject:
    """The data of a ``data:`` URI is copied unchanged: it is nearly always base64."""
    head, comma, data = media.uri.partition(",")
    inline = bool(comma) and head.startswith("data:")
    kind = media.media_type or (head[len("data:") :].partition(";")[0] if inline else "")
    part: JsonObject = {"type": "blob", "content": data} if inline else {"type": "uri", "uri": media.uri}
    part["modality"] = _MODALITIES.get(kind.partition("/")[0], "document")
    if kind:
        part["mime_type"] = kind
    return part


def _parsed(arguments: str) -> Json:
    try:
        parsed: Json = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return parsed
