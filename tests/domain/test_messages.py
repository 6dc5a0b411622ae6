from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from pydantic import TypeAdapter, ValidationError
from tests.domain.strategies import exact, messages, nested

from clew import Image
from clew.domain.errors import InvalidContentError
from clew.domain.messages import (
    ApprovalRequest,
    FunctionCall,
    FunctionResult,
    Media,
    Message,
    Raw,
    Reasoning,
    Text,
    check_message,
)

NOT_JSON: Any = (1,)
NOT_STRING_KEYS: Any = {1: "x"}
CALL = FunctionCall(call_id="c1", name="find", arguments="{}")


def test_a_users_message_has_texts_and_other_contents_in_order() -> None:
    image = Image(b"\x89PNG\r\n\x1a\n")
    assert Message.user(image).contents == (image,)
    assert Message.user("Look:", image, "And?").contents == (Text(text="Look:"), image, Text(text="And?"))
    wrong: Any
    for wrong in (b"\x89PNG", Path("a.png"), {"type": "text", "text": "hi"}, None):
        with pytest.raises(InvalidContentError, match=f"{type(wrong).__name__} is neither a text nor"):
            Message.user("Look:", wrong)


@given(messages)
def test_a_message_comes_back_equal_from_its_json(message: Message) -> None:
    check_message(message)
    read = TypeAdapter(Message).validate_json(message.model_dump_json())
    assert read == message
    assert exact(read) == exact(message)


def test_each_content_has_its_type_in_json() -> None:
    message = Message(
        role="assistant",
        contents=(
            Text(text="a"),
            Reasoning(text="b"),
            Media(uri="data:,c"),
            CALL,
            FunctionResult(call_id="c1"),
            ApprovalRequest(approval_id="p", call=CALL),
            Raw(value=None),
        ),
    )
    assert [content["type"] for content in message.model_dump(mode="json")["contents"]] == [
        "text",
        "reasoning",
        "media",
        "function-call",
        "function-result",
        "approval-request",
        "raw",
    ]


def test_unset_fields_are_not_written() -> None:
    assert Message.user("hello").model_dump_json() == '{"role":"user","contents":[{"type":"text","text":"hello"}]}'


def test_messages_have_short_constructors() -> None:
    assert Message.system("s").role == "system"
    assert Message.user("u", author="ann", metadata={"k": 1}).author == "ann"
    assert Message.assistant("a", calls=[CALL]).contents == (Text(text="a"), CALL)
    assert Message.assistant(calls=[CALL]).contents == (CALL,)
    assert Message.assistant("").contents == (Text(text=""),)
    assert Message.assistant().contents == ()
    assert Message.tool("c1", {"a": None}).contents == (FunctionResult(call_id="c1", result={"a": None}),)


def test_a_message_returns_its_text_calls_and_results() -> None:
    result = FunctionResult(call_id="c1", result=1)
    message = Message(role="assistant", contents=(Text(text="one "), CALL, Text(text="two"), result))
    assert message.text == "one two"
    assert message.calls == (CALL,)
    assert message.results == (result,)


def test_messages_cannot_be_changed() -> None:
    message = Message.user("hello")
    with pytest.raises(ValidationError, match="frozen"):
        message.role = "tool"  # type: ignore[misc]  # what this test is about


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"role": "wizard", "contents": ()}, "Message.role"),
        ({"role": "user", "contents": "secret"}, "Message.contents"),
        ({"role": "user", "contents": [{"type": "song", "secret": 1}]}, "Message.contents.0"),
        ({"role": "user", "contents": [{"type": "text", "text": ["secret"]}]}, "Message.contents.0.text.text"),
        ({"role": "user", "contents": (), "metadata": ["secret"]}, "Message.metadata"),
        ({"role": "user", "contents": (), "metadata": {1: "secret"}}, "Message.metadata"),
        ({"role": "user", "contents": (), "mood": "secret"}, "Message.mood"),
        ({"contents": ()}, "Message.role"),
    ],
)
def test_an_invalid_message_field_is_refused_by_name_without_its_value(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidContentError) as caught:
        Message(**fields)
    assert str(caught.value).startswith(path + (":" if path != "Message.metadata" else ""))
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("message", "path"),
    [
        (Message.user("a\ud800"), "contents[0].text"),
        (Message.user("a", author="\ud800"), "author"),
        (Message.user("a", metadata={"n": float("nan")}), "metadata.n"),
        (Message(role="user", contents=(), source={"n": [float("inf")]}), "source.n[0]"),
        (Message.tool("c", nested(101)), "contents[0].result"),
        (Message.tool("c", {"t": NOT_JSON}), "contents[0].result.t"),
        (Message.tool("c", {"o": NOT_STRING_KEYS}), "contents[0].result.o"),
        (Message.tool("\udc00", None), "contents[0].call_id"),
        (Message(role="user", contents=(Text(text="ok"), Raw(value=NOT_JSON))), "contents[1].value"),
        (Message(role="user", contents=(Reasoning(text="", data={"x": -float("inf")}),)), "contents[0].data.x"),
        (
            Message(
                role="user",
                contents=(
                    ApprovalRequest(approval_id="a", call=FunctionCall(call_id="c", name="n", arguments="\ud800")),
                ),
            ),
            "contents[0].call.arguments",
        ),
    ],
)
def test_content_that_json_would_change_is_refused_with_its_path(message: Message, path: str) -> None:
    with pytest.raises(InvalidContentError) as caught:
        check_message(message)
    assert str(caught.value).startswith(path)


@pytest.mark.parametrize(
    "fields", [{"content": "secret"}, {"contents": "secret"}, {"contents": ["secret"]}, {"text": "secret"}, {}]
)
def test_the_error_for_a_bare_string_shows_how_to_write_the_message(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidContentError) as caught:
        Message(role="user", **fields)
    assert 'write Message.user("hi"), or Message(role="user", contents=[Text(text="hi")])' in str(caught.value)
    assert "secret" not in str(caught.value)
    assert Message.user("hi") == Message(role="user", contents=[Text(text="hi")])  # type: ignore[arg-type]  # as advised


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ("system", 'write Message.system("hi"), or Message(role="system", contents=[Text(text="hi")]).'),
        ("developer", 'write Message(role="developer", contents=[Text(text="hi")]).'),
        ("user", 'write Message.user("hi"), or Message(role="user", contents=[Text(text="hi")]).'),
        ("assistant", 'write Message.assistant("hi"), or Message(role="assistant", contents=[Text(text="hi")]).'),
        ("tool", "write Message.tool(call_id, result), or Message("),
        ("secret", 'write Message.user("hi"), or Message('),
        (["secret"], 'write Message.user("hi"), or Message('),
    ],
)
def test_the_error_names_the_constructor_for_the_role(role: Any, expected: str) -> None:
    made: Any = Message
    with pytest.raises(InvalidContentError) as wrong_field:
        made(role=role, content=[{"type": "text", "text": "secret"}])
    with pytest.raises(TypeError) as positional:
        made(role, "secret")
    for error in (str(wrong_field.value), str(positional.value)):
        assert expected in error
        assert "secret" not in error


def test_the_error_for_positional_arguments_of_a_content_names_its_fields() -> None:
    made: Any = FunctionCall
    with pytest.raises(TypeError, match=r"Write FunctionCall\(call_id=…, name=…, arguments=…\)\.$"):
        made("call-1", "track")
