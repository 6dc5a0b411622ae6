from __future__ import annotations

import json
import typing
from decimal import Decimal
from typing import Any

import anthropic.types as sdk
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.servers.strict_anthropic import events

from clew.domain.json_values import parse_json
from clew.domain.messages import FunctionCall, Message, Raw, Reasoning, Text, check_message
from clew.domain.models.anthropic_answers import AnthropicAnswer, written_blocks
from clew.domain.models.client import Answer, CallDelta, ReasoningDelta, TextDelta, TokenUsage, Update
from clew.domain.models.native import received

BLOCKS = st.one_of(
    st.builds(lambda text: {"type": "text", "text": text}, st.text("abc 🧶", min_size=1)),
    st.just({"type": "text", "text": "cited", "citations": [{"type": "char_location", "cited_text": "x", "new": 1}]}),
    st.builds(
        lambda text, name: {"type": "thinking", "thinking": text, "signature": name},
        st.text("abc"),
        st.text("abc", min_size=1),
    ),
    st.just({"type": "redacted_thinking", "data": "xyz"}),
    st.builds(
        lambda value: {"type": "tool_use", "id": "toolu_1", "name": "f", "input": value, "caller": {"type": "direct"}},
        st.dictionaries(st.text("ab", min_size=1), st.integers() | st.text("ab") | st.lists(st.booleans())),
    ),
    st.just({"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "x"}}),
    st.just({"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [{"encrypted_content": "e"}]}),
    st.just({"type": "future_block", "payload": {"deep": [1, {"a": "b"}]}}),
)
ABOUT: Any = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-x", "stop_sequence": None}
USAGE: Any = {
    "input_tokens": 10,
    "output_tokens": 5,
    "cache_read_input_tokens": 4,
    "cache_creation_input_tokens": 2,
    "server_tool_use": {"web_search_requests": 1},
}


def message(*blocks: Any, reason: str = "end_turn") -> Any:
    return {**ABOUT, "content": list(blocks), "stop_reason": reason, "usage": USAGE}


def streamed(*lines: bytes) -> tuple[list[Update], AnthropicAnswer]:
    reader = AnthropicAnswer()
    sent = [json.loads(line.split(b"data: ")[1]) for line in lines]
    return [update for event in sent for update in reader.take(event)], reader


def whole(told: Any) -> tuple[list[Update], AnthropicAnswer]:
    reader = AnthropicAnswer()
    return list(reader.take_whole(told)), reader


@given(st.lists(BLOCKS, max_size=5))
def test_no_block_is_lost_streamed_or_whole(blocks: list[Any]) -> None:
    told = message(*blocks)
    updates, reader = streamed(*events(told))
    answer = reader.answer()
    assert answer is not None
    assert answer == whole(told)[1].answer()
    kept: Any = received(answer.message, {"content": [*written_blocks(answer.message)]})
    assert kept["content"] == blocks
    assert kept["reply"] == {"usage": {"cache_creation_input_tokens": 2, "server_tool_use": {"web_search_requests": 1}}}
    assert "".join(each.text for each in updates if isinstance(each, TextDelta)) == answer.message.text


def test_reads_all_parts_of_an_answer() -> None:
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    call = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}}
    other: Any = {"type": "future_block", "payload": 1}
    updates, reader = whole(message(thinking, {"type": "text", "text": "Hi"}, call, other, reason="tool_use"))
    assert updates == [ReasoningDelta("Hm."), TextDelta("Hi"), CallDelta(0, "toolu_1", "f", '{"a": 1}')]
    answer = reader.answer()
    assert isinstance(answer, Answer)
    assert answer.message.model_copy(update={"native": None}) == Message(
        role="assistant",
        contents=(
            Reasoning(text="Hm."),
            Text(text="Hi"),
            FunctionCall(call_id="toolu_1", name="f", arguments='{"a": 1}'),
            Raw(value=other),
        ),
    )
    assert (answer.finish_reason, answer.model, answer.response_id) == ("tool_calls", "claude-x", "msg_1")
    assert answer.usage == TokenUsage(
        input_tokens=16, output_tokens=5, cached_tokens=4, parts={"cache_write": 2, "web_searches": 1}
    )
    assert answer.message.native is not None
    assert answer.message.native.prefix is not None, "thinking is signed"


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("tool_use", "tool_calls"),
        ("max_tokens", "length"),
        ("refusal", "refusal"),
        ("pause_turn", "pause_turn"),
        ("model_context_window_exceeded", "model_context_window_exceeded"),
        ("new_reason", "new_reason"),
    ],
)
def test_each_end_is_an_outcome_of_its_own(reason: str, outcome: str) -> None:
    answer = whole(message({"type": "text", "text": "Hi"}, reason=reason))[1].answer()
    assert answer is not None
    assert answer.finish_reason == outcome


def test_an_answer_is_complete_only_with_its_last_event() -> None:
    lines = list(events(message({"type": "text", "text": "Hi"})))
    for end in range(len(lines)):
        assert streamed(*lines[:end])[1].answer() is None
    assert streamed(*lines)[1].answer() is not None


def test_an_error_in_the_events_is_the_failure() -> None:
    error = {"type": "overloaded_error", "message": "Busy."}
    _, reader = streamed(b"data: " + json.dumps({"type": "error", "error": error}).encode())
    assert reader.failure == error
    assert whole({"type": "error", "error": error})[1].failure == error


def test_input_that_is_not_json_is_kept_as_the_models_text() -> None:
    reader = AnthropicAnswer()
    block = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    sent: tuple[Any, ...] = (
        {"type": "message_start", "message": {**message(), "content": []}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": "{broken"}},
        {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": 5}},
        {"type": "message_stop"},
    )
    for event in sent:
        list(reader.take(event))
    answer = reader.answer()
    assert answer is not None
    assert answer.message.calls[0].arguments == "{broken"


def test_what_events_have_beyond_the_answer_is_kept() -> None:
    told = message({"type": "text", "text": "Hi"})
    lines: list[Any] = [json.loads(line.split(b"data: ")[1]) for line in events(told)]
    kinds = [line["type"] for line in lines]
    for kind in ("message_start", "content_block_start", "content_block_stop", "message_stop"):
        lines[kinds.index(kind)]["odd"] = kind
    lines[kinds.index("content_block_delta")]["delta"]["odd"] = 1
    lines.insert(2, {"type": "future_event", "payload": [1]})
    reader = AnthropicAnswer()
    for line in lines:
        list(reader.take(line))
    answer = reader.answer()
    assert answer is not None
    kept: Any = received(answer.message, {"content": [*written_blocks(answer.message)]})
    assert kept["events"] == [
        {"type": "message_start", "odd": "message_start"},
        {"type": "future_event", "payload": [1]},
        {"type": "content_block_start", "index": 0, "odd": "content_block_start"},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "odd": 1}},
        {"type": "content_block_stop", "index": 0, "odd": "content_block_stop"},
        {"type": "message_stop", "odd": "message_stop"},
    ]


def test_what_later_events_say_otherwise_is_kept() -> None:
    told = message({"type": "text", "text": "Hi"})
    lines: list[Any] = [json.loads(line.split(b"data: ")[1]) for line in events(told)]
    start, end = lines[0]["message"], next(line for line in lines if line["type"] == "message_delta")
    start["container"] = {"id": "before"}
    start["usage"] = {"input_tokens": 1, "output_tokens": 1, "service_tier": "standard", "cache": {"read": 1}}
    end["delta"]["container"] = {"id": "after"}
    end["usage"] = {"output_tokens": 3, "service_tier": "priority", "cache": {"read": 2}}
    reader = AnthropicAnswer()
    for line in lines:
        list(reader.take(line))
    answer = reader.answer()
    assert answer is not None
    kept: Any = received(answer.message, {"content": [*written_blocks(answer.message)]})
    assert kept["earlier"] == [{"usage": {"service_tier": "standard"}}, {"container": {"id": "before"}}]


@pytest.mark.parametrize("number", ["1e400", "-2.5e4000"])
def test_a_number_that_no_float_holds_is_kept_exactly(number: str) -> None:
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    call: Any = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": parse_json(number)}}
    _, reader = whole(message(thinking, call, reason="tool_use"))
    start: Any = {"type": "content_block_start", "index": 1, "content_block": {**call, "input": {}}}
    delta: Any = {"type": "input_json_delta", "partial_json": f'{{"a": {number}}}'}
    _, pieces = streamed(*events(message(thinking)))
    for event in (start, {"type": "content_block_delta", "index": 1, "delta": delta}):
        list(pieces.take(event))
    for answer in (reader.answer(), pieces.answer()):
        assert answer is not None
        check_message(answer.message)
        kept: Any = received(answer.message, {"content": [*written_blocks(answer.message)]})
        assert kept["content"] == [thinking, call]
        assert json.loads(answer.message.calls[0].arguments)["a"] == Decimal(number)


@pytest.mark.parametrize("odd", ["1e99999", "NaN", "-Infinity"])
def test_a_number_that_cannot_be_kept_is_null(odd: str) -> None:
    assert parse_json(f'{{"a": [{odd}, 1e5]}}') == {"a": [None, 1e5]}


def test_a_half_character_does_not_cost_the_signature() -> None:
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    answer = whole(message(thinking, {"type": "future_block", "payload": "\ud83e"}))[1].answer()
    assert answer is not None
    check_message(answer.message)
    kept: Any = received(answer.message, {"content": [*written_blocks(answer.message)]})
    assert kept["content"] == [thinking, {"type": "future_block", "payload": "\ufffd"}]


def members(union: Any) -> dict[str, list[str]]:
    """The names of the types in a union of the package, with their fields."""
    inner = typing.get_args(union)[0] if typing.get_origin(union) is typing.Annotated else union
    return {each.__name__: sorted(each.model_fields) for each in typing.get_args(inner)}


def test_the_package_has_no_types_and_fields_that_nobody_has_looked_at() -> None:
    """A new release that adds one fails here, with its name: read it in ``anthropic_answers``, then write it down."""
    result = ["content", "tool_use_id", "type"]
    assert members(sdk.ContentBlock) == {
        "BashCodeExecutionToolResultBlock": result,
        "CodeExecutionToolResultBlock": result,
        "ContainerUploadBlock": ["file_id", "type"],
        "RedactedThinkingBlock": ["data", "type"],
        "ServerToolUseBlock": ["caller", "id", "input", "name", "type"],
        "TextBlock": ["citations", "text", "type"],
        "TextEditorCodeExecutionToolResultBlock": result,
        "ThinkingBlock": ["signature", "thinking", "type"],
        "ToolSearchToolResultBlock": result,
        "ToolUseBlock": ["caller", "id", "input", "name", "toolset_name", "type"],
        "WebFetchToolResultBlock": ["caller", *result],
        "WebSearchToolResultBlock": ["caller", *result],
    }
    assert members(sdk.RawContentBlockDelta) == {
        "CitationsDelta": ["citation", "type"],
        "InputJSONDelta": ["partial_json", "type"],
        "SignatureDelta": ["signature", "type"],
        "TextDelta": ["text", "type"],
        "ThinkingDelta": ["thinking", "type"],
    }
    assert sorted(members(sdk.RawMessageStreamEvent)) == [
        "RawContentBlockDeltaEvent",
        "RawContentBlockStartEvent",
        "RawContentBlockStopEvent",
        "RawMessageDeltaEvent",
        "RawMessageStartEvent",
        "RawMessageStopEvent",
    ]
    assert sorted(sdk.Usage.model_fields) == [
        "cache_creation",
        "cache_creation_input_tokens",
        "cache_read_input_tokens",
        "inference_geo",
        "input_tokens",
        "output_tokens",
        "output_tokens_details",
        "server_tool_use",
        "service_tier",
        "speed",
    ]
