"""Requests of Bedrock: signed blocks go back only while what came before them is unchanged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from clew.domain.messages import Message
from clew.domain.models.bedrock_answers import BedrockAnswer
from clew.domain.models.bedrock_requests import (
    BEDROCK,
    bedrock_body,
    bedrock_left_out,
    bedrock_prefix,
    bedrock_rebound,
    written_blocks_of,
)
from clew.domain.models.chat_answers import as_object
from clew.domain.models.client import Question, ToolSchema
from clew.domain.models.native import native_json

BLOCKS: list[Any] = [
    {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "c2ln"}}},
    {"toolUse": {"toolUseId": "t1", "name": "look", "input": {"a": 1}}},
]

PREFIX_OF_EDITION_2 = "a9189fbc671a641e79fafe24a27f8fa5657696debeb4e032f8d914ef06d4d5e3"


def question(*messages: Message, instructions: str | None = None, model: str = "m") -> Question:
    tools = (ToolSchema(name="look", parameters={"type": "object"}),)
    return Question(model, messages, instructions=instructions, tools=tools, provider="bedrock")


def left_out(asked: Question) -> tuple[int, ...]:
    return bedrock_left_out(asked, bedrock_body(asked))


def answer_to(asked: Question) -> Message:
    reader = BedrockAnswer()
    list(reader.take_whole({"output": {"message": {"content": BLOCKS}}, "stopReason": "tool_use"}))
    return own(reader, asked)


def own(reader: BedrockAnswer, asked: Question) -> Message:
    """The answer to a question, as the run records it."""
    answer = reader.answer()
    assert answer is not None
    assert answer.message.native is not None
    made_by = {"provider": "bedrock", "model": "m", "prefix": bedrock_prefix(bedrock_body(asked))}
    return answer.message.model_copy(update={"native": answer.message.native.model_copy(update=made_by)})


def test_signed_blocks_are_bound_to_what_came_before() -> None:
    first = Message.user("Hi"), answer_to(question(Message.user("Hi"))), Message.tool("t1", "found")
    same = question(*first)
    body: Any = bedrock_body(same)
    assert body["messages"][1]["content"] == BLOCKS
    assert bedrock_left_out(same, body) == ()
    for other in (question(Message.user("Ho"), *first[1:]), question(*first, instructions="New.")):
        changed: Any = bedrock_body(other)
        assert changed["messages"][1]["content"] == BLOCKS[1:]
        assert bedrock_left_out(other, changed) == (1,)
    another: Any = bedrock_body(question(*first, model="m-2"))
    assert another["messages"][1]["content"] == BLOCKS[1:]


def test_the_choice_of_a_tool_does_not_count() -> None:
    """A call that is forced once is not forced in the next request, and its thinking still goes back."""
    forced = replace(question(Message.user("Hi")), options={"toolConfig": {"toolChoice": {"any": {}}}})
    history = Message.user("Hi"), answer_to(forced), Message.tool("t1", "found")
    body: Any = bedrock_body(question(*history))
    assert body["messages"][1]["content"] == BLOCKS
    assert left_out(question(*history)) == ()
    free = bedrock_body(question(*history))
    chosen: Any = {**free, "toolConfig": {**as_object(free["toolConfig"]), "toolChoice": {"auto": {}}}}
    assert bedrock_rebound(free, chosen) == chosen


def test_an_earlier_edition_is_written_as_it_was() -> None:
    """Then the choice was a part of what signed blocks are bound to: a request on the log keeps its bytes."""
    forced = replace(question(Message.user("Hi")), options={"toolConfig": {"toolChoice": {"any": {}}}}, edition=2)
    made = answer_to(forced)
    assert made.native is not None
    recorded = made.native.model_copy(update={"prefix": PREFIX_OF_EDITION_2})
    history = Message.user("Hi"), made.model_copy(update={"native": recorded}), Message.tool("t1", "found")
    assert left_out(replace(forced, messages=history)) == ()
    assert left_out(replace(question(*history), edition=2)) == (1,)


def test_fields_of_a_message_go_back_and_those_around_it_do_not() -> None:
    asked = question(Message.user("Hi"))
    reader = BedrockAnswer()
    told: Any = {"content": BLOCKS, "role": "assistant", "future": {"a": 1}}
    list(reader.take_whole({"output": {"message": told, "other": 2}, "stopReason": "tool_use", "trace": None}))
    message = own(reader, asked)
    assert native_json(message, written_blocks_of(message)) == {
        "json": BLOCKS,
        "reply": {"output": {"message": {"future": {"a": 1}}, "other": 2}},
    }
    body: Any = bedrock_body(question(Message.user("Hi"), message, Message.tool("t1", "found")))
    assert body["messages"][1] == told


def test_what_events_say_besides_is_kept() -> None:
    reader = BedrockAnswer()
    for event in (
        {"messageStart": {"role": "assistant", "p": "abc", "conversationId": "c"}},
        {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": "Hi", "score": 1}, "p": "ab", "future": 1}},
        {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": "!", "score": 2}, "p": "a"}},
        {"contentBlockStop": {"contentBlockIndex": 0, "p": "abcd", "future": 2}},
        {"futureEvent": {"a": 1, "p": "a"}},
        {"messageStop": {"stopReason": "end_turn", "metrics": {"first": 1}, "p": "ab"}},
        {"metadata": {"usage": {"inputTokens": 1}, "metrics": {"latencyMs": 2}, "stopReason": "end_turn"}},
    ):
        list(reader.take(event))  # type: ignore[arg-type]  # literals
    answer = reader.answer()
    assert answer is not None
    assert native_json(answer.message, written_blocks_of(answer.message)) == {
        "json": [{"text": "Hi!", "score": 2}],
        "reply": {
            "metrics": {"first": 1, "latencyMs": 2},
            "events": [
                {"messageStart": {"conversationId": "c"}},
                {"contentBlockDelta": {"contentBlockIndex": 0, "future": 1}},
                {"contentBlockStop": {"contentBlockIndex": 0, "future": 2}},
                {"futureEvent": {"a": 1}},
            ],
            "earlier": [{"path": "/json/0/score", "value": 1}],
        },
    }


def test_cache_points_do_not_count() -> None:
    body: Any = bedrock_body(question(Message.user("Hi"), instructions="Be kind."))
    before = BEDROCK.prefix_of(body) if BEDROCK.prefix_of else None
    body["system"].append({"cachePoint": {"type": "default"}})
    body["messages"][0]["content"].append({"cachePoint": {"type": "default"}})
    assert bedrock_prefix(body) == before
