from __future__ import annotations

from typing import Any

from clew.domain.messages import FunctionCall, FunctionResult, Media, Message, Native, Raw, Reasoning, Text
from clew.domain.models.anthropic_answers import AnthropicAnswer
from clew.domain.models.anthropic_requests import ANTHROPIC, MAX_TOKENS, anthropic_body, prefix_of
from clew.domain.models.client import Question, ResponseFormat, ToolSchema

PNG = "data:image/png;base64,iVBORw0KGgo="
PDF = "data:application/pdf;base64,JVBERi0="


def messages(*turns: Message, **more: Any) -> list[Any]:
    body: Any = anthropic_body(Question("claude-x", turns, **more))
    return list(body["messages"])


def test_a_plain_question() -> None:
    tool = ToolSchema(name="f", description="Find.", parameters={"type": "object"})
    options: Any = {"thinking": {"type": "adaptive"}, "tools": [{"type": "web_search_20260209", "name": "web_search"}]}
    body: Any = anthropic_body(Question("claude-x", (Message.user("Hi"),), "Be brief.", (tool,), None, options))
    assert body == {
        "model": "claude-x",
        "max_tokens": MAX_TOKENS,
        "system": "Be brief.",
        "tools": [
            {"name": "f", "description": "Find.", "input_schema": {"type": "object"}},
            {"type": "web_search_20260209", "name": "web_search"},
        ],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
        "thinking": {"type": "adaptive"},
    }
    assert ANTHROPIC.as_stream(body)["stream"] is True


def test_a_format_is_asked_for_beside_the_effort() -> None:
    wanted = ResponseFormat(name="n", json_schema={"type": "object"})
    options: Any = {"output_config": {"effort": "low"}, "max_tokens": 5}
    body: Any = anthropic_body(Question("m", (Message.user("Hi"),), response_format=wanted, options=options))
    assert body["output_config"] == {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}}
    assert body["max_tokens"] == 5


def test_results_come_first_in_one_message_with_the_ids_of_their_calls() -> None:
    calls = (
        FunctionCall(call_id="a.1", name="f", arguments="{}"),
        FunctionCall(call_id="a.1", name="g", arguments="7"),
    )
    sent = messages(
        Message.user("Go"),
        Message.assistant("Well.", calls=calls),
        Message.tool("a.1", "one"),
        Message.tool("a.1", {"two": 2}),
        Message.user("And?"),
    )
    answer, results = sent[1]["content"], sent[2]["content"]
    assert answer[1:] == [
        {"type": "tool_use", "id": "a_1", "name": "f", "input": {}},
        {"type": "tool_use", "id": "a_1-2", "name": "g", "input": {"arguments": 7}},
    ]
    assert results == [
        {"type": "tool_result", "tool_use_id": "a_1", "content": "one"},
        {"type": "tool_result", "tool_use_id": "a_1-2", "content": '{"two": 2}'},
        {"type": "text", "text": "And?"},
    ]


def test_media_are_images_and_documents_or_words() -> None:
    (sent,) = messages(
        Message(
            role="user",
            contents=(
                Media(uri=PNG),
                Media(uri="https://example.org/a.png"),
                Media(uri=PDF),
                Media(uri="data:audio/wav;base64,AAAA"),
                Raw(value={"type": "search_result", "title": "T"}),
                Text(text="  "),
            ),
        )
    )
    assert [block["type"] for block in sent["content"]] == ["image", "image", "document", "text", "search_result"]
    assert sent["content"][0]["source"] == {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}


def test_an_answer_comes_after_the_user_and_has_no_empty_text() -> None:
    first, second = messages(Message.assistant("Hello."))
    assert (first["role"], second["role"]) == ("user", "assistant")
    foreign = Message(role="assistant", contents=(Reasoning(text="Hm."), Text(text="")))
    assert [each["role"] for each in messages(Message.user("Hi"), foreign, Message.user("Yes"))] == ["user"]


def test_a_result_without_its_call_keeps_its_id() -> None:
    alone = Message(role="tool", contents=(FunctionResult(call_id="x", result=1),))
    assert messages(alone)[0]["content"][0]["tool_use_id"] == "x"


def test_marks_for_the_cache_do_not_change_the_prefix() -> None:
    body: Any = anthropic_body(Question("m", (Message.user("Hi"),)))
    marked: Any = anthropic_body(Question("m", (Message.user("Hi"),)))
    marked["messages"][0]["content"][0]["cache_control"] = {"type": "ephemeral"}
    assert prefix_of(body) == prefix_of(marked)
    assert prefix_of(body) != prefix_of({**body, "system": "Other."})


def test_what_the_service_does_not_take_back_is_left_out_or_made_an_object() -> None:
    contents: Any = [{"type": "text", "text": "\n\n"}, {"type": "tool_use", "id": "a", "name": "f", "input": '{"ord'}]
    reader = AnthropicAnswer()
    list(reader.take_whole({"id": "m", "model": "m-1", "content": contents, "stop_reason": "max_tokens"}))
    answer = reader.answer()
    assert answer is not None
    native = (answer.message.native or Native(wire=ANTHROPIC.name)).model_copy(update={"provider": "p", "model": "m-1"})
    message = answer.message.model_copy(update={"native": native})
    asked = Question("m-1", (Message.user("Hi"), message, Message.tool("a", "done")), provider="p")
    body: Any = ANTHROPIC.make_body(asked)
    assert body["messages"][1]["content"] == [
        {"type": "tool_use", "id": "a", "name": "f", "input": {"arguments": '{"ord'}}
    ]
