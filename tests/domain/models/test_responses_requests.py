from __future__ import annotations

import json
from typing import Any

import pytest
from tests.domain.request_checks import checked

from clew.domain.messages import Content, FunctionCall, Media, Message, Raw, Reasoning, Role, Text
from clew.domain.models.client import Question, ToolSchema
from clew.domain.models.responses_requests import OPENAI_RESPONSES

PNG = "data:image/png;base64,AAAA"
PDF = "data:application/pdf;base64,AAAA"
CALL = FunctionCall(call_id="a", name="find", arguments='{"n":1}')
THOUGHT: Any = {"id": "rs_1", "type": "reasoning", "encrypted_content": "gA", "summary": [], "status": None}
SEARCH: Any = {"type": "web_search_call", "id": "ws_1", "action": {"query": "parcel", "type": "search"}}


def sent(*messages: Message) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = checked(OPENAI_RESPONSES, Question("m", messages))["input"]
    return items


def items_of(role: Role, *contents: Content) -> list[dict[str, Any]]:
    return sent(Message(role=role, contents=contents))


def test_sends_an_exchange_as_items() -> None:
    tool = ToolSchema(name="find", description="Finds.", parameters={"type": "object"})
    exchange = (
        Message.user("Hi", author="ann", metadata={"x": 1}),
        Message(role="assistant", contents=(Reasoning(text="", data=THOUGHT), Text(text="Let me see."), CALL)),
        Message.tool("a", {"found": True}),
    )
    body = checked(OPENAI_RESPONSES, Question("m", exchange, "Be kind.", (tool,), options={"store": False}))
    assert list(body) == ["model", "input", "instructions", "tools", "store"]
    assert body["input"] == [
        {"role": "user", "content": "ann: Hi"},
        THOUGHT,
        {"role": "assistant", "content": "Let me see."},
        {"type": "function_call", "call_id": "a", "name": "find", "arguments": '{"n":1}'},
        {"type": "function_call_output", "call_id": "a", "output": '{"found": true}'},
    ]
    assert body["tools"] == [
        {
            "type": "function",
            "name": "find",
            "description": "Finds.",
            "parameters": {"type": "object"},
            "strict": False,
        }
    ]


@pytest.mark.parametrize(
    "item",
    [
        SEARCH,
        {"type": "mcp_approval_response", "approve": True, "approval_request_id": "mcpr_1"},
        {"type": "something_of_next_year", "id": "x_1", "big": 10**30},
    ],
)
def test_items_of_the_service_are_sent_back_unchanged(item: Any) -> None:
    items = items_of("assistant", Text(text="Before."), Raw(value=item), Text(text="After."))
    assert [each.get("content") for each in items] == ["Before.", None, "After."]
    assert json.dumps(items[1]) == json.dumps(item)


@pytest.mark.parametrize(
    "value",
    [
        {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}},
        {"type": "image_url", "image_url": {"url": PNG}},
        {"type": "thinking", "thinking": "Hm."},
        {"id": "x"},
        None,
    ],
)
def test_omits_items_of_other_services(value: Any) -> None:
    assert items_of("assistant", Raw(value=value), Text(text="Yes.")) == [{"role": "assistant", "content": "Yes."}]


def test_omits_reasoning_without_an_answer() -> None:
    thought = Reasoning(text="Hm.", data=THOUGHT)
    assert items_of("assistant", thought) == [{"role": "assistant", "content": ""}]
    assert items_of("assistant", Text(text="Yes."), thought) == [{"role": "assistant", "content": "Yes."}]


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (Media(uri=PNG), {"type": "input_image", "image_url": PNG}),
        (Media(uri=PDF), {"type": "input_file", "filename": "file.pdf", "file_data": PDF}),
        (
            Media(uri="https://x/y.pdf", media_type="application/pdf"),
            {"type": "input_file", "file_url": "https://x/y.pdf"},
        ),
        (
            Media(uri="https://x/y.mp3", media_type="audio/mpeg"),
            {"type": "input_text", "text": "[audio/mpeg: https://x/y.mp3]"},
        ),
        (Media(uri="s3://x/y"), {"type": "input_text", "text": "[media: s3://x/y]"}),
        (
            Raw(value={"type": "file", "file": {"file_data": PDF, "filename": "a.pdf"}}),
            {"type": "input_file", "filename": "a.pdf", "file_data": PDF},
        ),
        (
            Raw(value={"type": "file", "file": {"file_data": PDF}}),
            {"type": "input_file", "filename": "file", "file_data": PDF},
        ),
        (
            Raw(value={"type": "file", "file": {"file_id": "file_1"}}),
            {"type": "input_file", "file_id": "file_1"},
        ),
        (
            Raw(value={"type": "image_url", "image_url": {"url": PNG, "detail": "low"}}),
            {"type": "input_image", "image_url": PNG},
        ),
        (
            Raw(value={"type": "input_image", "file_id": "file_1"}),
            {"type": "input_image", "file_id": "file_1"},
        ),
        (
            Raw(value={"type": "input_file", "file_url": "https://x"}),
            {"type": "input_file", "file_url": "https://x"},
        ),
        (Raw(value={"type": "text", "text": "Hi"}), {"type": "input_text", "text": "Hi"}),
    ],
)
def test_sends_media_in_the_formats_of_the_service_or_as_text(part: Content, expected: object) -> None:
    (item,) = items_of("user", Text(text="See:"), part)
    assert item["content"] == [{"type": "input_text", "text": "See:"}, expected]


def test_sends_a_refusal_as_a_refusal() -> None:
    refused = Raw(value={"type": "refusal", "refusal": "No."})
    assert items_of("assistant", refused) == [{"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}]


def test_a_repeated_call_id_becomes_unique() -> None:
    turn = (Message.assistant(calls=[CALL]), Message.tool("a", "found"))
    assert [item["call_id"] for item in sent(*turn, *turn)] == ["a", "a", "a-2", "a-2"]
