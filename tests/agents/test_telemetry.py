"""Telemetry: OpenTelemetry spans and metrics, with the names of its GenAI conventions."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from clew.agents.telemetry import Telemetry, model_span, run_span, tool_span
from clew.agents.tools import ToolOutcome
from clew.domain.messages import FunctionCall, Media, Message, Raw, Reasoning, Text
from clew.domain.models.client import Answer, Question, ResponseFormat, TokenUsage, ToolSchema
from clew.domain.runs.errors import ModelOverloadedError

QUESTION = Question(
    model="m-1",
    messages=(Message.user("Where is it?", author="Ann"),),
    instructions="Be kind.",
    tools=(ToolSchema(name="look_up", description="Look up.", parameters={"type": "object"}),),
    response_format=ResponseFormat(name="place", json_schema={"type": "object"}),
    options={"temperature": 0.5, "max_tokens": 9, "user": "u"},
)
CALL = FunctionCall(call_id="c1", name="look_up", arguments='{"order": 7}')
ANSWER = Answer(
    message=Message.assistant("Let me look.", calls=[CALL]),
    finish_reason="tool_calls",
    usage=TokenUsage(input_tokens=12, output_tokens=3, cached_tokens=4, reasoning_tokens=1),
    model="m-1-2026",
    response_id="resp_1",
)
SECRET = "the words of a user"  # noqa: S105  # not a password


class RecordedTelemetry:
    """Telemetry with in-memory exporters for spans and metrics."""

    def __init__(self, *, content: bool = False) -> None:
        self.exporter = InMemorySpanExporter()
        self.reader = InMemoryMetricReader()
        tracers = TracerProvider(shutdown_on_exit=False)
        tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        meters = MeterProvider([self.reader], shutdown_on_exit=False)
        self.telemetry = Telemetry(content=content, tracer_provider=tracers, meter_provider=meters)

    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self.exporter.get_finished_spans()}

    def metrics(self) -> dict[str, list[HistogramDataPoint]]:
        data = self.reader.get_metrics_data()
        metrics = [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics] if data else []
        return {
            metric.name: [point for point in metric.data.data_points if isinstance(point, HistogramDataPoint)]
            for metric in metrics
        }


def converse(recorded: RecordedTelemetry) -> None:
    with run_span(
        recorded.telemetry,
        agent_id="joker",
        agent_name="Joker",
        thread_id="t1",
        run_id="r1",
        description="Jokes.",
        messages=[Message.user(SECRET)],
    ) as run:
        with model_span(recorded.telemetry, QUESTION, client_kind="openai-chat", thread_id="t1", stream=True) as model:
            model.answered(ANSWER)
        with tool_span(
            recorded.telemetry,
            name="look_up",
            call_id="c1",
            thread_id="t1",
            arguments=f'"{SECRET}"',
            description="Look up.",
        ) as tool:
            tool.finished(ToolOutcome({"found": SECRET}))
        run.answered([Message.assistant(SECRET)], usage=ANSWER.usage, finish_reason="stop")


def test_a_run_is_a_span_with_its_model_and_tool_calls_inside() -> None:
    recorded = RecordedTelemetry()
    converse(recorded)
    spans = recorded.spans()
    run, model, tool = spans["invoke_agent Joker"], spans["chat m-1"], spans["execute_tool look_up"]
    assert [run.kind, model.kind, tool.kind] == [SpanKind.INTERNAL, SpanKind.CLIENT, SpanKind.INTERNAL]
    assert run.parent is None
    assert model.parent == tool.parent == run.context
    assert dict(run.attributes or {}) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.id": "joker",
        "gen_ai.agent.name": "Joker",
        "gen_ai.agent.description": "Jokes.",
        "gen_ai.conversation.id": "t1",
        "clew.run.id": "r1",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 12,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 4,
        "gen_ai.usage.reasoning.output_tokens": 1,
    }
    assert dict(model.attributes or {}) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "m-1",
        "gen_ai.request.stream": True,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.output.type": "json",
        "gen_ai.conversation.id": "t1",
        "gen_ai.response.finish_reasons": ("tool_calls",),
        "gen_ai.response.id": "resp_1",
        "gen_ai.response.model": "m-1-2026",
        "gen_ai.usage.input_tokens": 12,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 4,
        "gen_ai.usage.reasoning.output_tokens": 1,
    }
    assert dict(tool.attributes or {}) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "look_up",
        "gen_ai.tool.call.id": "c1",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.description": "Look up.",
        "gen_ai.conversation.id": "t1",
    }
    assert {span.status.status_code for span in spans.values()} == {StatusCode.UNSET}
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_model_calls_are_measured() -> None:
    recorded = RecordedTelemetry()
    converse(recorded)
    with (
        pytest.raises(ModelOverloadedError),
        model_span(recorded.telemetry, QUESTION, client_kind="scripted", thread_id="t1"),
    ):
        raise ModelOverloadedError("no")
    metrics = recorded.metrics()
    common = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m-1"}
    answered = {**common, "gen_ai.provider.name": "openai", "gen_ai.response.model": "m-1-2026"}
    failed = {**common, "gen_ai.provider.name": "scripted", "error.type": "ModelOverloadedError"}
    durations = metrics["gen_ai.client.operation.duration"]
    assert [(dict(each.attributes or {}), each.count) for each in durations] == [(answered, 1), (failed, 1)]
    assert list(durations[0].explicit_bounds)[:3] == [0.01, 0.02, 0.04]
    assert [(dict(each.attributes or {}), each.sum) for each in metrics["gen_ai.client.token.usage"]] == [
        ({**answered, "gen_ai.token.type": "input"}, 12),
        ({**answered, "gen_ai.token.type": "output"}, 3),
    ]


def test_content_is_exported_only_on_request() -> None:
    def everything(recorded: RecordedTelemetry) -> str:
        converse(recorded)
        with (
            pytest.raises(ValueError, match=SECRET),
            tool_span(recorded.telemetry, name="f", call_id="c", thread_id="t"),
        ):
            raise ValueError(SECRET)
        return "".join(span.to_json() for span in recorded.exporter.get_finished_spans())

    assert SECRET not in everything(RecordedTelemetry())
    assert everything(RecordedTelemetry(content=True)).count(SECRET) >= 5


def test_content_is_exported_as_the_conventions_say() -> None:
    recorded = RecordedTelemetry(content=True)
    converse(recorded)
    spans = recorded.spans()
    model: Any = spans["chat m-1"].attributes
    tool: Any = spans["execute_tool look_up"].attributes
    run: Any = spans["invoke_agent Joker"].attributes
    assert json.loads(model["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": "Where is it?"}], "name": "Ann"}
    ]
    assert json.loads(model["gen_ai.output.messages"]) == [
        {
            "role": "assistant",
            "parts": [
                {"type": "text", "content": "Let me look."},
                {"type": "tool_call", "id": "c1", "name": "look_up", "arguments": {"order": 7}},
            ],
            "finish_reason": "tool_calls",
        }
    ]
    assert json.loads(model["gen_ai.system_instructions"]) == [{"type": "text", "content": "Be kind."}]
    assert json.loads(model["gen_ai.tool.definitions"]) == [
        {"type": "function", "name": "look_up", "description": "Look up.", "parameters": {"type": "object"}}
    ]
    assert tool["gen_ai.tool.call.arguments"] == f'"{SECRET}"'
    assert json.loads(tool["gen_ai.tool.call.result"]) == {"found": SECRET}
    assert json.loads(run["gen_ai.input.messages"])[0]["parts"] == [{"type": "text", "content": SECRET}]
    assert json.loads(run["gen_ai.output.messages"])[0]["finish_reason"] == "stop"


def test_every_kind_of_content_has_its_part() -> None:
    recorded = RecordedTelemetry(content=True)
    broken = FunctionCall(call_id="c2", name="f", arguments='{"order"')
    contents = (
        Text(text="a"),
        Reasoning(text="b"),
        broken,
        Media(uri="data:image/png;base64,AAAA"),
        Media(uri="https://example.org/a.pdf", media_type="application/pdf"),
        Media(uri="https://example.org/b"),
        Raw(value={"x": 1}),
    )
    messages = (Message(role="assistant", contents=contents), Message.tool("c2", {"ok": True}, name="f"))
    with model_span(recorded.telemetry, Question("m", messages), client_kind="openai-responses", thread_id="t"):
        pass
    attributes: Any = recorded.spans()["chat m"].attributes
    sent = json.loads(attributes["gen_ai.input.messages"])
    assert sent[0]["parts"] == [
        {"type": "text", "content": "a"},
        {"type": "reasoning", "content": "b"},
        {"type": "tool_call", "id": "c2", "name": "f", "arguments": '{"order"'},
        {"type": "blob", "content": "AAAA", "modality": "image", "mime_type": "image/png"},
        {
            "type": "uri",
            "uri": "https://example.org/a.pdf",
            "modality": "document",
            "mime_type": "application/pdf",
        },
        {"type": "uri", "uri": "https://example.org/b", "modality": "document"},
        {"type": "raw", "value": {"x": 1}},
    ]
    assert sent[1] == {
        "role": "tool",
        "parts": [{"type": "tool_call_response", "id": "c2", "response": {"ok": True}}],
    }


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError, KeyboardInterrupt])
def test_an_exception_marks_its_span_as_failed(error: type[BaseException]) -> None:
    recorded = RecordedTelemetry()
    with pytest.raises(error), run_span(recorded.telemetry, agent_id="a", agent_name=None, thread_id="t", run_id="r"):
        raise error
    span = recorded.spans()["invoke_agent a"]
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == error.__name__
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_a_reported_tool_error_marks_the_span_of_the_call_as_failed() -> None:
    recorded = RecordedTelemetry()
    for outcome in (ToolOutcome("Error", "UnknownToolError"), ToolOutcome("Error", "KeyError", KeyError("x"))):
        with tool_span(recorded.telemetry, name=str(outcome.error), call_id="c", thread_id="t") as tool:
            tool.finished(outcome)
    types = {name: (span.attributes or {})["error.type"] for name, span in recorded.spans().items()}
    assert types == {"execute_tool UnknownToolError": "UnknownToolError", "execute_tool KeyError": "KeyError"}


def test_a_generator_may_be_closed_elsewhere(caplog: pytest.LogCaptureFixture) -> None:
    recorded = RecordedTelemetry()

    async def updates() -> AsyncIterator[int]:
        with run_span(recorded.telemetry, agent_id="a", agent_name=None, thread_id="t", run_id="r"):
            yield 1
            yield 2

    async def main() -> None:
        stream = updates()
        assert await asyncio.create_task(anext(stream)) == 1  # type: ignore[arg-type]  # an awaitable is enough
        await stream.aclose()  # type: ignore[attr-defined]  # it is a generator

    asyncio.run(main())
    assert list(recorded.spans()) == ["invoke_agent a"]
    assert caplog.records == []


def test_without_opentelemetry_nothing_is_recorded_and_nothing_fails() -> None:
    code = (
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'opentelemetry': raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Missing())\n"
        "from clew.agents.telemetry import Telemetry, model_span, run_span, tool_span\n"
        "from clew.agents.tools import ToolOutcome\n"
        "from clew.domain.messages import Message\n"
        "from clew.domain.models.client import Answer, Question\n"
        "telemetry = Telemetry(content=True)\n"
        "assert telemetry._instruments is None\n"
        "with run_span(telemetry, agent_id='a', agent_name=None, thread_id='t', run_id='r') as run:\n"
        "    with model_span(telemetry, Question('m', ()), client_kind='scripted', thread_id='t') as model:\n"
        "        model.answered(Answer(Message.assistant('Hi')))\n"
        "    with tool_span(telemetry, name='f', call_id='c', thread_id='t') as tool:\n"
        "        tool.finished(ToolOutcome('x', 'KeyError', KeyError('x')))\n"
        "    run.answered([])\n"
        "    run.failed('x')\n"
        "print(sorted(name for name in sys.modules if name.startswith('opentelemetry')))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"


def test_opentelemetry_is_imported_on_first_use() -> None:
    code = "import sys, clew.agents.telemetry as t; t.Telemetry(); print('opentelemetry' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"
