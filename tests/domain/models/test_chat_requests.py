from __future__ import annotations

from typing import Any

import pytest
from tests.domain.request_checks import checked

from clew.domain.formats.openai_messages import decode
from clew.domain.messages import (
    ApprovalRequest,
    Content,
    FunctionCall,
    Media,
    Message,
    Raw,
    Reasoning,
    Role,
    Text,
)
from clew.domain.models.chat_requests import OPENAI_CHAT
from clew.domain.models.client import Question, ToolSchema

PNG = "data:image/png;base64,AAAA"
CALL = FunctionCall(call_id="a", name="find", arguments='{"n":1}')


def sent(*messages: Message, **options: Any) -> list[dict[str, Any]]:
    sent_messages: list[dict[str, Any]] = checked(OPENAI_CHAT, Question("m", messages, **options))["messages"]
    return sent_messages


def sent_as(role: Role, *contents: Content) -> dict[str, Any]:
    (message,) = sent(Message(role=role, contents=contents))
    return message


def test_sends_an_exchange_in_the_simplest_form() -> None:
    tool = ToolSchema(name="find", description="Finds.", parameters={"type": "object"})
    exchange = (
        Message.user("Hi", author="ann", metadata={"x": 1}),
        Message.assistant("Let me see.", calls=[CALL], author="Joker"),
        Message.tool("a", {"found": True}, name="find"),
        Message.assistant("There."),
    )
    body = checked(OPENAI_CHAT, Question("m", exchange, "Be kind.", (tool,)))
    assert list(body) == ["model", "messages", "tools"]
    assert body["messages"] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi", "name": "ann"},
        {
            "role": "assistant",
            "content": "Let me see.",
            "name": "Joker",
            "tool_calls": [{"id": "a", "type": "function", "function": {"name": "find", "arguments": '{"n":1}'}}],
        },
        {"role": "tool", "tool_call_id": "a", "content": '{"found": true}'},
        {"role": "assistant", "content": "There."},
    ]
    assert body["tools"] == [
        {"type": "function", "function": {"name": "find", "description": "Finds.", "parameters": {"type": "object"}}}
    ]


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (Media(uri="https://x/y.png"), {"type": "image_url", "image_url": {"url": "https://x/y.png"}}),
        (Media(uri=PNG), {"type": "image_url", "image_url": {"url": PNG}}),
        (
            Media(uri="data:audio/mpeg;base64,AAAA"),
            {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "mp3"}},
        ),
        (
            Media(uri="data:application/pdf;base64,AAAA"),
            {"type": "file", "file": {"filename": "file.pdf", "file_data": "data:application/pdf;base64,AAAA"}},
        ),
        (
            Media(uri="https://x/y.mp4", media_type="video/mp4"),
            {"type": "text", "text": "[video/mp4: https://x/y.mp4]"},
        ),
        (Media(uri="data:video/mp4;base64,AAAA"), {"type": "text", "text": "[video/mp4, not shown here]"}),
        (Media(uri="s3://x/y"), {"type": "text", "text": "[media: s3://x/y]"}),
        (
            Raw(value={"type": "file", "file": {"file_id": "file_1"}}),
            {"type": "file", "file": {"file_id": "file_1"}},
        ),
    ],
)
def test_sends_media_in_the_formats_of_the_service_or_as_text(part: Content, expected: object) -> None:
    assert sent_as("user", Text(text="See:"), part)["content"] == [{"type": "text", "text": "See:"}, expected]


@pytest.mark.parametrize("role", ["assistant", "system", "developer"])
def test_describes_an_image_as_text_if_the_role_cannot_have_one(role: Role) -> None:
    assert sent_as(role, Media(uri=PNG)) == {"role": role, "content": "[image/png, not shown here]"}


@pytest.mark.parametrize(
    "part",
    [
        Reasoning(text="Hm."),
        ApprovalRequest(approval_id="1", call=CALL),
        Raw(value={"type": "web_search_call", "id": "ws_1"}),
        Raw(value={"type": "image_url", "image_url": {"url": PNG}}),
        Raw(value=["a"]),
    ],
)
def test_omits_contents_without_a_wire_form(part: Content) -> None:
    assert sent_as("assistant", part) == {"role": "assistant", "content": ""}
    assert sent_as("assistant", part, Text(text="Yes.")) == {"role": "assistant", "content": "Yes."}


def test_sends_empty_messages() -> None:
    assert sent_as("assistant") == {"role": "assistant", "content": ""}
    assert sent_as("user") == {"role": "user", "content": ""}


def test_sends_a_refusal_as_a_refusal() -> None:
    refused = Raw(value={"type": "refusal", "refusal": "No."})
    assert sent_as("assistant", refused) == {"role": "assistant", "content": None, "refusal": "No."}


def test_ignores_extra_fields_of_imported_messages() -> None:
    imported = decode({"role": "user", "content": [{"type": "text", "text": "Hi"}], "weight": 1, "name": "a b"}, 1)
    assert imported.source
    assert sent(imported) == [{"role": "user", "content": "a b: Hi"}], "a name that services refuse is a prefix"


@pytest.mark.parametrize(("name", "expected"), [("a.b/c", "a_b_c"), ("", "unnamed"), ("x" * 70, "x" * 64)])
def test_gives_an_unknown_function_a_valid_name(name: str, expected: str) -> None:
    call = FunctionCall(call_id="a", name=name, arguments="")
    message, _ = sent(Message.assistant(calls=[call]), Message.tool("a", "?"))
    assert message["tool_calls"][0]["function"] == {"name": expected, "arguments": "{}"}


def test_keeps_the_name_of_a_known_tool() -> None:
    call = FunctionCall(call_id="a", name="files.read", arguments="{}")
    tool = ToolSchema(name="files.read", parameters={})
    message, _ = sent(Message.assistant(calls=[call]), Message.tool("a", "?"), tools=(tool,))
    assert message["tool_calls"][0]["function"]["name"] == "files.read"


def test_calls_in_a_users_message_are_sent_as_the_models() -> None:
    mixed = Message(role="user", contents=(Text(text="Hi"), CALL))
    assert [each["role"] for each in sent(mixed, Message.tool("a", 1))] == ["user", "assistant", "tool"]
